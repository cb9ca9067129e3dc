"""Macro AUC and balanced accuracy against scikit-learn."""

import math

import numpy as np
import pytest
import torch
from sklearn.metrics import balanced_accuracy_score, roc_auc_score

from flower_vfl.errors import InputError
from flower_vfl.metrics import balanced_accuracy, leak_auc, macro_auc, recalls


@pytest.mark.parametrize("classes", [3, 4, 10])
@pytest.mark.parametrize("digits", [1, 15])
def test_macro_auc_is_scikit_learns_one_against_the_rest_ties_included(classes, digits):
    rng = np.random.default_rng(classes)
    y = rng.integers(0, classes, 300)
    p = rng.dirichlet(np.ones(classes), 300) + 0.2 * np.eye(classes)[y]
    p = np.round(p / p.sum(axis=1, keepdims=True), digits)
    p[:, -1] = 1 - p[:, :-1].sum(axis=1)  # rounded rows still add up to one, which scikit-learn insists on
    expected = roc_auc_score(y, p, multi_class="ovr", average="macro")
    assert macro_auc(p, y) == pytest.approx(expected, abs=1e-12)
    assert macro_auc(torch.from_numpy(p), torch.from_numpy(y)) == macro_auc(p, y)


def test_classes_that_do_not_occur_are_left_out():
    scores, y = np.random.default_rng(0).normal(size=(50, 4)), np.arange(50) % 2 * 3
    expected = (leak_auc(scores[:, 0], y == 0) + leak_auc(scores[:, 3], y == 3)) / 2
    assert macro_auc(scores, y) == expected
    assert math.isnan(macro_auc(scores, y * 0))
    assert math.isnan(macro_auc(scores[:0], y[:0]))


@pytest.mark.parametrize(
    ("scores", "labels", "reason"),
    [
        (np.zeros(4), [0, 1, 2, 0], "give"),
        (np.zeros((4, 3)), [0, 1, 2], "give"),
        (np.zeros((3, 3)), [0, 1, 3], "whole numbers from 0 to 2"),
        (np.full((3, 3), math.nan), [0, 1, 2], "NaN"),
    ],
)
def test_what_does_not_fit_is_refused(scores, labels, reason):
    with pytest.raises(InputError, match=reason):
        macro_auc(scores, labels)


@pytest.mark.parametrize("classes", [2, 3, 10])
def test_balanced_accuracy_is_scikit_learns(classes):
    rng = np.random.default_rng(classes)
    y = np.concatenate([np.arange(classes), rng.choice(classes, 300, p=rng.dirichlet(np.ones(classes)))])
    predicted = np.where(rng.random(y.size) < 0.6, y, rng.integers(0, classes, y.size))
    expected = balanced_accuracy_score(y, predicted)
    assert balanced_accuracy(predicted, y) == pytest.approx(expected, abs=1e-12)
    assert balanced_accuracy(torch.from_numpy(predicted), torch.from_numpy(y)) == balanced_accuracy(predicted, y)
    assert 0 < expected < 1


def test_predicting_one_class_for_all_rows_is_chance_however_rare_the_other_class():
    y = (np.arange(1000) >= 940).astype(int)
    assert balanced_accuracy(np.zeros(1000), y) == 0.5
    assert [values.tolist() for values in recalls(np.zeros(1000), y)] == [[1.0, 0.0], [940, 60]]


def test_classes_without_an_example_do_not_count_and_without_any_there_is_no_balanced_accuracy():
    assert balanced_accuracy([0, 1, 2, 3], [0, 0, 3, 3]) == 0.5
    assert math.isnan(balanced_accuracy([], []))
    with pytest.raises(InputError, match="two vectors of one length"):
        balanced_accuracy([0, 1], [0])
    with pytest.raises(InputError, match="two vectors of one length"):
        balanced_accuracy([[0, 1]], [[0, 1]])
