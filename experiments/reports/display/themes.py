"""The colours of figures in a browser, on a light page and on a dark one."""

import copy
import json
from typing import Any

from plotly import colors, graph_objects
from plotly import io as pio

PAPER = {'light': '#ffffff', 'dark': '#14171b'}  # the page's ground, by theme
_PLOTLYS = {'light': 'plotly_white', 'dark': 'plotly_dark'}
_SEQUENTIAL = {
    'light': colors.sequential.Blues,
    'dark': ['#1b2027', '#173a5e', '#1f5f99', '#3f8fcf', '#8cc4f0', '#e3f2fd'],
}
_DIVERGING = {
    'light': colors.diverging.RdBu[::-1],
    'dark': [
        *('#9ecbf2', '#3f8fcf', '#1d4f80', '#1b2027'),
        *('#8a3a24', '#dd6b4a', '#f8c4ae'),
    ],
}


def templates() -> dict[str, dict[str, Any]]:
    """The `template` of all layouts on a light page and on a dark one."""
    found = {}
    for theme in PAPER:
        empty = graph_objects.Figure(layout_template=template(theme))
        found[theme] = json.loads(str(empty.to_json()))['layout']['template']
    return found


def template(theme: str) -> Any:
    """Plotly's own, on the page's ground; scales of colours begin with the ground."""
    found: Any = copy.deepcopy(pio.templates[_PLOTLYS[theme]])
    found.layout.paper_bgcolor = PAPER[theme]
    found.layout.plot_bgcolor = PAPER[theme]
    found.layout.colorscale.sequential = _SEQUENTIAL[theme]
    found.layout.colorscale.diverging = _DIVERGING[theme]
    return found
