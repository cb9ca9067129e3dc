"""Adaptive calibration error against a plain loop and against cases with a known answer."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from flower_vfl.metrics import ArgumentError, adaptive_calibration_error


def by_loops(probs, labels, bins):
    """Return the error by its definition, one example at a time."""
    classes = [[1 - p, p] for p in probs] if np.ndim(probs) == 1 else probs
    n, total = len(labels), []
    for c in range(len(classes[0])):
        ranked = sorted(range(n), key=lambda i: classes[i][c])
        gaps, start = [], 0
        for r in range(bins):
            size = n // bins + (r < n % bins)
            if not size:
                continue
            members = ranked[start : start + size]
            start += size
            confidence = sum(classes[i][c] for i in members) / size
            frequency = sum(labels[i] == c for i in members) / size
            gaps.append(abs(confidence - frequency))
        total.append(sum(gaps) / len(gaps))
    return sum(total) / len(total)


@given(st.lists(st.tuples(st.sampled_from([0.0, 0.25, 0.5, 0.9, 1.0]), st.booleans()), min_size=1, max_size=50))
def test_binary_probabilities_with_ties_equal_the_definition(pairs):
    probs, labels = zip(*pairs, strict=True)
    labels = [int(label) for label in labels]
    assert adaptive_calibration_error(probs, labels) == pytest.approx(by_loops(probs, labels, 15), abs=1e-12)


@pytest.mark.parametrize("bins", [1, 4, 15])
def test_several_classes_equal_the_definition(bins):
    generator = torch.Generator().manual_seed(0)
    probs = torch.randn(203, 5, generator=generator).softmax(1).double()
    labels = torch.randint(5, (203,), generator=generator)
    expected = by_loops(probs.tolist(), labels.tolist(), bins)
    assert adaptive_calibration_error(probs, labels, bins) == pytest.approx(expected, abs=1e-12)


def test_two_columns_equal_the_positive_column_alone():
    rng = np.random.default_rng(0)
    p, y = rng.random(101), rng.integers(0, 2, 101)
    assert adaptive_calibration_error(p, y) == adaptive_calibration_error(np.stack([1 - p, p], 1), y)


def test_a_model_that_is_always_wrong_and_sure_has_error_one():
    assert adaptive_calibration_error([1.0] * 20, [0] * 20) == 1.0


def test_predicting_the_base_rate_is_calibrated_in_one_bin():
    assert adaptive_calibration_error([0.25] * 8, [1, 0, 0, 0] * 2, bins=1) == pytest.approx(0)


def test_a_calibrated_model_has_a_small_error_and_a_shifted_one_has_the_shift():
    rng = np.random.default_rng(0)
    p = rng.uniform(0.2, 0.7, 200_000)
    y = (rng.random(p.size) < p).astype(int)
    assert adaptive_calibration_error(p, y) < 0.01
    assert adaptive_calibration_error(p + 0.2, y) == pytest.approx(0.2, abs=0.005)


@pytest.mark.parametrize(
    ("probs", "labels", "bins", "words"),
    [
        ([0.1, 0.2], [0], 15, "labels"),
        ([], [], 15, "N > 0"),
        ([1.5], [0], 15, "logits"),
        ([math.nan], [0], 15, "NaN"),
        ([0.5], [2], 15, "from 0 to 1"),
        ([[0.2, 0.3, 0.5]], [3], 15, "from 0 to 2"),
        ([0.5], [0], 0, "bins"),
        ([[[0.5], [0.5]]], [0], 15, r"\(1, 2, 1\) and labels"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(probs, labels, bins, words):
    with pytest.raises(ArgumentError, match=words):
        adaptive_calibration_error(np.array(probs), np.array(labels), bins)
