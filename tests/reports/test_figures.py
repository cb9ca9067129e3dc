"""Figures: well-formed, in the page's colours, reproducible, and robust against odd data."""

import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from itertools import combinations

import numpy as np
import pytest
from matplotlib.layout_engine import ConstrainedLayoutEngine

from flower_vfl.metrics import nearest_rank, snapshot
from flower_vfl.reports.figures import (
    Point,
    epoch_figure,
    leak_figure,
    period_figure,
    setting_figure,
    snapshot_figures,
    trade_off_figure,
)
from flower_vfl.reports.figures.canvas import LINE_COLOURS, draw
from flower_vfl.reports.figures.periods import running_mean
from flower_vfl.reports.figures.training import CURVE_BINS, stretches
from tests.cases import parametrize

STEPS = np.arange(500)
VALUES = np.random.default_rng(0).uniform(0.5, 1, 500)
FAMILIES = {
    "marvell s": [
        Point("1", 0.7, 0.92, (0.68, 0.73), (0.915, 0.922)),
        Point("4", 0.56, 0.9, (0.56, 0.56), (0.9, 0.9)),
    ],
    "no defense": [Point("", 0.97, 0.93, (0.97, 0.97), (0.93, 0.93))],
}


def taken(step, rows=60):
    rng = np.random.default_rng(step)
    y, slopes = (np.arange(rows) % 5 == 0).astype(int), rng.normal(1, 0.3, (rows, 4))
    return snapshot(y, rng.normal(size=rows), slopes, (0.3 - y)[:, None] * slopes * 1e-9, generator=rng)


def texts(svg):
    root = ElementTree.fromstring(svg)
    return ["".join(node.itertext()).strip() for node in root.iter() if node.tag.endswith("}text")]


def test_days_have_their_names_below_and_many_days_a_running_mean():
    at = np.arange(1, 101)
    names = {int(day): f"day {day}" for day in at}
    few = texts(period_figure("AUC by day", "AUC", {"scored": (at[:5], VALUES[:5])}, names))
    assert {"day 1", "day 5"} <= set(few)
    assert "day 6" not in few
    means = running_mean(VALUES[:100])
    assert means[50] == pytest.approx(VALUES[47:54].mean())
    assert means[0] == pytest.approx(VALUES[:4].mean())
    assert means[-1] == pytest.approx(VALUES[96:100].mean())


@pytest.mark.parametrize(
    "svg",
    [
        leak_figure("Attack norm, party a", {"cut": (STEPS, VALUES), "first": (STEPS, VALUES)}, 0.55),
        epoch_figure("Loss", "loss", {"train": (np.arange(3), np.arange(3.0))}),
        trade_off_figure([(1, 0.93, 0.97, False), (2, 0.92, 0.6, True)], 0.55),
        leak_figure("norm, cut layer", {"none": (STEPS, VALUES), "iso": (STEPS, VALUES)}, 0.55, ranges=False),
        setting_figure("norm, cut layer", "test AUC", FAMILIES, 0.55),
        period_figure("AUC by day", "AUC", {"scored": (np.arange(2, 9), VALUES[:7])}, dict.fromkeys(range(9), "Mon")),
        period_figure("Leak", "AUC", {"cut": (STEPS, VALUES)}, {}, (STEPS, VALUES)),
        *snapshot_figures({100: taken(100), 200: taken(200)}),
    ],
    ids=[
        "leak",
        "epoch",
        "trade-off",
        "comparison",
        "setting",
        "days",
        "many days",
        *(f"snapshot {i}" for i in range(5)),
    ],
)
def test_a_figure_is_well_formed_and_takes_its_colours_from_the_page(svg):
    assert svg.lstrip().startswith("<svg")
    assert texts(svg)
    assert "var(--ink)" in svg
    assert "var(--c1)" in svg
    assert not any(line in svg for line in LINE_COLOURS)


def test_names_are_shown_as_they_are_and_cannot_end_the_svg():
    name = "</text></svg><script> $x^{$ & _"
    svg = leak_figure(name, {name: (STEPS, VALUES)}, None)
    assert "<script" not in svg
    assert name in texts(svg)
    assert texts(svg).count(name) == 2


def test_a_very_long_name_is_shortened_but_at_its_end_in_the_legend_instead_of_squeezing_the_figure():
    name = "x" * 500 + " alpha = 0.25"
    assert "x" * 23 + "…xxx alpha = 0.25" in texts(leak_figure("t", {name: (STEPS, VALUES)}, None))


def test_epochs_are_on_the_axis_as_they_were_logged():
    labels = texts(epoch_figure("Loss", "loss", {"train": (np.arange(1, 4), np.arange(3.0))}))
    assert {"1", "2", "3"} <= set(labels)
    assert "4" not in labels


def test_the_same_figure_is_the_same_text():
    assert leak_figure("x", {"cut": (STEPS, VALUES)}, 0.5) == leak_figure("x", {"cut": (STEPS, VALUES)}, 0.5)


def test_the_global_style_stays_as_it_was_and_pyplot_is_not_loaded():
    code = """if True:
        import sys
        import matplotlib as mpl
        import numpy as np
        from flower_vfl.reports.figures import epoch_figure
        keys = set(mpl.rcParams) - {"backend"}  # reading that one loads pyplot
        before = {key: mpl.rcParams[key] for key in keys}
        epoch_figure("x", "y", {"z": (np.arange(2), np.arange(2.0))})
        assert {key: mpl.rcParams[key] for key in keys} == before
        assert "matplotlib.pyplot" not in sys.modules
    """
    subprocess.run([sys.executable, "-c", code], check=True)


@parametrize("values", [[], [0.7], [np.nan, np.nan], [np.nan, 0.8], [np.inf, 0.8], [-np.inf, 0.8], [0.0, 0.0]], quick=1)
def test_odd_curves_are_drawn_all_the_same(values):
    assert texts(leak_figure("x", {"cut": (np.arange(len(values)), np.array(values, dtype=float))}, 1.0))


def test_stretches_cover_every_step_and_keep_the_summary_of_each():
    at, low, high, top = stretches(STEPS, VALUES, CURVE_BINS)
    parts = np.array_split(np.arange(500), 25)
    assert at.tolist() == [part.mean() for part in parts]
    assert high.tolist() == [nearest_rank(VALUES[part]) for part in parts]
    assert (low.min(), top.max()) == (VALUES.min(), VALUES.max())


def test_a_short_run_is_shown_step_by_step():
    at, low, high, top = stretches(np.arange(14), VALUES[:14], CURVE_BINS)
    assert at.tolist() == list(range(14))
    assert low.tolist() == high.tolist() == top.tolist() == VALUES[:14].tolist()


def test_a_long_run_does_not_make_a_large_figure():
    steps = np.arange(1_000_000)
    svg = leak_figure("x", {"cut": (steps, np.random.default_rng(0).random(steps.size))}, 0.5)
    assert len(svg) < 60_000


def test_sixteen_lines_can_be_told_apart():
    svg = leak_figure("x", {f"run {i}": (STEPS, VALUES) for i in range(16)}, None, ranges=False)
    strokes = re.findall(r'<path d="[^"]{200,}"[^>]*style="([^"]*)"', svg)
    assert len(strokes) == len(set(strokes)) == 16


def test_the_five_panels_of_a_snapshot_name_their_steps_and_groups():
    panels = [texts(svg) for svg in snapshot_figures({100: taken(100), 2000: taken(2000)})]
    assert len(panels) == 5
    assert all({"100", "2,000"} <= set(panel) for panel in panels)
    assert all({"negatives", "positives"} <= set(panel) for panel in panels[:3])
    assert all({"two negatives", "two positives", "one of each"} <= set(panel) for panel in panels[3:])
    assert not any("mathdefault" in text for panel in panels for text in panel)


def test_a_group_that_a_snapshot_lacks_leaves_a_gap_and_no_snapshot_no_figure():
    whole = taken(100)
    half = {key: values for key, values in whole.items() if key[1] == "negative"}
    assert len(snapshot_figures({100: half, 200: whole})) == 5
    assert "positives" not in texts(snapshot_figures({100: half})[0])
    assert snapshot_figures({}) == []


def test_strengths_stand_beside_their_points():
    assert {"1", "4", "marvell s", "no defense"} <= set(texts(setting_figure("x", "test AUC", FAMILIES, None)))


def test_strengths_of_points_that_lie_together_are_not_printed_over_one_another():
    def shown(*places):
        points = [Point(f"s{i}", leak, x, (leak, leak), (x, x)) for i, (x, leak) in enumerate(places)]
        far = [Point("t", 0.9, 0.8, (0.9, 0.9), (0.8, 0.8))]
        svg = setting_figure("x", "test AUC", {"a": points, "b": far}, None)
        found = re.findall(
            r'<text[^>]*?text-anchor: (start|end|middle)[^>]*x="([\d.]+)" y="([\d.]+)"[^>]*>([st]\d*)<', svg
        )
        left = {"start": 0, "end": 12, "middle": 6}  # least width of a name, in points
        return {name: (float(x) - left[anchor], float(y)) for anchor, x, y, name in found}

    crowded = shown((0.9, 0.6), (0.9001, 0.6), (0.9, 0.6001))
    assert set(crowded) == {"s0", "s1", "s2", "t"}
    most = shown(*((0.9, 0.6 + i / 1e5) for i in range(12)))
    assert len(most) < 13  # what fits nowhere is left out
    for places in (crowded.values(), most.values()):
        for (x, y), (other_x, other_y) in combinations(places, 2):
            assert abs(x - other_x) > 10 or abs(y - other_y) > 7


@pytest.mark.parametrize("spread", [1e-9, 0.4, 3.0, 30.0])
def test_lengths_of_any_spread_have_numbers_on_their_axis(spread):
    values = {("slope_norm", "negative"): np.geomspace(0.3, 0.3 * (1 + spread), 50)}
    (svg,) = snapshot_figures({100: values})
    assert sum(bool(re.fullmatch(r"[\d.e−+-]+", text)) for text in texts(svg)) >= 3


@pytest.mark.parametrize("length", [8, 16, 20, 28, 40])
def test_long_names_stay_inside_the_figure(length):
    svg = leak_figure("x", {f"{i:02}" + "e" * (length - 2): (STEPS, VALUES) for i in range(6)}, 0.55, ranges=False)
    width = float(re.search(r'viewBox="0 0 ([\d.]+)', svg)[1])
    rows = re.findall(r'<text[^>]*?(?:x="([\d.]+)"|translate\(([\d.]+))[^>]*>\d\de', svg)
    starts = [float(first or second) for first, second in rows]
    assert len(starts) == 6
    assert max(starts) + 5.5 * length < width  # an e of nine points is 5.5 wide


@parametrize(("names", "taller"), [(4, False), (14, True), (40, True)], quick=1)
def test_many_names_below_a_figure_leave_its_axes_their_height(names, taller):
    kept = []

    def paint(axes):
        kept.append(axes)
        for number in range(names):
            axes.plot([1, 2], [number, 0], label=f"remembered_quadratic(k=256,reads={number:02})")

    draw("x", paint, columns=2)
    axes = kept[0]
    height = axes.get_window_extent().height
    assert height > 90
    assert bool(axes.figure.get_figheight() > 3.2) is taller


def test_a_figure_is_laid_out_once(monkeypatch):
    calls = []
    execute = ConstrainedLayoutEngine.execute
    monkeypatch.setattr(ConstrainedLayoutEngine, "execute", lambda *given: (calls.append(given), execute(*given))[1])
    draw("one", lambda axes: axes.plot([1, 2], label="a"), thin=True)
    assert len(calls) == 1


def test_what_runs_without_gradients_reach_is_a_line_beside_the_defenses():
    points = [(1, 0.9, 1.0, False), (2, 0.88, 0.6, True)]
    drawn = (
        setting_figure("norm", "test AUC", FAMILIES, 0.55, no_gradients=0.91),
        trade_off_figure(points, 0.55, no_gradients=0.91),
    )
    assert all("without any gradient" in texts(svg) for svg in drawn)
    plain = (setting_figure("norm", "test AUC", FAMILIES, 0.55), trade_off_figure(points, 0.55))
    assert not any("without any gradient" in texts(svg) for svg in plain)
