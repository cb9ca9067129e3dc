"""Macro AUC against scikit-learn."""

import math

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score

from flower_vfl.errors import InputError
from flower_vfl.metrics import leak_auc, macro_auc


@pytest.mark.parametrize("classes", [3, 4, 10])
@pytest.mark.parametrize("digits", [1, 15])
def test_it_is_scikit_learns_one_against_the_rest_ties_included(classes, digits):
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
