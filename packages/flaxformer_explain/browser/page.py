"""The page that shows how translations are computed."""

import json
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flaxformer_explain.explainer import Explainer

_FILE = Path(__file__).with_name('page.html')
_EMPTY = '<script type="application/json" id="data">null</script>'
_INPUT = '<input type="text" id="text"'


def html(runs: 'Sequence[Explainer]', example: str = '', **more: Any) -> str:
    """Renders the page with its initial data, and the first sentence to translate.

    Args:
      more: `beams` to choose from; or, without a server, `answers`, the results of
        `Explainer.explain` for each sentence, and its `text`.
    """
    described = [{'name': str(x.run.path), 'switches': x.switches} for x in runs]
    # Escaped, so that a sentence can't close its element.
    data = json.dumps({'runs': described, **more}).replace('<', r'\u003c')
    text = _FILE.read_text('utf-8').replace(_EMPTY, _EMPTY.replace('null', data))
    return text.replace(_INPUT, f'{_INPUT} value="{escape(example)}"')
