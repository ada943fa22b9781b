"""Scores of all sets, what they cost, and what was published."""

from typing import Any

from experiments.reports import statistics
from experiments.reports.arms import Arm, Study
from experiments.reports.read import Run
from experiments.reports.statistics import Spread
from experiments.reports.tables import Table

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
    values = []
    for run in arm.scored:
        value = _cost(run, entry)
        if value is not None:
            values.append(value)
    return statistics.spread(values)


def _cost(run: Run, entry: str) -> float | None:
    if entry == 'tokens':
        return run.tokens
    if entry != 'training_flops':
        return _number(run.result.get(entry))
    flops = _number(run.result.get('flops_per_token'))
    tokens = run.config.get('batch.tokens')
    step = run.result.get('step')
    if flops is None or tokens is None or step is None:
        return None
    return flops * tokens * step


def _number(value: Any) -> float | None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return value if is_number else None


def costs(study: Study) -> Table:
    """Cost beside score."""
    entries = [
        entry
        for entry in COSTS
        if any(cost(arm, entry) is not None for arm in study.arms)
    ]
    rows: list[tuple[Any, ...]] = []
    for arm in study.ranked():
        values = [cost(arm, entry) for entry in entries]
        rows.append((arm.name, arm.spread(study.measure), *values))
    measure = str(study.measure)
    names = ('arm', measure, *(COSTS[entry] for entry in entries))
    missing = [COSTS[entry] for entry in COSTS if entry not in entries]
    note = ''
    if missing:
        note = f'The results of these runs do not tell: {", ".join(missing)}.'
    return Table(
        'cost', 'Cost beside score', names, tuple(rows), frozenset([measure]), note
    )


def scores(study: Study) -> Table:
    """Every score of every set."""
    sets = dict.fromkeys(
        name for arm in study.arms for run in arm.scored for name in run.evaluations
    )
    names = ('bleu', 'chrf', 'loss', 'perplexity', 'accuracy')
    rows: list[tuple[Any, ...]] = []
    for name in sets:
        for arm in study.arms:
            measures = [study.measure._replace(set=name, score=x) for x in names]
            rows.append((name, arm.name, *(arm.spread(m) for m in measures)))
    columns = ('set', 'arm', *names)
    bold = frozenset(('bleu', 'chrf'))
    return Table('scores', 'All scores', columns, tuple(rows), bold)


def published(study: Study) -> Table | None:
    """What the source says of each arm beside what is measured here."""
    question = study.question
    if question is None or not any(question.published.values()):
        return None
    names = dict.fromkeys(x for entry in question.published.values() for x in entry)
    rows: list[tuple[Any, ...]] = []
    for arm in study.arms:
        row: list[Any] = [arm.name]
        for name in names:
            row.append(question.published.get(arm.name, {}).get(name))
            if name == 'parameters':
                row.append(cost(arm, name))
            else:
                row.append(arm.spread(study.measure._replace(score=name)))
        rows.append(tuple(row))
    columns = [f'{name}, {side}' for name in names for side in ('published', 'here')]
    note = f'Published: {question.source}. What differs here: {question.differs}'
    title = 'Beside what was published'
    decimals = frozenset(name for name in columns if name.startswith(('bleu', 'chrf')))
    return Table('published', title, ('arm', *columns), tuple(rows), decimals, note)
