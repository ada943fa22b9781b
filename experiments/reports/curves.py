"""The figures of a study: curves of training, a field's values, score against cost."""

import json
import statistics
from collections.abc import Sequence
from typing import NamedTuple

from experiments.reports import scores
from experiments.reports.arms import Arm, Study
from experiments.reports.figures import Figure, Line, line_chart
from experiments.reports.read import Row, Run
from experiments.reports.statistics import Spread

_WIDE = 8  # times the least cost: from here on the axis is logarithmic


class Curve(NamedTuple):
    """What is drawn against the progress of training."""

    title: str
    label: str  # of the axis
    kind: str  # of the rows
    value: str  # in a row


CURVES = {
    'loss': Curve('Training loss', 'loss', 'train', 'loss'),
    'dev_loss': Curve('Loss of the dev set', 'loss', 'eval', 'loss'),
    'dev_bleu': Curve('BLEU of the dev set', 'BLEU', 'eval', 'bleu'),
    'learning_rate': Curve('Learning rate', 'learning rate', 'train', 'learning_rate'),
    'gradient_norm': Curve('Gradient norm', 'gradient norm', 'train', 'gradient_norm'),
}
AXES = {
    'steps': 'steps',
    'tokens': 'target tokens',
    'time': 'seconds of training',
}


def curves(study: Study) -> dict[str, dict[str, Figure]]:
    """The curves of training by what is drawn and against what, without empty ones."""
    found: dict[str, dict[str, Figure]] = {}
    for name, curve in CURVES.items():
        for axis, label in AXES.items():
            lines = _lines(study, curve, axis)
            if lines:
                chart = line_chart(lines, label, curve.label)
                figure = Figure(f'{name}_by_{axis}', curve.title, chart)
                found.setdefault(name, {})[axis] = figure
    return found


def _lines(study: Study, curve: Curve, axis: str) -> list[Line]:
    """A line with its band for each arm, and one for each run that did not finish."""
    lines = []
    for arm in study.arms:
        lines.append(_mean(arm.name, arm.scored, curve, axis))
        for run in arm.runs:
            if not run.finished:
                name = f'{arm.name}, seed {run.seed} ({run.status})'
                lines.append(_mean(name, [run], curve, axis))
    return [line for line in lines if line.x]


def _mean(name: str, runs: Sequence[Run], curve: Curve, axis: str) -> Line:
    """The mean over seeds at the steps that all have, in a band from least to most."""
    by_step: dict[int, list[tuple[float, float]]] = {}
    for run in runs:
        for row in run.dev_rows() if curve.kind == 'eval' else run.rows:
            x, y = _progress(run, row, axis), row.get(curve.value)
            if row['kind'] == curve.kind and x is not None and _is_number(y):
                by_step.setdefault(row['step'], []).append((x, y))
    shared = [
        points for _, points in sorted(by_step.items()) if len(points) == len(runs)
    ]
    xs = [statistics.fmean(x for x, _ in points) for points in shared]
    seeds = [[y for _, y in points] for points in shared]
    means = list(map(statistics.fmean, seeds))
    if len(runs) < 2:
        return Line(name, xs, means)
    return Line(name, xs, means, list(map(min, seeds)), list(map(max, seeds)))


def _progress(run: Run, row: Row, axis: str) -> float | None:
    """Where a row stands: what it says, or the step's share of the run's total."""
    if axis == 'steps':
        return row['step']
    name = {'tokens': 'tokens', 'time': 'seconds'}[axis]
    if _is_number(row.get(name)):
        return row[name]
    total = run.tokens if axis == 'tokens' else run.result.get('train_seconds')
    last = run.result.get('step')
    return total * row['step'] / last if total is not None and last else None


def _is_number(value: object) -> bool:
    return isinstance(value, int | float)


def by_field(study: Study) -> dict[str, Figure]:
    """The measure over the values of each field in which arms differ by a number."""
    measure = str(study.measure)
    found = {}
    for field in study.fields:
        arms = [arm for arm in study.arms if arm.spread(study.measure)]
        kinds = {type(_value(arm, field)) for arm in arms}
        if not arms or not kinds <= {int, float}:
            continue
        lines = _field_lines(study, arms, field)
        if lines:
            word = field.rpartition('.')[2]
            chart = line_chart(lines, field, measure, style='bars')
            found[field] = Figure(f'by_{word}', f'{measure} by {word}', chart)
    return found


def _value(arm: Arm, field: str) -> object:
    return arm.runs[0].config.get(field)


def _field_lines(study: Study, arms: Sequence[Arm], field: str) -> list[Line]:
    """A line for each combination of the other fields that has several values."""
    others = [name for name in study.fields if name != field]
    groups: dict[str, dict[float, Spread | None]] = {}
    for arm in arms:
        words = []
        for name in others:
            words.append(f'{name.rpartition(".")[2]}={json.dumps(_value(arm, name))}')
        value = float(str(_value(arm, field)))
        spreads = groups.setdefault(', '.join(words) or str(study.measure), {})
        spreads[value] = arm.spread(study.measure)
    lines = []
    for name, spreads in groups.items():
        if len(spreads) > 1:
            values = sorted(spreads)
            lines.append(with_bars(name, values, [spreads[x] for x in values]))
    return lines


def with_bars(
    name: str, x: Sequence[float] | Sequence[str], spreads: Sequence[Spread | None]
) -> Line:
    """Means with bars of one standard deviation; none where one is of one seed."""
    there = [spread for spread in spreads if spread is not None]
    means = [spread.mean for spread in there]
    deviations = [spread.sd for spread in there if spread.sd is not None]
    if len(deviations) < len(means):
        return Line(name, x, means)
    low = [mean - sd for mean, sd in zip(means, deviations, strict=True)]
    high = [mean + sd for mean, sd in zip(means, deviations, strict=True)]
    return Line(name, x, means, low, high)


def against_cost(study: Study) -> dict[str, Figure]:
    """The measure against each cost that is known, by the cost's name in a table.

    What costs all arms the same is left out, unless nothing else is known.
    """
    measure = str(study.measure)
    telling, equal = {}, {}
    for entry, label in scores.COSTS.items():
        if entry == 'tokens_per_second':
            continue  # no cost
        lines = []
        for arm in study.arms:
            cost = scores.cost(arm, entry)
            spread = arm.spread(study.measure)
            if cost is not None and spread is not None:
                lines.append(with_bars(arm.name, [cost.mean], [spread]))
        if not lines:
            continue
        least = min(float(line.x[0]) for line in lines)
        most = max(float(line.x[0]) for line in lines)
        is_wide = most > _WIDE * least > 0
        chart = line_chart(lines, label, measure, 'points', log_x=is_wide)
        figure = Figure(f'score_by_{entry}', f'{measure} against {label}', chart)
        (equal if most == least else telling)[label] = figure
    return telling or equal
