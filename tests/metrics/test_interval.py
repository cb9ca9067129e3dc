"""The intervals against scipy, and how often they cover the truth."""

import math

import numpy as np
import pytest
from scipy import stats

from flower_vfl.errors import InputError
from flower_vfl.metrics import auc_interval, leak_auc, mean_interval, mean_share_interval, share_interval


@pytest.mark.parametrize("count", [2, 5, 30])
def test_the_interval_of_a_mean_is_students(count):
    values = np.random.default_rng(count).normal(size=count)
    expected = stats.t.interval(0.95, count - 1, values.mean(), stats.sem(values))
    assert mean_interval(values) == pytest.approx(expected, abs=1e-12)


def test_one_draw_has_no_interval():
    assert mean_interval([0.7]) is None
    assert mean_interval([]) is None
    assert mean_interval([0.7, 0.7]) == (0.7, 0.7)


@pytest.mark.parametrize(("right", "count"), [(0, 5), (5, 5), (1, 10), (450, 1000)])
def test_the_interval_of_a_share_is_wilsons(right, count):
    expected = stats.binomtest(right, count).proportion_ci(0.95, method="wilson")
    assert share_interval(right / count, count) == pytest.approx(tuple(expected), abs=1e-12)


def test_no_example_has_no_interval_and_what_is_no_share_is_refused():
    assert share_interval(0.5, 0) is None
    for share in (1.2, -0.1, math.nan):
        with pytest.raises(InputError, match="between 0 and 1"):
            share_interval(share, 10)
    with pytest.raises(InputError, match="and a count"):
        share_interval(0.5, -1)


def test_the_interval_of_a_mean_of_shares_is_wilsons_for_one_share_and_none_without_examples():
    assert mean_share_interval([0.3], [40]) == pytest.approx(share_interval(0.3, 40), abs=1e-12)
    assert mean_share_interval([], []) is None
    assert mean_share_interval([0.5, 0.0], [10, 0]) is None


@pytest.mark.parametrize(("chances", "counts"), [((0.9, 0.6), (900, 60)), ((0.99, 0.95, 0.8), (200, 50, 20))])
def test_the_interval_of_a_mean_of_shares_covers_the_truth_in_95_of_100_samples(chances, counts):
    rng = np.random.default_rng(0)
    shares = rng.binomial(counts, chances, size=(4000, len(counts))) / counts
    inside = [low <= np.mean(chances) <= high for low, high in (mean_share_interval(s, counts) for s in shares)]
    # Four standard deviations of 4000 draws are 0.014; the interval itself is a little wide or narrow for few examples.
    assert 0.93 < np.mean(inside) < 0.97


def by_pairs(scores, y):
    """Return the interval from the table of all pairs: DeLong's variance, and symmetry of the logarithm of the odds.

    The degrees of freedom of Welch and Satterthwaite are scipy's, of two samples with these variances.
    """
    positives, negatives = scores[y == 1], scores[y == 0]
    wins = (positives[:, None] > negatives) + 0.5 * (positives[:, None] == negatives)
    spread = wins.mean(axis=1).var(ddof=1) / len(positives) + wins.mean(axis=0).var(ddof=1) / len(negatives)
    odds = wins.mean() / (1 - wins.mean())
    freedom = stats.ttest_ind(wins.mean(axis=1), wins.mean(axis=0), equal_var=False).df
    factor = np.exp(stats.t.ppf(0.975, freedom) * spread**0.5 * (1 + odds) ** 2 / odds)
    return tuple(each / (1 + each) for each in (odds / factor, odds * factor))


@pytest.mark.parametrize("digits", [1, 8])
def test_the_interval_of_an_auc_follows_from_the_table_of_all_pairs(digits):
    rng = np.random.default_rng(digits)
    y = (rng.random(200) < 0.3).astype(int)
    scores = np.round(rng.normal(size=200) + y, digits)
    found = auc_interval(scores, y)
    assert found == pytest.approx(by_pairs(scores, y), abs=1e-12)
    assert found[0] < leak_auc(scores, y) < found[1]


@pytest.mark.parametrize(
    ("truth", "positives", "negatives", "least"),
    [(0.76, 50, 150, 0.92), (0.97, 50, 50, 0.91), (0.99, 20, 60, 0.95), (0.99, 100, 1000, 0.88), (0.7, 3, 1000, 0.9)],
)
def test_the_interval_of_an_auc_covers_the_truth(truth, positives, negatives, least):
    """DeLong's symmetric interval covers 88, 82 and 86 of 100 samples near 1; normal quantiles 82 of 3 positives."""
    rng, apart = np.random.default_rng(3), stats.norm.ppf(truth) * 2**0.5
    y = np.arange(positives + negatives) < positives
    samples = (rng.normal(size=y.size) + apart * y for _ in range(1000))
    low, high = np.array([auc_interval(scores, y) for scores in samples]).T
    assert least < np.mean((low <= truth) & (truth <= high)) < 0.995  # four standard deviations of 0.95 are 0.028


@pytest.mark.parametrize(("negatives", "positives"), [(2, 2), (3, 40), (40, 3), (500, 300)])
def test_classes_without_overlap_have_the_exact_interval_of_as_many_pairs(negatives, positives):
    """DeLong's variance is 0 there."""
    scores, y = np.arange(negatives + positives), np.arange(negatives + positives) >= negatives
    pairs = min(negatives, positives)
    expected = stats.binomtest(pairs, pairs).proportion_ci(0.95, method="exact")
    assert auc_interval(scores, y) == pytest.approx(tuple(expected), abs=1e-12)
    assert auc_interval(-scores, y) == pytest.approx((1 - expected.high, 1 - expected.low), abs=1e-12)


def test_classes_without_overlap_are_no_likelier_than_as_many_pairs_in_order():
    """The exact interval assumes this; here classes are normal, so that their AUC is known."""
    rng, auc, pairs = np.random.default_rng(5), stats.norm.cdf(1 / 2**0.5), 3
    negatives, positives = rng.normal(size=(20_000, pairs)), rng.normal(size=(20_000, 2 * pairs)) + 1
    apart = np.mean(negatives.max(axis=1) < positives.min(axis=1))
    assert 0 < apart < auc**pairs


def test_too_few_of_a_class_have_no_interval():
    assert auc_interval([1.0, 2.0, 3.0], [0, 0, 1]) is None
    assert auc_interval([1.0, 2.0, 3.0], [0, 1, 1]) is None
    scores, y = np.array([1.0, 4.0, 2.0, 3.0, 5.0]), np.array([0, 0, 1, 1, 1])
    for kept in (slice(4), slice(5)):
        assert auc_interval(scores[kept], y[kept]) == pytest.approx(by_pairs(scores[kept], y[kept]), abs=1e-12)


def test_scores_that_are_nan_are_refused():
    with pytest.raises(InputError, match="1 of 4 scores are NaN"):
        auc_interval([1.0, math.nan, 2.0, 3.0], [0, 0, 1, 1])
