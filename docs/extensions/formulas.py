"""Formulas as MathML: browsers show it by themselves, without a script and without another server."""

from __future__ import annotations

import re

from docutils import nodes
from docutils.utils.math import latex2mathml
from sphinx.application import Sphinx
from sphinx.writers.html5 import HTML5Translator

_PLAIN = (
    (re.compile(r"\\[Bb]ig+[lr]?(?![a-zA-Z])"), ""),  # MathML stretches brackets by itself
    (re.compile(r"\\(text|display)style(?![a-zA-Z])"), ""),
    (re.compile(r"\\dots(?![a-zA-Z])"), r"\\ldots "),
    (re.compile(r"\\[td]?frac\s*(\w)\s*(\w)"), r"\\frac{\1}{\2}"),
    (re.compile(r"\\[td]?frac\s*(\w)\s*(?=\{)"), r"\\frac{\1}"),
    (re.compile(r"\\[td]frac"), r"\\frac"),
)
"""TeX that docutils does not know, and the same in words that it knows."""


def mathml(formula: str, *, block: bool = False) -> str:
    """Return a formula in TeX as MathML.

    Raises
    ------
    docutils.utils.math.MathError
        For what docutils cannot write as MathML.
    """
    for pattern, plain in _PLAIN:
        formula = pattern.sub(plain, formula)
    return latex2mathml.tex2mathml(formula, as_block=block)


def _inline(writer: HTML5Translator, node: nodes.math) -> None:
    writer.body.append(mathml(node.astext()))
    raise nodes.SkipNode


def _block(writer: HTML5Translator, node: nodes.math_block) -> None:
    writer.body.append(f'<div class="math" tabindex="0">{mathml(node.astext(), block=True)}</div>\n')
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, bool]:
    """Tell Sphinx what to call."""
    app.add_html_math_renderer("mathml", (_inline, None), (_block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
