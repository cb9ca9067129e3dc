"""The pages of docs/: links, lists, lines and the extensions that convert them for the site."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(path for path in DOCS.rglob("*.md") if not {"_build", "api"} & set(path.relative_to(DOCS).parts))
FENCE = re.compile(r"^(```+).*?^\1\s*$", re.MULTILINE | re.DOTALL)


@pytest.fixture
def pages(monkeypatch):
    monkeypatch.syspath_prepend(str(DOCS / "extensions"))
    import pages

    yield pages
    del sys.modules["pages"]


def links(path):
    """Return the relative links of a page, as written."""
    text = FENCE.sub("", path.read_text(encoding="utf8"))
    targets = re.findall(r"\]\(\s*([^)\s]+)\s*\)", text)
    return [target for target in targets if not re.match(r"[a-z]+:|#", target)]


def heading_names(path):
    """Return the names of the headings of a page in links on GitHub."""
    text = FENCE.sub("", path.read_text(encoding="utf8"))
    titles = [re.sub(r"[`*\[]|\]\([^)]*\)", "", title) for title in re.findall(r"^#+ (.+)$", text, re.MULTILINE)]
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def test_relative_links_lead_somewhere():
    for page in PAGES:
        for target in links(page):
            place, _, heading = target.partition("#")
            path = (page.parent / place).resolve()
            assert path.exists(), f"{page} links to {target}"
            if heading and path.suffix == ".md":
                assert heading in heading_names(path), f"{page} links to {target}"


def test_every_page_is_in_one_list(pages):
    """A page that no list names could be found by its address only."""
    reached, pending = set(), [DOCS / "README.md"]
    while pending:
        page = pending.pop()
        reached.add(page)
        for target in links(page):
            path = (page.parent / target.partition("#")[0]).resolve()
            path = path / "README.md" if path.is_dir() else path
            shown = [stub for stub in PAGES if pages.shown_file(stub) == path] if DOCS not in path.parents else [path]
            if page.name == "README.md":
                pending += [one for one in shown if one not in reached and one in PAGES]
    missing = set(PAGES) - reached - {DOCS / "index.md"}
    assert {str(path.relative_to(DOCS)) for path in missing} == set()


def test_a_page_that_is_one_link_shows_the_file(pages, tmp_path):
    docs = tmp_path / "docs"
    docs.mkdir()
    (tmp_path / "SECURITY.md").write_text("# Security\n\n[here](docs/a.md) and [there](CODE.py)\n")
    (tmp_path / "CODE.py").write_text("")
    (docs / "security.md").write_text("[Security](../SECURITY.md)\n")
    (docs / "a.md").write_text(
        "# A\n\nSee [security](../SECURITY.md#who) and [nothing](../gone).\n\n```\n[x](y.md)\n```\n"
    )
    assert pages.shown_file(docs / "security.md") == tmp_path / "SECURITY.md"
    assert pages.shown_file(docs / "a.md") == docs / "a.md"
    known = pages.homes(docs, {"security", "a"})
    text = pages.linked((docs / "a.md").read_text(), docs / "a.md", docs / "a.md", known, docs)
    assert "[security](security.md#who)" in text
    assert "[nothing](index.md)" in text
    assert "[x](y.md)" in text
    moved = pages.linked(
        (tmp_path / "SECURITY.md").read_text(), tmp_path / "SECURITY.md", docs / "security.md", known, docs
    )
    assert "[here](a.md)" in moved
    assert "[there](../CODE.py)" in moved


def test_tables_of_contents_follow_from_the_links_of_a_list(pages, tmp_path):
    text = "# All\n\n[z](z.md)\n\n## Use\n\n[a](a.md), [b](b.md#c), [a again](a.md), [web](https://example.org/x.md)\n"
    tables = pages.contents(text, tmp_path / "index.md", tmp_path)
    assert tables.count("{toctree}") == 2
    assert ":caption: Use\n\n/a\n/b\n```" in tables
    assert "/z" in tables
    assert ":caption:" not in pages.contents(text, tmp_path / "README.md", tmp_path)


def test_the_files_that_the_architecture_names_exist():
    text = (DOCS / "architecture.md").read_text(encoding="utf8")
    named = re.findall(r"`([a-z_]+/(?:[a-z_/]+\.py)?)`", text.replace("`flower_vfl/`", ""))
    assert len(named) > 20
    package = ROOT / "flower_vfl"
    places = [package, package / "attacks"]
    assert [path for path in named if not any((place / path).exists() for place in places)] == []


def test_lines_of_pages_are_short():
    """Exempt are tables, code and the results, whose numbers are filled in by their studies."""
    paths = [*ROOT.glob("*.md"), *ROOT.glob("examples/*/README.md"), *ROOT.glob("tests/*/README.md")]
    paths += [path for path in PAGES if path.parent.name != "results"]
    lines = [(path.name, line) for path in paths for line in FENCE.sub("", path.read_text("utf8")).splitlines()]
    assert [(name, line) for name, line in lines if len(line) > 120 and not line.startswith("|")] == []


def test_the_list_of_decisions_has_their_titles_in_order():
    folder = DOCS / "decisions"
    pages = [(path, path.read_text(encoding="utf8").splitlines()[0]) for path in sorted(folder.glob("[0-9]*.md"))]
    listed = re.findall(r"^- \[(.+)\]\((.+)\)$", (folder / "README.md").read_text(encoding="utf8"), re.MULTILINE)
    assert listed == [(title.removeprefix("# "), path.name) for path, title in pages]


def test_a_notebook_gets_a_badge_where_the_repository_is_known(monkeypatch):
    monkeypatch.syspath_prepend(str(DOCS / "extensions"))
    import notebooks

    text = (DOCS / "tutorials" / "steps-parquet.md").read_text(encoding="utf8")
    found = notebooks.badged(text, "tutorials/steps-parquet", "some/one")
    assert "gh/some/one/main?urlpath=lab/tree/docs/tutorials/steps-parquet.md)" in found
    assert found.replace("\n\n[![Open", "\n[![Open").count("\n") == text.count("\n") + 1
    assert notebooks.badged(text, "x", "") == text
    assert notebooks.badged("# A page\n\ntext", "x", "some/one") == "# A page\n\ntext"
    del sys.modules["notebooks"]


def test_elements_that_scroll_can_be_reached_by_keyboard(monkeypatch):
    monkeypatch.syspath_prepend(str(DOCS / "extensions"))
    import accessible

    page = '<p class="caption" role="heading"><div class="highlight"><pre>x</pre></div><div class="table-wrapper a">'
    assert accessible.reachable(page).count('tabindex="0"') == 2
    assert 'aria-level="2"' in accessible.reachable(page)
    corner = '<th class="head"><p></p></th><th class="head"><p>a</p></th>'
    assert accessible.reachable(corner).count("<th") == 1
    del sys.modules["accessible"]


def test_formulas_of_all_pages_become_mathml(monkeypatch):
    monkeypatch.syspath_prepend(str(DOCS / "extensions"))
    import formulas

    count = 0
    for page in PAGES:
        text = re.sub(r"`[^`\n]*`", "", FENCE.sub("", page.read_text(encoding="utf8")))
        for block, inline in re.findall(r"\$\$(.+?)\$\$|\$([^$\n]+?(?:\n[^$\n]+?)?)\$", text, re.DOTALL):
            assert formulas.mathml(block or inline).startswith("<math"), page.name
            count += 1
    assert count > 100
    del sys.modules["formulas"]
