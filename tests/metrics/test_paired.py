"""Paired differences of AUCs against brute force, resampling and scipy."""

import numpy as np
import pytest
from scipy.stats import mannwhitneyu
from sklearn.metrics import roc_auc_score

from flower_vfl.metrics import ArgumentError, auc_difference, auc_interval, auc_p_value


def drawn(seed, rows=400, shift=0.5, shared=0.8):
    """Return two scores with common errors, and the labels of their rows."""
    rng = np.random.default_rng(seed)
    y = (np.arange(rows) % 4 == 0).astype(int)
    common = rng.normal(size=rows)
    return [shift * y + shared * common + rng.normal(size=rows) * 0.6 for _ in range(2)], y


def test_difference_is_that_of_sklearns_aucs():
    (a, b), y = drawn(0)
    a = a.round(1)  # ties
    assert auc_difference(a, b, y).value == pytest.approx(roc_auc_score(y, a) - roc_auc_score(y, b), abs=1e-12)


def test_interval_covers_the_true_difference_at_its_rate():
    covered = 0
    for seed in range(400):  # both scores have one distribution: the true difference is 0
        (a, b), y = drawn(seed)
        low, high = auc_difference(a, b, y).interval95
        covered += low <= 0 <= high
    assert 365 <= covered <= 394  # 380 expected; outside with probability 6e-4


@pytest.mark.slow
def test_interval_is_that_of_a_paired_bootstrap():
    (a, b), y = drawn(3, rows=1000)
    found = auc_difference(a, b, y)
    rng, positives, negatives = np.random.default_rng(0), np.flatnonzero(y), np.flatnonzero(1 - y)
    values = []
    for _ in range(600):
        rows = np.concatenate([rng.choice(positives, positives.size), rng.choice(negatives, negatives.size)])
        values.append(roc_auc_score(y[rows], a[rows]) - roc_auc_score(y[rows], b[rows]))
    half = (found.interval95[1] - found.interval95[0]) / 2
    assert half == pytest.approx(1.96 * np.std(values), rel=0.12)


def test_scores_with_one_order_of_rows_have_no_difference():
    (a, _), y = drawn(1)
    found = auc_difference(a, np.exp(a), y)
    assert (found.value, found.interval95, found.p_value) == (0.0, (0.0, 0.0), 0.5)


def test_p_value_of_a_difference_is_small_only_where_the_first_auc_is_larger():
    (a, b), y = drawn(2, rows=2000)
    assert auc_difference(a + y, b, y).p_value < 1e-6 < 0.999 < auc_difference(b, a + y, y).p_value


def test_p_value_of_few_positives_rejects_chance_at_its_rate():
    """Normal quantiles would reject 300 of these 4000."""
    rng, y = np.random.default_rng(0), np.repeat([1, 0], [5, 50])
    rejected = sum(auc_difference(rng.normal(size=55), np.zeros(55), y).p_value <= 0.05 for _ in range(4000))
    assert 150 <= rejected <= 250  # 200 expected; outside with probability 3e-4


@pytest.mark.parametrize(("rows", "expected"), [(4, 0.5**4), (10, 0.5**10)])
def test_p_value_of_a_perfect_score_is_that_of_its_pairs_of_rows(rows, expected):
    y = np.repeat([0, 1], rows)
    assert auc_difference(y, np.zeros(2 * rows), y).p_value == expected
    assert auc_difference(-y, np.zeros(2 * rows), y).p_value == 1.0 - expected


@pytest.mark.parametrize("few", [1, 3])
def test_few_rows_of_a_class_give_no_difference(few):
    y = np.arange(20) < few
    assert auc_difference(np.arange(20), np.zeros(20), y) is None
    assert auc_difference(np.arange(20), np.zeros(20), ~y) is None


def test_nan_and_other_lengths_are_refused():
    with pytest.raises(ArgumentError, match="NaN"):
        auc_difference([1, np.nan, 3, 4], [1, 2, 3, 4], [0, 1, 0, 1])
    with pytest.raises(ArgumentError, match="one length"):
        auc_difference([1, 2, 3, 4], [1, 2, 3], [0, 1, 0, 1])


@pytest.mark.parametrize("seed", range(5))
def test_p_value_is_scipys_without_continuity_correction(seed):
    (a, _), y = drawn(seed, shift=0.2)
    expected = mannwhitneyu(a[y == 1], a[y == 0], alternative="greater", method="asymptotic", use_continuity=False)
    auc = roc_auc_score(y, a)
    assert auc_p_value(auc, int((1 - y).sum()), int(y.sum())) == pytest.approx(expected.pvalue, rel=1e-9)


def test_p_value_of_one_class_is_refused():
    with pytest.raises(ArgumentError, match="at least one of each"):
        auc_p_value(0.5, 0, 3)


@pytest.mark.parametrize("side", [1, -1])
def test_a_perfect_score_against_a_constant_one_has_the_exact_interval_of_its_auc(side):
    y = np.arange(60) % 3 == 0
    low, high = auc_interval(y, y)
    scores, baseline = (y, np.zeros(60))[::side]
    found = auc_difference(scores, baseline, y)
    assert found.value == side * 0.5
    assert found.interval95 == pytest.approx(sorted([side * (low - 0.5), side * (high - 0.5)]))
    assert low < 0.9
