"""What must hold of every data source and every tokenizer, ours or a user's."""

import itertools
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from experiments.data.sources.base import Source
from experiments.data.tokenizers.base import UNKNOWN, Tokenizer, normalize
from flaxformer_lite.testing.finding import Finding, without

PAIRS = 10_000  # of the training pairs, which are looked at
Pair = tuple[str, str]


def source_findings(source: Source) -> list[Finding]:
    """The contracts of a source, by its sets and the first of its training pairs."""
    train = list(itertools.islice(source.train(), PAIRS))
    again = list(itertools.islice(source.train(), PAIRS))
    sets = {name: _pairs(found) for name, found in source.evaluation().items()}
    first = next(iter(sets), 'none')
    return [
        without('there are training pairs', [] if train else ['there is none']),
        without('the same pairs come each time', _differing(train, again)),
        without('text is NFC, and of one line', _odd({'training': train, **sets})),
        without('no set holds a pair that is trained on', _trained(sets, set(train))),
        without('the first set is val', [] if first == 'val' else [f'it is {first}']),
    ]


def _pairs(sentences: Iterable[tuple[str, str | tuple[str, ...]]]) -> list[Pair]:
    """A source with each of its references."""
    found = []
    for source, known in sentences:
        references = (known,) if isinstance(known, str) else known
        found += [(source, reference) for reference in references]
    return found


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


def tokenizer_findings(tokenizer: Tokenizer, texts: Iterable[str]) -> list[Finding]:
    """The contracts of a tokenizer, untrained, of what it learns of texts."""
    texts = sorted(set(texts), key=len)  # so that the first example is the smallest
    model = tokenizer.train(texts)
    trained = tokenizer.opened(model)
    rows = trained.encode(texts)
    decoded = trained.decode(rows)
    again = tokenizer.train(texts)
    reopened = tokenizer.opened(model).encode(texts)
    blank = [*trained.encode(['', ' \t ']), *trained.encode_target([''])]
    return [
        without('text comes back', _changed(texts, decoded)),
        without('what follows an end is no text', _after_end(trained, rows, decoded)),
        without('ids are those of text', _no_text(trained, texts, rows)),
        without('a blank text has no ids', map(str, filter(None, blank))),
        without('each id is written as a piece', _unwritten(trained)),
        without('it has no more ids than it says', _too_many(tokenizer, trained)),
        without('equal text makes equal bytes', _unequal(model, again)),
        without('opened again it is the same', _differing(rows, reopened)),
        without('what it draws is of the same text', _drawn(trained, texts, rows)),
    ]


def _changed(texts: Sequence[str], decoded: Sequence[str]) -> Iterator[str]:
    for text, back in zip(texts, decoded, strict=True):
        if back != normalize(text) and UNKNOWN not in back:
            yield f'{text!r:.60} comes back as {back!r:.60}'


def _after_end(
    trained: Tokenizer, rows: list[list[int]], decoded: Sequence[str]
) -> Iterator[str]:
    special = trained.special_tokens
    ended = [[*row, special.end, *rows[-1], special.padding] for row in rows]
    for text, back in zip(decoded, trained.decode(ended), strict=True):
        if back != text:
            yield f'{text!r:.60} becomes {back!r:.60}'


def _no_text(
    trained: Tokenizer, texts: Sequence[str], rows: list[list[int]]
) -> Iterator[str]:
    special = trained.special_tokens
    reserved = {special.padding, special.end}
    for text, row in zip(texts, rows, strict=True):
        for i in row:
            if i in reserved or not 0 <= i < trained.vocab_size:
                yield f'{text!r:.60} has the id {i} of {trained.vocab_size}'


def _unwritten(trained: Tokenizer) -> Iterator[str]:
    for i in range(trained.vocab_size):
        (piece,) = trained.pieces([i])
        if not isinstance(piece, str):
            yield f'{i} is {piece!r:.60}'


def _too_many(tokenizer: Tokenizer, trained: Tokenizer) -> Iterator[str]:
    if trained.vocab_size > tokenizer.largest_vocab_size():
        yield f'{trained.vocab_size}, and said {tokenizer.largest_vocab_size()}'


def _unequal(one: bytes, other: bytes) -> Iterator[str]:
    if one != other:
        yield f'of {len(one):,} bytes and {len(other):,}'


def _drawn(
    trained: Tokenizer, texts: Sequence[str], rows: list[list[int]]
) -> Iterator[str]:
    """Examples of sampled ids that are of another text, or not those of their seed."""
    if not trained.samples:
        return
    first = [trained.sample(row, seed) for seed, row in enumerate(rows)]
    yield from _changed(texts, trained.decode(first))
    again = {i: trained.sample(rows[i], i) for i in reversed(range(len(rows)))}
    yield from _differing(first, [again[i] for i in range(len(rows))])
