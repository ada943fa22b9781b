"""What must hold of every data source, ours or a user's."""

import itertools
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from experiments.data.sources.base import Source
from flaxformer_lite.testing.finding import Finding

PAIRS = 10_000  # of the training pairs, which are looked at
Pair = tuple[str, str]


def source_findings(source: Source) -> list[Finding]:
    """The contracts of a source, by its sets and the first of its training pairs."""
    train = list(itertools.islice(source.train(), PAIRS))
    again = list(itertools.islice(source.train(), PAIRS))
    sets = {name: _pairs(found) for name, found in source.evaluation().items()}
    first = next(iter(sets), 'none')
    return [
        _without('there are training pairs', [] if train else ['there is none']),
        _without('the same pairs come each time', _differing(train, again)),
        _without('text is NFC, and of one line', _odd({'training': train, **sets})),
        _without('no set holds a pair that is trained on', _trained(sets, set(train))),
        _without('the first set is val', [] if first == 'val' else [f'it is {first}']),
    ]


def _pairs(sentences: Iterable[tuple[str, str | tuple[str, ...]]]) -> list[Pair]:
    """A source with each of its references."""
    found = []
    for source, known in sentences:
        references = (known,) if isinstance(known, str) else known
        found += [(source, reference) for reference in references]
    return found


def _without(contract: str, examples: Iterable[str]) -> Finding:
    """That there is no example against it."""
    example = next(iter(examples), '')
    return Finding(contract, not example, example)


def _differing(one: list, other: list) -> Iterator[str]:
    if len(one) != len(other):
        yield f'there are {len(one):,}, and then {len(other):,}'
    for i, (x, y) in enumerate(zip(one, other, strict=False)):
        if x != y:
            yield f'number {i} is {x!r:.60}, and then {y!r:.60}'


def _odd(sets: Mapping[str, Sequence[Any]]) -> Iterator[str]:
    for name, pairs in sets.items():
        for i, pair in enumerate(pairs):
            for text in pair:
                if '\n' in text or not unicodedata.is_normalized('NFC', text):
                    yield f'{name}, pair {i} is {text!a:.60}'


def _trained(sets: Mapping[str, Sequence[Any]], train: set[Pair]) -> Iterator[str]:
    for name, pairs in sets.items():
        for i, pair in enumerate(pairs):
            if pair in train:
                yield f'{name}, pair {i} is {pair!r:.60}'
