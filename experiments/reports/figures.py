"""Figures of a report as Vega-Altair charts."""

import collections
import json
import re
from collections.abc import Mapping, Sequence
from itertools import chain, starmap
from statistics import fmean
from typing import Any, NamedTuple

import altair as alt
import vl_convert

from experiments.command_line import console
from experiments.errors import printable
from experiments.evaluation.measure import Measure
from experiments.reports.arms import Study
from experiments.runs.reading import Run
from experiments.sweeps.analysis import Contrast, Spread
from experiments.sweeps.schema import Sweep

# Okabe and Ito's colours, which colour-blind readers can tell apart. Grey replaces
# black, and yellow is left out because it is too pale for a line.
COLOURS = ['#0072B2', '#D55E00', '#009E73', '#CC79A7', '#56B4E9', '#E69F00', '#7A7A7A']
# Each round of the colours has its own dashes and shape.
_DASHES = [dash for dash in ([1, 0], [6, 3], [2, 2]) for _ in COLOURS]
_SHAPES = [shape for shape in ('circle', 'square', 'triangle') for _ in COLOURS]
_SIZE = {'width': 420, 'height': 260}  # pixels
_FOREST_WIDTH = 320  # narrower, because long names need space
# Padding of files, for fonts with wider letters.
_PADDING = {'left': 20, 'top': 8, 'right': 28, 'bottom': 8}
_MAX_POINTS = 4_000  # maximum number of points, over all lines of a figure
# Axis labels such as `0.001`, `200`, `1.5k`.
_SHORT = "format(datum.value, abs(datum.value) < 1000 ? '~g' : '~s')"

_WORDS = {
    **{'labelColor': '#1b1f24', 'titleColor': '#1b1f24', 'labelLimit': 130},
    **{'labelFontSize': 12, 'titleFontSize': 12},
}
_RULE = '#dde1e6'
# Vega-Lite's config. The colour scale starts near the background's colour.
THEME = {
    'background': '#ffffff',
    'numberFormat': ',.6~r',
    'font': 'system-ui, Helvetica, Arial, sans-serif',
    'axis': {**_WORDS, 'gridColor': _RULE, 'domainColor': _RULE, 'tickColor': _RULE},
    'header': _WORDS,
    'legend': {**_WORDS, 'labelLimit': 360, 'columns': 2},
    'view': {'stroke': None},
    'range': {'heatmap': ['#f7fbff', '#c6dbef', '#6baed6', '#2171b5', '#08306b']},
}

# The fields that make a model larger.
SIZES = {'model.d_model', 'model.num_layers', 'model.d_ff'}
# Choices for the x-axis of curves: an entry of rows → the axis title.
AXES = {
    'step': 'Training step',
    'tokens': 'Target tokens',
    'seconds': 'Training time (s)',
}
# Labels of scores with their units.
_LABELS = {
    'accuracy': 'Token accuracy (0 to 1)',
    'bleu': 'BLEU (points)',
    'chrf': 'chrF (points)',
    'edit_distance': 'Edit distance (edits per sentence)',
    'error_rate': 'Error rate (%)',
    'exact_match': 'Exact match (%)',
    'gradient_norm': 'Gradient norm',
    'learning_rate': 'Learning rate',
    'loss': 'Loss (nats per token)',
    'perplexity': 'Perplexity',
    'ter': 'TER (%)',
}


def axis_title(score: str, of_set: str = '') -> str:
    """Returns the label of a score: 'Exact match (%) on test'."""
    label = _LABELS.get(score, score.replace('_', ' '))
    return f'{label} on {of_set}' if of_set else label


class Figure(NamedTuple):
    name: str
    title: str
    chart: alt.TopLevelMixin

    def spec(self) -> dict[str, Any]:
        """Returns the Vega-Lite specification, without the theme."""
        return _printable({**self.chart.to_dict(), 'config': {}})


def _printable(spec: Any) -> Any:
    """Escapes control characters, which SVG can't hold."""
    match spec:
        case str():
            return printable(spec, keep='')
        case dict():
            return {name: _printable(value) for name, value in spec.items()}
        case list():
            return list(map(_printable, spec))
    return spec


def files(figure: Figure) -> dict[str, bytes]:
    # Descriptions of thousands of cells would make files large.
    config = {**THEME, 'aria': False, 'padding': _PADDING}
    svg = vl_convert.vegalite_to_svg(figure.spec(), config=config)
    return {'svg': svg.encode(), 'pdf': vl_convert.svg_to_pdf(svg)}


class Point(NamedTuple):
    x: float
    y: float
    low: float
    high: float


def over_seeds(x: float, ys: Sequence[float]) -> Point:
    """Returns the mean as a point, with a band from minimum to maximum."""
    return Point(x, fmean(ys), min(ys), max(ys))


def line_chart(
    lines: Mapping[str, Sequence[Point]],
    x_label: str,
    y_label: str,
    logarithmic: bool = False,
) -> alt.TopLevelMixin:
    """Draws lines with bands; a `logarithmic` x must be positive.

    The lines share `_MAX_POINTS` evenly spaced points and keep their last ones.
    """
    names = list(lines)
    kind = 'log' if logarithmic else 'linear'
    x_scale = alt.Scale(type=kind, zero=False, nice=False)
    x_axis = alt.Axis(labelExpr=_SHORT)
    most = max(1, _MAX_POINTS // len(lines))
    values = [_line(name, points, most) for name, points in lines.items()]
    y_title: Any = y_label
    if any(line['low'] != line['high'] for line in values):
        y_title = [y_label, '(band: range over seeds)']
    data = alt.Chart(alt.InlineData(values=values))
    base = data.transform_flatten(list(Point._fields)).encode(
        x=alt.X('x:Q', title=x_label, scale=x_scale, axis=x_axis),
        y=alt.Y('y:Q', title=y_title, scale=alt.Scale(zero=False)),
        color=_colour('line:N', names),
    )
    whole = base.encode(y=alt.Y('low:Q', title=y_title), y2='high:Q')
    dashes = alt.Scale(domain=names, range=_DASHES)
    # A line of one point would be invisible otherwise.
    opacity_if_alone = alt.condition('datum.alone', alt.value(1), alt.value(0))
    return alt.layer(
        whole.mark_area(opacity=0.2),
        base.mark_line().encode(strokeDash=alt.StrokeDash('line:N', scale=dashes)),
        whole.mark_rule().encode(opacity=opacity_if_alone),
        base.mark_point(filled=True, size=60).encode(opacity=opacity_if_alone),
        # Invisible points, so that tooltips appear near a line.
        base.mark_point(size=250, opacity=0, tooltip=True),
        **_SIZE,
    )


def _line(name: str, points: Sequence[Point], most: int) -> dict[str, Any]:
    stride = -(-len(points) // most)
    shown = points[::-stride][::-1]
    line: dict[str, Any] = {'line': name, 'alone': len(shown) == 1}
    columns = zip(*shown, strict=True)
    for field, values in zip(Point._fields, columns, strict=True):
        line[field] = [float(f'{value:.6g}') for value in values]
    return line


def curves(study: Study, against: str = 'step') -> list[Figure]:
    """Draws the training curves that have data, over one of `AXES`."""
    metric = study.metrics[0]
    rows = chain(*(run.rows for run in study.runs))
    reported = sorted(set(chain(*rows)))
    # Title, kind of row, and entry.
    drawn = [
        ('Training loss', 'train', 'loss'),
        ('Dev loss', 'eval', 'loss'),
        ('Learning rate', 'train', 'learning_rate'),
        ('Gradient norm', 'train', 'gradient_norm'),
        (f'Dev {axis_title(metric)}', 'eval', metric),
        *((f'Training {y}', 'train', y) for y in reported if y.startswith('loss/')),
    ]
    figures = []
    for title, kind, y in drawn:
        lines = _curve(study, kind, against, y)
        if lines:
            name = f'dev_{y}' if kind == 'eval' else y
            name = re.sub(r'\W+', '_', name)
            chart = line_chart(lines, AXES[against], axis_title(y))
            figures.append(Figure(name, title, chart))
    return figures


def _curve(study: Study, kind: str, x: str, y: str) -> dict[str, list[Point]]:
    lines = {}
    for arm in study.arms:
        lines[arm.name] = arm.scored
        for run in arm.runs:
            if not run.finished:
                lines[f'{arm.name}, seed {run.seed} ({run.status})'] = [run]
    drawn = {}
    for name, runs in lines.items():
        by_step = collections.defaultdict(list)
        for run in runs:
            for step, row in _rows(run, kind, x, y).items():
                by_step[step].append(row)
        points = []
        for rows in by_step.values():
            if len(rows) == len(runs):
                mean_x = fmean(row[x] for row in rows)
                points.append(over_seeds(mean_x, [row[y] for row in rows]))
        if points:
            drawn[name] = points
    return drawn


def _rows(run: Run, kind: str, x: str, y: str) -> dict[int, dict[str, Any]]:
    rows = run.rows
    if kind == 'eval':
        rows = run.dev_rows()
    found = {}
    for row in rows:
        if row['kind'] == kind and None not in (row.get(x), row.get(y)):
            found[row['step']] = row
    return found


def forest(
    contrasts: Sequence[Contrast],
    score: str,
    names: Mapping[str, str] = {},
    data: Mapping[str, str] = {},
) -> Figure | None:
    """Draws differences with their confidence intervals, one per row, if any.

    Args:
      score: The label of the compared score, from `axis_title`.
      names: The name to show for an arm.
      data: The data set of each arm, which groups the rows.
    """
    shown = [contrast for contrast in contrasts if contrast.low is not None]
    if not shown:
        return None
    groups = collections.defaultdict(list)
    for contrast in shown:
        groups[data.get(contrast.arm, '')].append(contrast)
    bases = {names.get(contrast.base, contrast.base) for contrast in shown}
    labels: list[str] = []
    headings: list[int] = []
    values = []
    for group, members in groups.items():
        if group:
            headings.append(len(labels))
            labels.append(group)
        for contrast in members:
            label = names.get(contrast.arm, contrast.arm)
            if len(bases) > 1:
                label = f'{label} − {names.get(contrast.base, contrast.base)}'
            row = {
                'row': len(labels),
                'arm': label,
                'difference': contrast.effect,
                'low': contrast.low,
                'high': contrast.high,
                'verdict': 'significant' if contrast.significant else 'not significant',
            }
            labels.append(label)
            values.append(row)
    of_base = f' from {bases.pop()}' if len(bases) == 1 else ''
    title = [f'{score}:', f'difference{of_base}', '(bars: 95% CI)']
    return Figure(
        'differences', 'Differences', _forest(values, labels, headings, title)
    )


def _forest(
    values: list[dict[str, Any]],
    labels: Sequence[str],
    headings: Sequence[int],
    title: Sequence[str],
) -> alt.TopLevelMixin:
    is_heading = f'indexof({list(headings)}, datum.value) >= 0'
    bold = alt.condition(is_heading, alt.value('bold'), alt.value('normal'))
    y_axis = alt.Axis(
        labelExpr=label_expression(labels), labelLimit=260, labelFontWeight=bold
    )
    rows = alt.Scale(domain=list(range(len(labels))))
    verdicts = alt.Scale(
        domain=['significant', 'not significant'], range=[COLOURS[0], COLOURS[-1]]
    )
    legend = alt.Legend(orient='bottom', title=None, symbolType='stroke')
    base = alt.Chart(alt.InlineData(values=values)).encode(
        y=alt.Y('row:O', scale=rows, title=None, axis=y_axis),
        color=alt.Color('verdict:N', scale=verdicts, legend=legend),
    )
    x = alt.X('low:Q', title=title)
    bars = base.mark_rule(strokeWidth=2).encode(x=x, x2='high:Q')
    points = base.mark_point(filled=True, size=60, opacity=1)
    zero = alt.Chart(alt.InlineData(values=[{'x': 0}]))
    line = zero.mark_rule(strokeDash=[2, 2], color=COLOURS[-1])
    return alt.layer(
        line.encode(x='x:Q'),
        bars,
        points.encode(
            x='difference:Q',
            tooltip=['arm:N', 'difference:Q', 'low:Q', 'high:Q', 'verdict:N'],
        ),
        width=_FOREST_WIDTH,
        height=22 * len(labels),
    )


def label_expression(names: Sequence[str]) -> str:
    """Returns a Vega expression for the name of an index.

    Names are JSON strings in it, so they can't run as code.
    """
    texts = json.dumps(list(names), ensure_ascii=False)
    return f'{texts}[datum.value]'


def tuning_curve(
    trials: Mapping[str, Mapping[Any, Sequence[float]]], field: str, measure: Measure
) -> Figure | None:
    """Draws scores against the values of a tuned field, if these are numbers.

    Args:
      trials: The scores of each arm by value.
    """
    lines = {
        arm: list(starmap(over_seeds, scores.items()))
        for arm, scores in trials.items()
        if scores
    }
    values = list(chain(*trials.values()))
    if not lines or not all(map(console.is_number, values)):
        return None
    chart = line_chart(lines, field, str(measure), logarithmic=min(values) > 0)
    return Figure('tuning', f'{measure} by {field}', chart)


def score_by_cost(
    spreads: Mapping[str, tuple[Spread | None, Spread | None]], measure: Measure
) -> Figure | None:
    """Draws scores against training FLOPs; None if no arm has both.

    Args:
      spreads: The training FLOPs and the score of each arm.
    """
    values = []
    for arm, (cost, score) in spreads.items():
        if cost is None or score is None:
            continue
        row: dict[str, Any] = {'arm': arm}
        for axis, spread in (('x', cost), ('y', score)):
            sd = spread.sd or 0.0
            row[axis] = spread.mean
            row[f'{axis}_low'] = spread.mean - sd
            row[f'{axis}_high'] = spread.mean + sd
        values.append(row)
    if not values:
        return None
    x_title = ['Training FLOPs', '(bars: ± standard deviation over seeds)']
    x_scale = alt.Scale(zero=False, padding=20)
    axis = alt.Axis(format='.1~e')
    x = alt.X('x:Q', title=x_title, scale=x_scale, axis=axis)
    base = _by_arm(values, x, measure)
    across = base.mark_rule().encode(x='x_low:Q', x2='x_high:Q')
    upright = base.mark_rule().encode(y='y_low:Q', y2='y_high:Q')
    points = base.mark_point(filled=True, size=60, opacity=1, tooltip=True)
    points = points.encode(shape=_shape(values))
    title = f'{axis_title(measure.score)} by training FLOPs'
    chart = alt.layer(across, upright, points, **_SIZE)
    return Figure('score_by_training_flops', title, chart)


def scores_over_sizes(study: Study) -> Figure | None:
    """Draws scores against the number of parameters.

    Fits a line in its logarithm to runs that differ only in size. Returns None without
    two sizes.
    """
    factor = _factor_of_sizes(study.sweep)
    if factor is None:
        return None
    names = study.sweep.without_factor(factor)
    values = []
    for arm in study.arms:
        size = arm.cost('parameters')
        if size is None:
            continue
        for score in arm.by_seeds(study.measure).values():
            values.append({'arm': names[arm.name], 'x': size.mean, 'y': score})
    if len({row['x'] for row in values}) < 2:
        return None
    x_scale = alt.Scale(type='log', nice=False, padding=20)
    axis = alt.Axis(format='~s')
    x = alt.X('x:Q', title='Parameters', scale=x_scale, axis=axis)
    base = _by_arm(values, x, study.measure)
    fitted = base.transform_regression('x', 'y', groupby=['arm'], method='log')
    points = base.mark_point(filled=True, opacity=0.6, tooltip=True)
    points = points.encode(shape=_shape(values))
    chart = alt.layer(fitted.mark_line(), points, **_SIZE)
    title = f'{axis_title(study.measure.score)} by parameters'
    return Figure('scores_over_sizes', title, chart)


def _by_arm(values: list[dict[str, Any]], x: alt.X, measure: Measure) -> alt.Chart:
    names = list(dict.fromkeys(row['arm'] for row in values))
    scale = alt.Scale(zero=False)
    title = axis_title(measure.score, measure.set)
    y = alt.Y('y:Q', title=title, scale=scale)
    chart = alt.Chart(alt.InlineData(values=values))
    return chart.encode(x=x, y=y, color=_colour('arm:N', names))


def _factor_of_sizes(sweep: Sweep) -> str | None:
    for factor, levels in sweep.factors.items():
        fields = set(chain(*levels.values()))
        if fields and fields <= SIZES:
            return factor
    return None


def _shape(values: list[dict[str, Any]]) -> alt.Shape:
    names = list(dict.fromkeys(row['arm'] for row in values))
    return alt.Shape('arm:N', scale=alt.Scale(domain=names, range=_SHAPES))


def _colour(field: str, names: Sequence[str]) -> alt.Color:
    legend = alt.Legend(
        orient='bottom', title=None, symbolType='stroke', symbolOpacity=1
    )
    scale = alt.Scale(domain=names, range=COLOURS)
    return alt.Color(field, scale=scale, legend=legend)
