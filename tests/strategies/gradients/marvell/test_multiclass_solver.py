"""Marvell's noise for any number of classes: against other solvers, its certificate, and where arguments are zero."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

from flower_vfl.metrics import ArgumentError
from flower_vfl.strategies.gradients.marvell.multiclass_solver import ClassProblem, least_levels, optimal_levels
from flower_vfl.strategies.gradients.marvell.solver import least_power, optimal_noise


def problem(seed, classes, rank, width, *, wide=False, zero=False):
    """Return a random problem whose class means span `rank` axes; the last group, if any, has the other directions."""
    rng = np.random.default_rng(seed)
    places = rng.normal(size=(classes, rank)) * np.exp(rng.normal(size=rank) * (2.0 if wide else 0.5))
    sizes = np.ones(rank + (width > rank))
    sizes[rank:] = width - rank
    distances = np.zeros((len(sizes), classes, classes))
    distances[:rank] = (places.T[:, :, None] - places.T[:, None, :]) ** 2
    variances = np.exp(rng.normal(size=(1, classes)) * (2.0 if wide else 0.7) - (rng.uniform(0, 10) if wide else 1.0))
    variances = np.repeat(variances, len(sizes), axis=0)
    if zero:
        variances[:, 0] = 0.0
    return ClassProblem(sizes, distances, variances, rng.dirichlet(np.full(classes, 5.0)))


def mean_distance(p):
    """Return the mean squared distance of two class means."""
    return p.distances.sum() / (len(p.shares) * (len(p.shares) - 1))


def slow_divergence(p, levels, c, k):
    """Return the symmetric divergence of two Gaussians by the textbook; in a group, means differ on one axis."""
    total = 0.0
    for i, size in enumerate(p.sizes.astype(int)):
        one, other = (np.eye(size) * (p.variances[i, j] + levels[i, j]) for j in (c, k))
        delta = np.zeros(size)
        delta[0] = math.sqrt(p.distances[i, c, k])
        for here, there in ((one, other), (other, one)):
            inverse = np.linalg.inv(there)
            logs = np.linalg.slogdet(there)[1] - np.linalg.slogdet(here)[1]
            total += 0.5 * (np.trace(inverse @ here) + delta @ inverse @ delta - size + logs)
    return total


def reference(p, power, starts):
    """Return the least sum of divergences that SLSQP finds from several starts; it is not convex in the variances."""
    shape, best = p.variances.shape, math.inf
    rng = np.random.default_rng(0)

    def total(x):
        return p.divergences(np.exp(x).reshape(shape)).sum() / 2

    budget = {"type": "ineq", "fun": lambda x: 1.0 - p.power(np.exp(x).reshape(shape)) / power}
    for _ in range(starts):
        start = np.log(power / p.cost.sum() * rng.uniform(0.2, 0.9, size=shape))
        found = minimize(total, start.ravel(), method="SLSQP", constraints=[budget], options={"maxiter": 500})
        levels = np.exp(found.x).reshape(shape)
        levels *= min(1.0, power / p.power(levels))
        best = min(best, p.divergences(levels).sum() / 2)
    return best


@pytest.mark.parametrize(("classes", "rank", "width"), [(3, 1, 4), (3, 2, 2), (4, 2, 3)])
def test_divergences_are_those_of_gaussians(classes, rank, width):
    p = problem(1, classes, rank, width)
    levels = np.random.default_rng(2).uniform(0, 2, size=p.variances.shape)
    found = p.divergences(levels)
    for c in range(classes):
        for k in range(classes):
            assert found[c, k] == pytest.approx(slow_divergence(p, levels, c, k), abs=1e-12)


@settings(max_examples=200)
@given(
    seed=st.integers(0, 10**6),
    width=st.sampled_from([1, 2, 8, 128]),
    power=st.floats(-6, 6),
    wide=st.booleans(),
)
@example(seed=370, width=2, power=0.0, wide=True)
def test_two_classes_get_the_noise_of_the_solver_for_two(seed, width, power, wide):
    p = problem(seed, 2, 1, width, wide=wide)
    spent = math.exp(power) * mean_distance(p)
    found = optimal_levels(p, spent)
    expected = optimal_noise(*p.variances[0], width, p.distances[0, 0, 1], p.shares[1], spent)
    assert found.total == pytest.approx(expected.sum_kl, rel=1e-9)
    assert found.total == pytest.approx(found.largest, rel=1e-12)
    assert p.power(found.levels) == pytest.approx(spent, rel=1e-12)
    # The divergence depends on the sum of variance and noise, so noise far below the variance is known to its rounding.
    apart = 1e-4 * max(expected.lam1_neg, expected.lam1_pos) + 1e-8 * p.variances[0].min()
    assert found.levels[0] == pytest.approx([expected.lam1_neg, expected.lam1_pos], rel=1e-4, abs=apart)


@settings(max_examples=300)
@given(
    seed=st.integers(0, 10**6),
    classes=st.integers(2, 12),
    rank=st.integers(1, 11),
    across=st.sampled_from([0, 1, 30, 1000]),
    power=st.floats(-8, 8),
    wide=st.booleans(),
    zero=st.booleans(),
)
@example(seed=152588, classes=10, rank=1, across=1000, power=7.4375, wide=False, zero=False)
def test_the_certificate_proves_every_solution(seed, classes, rank, across, power, wide, zero):
    p = problem(seed, classes, min(rank, classes - 1), min(rank, classes - 1) + across, wide=wide, zero=zero)
    spent = math.exp(power) * mean_distance(p)
    found = optimal_levels(p, spent)
    assert (found.levels >= 0).all()
    assert p.power(found.levels) == pytest.approx(spent, rel=1e-9)
    assert 0.0 <= found.gap <= 1e-6 * found.total + 1e-8


@pytest.mark.parametrize("seed", range(8))
def test_no_other_optimizer_finds_better_noise(seed):
    classes, rank = [(2, 1), (3, 1), (3, 2), (4, 2)][seed % 4]
    p = problem(seed, classes, rank, rank + 3 * (seed % 2))
    power = [0.3, 2.0][seed // 4] * mean_distance(p)
    found, other = optimal_levels(p, power), reference(p, power, starts=6)
    assert found.total <= other * (1 + 1e-7)
    assert found.total == pytest.approx(other, rel=1e-3)


def test_a_wrong_answer_is_not_certified():
    p = problem(3, 4, 3, 10)
    power = 2.0 * mean_distance(p)
    found = optimal_levels(p, power)
    rng = np.random.default_rng(0)
    for _ in range(20):
        other = found.levels * rng.uniform(0.5, 2.0, size=found.levels.shape)
        other *= power / p.power(other)
        lost = p.divergences(other).sum() / 2 - found.total
        assert p.solved(other, 1.0).gap >= lost > 1e-6


@settings(max_examples=100)
@given(seed=st.integers(0, 10**6), classes=st.integers(3, 8), power=st.floats(-6, 6))
def test_more_power_leaves_a_smaller_divergence(seed, classes, power):
    p = problem(seed, classes, 2, 12)
    totals = [optimal_levels(p, math.exp(power + more) * mean_distance(p)).total for more in (0.0, 0.1, 1.0)]
    assert totals[0] > totals[1] > totals[2]


@settings(max_examples=100)
@given(seed=st.integers(0, 10**6), scale=st.integers(-60, 60))
def test_the_scale_changes_nothing(seed, scale):
    p = problem(seed, 4, 3, 20)
    unit = 2.0**scale
    larger = ClassProblem(p.sizes, p.distances * unit, p.variances * unit, p.shares)
    here, there = optimal_levels(p, 2.0 * mean_distance(p)), optimal_levels(larger, 2.0 * unit * mean_distance(p))
    assert there.total == pytest.approx(here.total, rel=1e-9)
    assert there.levels / unit == pytest.approx(here.levels, rel=1e-3, abs=1e-5 * here.levels.max())


def test_noise_on_every_axis_by_itself_is_never_worse_than_one_level_within_the_span():
    gains = []
    for seed in range(20):
        p = problem(seed, 5, 4, 12, wide=bool(seed % 2))
        span = ClassProblem(
            np.array([4.0, 8.0]),
            np.stack([p.distances[:4].sum(axis=0), p.distances[4]]),
            np.stack([p.variances[:4].mean(axis=0), p.variances[4]]),
            p.shares,
        )
        gains.append(optimal_levels(span, mean_distance(p)).total / optimal_levels(p, mean_distance(p)).total)
    assert min(gains) >= 1.0
    assert max(gains) > 1.5


def test_in_a_regular_simplex_with_one_level_in_its_span_equal_classes_share_it():
    p = ClassProblem(np.array([3.0]), 2.0 * (1.0 - np.eye(4))[None], np.full((1, 4), 0.1), np.full(4, 0.25))
    noise = optimal_levels(p, 6.0)
    assert noise.levels == pytest.approx(np.full((1, 4), 2.0), rel=1e-9)
    assert noise.divergences[0, 1] == pytest.approx(2.0 / 2.1, rel=1e-9)  # squared distance / variance


def test_noise_that_all_classes_share_is_spread_by_the_roots_of_the_distances():
    # For two classes without spread the optimum is the same for both: P sqrt(m_i) / sum sqrt(m).
    distances = np.array([[[0.0, 4.0], [4.0, 0.0]], [[0.0, 1.0], [1.0, 0.0]]])
    p = ClassProblem(np.ones(2), distances, np.zeros((2, 2)), np.full(2, 0.5))
    assert optimal_levels(p, 3.0).levels == pytest.approx(np.array([[2.0, 2.0], [1.0, 1.0]]), rel=1e-9)


def test_equal_means_and_power_to_spare_take_the_least_power_that_makes_classes_equal():
    p = ClassProblem(np.array([5.0]), np.zeros((1, 3, 3)), np.array([[1.0, 2.0, 3.0]]), np.full(3, 1 / 3))
    noise = optimal_levels(p, 100.0)
    assert noise.levels.tolist() == [[2.0, 1.0, 0.0]]
    assert (noise.total, noise.gap) == (0.0, 0.0)
    short = optimal_levels(p, 2.0)
    assert 0.0 < short.total < p.divergences(0 * short.levels).sum() / 2
    assert short.gap < 1e-9 * short.total
    assert short.levels[0, 2] == 0.0


def test_without_power_there_is_no_noise():
    p = problem(0, 3, 2, 4)
    noise = optimal_levels(p, 0.0)
    assert not noise.levels.any()
    assert noise.total == p.divergences(np.zeros_like(p.variances)).sum() / 2
    points = ClassProblem(p.sizes, p.distances, np.zeros_like(p.variances), p.shares)
    assert optimal_levels(points, 0.0).largest == math.inf
    assert optimal_levels(points, 1.0).largest < math.inf


@settings(max_examples=100)
@given(seed=st.integers(0, 10**6), classes=st.integers(2, 10), target=st.floats(-4, 2), wide=st.booleans())
def test_a_target_is_met_with_the_least_power(seed, classes, target, wide):
    p, largest = problem(seed, classes, classes - 1, classes + 20, wide=wide), math.exp(target)
    power, noise = least_levels(p, largest)
    assert noise.largest <= largest
    assert p.divergences(noise.levels).max() <= largest * (1 + 1e-12)
    if power > 0.0:
        assert p.power(noise.levels) == pytest.approx(power, rel=1e-12)
        assert optimal_levels(p, power * 0.999).largest > largest * 0.999
    else:
        assert not noise.levels.any()
    if classes == 2:
        expected = least_power(*p.variances[0], 22, p.distances[0, 0, 1], p.shares[1], largest)[0]
        assert power == pytest.approx(expected, rel=1e-8)


@pytest.mark.filterwarnings("error")
def test_directions_without_spread_or_distance_do_not_change_the_noise_for_a_target():
    p = problem(5, 4, 3, 30)
    p.variances[3] = 0.0
    power, noise = least_levels(p, 0.5)
    alone = ClassProblem(p.sizes[:3], p.distances[:3], p.variances[:3], p.shares)
    assert power == pytest.approx(least_levels(alone, 0.5)[0], rel=1e-9)
    assert not noise.levels[3].any()


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("power", [1e8, 1e9, 1e11, 1e15, 1e100, 1e300])
def test_very_large_power_makes_the_divergence_vanish(power):
    p = problem(7, 5, 3, 10)
    noise = optimal_levels(p, power)
    assert p.power(noise.levels) == pytest.approx(power, rel=1e-9)
    assert noise.largest <= 20.0 * p.distances.sum(axis=0).max() / power
    assert noise.gap <= 1e-6 + noise.total


def test_impossible_arguments_are_refused():
    good = problem(0, 3, 2, 4)
    for power in (-1.0, math.inf, math.nan):
        with pytest.raises(ArgumentError, match="power must be"):
            optimal_levels(good, power)
    for target in (0.0, -1.0, math.inf):
        with pytest.raises(ArgumentError, match="target must be"):
            least_levels(good, target)
    with pytest.raises(ArgumentError, match="finite and at least 0"):
        ClassProblem(good.sizes, -good.distances, good.variances, good.shares)
    with pytest.raises(ArgumentError, match="shares above 0"):
        ClassProblem(good.sizes, good.distances, good.variances, np.array([1.0, 0.0, 0.0]))
    with pytest.raises(ArgumentError, match=r"\(M, C, C\)"):
        ClassProblem(good.sizes, good.distances[:, :2], good.variances, good.shares)
