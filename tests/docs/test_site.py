"""The built site in a browser: a page of each kind."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.browser import CHROMIUM, violations

DOCS = Path(__file__).parents[2] / "docs"
SITE = DOCS / "_build"
PAGES = (
    "index",
    "tutorials/first-run",
    "tutorials/why-gradients-leak",  # a notebook
    "project/overview",  # README.md, whose table has pictures
    "deployment/README",
    "reference/configuration",
    "reference/command-line",
    "reference/api/flower_vfl.alignment",
    "results/longer",
    "explanation/glossary",
    "search",
)


@pytest.mark.parametrize("picture", sorted((DOCS / "images").glob("*.svg")), ids=lambda path: path.name)
def test_a_drawing_has_a_width_and_a_height(picture):
    """Without them a browser lays it out at 0 x 0 pixels in a cell of a table."""
    root = re.match(r"<svg[^>]*>", picture.read_text(encoding="utf8"))
    assert root
    for side in ("width", "height"):
        assert re.search(rf'\s{side}="\d+"', root[0])


@pytest.mark.slow
@pytest.mark.skipif(not (SITE / "index.html").exists(), reason="needs the site: sphinx-build docs docs/_build")
def test_options_in_plain_text_keep_both_hyphens():
    for page in sorted((SITE / "reference").glob("*.html")):
        assert re.findall(r"–[a-z]+", page.read_text(encoding="utf8")) == [], page.name


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.chromium
@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")
@pytest.mark.skipif(not (SITE / "index.html").exists(), reason="needs the site: sphinx-build docs docs/_build")
def test_axe_finds_nothing_serious_and_no_page_is_wider_than_the_window(tmp_path):
    found = violations(tmp_path, {page: SITE / f"{page}.html" for page in PAGES}, timeout=500)
    assert len(found) == 2 * len(PAGES)
    for place in found:
        assert place["violations"] == [], place["name"]
        assert place["over"] <= 0, place["name"]
