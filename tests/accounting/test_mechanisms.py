"""Each mechanism's divergence is that of its densities, and a description gives its mechanism back."""

import math

import numpy as np
import pytest
from scipy import integrate, stats

from flower_vfl.accounting import Bounded, Gaussian, Laplace, RandomisedResponse
from flower_vfl.accounting.mechanisms import from_facts
from flower_vfl.errors import ArgumentError
from tests.cases import parametrize

EPSILONS = np.array([-3.0, -1.0, -0.3, 0.0, 0.2, 0.9, 2.5])


def by_densities(one, other, kinks):
    """Return the divergence of two densities at each of EPSILONS, by quadrature."""

    def of(epsilon):
        excess = lambda x: max(0.0, one(x) - math.exp(epsilon) * other(x))  # noqa: E731
        return integrate.quad(excess, -80.0, 81.0, points=kinks, limit=2000, epsabs=1e-12)[0]

    return [of(epsilon) for epsilon in EPSILONS]


def by_outcomes(one, other):
    return [sum(max(0.0, p - math.exp(e) * q) for p, q in zip(one, other, strict=True)) for e in EPSILONS]


@parametrize("scale", [0.4, 1.0, 3.0], quick=1)
def test_laplace_has_the_divergence_of_its_densities(scale):
    density = lambda shift: stats.laplace(loc=shift, scale=scale).pdf  # noqa: E731
    expected = by_densities(density(0.0), density(1.0), [0.0, 0.5, 1.0])
    np.testing.assert_allclose(Laplace(scale).delta(EPSILONS), expected, atol=1e-6)


@parametrize("sigma", [0.5, 1.0, 4.0], quick=1)
def test_gaussian_has_the_divergence_of_its_densities(sigma):
    density = lambda shift: stats.norm(loc=shift, scale=sigma).pdf  # noqa: E731
    expected = by_densities(density(1.0), density(0.0), [0.0, 0.5, 1.0])
    np.testing.assert_allclose(Gaussian(sigma).delta(EPSILONS), expected, atol=1e-6)


@pytest.mark.parametrize("classes", [2, 3, 10])
def test_randomised_response_has_the_divergence_of_its_outcomes(classes):
    kept, other = math.e / (math.e + classes - 1), 1.0 / (math.e + classes - 1)
    one, two = [other] * classes, [other] * classes
    one[0] = two[1] = kept
    found = RandomisedResponse(1.0, classes)
    np.testing.assert_allclose(found.delta(EPSILONS), by_outcomes(one, two), atol=1e-12)
    assert found.flip == pytest.approx(1.0 - kept)


def test_a_bounded_mechanism_has_the_divergence_of_the_worst_one():
    """Kairouz, Oh, Viswanath: the label itself with probability delta, else one of two answers of odds e^epsilon."""
    kept = (1.0 - 1e-3) * math.e / (1.0 + math.e)
    one, two = [1e-3, kept, 1.0 - 1e-3 - kept, 0.0], [0.0, 1.0 - 1e-3 - kept, kept, 1e-3]
    np.testing.assert_allclose(Bounded(1.0, 1e-3).delta(EPSILONS), by_outcomes(one, two), atol=1e-12)


@pytest.mark.parametrize(
    "mechanism", [RandomisedResponse(0.3, 4), Laplace(2.0, coordinates=2), Gaussian(1.5), Bounded(0.0, 1e-6)], ids=repr
)
def test_a_description_gives_the_mechanism_back(mechanism):
    assert from_facts(mechanism.facts()) == mechanism


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({"mechanism": "laplace", "scale": 0.0}, "scale must be a finite number above 0, given 0.0"),
        ({"mechanism": "laplace", "scale": 1.0, "coordinates": 3}, "1, for a target of 0 or 1, or 2"),
        ({"mechanism": "gaussian", "sigma": math.inf}, "finite number above 0"),
        ({"mechanism": "gaussian", "scale": 1.0}, "gaussian does not take scale"),
        ({"mechanism": "randomised_response", "epsilon": 1.0, "classes": 1}, "at least 2, given 1"),
        ({"mechanism": "bounded", "epsilon": -1.0}, "at least 0, given -1"),
        ({"mechanism": "bounded", "epsilon": 1.0, "slack": 1.0}, "below 1"),
        ({"mechanism": "guess"}, "no mechanism 'guess'; there are randomised_response, laplace, gaussian, bounded"),
    ],
    ids=str,
)
def test_what_is_no_mechanism_is_refused(facts, words):
    with pytest.raises(ArgumentError, match=words):
        from_facts(facts)


def test_no_mechanism_reveals_more_bits_of_a_label_than_it_states():
    """Mutual information with equally likely labels; that of Laplace and Gaussian noise by a sum over a fine grid."""

    def information(one, other):
        mean = (one + other) / 2.0
        return float(sum(np.sum(p * np.log2(p / mean)) for p in (one, other)) / 2.0)

    for epsilon in (1e-3, 0.5, 3.0):
        kept = 1.0 / (1.0 + math.exp(-epsilon))
        exact = information(np.array([kept, 1.0 - kept]), np.array([1.0 - kept, kept]))
        assert exact <= RandomisedResponse(epsilon).bits <= 25.0 * exact
        assert RandomisedResponse(epsilon).bits == Bounded(epsilon).bits
    x = np.arange(-15.0, 16.0, 1e-3)
    for noise, of in ((Laplace(0.7), stats.laplace(scale=0.7)), (Gaussian(0.7), stats.norm(scale=0.7))):
        densities = [of.pdf(x - y) * 1e-3 for y in (0.0, 1.0)]
        divergence = float(np.sum(densities[0] * (of.logpdf(x) - of.logpdf(x - 1.0))) / math.log(2.0))
        assert information(*densities) <= divergence <= noise.bits * (1.0 + 1e-6)
    assert Gaussian(0.7, coordinates=2).bits == pytest.approx(2.0 / (2.0 * 0.49) / math.log(2.0))
    assert Bounded(1.0, 1e-6).bits == math.inf
