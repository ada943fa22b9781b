"""Figures for a browser: what Plotly's JavaScript draws, as data and layout.

Plotly reads tags and entities in its texts, so every text is escaped here.
"""

import html
import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

from plotly import graph_objects
from plotly.offline import get_plotlyjs
from plotly.subplots import make_subplots

from experiments.reports.display.charts import (
    Chart,
    Figure,
    Heatmap,
    Heatmaps,
    Line,
    look,
)

_BAND = 0.18  # opacity
_MAP = 150  # pixels of a row of heatmaps
_NO_WIDTH = '\u200b'


def library() -> str:
    """Plotly's JavaScript."""
    return get_plotlyjs()


def draw(figure: Figure) -> dict[str, Any]:
    """The `data` and `layout` of a figure, as JSON can hold them."""
    drawn = _chart(figure) if isinstance(figure, Chart) else _heatmaps(figure)
    drawn.update_layout(margin={'l': 60, 'r': 12, 't': 40, 'b': 48})
    found = json.loads(str(drawn.to_json()))
    # The same for all: the page has it once.
    found['layout'].pop('template')
    return found


def template() -> dict[str, Any]:
    """The `template` of all layouts."""
    empty = graph_objects.Figure(layout_template='plotly_white')
    return json.loads(str(empty.to_json()))['layout']['template']


def _escape(text: str) -> str:
    """The text as Plotly shows it; of entities it does not know &quot;."""
    return html.escape(text, quote=False)


def _chart(chart: Chart) -> graph_objects.Figure:
    drawn = graph_objects.Figure()
    for i, line in enumerate(chart.lines):
        colour, dash = look(i)
        if chart.style == 'band' and line.low:
            drawn.add_trace(_band(line, colour))
        drawn.add_trace(_line(chart, line, colour, dash))
    drawn.update_layout(
        title={'text': _escape(chart.title), 'font_size': 14, 'x': 0.01},
        legend={'orientation': 'h', 'y': -0.2, 'yanchor': 'top', 'font_size': 11},
        height=380,
        hovermode='closest' if chart.style == 'points' else 'x unified',
        # The next logged step is told, however far it is from the pointer.
        hoverdistance=-1,
    )
    kind = 'log' if chart.log_x else None
    drawn.update_xaxes(title=_escape(chart.x_label), type=kind)
    drawn.update_yaxes(title=_escape(chart.y_label))
    return drawn


def _line(chart: Chart, line: Line, colour: str, dash: str) -> Any:
    bars = None
    if chart.style != 'band' and line.low:
        below = [y - low for y, low in zip(line.y, line.low, strict=True)]
        above = [high - y for y, high in zip(line.y, line.high, strict=True)]
        bars = {'type': 'data', 'symmetric': False}
        bars |= {'array': above, 'arrayminus': below}
    mode = {'band': 'lines', 'bars': 'lines+markers', 'points': 'markers'}
    return graph_objects.Scatter(
        name=_escape(line.name),
        x=list(line.x),
        y=list(line.y),
        error_y=bars,
        mode=mode[chart.style],
        legendgroup=_escape(line.name),
        line={'color': colour, 'dash': dash, 'width': 2},
        marker={'size': 9},
    )


def _band(line: Line, colour: str) -> Any:
    """The area between the least and the most, as one closed path."""
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return graph_objects.Scatter(
        x=[*line.x, *reversed(line.x)],
        y=[*line.high, *reversed(line.low)],
        fill='toself',
        fillcolor=f'rgba({red},{green},{blue},{_BAND})',
        mode='none',
        hoverinfo='skip',
        showlegend=False,
        legendgroup=_escape(line.name),
    )


def _heatmaps(figure: Heatmaps) -> graph_objects.Figure:
    titles = [_escape(heatmap.title) for maps in figure.maps for heatmap in maps]
    rows = len(figure.maps)
    columns = max(map(len, figure.maps))
    drawn = make_subplots(
        rows,
        columns,
        subplot_titles=titles,
        horizontal_spacing=min(0.06, 0.3 / columns),
        vertical_spacing=min(0.16, 0.3 / rows),
    )
    for i, maps in enumerate(figure.maps, 1):
        for j, heatmap in enumerate(maps, 1):
            drawn.add_trace(_map(figure, heatmap), i, j)
    hidden = figure.one_at_a_time
    drawn.update_xaxes(type='category', showticklabels=not hidden)
    drawn.update_yaxes(type='category', autorange='reversed', showticklabels=not hidden)
    low, high = figure.limits()
    colours = 'RdBu_r' if figure.diverging else 'Blues'
    drawn.update_layout(
        coloraxis={
            'colorscale': colours,
            'cmin': low,
            'cmax': high,
            'colorbar': {'thickness': 12},
        },
        height=130 + _MAP * rows,
    )
    drawn.update_annotations(font_size=12)
    return drawn


def _map(figure: Heatmaps, heatmap: Heatmap) -> Any:
    x_label = _escape(figure.x_label)
    y_label = _escape(figure.y_label)
    return graph_objects.Heatmap(
        x=_apart(heatmap.columns),
        y=_apart(heatmap.rows),
        z=[list(row) for row in heatmap.values],
        name=_escape(heatmap.title),
        coloraxis='coloraxis',
        hovertemplate=(
            f'{y_label} <b>%{{y}}</b><br>{x_label} <b>%{{x}}</b><br>'
            '%{z:.4g}<extra></extra>'
        ),
    )


def _apart(names: Sequence[str]) -> list[str]:
    """Names of places on an axis; an equal one has signs of no width behind it.

    Plotly takes places of one name for one place.
    """
    seen: Counter[str] = Counter()
    found = []
    for name in names:
        found.append(_escape(name) + _NO_WIDTH * seen[name])
        seen[name] += 1
    return found
