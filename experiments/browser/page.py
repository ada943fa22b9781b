"""The one page that shows how translations came about, live or as a file."""

import json
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from experiments.evaluation.explainer import Explainer

_FILE = Path(__file__).with_name('page.html')
_EMPTY = '<script type="application/json" id="data">null</script>'
_INPUT = '<input type="text" id="text"'


def html(runs: 'Sequence[Explainer]', example: str = '', **more: Any) -> str:
    """The page, with what it begins with.

    Args:
      runs: that it shows.
      example: the sentence that it translates first.
      more: `beams` to choose from; or, of a page that asks no server, `answers`: what
        `Explainer.explain` has told of each sentence, and its `text`.
    """
    described = [{'name': str(x.run.path), 'switches': x.switches} for x in runs]
    # So that no sentence can end the element that it is in.
    data = json.dumps({'runs': described, **more}).replace('<', r'\u003c')
    text = _FILE.read_text('utf-8').replace(_EMPTY, _EMPTY.replace('null', data))
    return text.replace(_INPUT, f'{_INPUT} value="{escape(example)}"')
