"""Scores of all sets, what they cost, and what was published."""

from typing import Any

from experiments.reports import statistics
from experiments.reports.arms import Arm, Measure, Study
from experiments.reports.statistics import Spread
from experiments.reports.tables import Table
from experiments.runs.reading import SCORES, Run

COSTS = {
    'parameters': 'parameters',
    'flops_per_token': 'FLOPs a token',
    'training_flops': 'training FLOPs',
    'train_seconds': 'training seconds',
    'tokens_per_second': 'tokens a second',
    'peak_memory_bytes': 'peak memory, bytes',
}


def cost(arm: Arm, entry: str) -> Spread | None:
    """The mean of a cost of an arm's runs; None where it is not known.

    Args:
      entry: of a result, or 'tokens', or 'training_flops': FLOPs of a position of a
        batch, times the positions of all batches.
    """
    values = [_cost(run, entry) for run in arm.scored]
    return statistics.spread([value for value in values if value is not None])


def _cost(run: Run, entry: str) -> float | None:
    if entry == 'tokens':
        return run.tokens
    if entry != 'training_flops':
        return run.result.get(entry)
    flops = run.result.get('flops_per_token')
    tokens = run.config.get('batch.tokens')
    if flops is None or tokens is None:
        return None
    return flops * tokens * run.result['step']


def costs(study: Study) -> Table:
    """Cost beside score."""
    rows = []
    for arm in study.ranked():
        values = [cost(arm, entry) for entry in COSTS]
        rows.append((arm.name, arm.spread(study.measure), *values))
    measure = str(study.measure)
    names = ('arm', measure, *COSTS.values())
    title = 'Cost beside score'
    return Table('cost', title, names, tuple(rows), frozenset([measure]))


def scores(study: Study) -> Table:
    """Every score of every set."""
    sets = dict.fromkeys(
        name for arm in study.arms for run in arm.scored for name in run.evaluations
    )
    rows: list[tuple[Any, ...]] = []
    for name in sets:
        for arm in study.arms:
            spreads = [arm.spread(Measure(name, score)) for score in SCORES]
            rows.append((name, arm.name, *spreads))
    columns = ('set', 'arm', *SCORES)
    bold = frozenset(('bleu', 'chrf'))
    return Table('scores', 'All scores', columns, tuple(rows), bold)


def published(study: Study) -> Table | None:
    """What the source says of each arm beside what is measured here."""
    if study.sweep is None or not any(study.sweep.published.values()):
        return None
    numbers = study.sweep.published
    names = dict.fromkeys(name for entry in numbers.values() for name in entry)
    rows: list[tuple[Any, ...]] = []
    for arm in study.arms:
        row: list[Any] = [arm.name]
        for name in names:
            measure = Measure(study.measure.set, name)
            here = arm.spread(measure) if name in SCORES else cost(arm, name)
            row += [numbers.get(arm.name, {}).get(name), here]
        rows.append(tuple(row))
    columns = [f'{name}, {side}' for name in names for side in ('published', 'here')]
    decimals = frozenset(name for name in columns if name.startswith(('bleu', 'chrf')))
    title = 'Beside what was published'
    note = f'Published: {study.sweep.source}. What differs here: {study.sweep.differs}'
    return Table('published', title, ('arm', *columns), tuple(rows), decimals, note)
