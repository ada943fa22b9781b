"""What the heads of a trained run attend to while it writes a translation.

    import experiments
    from experiments.reports import looking

    run = experiments.open_run('runs/wmt_small')
    text = 'My doctor forgets to close my useful box.'
    (translation,) = run.translate([text])
    looking.attention(run, text, translation)['attention to the source']
    looking.alignment(run, text, translation)['mean of all layers'].save('map.svg')

Each is a chart of Vega-Altair, which a notebook shows. Texts go into charts as strings
of Vega's expressions, never as markup.
"""

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

import altair as alt
import numpy as np

from experiments.evaluation.opened_run import OpenedRun, pairs_batch

CROSS = 'decoder cross'
# The encoder's attention first, as a text goes through the model.
KINDS = {
    'encoder': 'encoder self-attention',
    'decoder': 'decoder self-attention',
    CROSS: 'attention to the source',
}
_END = '</s>'
_SMALL = 90  # pixels of a head among others
_CELL = 18  # pixels of a cell with a name beside it


class Attended(NamedTuple):
    """The weights of an attention for one sentence.

    Attributes:
      queries, keys: the pieces on the axes. A query of the decoder is the piece that it
        writes; its keys are the pieces that it has read.
      layers: of each layer, HTS.
    """

    queries: list[str]
    keys: list[str]
    layers: list[np.ndarray]


def attended(run: OpenedRun, source: str, target: str) -> dict[str, Attended]:
    """The weights with which the decoder writes `target`, by attention as in `KINDS`.

    An attention that does not hold its weights, such as the blockwise one, is left out.
    """
    batch = pairs_batch(run.tokenizer, [(source, target)])
    source_ids = batch['source'][0].tolist()
    target_ids = batch['inputs'][0].tolist()
    of_source, of_target = run.tokenizer.sides
    read = of_source.pieces(source_ids)
    fed = of_target.pieces(target_ids)
    written = [*fed[1:], _END]
    found = {}
    for kind, layers in run.record(source, target).weights.items():
        queries, keys = (read, read) if kind == 'encoder' else (written, fed)
        if layers[0].shape[2] == len(read) + len(fed):
            queries, keys = [*read, *written], [*read, *fed]  # one stack reads both
        if kind == CROSS:
            keys = read
        weights = [np.asarray(layer[0]) for layer in layers]
        found[kind] = Attended(queries, keys, weights)
    return found


def attention(run: OpenedRun, source: str, target: str) -> dict[str, alt.TopLevelMixin]:
    """The weights of all layers and heads while the decoder writes `target`.

    Returns:
      a chart for each attention, by its name in words.
    """
    seen = attended(run, source, target)
    charts = {}
    for kind, title in KINDS.items():
        if kind in seen:
            charts[title] = head_maps(seen[kind])
    return charts


def alignment(run: OpenedRun, source: str, target: str) -> dict[str, alt.TopLevelMixin]:
    """Source × translation: of each layer the mean weights of all heads.

    A row is a piece that is written, at the step that writes it. Where layers differ in
    their numbers of heads, each counts as much as another in the mean of all layers.

    Returns:
      'mean of all layers', of several, and 'layer 0', … → the chart; nothing where the
      model has no attention to the source that holds its weights.
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
    """A row for each layer, and below, large, the head that is clicked."""
    values = [
        {'layer': layer, 'head': head, **cell}
        for layer, heads_HTS in enumerate(seen.layers)
        for head, weights_TS in enumerate(heads_HTS)
        for cell in _cells(weights_TS, seen.queries, seen.keys)
    ]
    first: Any = [{'layer': 0, 'head': 0}]
    picked = alt.selection_point(
        'picked', fields=['layer', 'head'], value=first, toggle=False
    )
    chart = _chart(values)
    small = chart.encode(x=alt.X('key:O', axis=None), y=alt.Y('query:O', axis=None))
    small = small.properties(width=_SMALL, height=_SMALL).add_params(picked)
    grid = small.facet(row='layer:O', column='head:O', spacing=10)
    large = _large(chart.transform_filter(picked), seen.queries, seen.keys)
    return alt.vconcat(grid, large)


def weights_map(
    weights_TS: np.ndarray, queries: Sequence[str], keys: Sequence[str]
) -> alt.TopLevelMixin:
    """Weights, from 0 to 1, under the names of rows and columns."""
    return _large(_chart(_cells(weights_TS, queries, keys)), queries, keys)


def _cells(
    weights_TS: np.ndarray, queries: Sequence[str], keys: Sequence[str]
) -> list[dict[str, Any]]:
    """Each weight with its place and names; equal names on an axis stay apart."""
    cells = []
    for (i, j), weight in np.ndenumerate(weights_TS):
        cell = {'query': i, 'key': j, 'from': queries[i], 'to': keys[j]}
        cells.append(cell | {'weight': round(float(weight), 3)})
    return cells


def _chart(cells: list[dict[str, Any]]) -> alt.Chart:
    scale = alt.Scale(domain=[0, 1])
    colour = alt.Color('weight:Q', title=None, scale=scale)
    chart = alt.Chart(alt.InlineData(values=cells)).mark_rect()
    return chart.encode(color=colour, tooltip=['from:N', 'to:N', 'weight:Q'])


def _large(chart: alt.Chart, queries: Sequence[str], keys: Sequence[str]) -> alt.Chart:
    """Cells under the names of their rows and columns."""
    rows = alt.Axis(labelExpr=_text_of(queries))
    columns = alt.Axis(labelExpr=_text_of(keys), labelAngle=-60)
    named = chart.encode(
        x=alt.X('key:O', title='to', axis=columns),
        y=alt.Y('query:O', title='from', axis=rows),
    )
    return named.properties(width=alt.Step(_CELL), height=alt.Step(_CELL))


def _text_of(names: Sequence[str]) -> str:
    """A cell's name as an expression of Vega's, in which no name is code."""
    texts = json.dumps(list(names), ensure_ascii=False)
    return f'{texts}[datum.value]'
