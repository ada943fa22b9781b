"""The figures of a study: curves of training, and score against cost."""

from collections.abc import Sequence
from statistics import fmean

from experiments.reports import scores
from experiments.reports.arms import Study
from experiments.reports.figures import Figure, Line, line_chart
from experiments.reports.statistics import Spread
from experiments.runs.reading import Run

_WIDE = 8  # times the least cost: from here on the axis is logarithmic
# Title, label of the axis, kind of the rows and what is drawn of them.
_CURVES = {
    'loss': ('Training loss', 'loss', 'train', 'loss'),
    'dev_loss': ('Loss of the dev set', 'loss', 'eval', 'loss'),
    'dev_bleu': ('BLEU of the dev set', 'BLEU', 'eval', 'bleu'),
    'learning_rate': ('Learning rate', 'learning rate', 'train', 'learning_rate'),
    'gradient_norm': ('Gradient norm', 'gradient norm', 'train', 'gradient_norm'),
}
# Where a row stands, and the label of the axis.
_AXES = {
    'steps': ('step', 'steps'),
    'tokens': ('tokens', 'target tokens'),
    'time': ('seconds', 'seconds of training'),
}


def curves(study: Study) -> dict[str, dict[str, Figure]]:
    """The curves of training by what is drawn and against what, without empty ones."""
    found: dict[str, dict[str, Figure]] = {}
    for name, (title, y_label, kind, y) in _CURVES.items():
        for axis, (x, x_label) in _AXES.items():
            lines = _lines(study, kind, x, y)
            if lines:
                chart = line_chart(lines, x_label, y_label)
                figure = Figure(f'{name}_by_{axis}', title, chart)
                found.setdefault(name, {})[axis] = figure
    return found


def _lines(study: Study, kind: str, x: str, y: str) -> list[Line]:
    """A line with its band for each arm, and one for each run that did not finish."""
    runs_by_name = {arm.name: arm.scored for arm in study.arms}
    for arm in study.arms:
        for run in arm.runs:
            if not run.finished:
                name = f'{arm.name}, seed {run.seed} ({run.status})'
                runs_by_name[name] = [run]
    lines = []
    for name, runs in runs_by_name.items():
        points = [_points(run, kind, x, y) for run in runs]
        # The mean over seeds at the steps that all have, in a band from least to most.
        steps = sorted(set.intersection(*map(set, points))) if points else []
        if not steps:
            continue
        xs = [fmean(p[step][0] for p in points) for step in steps]
        seeds = [[p[step][1] for p in points] for step in steps]
        band = [list(map(min, seeds)), list(map(max, seeds))] if len(runs) > 1 else []
        lines.append(Line(name, xs, list(map(fmean, seeds)), *band))
    return lines


def _points(run: Run, kind: str, x: str, y: str) -> dict[int, tuple[float, float]]:
    """Step → what a row of this kind has of x and y."""
    points = {}
    for row in run.dev_rows() if kind == 'eval' else run.rows:
        place = (row.get(x), row.get(y))
        if row['kind'] == kind and all(isinstance(z, int | float) for z in place):
            points[row['step']] = place
    return points


def with_bars(
    name: str, x: Sequence[float] | Sequence[str], spreads: Sequence[Spread | None]
) -> Line:
    """Means with bars of one standard deviation; none where one is of one seed."""
    there = [spread for spread in spreads if spread is not None]
    means = [spread.mean for spread in there]
    if any(spread.sd is None for spread in there):
        return Line(name, x, means)
    low = [spread.mean - (spread.sd or 0) for spread in there]
    high = [spread.mean + (spread.sd or 0) for spread in there]
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
