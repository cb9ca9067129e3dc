"""Composed epsilons agree with closed forms, and discretised ones are never below these."""

import math
import subprocess
import sys
from itertools import product

import mpmath
import pytest
from dp_accounting.pld import privacy_loss_distribution
from scipy.optimize import brentq

from flower_vfl.accounting import (
    Bounded,
    Gaussian,
    Laplace,
    RandomisedResponse,
    Release,
    calibrate,
    compose_epsilon,
    largest_auc,
)
from flower_vfl.errors import ArgumentError, SetupError
from tests.cases import parametrize

CLOSE = 1e-3
"""Largest difference by which a discretised epsilon may be above the true one."""


def optimal_composition(epsilon, draws, delta):
    """Return the epsilon of optimal composition by Kairouz, Oh, Viswanath (2015), Theorem 2, for any delta."""
    total = draws * math.log1p(math.exp(epsilon))

    def excess(target):
        terms = (
            math.comb(draws, k) * (math.exp((draws - k) * epsilon - total) - math.exp(target + k * epsilon - total))
            for k in range(draws + 1)
            if (draws - 2 * k) * epsilon > target
        )
        return sum(terms) - delta

    return brentq(excess, 0.0, draws * epsilon, xtol=1e-12) if excess(0.0) > 0.0 else 0.0


def balle_wang(separation, delta):
    """Return the epsilon of the analytic Gaussian mechanism, by bisection with 50 digits."""
    with mpmath.workdps(50):
        half, low, high = mpmath.mpf(separation) / 2, mpmath.mpf(0), mpmath.mpf(separation**2 + 8 * separation)
        for _ in range(60):
            epsilon = (low + high) / 2
            more = mpmath.ncdf(half - epsilon / separation)
            enough = more - mpmath.exp(epsilon) * mpmath.ncdf(-half - epsilon / separation) <= delta
            low, high = (low, epsilon) if enough else (epsilon, high)
        return float(high)


@pytest.mark.parametrize(
    ("epsilon", "draws"), [(1.0, 1), (1.0, 2), (0.5, 30), (0.1, 100), (3.0, 12), (0.02, 300)], ids=str
)
def test_randomised_response_composes_as_the_optimal_theorem_says(epsilon, draws):
    for mechanism, delta in product((RandomisedResponse(epsilon), Bounded(epsilon)), (1e-3, 1e-6)):
        exact = optimal_composition(epsilon, draws, delta)
        found = compose_epsilon([Release(mechanism, draws)], delta)
        assert exact - 1e-12 <= found <= exact + 1e-6, delta


@parametrize(("sigma", "draws"), [(1.0, 1), (2.0, 6), (5.0, 100), (1.5, 3), (30.0, 1000)], ids=str, quick=1)
def test_gaussians_compose_to_the_analytic_one_and_their_losses_never_below_it(sigma, draws):
    release = Release(Gaussian(sigma), draws)
    beside = Release(Laplace(1e6))  # another mechanism, which adds 1e-6
    for delta in (1e-5, 1e-9):
        exact = balle_wang(math.sqrt(draws) / sigma, delta)
        assert compose_epsilon([release], delta) == pytest.approx(exact, abs=1e-6)
        assert exact <= compose_epsilon([release, beside], delta) <= exact + CLOSE


def test_classes_that_neither_label_is_cost_nothing():
    """The reference sums over all nine outcomes of two draws with three classes."""
    kept, other = math.exp(0.7) / (math.exp(0.7) + 2.0), 1.0 / (math.exp(0.7) + 2.0)
    one, two = (kept, other, other), (other, kept, other)
    pairs = [(one[a] * one[b], two[a] * two[b]) for a, b in product(range(3), repeat=2)]
    exact = brentq(lambda e: sum(max(0.0, p - math.exp(e) * q) for p, q in pairs) - 0.02, 0.0, 1.4)
    found = compose_epsilon([Release(RandomisedResponse(0.7, 3), 2)], 0.02)
    assert exact <= found <= exact + 1e-6
    assert found < compose_epsilon([Release(RandomisedResponse(0.7), 2)], 0.02) - 0.01


def test_different_mechanisms_compose_as_the_library_composes_its_own():
    exact = privacy_loss_distribution.from_gaussian_mechanism(2.0, value_discretization_interval=1e-4)
    laplace = privacy_loss_distribution.from_laplace_mechanism(4.0, value_discretization_interval=1e-4)
    exact = exact.self_compose(4).compose(laplace.self_compose(6)).get_epsilon_for_delta(1e-6)
    found = compose_epsilon([Release(Gaussian(2.0), 4), Release(Laplace(4.0, coordinates=2), 3)], 1e-6)
    assert found == pytest.approx(exact, abs=1e-4)


def test_a_one_hot_target_counts_twice():
    assert compose_epsilon([Release(Laplace(2.0, coordinates=2), 3)]) == 3.0
    one, two = Release(Gaussian(2.0), 8), Release(Gaussian(2.0, coordinates=2), 4)
    assert compose_epsilon([one], 1e-6) == compose_epsilon([two], 1e-6)


def test_at_delta_0_epsilons_add_up_over_epochs_and_trainings():
    releases = [Release(RandomisedResponse(1.0), kept=True), Release(Laplace(4.0), 6), Release(Bounded(0.25))]
    assert compose_epsilon(releases) == 2.75
    assert compose_epsilon([]) == 0.0
    assert compose_epsilon([*releases, Release(Gaussian(100.0))]) == math.inf
    assert compose_epsilon([Release(Bounded(1.0, 1e-6))]) == math.inf


def test_a_slack_above_the_delta_has_no_epsilon_and_below_it_adds_up():
    assert compose_epsilon([Release(Bounded(1.0, 1e-5))], 1e-6) == math.inf
    assert compose_epsilon([Release(Bounded(1.0, 1e-6), 2)], 3e-6) == pytest.approx(2.0, abs=1e-3)


@pytest.mark.parametrize(
    ("make", "delta"),
    [
        (lambda noise: RandomisedResponse(1.0 / noise, 3), 0.0),
        (lambda noise: RandomisedResponse(1.0 / noise), 1e-5),
        (Laplace, 1e-5),
        (Gaussian, 1e-6),
    ],
)
def test_a_target_sets_the_least_noise_that_keeps_it(make, delta):
    noises = []
    calibrate(lambda noise: noises.append(noise) or make(noise), 1.5, delta, draws=20)
    found = noises[-1]
    assert compose_epsilon([Release(make(found), 20)], delta) <= 1.5
    assert compose_epsilon([Release(make(0.9999 * found), 20)], delta) > 1.5


def test_a_target_that_no_noise_meets_is_refused():
    with pytest.raises(ArgumentError, match=r"gaussian cannot reach epsilon 1 at delta 0 .* give a delta above 0"):
        calibrate(Gaussian, 1.0)
    with pytest.raises(ArgumentError, match=r"epsilon is 0: nothing would be left"):
        calibrate(Laplace, 0.0)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (lambda: compose_epsilon([], 1e-10), "delta must be 0, or at least 1e-09, given 1e-10"),
        (lambda: compose_epsilon([], 1.0), "from 0 to below 1, such as 1e-6, given 1.0"),
        (lambda: compose_epsilon([], math.nan), "from 0 to below 1"),
        (lambda: Release(Laplace(1.0), 0), "draws must be a whole number of at least 1, given 0"),
        (lambda: Release(Laplace(1.0), 2, kept=True), "drawn once, given draws=2"),
    ],
)
def test_what_cannot_be_composed_is_refused(wrong, words):
    with pytest.raises(ArgumentError, match=words):
        wrong()


def test_the_auc_of_an_epsilon_is_the_area_under_the_best_tests():
    """The reference is the area over the piecewise linear trade-off of errors that (epsilon, delta) allows."""
    epsilon, delta, count = 1.3, 0.05, 200_000
    levels = [k / count for k in range(count + 1)]
    errors = [max(0.0, 1.0 - delta - math.exp(epsilon) * a, math.exp(-epsilon) * (1.0 - delta - a)) for a in levels]
    area = 1.0 - (sum(errors) - (errors[0] + errors[-1]) / 2.0) / count
    assert largest_auc(epsilon, delta) == pytest.approx(area, abs=1e-6)
    assert largest_auc(1e6) == 1.0


def test_without_the_library_pure_epsilons_and_gaussians_compose_and_others_say_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "dp_accounting.pld", None)
    assert compose_epsilon([Release(Laplace(2.0), 6)]) == 3.0
    assert compose_epsilon([Release(Gaussian(2.0), 6)], 1e-6) == pytest.approx(6.1649, abs=1e-4)
    with pytest.raises(SetupError, match=r"pip install 'flower-vfl\[dp\]'"):
        compose_epsilon([Release(Laplace(2.0), 6)], 1e-6)


def test_importing_it_loads_neither_the_library_nor_torch():
    code = (
        "import sys, flower_vfl.accounting.ledger\n"
        "print([name for name in ('dp_accounting', 'torch', 'scipy', 'flwr') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"


def responses(epsilons):
    """Return the probabilities under labels 0 and 1 of each outcome of randomised responses with these epsilons."""
    found = {(): (1.0, 1.0)}
    for epsilon in epsilons:
        right = 1.0 / (1.0 + math.exp(-epsilon))
        answers = {0: (right, 1.0 - right), 1: (1.0 - right, right)}
        found = {(*k, o): (p * a, q * b) for k, (p, q) in found.items() for o, (a, b) in answers.items()}
    return found


def test_a_choice_by_the_outcome_before_exceeds_a_delta_that_each_choice_alone_keeps():
    """The example of docs/methods/label-privacy.md: composition holds for settings that were fixed beforehand."""
    first, choices, delta = 0.05, ([0.977], [0.24] * 5), 0.01
    for choice in choices:
        assert compose_epsilon([Release(RandomisedResponse(epsilon)) for epsilon in (first, *choice)], delta) <= 1.0
    chosen = {
        (o, *k): (p * a, q * b)
        for (o,), (p, q) in responses([first]).items()
        for k, (a, b) in responses(choices[o]).items()
    }
    assert sum(max(p - math.e * q, 0.0) for p, q in chosen.values()) == pytest.approx(0.0136, abs=5e-5)
