"""Translations side by side, and where the scores come from: lengths and phenomena."""

import contextlib
import difflib
import itertools
import operator
from collections.abc import Sequence
from typing import NamedTuple

from experiments.data import phenomena
from experiments.errors import UserError
from experiments.metrics.base import Metric
from experiments.reports.arms import Study, metric_of
from experiments.reports.statistics import spread
from experiments.reports.tables import Table
from experiments.runs import reading

LENGTHS = (5, 10, 15, 20, 25, 30, 40, 60, 1000)  # words: the last of each range
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
    """A set as all arms translate it.

    Attributes:
      data: the source of its sentences.
      sources, references: its sentences.
      outputs: arm → each seed's translations.
      metric: that scores them.
    """

    data: str
    sources: list[str]
    references: list[tuple[str, ...]]
    outputs: dict[str, list[list[str]]]
    metric: Metric


def translated(study: Study, name: str) -> Translated | None:
    """The translations of a set; arms that translated other sentences are left out.

    Raises:
      UserError: translations cannot be read.
    """
    first: Translated | None = None
    for arm in study.arms:
        for run in arm.scored:
            found = reading.read_translations(run, name)
            if found is None:
                continue
            sources, references, outputs = found
            if first is None:
                data = str(run.config.get('data'))
                measure = study.measure._replace(set=name)
                metric = metric_of(run, measure)
                first = Translated(data, sources, references, {}, metric)
            if (sources, references) == (first.sources, first.references):
                first.outputs.setdefault(arm.name, []).append(outputs)
    return first


def marked(output: str, reference: str) -> list[Part]:
    """A translation with its differences from the reference, word by word.

    Returns:
      the parts of both in their order; a part has at least one word.
    """
    words = output.split()
    wanted = reference.split()
    matcher = difflib.SequenceMatcher(None, wanted, words, autojunk=False)
    parts = []
    for kind, i, j, k, m in matcher.get_opcodes():
        found = ' '.join(words[k:m])
        if kind == 'equal':
            parts.append(Part(found, ''))
        else:
            parts.append(Part(' '.join(wanted[i:j]), 'missing'))
            parts.append(Part(found, 'added'))
    return [part for part in parts if part.text]


def examples(found: Translated) -> dict[str, list[Sentence]]:
    """Sentences to read, evenly spread: over the set, and over where arms differ.

    Returns:
      `_SHOWN` of a kind at most, by the heading they stand under.
    """
    firsts = zip(*(seeds[0] for seeds in found.outputs.values()), strict=True)
    differing = [i for i, outputs in enumerate(firsts) if len(set(outputs)) > 1]
    chosen: dict[str, Sequence[int]] = {
        'Spread over the set': range(len(found.sources))
    }
    if differing:
        chosen['Where the arms differ'] = differing
    shown = {}
    for title, rows in chosen.items():
        step = max(1, len(rows) // _SHOWN)
        shown[title] = [_sentence(found, i) for i in rows[::step][:_SHOWN]]
    return shown


def _sentence(found: Translated, i: int) -> Sentence:
    """With the translation of each arm's first seed."""
    reference = found.references[i][0]
    marks = {arm: marked(x[0][i], reference) for arm, x in found.outputs.items()}
    return Sentence(found.sources[i], reference, marks)


def by_group(found: Translated, name: str) -> Table | None:
    """Scores by the length of the reference and by what the grammar made a sentence of.

    Args:
      name: of the set.

    Returns:
      None where all sentences are of one group.
    """
    firsts = [references[0] for references in found.references]
    groups = _by_length(firsts)
    pairs = list(zip(found.sources, firsts, strict=True))
    with contextlib.suppress(UserError):  # the text is not of a source that is known
        groups |= phenomena.rows(found.data, name, pairs)
    large = {key: rows for key, rows in groups.items() if len(rows) >= FEWEST}
    if len(large) < 2:
        return None
    rows = []
    for key, members in large.items():
        pick = operator.itemgetter(*members)
        known = (pick(found.references), pick(found.sources))
        scores = []
        for seeds in found.outputs.values():
            values = [found.metric.score(pick(outputs), *known) for outputs in seeds]
            scores.append(spread(values))
        rows.append((key, len(members), *scores))
    note = (
        'Lengths are words of the reference. Phenomena are what the grammar that made '
        'the sentences says; a sentence holds several.'
    )
    columns = ('sentences of', 'sentences', *found.outputs)
    title = f'{found.metric.name} by length and phenomenon: {name}'
    return Table(f'by_group_{name}', title, columns, rows, list(found.outputs), note)


def _by_length(references: Sequence[str]) -> dict[str, list[int]]:
    groups = {}
    for low, high in itertools.pairwise((0, *LENGTHS)):
        lengths = enumerate(len(reference.split()) for reference in references)
        label = f'{low + 1}–{high} words'
        groups[label] = [i for i, length in lengths if low < length <= high]
    return groups
