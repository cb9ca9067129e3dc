"""Sphinx reads the pages as GitHub shows them: links between files, one list of pages, one place for each text.

Three rules, applied to the source of a page when it is read:

- A page that is one link shows the file behind the link. So `SECURITY.md` and other files of the repository's root have
  a page without a copy.
- A link to a file that has a page becomes a link to that page. All other files can be downloaded.
- A page named `README.md`, and the first page, gets a table of contents from the links that it holds.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from sphinx.application import Sphinx

INDEX = "index"
_FENCE = re.compile(r"^(?P<marks>```+|~~~+).*?^(?P=marks)\s*$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\(\s*(?P<target>[^)\s]+)\s*\)")
_ONE_LINK = re.compile(r"\s*\[[^\]]*\]\((?P<target>[^)\s]+)\)\s*")
_OUTSIDE = re.compile(r"[a-z]+:|#|//")
_HEADING = re.compile(r"^## (?P<title>.+)$", re.MULTILINE)


def shown_file(page: Path) -> Path:
    """Return the file whose text a page shows: its own, or the one that its only link names."""
    only = _ONE_LINK.fullmatch(page.read_text(encoding="utf8"))
    return (page.parent / only["target"]).resolve() if only else page


def homes(docs: Path, names: set[str]) -> dict[Path, str]:
    """Return the page of each file that one shows, as the names of pages without their ending."""
    pages = {name: (docs / f"{name}.md").resolve() for name in sorted(names)}
    own = {path: name for name, path in pages.items() if path.is_file()}
    return own | {shown_file(path): name for path, name in own.items()}


def linked(text: str, source: Path, page: Path, pages: dict[Path, str], docs: Path) -> str:
    """Return a page's text with links that hold on the site.

    Parameters
    ----------
    text : str
        The text as it is written.
    source : Path
        The file that the text stands in: its links start there.
    page : Path
        The page that shows it.
    pages : dict[Path, str]
        The pages of files, as `homes` returns them.
    docs : Path
        The folder of all pages.
    """

    def moved(match: re.Match[str]) -> str:
        target, mark, anchor = match["target"].partition("#")
        if _OUTSIDE.match(match["target"]):
            return match[0]
        path = (source.parent / target).resolve()
        if path.is_dir():
            path = path / "README.md"
        if path in pages:
            path = docs / f"{pages[path]}.md"
        elif not path.exists():  # a folder without a page
            path, mark, anchor = docs / f"{INDEX}.md", "", ""
        return f"]({os.path.relpath(path, page.parent)}{mark}{anchor})"

    done, parts = 0, []
    for fence in _FENCE.finditer(text):
        parts += [_LINK.sub(moved, text[done : fence.start()]), fence[0]]
        done = fence.end()
    return "".join([*parts, _LINK.sub(moved, text[done:])])


def sections(text: str) -> Iterator[tuple[str, str]]:
    """Return the title and the text of each section; the title of what comes before the first one is empty."""
    starts = list(_HEADING.finditer(text))
    yield "", text[: starts[0].start() if starts else len(text)]
    ends = [*(start.start() for start in starts[1:]), len(text)]
    for start, end in zip(starts, ends, strict=False):
        yield start["title"], text[start.end() : end]


def contents(text: str, page: Path, docs: Path) -> str:
    """Return hidden tables of contents, one for each section, of the pages that a text links to."""
    seen, tables = {page}, []
    for title, body in sections(text):
        found = []
        for link in _LINK.finditer(body):
            target = link["target"].partition("#")[0]
            path = (page.parent / target).resolve()
            inside = not _OUTSIDE.match(link["target"]) and path.suffix == ".md" and docs in path.parents
            if inside and path not in seen:
                seen.add(path)
                found.append(f"/{path.relative_to(docs).with_suffix('').as_posix()}")
        if found:
            caption = [f":caption: {title}"] if title and page.stem == INDEX else []
            tables.append("\n".join(["```{toctree}", ":hidden:", *caption, "", *found, "```"]))
    return "\n\n".join(["", *tables, ""])


def on_source_read(app: Sphinx, name: str, source: list[str]) -> None:
    """Show the file that a page stands for, with links that hold on the site."""
    docs = Path(app.srcdir).resolve()
    page = docs / f"{name}.md"
    if not page.is_file():
        return
    shown = shown_file(page)
    text = source[0] if shown == page else shown.read_text(encoding="utf8")
    text = linked(text, shown, page, homes(docs, app.env.found_docs), docs)
    if shown != page:
        app.env.note_dependency(str(shown))
    if page.stem in (INDEX, "README"):
        text += contents(text, page, docs)
    source[0] = text


def setup(app: Sphinx) -> dict[str, bool]:
    """Tell Sphinx what to call."""
    app.connect("source-read", on_source_read)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
