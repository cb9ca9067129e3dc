"""The pages as a browser lays them out: on a phone, on a desktop and on paper nothing is cut off."""

import re
from http import HTTPStatus

import pytest

from flower_vfl.apps.sweeps import TrialEntry, write_record
from flower_vfl.reports import render, render_sweep
from flower_vfl.reports.figures import embeddings, snapshots, trade_off, training
from flower_vfl.reports.page import TEMPLATES
from flower_vfl.reports.watching.follower import Follower
from flower_vfl.reports.watching.server import refusal
from flower_vfl.reports.watching.view import RunPage
from tests.browser import CHROMIUM, DESKTOP, PAPER, PHONE, frame, seen, violations

from .conftest import write_run

MEASURE = """onload = () => {
  const found = [];
  for (const frame of document.querySelectorAll("iframe")) {
    const page = frame.contentDocument, width = frame.clientWidth;
    const paper = frame.name.endsWith("paper");
    const wide = [...page.querySelectorAll("main *")].filter(e => !e.parentElement.closest("svg")
      && (paper || !e.parentElement.closest(".wide, .one, pre"))
      && e.getBoundingClientRect().right > width + 1);
    const folded = [...page.querySelectorAll("details:not(.copy) > :last-child")].filter(e => !e.offsetHeight);
    found.push({ name: frame.name, wide: wide.map(e => e.outerHTML.slice(0, 60)), folded: folded.length,
                 over: page.documentElement.scrollWidth - width, height: page.documentElement.scrollHeight });
  }
  document.body.textContent = JSON.stringify(found);
}"""


def block(css, start):
    """Return the text in the braces after `start`."""
    begin = css.index(start) + len(start)
    depth, end = 1, begin
    while depth:
        depth += {"{": 1, "}": -1}.get(css[end], 0)
        end += 1
    return css[begin : end - 1]


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """Return the pages of a run, a comparison and a sweep, with more attacks than a line of a table has room for."""
    out = tmp_path_factory.mktemp("pages")
    attacks = tuple((f"remembered_direction_{i}", 0.03 * i) for i in range(9))
    entries = []
    for name, defenses in (("none", []), ("marvell", [{"name": "marvell", "params": {"s": 4.0, "rho": 0.5}}])):
        for seed in (0, 1):
            run = f"a-run-with-a-long-name-{name}-{seed}"
            extra = {"sum_kl": 0.5, "snapshots": (0,)} if defenses else {}
            write_run(out / run, defenses=defenses, seed=seed, steps=12, epochs=2, attacks=attacks, **extra)
            entries.append(TrialEntry(run, run, {"seed": seed, "defenses": name}))
    write_record(out, entries)
    folders = [out / entry.run for entry in entries]
    with pytest.MonkeyPatch.context() as patch:
        for module in (embeddings, snapshots, trade_off, training):
            patch.setattr(module, "draw", lambda *_, **__: '<svg viewBox="0 0 460 320"></svg>')  # not drawn
        return {
            "run": render(folders[2:3]),
            "comparison": render(folders, out / "comparison.html"),
            "sweep": render_sweep(out),
        }


@pytest.mark.chromium
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here to lay out pages")
def test_nothing_is_wider_than_a_phone_a_desktop_or_paper(pages, tmp_path):
    frames = [frame(name, page, width) for name, page in pages.items() for width in (PHONE, DESKTOP, PAPER)]
    found = seen(tmp_path, frames, MEASURE)
    assert len(found) == 9
    for place in found:
        assert place["height"] > 1000, place["name"]
        assert place["wide"] == [], place["name"]
        assert place["over"] <= 0, place["name"]
        assert place["folded"] == 0 or not place["name"].endswith("paper"), place["name"]


@pytest.mark.slow
@pytest.mark.chromium
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here to check pages")
def test_axe_finds_nothing_serious_in_the_pages(pages, tmp_path):
    watched = tmp_path / "watched.html"
    watched.write_text(RunPage(Follower(pages["run"].parent)).page())
    refused = tmp_path / "refused.html"
    refused.write_text(refusal(HTTPStatus.NOT_FOUND))
    found = violations(tmp_path, {**pages, "watched": watched, "refused": refused})
    assert len(found) == 10
    for place in found:
        assert place["violations"] == [], place["name"]
        assert place["over"] <= 0, place["name"]


def test_paper_is_light_and_nothing_lies_over_the_page():
    css = (TEMPLATES / "style.css").read_text()
    assert css.index("@media (prefers-color-scheme: dark) {") < css.index("@media print {")
    dark, paper = (
        block(block(css, start), ":root {") for start in ("@media (prefers-color-scheme: dark) {", "@media print {")
    )
    names = re.compile(r"--[a-z0-9]+(?=:)")
    assert set(names.findall(dark)) <= set(names.findall(paper))
    assert "color-scheme: light;" in paper
    assert not re.search(r"position:\s*(?:fixed|sticky)", css)
