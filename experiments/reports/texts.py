"""Translations side by side, and scores by length and phenomenon."""

import contextlib
import itertools
import operator
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from experiments.errors import UserError
from experiments.metrics.base import Metric
from experiments.registries import SOURCES
from experiments.reports.arms import Study, find_metric
from experiments.reports.tables import Table
from experiments.runs import reading
from experiments.sweeps.analysis import spread
from flaxformer_lite.config.spec import Component

LENGTHS = (5, 10, 15, 20, 25, 30, 40, 60, 1000)  # upper bounds of the ranges, in words
MIN_SENTENCES = 5  # sentences in a group that gets a score
_NUM_SENTENCES = 15  # sentences


class Sentence(NamedTuple):
    source: str
    reference: str
    translations: dict[str, str]


class Translated(NamedTuple):
    """A set with the translations of all arms.

    Attributes:
      data: The source of its sentences.
      outputs: Each arm's translations, by seed.
    """

    name: str
    data: str
    sources: list[str]
    references: list[tuple[str, ...]]
    outputs: dict[str, list[list[str]]]
    metric: Metric


def find_translations(study: Study) -> Translated | None:
    """Returns the deciding set, without arms that translated other sentences."""
    name = study.measure.set
    first: Translated | None = None
    for arm in study.arms:
        for run in arm.scored:
            found = reading.read_translations(run, name)
            if found is None:
                continue
            sources, references, outputs = found
            if first is None:
                data = str(run.config.get('data'))
                metric = find_metric(run, study.measure, study.trust_code)
                first = Translated(name, data, sources, references, {}, metric)
            if (sources, references) == (first.sources, first.references):
                first.outputs.setdefault(arm.name, []).append(outputs)
    return first


def differ(sentence: Sentence) -> bool:
    return len(set(sentence.translations.values())) > 1


def differing_sentences(found: Translated) -> list[Sentence]:
    """Returns sentences whose translations differ, spread over the set, or else any.

    Their translations are those of each arm's first seed.
    """
    rows = []
    for i, source in enumerate(found.sources):
        reference, *_ = found.references[i]
        translations = {arm: seeds[0][i] for arm, seeds in found.outputs.items()}
        rows.append(Sentence(source, reference, translations))
    chosen = list(filter(differ, rows)) or rows
    step = max(1, len(chosen) // _NUM_SENTENCES)
    return chosen[::step][:_NUM_SENTENCES]


def by_group(found: Translated) -> Table | None:
    """Returns scores by length and phenomenon, if at least two groups are large."""
    groups = {**_by_length(found), **_by_phenomenon(found)}
    large = {key: rows for key, rows in groups.items() if len(rows) >= MIN_SENTENCES}
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
        'Length: words in the reference. Phenomena come from the grammar that '
        'generated the sentences; a sentence can have several.'
    )
    arms = list(found.outputs)
    title = f'{found.metric.name} by length and phenomenon: {found.name}'
    columns = ('group', 'sentences', *arms)
    decimals = dict.fromkeys(arms, 2)
    return Table(f'by_group_{found.name}', title, columns, rows, decimals, note)


def _by_length(found: Translated) -> dict[str, list[int]]:
    lengths = [len(first.split()) for first, *_ in found.references]
    groups = {}
    for low, high in itertools.pairwise((0, *LENGTHS)):
        members = [i for i, length in enumerate(lengths) if low < length <= high]
        groups[f'{low + 1}–{high} words'] = members
    return groups


def _by_phenomenon(found: Translated) -> Mapping[str, Sequence[int]]:
    """Returns the groups of the data source; {} unless it has the same text now."""
    from experiments.data import sources
    from experiments.data.sources.base import Source

    pairs = [(x, y) for x, (y, *_) in zip(found.sources, found.references, strict=True)]
    # The data source may no longer exist.
    with contextlib.suppress(UserError, ValueError):
        component = Component.of(found.data, SOURCES)
        # Reports don't import user modules that a run names.
        if '.' in component.name or component.cls.groups is Source.groups:
            return {}
        source = sources.load(component)
        if source.evaluation().get(found.name) == pairs:
            return source.groups(found.name)
    return {}
