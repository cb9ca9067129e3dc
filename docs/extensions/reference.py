"""Pages that are made from the code: what stands in a block `{generated}` is written when the page is read."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path

import api
import command_line
import configuration
import methods
import presets
import results
from sphinx.application import Sphinx

GENERATED: Mapping[str, Callable[[], str]] = {
    "api": api.overview,
    "attacks": methods.attacks,
    "command-line": command_line.commands,
    "configuration": configuration.keys,
    "defenses": methods.defenses,
    "presets": presets.runs,
    "result-json": results.result_json,
    "steps-parquet": results.steps_parquet,
    "sweeps": presets.sweeps,
}
"""The names that a block can have, and the function that writes each."""

_BLOCK = re.compile(r"^```\{generated\} (?P<what>[a-z-]+)\n```$", re.MULTILINE)


def filled(text: str) -> str:
    """Return a page's text with what its blocks stand for."""
    return _BLOCK.sub(lambda block: GENERATED[block["what"]](), text)


def _on_source_read(app: Sphinx, name: str, source: list[str]) -> None:
    source[0] = filled(source[0])


def setup(app: Sphinx) -> dict[str, bool]:
    """Tell Sphinx what to call."""
    app.connect("builder-inited", lambda app: api.write_pages(Path(app.srcdir)))
    app.connect("autodoc-process-docstring", api.plain_commands)
    app.connect("source-read", _on_source_read, priority=400)  # before links are resolved
    return {"parallel_read_safe": True, "parallel_write_safe": True}
