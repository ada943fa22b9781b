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

from experiments.reports.display import themes
from experiments.reports.display.charts import (
    MARK,
    Chart,
    Figure,
    Heatmap,
    Heatmaps,
    Line,
    look,
    short,
)

_BAND = 0.18  # opacity
_MAP = 150  # pixels of a row of heatmaps
# Pixels: a row with a name, a column with one, a letter of a name, and what stands
# beside a map apart from names: its scale and title.
_ROW, _COLUMN, _LETTER, _BESIDE = 18, 15, 8, 130
_NO_WIDTH = '\u200b'


def library() -> str:
    """Plotly's JavaScript."""
    return get_plotlyjs()


def figure(shown: Figure, dark: bool = False) -> graph_objects.Figure:
    """The figure as Plotly has it, which a notebook shows.

    Args:
      shown: the figure.
      dark: for a dark page.
    """
    drawn = _chart(shown) if isinstance(shown, Chart) else _heatmaps(shown)
    drawn.update_layout(
        template=themes.template('dark' if dark else 'light'),
        margin={'l': 60, 'r': 12, 't': 40, 'b': 48},
        # Read by the page's script: what a map that is shown large needs.
        meta={'x': _escape(shown.x_label), 'y': _escape(shown.y_label)},
    )
    return drawn


def draw(shown: Figure) -> dict[str, Any]:
    """The `data` and `layout` of a figure, as JSON can hold them."""
    found = json.loads(str(figure(shown).to_json()))
    # The same for all: the page has it once.
    found['layout'].pop('template')
    return found


def least_width(figure: Figure) -> int:
    """Pixels that a figure needs for its names; a narrower screen scrolls."""
    if isinstance(figure, Chart):
        return 0
    columns = max(map(len, figure.maps))
    if figure.one_at_a_time:
        return _BESIDE + 110 * columns
    maps = [heatmap for row in figure.maps for heatmap in row]
    names = max(len(heatmap.columns) for heatmap in maps)
    longest = max(len(short(name)) for heatmap in maps for name in heatmap.rows)
    return _BESIDE + _LETTER * longest + columns * max(200, _COLUMN * names)


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
            _add_map(drawn, figure, heatmap, (i, j))
    low, high = figure.limits()
    drawn.update_layout(
        coloraxis={'cmin': low, 'cmax': high, 'colorbar': {'thickness': 12}},
        height=_height(figure),
        showlegend=False,
        # A finger that moves over a map scrolls the page.
        dragmode=False,
    )
    drawn.update_annotations(font_size=12)
    return drawn


def _add_map(
    drawn: graph_objects.Figure,
    figure: Heatmaps,
    heatmap: Heatmap,
    place: tuple[int, int],
) -> None:
    """Adds a heatmap, with its marks, at a row and a column that count from 1."""
    row, column = place
    drawn.add_trace(_map(figure, heatmap), row, column)
    if heatmap.marks:
        drawn.add_trace(_marks(heatmap), row, column)
    hidden = figure.one_at_a_time
    is_last = row == len(figure.maps)
    drawn.update_xaxes(
        **_axis(heatmap.columns, hidden),
        title=_escape(figure.x_label) if is_last and not hidden else None,
        tickangle=-60 if figure.is_large else None,
        range=[-0.5, len(heatmap.columns) - 0.5],
        row=row,
        col=column,
    )
    drawn.update_yaxes(
        **_axis(heatmap.rows, hidden),
        title=_escape(figure.y_label) if column == 1 and not hidden else None,
        range=[len(heatmap.rows) - 0.5, -0.5],  # from the top
        row=row,
        col=column,
    )


def _height(figure: Heatmaps) -> int:
    """Pixels: a name a line where it is one heatmap."""
    if figure.is_large:
        return 220 + max(_MAP, _ROW * len(figure.maps[0][0].rows))
    return 130 + _MAP * len(figure.maps)


def _axis(names: Sequence[str], hidden: bool) -> dict[str, Any]:
    """An axis of names, of which long ones are cut."""
    return {
        'type': 'category',
        'showticklabels': not hidden,
        'showgrid': False,
        'automargin': True,
        'tickmode': 'array',
        'tickvals': _apart(names),
        'ticktext': [_escape(short(name)) for name in names],
    }


def _marks(heatmap: Heatmap) -> Any:
    """A square in the cell that is marked of each row."""
    columns = _apart(heatmap.columns)
    return graph_objects.Scatter(
        x=[columns[i] for i in heatmap.marks],
        y=_apart(heatmap.rows),
        mode='markers',
        marker={
            'symbol': 'square-open',
            'size': 11,
            'color': MARK,
            'line': {'width': 2},
        },
        hoverinfo='skip',
    )


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
