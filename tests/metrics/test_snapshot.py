"""Residuals, slopes and gradients of a snapshot, against slow formulas."""

import math

import numpy as np
import pytest
import torch
from scipy.stats import ks_2samp

from flower_vfl.metrics import ArgumentError, observations, snapshot
from flower_vfl.metrics.snapshot import MOST


def batch(negatives=30, positives=9, width=5, seed=0):
    rng = np.random.default_rng(seed)
    y = rng.permutation(np.r_[np.zeros(negatives, dtype=int), np.ones(positives, dtype=int)])
    logits, slopes = rng.normal(size=y.size), rng.normal(1.0, 0.5, size=(y.size, width))
    p1 = 1 / (1 + np.exp(-logits))
    return y, logits, slopes, (p1 - y)[:, None] * slopes / y.size


def taken(y, logits, slopes, gradients):
    return snapshot(y, logits, slopes, gradients, generator=np.random.default_rng(0))


def test_residuals_and_lengths_are_those_of_every_row_of_a_class():
    y, logits, slopes, gradients = batch()
    found = taken(y, logits, slopes, gradients)
    p1 = 1 / (1 + np.exp(-logits))
    for group, label in (("negative", 0), ("positive", 1)):
        assert np.allclose(found["residual", group], np.abs(p1 - y)[y == label], rtol=1e-13)
        assert np.allclose(found["slope_norm", group], np.linalg.norm(slopes[y == label], axis=1), rtol=1e-13)
        assert np.allclose(found["gradient_norm", group], np.linalg.norm(gradients[y == label], axis=1), rtol=1e-13)


def cosines(matrix, rows, others):
    units = matrix / np.linalg.norm(matrix, axis=1, keepdims=True)
    return {round(float(units[i] @ units[j]), 9) for i in rows for j in others if i != j}


def test_cosines_are_of_two_different_rows_of_the_group_and_reach_all_pairs():
    y, logits, slopes, gradients = batch(negatives=6, positives=4)
    found = taken(y, logits, slopes, gradients)
    zero, one = np.flatnonzero(y == 0), np.flatnonzero(y == 1)
    for name, matrix in (("slope", slopes), ("gradient", gradients)):
        for group, rows, others in (("negative", zero, zero), ("positive", one, one), ("cross", zero, one)):
            seen = {round(float(value), 9) for value in found[f"{name}_cosine", group]}
            assert seen == cosines(matrix, rows, others)


@pytest.mark.parametrize("scale", [1e-35, 1e-20, 1e30])
def test_tiny_and_huge_gradients_keep_their_directions_and_relative_lengths(scale):
    y, logits, slopes, gradients = batch()
    gradients = torch.from_numpy(gradients)
    expected = taken(y, logits, slopes, gradients)
    found = taken(torch.from_numpy(y), logits, slopes, (gradients * scale).float())
    for key in (("gradient_norm", "positive"), ("gradient_cosine", "cross")):
        unit = scale if key[0] == "gradient_norm" else 1.0
        assert np.allclose(found[key] / unit, expected[key], rtol=1e-5)


def test_squares_of_doubles_neither_vanish_nor_overflow():
    rows = np.array([[3e-200, 4e-200], [3e200, 4e200]])
    found = taken([0, 1], [0.0, 0.0], rows, rows)
    assert found["gradient_norm", "negative"] == pytest.approx(5e-200)
    assert found["gradient_norm", "positive"] == pytest.approx(5e200)
    assert found["gradient_cosine", "cross"] == pytest.approx(1.0)


def test_a_residual_far_from_one_half_keeps_its_digits():
    found = taken([0, 1, 0], [-60.0, 60.0, 900.0], np.ones((3, 2)), np.ones((3, 2)))
    assert found["residual", "positive"][0] == pytest.approx(math.exp(-60), rel=1e-12, abs=0)
    assert found["residual", "negative"].tolist() == [pytest.approx(math.exp(-60), rel=1e-12, abs=0), 1.0]


def test_a_row_of_zeros_has_no_direction():
    found = taken([0, 1], [0.0, 0.0], np.ones((2, 3)), np.zeros((2, 3)))
    assert set(found["gradient_cosine", "cross"]) == {0.0}
    assert found["gradient_norm", "positive"].tolist() == [0.0]


def test_a_large_batch_is_sampled_without_repeating_a_row():
    y, logits, slopes, gradients = batch(negatives=5000, positives=1200)
    found = taken(y, logits, slopes, gradients)
    assert {values.size for values in found.values()} == {MOST}
    assert np.unique(found["residual", "negative"]).size == MOST
    again = taken(y, logits, slopes, gradients)
    assert all((found[key] == again[key]).all() for key in found)


@pytest.mark.parametrize("label", [0, 1])
def test_what_a_batch_of_one_class_does_not_have_is_left_out(label):
    found = taken([label] * 3, np.zeros(3), np.ones((3, 2)), np.ones((3, 2)))
    assert {group for _, group in found} == {"positive" if label else "negative"}
    seen = observations(found)
    assert (seen.residual_above, seen.slope_distance, seen.gradient_opposed) == (None, None, None)


def test_an_empty_batch_and_a_single_row_are_no_error():
    assert taken([], [], np.ones((0, 2)), np.ones((0, 2))) == {}
    assert {quantity for quantity, _ in taken([1], [0.0], np.ones((1, 2)), np.ones((1, 2)))} == {
        "residual",
        "slope_norm",
        "gradient_norm",
    }


@pytest.mark.parametrize("wrong", range(4))
def test_shapes_that_do_not_fit_are_refused(wrong):
    arguments = [np.zeros(4), np.zeros(4), np.zeros((4, 2)), np.zeros((4, 2))]
    arguments[wrong] = arguments[wrong][:3]
    with pytest.raises(ArgumentError, match="give \\(B,\\)"):
        taken(*arguments)


def test_observations_are_shares_and_distances_of_the_snapshot():
    y, logits, slopes, gradients = batch(negatives=200, positives=60)
    found = taken(y, logits, slopes, gradients)
    seen = observations(found)
    above = found["residual", "positive"] > np.median(found["residual", "negative"])
    assert seen.residual_above == pytest.approx(above.mean())
    assert seen.slope_distance == pytest.approx(
        ks_2samp(found["slope_norm", "negative"], found["slope_norm", "positive"]).statistic, abs=1e-12
    )
    assert seen.gradient_opposed == pytest.approx((found["gradient_cosine", "cross"] < 0).mean())
    assert set(seen.slope_cosines) == {"negative", "positive", "cross"}
    assert seen.slope_cosines["cross"] == pytest.approx(found["slope_cosine", "cross"].mean())


def test_slopes_that_point_one_way_make_gradients_of_the_classes_point_apart():
    y, logits, slopes, _ = batch(negatives=100, positives=100)
    slopes = np.abs(slopes)
    seen = observations(taken(y, logits, slopes, (1 / (1 + np.exp(-logits)) - y)[:, None] * slopes))
    assert seen.gradient_opposed == 1.0
    assert seen.slope_cosines["cross"] > 0
