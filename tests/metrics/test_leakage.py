"""Leak AUC and detection error against scikit-learn, brute force and closed forms."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score, roc_curve

from flower_vfl.errors import InputError
from flower_vfl.metrics import ArgumentError, detection_error, leak_auc, separation


@st.composite
def scored(draw, elements=st.integers(-4, 4) | st.floats(-1e6, 1e6, width=32)):  # noqa: B008
    """Scores, with ties on purpose, and labels of both classes."""
    scores = draw(st.lists(elements, min_size=2, max_size=60))
    labels = draw(st.lists(st.integers(0, 1), min_size=len(scores), max_size=len(scores)))
    labels[0], labels[-1] = 0, 1
    return np.array(scores, dtype=np.float64), np.array(labels)


@given(scored())
def test_leak_auc_equals_sklearn_with_ties(example):
    scores, labels = example
    assert leak_auc(scores, labels) == pytest.approx(roc_auc_score(labels, scores), abs=1e-12)


@given(scored())
def test_separation_is_the_leak_auc_and_the_detection_error(example):
    assert separation(*example) == (leak_auc(*example), detection_error(*example))


def test_auc_and_detection_error_of_one_class_are_unknown_and_a_nan_is_refused():
    assert all(map(math.isnan, separation([0.1, 0.2], [1, 1])))
    with pytest.raises(ArgumentError, match="NaN"):
        separation([0.1, math.nan], [1, 0])


@given(scored(st.integers(-1000, 1000)))
def test_leak_auc_does_not_change_under_a_growing_map(example):
    scores, labels = example
    assert leak_auc(scores**3 + scores, labels) == leak_auc(scores, labels)
    assert leak_auc(np.arctan(scores), labels) == leak_auc(scores, labels)


@given(scored())
def test_turning_the_scores_around_gives_one_minus_the_auc(example):
    scores, labels = example
    assert leak_auc(-scores, labels) == pytest.approx(1 - leak_auc(scores, labels), abs=1e-12)
    assert leak_auc(scores, 1 - labels) == pytest.approx(1 - leak_auc(scores, labels), abs=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64])
@pytest.mark.parametrize("kind", [torch.bool, torch.int64, torch.float32])
def test_tensors_of_every_type_give_what_sklearn_gives(dtype, kind):
    generator = torch.Generator().manual_seed(1)
    scores = (torch.randn(1024, generator=generator) * 10).to(dtype)
    labels = torch.rand(1024, generator=generator) < 0.08
    expected = roc_auc_score(labels.numpy(), scores.double().numpy())
    assert leak_auc(scores, labels.to(kind)) == pytest.approx(expected, abs=1e-12)
    assert leak_auc(scores.double().numpy(), labels.numpy()) == pytest.approx(expected, abs=1e-12)


def test_float32_scores_that_differ_in_the_last_bit_are_not_tied():
    one = np.float32(1)
    assert leak_auc(np.array([one, np.nextafter(one, np.float32(2))]), np.array([0, 1])) == 1.0


def test_float64_scores_are_not_rounded_to_float32():
    assert leak_auc(np.array([1.0, 1.0 + 1e-15]), np.array([0, 1])) == 1.0


def test_negative_and_positive_zero_are_tied():
    assert leak_auc(np.array([-0.0, 0.0, 0.0, -0.0]), np.array([0, 1, 0, 1])) == 0.5


def test_infinite_scores_are_in_order():
    scores = torch.tensor([-math.inf, math.inf, 0.0, math.inf])
    assert leak_auc(scores, torch.tensor([0, 1, 0, 0])) == pytest.approx(2.5 / 3)


def test_boolean_scores_are_ranked():
    assert leak_auc(np.array([True, False, True, False]), np.array([1, 0, 0, 1])) == 0.5


@pytest.mark.parametrize("labels", [[0, 0, 0], [1, 1, 1], []])
@pytest.mark.parametrize("measure", [leak_auc, detection_error])
def test_one_class_has_neither_auc_nor_detection_error(measure, labels):
    assert math.isnan(measure(torch.arange(float(len(labels))), torch.tensor(labels)))


def test_a_perfectly_wrong_score_has_auc_zero_not_nan():
    assert leak_auc(torch.tensor([1.0, 0.0]), torch.tensor([0, 1])) == 0.0


@pytest.mark.parametrize("measure", [leak_auc, detection_error])
@pytest.mark.parametrize(
    ("scores", "labels", "words"),
    [
        (torch.zeros(3), torch.zeros(4), "one length"),
        (torch.zeros(3, 1), torch.zeros(3), "one length"),
        (torch.zeros(3, 1), torch.zeros(3, 1), "one length"),
        (torch.tensor([0.0, math.nan]), torch.tensor([0, 1]), "1 of 2 scores are NaN"),
        (torch.tensor([math.nan, 0.0]), torch.tensor([0, 1]), "1 of 2 scores are NaN"),
        (torch.zeros(2, dtype=torch.complex64), torch.tensor([0, 1]), "complex64: only real numbers can be ranked"),
        (np.array([None, 1.0]), torch.tensor([0, 1]), "object: only real numbers can be ranked"),
        (torch.zeros(2), torch.tensor([-1, 1]), "-1"),
        (torch.zeros(2), torch.tensor([0.5, 1]), "0.5"),
        (torch.zeros(2), torch.tensor([math.nan, 1]), "nan"),
    ],
)
def test_arguments_that_do_not_fit_are_refused_with_an_error_of_our_own(measure, scores, labels, words):
    with pytest.raises(ArgumentError, match=words) as caught:
        measure(scores, labels)
    assert isinstance(caught.value, InputError)
    assert isinstance(caught.value, ValueError)


def test_arguments_are_left_as_they_were():
    scores, labels = torch.rand(64, requires_grad=True), torch.arange(64) % 2
    before = scores.detach().clone()
    leak_auc(scores, labels)
    detection_error(scores, labels)
    assert torch.equal(scores, before)


def test_a_million_scores_equal_sklearn():
    rng = np.random.default_rng(0)
    labels = rng.random(1_000_000) < 0.3
    scores = (rng.normal(size=labels.size) + labels).astype(np.float32)
    assert leak_auc(scores, labels) == pytest.approx(roc_auc_score(labels, scores), abs=1e-12)


@given(scored())
def test_detection_error_is_the_best_of_all_thresholds(example):
    scores, labels = example
    fpr, tpr, _ = roc_curve(labels, scores, drop_intermediate=False)
    assert detection_error(scores, labels) == pytest.approx(((1 - tpr + fpr) / 2).min(), abs=1e-12)


@given(scored())
@settings(max_examples=30)
def test_detection_error_is_at_most_one_half_and_never_beats_the_auc(example):
    scores, labels = example
    error = detection_error(scores, labels)
    assert 0 <= error <= 0.5
    assert leak_auc(scores, labels) <= 1 - 2 * error**2 + 1e-12  # a curve with TPR - FPR <= 1 - 2e everywhere


@pytest.mark.parametrize("labels", [[0, 0], [1, 1], []])
def test_without_both_classes_separation_is_nan(labels):
    assert all(map(math.isnan, separation([0.3, 0.7][: len(labels)], labels)))
