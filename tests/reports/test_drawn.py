"""Figures have their lines, bands, whiskers and dots at the coordinates of the numbers."""

import numpy as np
import pytest
from matplotlib.collections import LineCollection, PathCollection
from matplotlib.figure import Figure

from flower_vfl.metrics import nearest_rank
from flower_vfl.reports import figures
from flower_vfl.reports.figures import Point, Reached, embeddings, periods, snapshots, trade_off, training

STEPS = np.arange(500)
VALUES = np.random.default_rng(0).uniform(0.5, 1, 500)
PARTS = np.array_split(STEPS, 25)
HIGH = np.array([nearest_rank(VALUES[part]) for part in PARTS])


@pytest.fixture
def drawn(monkeypatch):
    """Return a function that draws a figure with a given function and returns its axes."""

    def draw(function, *given, **named):
        kept = []

        def painted(title, paint, **_):
            kept.append(Figure().subplots())
            paint(kept[0])
            return ""

        for module in (embeddings, periods, snapshots, trade_off, training):
            monkeypatch.setattr(module, "draw", painted)
        function(*given, **named)
        return kept[0]

    return draw


def line(axes, label):
    """Return (x, y) of the line with this label."""
    (found,) = (one for one in axes.lines if one.get_label() == label)
    return found.get_data()


def at_height(axes, height):
    """Return True if a line goes all the way across at this height."""
    return any(np.allclose(one.get_ydata(), height) and list(one.get_xdata()) == [0, 1] for one in axes.lines)


def span(axes, label):
    """Return the lower and the upper end of the horizontal band with this label."""
    (found,) = (patch for patch in axes.patches if patch.get_label() == label)
    return found.get_y(), found.get_y() + found.get_height()


def edges(shade):
    """Return the horizontal places of a shade, and its lower and upper edge there."""
    corners = shade.get_paths()[0].vertices
    places = np.unique(corners[:, 0])
    low, high = ([side(corners[corners[:, 0] == place, 1]) for place in places] for side in (min, max))
    return places, np.array(low), np.array(high)


def test_the_band_of_guessing_goes_as_far_below_one_half_as_above(drawn):
    axes = drawn(training.leak_figure, "x", {"cut": (STEPS, VALUES)}, 0.62)
    assert span(axes, "guessing") == pytest.approx((0.38, 0.62))
    assert at_height(axes, 0.5)


def test_a_leak_is_its_95_percent_quantile_with_a_shade_from_the_lowest_to_the_highest(drawn):
    axes = drawn(training.leak_figure, "x", {"cut": (STEPS, VALUES)}, None)
    x, y = line(axes, "cut")
    assert (x.tolist(), y.tolist()) == ([part.mean() for part in PARTS], HIGH.tolist())
    places, low, high = edges(axes.collections[0])
    assert places.tolist() == x.tolist()
    assert low == pytest.approx([VALUES[part].min() for part in PARTS])
    assert high == pytest.approx([VALUES[part].max() for part in PARTS])


def test_leaks_of_several_runs_are_their_95_percent_quantiles(drawn):
    axes = drawn(training.leak_figure, "x", {"none": (STEPS, VALUES), "iso": (STEPS, VALUES / 2)}, None, ranges=False)
    assert line(axes, "none")[1].tolist() == HIGH.tolist()
    assert line(axes, "iso")[1] == pytest.approx(HIGH / 2)


def test_longitudinal_leaks_have_single_steps_and_the_bound_beside_them(drawn):
    epochs = np.array([1, 2, 4])
    curves = {name: (epochs, epochs / scale) for name, scale in (("norm", 5.0), ("steps", 6.0), ("bound", 4.5))}
    one, alone, bound = curves.values()
    axes = drawn(training.remembered_figure, "x", {"norm": one}, 0.55, "norm, single steps", alone, bound)
    for label, (x, y) in (("norm", one), ("norm, single steps", alone), ("bound over the epochs", bound)):
        assert (line(axes, label)[0].tolist(), line(axes, label)[1].tolist()) == (x.tolist(), y.tolist())
    assert span(axes, "guessing") == pytest.approx((0.45, 0.55))


def test_each_limit_of_a_budget_lies_across_in_the_colour_of_what_it_limits(drawn):
    epochs = np.array([1, 2])
    curves = {"leak": (epochs, np.array([0.6, 0.7]), 0.65), "bound": (epochs, np.array([0.8, 0.9]), 0.95)}
    axes = drawn(training.budget_figure, "x", curves)
    by_label = {one.get_label(): one for one in axes.lines}
    for name, (_, values, limit) in curves.items():
        assert by_label[name].get_ydata().tolist() == values.tolist()
        assert list(by_label[f"limit of the {name}"].get_ydata()) == [limit, limit]
        assert by_label[name].get_color() == by_label[f"limit of the {name}"].get_color()


def test_runs_lie_by_utility_and_leak_and_those_without_a_defense_are_told_apart(drawn):
    axes = drawn(trade_off.trade_off_figure, [(1, 0.93, 0.97, False), (2, 0.92, 0.6, True)], 0.55)
    dots = {one.get_label(): one.get_offsets().tolist() for one in axes.collections if isinstance(one, PathCollection)}
    assert dots == {"no defense": [[0.93, 0.97]], "with a defense": [[0.92, 0.6]]}
    assert {text.get_text(): text.xy for text in axes.texts} == {"1": (0.93, 0.97), "2": (0.92, 0.6)}


POINTS = {
    "marvell s": [
        Point("1", 0.7, 0.92, (0.68, 0.73), (0.915, 0.922)),
        Point("4", 0.56, 0.9, (0.55, 0.57), (0.89, 0.91)),
    ]
}


@pytest.mark.parametrize("joined", [True, False])
def test_settings_lie_by_utility_and_leak_with_whiskers_both_ways(drawn, joined):
    edge = [(0.9, 0.56), (0.92, 0.7)]
    axes = drawn(trade_off.setting_figure, "x", "test AUC", POINTS, 0.55, edge=edge, joined=joined)
    x, y = line(axes, "marvell s")
    assert (list(x), list(y)) == ([0.92, 0.9], [0.7, 0.56])
    (family,) = (one for one in axes.lines if one.get_label() == "marvell s")
    assert (family.get_linewidth() > 0) == joined
    x, y = line(axes, "not beaten")
    assert (list(x), list(y)) == ([0.9, 0.92], [0.56, 0.7])
    whiskers = [(list(one.get_xdata()), list(one.get_ydata())) for one in axes.lines]
    for point in POINTS["marvell s"]:
        assert ([point.utility] * 2, list(point.leaks)) in whiskers
        assert (list(point.utilities), [point.leak] * 2) in whiskers
    assert {text.get_text(): text.xy for text in axes.texts} == {"1": (0.92, 0.7), "4": (0.9, 0.56)}


def test_perfect_protection_is_from_the_bottom_up_to_what_is_reached_without_the_model(drawn):
    axes = drawn(embeddings.protection_figure, "x", ("utility", "attack"), POINTS, 0.6)
    low, high = span(axes, "perfect protection")
    assert low == axes.get_ylim()[0] < 0.55
    assert high == pytest.approx(0.6)
    assert at_height(axes, 0.6)


def test_a_rebuilt_model_lies_below_the_federations_own_and_the_level_that_counts(drawn):
    points = [Reached(k, 0.6 + k / 100, 0.6 + k / 200, 0.61 + k / 100) for k in (1, 4, 16)]
    alone = [Reached(k, 0.52 + k / 100, 0.5, 0.7) for k in (1, 4)]
    axes = drawn(embeddings.rebuild_figure, "t", "AUC", {"none": points}, alone, (0.5, 0.82, 0.9))
    assert list(line(axes, "the federation’s own model")[1]) == [0.9, 0.9]
    assert list(line(axes, "counts as rebuilt")[1]) == [0.82, 0.82]
    for label, expected in (("none", points), ("from scratch", alone)):
        x, y = line(axes, label)
        assert (x.tolist(), y.tolist()) == ([p.k for p in expected], [p.value for p in expected])
    _, low, high = edges(axes.collections[0])
    assert (low.tolist(), high.tolist()) == ([p.low for p in points], [p.high for p in points])


def test_of_several_settings_each_has_whiskers_at_its_own_dots(drawn):
    points = [Reached(k, 0.6 + k / 100, 0.6, 0.8) for k in (1, 4)]
    axes = drawn(embeddings.rebuild_figure, "t", "AUC", {"none": points, "one": points}, points, (0.5, 0.82, 0.9))
    whiskers = [one for one in axes.collections if isinstance(one, LineCollection)]
    for label, whisker in zip(("none", "one", "from scratch"), whiskers, strict=True):
        x, y = line(axes, label)
        assert y.tolist() == [p.value for p in points]
        assert [segment.tolist() for segment in whisker.get_segments()] == [[[k, 0.6], [k, 0.8]] for k in x]


def test_angles_are_shares_by_degree_of_pairs_of_one_class_and_of_two(drawn):
    axes = drawn(embeddings.angle_figure, "t", np.radians([10.0, 11.0, 170.0]), np.radians([91.0]))
    found = {patch.get_label(): patch.get_data() for patch in axes.patches if not patch.get_fill()}
    for label, expected in (
        ("two of one class", {9: 2 / 3, 168: 1 / 3}),
        ("one of each of two classes", {90: 1.0}),
    ):
        shares, bounds, _ = found[label]
        assert {round(bounds[at]): shares[at] for at in np.flatnonzero(shares)} == pytest.approx(expected)
    assert list(axes.lines[0].get_xdata()) == [90, 90]


def test_each_dot_of_a_map_has_the_name_of_its_class(drawn):
    places, y = np.arange(10.0).reshape(5, 2), np.array([0, 1, 1, 0, 1])
    axes = drawn(embeddings.map_figure, "t", places, y, ["negative", "positive"])
    for number, name in enumerate(("negative", "positive")):
        assert np.array_equal(np.transpose(line(axes, name)), places[y == number])


def test_guessing_by_day_goes_as_far_below_one_half_as_above(drawn):
    at, nulls = np.array([1, 2, 3]), np.array([0.6, 0.7, 0.65])
    axes = drawn(periods.period_figure, "t", "AUC", {"cut": (at, nulls + 0.2)}, {}, (at, nulls))
    _, low, high = edges(axes.collections[0])
    assert (low, high) == (pytest.approx(1 - nulls), pytest.approx(nulls))
    assert line(axes, "cut")[1] == pytest.approx(nulls + 0.2)


def test_a_group_of_a_snapshot_has_a_dot_at_its_median_a_bar_over_half_and_a_line_over_nine_tenths(drawn):
    values = {
        ("residual", group): np.random.default_rng(seed).random(101)
        for seed, group in enumerate(("negative", "positive"))
    }
    axes = drawn(figures.snapshot_figures, {100: values})
    lines, bars = axes.collections[0::2], axes.collections[1::2]
    for number, (label, group) in enumerate((("negatives", "negative"), ("positives", "positive"))):
        low, lower, middle, upper, high = np.quantile(values["residual", group], (0.05, 0.25, 0.5, 0.75, 0.95))
        assert line(axes, label)[1] == pytest.approx([middle])
        assert lines[number].get_segments()[0][:, 1] == pytest.approx([low, high])
        assert bars[number].get_segments()[0][:, 1] == pytest.approx([lower, upper])
