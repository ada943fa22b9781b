"""Figures as Vega-Altair's charts: for a page, a notebook and a paper.

Texts go into charts as data, or as strings of Vega's expressions, never as markup.
"""

import json
import re
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any, NamedTuple

import altair as alt
import numpy as np
import vl_convert

from experiments.reports.analysis import Contrast
from experiments.reports.arms import Study
from experiments.runs.reading import Run

# Okabe and Ito's colours, which colour-blind readers can tell apart, without the yellow
# that is too pale for a line, and with a grey for black.
COLOURS = [
    '#0072B2',
    '#D55E00',
    '#009E73',
    '#CC79A7',
    '#56B4E9',
    '#E69F00',
    '#7A7A7A',
]
# The next for each round of the colours.
_DASHES = [dash for dash in ([1, 0], [6, 3], [2, 2]) for _ in COLOURS]
_MARK = COLOURS[1]  # of a cell
_SIZE = {'width': 420, 'height': 260}  # pixels of a chart of lines
_COLUMNS: list[Any] = ['x', 'y', 'low', 'high']  # of a line
_MAP = 90  # of a head among others
_CELL = 18  # of a cell with a name beside it


class Figure(NamedTuple):
    """A chart under its names.

    Attributes:
      name: of its files.
      title: what stands above it.
      chart: what is drawn.
      note: what stands below it.
    """

    name: str
    title: str
    chart: alt.TopLevelMixin
    note: str = ''

    def spec(self) -> dict[str, Any]:
        """What Vega-Lite draws, without the theme."""
        return {**self.chart.to_dict(), 'config': {}}


class Line(NamedTuple):
    """A line in a band, or points with bars, from `low` to `high`.

    Attributes:
      name: in the legend.
      x, y, low, high: as many numbers each.
    """

    name: str
    x: list[float]
    y: list[float]
    low: list[float]
    high: list[float]


_WORDS = {'labelColor': '#1b1f24', 'titleColor': '#1b1f24', 'labelLimit': 130}
_RULE = '#dde1e6'
# Vega-Lite's config; scales of colours begin with the ground, or part there.
THEME = {
    'background': '#ffffff',
    'font': 'system-ui, Helvetica, Arial, sans-serif',
    'axis': {**_WORDS, 'gridColor': _RULE, 'domainColor': _RULE, 'tickColor': _RULE},
    'header': _WORDS,
    'legend': {**_WORDS, 'labelLimit': 360},
    'view': {'stroke': None},
    'range': {
        'heatmap': ['#f7fbff', '#c6dbef', '#6baed6', '#2171b5', '#08306b'],
        'diverging': ['#053061', '#4393c3', '#f7f7f7', '#d6604d', '#67001f'],
    },
}


def files(figure: Figure) -> dict[str, bytes]:
    """The figure for a paper, by the ending of its file: 'svg' and 'pdf'."""
    # A description of each of thousands of cells makes files large.
    config = {**THEME, 'aria': False}
    svg = vl_convert.vegalite_to_svg(figure.spec(), config=config)
    return {'svg': svg.encode(), 'pdf': vl_convert.svg_to_pdf(svg)}


def line_chart(
    lines: Sequence[Line], x_label: str, y_label: str, logarithmic: bool = False
) -> alt.TopLevelMixin:
    """Lines in bands over one pair of axes.

    Args:
      lines: at least one; each has a colour and dashes of its own, as far as they go.
      x_label, y_label: titles of the axes.
      logarithmic: of x, which is above 0 then.
    """
    base = _plane(lines, x_label, y_label, padding=0)
    if logarithmic:
        axis = alt.Axis(format='.1~e')
        scale = alt.Scale(type='log', nice=False)
        base = base.encode(x=alt.X('x:Q', title=x_label, scale=scale, axis=axis))
    low = alt.Y('low:Q', title=y_label)
    bands = base.mark_area(opacity=0.2).encode(y=low, y2='high:Q')
    names = [line.name for line in lines]
    dash = alt.StrokeDash('line:N', scale=alt.Scale(domain=names, range=_DASHES))
    drawn = base.mark_line().encode(strokeDash=dash)
    # Points that are not seen answer the pointer near a line.
    points = base.mark_point(size=250, opacity=0, tooltip=True)
    return alt.layer(bands, drawn, points).properties(**_SIZE)


def point_chart(lines: Sequence[Line], x_label: str, y_label: str) -> alt.TopLevelMixin:
    """Points with bars over one pair of axes.

    Args:
      lines: at least one, of one point or of several that no line joins.
      x_label, y_label: titles of the axes.
    """
    base = _plane(lines, x_label, y_label, padding=20)
    low = alt.Y('low:Q', title=y_label)
    bars = base.mark_rule().encode(y=low, y2='high:Q')
    points = base.mark_point(filled=True, size=60, tooltip=True)
    return alt.layer(bars, points).properties(**_SIZE)


def _plane(
    lines: Sequence[Line], x_label: str, y_label: str, padding: int
) -> alt.Chart:
    """Lines as data, under axes and a legend.

    A line is one row, which is shorter than a row a point.

    Args:
      lines: at least one.
      x_label, y_label: titles of the axes.
      padding: pixels between the axis and the first and the last point.
    """
    values: list[dict[str, Any]] = []
    for name, *columns in lines:
        numbers = [[float(f'{x:.5g}') for x in column] for column in columns]
        values.append({'line': name, **dict(zip(_COLUMNS, numbers, strict=True))})
    x_scale = alt.Scale(zero=False, nice=False, padding=padding)
    colours = alt.Scale(domain=[line.name for line in lines], range=COLOURS)
    legend = alt.Legend(
        orient='bottom', columns=2, title=None, symbolType='stroke', symbolOpacity=1
    )
    return (
        alt.Chart(alt.InlineData(values=values))
        .transform_flatten(_COLUMNS)
        .encode(
            x=alt.X('x:Q', title=x_label, scale=x_scale, axis=alt.Axis(format='~s')),
            y=alt.Y('y:Q', title=y_label, scale=alt.Scale(zero=False)),
            color=alt.Color('line:N', scale=colours, legend=legend),
        )
    )


def head_maps(
    layers: Sequence[Any], queries: Sequence[str], keys: Sequence[str]
) -> alt.TopLevelMixin:
    """Weights of all heads, a row a layer; below them, large, the one that is clicked.

    Args:
      layers: for each layer the weights of each head, rows of queries.
      queries, keys: the names of rows and columns.
    """
    values = []
    for layer, heads in enumerate(layers):
        for head, weights_TS in enumerate(heads):
            place = {'layer': layer, 'head': head}
            values.append(place | _rows(weights_TS))
    first: Any = [{'layer': 0, 'head': 0}]
    picked = alt.selection_point(
        'picked', fields=['layer', 'head'], value=first, toggle=False
    )
    cells = _cells(values, queries, keys)
    maps = cells.encode(x=alt.X('key:O', axis=None), y=alt.Y('query:O', axis=None))
    maps = maps.properties(width=_MAP, height=_MAP).add_params(picked)
    grid = maps.facet(row='layer:O', column='head:O', spacing=10)
    large = cells.transform_filter(picked).encode(**_named_axes(queries, keys))
    size = alt.Step(_CELL)
    return alt.vconcat(grid, large.properties(width=size, height=size))


def marked_map(
    weights_TS: np.ndarray, queries: Sequence[str], keys: Sequence[str]
) -> alt.TopLevelMixin:
    """Weights under the names of rows and columns, the largest of each row marked.

    Args:
      weights_TS: rows of numbers from 0 to 1.
      queries, keys: the names of rows and columns.
    """
    cells = _cells([_rows(weights_TS)], queries, keys)
    cells = cells.encode(**_named_axes(queries, keys))
    largest_T = weights_TS.argmax(1).tolist()
    marked = cells.transform_filter(f'datum.key == {largest_T}[datum.query]')
    marked = marked.mark_rect(filled=False, strokeWidth=2)
    marked = marked.encode(color=alt.value(_MARK))
    size = alt.Step(_CELL)
    return alt.layer(cells, marked).properties(width=size, height=size)


def _rows(weights_TS: Any) -> dict[str, Any]:
    """Weights as data, in thousandths: all that colours show, and few characters."""
    thousandths = np.rint(1000 * np.asarray(weights_TS, np.float64)).astype(int)
    return {'query': list(range(len(thousandths))), 'weight': thousandths.tolist()}


def _cells(
    values: Sequence[dict[str, Any]], queries: Sequence[str], keys: Sequence[str]
) -> alt.Chart:
    """A cell for each weight of `_rows`; equal names on an axis stay apart."""
    return (
        alt.Chart(alt.InlineData(values=list(values)))
        .mark_rect()
        .transform_flatten(['query', 'weight'])
        .transform_calculate(key=f'sequence({len(keys)})')
        .transform_flatten(['key', 'weight'])
        .transform_calculate(
            'weight',
            'datum.weight / 1000',
            **{
                'from': f'{_texts(queries)}[datum.query]',
                'to': f'{_texts(keys)}[datum.key]',
            },
        )
        .encode(
            color=alt.Color('weight:Q', title=None, scale=alt.Scale(domain=[0, 1])),
            tooltip=['from:N', 'to:N', alt.Tooltip('weight:Q', format='.3f')],
        )
    )


def _texts(names: Sequence[str]) -> str:
    """A list of texts as Vega's expressions have it, in which none is code."""
    return json.dumps(list(names), ensure_ascii=False)


def _named_axes(queries: Sequence[str], keys: Sequence[str]) -> dict[str, Any]:
    rows = alt.Axis(labelExpr=f'{_texts(queries)}[datum.value]')
    columns = alt.Axis(labelExpr=f'{_texts(keys)}[datum.value]', labelAngle=-60)
    return {
        'x': alt.X('key:O', title='to', axis=columns),
        'y': alt.Y('query:O', title='from', axis=rows),
    }


def numbers_of_heads(
    grids: Mapping[str, Sequence[Sequence[float]]], scheme: str
) -> alt.TopLevelMixin:
    """A number of each head by layer and head, one attention beside another.

    Args:
      grids: for each attention rows of layers.
      scheme: 'heatmap', or 'diverging' for colours that part at zero.
    """
    values = []
    for attention, grid in grids.items():
        for (layer, head), value in np.ndenumerate(grid):
            values.append(
                {'attention': attention, 'layer': layer, 'head': head, 'value': value}
            )
    largest = max(abs(row['value']) for row in values) or 1.0
    least = -largest if scheme == 'diverging' else 0
    scale = alt.Scale(domain=[least, largest], range=scheme)
    return (
        alt.Chart(alt.InlineData(values=values))
        .mark_rect()
        .encode(
            x=alt.X('head:O', axis=alt.Axis(labelAngle=0)),
            y='layer:O',
            color=alt.Color('value:Q', title=None, scale=scale),
            column=alt.Column('attention:N', title=None, sort=list(grids), spacing=60),
            tooltip=['layer:O', 'head:O', alt.Tooltip('value:Q', format='.4~g')],
        )
        .properties(width=alt.Step(_CELL), height=alt.Step(_CELL))
    )


# Title, label of the axis, kind of the rows and what is drawn of them; beside the
# metric that decides.
_CURVES = {
    'loss': ('Training loss', 'loss', 'train', 'loss'),
    'dev_loss': ('Loss of the dev set', 'loss', 'eval', 'loss'),
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
    """The curves of training by what is drawn and against what, without empty ones.

    Returns:
      'loss' and so on, as in `_CURVES`, 'dev_bleu' by what decides, and what losses
      report → 'steps', 'tokens' or 'time' → the figure.
    """
    metric = study.metrics[0]
    name = re.sub(r'\W+', '_', f'dev_{metric}')  # a file is called so
    found: dict[str, dict[str, Figure]] = {}
    drawn = _CURVES | {name: (f'{metric} of the dev set', metric, 'eval', metric)}
    rows = [row for arm in study.arms for run in arm.runs for row in run.rows]
    of_losses = sorted({y for row in rows for y in row if y.startswith('loss/')})
    drawn |= {y.replace('/', '_'): (f'Training: {y}', y, 'train', y) for y in of_losses}
    for name, (title, y_label, kind, y) in drawn.items():
        for axis, (x, x_label) in _AXES.items():
            lines = _lines(study, kind, x, y)
            if lines:
                chart = line_chart(lines, x_label, y_label)
                figure = Figure(f'{name}_by_{axis}', title, chart)
                found.setdefault(name, {})[axis] = figure
    return found


def _lines(study: Study, kind: str, x: str, y: str) -> list[Line]:
    """A line with its band for each arm, and one for each run that did not finish.

    Args:
      study: whose runs are drawn.
      kind: of the rows of metrics, 'train' or 'eval'.
      x, y: the entries of a row that are drawn.
    """
    lines = []
    for arm in study.arms:
        lines.append(_mean_line(arm.name, arm.scored, kind, x, y))
        for run in arm.runs:
            if not run.finished:
                name = f'{arm.name}, seed {run.seed} ({run.status})'
                lines.append(_mean_line(name, [run], kind, x, y))
    return [line for line in lines if line.x]


def _mean_line(name: str, runs: Sequence[Run], kind: str, x: str, y: str) -> Line:
    """The mean over seeds at the steps that all have, in a band from least to most.

    Args:
      name: of the line.
      runs: of the seeds; without any, and without common steps, the line is empty.
      kind, x, y: as `_lines`.
    """
    line = Line(name, [], [], [], [])
    points = [_points(run, kind, x, y) for run in runs]
    steps = points[0] if points else {}
    for step in steps:
        there = [of_run[step] for of_run in points if step in of_run]
        if len(there) < len(points):
            continue
        xs, ys = zip(*there, strict=True)
        line.x.append(fmean(xs))
        line.y.append(fmean(ys))
        line.low.append(min(ys))
        line.high.append(max(ys))
    return line


def _points(run: Run, kind: str, x: str, y: str) -> dict[int, tuple[float, float]]:
    """Step → what a row of this kind has of x and y."""
    points = {}
    rows = run.dev_rows() if kind == 'eval' else run.rows
    for row in rows:
        point = (row.get(x), row.get(y))
        if row['kind'] == kind and None not in point:
            points[row['step']] = point
    return points


def forest(contrasts: Sequence[Contrast], measure: str) -> Figure | None:
    """Differences with their intervals, a row each, in this order.

    Returns:
      None where none has an interval.
    """
    shown = [contrast for contrast in contrasts if contrast.low is not None]
    if not shown:
        return None
    bases = {contrast.base for contrast in shown}
    of_base = f'difference from {shown[0].base}' if len(bases) == 1 else 'difference'
    names = [x.arm if len(bases) == 1 else f'{x.arm} − {x.base}' for x in shown]
    values = [
        {
            'arm': name,
            'effect': contrast.effect,
            'low': contrast.low,
            'high': contrast.high,
            'verdict': 'differs' if contrast.significant else 'no difference shown',
        }
        for name, contrast in zip(names, shown, strict=True)
    ]
    verdicts = alt.Scale(
        domain=['differs', 'no difference shown'], range=[COLOURS[0], COLOURS[-1]]
    )
    legend = alt.Legend(orient='bottom', title=None, symbolType='stroke')
    base = alt.Chart(alt.InlineData(values=values)).encode(
        y=alt.Y('arm:N', sort=names, title=None, axis=alt.Axis(labelLimit=260)),
        color=alt.Color('verdict:N', scale=verdicts, legend=legend),
    )
    bars = base.mark_rule(strokeWidth=2).encode(
        alt.X('low:Q', title=f'{measure}, {of_base}'), x2='high:Q'
    )
    points = base.mark_point(filled=True, size=60, opacity=1, tooltip=True)
    zero = alt.Chart(alt.InlineData(values=[{'x': 0}])).mark_rule(strokeDash=[2, 2])
    layers = alt.layer(zero.encode(x='x:Q'), bars, points.encode(x='effect:Q'))
    chart = layers.properties(width=_SIZE['width'], height=alt.Step(22))
    note = 'Bars: the intervals of the table, which hold together in 95 of 100 cases.'
    return Figure('differences', 'Differences', chart, note)


def score_by_cost(study: Study) -> Figure | None:
    """The measure, ± a standard deviation, against FLOPs; None where none are known."""
    lines = []
    for arm in study.arms:
        cost = arm.cost('training_flops')
        spread = arm.spread(study.measure)
        if cost is not None and spread is not None:
            sd = spread.sd or 0.0
            low = spread.mean - sd
            high = spread.mean + sd
            lines.append(Line(arm.name, [cost.mean], [spread.mean], [low], [high]))
    if not lines:
        return None
    chart = point_chart(lines, 'training FLOPs', str(study.measure))
    title = f'{study.measure} against training FLOPs'
    return Figure('score_by_training_flops', title, chart)
