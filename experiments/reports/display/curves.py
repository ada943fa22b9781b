"""The figures of a study: curves of training, a field's values, score against cost."""

import json
import statistics
from collections.abc import Callable, Sequence
from typing import NamedTuple

from experiments.reports import scores
from experiments.reports.arms import Arm, Study
from experiments.reports.display.charts import Chart, Line
from experiments.runs.reading import Row, Run

_WIDE = 8  # times the least cost: from here on the axis is logarithmic
Place = Callable[[Run, Row], float | None]


class Curve(NamedTuple):
    """What is drawn against the progress of training."""

    title: str
    label: str  # of the axis
    kind: str  # of the rows
    value: str  # in a row


class Axis(NamedTuple):
    """What training's progress is measured in; `place` is where a row stands."""

    label: str
    place: Place


class _Point(NamedTuple):
    step: int
    x: float
    y: float


CURVES = {
    'loss': Curve('Training loss', 'loss', 'train', 'loss'),
    'dev_loss': Curve('Loss of the dev set', 'loss', 'eval', 'loss'),
    'dev_bleu': Curve('BLEU of the dev set', 'BLEU', 'eval', 'bleu'),
    'learning_rate': Curve('Learning rate', 'learning rate', 'train', 'learning_rate'),
    'gradient_norm': Curve('Gradient norm', 'gradient norm', 'train', 'gradient_norm'),
}


def _step(run: Run, row: Row) -> float | None:
    return row['step']


def _tokens(run: Run, row: Row) -> float | None:
    return _share(run, row, 'tokens', run.tokens)


def _seconds(run: Run, row: Row) -> float | None:
    return _share(run, row, 'seconds', run.result.get('train_seconds'))


def _share(run: Run, row: Row, name: str, total: float | None) -> float | None:
    """What a row says, or else the step's share of the total: steps are much alike."""
    if isinstance(row.get(name), int | float):
        return row[name]
    last = run.result.get('step')
    return total * row['step'] / last if total is not None and last else None


AXES = {
    'steps': Axis('steps', _step),
    'tokens': Axis('target tokens', _tokens),
    'time': Axis('seconds of training', _seconds),
}


def curves(study: Study) -> dict[str, dict[str, Chart]]:
    """The curves of training by what is drawn and against what, without empty ones."""
    found: dict[str, dict[str, Chart]] = {}
    for name, curve in CURVES.items():
        charts = {}
        for axis_name, axis in AXES.items():
            lines = _lines(study, curve, axis)
            if lines:
                file = f'{name}_by_{axis_name}'
                charts[axis_name] = Chart(
                    file, curve.title, axis.label, curve.label, lines
                )
        if charts:
            found[name] = charts
    return found


def _lines(study: Study, curve: Curve, axis: Axis) -> tuple[Line, ...]:
    """A line with its band for each arm, and one for each run that did not finish."""
    lines = []
    for arm in study.arms:
        lines.append(_mean(arm.name, [_points(run, curve, axis) for run in arm.scored]))
        for run in arm.runs:
            if not run.finished:
                points = _points(run, curve, axis)
                name = f'{arm.name}, seed {run.seed} ({run.status})'
                lines.append(_mean(name, [points]))
    return tuple(line for line in lines if line.x)


def _points(run: Run, curve: Curve, axis: Axis) -> list[_Point]:
    rows = run.dev_rows() if curve.kind == 'eval' else run.rows
    points = []
    for row in rows:
        value = row.get(curve.value)
        x = axis.place(run, row)
        if row['kind'] == curve.kind and isinstance(value, int | float):
            if x is not None:
                points.append(_Point(row['step'], x, value))
    return points


def _mean(name: str, runs: Sequence[Sequence[_Point]]) -> Line:
    """The mean over seeds at the steps that all have, in a band from least to most."""
    by_step: dict[int, list[_Point]] = {}
    for points in runs:
        for point in points:
            by_step.setdefault(point.step, []).append(point)
    shared = [group for _, group in sorted(by_step.items()) if len(group) == len(runs)]
    ys = [[point.y for point in group] for group in shared]
    has_band = len(runs) > 1
    return Line(
        name,
        x=[statistics.fmean(point.x for point in group) for group in shared],
        y=list(map(statistics.fmean, ys)),
        low=list(map(min, ys)) if has_band else (),
        high=list(map(max, ys)) if has_band else (),
    )


def fields(study: Study) -> list[Chart]:
    """The measure over the values of each field in which arms differ by a number."""
    charts = []
    for field in study.fields:
        arms = [arm for arm in study.arms if arm.spread(study.measure)]
        values = {type(_value(arm, field)) for arm in arms}
        if not arms or not values <= {int, float}:
            continue
        lines = _field_lines(study, arms, field)
        if lines:
            word = field.rpartition('.')[2]
            title = f'{study.measure} by {word}'
            name = f'by_{word}'
            measure = str(study.measure)
            charts.append(Chart(name, title, field, measure, lines, style='bars'))
    return charts


def _value(arm: Arm, field: str) -> object:
    return arm.runs[0].config.get(field)


def _field_lines(study: Study, arms: Sequence[Arm], field: str) -> tuple[Line, ...]:
    """A line for each combination of the other fields that has several values."""
    others = [name for name in study.fields if name != field]
    groups: dict[str, list[Arm]] = {}
    for arm in arms:
        rest = ', '.join(
            f'{name.rpartition(".")[2]}={json.dumps(_value(arm, name))}'
            for name in others
        )
        groups.setdefault(rest, []).append(arm)
    lines = []
    for rest, members in groups.items():
        if len({_value(arm, field) for arm in members}) > 1:
            members.sort(key=lambda arm: float(str(_value(arm, field))))
            x = [float(str(_value(arm, field))) for arm in members]
            lines.append(_with_bars(rest or str(study.measure), x, members, study))
    return tuple(lines)


def _with_bars(
    name: str, x: Sequence[float], arms: Sequence[Arm], study: Study
) -> Line:
    """Means with bars of one standard deviation; none where an arm has one seed."""
    spreads = [found for arm in arms if (found := arm.spread(study.measure))]
    y = [found.mean for found in spreads]
    if any(found.sd is None for found in spreads):
        return Line(name, x, y)
    low = [found.mean - (found.sd or 0) for found in spreads]
    high = [found.mean + (found.sd or 0) for found in spreads]
    return Line(name, x, y, low, high)


def against_cost(study: Study) -> dict[str, Chart]:
    """The measure against each cost that is known, by the cost's name in a result.

    What costs all arms the same is left out, unless nothing else is known.
    """
    charts = {}
    equal = set()
    for entry, label in scores.COSTS.items():
        if entry == 'tokens_per_second':
            continue  # no cost
        lines = []
        for arm in study.arms:
            cost = scores.cost(arm, entry)
            if cost is not None and arm.spread(study.measure) is not None:
                lines.append(_with_bars(arm.name, [cost.mean], [arm], study))
        if lines:
            name = f'score_by_{entry}'
            title = f'{study.measure} against {label}'
            measure = str(study.measure)
            costs = [line.x[0] for line in lines]
            if max(costs) == min(costs):
                equal.add(entry)
            is_wide = max(costs) > _WIDE * min(costs) > 0
            charts[entry] = Chart(
                name, title, label, measure, tuple(lines), 'points', log_x=is_wide
            )
    telling = {entry: charts[entry] for entry in charts if entry not in equal}
    return telling or charts
