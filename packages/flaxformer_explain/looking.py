"""Attention weights of a trained run while it writes a translation.

Charts are Vega-Altair objects, which a notebook displays.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import altair as alt
import numpy as np

from experiments.evaluation.opened_run import OpenedRun
from experiments.reports.figures import label_expression

CROSS = 'decoder cross'
# In the order in which a text passes through the model.
KINDS = {
    'encoder': 'encoder self-attention',
    'decoder': 'decoder self-attention',
    CROSS: 'cross-attention',
}
_TITLES = 'query', 'key'
_END = '</s>'
_OVERVIEW_SIZE = 90  # pixels of a head in the overview
_CELL = 18  # pixels of a labelled cell


class Attended(NamedTuple):
    """The attention weights for one sentence.

    Attributes:
      queries, keys: Tokens: in the decoder, those that it writes and has read.
      layers: The weights of each layer, HTS.
    """

    queries: list[str]
    keys: list[str]
    layers: list[np.ndarray]


def attended(run: OpenedRun, source: str, target: str) -> dict[str, Attended]:
    """Returns the weights while the decoder writes `target`, by kind of attention.

    Leaves out attention that doesn't store its weights, such as blockwise attention.
    """
    pairs = [(source, target)]
    batch = run.batch(pairs)
    source_ids = batch['source'][0].tolist()
    target_ids = batch['inputs'][0].tolist()
    of_source, of_target = run.tokenizer.sides
    read = of_source.pieces(source_ids)
    target_pieces = of_target.pieces(target_ids)
    written = [*target_pieces[1:], _END]
    found = {}
    for kind, layers in run.record(pairs, names=()).weights.items():
        queries, keys = (read, read) if kind == 'encoder' else (written, target_pieces)
        if layers[0].shape[2] == len(read) + len(target_pieces):
            # One stack reads both source and target.
            queries, keys = [*read, *written], [*read, *target_pieces]
        if kind == CROSS:
            keys = read
        weights = [np.asarray(layer[0]) for layer in layers]
        found[kind] = Attended(queries, keys, weights)
    return found


def attention(run: OpenedRun, source: str, target: str) -> dict[str, alt.TopLevelMixin]:
    """Draws `attended` for all layers and heads, by kind of attention (`KINDS`)."""
    seen = attended(run, source, target)
    charts = {}
    for kind, title in KINDS.items():
        if kind in seen:
            charts[title] = head_maps(seen[kind])
    return charts


def alignment(run: OpenedRun, source: str, target: str) -> dict[str, alt.TopLevelMixin]:
    """Draws the mean weights over heads, from translation to source.

    Returns:
      The charts 'mean of all layers', if there are several, 'layer 0', …. Empty without
      cross-attention that stores its weights.
    """
    seen = attended(run, source, target).get(CROSS)
    if seen is None:
        return {}
    layers = [weights_HTS.mean(0) for weights_HTS in seen.layers]
    maps = {f'layer {i}': weights_TS for i, weights_TS in enumerate(layers)}
    if len(layers) > 1:
        maps = {'mean of all layers': np.mean(layers, 0), **maps}
    charts = {}
    for name, weights_TS in maps.items():
        charts[name] = weights_map(weights_TS, seen.queries, seen.keys)
    return charts


def head_maps(seen: Attended) -> alt.TopLevelMixin:
    """Draws a row of heads for each layer, with the clicked head enlarged below."""
    values = [
        {'layer': layer, 'head': head, **cell}
        for layer, heads_HTS in enumerate(seen.layers)
        for head, weights_TS in enumerate(heads_HTS)
        for cell in _cells(weights_TS, seen.queries, seen.keys)
    ]
    first: Any = [{'layer': 0, 'head': 0}]
    selection = alt.selection_point(
        'picked', fields=['layer', 'head'], value=first, toggle=False
    )
    chart = _chart(values)
    small = chart.encode(x=alt.X('key:O', axis=None), y=alt.Y('query:O', axis=None))
    small = small.properties(width=_OVERVIEW_SIZE, height=_OVERVIEW_SIZE).add_params(
        selection
    )
    grid = small.facet(row='layer:O', column='head:O', spacing=10)
    large = _large(chart.transform_filter(selection), seen.queries, seen.keys)
    return alt.vconcat(grid, large)


def head_scores(scores: Mapping[str, np.ndarray], title: str) -> alt.TopLevelMixin:
    """Draws a score of each head, such as its importance, as a heatmap.

    Args:
      scores: Scores of each attention, [layers, heads].
      title: The legend's, with the unit.
    """
    values = []
    for kind, scores_LH in scores.items():
        for (layer, head), score in np.ndenumerate(scores_LH):
            cell = {'attention': kind, 'layer': layer, 'head': head}
            values.append(cell | {'score': float(score)})
    most = max(cell['score'] for cell in values)
    base = alt.Chart(alt.InlineData(values=values)).encode(
        x=alt.X('head:O', axis=alt.Axis(labelAngle=0)), y='layer:O'
    )
    colour = alt.Color(
        'score:Q',
        title=title,
        scale=alt.Scale(scheme='blues'),
        legend=alt.Legend(format='.2f'),
    )
    is_dark = f'datum.score > {most / 2}'
    ink = alt.condition(is_dark, alt.value('white'), alt.value('black'))
    texts = alt.Text('score:Q', format='.2f')
    cells = base.mark_rect().encode(color=colour)
    size = alt.Step(40)
    chart = alt.layer(cells, base.mark_text().encode(text=texts, color=ink))
    chart = chart.properties(width=size, height=size)
    columns = alt.Column('attention:N', title=None, sort=list(scores))
    return chart.facet(column=columns)


def weights_map(
    weights_TS: np.ndarray,
    queries: Sequence[str],
    keys: Sequence[str],
    titles: tuple[str, str] = _TITLES,
) -> alt.TopLevelMixin:
    """Draws weights, from 0 to 1, with labelled rows and columns.

    Args:
      titles: Names of a row and of a column.
    """
    chart = _chart(_cells(weights_TS, queries, keys), titles)
    return _large(chart, queries, keys, titles)


def _cells(
    weights_TS: np.ndarray, queries: Sequence[str], keys: Sequence[str]
) -> list[dict[str, Any]]:
    cells = []
    for (i, j), weight in np.ndenumerate(weights_TS):
        cell = {'query': i, 'key': j, 'from': queries[i], 'to': keys[j]}
        cells.append(cell | {'weight': round(float(weight), 3)})
    return cells


def _chart(cells: list[dict[str, Any]], titles: tuple[str, str] = _TITLES) -> alt.Chart:
    scale = alt.Scale(domain=[0, 1])
    colour = alt.Color('weight:Q', title='weight', scale=scale)
    chart = alt.Chart(alt.InlineData(values=cells)).mark_rect()
    tokens = [
        alt.Tooltip(field, title=title)
        for field, title in zip(('from:N', 'to:N'), titles, strict=True)
    ]
    return chart.encode(color=colour, tooltip=[*tokens, 'weight:Q'])


def _large(
    chart: alt.Chart,
    queries: Sequence[str],
    keys: Sequence[str],
    titles: tuple[str, str] = _TITLES,
) -> alt.Chart:
    rows = alt.Axis(labelExpr=label_expression(queries))
    columns = alt.Axis(labelExpr=label_expression(keys), labelAngle=-60)
    named = chart.encode(
        x=alt.X('key:O', title=titles[1], axis=columns),
        y=alt.Y('query:O', title=titles[0], axis=rows),
    )
    return named.properties(width=alt.Step(_CELL), height=alt.Step(_CELL))
