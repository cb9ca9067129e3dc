"""Additions to the theme for screen readers and keyboards.

Captions of the navigation are headings without a level, what scrolls sideways cannot be reached with the keyboard, and
the empty corner of a table is announced as a heading.
"""

from __future__ import annotations

from docutils import nodes
from sphinx.application import Sphinx

_CAPTION, _LEVEL = 'class="caption" role="heading"', 'class="caption" role="heading" aria-level="2"'
_CORNER, _CELL = '<th class="head"><p></p></th>', '<td class="head"></td>'
_SCROLLS = (
    ('<div class="highlight"><pre>', '<div class="highlight"><pre tabindex="0">'),
    ('<div class="table-wrapper', '<div tabindex="0" class="table-wrapper'),
)


def reachable(body: str) -> str:
    """Return the text of a page in which the keyboard reaches what scrolls sideways, and headings are headings."""
    for without, focusable in _SCROLLS:
        body = body.replace(without, focusable)
    return body.replace(_CAPTION, _LEVEL).replace(_CORNER, _CELL)


def _on_page(app: Sphinx, name: str, template: str, context: dict[str, object], tree: nodes.document | None) -> None:
    for part in ("body", "furo_navigation_tree"):
        text = context.get(part)
        if isinstance(text, str):
            context[part] = reachable(text)


def setup(app: Sphinx) -> dict[str, bool]:
    """Tell Sphinx what to call."""
    app.connect("html-page-context", _on_page, priority=900)  # after the theme has made the navigation
    return {"parallel_read_safe": True, "parallel_write_safe": True}
