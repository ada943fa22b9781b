"""What must hold of every part of the runner, ours or a user's."""

import itertools
import json
import math
import tempfile
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from experiments import kinds, metrics
from experiments.data import sources, tokenizers
from experiments.data.filters.base import Filter
from experiments.data.objectives.base import Objective
from experiments.data.sources.base import Source
from experiments.data.tokenizers.base import UNKNOWN, Tokenizer, normalize
from experiments.hooks.base import Begun, Hook
from experiments.metrics.base import Metric
from experiments.optimizers import optax_specs
from flaxformer_lite import generation, testing
from flaxformer_lite.special_tokens import DEFAULT_TOKENS
from flaxformer_lite.testing.finding import Finding, without

TEXT = 'grammar(pairs=500)'  # of which a tokenizer learns, and a filter leaves out
PAIRS = 10_000  # of the training pairs, which are looked at
Pair = tuple[str, str]


def findings(part: str, kind: str) -> list[Finding]:
    """What was found of each contract of a part that is none of a model.

    What the part itself raises is not caught.

    Args:
      part: its spec, as a config names it.
      kind: one of `KINDS`, or `optimizer`.

    Raises:
      ValueError: there is no such part, or it has a wrong argument.
    """
    return _EXAMINED[kind](part)


def _of_tokenizer(part: str) -> list[Finding]:
    texts = itertools.chain.from_iterable(sources.load(TEXT).train())
    return tokenizer_findings(tokenizers.make(part), texts)


def _of_filter(part: str) -> list[Finding]:
    train = list(sources.load(TEXT).train())
    copies = [(source, source) for source, _ in train]
    blank = [(source, '') for source, _ in train]
    pairs = [*train, *copies, *blank, *train]
    return filter_findings(lambda: kinds.FILTERS.make(part), pairs)


def _of_objective(part: str) -> list[Finding]:
    return objective_findings(kinds.OBJECTIVES.make(part, pieces=PIECES))


def _of_metric(part: str) -> list[Finding]:
    (metric,) = metrics.make(part).values()
    metric.check_installed()
    return metric_findings(metric)


def _of_processor(part: str) -> list[Finding]:
    (processor,) = generation.as_processors(part)
    return testing.processor_findings(processor)


_EXAMINED: dict[str, Callable[[str], list[Finding]]] = {
    'data': lambda part: source_findings(sources.load(part)),
    'filters': _of_filter,
    'tokenizer': _of_tokenizer,
    'objective': _of_objective,
    'optimizer': optax_specs.findings,
    'schedule': testing.schedule_findings,
    'loss': testing.loss_findings,
    'hooks': lambda part: hook_findings(lambda: kinds.HOOKS.make(part)),
    'metrics': _of_metric,
    'decode': lambda part: testing.strategy_findings(generation.as_strategy(part)),
    'processors': _of_processor,
}


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


def filter_findings(make: Callable[[], Filter], pairs: Sequence[Pair]) -> list[Finding]:
    """The contracts of a filter.

    Args:
      make: makes it anew, as each pass over the pairs does.
      pairs: with some that are to be left out.
    """
    kept = _kept(make(), pairs)
    again = _kept(make(), pairs)
    return [
        without('some pairs are kept', [] if kept else ['none is']),
        without('the same pairs are kept each time', _differing(kept, again)),
        without('what is kept is kept again', _differing(kept, _kept(make(), kept))),
    ]


def _kept(filter: Filter, pairs: Sequence[Pair]) -> list[Pair]:
    return [pair for pair in pairs if filter.keeps(*pair)]


# What stands for no text, and text.
_SENTINELS = [f'<extra_id_{i}>' for i in range(30)]
_MARKS = ['<pad>', '</s>', '<s>', '<unk>', '<mask>', *_SENTINELS]
PIECES = (*_MARKS, '.', *map(chr, range(ord('a'), ord('z') + 1)))
_LONGEST = 40


def objective_findings(objective: Objective) -> list[Finding]:
    """The contracts of an objective whose pieces are `PIECES`."""
    rng = np.random.default_rng(0)
    texts = [
        rng.integers(len(_MARKS), len(PIECES), n).tolist()
        for n in range(1, _LONGEST + 1)
    ]
    examples = [_example(objective, text) for text in texts]
    again = [_example(objective, text) for text in texts]
    drawn = _differing(examples, again)
    return [
        without('equal random numbers make equal examples', drawn),
        without('neither side is longer than the text', _longer(texts, examples)),
        without('ids are those of pieces, without ends', _no_pieces(texts, examples)),
    ]


def _example(objective: Objective, text: list[int]) -> tuple[list[int], list[int]]:
    return objective.example(list(text), np.random.default_rng(len(text)))


def _longer(texts: Sequence[list[int]], examples: Sequence[Any]) -> Iterator[str]:
    for text, (source, target) in zip(texts, examples, strict=True):
        if max(len(source), len(target)) > len(text):
            yield f'of {len(text)} ids {len(source)} are read and {len(target)} written'


def _no_pieces(texts: Sequence[list[int]], examples: Sequence[Any]) -> Iterator[str]:
    special = {DEFAULT_TOKENS.padding, DEFAULT_TOKENS.end, DEFAULT_TOKENS.start}
    allowed = set(range(len(PIECES))) - special
    for text, sides in zip(texts, examples, strict=True):
        for i in set(itertools.chain(*sides)) - allowed:
            yield f'of {len(text)} ids one is {i}'


_ROWS = (
    {'step': 1, 'kind': 'train', 'time': 1.5, 'loss': 2.5, 'rate': 1e-3},
    {'step': 1, 'kind': 'eval', 'time': 2.5, 'set': 'val', 'loss': None, 'bleu': 12.5},
)


def hook_findings(make: Callable[[], Hook]) -> list[Finding]:
    """The contracts of a hook, by a run of two rows, which is stopped and goes on.

    What the hook calls outside, as a tracker's server, it calls here, too.

    Args:
      make: makes it anew, as each start of a run does.
    """
    with tempfile.TemporaryDirectory() as folder:
        first = _call_hook(make(), Begun(Path(folder), {'train.steps': 2}, 0, ()), None)
        resumed = Begun(Path(folder), {'train.steps': 2}, 1, _ROWS)
        second = _call_hook(make(), resumed, {'steps': 2, 'test': {'bleu': 12.5}})
    added = _differing(_added(first), _added(second))
    return [
        without('it leaves rows as they are', _changed_rows(first)),
        without('what it adds to a row can be JSON', _no_json(first)),
        without('it adds the same to both after a stop', added),
    ]


def _call_hook(hook: Hook, run: Begun, result: Mapping[str, Any] | None) -> list[Any]:
    """Each row as it is after the hook has had it, and what that has returned."""
    hook.start(run)
    found = []
    for row in _ROWS:
        own = dict(row)
        found.append((own, hook.row(own)))
    hook.checkpoint(run.step + 1)
    hook.end(result)
    return found


def _added(found: Sequence[Any]) -> list[list[str]]:
    return [sorted(added or {}) for _, added in found]


def _changed_rows(found: Sequence[Any]) -> Iterator[str]:
    for row, (own, _) in zip(_ROWS, found, strict=True):
        if own != row:
            yield f'{row} becomes {own}'


def _no_json(found: Sequence[Any]) -> Iterator[str]:
    for _, added in found:
        try:
            is_row = isinstance(added or {}, Mapping)
            json.dumps(added, default=float)
        except (TypeError, ValueError):
            is_row = False
        if not is_row:
            yield f'{added!r:.60}'


SOURCES = ['ein Hund', 'die Katze sitzt', 'wir helfen', 'niemand']
# Not all have as many.
REFERENCES: list[tuple[str, ...]] = [
    ('a dog', 'the dog barks at the gate'),
    ('The cat is sitting on the mat.',),
    ('We would like to help you, if we can.', 'We help.'),
    ('No one saw the dogs today.',),
]
OUTPUTS = ['the dog', 'The cat sits on a mat.', 'We would like to help.', 'the the']
PERFECT = [references[0] for references in REFERENCES]
BLANK = [''] * len(SOURCES)
ROUNDING = 1e-9  # of a score: what is summed in another order


def metric_findings(metric: Metric) -> list[Finding]:
    """The contracts of a metric, by a few sentences with one reference or several."""
    rows = without('each sentence has a row of numbers', _without_row(metric))
    if not rows.holds:
        return [rows]
    return [
        rows,
        without('scores are finite numbers', _not_finite(metric)),
        without('what a reference says is best', _better_than_best(metric)),
        without('blank translations are no better', _better_if_blank(metric)),
        without('the same score comes each time', _turned(metric, 1)),
        without('the order of sentences changes nothing', _turned(metric, -1)),
    ]


def _scores(metric: Metric, outputs: list[str]) -> list[float]:
    """Of all sentences, and of each."""
    texts = (outputs, REFERENCES, SOURCES)
    return [metric.score(*texts), *metric.sentence_scores(*texts)]


def _not_finite(metric: Metric) -> Iterator[str]:
    for outputs in (OUTPUTS, PERFECT, BLANK):
        for score in _scores(metric, outputs):
            if not math.isfinite(score):
                yield f'{outputs[0]!r} and others have {score}'


def _without_row(metric: Metric) -> Iterator[str]:
    rows = metric.statistics(OUTPUTS, REFERENCES, SOURCES)
    if len(rows) != len(OUTPUTS) or len(set(map(len, rows))) != 1:
        yield f'{len(OUTPUTS)} sentences have rows of {[len(row) for row in rows]}'


def _better_than_best(metric: Metric) -> Iterator[str]:
    best, *each = _scores(metric, PERFECT)
    score, *of_sentences = _scores(metric, OUTPUTS)
    if not metric.rank(best) > metric.rank(score):
        yield f'all references have {best:g}, and other translations {score:g}'
    for output, x, highest in zip(OUTPUTS, of_sentences, each, strict=True):
        if metric.rank(x) > metric.rank(highest):
            yield f'{output!r} has {x:g}, and its reference {highest:g}'


def _better_if_blank(metric: Metric) -> Iterator[str]:
    score, blank = (_scores(metric, outputs)[0] for outputs in (OUTPUTS, BLANK))
    if metric.rank(blank) > metric.rank(score):
        yield f'blank ones have {blank:g}, and others {score:g}'


def _turned(metric: Metric, step: int) -> Iterator[str]:
    """Examples of another score for the same sentences, in the order of a step."""
    texts = (OUTPUTS, REFERENCES, SOURCES)
    score = metric.score(*texts)
    other = metric.score(OUTPUTS[::step], REFERENCES[::step], SOURCES[::step])
    if not math.isclose(score, other, abs_tol=ROUNDING):
        yield f'it is {score:g}, and then {other:g}'
