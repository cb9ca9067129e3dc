"""A badge on each notebook that opens it in the browser, where the site knows its repository."""

from __future__ import annotations

import os

from sphinx.application import Sphinx

_NOTEBOOK = "---\njupytext"
_OPEN = "https://mybinder.org/v2/gh/{repository}/main?urlpath=lab/tree/docs/{name}.md"


def badged(text: str, name: str, repository: str) -> str:
    """Return the text of a page with a badge below its title, if it is a notebook.

    Parameters
    ----------
    text : str
        The page.
    name : str
        Its path below `docs/`, without the ending.
    repository : str
        Owner and name at GitHub; empty where nobody knows them, and then there is no badge.
    """
    if not repository or not text.startswith(_NOTEBOOK):
        return text
    before, title, after = text.partition("\n# ")
    heading, _, rest = after.partition("\n")
    link = _OPEN.format(repository=repository, name=name)
    return f"{before}{title}{heading}\n\n[![Open in the browser](/_static/binder.svg)]({link})\n{rest}"


def _on_source_read(app: Sphinx, name: str, source: list[str]) -> None:
    source[0] = badged(source[0], name, os.environ.get("GITHUB_REPOSITORY", ""))


def setup(app: Sphinx) -> dict[str, bool]:
    """Tell Sphinx what to call."""
    app.connect("source-read", _on_source_read, priority=600)  # after links were resolved
    return {"parallel_read_safe": True, "parallel_write_safe": True}
