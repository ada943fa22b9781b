"""Translations side by side, and where the scores come from: lengths and phenomena."""

import dataclasses
import difflib
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from experiments.data import phenomena
from experiments.errors import UserError
from experiments.reports.arms import Study
from experiments.reports.curves import with_bars
from experiments.reports.figures import Figure, line_chart
from experiments.reports.statistics import Spread, spread
from experiments.reports.tables import Table
from experiments.runs import reading

LENGTHS = (5, 10, 15, 20, 25, 30, 40, 60)  # words: the last of each range
FEWEST = 5  # sentences for a score of their own
_SHOWN = 15  # sentences of a kind


class Part(NamedTuple):
    """Words of a translation.

    Attributes:
      text: the words.
      mark: '' where the reference has them too, 'added' where not, and 'missing' for
        words that only the reference has.
    """

    text: str
    mark: str


class Sentence(NamedTuple):
    """A sentence with the translations of all arms, by their names."""

    source: str
    reference: str
    translations: dict[str, list[Part]]


class Translated(NamedTuple):
    """A set as all arms translate it: arm → each seed's translations."""

    sources: list[str]
    references: list[str]
    outputs: dict[str, list[list[str]]]


def translated(study: Study, name: str) -> Translated | None:
    """The translations of a set; arms that translated other sentences are left out.

    Raises:
      UserError: translations cannot be read.
    """
    first: tuple[list[str], list[str]] | None = None
    outputs: dict[str, list[list[str]]] = {}
    for arm in study.arms:
        for run in arm.scored:
            found = reading.read_translations(run, name)
            if found is None:
                continue
            sources, references, translations = found
            first = first or (sources, references)
            if (sources, references) == first:
                outputs.setdefault(arm.name, []).append(translations)
    return Translated(*first, outputs) if first else None


def marked(output: str, reference: str) -> list[Part]:
    """A translation with its differences from the reference, word by word."""
    words = output.split()
    wanted = reference.split()
    matcher = difflib.SequenceMatcher(None, wanted, words, autojunk=False)
    parts = []
    for kind, i, j, k, m in matcher.get_opcodes():
        if kind == 'equal':
            parts.append(Part(' '.join(words[k:m]), ''))
            continue
        if i < j:
            parts.append(Part(' '.join(wanted[i:j]), 'missing'))
        if k < m:
            parts.append(Part(' '.join(words[k:m]), 'added'))
    return parts


def examples(found: Translated) -> dict[str, list[Sentence]]:
    """Sentences to read: evenly spread over the set, and where arms differ most."""
    total = len(found.sources)
    spread_out = list(range(0, total, max(1, total // _SHOWN)))
    chosen = {'Spread evenly over the set': spread_out}
    apart = _disagreement(found)
    order = sorted(apart, key=lambda i: -apart[i])
    chosen['Where the arms differ most, by chrF'] = order
    shown = {}
    for title, rows in chosen.items():
        if rows:
            shown[title] = [_sentence(found, i) for i in rows[:_SHOWN]]
    return shown


def _sentence(found: Translated, i: int) -> Sentence:
    """With the translation of each arm's first seed."""
    reference = found.references[i]
    marks = {arm: marked(x[0][i], reference) for arm, x in found.outputs.items()}
    return Sentence(found.sources[i], reference, marks)


def _disagreement(found: Translated) -> dict[int, float]:
    """Sentence → how far apart the chrF of the arms' first seeds is; none of 0."""
    from sacrebleu.metrics.chrf import CHRF

    metric = CHRF()
    apart = {}
    for i, reference in enumerate(found.references):
        outputs = {seeds[0][i] for seeds in found.outputs.values()}
        if len(outputs) > 1:
            scores = [metric.sentence_score(x, [reference]).score for x in outputs]
            apart[i] = max(scores) - min(scores)
    return {i: distance for i, distance in apart.items() if distance > 0}


def by_length(found: Translated, name: str) -> tuple[Table, Figure] | None:
    """BLEU by the length of the reference; None where all lengths are much alike.

    Args:
      name: of the set.
    """
    groups: dict[str, list[int]] = {}
    lengths = [len(reference.split()) for reference in found.references]
    low = 1
    for high in (*LENGTHS, max([*lengths, LENGTHS[-1]]) + 1):
        label = f'{low}–{high}' if high <= LENGTHS[-1] else f'from {low}'
        groups[label] = [i for i, length in enumerate(lengths) if low <= length <= high]
        low = high + 1
    groups = _large(groups)
    if len(groups) < 2:
        return None
    words = 'words of the reference'
    title = f'BLEU by length: {name}'
    bleu = _group_scores(found, groups, _bleu)
    table = _table(f'by_length_{name}', title, words, groups, bleu)
    lines = []
    for arm, scores in bleu.items():
        lines.append(with_bars(arm, list(groups), scores))
    chart = line_chart(lines, words, 'BLEU', style='bars')
    return table, Figure(f'bleu_by_length_{name}', title, chart)


def by_phenomenon(study: Study, found: Translated, name: str) -> list[Table]:
    """BLEU and exact translations by what the grammar put into a sentence.

    Returns:
      Two tables; none where the text is not the grammar's.
    """
    best = study.ranked()[0]
    data = str(best.runs[0].config.get('data')) if best.runs else ''
    pairs = list(zip(found.sources, found.references, strict=True))
    try:
        groups = _large(phenomena.rows(data, name, pairs))
    except UserError:
        return []
    if not groups:
        return []
    note = (
        'BLEU of the sentences that hold the phenomenon, as the grammar that made '
        'them says; a sentence holds several.'
    )
    bleu = _table(
        f'by_phenomenon_{name}',
        f'BLEU by phenomenon: {name}',
        'phenomenon',
        groups,
        _group_scores(found, groups, _bleu),
    )
    shares = _group_scores(found, groups, _exact)
    exact = _table(
        f'exact_by_phenomenon_{name}',
        f'Sentences that are as the reference, per cent: {name}',
        'phenomenon',
        groups,
        {arm: [x.mean for x in scores if x] for arm, scores in shares.items()},
    )
    # Shares are no scores, which have two decimals.
    exact = dataclasses.replace(exact, scores=frozenset())
    return [dataclasses.replace(bleu, note=note), exact]


def _large(groups: Mapping[str, list[int]]) -> dict[str, list[int]]:
    """The groups that are large enough for a score of their own."""
    return {name: rows for name, rows in groups.items() if len(rows) >= FEWEST}


def _group_scores(
    found: Translated,
    groups: Mapping[str, Sequence[int]],
    score: Callable[[Sequence[str], Sequence[str]], float],
) -> dict[str, list[Spread | None]]:
    """Arm → the score of each group's sentences, over seeds."""
    scores: dict[str, list[Spread | None]] = {}
    for arm, seeds in found.outputs.items():
        scores[arm] = []
        for rows in groups.values():
            references = [found.references[i] for i in rows]
            values = [
                score([outputs[i] for i in rows], references) for outputs in seeds
            ]
            scores[arm].append(spread(values))
    return scores


def _bleu(outputs: Sequence[str], references: Sequence[str]) -> float:
    from sacrebleu.metrics.bleu import BLEU

    return BLEU().corpus_score(outputs, [references]).score


def _exact(outputs: Sequence[str], references: Sequence[str]) -> float:
    """The share of sentences that are as the reference, in per cent."""
    same = [one == other for one, other in zip(outputs, references, strict=True)]
    return 100 * statistics.fmean(same)


def _table(
    name: str,
    title: str,
    first: str,
    groups: Mapping[str, Sequence[int]],
    scores: Mapping[str, Sequence[Any]],
) -> Table:
    """A row a group: its size, and a column for each arm."""
    sizes = [len(rows) for rows in groups.values()]
    rows = zip(groups, sizes, *scores.values(), strict=True)
    columns = (first, 'sentences', *scores)
    return Table(name, title, columns, tuple(rows), frozenset(scores))
