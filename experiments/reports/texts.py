"""Translations side by side, and where the scores come from: lengths and phenomena."""

import difflib
import statistics
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from experiments.data import phenomena
from experiments.errors import UserError
from experiments.reports.arms import Arm, Study
from experiments.reports.display.charts import Chart, Line
from experiments.reports.display.tables import Table
from experiments.reports.statistics import Spread, spread
from experiments.runs import reading

LENGTHS = (5, 10, 15, 20, 25, 30, 40, 60)  # words: the last of each range
FEWEST = 5  # sentences for a score of their own
_SPREAD = 15  # sentences that are shown, evenly spread over a set
_DIFFERING = 15  # and those in which the arms differ most


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
    step = max(1, total // _SPREAD)
    chosen = {'Spread evenly over the set': list(range(0, total, step))[:_SPREAD]}
    if len(found.outputs) > 1:
        ranges = _disagreement(found)
        order = sorted(range(total), key=lambda i: (-ranges[i], i))
        most = [i for i in order[:_DIFFERING] if ranges[i] > 0]
        if most:
            chosen['Where the arms differ most, by chrF'] = most
    return {
        title: [_sentence(found, i) for i in indices]
        for title, indices in chosen.items()
    }


def _sentence(found: Translated, i: int) -> Sentence:
    """With the translation of each arm's first seed."""
    reference = found.references[i]
    outputs = {arm: seeds[0][i] for arm, seeds in found.outputs.items()}
    marks = {arm: marked(output, reference) for arm, output in outputs.items()}
    return Sentence(found.sources[i], reference, marks)


def _disagreement(found: Translated) -> list[float]:
    """Of each sentence, how far apart the chrF of the arms' first seeds is."""
    from sacrebleu.metrics.chrf import CHRF

    metric = CHRF()
    apart = []
    for i, reference in enumerate(found.references):
        outputs = {seeds[0][i] for seeds in found.outputs.values()}
        if len(outputs) == 1:
            apart.append(0.0)
            continue
        scores = [metric.sentence_score(x, [reference]).score for x in outputs]
        apart.append(max(scores) - min(scores))
    return apart


def by_length(found: Translated, name: str) -> tuple[Table, Chart] | None:
    """BLEU by the length of the reference; None where all lengths are much alike.

    Args:
      name: of the set.
    """
    groups: dict[str, list[int]] = {}
    lengths = [len(reference.split()) for reference in found.references]
    low = 1
    for high in (*LENGTHS, max([*lengths, LENGTHS[-1]]) + 1):
        rows = [i for i, length in enumerate(lengths) if low <= length <= high]
        if len(rows) >= FEWEST:
            label = f'{low}–{high}' if high <= LENGTHS[-1] else f'from {low}'
            groups[label] = rows
        low = high + 1
    if len(groups) < 2:
        return None
    scores = _group_scores(found, groups)
    table = _table(
        f'by_length_{name}',
        f'BLEU by length: {name}',
        'words of the reference',
        groups,
        scores,
    )
    lines = [_line(arm, spreads) for arm, spreads in scores.items()]
    chart = Chart(
        f'bleu_by_length_{name}',
        f'BLEU by length: {name}',
        'words of the reference',
        'BLEU',
        tuple(lines),
        style='bars',
    )
    return table, chart


def _line(arm: str, spreads: Mapping[str, Spread]) -> Line:
    """Means with bars of one standard deviation, where there are several seeds."""
    means = [found.mean for found in spreads.values()]
    if any(found.sd is None for found in spreads.values()):
        return Line(arm, list(spreads), means)
    low = [found.mean - (found.sd or 0) for found in spreads.values()]
    high = [found.mean + (found.sd or 0) for found in spreads.values()]
    return Line(arm, list(spreads), means, low, high)


def _group_scores(
    found: Translated, groups: Mapping[str, Sequence[int]]
) -> dict[str, dict[str, Spread]]:
    """Arm → group → BLEU of the group's sentences, over seeds."""
    from sacrebleu.metrics.bleu import BLEU

    metric = BLEU()
    scores: dict[str, dict[str, Spread]] = {}
    for arm, seeds in found.outputs.items():
        scores[arm] = {}
        for group, rows in groups.items():
            references = [[found.references[i] for i in rows]]
            values = [
                metric.corpus_score([outputs[i] for i in rows], references).score
                for outputs in seeds
            ]
            result = spread(values)
            if result is not None:
                scores[arm][group] = result
    return scores


def _exact(found: Translated, arm: str, rows: Sequence[int]) -> float:
    """The share of sentences that are as the reference, over all seeds, in per cent."""
    shares = []
    for outputs in found.outputs[arm]:
        right = [outputs[i] == found.references[i] for i in rows]
        shares.append(100 * statistics.fmean(right))
    return statistics.fmean(shares)


def _table(
    name: str,
    title: str,
    first: str,
    groups: Mapping[str, Sequence[int]],
    scores: Mapping[str, Mapping[str, Spread]],
    note: str = '',
) -> Table:
    rows = []
    for group, members in groups.items():
        rows.append((group, len(members), *(scores[arm][group] for arm in scores)))
    columns = (first, 'sentences', *scores)
    return Table(name, title, columns, tuple(rows), frozenset(scores), note)


def by_phenomenon(study: Study, found: Translated, name: str) -> tuple[Table, ...]:
    """BLEU and exact translations by what the grammar put into a sentence.

    Returns:
      Two tables; none where the text is not the grammar's.
    """
    arms: Sequence[Arm] = study.ranked()
    data = str(arms[0].runs[0].config.get('data')) if arms[0].runs else ''
    pairs = list(zip(found.sources, found.references, strict=True))
    try:
        groups = phenomena.rows(data, name, pairs)
    except UserError:
        return ()
    groups = {k: rows for k, rows in groups.items() if len(rows) >= FEWEST}
    if not groups:
        return ()
    scores = _group_scores(found, groups)
    note = (
        'BLEU of the sentences that hold the phenomenon, as the grammar that made '
        'them says; a sentence holds several.'
    )
    title = f'BLEU by phenomenon: {name}'
    first = 'phenomenon'
    bleu = _table(f'by_phenomenon_{name}', title, first, groups, scores, note)
    shares = {
        arm: {group: _exact(found, arm, rows) for group, rows in groups.items()}
        for arm in found.outputs
    }
    exact_rows = []
    for group, members in groups.items():
        exact_rows.append(
            (group, len(members), *(shares[arm][group] for arm in shares))
        )
    exact = Table(
        f'exact_by_phenomenon_{name}',
        f'Sentences that are as the reference, per cent: {name}',
        (first, 'sentences', *shares),
        tuple(exact_rows),
    )
    return bleu, exact
