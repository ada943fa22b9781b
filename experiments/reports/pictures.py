"""Charts of what heads attend to and what they are worth.

Texts go into charts as strings of Vega's expressions, never as markup.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt
import numpy as np

_SMALL = 90  # pixels of a head among others
_CELL = 18  # pixels of a cell with a name beside it


def head_maps(
    layers: Sequence[Any], queries: Sequence[str], keys: Sequence[str]
) -> alt.TopLevelMixin:
    """Weights of all heads, a row a layer; below them, large, the one that is clicked.

    Args:
      layers: for each layer the weights of its heads, HTS.
      queries, keys: the names of rows and columns.
    """
    values = [
        {'layer': layer, 'head': head, **_rows(weights_TS)}
        for layer, heads_HTS in enumerate(layers)
        for head, weights_TS in enumerate(heads_HTS)
    ]
    first: Any = [{'layer': 0, 'head': 0}]
    picked = alt.selection_point(
        'picked', fields=['layer', 'head'], value=first, toggle=False
    )
    cells = _cells(values, queries, keys)
    small = cells.encode(x=alt.X('key:O', axis=None), y=alt.Y('query:O', axis=None))
    small = small.properties(width=_SMALL, height=_SMALL).add_params(picked)
    grid = small.facet(row='layer:O', column='head:O', spacing=10)
    return alt.vconcat(grid, _large(cells.transform_filter(picked), queries, keys))


def weights_map(
    weights_TS: np.ndarray, queries: Sequence[str], keys: Sequence[str]
) -> alt.TopLevelMixin:
    """Weights, from 0 to 1, under the names of rows and columns."""
    return _large(_cells([_rows(weights_TS)], queries, keys), queries, keys)


def importance_map(
    grids: Mapping[str, Sequence[Sequence[float]]],
) -> alt.TopLevelMixin:
    """A number of each head, in colours that part at zero.

    Args:
      grids: for each attention rows of layers, which stand beside each other.
    """
    values = [
        {'attention': attention, 'layer': layer, 'head': head, 'value': value}
        for attention, grid in grids.items()
        for layer, heads in enumerate(grid)
        for head, value in enumerate(heads)
    ]
    largest = max(abs(row['value']) for row in values) or 1.0
    scale = alt.Scale(domain=[-largest, largest], range='diverging')
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
        .transform_calculate('weight', 'datum.weight / 1000')
        .transform_calculate('from', f'{_texts(queries)}[datum.query]')
        .transform_calculate('to', f'{_texts(keys)}[datum.key]')
        .encode(
            color=alt.Color('weight:Q', title=None, scale=alt.Scale(domain=[0, 1])),
            tooltip=['from:N', 'to:N', alt.Tooltip('weight:Q', format='.3f')],
        )
    )


def _large(cells: alt.Chart, queries: Sequence[str], keys: Sequence[str]) -> alt.Chart:
    """Cells with the names of their rows and columns."""
    rows = alt.Axis(labelExpr=f'{_texts(queries)}[datum.value]')
    columns = alt.Axis(labelExpr=f'{_texts(keys)}[datum.value]', labelAngle=-60)
    named = cells.encode(
        x=alt.X('key:O', title='to', axis=columns),
        y=alt.Y('query:O', title='from', axis=rows),
    )
    return named.properties(width=alt.Step(_CELL), height=alt.Step(_CELL))


def _texts(names: Sequence[str]) -> str:
    """A list of texts as Vega's expressions have it, in which none is code."""
    return json.dumps(list(names), ensure_ascii=False)
