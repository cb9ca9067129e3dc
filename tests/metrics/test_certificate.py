"""The bound of Theorem 1, against Gaussians whose AUC is known, and how often measurements exceed it."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom, norm, rankdata

from flower_vfl.metrics import (
    ArgumentError,
    accuracy_bound,
    auc_bound,
    detection_error_bound,
    exceedances,
    null_quantile,
    one_against_rest_bound,
)
from flower_vfl.strategies.gradients.marvell.solver import optimal_noise


@given(st.floats(0, 10))
def test_no_pair_of_shifted_gaussians_passes_the_bound(sum_kl):
    shift = math.sqrt(sum_kl)  # KL both ways is shift^2 / 2 for unit variance, and AUC = Phi(shift / sqrt 2)
    assert norm.cdf(shift / math.sqrt(2)) <= auc_bound(sum_kl)


@given(st.floats(0, 4), st.floats(0, 4))
def test_more_divergence_never_lowers_the_bound(first, second):
    low, high = sorted([first, second])
    assert 0.5 <= auc_bound(low) <= auc_bound(high) <= 1


def test_known_values():
    assert auc_bound(0.0) == 0.5
    assert auc_bound(0.25) == 0.71875
    assert auc_bound(1.0) == 0.875


@pytest.mark.parametrize("sum_kl", [4.0, 4.0 + 1e-9, 4.2, 5.0, 7.5, 1e300, math.inf])
def test_from_a_divergence_of_four_on_the_bound_is_1(sum_kl):
    assert auc_bound(sum_kl) == 1.0


@pytest.mark.parametrize("sum_kl", [-1e-9, -math.inf, math.nan])
def test_what_is_no_divergence_is_refused(sum_kl):
    with pytest.raises(ArgumentError, match="divergence"):
        auc_bound(sum_kl)


@given(st.floats(0, 10))
def test_no_pair_of_shifted_gaussians_is_told_apart_with_a_smaller_error_than_promised(sum_kl):
    assert norm.cdf(-math.sqrt(sum_kl) / 2) >= detection_error_bound(sum_kl) - 1e-12


@pytest.mark.parametrize("error", [0.01, 0.1, 0.25, 0.4, 0.499])
def test_the_divergence_of_a_target_error_promises_that_error(error):
    assert detection_error_bound((2 - 4 * error) ** 2) == pytest.approx(error, abs=1e-12)


@pytest.mark.parametrize(("sum_kl", "error"), [(0.0, 0.5), (4.0, 0.0), (math.inf, 0.0)])
def test_known_errors(sum_kl, error):
    assert detection_error_bound(sum_kl) == error


@pytest.mark.parametrize("sum_kl", [-1e-9, math.nan])
def test_a_detection_error_of_what_is_no_divergence_is_refused(sum_kl):
    with pytest.raises(ArgumentError, match="divergence"):
        detection_error_bound(sum_kl)


def test_a_step_is_beyond_chance_where_it_exceeds_the_bound_by_more_than_the_null_of_its_own_batch():
    rng = np.random.default_rng(0)
    auc, bound = rng.uniform(0.5, 0.9, 200), rng.uniform(0.5, 0.7, 200)
    negatives, positives = rng.integers(20, 60, 200), rng.integers(1, 9, 200)
    found = exceedances(auc, bound, negatives, positives)
    slack = [null_quantile([(n, p)]) - 0.5 for n, p in zip(negatives, positives, strict=True)]
    assert found.beyond_chance.tolist() == [i for i in range(200) if auc[i] > bound[i] + slack[i]]
    assert 0 < found.beyond_chance.size < found.exceeded == int((auc > bound).sum())
    assert found.steps == 200
    assert found.expected == pytest.approx(10.0)
    assert found.worst == pytest.approx((auc - bound).max())


def test_steps_without_an_auc_or_without_a_bound_are_left_out():
    auc, bound = [math.nan, 0.99, 0.9, 0.9, 0.6], [0.5, 1.0, 0.6, 0.6, 0.7]
    found = exceedances(auc, bound, [50, 50, 0, 50, 50], [50, 50, 50, 50, 50])
    assert (found.steps, found.exceeded, found.beyond_chance.tolist()) == (2, 1, [3])


def test_nothing_measured_exceeds_nothing():
    found = exceedances([], [], [], [])
    assert (found.steps, found.exceeded, found.beyond_chance.size, found.expected) == (0, 0, 0, 0.0)
    assert math.isnan(found.worst)


def test_vectors_of_different_lengths_are_refused():
    with pytest.raises(ArgumentError, match="one length"):
        exceedances([0.5, 0.5], [0.5], [1, 1], [1, 1])


SCORES = ("likelihood ratio", "linear", "length")
WIDTH = 4
ONES = np.ones(WIDTH)
ALONG = np.eye(WIDTH)[0]
MODELLED = {
    "equal classes": (0.0, ONES, ONES),
    "means a little apart": (0.05, ONES, ONES),
    "means apart": (0.3, ONES, ONES),
    "means far apart": (1.0, ONES, ONES),
    "positives scatter more": (0.0, ONES, 1.44 * ONES),
    "positives scatter less": (0.2, ONES, 0.64 * ONES),
    "scatter along the means": (0.3, ONES + 3 * ALONG, ONES + 4 * ALONG),
}


def simulated_aucs(score, shift, variances, negatives, positives, steps, rng):
    """Return leak AUCs of a score on classes N(0, diag) and N(shift e1, diag), and their symmetric divergence."""
    negative, positive = variances
    mean = shift * ALONG
    squared = mean**2
    sum_kl = 0.5 * ((negative + squared) / positive + (positive + squared) / negative - 2).sum()
    g = rng.standard_normal((steps, negatives + positives, WIDTH))
    g[:, :negatives] *= np.sqrt(negative)
    g[:, negatives:] = g[:, negatives:] * np.sqrt(positive) + mean
    values = {
        "likelihood ratio": lambda: (g**2 / negative - (g - mean) ** 2 / positive).sum(axis=2),
        "linear": lambda: g[:, :, 0],
        "length": lambda: (g**2).sum(axis=2),
    }[score]()
    ranks = rankdata(values, axis=1)[:, negatives:].sum(axis=1)
    return (ranks - positives * (positives + 1) / 2) / (negatives * positives), sum_kl


def beyond_chance(score, shift, variances, negatives, positives, steps=1500):
    rng = np.random.default_rng([negatives, positives, SCORES.index(score)])
    aucs, sum_kl = simulated_aucs(score, shift, variances, negatives, positives, steps, rng)
    bounds = np.full(steps, auc_bound(sum_kl))
    return exceedances(aucs, bounds, [negatives] * steps, [positives] * steps).beyond_chance.size, sum_kl


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize(("negatives", "positives"), [(60, 4), (25, 25), (120, 12)])
@pytest.mark.parametrize("classes", MODELLED)
def test_gaussian_classes_as_modelled_exceed_the_bound_at_most_as_often_as_stated(classes, score, negatives, positives):
    shift, *variances = MODELLED[classes]
    found, sum_kl = beyond_chance(score, shift, variances, negatives, positives)
    # Each of the 63 cases fails by chance with probability 1e-6 at most where the true rate is the stated 5 %.
    assert found <= binom.ppf(1 - 1e-6, 1500, 0.05)
    if sum_kl == 0 and score != "likelihood ratio":  # that one is constant, and all ties
        assert found >= binom.ppf(1e-6, 1500, 0.03)  # the lattice of AUCs takes a part of the 5 %


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("s", [0.5, 4.0, 100.0])
def test_the_optimal_noise_of_marvell_keeps_to_its_bound(score, s):
    u, v, g, p = 1.0, 0.5, 4.0, 0.1
    noise = optimal_noise(u, v, WIDTH, g, p, s * g)
    negative = u + noise.lam2_neg + (noise.lam1_neg - noise.lam2_neg) * ALONG
    positive = v + noise.lam2_pos + (noise.lam1_pos - noise.lam2_pos) * ALONG
    found, sum_kl = beyond_chance(score, math.sqrt(g), (negative, positive), 108, 12)
    assert sum_kl == pytest.approx(noise.sum_kl, rel=1e-9)
    assert found <= binom.ppf(1 - 1e-6, 1500, 0.05)


def test_classes_that_are_not_as_modelled_are_noticed():
    rng = np.random.default_rng(0)
    aucs, _ = simulated_aucs("linear", 1.5, (ONES, ONES), 100, 10, 200, rng)
    found = exceedances(aucs, [auc_bound(0.01)] * 200, [100] * 200, [10] * 200)
    assert found.beyond_chance.size > 150


def gaussian_classes(distance, classes=4):
    """Return the divergences of unit Gaussians at the corners of a simplex: distance ** 2 for each pair."""
    return distance**2 * (1.0 - np.eye(classes))


def naive_bayes_accuracy(distance, shares, rows=200_000):
    """Return the accuracy of the best attack on those classes, by sampling."""
    rng = np.random.default_rng(0)
    classes = len(shares)
    y = rng.choice(classes, size=rows, p=shares)
    corners = np.eye(classes) * distance / math.sqrt(2.0)
    x = corners[y] + rng.normal(size=(rows, classes))
    squares = ((x[:, None, :] - corners) ** 2).sum(axis=2)
    return float(np.mean((np.log(shares) - squares / 2).argmax(axis=1) == y))


@pytest.mark.parametrize("shares", [np.full(4, 0.25), np.array([0.7, 0.1, 0.1, 0.1])])
@pytest.mark.parametrize("distance", [0.0, 0.3, 1.0, 2.0, 4.0])
def test_no_attack_is_more_accurate_than_the_bound(distance, shares):
    bound = accuracy_bound(gaussian_classes(distance), shares)
    best = naive_bayes_accuracy(distance, shares)
    assert best <= bound + 0.005
    assert shares.max() <= bound <= 1.0
    if distance == 0.0:
        assert bound == pytest.approx(shares.max(), abs=1e-7)
    if distance == 0.3:
        assert bound < best + 0.15


def test_of_many_classes_information_bounds_better_than_variation():
    by_variation = 0.1 + 0.9 * 0.5
    assert accuracy_bound(gaussian_classes(1.0, 10), np.full(10, 0.1)) < by_variation - 0.05
    e = 1.0 - accuracy_bound(gaussian_classes(1.0, 10), np.full(10, 0.1))
    information = 45 * 0.01 * 1.0
    assert -e * math.log(e) - (1 - e) * math.log(1 - e) + e * math.log(9) == pytest.approx(math.log(10) - information)


def test_the_accuracy_bound_of_two_classes_is_one_minus_the_detection_error():
    for sum_kl in (0.0, 0.1, 1.0):
        bound = accuracy_bound([[0.0, sum_kl], [sum_kl, 0.0]], [0.5, 0.5])
        assert bound == pytest.approx(1.0 - detection_error_bound(sum_kl), abs=1e-7)


def test_the_tighter_bound_on_variation_and_the_best_reference_class_count():
    far = math.sqrt(1.0 - math.exp(-4.0))  # Bretagnolle and Huber; Pinsker's bound is trivial at 8
    assert accuracy_bound([[0, 8], [8, 0]], [0.5, 0.5]) == pytest.approx(0.5 + far / 2)
    # Class 0 is near to both others, which are far from each other.
    near = [[0, 0.04, 0.04], [0.04, 0, 4], [0.04, 4, 0]]
    assert accuracy_bound(near, np.full(3, 1 / 3)) == pytest.approx(1 / 3 + (0.1 + 0.1) / 3)


def test_a_class_that_does_not_occur_does_not_lower_the_bound():
    absent = [[0, 1, math.inf], [1, 0, math.inf], [math.inf, math.inf, 0]]
    assert accuracy_bound([[0, 1], [1, 0]], [0.75, 0.25]) <= accuracy_bound(absent, [0.75, 0.25, 0.0]) <= 1.0


def test_one_class_against_the_rest_is_a_mean_over_the_rest():
    assert one_against_rest_bound([[0.0, 0.3], [0.3, 0.0]], [0.2, 0.8]) == pytest.approx(auc_bound(0.3))
    divergences = np.array([[0.0, 0.1, 2.0], [0.1, 0.0, 0.5], [2.0, 0.5, 0.0]])
    b = {value: auc_bound(value) for value in (0.1, 0.5, 2.0)}
    each = [
        (0.3 * b[0.1] + 0.2 * b[2.0]) / 0.5,
        (0.5 * b[0.1] + 0.2 * b[0.5]) / 0.7,
        (0.5 * b[2.0] + 0.3 * b[0.5]) / 0.8,
    ]
    assert one_against_rest_bound(divergences, [0.5, 0.3, 0.2]) == pytest.approx(max(each))
    assert one_against_rest_bound(np.full((3, 3), math.inf), [1, 1, 1]) == pytest.approx(1.0)


@pytest.mark.parametrize("bound", [one_against_rest_bound, accuracy_bound])
def test_divergences_and_shares_that_make_no_sense_are_refused(bound):
    for divergences, shares in (
        (np.zeros((2, 3)), [0.5, 0.5]),
        (np.zeros((1, 1)), [1.0]),
        (-np.ones((2, 2)), [0.5, 0.5]),
        (np.full((2, 2), math.nan), [0.5, 0.5]),
        (np.zeros((2, 2)), [-0.5, 1.5]),
        (np.zeros((2, 2)), [0.0, 1.0]),
    ):
        with pytest.raises(ArgumentError):
            bound(divergences, shares)


def test_the_accuracy_bound_of_classes_far_apart_is_1():
    assert accuracy_bound(gaussian_classes(100.0), np.full(4, 0.25)) == pytest.approx(1.0)
    assert accuracy_bound(np.where(np.eye(3) > 0, 0.0, math.inf), np.full(3, 1 / 3)) == 1.0
