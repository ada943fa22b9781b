"""Contracts of the runner's components."""

import functools
import itertools
import json
import math
import tempfile
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from experiments import metrics, registries
from experiments.data import sources, tokenizers
from experiments.data.filters.base import Filter
from experiments.data.objectives.base import Objective
from experiments.data.sources.base import Pair, Source, as_references
from experiments.data.tokenizers.base import UNKNOWN, Tokenizer, normalize
from experiments.hooks.base import Hook, RunInfo
from experiments.metrics.base import Metric
from experiments.optimizers import optax_specs
from flaxformer_lite import generation, testing
from flaxformer_lite.special_tokens import DEFAULT_TOKENS
from flaxformer_lite.testing.finding import Finding, from_counterexamples

TEXT = 'grammar(pairs=500)'  # data for tests of tokenizers and filters
PAIRS = 10_000  # training pairs to test
Findings = list[Finding]
Texts = Sequence[str]
Ids = list[list[int]]
Examples = Iterable[str]  # counterexamples to a contract, as text


def findings(part: str, kind: str) -> Findings:
    """Tests a component of the runner; its own errors pass through.

    Args:
      kind: The last word of a field of `registries.FOLDERS`, or `optimizer`.

    Raises:
      ValueError: The component is unknown, or an argument is invalid.
    """
    return _EXAMINERS[kind](part)


def _tokenizer_contracts(part: str) -> Findings:
    texts = itertools.chain.from_iterable(sources.load(TEXT).train())
    return tokenizer_findings(tokenizers.make(part), texts)


def _metric_contracts(part: str) -> Findings:
    (metric,) = metrics.make(part).values()
    metric.check_installed()
    return metric_findings(metric)


def _processor_contracts(part: str) -> Findings:
    (processor,) = generation.as_processors(part)
    return testing.processor_findings(processor)


_EXAMINERS: dict[str, Callable[[str], Findings]] = {
    'data': lambda part: source_findings(sources.load(part)),
    'filters': lambda part: filter_findings(lambda: registries.make('filters', part)),
    'tokenizer': _tokenizer_contracts,
    'objective': lambda part: objective_findings(
        registries.make('objective', part, pieces=PIECES)
    ),
    'optimizer': optax_specs.findings,
    'schedule': testing.schedule_findings,
    'loss': testing.loss_findings,
    'hooks': lambda part: hook_findings(registries.make('train.hooks', part)),
    'metrics': _metric_contracts,
    'decode': lambda part: testing.strategy_findings(generation.as_strategy(part)),
    'processors': _processor_contracts,
}


def _findings(contracts: Mapping[str, Examples]) -> Findings:
    return [
        from_counterexamples(contract, found) for contract, found in contracts.items()
    ]


def _violation_unless(holds: bool, otherwise: str) -> Examples:
    return [] if holds else [otherwise]


def _differences(expected: Sequence[Any], found: Sequence[Any]) -> Examples:
    if len(expected) != len(found):
        yield f'{len(expected):,} first, then {len(found):,}'
    for i, (first, second) in enumerate(zip(expected, found, strict=False)):
        if first != second:
            yield f'number {i}: {first!r:.60} first, then {second!r:.60}'


def source_findings(source: Source) -> Findings:
    train = list(itertools.islice(source.train(), PAIRS))
    second_pass = list(itertools.islice(source.train(), PAIRS))
    sets = {name: _pairs(found) for name, found in source.evaluation().items()}
    first = next(iter(sets), 'none')
    malformed = _matching_pairs({'training': train, **sets}, _is_malformed)
    trained = _matching_pairs(sets, set(train).__contains__)
    is_val = _violation_unless(first == 'val', f'the first set is {first}')
    return _findings(
        {
            'training has pairs': _violation_unless(bool(train), 'no pair'),
            'every pass gives the same pairs': _differences(train, second_pass),
            'text is NFC without line breaks': malformed,
            'evaluation sets and training do not overlap': trained,
            'the first set is val': is_val,
        }
    )


def _pairs(sentences: Iterable[tuple[str, str | tuple[str, ...]]]) -> list[Pair]:
    return [(source, x) for source, known in sentences for x in as_references(known)]


def _matching_pairs(
    sets: Mapping[str, Sequence[Pair]], is_wrong: Callable[[Pair], bool]
) -> Examples:
    for name, pairs in sets.items():
        for i, pair in enumerate(pairs):
            if is_wrong(pair):
                yield f'{name}, pair {i}: {pair!a:.60}'


def _is_malformed(pair: Pair) -> bool:
    is_nfc = functools.partial(unicodedata.is_normalized, 'NFC')
    return any('\n' in text or not is_nfc(text) for text in pair)


def tokenizer_findings(tokenizer: Tokenizer, texts: Iterable[str]) -> Findings:
    texts = sorted(set(texts), key=len)  # the first example is the shortest
    model = tokenizer.train(texts)
    is_same = tokenizer.train(texts) == model
    trained = tokenizer.opened(model)
    size = trained.vocab_size
    most = tokenizer.largest_vocab_size()
    is_within = _violation_unless(size <= most, f'{size}, not {most}')
    special = trained.special_tokens
    of_text = set(range(size)) - {special.padding, special.eos}
    rows = trained.encode(texts)
    decoded = trained.decode(rows)
    ended = [[*row, special.eos, *rows[-1], special.padding] for row in rows]
    blank = [*trained.encode(['', ' \t ']), *trained.encode_target([''])]
    pieces = trained.pieces(list(range(size)))
    pieceless_ids = [repr(x) for x in pieces if not isinstance(x, str)]
    after_end = _differences(decoded, trained.decode(ended))
    return _findings(
        {
            'decoding inverts encoding': _changed_texts(texts, decoded),
            'decoding stops at the end token': after_end,
            'text has no padding or end ids': _unexpected_ids(of_text, texts, rows),
            'blank text has no ids': map(str, filter(None, blank)),
            'every id has a piece': pieceless_ids,
            'vocab_size is within its maximum': is_within,
            'training is deterministic': _violation_unless(is_same, 'the bytes differ'),
            'sampled ids decode to the same text': _sampling_errors(
                trained, texts, rows
            ),
        }
    )


def _changed_texts(texts: Texts, decoded: Texts) -> Examples:
    for text, back in zip(texts, decoded, strict=True):
        if back != normalize(text) and UNKNOWN not in back:
            yield f'{text!r:.60} becomes {back!r:.60}'


def _unexpected_ids(allowed: set[int], texts: Sequence[Any], rows: Ids) -> Examples:
    for text, row in zip(texts, rows, strict=True):
        for other in set(row) - allowed:
            yield f'{text!r:.60} contains id {other}'


def _sampling_errors(trained: Tokenizer, texts: Texts, rows: Ids) -> Examples:
    if not trained.samples:
        return
    seeds = range(len(rows))
    first = list(map(trained.sample, rows, seeds))
    yield from _changed_texts(texts, trained.decode(first))
    reversed_samples = list(map(trained.sample, rows[::-1], seeds[::-1]))
    yield from _differences(first, reversed_samples[::-1])


def filter_findings(make: Callable[[], Filter]) -> Findings:
    """Tests a filter; `make` returns a new one for each pass over the pairs."""
    train = list(sources.load(TEXT).train())
    copies = [(source, source) for source, _ in train]
    blank = [(source, '') for source, _ in train]

    def filter_pairs(pairs):
        part = make()
        return [pair for pair in pairs if part.keeps(*pair)]

    pairs = [*train, *copies, *blank, *train]
    first = filter_pairs(pairs)
    return _findings(
        {
            'some pairs are kept': _violation_unless(bool(first), 'no pair'),
            'every pass keeps the same pairs': _differences(first, filter_pairs(pairs)),
            'filtering twice changes nothing': _differences(first, filter_pairs(first)),
        }
    )


# Special tokens, then pieces of text.
_SENTINELS = [f'<extra_id_{i}>' for i in range(30)]
_MARKS = ['<pad>', '</s>', '<s>', '<unk>', '<mask>', *_SENTINELS]
PIECES = (*_MARKS, '.', *map(chr, range(ord('a'), ord('z') + 1)))
_LONGEST = 40


def objective_findings(objective: Objective) -> Findings:
    """Tests an objective that was made for `PIECES`."""
    rng = np.random.default_rng(0)
    lengths = range(1, _LONGEST + 1)
    texts = [rng.integers(len(_MARKS), len(PIECES), n).tolist() for n in lengths]

    def examples():
        generators = map(np.random.default_rng, lengths)
        return list(map(objective.example, map(list, texts), generators))

    first = examples()
    special = {DEFAULT_TOKENS.padding, DEFAULT_TOKENS.eos, DEFAULT_TOKENS.bos}
    allowed = set(range(len(PIECES))) - special
    rows = [source + target for source, target in first]
    return _findings(
        {
            'equal seeds give equal examples': _differences(first, examples()),
            'sides are not longer than the text': _longer(texts, first),
            'examples have no special ids': _unexpected_ids(allowed, texts, rows),
        }
    )


def _longer(texts: Ids, examples: Sequence[Any]) -> Examples:
    for text, (source, target) in zip(texts, examples, strict=True):
        if max(len(source), len(target)) > len(text):
            yield f'{len(text)} ids became {len(source)} and {len(target)}'


_ROWS = [
    {'step': 1, 'kind': 'train', 'time': 1.5, 'loss': 2.5, 'rate': 1e-3},
    {'step': 1, 'kind': 'eval', 'time': 2.5, 'set': 'val', 'loss': None, 'bleu': 12.5},
]


def hook_findings(hook: Hook) -> Findings:
    """Tests a hook, and its external calls, in a run of two rows."""
    rows = [dict(row) for row in _ROWS]
    with tempfile.TemporaryDirectory() as folder:
        hook.start(RunInfo(Path(folder), {'train.steps': 2}, 0, ()))
        added = [hook.row(row) for row in rows]
        hook.checkpoint(1)
        hook.end({'steps': 2, 'test': {'bleu': 12.5}})
    return _findings(
        {
            'rows are not modified': _differences(_ROWS, rows),
            'added values are JSON serializable': _no_json(added),
        }
    )


def _no_json(added: Sequence[Any]) -> Examples:
    for own in added:
        try:
            json.dumps(dict(own or {}), default=float)
        except (TypeError, ValueError):
            yield f'{own!r:.60}'


SOURCES = ['ein Hund', 'die Katze sitzt', 'wir helfen', 'niemand']
# The numbers of references differ.
REFERENCES: list[tuple[str, ...]] = [
    ('a dog', 'the dog barks at the gate'),
    ('The cat is sitting on the mat.',),
    ('We would like to help you, if we can.', 'We help.'),
    ('No one saw the dogs today.',),
]
OUTPUTS = ['the dog', 'The cat sits on a mat.', 'We would like to help.', 'the the']
PERFECT = [references[0] for references in REFERENCES]
BLANK = [''] * len(SOURCES)
ROUNDING = 1e-9  # tolerance for sums in a different order


def metric_findings(metric: Metric) -> Findings:
    lengths = [len(row) for row in metric.statistics(OUTPUTS, REFERENCES, SOURCES)]
    are_rows = len(lengths) == len(OUTPUTS) and len(set(lengths)) == 1
    otherwise = f'{len(OUTPUTS)} sentences give rows of lengths {lengths}'
    rows = {
        'every sentence has an equally long row': _violation_unless(are_rows, otherwise)
    }
    if not are_rows:
        return _findings(rows)
    score, *of_each = _scores(metric, OUTPUTS)
    best, *best_of_each = _scores(metric, PERFECT)
    blank, *blank_of_each = _scores(metric, BLANK)
    in_reverse = metric.score(OUTPUTS[::-1], REFERENCES[::-1], SOURCES[::-1])
    numbers = [score, best, blank, *of_each, *best_of_each, *blank_of_each]
    are_finite = all(map(math.isfinite, numbers))
    is_best = metric.rank(best) > metric.rank(score)
    is_no_better = metric.rank(blank) <= metric.rank(score)
    is_same = math.isclose(score, in_reverse, abs_tol=ROUNDING)
    found = (
        f'scores: translations {score:g}, in another order {in_reverse:g}, references '
        f'{best:g}, blank {blank:g}'
    )
    return _findings(
        {
            **rows,
            'scores are finite': _violation_unless(are_finite, f'{numbers}'),
            'references have the best score': _violation_unless(is_best, found),
            'blank translations do not score better': _violation_unless(
                is_no_better, found
            ),
            'the order of sentences has no effect': _violation_unless(is_same, found),
        }
    )


def _scores(metric: Metric, outputs: list[str]) -> list[float]:
    texts = (outputs, REFERENCES, SOURCES)
    return [metric.score(*texts), *metric.sentence_scores(*texts)]
