"""Renders formulas as MathML when the site is built, so that pages need no script."""

import html
import re
from typing import Any

import latex2mathml.converter

# What pymdownx.arithmatex makes of $…$ and $$…$$.
_INLINE = re.compile(r'<span class="arithmatex">\\\((.*?)\\\)</span>', re.DOTALL)
_BLOCK = re.compile(r'<div class="arithmatex">\s*\\\[(.*?)\\\]\s*</div>', re.DOTALL)


def mathml(latex: str, display: str) -> str:
    """Returns a formula's MathML; `display` is 'inline' or 'block'."""
    return latex2mathml.converter.convert(html.unescape(latex).strip(), display=display)


def on_page_content(page_html: str, **_: Any) -> str:
    page_html = _BLOCK.sub(
        lambda found: f'<div class="formula">{mathml(found[1], "block")}</div>',
        page_html,
    )
    return _INLINE.sub(lambda found: mathml(found[1], 'inline'), page_html)
