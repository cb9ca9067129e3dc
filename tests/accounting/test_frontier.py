"""The numbers of "The open frontier" in docs/results/proof.md: limits of all mechanisms for two classes."""

import math
from itertools import product

import numpy as np
import pytest

from flower_vfl.accounting import Gaussian, Laplace, RandomisedResponse, Release, compose_epsilon


def channel(law, epsilon):
    """Return Q(x | answer), (2, n), which makes the law P(x | label), (2, n), out of a flipped label."""
    ratio = math.exp(epsilon)
    return np.stack([ratio * law[0] - law[1], ratio * law[1] - law[0]]) / (ratio - 1.0)


def answers(epsilon):
    """Return the law of a flipped label, (2, 2)."""
    flip = RandomisedResponse(epsilon).flip
    return np.array([[1.0 - flip, flip], [flip, 1.0 - flip]])


def laplace(scale, step=1.0 / 64):
    """Return the law of a target with discrete Laplace noise, on a grid."""
    at = np.arange(-40.0, 41.0, step)
    law = np.exp(-np.abs(at[None] - np.array([[0.0], [1.0]])) / scale)
    return law / law.sum(axis=1, keepdims=True)


def fresh_flips(epsilon, draws):
    """Return the law of `draws` flips of a label, drawn independently, (2, 2**draws)."""
    one = answers(epsilon)
    every = np.array(list(product((0, 1), repeat=draws)))
    return np.stack([one[label][every].prod(axis=1) for label in (0, 1)])


def gaussian(sigma):
    """Return the law of a target with Gaussian noise, on a grid."""
    at = np.arange(-12.0 * sigma, 12.0 * sigma + 1.0, sigma / 2000.0)
    law = np.exp(-((at[None] - np.array([[0.0], [1.0]])) ** 2) / (2.0 * sigma**2))
    return law / law.sum(axis=1, keepdims=True)


@pytest.mark.parametrize(
    ("law", "epsilon"),
    [
        (laplace(2.0), Laplace(2.0).pure),
        (laplace(1.0), Laplace(1.0).pure),
        (fresh_flips(1.0 / 6, 6), compose_epsilon([Release(RandomisedResponse(1.0 / 6), draws=6)])),
        (fresh_flips(0.5, 3), compose_epsilon([Release(RandomisedResponse(0.5), draws=3)])),
    ],
    ids=["laplace 2", "laplace 1", "six flips", "three flips"],
)
def test_what_is_private_with_epsilon_is_computed_from_a_label_flipped_once(law, epsilon):
    made = channel(law, epsilon)
    assert made.min() > -1e-12
    assert made.sum(axis=1) == pytest.approx([1.0, 1.0], abs=1e-9)
    assert answers(epsilon) @ made == pytest.approx(law, abs=1e-12)
    assert channel(law, 0.9 * epsilon).min() < -1e-6  # a smaller epsilon is not enough


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 2.0])
def test_gaussian_noise_lacks_its_delta_and_nothing_else(epsilon):
    noise = Gaussian(2.2)
    law = gaussian(noise.sigma)
    lacking = -np.minimum(channel(law, epsilon), 0.0).sum(axis=1) * (math.exp(epsilon) - 1.0)
    assert lacking == pytest.approx([float(noise.delta(np.array([epsilon]))[0])] * 2, abs=1e-5)


def test_fresh_gaussian_noise_in_each_epoch_costs_what_its_mean_costs_that_is_drawn_once():
    fresh = compose_epsilon([Release(Gaussian(2.0), draws=6)], 1e-6)
    kept = compose_epsilon([Release(Gaussian(2.0 / math.sqrt(6.0)), kept=True)], 1e-6)
    assert fresh == pytest.approx(kept, abs=1e-9)


def test_noise_that_cancels_over_people_costs_what_the_leverage_of_a_row_says():
    rng = np.random.default_rng(0)
    z = np.hstack([rng.normal(size=(200, 5)), np.ones((200, 1))])
    projection = z @ np.linalg.solve(z.T @ z, z.T)
    a, b = 4.0, 0.05
    covariance = a * (np.eye(200) - (1.0 - b) * projection)
    exact = np.diag(np.linalg.inv(covariance))  # squared separation of the two labels of each row
    assert exact == pytest.approx((1.0 + (1.0 / b - 1.0) * np.diag(projection)) / a, rel=1e-9)
    inside = np.linalg.pinv(z) @ covariance @ np.linalg.pinv(z).T
    assert inside == pytest.approx(a * b * np.linalg.inv(z.T @ z), rel=1e-9)
