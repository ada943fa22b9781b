"""Figures for a paper, drawn by matplotlib: SVG and PDF of one column's width."""

import io
import math
from collections.abc import Sequence
from typing import Any

import matplotlib
from matplotlib import ticker
from matplotlib.figure import Figure as Canvas

from experiments.reports.display.charts import (
    MARK,
    Chart,
    Figure,
    Heatmap,
    Heatmaps,
    look,
    short,
)

WIDTH = 3.4  # inches: a column of a paper
_HEIGHT = 2.3
_NAMES = 1.0  # inches of the names below a map
_LEGEND_INSIDE = 6  # lines; more have their legend beside the axes
_MOST_NAMES = 40  # of a heatmap's rows or columns, to be legible
_DASHES = {'solid': 'solid', 'dash': 'dashed', 'dot': 'dotted'}
_MARKERS = 'os^Dvphx'
# Text stays text, which an editor of the figure can change; equal data give equal
# bytes.
_STYLE: dict[Any, Any] = {
    'font.size': 7,
    'axes.spines.top': False,
    'axes.spines.right': False,
    'axes.linewidth': 0.6,
    'lines.linewidth': 1.0,
    'lines.markersize': 3.5,
    'legend.frameon': False,
    'legend.fontsize': 6,
    'pdf.fonttype': 42,
    'svg.fonttype': 'none',
    'svg.hashsalt': 'flaxformer_lite',
    'text.parse_math': False,
}


def draw(figure: Figure) -> dict[str, bytes]:
    """The files of a figure, by their ending: 'svg' and 'pdf'."""
    drawn = {}
    with matplotlib.rc_context(_STYLE):
        canvas = _chart(figure) if isinstance(figure, Chart) else _heatmaps(figure)
        for form, date in (('svg', 'Date'), ('pdf', 'CreationDate')):
            data = io.BytesIO()
            canvas.savefig(data, format=form, metadata={date: None})
            # Both have one layout, which takes longer to find than to draw.
            canvas.set_layout_engine('none')
            drawn[form] = data.getvalue()
    return drawn


def _chart(chart: Chart) -> Canvas:
    has_wide_legend = len(chart.lines) > _LEGEND_INSIDE
    width = WIDTH * (1.6 if has_wide_legend else 1)
    canvas = Canvas(figsize=(width, _HEIGHT), layout='constrained')
    axes = canvas.add_subplot()
    for i, line in enumerate(chart.lines):
        _draw_line(axes, chart, line, i)
    axes.set_xlabel(chart.x_label)
    axes.set_ylabel(chart.y_label)
    if chart.log_x:
        axes.set_xscale('log')
    elif not isinstance(chart.lines[0].x[0], str):
        axes.xaxis.set_major_formatter(ticker.EngFormatter(sep=''))
    if has_wide_legend:
        canvas.legend(loc='outside right center')
    elif len(chart.lines) > 1:
        axes.legend()
    return canvas


def _draw_line(axes: Any, chart: Chart, line: Any, i: int) -> None:
    colour, dash = look(i)
    common: dict[str, Any] = {'color': colour, 'label': line.name}
    if chart.style == 'band':
        axes.plot(line.x, line.y, linestyle=_DASHES[dash], **common)
        if line.low:
            axes.fill_between(
                line.x, line.low, line.high, color=colour, alpha=0.2, lw=0
            )
        return
    if line.low:
        below = [y - low for y, low in zip(line.y, line.low, strict=True)]
        above = [high - y for y, high in zip(line.y, line.high, strict=True)]
        common |= {'yerr': [below, above], 'capsize': 2}
    joined = _DASHES[dash] if chart.style == 'bars' else 'none'
    marker = _MARKERS[i % len(_MARKERS)]
    axes.errorbar(line.x, line.y, linestyle=joined, marker=marker, **common)


def _heatmaps(figure: Heatmaps) -> Canvas:
    rows = len(figure.maps)
    columns = max(map(len, figure.maps))
    tallest = max(len(maps[0].rows) / len(maps[0].columns) for maps in figure.maps)
    width = max(WIDTH, min(7.0, 1.8 * columns))
    height = min(9.0, rows * (width / columns * min(tallest, 2.0) + 0.3))
    if figure.is_large:
        height += _NAMES
    canvas = Canvas(figsize=(width, height), layout='constrained')
    grid = canvas.subplots(rows, columns, squeeze=False)
    images = []
    for i, maps in enumerate(figure.maps):
        for j, heatmap in enumerate(maps):
            images.append(_draw_map(grid[i][j], figure, heatmap))
            if figure.one_at_a_time and j:
                grid[i][j].set_yticks([])
            if figure.one_at_a_time and i + 1 < rows:
                grid[i][j].set_xticks([])
    canvas.supxlabel(figure.x_label)
    canvas.supylabel(figure.y_label)
    canvas.colorbar(images[0], ax=grid, shrink=0.6, pad=0.02)
    return canvas


def _draw_map(axes: Any, figure: Heatmaps, heatmap: Heatmap) -> Any:
    low, high = figure.limits()
    colours = 'RdBu_r' if figure.diverging else 'Blues'
    values = [[math.nan if x is None else x for x in row] for row in heatmap.values]
    image = axes.imshow(values, cmap=colours, vmin=low, vmax=high, aspect='auto')
    if heatmap.marks:
        places = range(len(heatmap.marks))
        axes.plot(heatmap.marks, places, 's', mfc='none', mec=MARK, markersize=4)
    axes.set_title(heatmap.title, fontsize=6, pad=2)
    axes.set_xticks(*_ticks(heatmap.columns), rotation=90)
    axes.set_yticks(*_ticks(heatmap.rows))
    axes.tick_params(length=0, labelsize=4 if figure.one_at_a_time else 6)
    return image


def _ticks(names: Sequence[str]) -> tuple[list[int], list[str]]:
    """Places and names; every second or third name where they are many."""
    step = math.ceil(len(names) / _MOST_NAMES)
    places = list(range(0, len(names), step))
    return places, [short(names[i]) for i in places]
