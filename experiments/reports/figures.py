"""Figures as Vega-Altair's charts: for a page, a notebook and a paper.

Texts go into charts as data, or as strings of Vega's expressions, never as markup.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import altair as alt
import numpy as np
import vl_convert

# Okabe and Ito's colours, which colour-blind readers can tell apart, without the yellow
# that is too pale for a line, and with a grey for black, which no dark page shows.
COLOURS = (
    *('#0072B2', '#D55E00', '#009E73', '#CC79A7', '#56B4E9', '#E69F00'),
    '#7A7A7A',
)
_DASHES = ([1, 0], [6, 3], [2, 2])  # the next for each round of the colours
_MARK = COLOURS[1]  # of a cell
_WIDTH, _HEIGHT = 420, 260  # pixels of a chart of lines
_MAP = 90  # of a head among others
_CELL = 18  # of a cell with a name beside it
_LONGEST = 130  # pixels of a name on an axis
_MANY = 10_000  # from here on numbers on an axis are written 10k


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
        """What Vega-Lite draws, without colours of a page."""
        return {**self.chart.to_dict(), 'config': {}}


class Line(NamedTuple):
    """A line, or points, with a band or bars from `low` to `high` where these are.

    Attributes:
      name: in the legend.
      x: numbers, or names of places on the axis.
      y: as many numbers.
      low, high: as many numbers; empty for none.
    """

    name: str
    x: Sequence[float] | Sequence[str]
    y: Sequence[float]
    low: Sequence[float] = ()
    high: Sequence[float] = ()


def _theme(
    ground: str, ink: str, rule: str, heatmap: list[str], diverging: list[str]
) -> dict[str, Any]:
    """Vega-Lite's config; scales of colours begin with the ground, or part there."""
    words = {'labelColor': ink, 'titleColor': ink, 'labelLimit': _LONGEST}
    return {
        'background': ground,
        'font': 'system-ui, Helvetica, Arial, sans-serif',
        'axis': {**words, 'gridColor': rule, 'domainColor': rule, 'tickColor': rule},
        'header': words,
        'title': {'color': ink},
        'legend': {**words, 'labelLimit': 360},
        'view': {'stroke': None},
        'range': {'heatmap': heatmap, 'diverging': diverging},
    }


# Of a light page, as of a paper, and of a dark one.
THEMES = {
    'light': _theme(
        *('#ffffff', '#1b1f24', '#dde1e6'),
        ['#f7fbff', '#c6dbef', '#6baed6', '#2171b5', '#08306b'],
        ['#053061', '#4393c3', '#f7f7f7', '#d6604d', '#67001f'],
    ),
    'dark': _theme(
        *('#14171b', '#e4e7eb', '#343b44'),
        ['#1b2027', '#1f5f99', '#3f8fcf', '#8cc4f0', '#e3f2fd'],
        ['#9ecbf2', '#3f8fcf', '#1b2027', '#dd6b4a', '#f8c4ae'],
    ),
}


def files(figure: Figure) -> dict[str, bytes]:
    """The figure for a paper, by the ending of its file: 'svg' and 'pdf'."""
    # A description of each of thousands of cells makes files large.
    config = {**THEMES['light'], 'aria': False}
    svg = vl_convert.vegalite_to_svg(figure.spec(), config=config)
    return {'svg': svg.encode(), 'pdf': vl_convert.svg_to_pdf(svg)}


def line_chart(
    lines: Sequence[Line],
    x_label: str,
    y_label: str,
    style: str = 'band',
    log_x: bool = False,
) -> alt.TopLevelMixin:
    """Lines over one pair of axes.

    Args:
      lines: at least one.
      x_label, y_label: of the axes.
      style: 'band' draws lines in bands, 'bars' points joined by lines with bars, and
        'points' points that are not joined.
      log_x: whether the horizontal axis is logarithmic.
    """
    values = [_values(line) for line in lines]
    is_named = isinstance(lines[0].x[0], str)
    x_axis: dict[str, Any] = {'axis': alt.Axis(labelAngle=0), 'sort': None}
    if not is_named:
        kind = 'log' if log_x else 'linear'
        room = 0 if style == 'band' else 20
        scale = alt.Scale(type=kind, zero=False, nice=False, padding=room)
        is_long = max(x for line in values for x in line['x']) >= _MANY
        x_axis = {'scale': scale, 'axis': alt.Axis(format='~s' if is_long else '~g')}
    legend = None
    if len(lines) > 1:
        legend = alt.Legend(
            orient='bottom', columns=2, title=None, symbolType='stroke', symbolOpacity=1
        )
    shown = alt.selection_point('shown', fields=['line'], bind='legend')
    base = (
        alt.Chart(alt.InlineData(values=values))
        .transform_flatten(['x', 'y', 'low', 'high'])
        .encode(
            x=alt.X('x:O' if is_named else 'x:Q', title=x_label, **x_axis),
            y=alt.Y('y:Q', title=y_label, scale=alt.Scale(zero=False)),
            color=alt.Color('line:N', scale=_looks(lines, COLOURS, 1), legend=legend),
            opacity=_where(shown, 1, 0.1),
        )
    )
    ends = base.encode(y=alt.Y('low:Q', title=y_label), y2='high:Q')
    points = base.mark_point(filled=True, size=60, tooltip=True)
    dashes = alt.StrokeDash('line:N', scale=_looks(lines, _DASHES, len(COLOURS)))
    layers = [base.mark_line().encode(strokeDash=dashes.legend(legend)), points]
    if style == 'points':
        layers = [points]
    if style == 'band':
        # They are not seen, and answer the pointer near a line.
        unseen = base.mark_point(filled=True, size=250, tooltip=True)
        layers[-1] = unseen.encode(opacity=alt.value(0))
    if any(line.low for line in lines):
        band = ends.mark_area().encode(opacity=_where(shown, 0.2, 0.02))
        layers.insert(0, band if style == 'band' else ends.mark_rule())
    layers[-1] = layers[-1].add_params(shown)
    return alt.layer(*layers).properties(width=_WIDTH, height=_HEIGHT)


def _where(selection: alt.Parameter, there: float, elsewhere: float) -> Any:
    return alt.when(selection).then(alt.value(there)).otherwise(alt.value(elsewhere))


def _looks(lines: Sequence[Line], looks: Sequence[Any], each: int) -> alt.Scale:
    """The look of each line, by the order of lines; the next one after some lines."""
    names = [line.name for line in lines]
    numbers = range(len(names))
    return alt.Scale(
        domain=names, range=[looks[i // each % len(looks)] for i in numbers]
    )


def _values(line: Line) -> dict[str, Any]:
    """A line as one row of data, which is shorter than a row a point."""
    columns = {'x': line.x, 'y': line.y}
    columns |= {'low': line.low or line.y, 'high': line.high or line.y}
    values: dict[str, Any] = {'line': line.name}
    for name, column in columns.items():
        values[name] = [x if isinstance(x, str) else float(f'{x:.5g}') for x in column]
    return values


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
    cells = _cells(values, queries, keys).encode(color=_WEIGHT)
    told = [alt.Tooltip('layer:O'), alt.Tooltip('head:O'), *_TOLD]
    maps = cells.encode(
        x=alt.X('key:O', axis=None), y=alt.Y('query:O', axis=None), tooltip=told
    )
    maps = maps.properties(width=_MAP, height=_MAP).add_params(picked)
    grid = maps.facet(row='layer:O', column='head:O', spacing=10)
    large = cells.transform_filter(picked).encode(
        **_named_axes(queries, keys, 'from', 'to'), tooltip=told
    )
    size = alt.Step(_CELL)
    return alt.vconcat(grid, large.properties(width=size, height=size))


def marked_map(
    weights_TS: Any,
    names: tuple[Sequence[str], Sequence[str]],
    labels: tuple[str, str],
    marks_T: Sequence[int],
) -> alt.TopLevelMixin:
    """Weights under the names of rows and columns, a cell of each row marked.

    Args:
      weights_TS: rows of numbers from 0 to 1.
      names: of the rows and of the columns.
      labels: of the rows' axis and of the columns'.
      marks_T: for each row the place of a column.
    """
    cells = _cells([_rows(weights_TS)], *names).encode(**_named_axes(*names, *labels))
    marked = cells.transform_filter(f'datum.key == {list(marks_T)}[datum.query]')
    marked = marked.mark_rect(filled=False, stroke=_MARK, strokeWidth=2)
    size = alt.Step(_CELL)
    both = alt.layer(cells.encode(color=_WEIGHT, tooltip=_TOLD), marked)
    return both.properties(width=size, height=size)


_WEIGHT = alt.Color('weight:Q', title=None, scale=alt.Scale(domain=[0, 1]))
_TOLD = [
    alt.Tooltip('from:N'),
    alt.Tooltip('to:N'),
    alt.Tooltip('weight:Q', format='.3f'),
]


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
    )


def _texts(names: Sequence[str]) -> str:
    """A list of texts as Vega's expressions have it, in which none is code."""
    return json.dumps(list(names), ensure_ascii=False)


def _named_axes(
    queries: Sequence[str], keys: Sequence[str], y_label: str, x_label: str
) -> dict[str, Any]:
    rows = alt.Axis(labelExpr=f'{_texts(queries)}[datum.value]')
    columns = alt.Axis(labelExpr=f'{_texts(keys)}[datum.value]', labelAngle=-60)
    return {
        'x': alt.X('key:O', title=x_label, axis=columns),
        'y': alt.Y('query:O', title=y_label, axis=rows),
    }


def numbers_of_heads(
    grids: Mapping[str, Sequence[Sequence[float]]], diverging: bool = False
) -> alt.TopLevelMixin:
    """A number of each head by layer and head, one attention beside another.

    Args:
      grids: for each attention rows of layers.
      diverging: whether the colours part at zero; otherwise they begin there.
    """
    values = [value for grid in grids.values() for row in grid for value in row]
    largest = max(map(abs, values), default=0.0) or 1.0
    scale = alt.Scale(domain=[0, largest])
    if diverging:
        scale = alt.Scale(domain=[-largest, largest], domainMid=0)
    return alt.hconcat(*(_heads(title, grid, scale) for title, grid in grids.items()))


def _heads(title: str, grid: Sequence[Sequence[float]], scale: alt.Scale) -> alt.Chart:
    values = []
    for layer, row in enumerate(grid):
        for head, value in enumerate(row):
            values.append({'layer': layer, 'head': head, 'value': value})
    return (
        alt.Chart(alt.InlineData(values=values), title=title)
        .mark_rect()
        .encode(
            x=alt.X('head:O', axis=alt.Axis(labelAngle=0)),
            y='layer:O',
            color=alt.Color('value:Q', title=None, scale=scale),
            tooltip=['layer:O', 'head:O', alt.Tooltip('value:Q', format='.4~g')],
        )
        .properties(width=alt.Step(_CELL), height=alt.Step(_CELL))
    )
