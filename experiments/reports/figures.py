"""Figures of a report as Vega-Altair's charts: for its page and for a paper.

Texts go into charts as data, never as markup.
"""

import re
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any, NamedTuple

import altair as alt
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
_WIDTH = 420  # pixels
_HEIGHT = 260

_WORDS = {'labelColor': '#1b1f24', 'titleColor': '#1b1f24', 'labelLimit': 130}
_RULE = '#dde1e6'
# Vega-Lite's config; the scale of colours begins with the ground.
THEME = {
    'background': '#ffffff',
    'font': 'system-ui, Helvetica, Arial, sans-serif',
    'axis': {**_WORDS, 'gridColor': _RULE, 'domainColor': _RULE, 'tickColor': _RULE},
    'header': _WORDS,
    'legend': {**_WORDS, 'labelLimit': 360},
    'view': {'stroke': None},
    'range': {'heatmap': ['#f7fbff', '#c6dbef', '#6baed6', '#2171b5', '#08306b']},
}

# What curves can be drawn against: an entry of rows → the title of the axis.
AXES = {
    'step': 'steps',
    'tokens': 'target tokens',
    'seconds': 'seconds of training',
}


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


def files(figure: Figure) -> dict[str, bytes]:
    """The figure for a paper, by the ending of its file: 'svg' and 'pdf'."""
    # A description of each of thousands of cells makes files large.
    config = {**THEME, 'aria': False}
    svg = vl_convert.vegalite_to_svg(figure.spec(), config=config)
    return {'svg': svg.encode(), 'pdf': vl_convert.svg_to_pdf(svg)}


def line_chart(
    points: Sequence[Mapping[str, Any]],
    x_label: str,
    y_label: str,
    logarithmic: bool = False,
) -> alt.TopLevelMixin:
    """Lines in bands over one pair of axes.

    Args:
      points: at least one: `x`, `y`, the `low` and `high` of the band, and the name of
        the `line`. Each line has a colour and dashes of its own, as far as they go.
      x_label, y_label: titles of the axes.
      logarithmic: of x, which is above 0 then.
    """
    names = list(dict.fromkeys(point['line'] for point in points))
    if logarithmic:
        axis = alt.Axis(format='.1~e')
        x_scale = alt.Scale(type='log', nice=False)
    else:
        axis = alt.Axis(format='~s')
        x_scale = alt.Scale(zero=False, nice=False)
    legend = alt.Legend(
        orient='bottom', columns=2, title=None, symbolType='stroke', symbolOpacity=1
    )
    colours = alt.Scale(domain=names, range=COLOURS)
    base = alt.Chart(alt.InlineData(values=list(points))).encode(
        x=alt.X('x:Q', title=x_label, scale=x_scale, axis=axis),
        y=alt.Y('y:Q', title=y_label, scale=alt.Scale(zero=False)),
        color=alt.Color('line:N', scale=colours, legend=legend),
    )
    low = alt.Y('low:Q', title=y_label)
    bands = base.mark_area(opacity=0.2).encode(y=low, y2='high:Q')
    dashes = alt.Scale(domain=names, range=_DASHES)
    lines = base.mark_line().encode(strokeDash=alt.StrokeDash('line:N', scale=dashes))
    # Points that are not seen answer the pointer near a line.
    pointed_at = base.mark_point(size=250, opacity=0, tooltip=True)
    chart = alt.layer(bands, lines, pointed_at)
    return chart.properties(width=_WIDTH, height=_HEIGHT)


def curves(study: Study, against: str = 'step') -> list[Figure]:
    """The curves of training, without empty ones.

    Args:
      study: whose runs are drawn.
      against: one of `AXES`.

    Returns:
      loss, rate and gradient norm, what decides on the dev set, and what losses report.
    """
    metric = study.metrics[0]
    runs = [run for arm in study.arms for run in arm.runs]
    reported = sorted({y for run in runs for row in run.rows for y in row})
    # Title, kind of the rows, and which of their entries.
    drawn = [
        ('Training loss', 'train', 'loss'),
        ('Loss of the dev set', 'eval', 'loss'),
        ('Learning rate', 'train', 'learning_rate'),
        ('Gradient norm', 'train', 'gradient_norm'),
        (f'{metric} of the dev set', 'eval', metric),
        *((f'Training: {y}', 'train', y) for y in reported if y.startswith('loss/')),
    ]
    figures = []
    for title, kind, y in drawn:
        points = _curve(study, kind, against, y)
        if points:
            name = re.sub(r'\W+', '_', f'dev_{y}' if kind == 'eval' else y)
            chart = line_chart(points, AXES[against], y.replace('_', ' '))
            figures.append(Figure(name, title, chart))
    return figures


def _curve(study: Study, kind: str, x: str, y: str) -> list[dict[str, Any]]:
    """A line with its band for each arm, and one for each run that did not finish.

    Args:
      study: whose runs are drawn.
      kind: of the rows of metrics, 'train' or 'eval'.
      x, y: the entries of a row that are drawn.
    """
    lines = {}
    for arm in study.arms:
        lines[arm.name] = arm.scored
        for run in arm.runs:
            if not run.finished:
                lines[f'{arm.name}, seed {run.seed} ({run.status})'] = [run]
    points = []
    for name, runs in lines.items():
        by_step = [_rows(run, kind, x, y) for run in runs]
        for step in by_step[0] if by_step else ():
            rows = [of_run[step] for of_run in by_step if step in of_run]
            if len(rows) == len(runs):
                points.append({'line': name, **_mean_point(rows, x, y)})
    return points


def _rows(run: Run, kind: str, x: str, y: str) -> dict[int, dict[str, Any]]:
    """The rows of a kind that have both x and y, by their steps."""
    rows = run.dev_rows() if kind == 'eval' else run.rows
    return {
        row['step']: row
        for row in rows
        if row['kind'] == kind and None not in (row.get(x), row.get(y))
    }


def _mean_point(rows: Sequence[Mapping[str, Any]], x: str, y: str) -> dict[str, float]:
    """The mean over seeds, between the least and the most."""
    ys = [row[y] for row in rows]
    mean_x = fmean(row[x] for row in rows)
    return {'x': mean_x, 'y': fmean(ys), 'low': min(ys), 'high': max(ys)}


def forest(contrasts: Sequence[Contrast], measure: str) -> Figure | None:
    """Differences with their intervals, a row each, in this order.

    Returns:
      None where none has an interval.
    """
    shown = [contrast for contrast in contrasts if contrast.low is not None]
    if not shown:
        return None
    x_label = f'{measure}, difference'
    names = [f'{contrast.arm} − {contrast.base}' for contrast in shown]
    if len({contrast.base for contrast in shown}) == 1:
        x_label = f'{x_label} from {shown[0].base}'
        names = [contrast.arm for contrast in shown]
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
        x=alt.X('low:Q', title=x_label), x2='high:Q'
    )
    points = base.mark_point(filled=True, size=60, opacity=1, tooltip=True)
    zero = alt.Chart(alt.InlineData(values=[{'x': 0}])).mark_rule(strokeDash=[2, 2])
    layers = alt.layer(zero.encode(x='x:Q'), bars, points.encode(x='effect:Q'))
    chart = layers.properties(width=_WIDTH, height=alt.Step(22))
    note = 'Bars: the intervals of the table, which hold together in 95 of 100 cases.'
    return Figure('differences', 'Differences', chart, note)
