"""Composition: the epsilon of all draws of one label together.

A mechanism is applied to a label once an epoch where noise is drawn for each epoch, and once in all where it is drawn
once and kept. The batches of an epoch have different rows, so they count once for each label (parallel composition).
No amplification by subsampling is claimed: parties see the rows of each batch.

At delta 0 epsilons add up. For a delta above 0 privacy loss distributions are composed, by Google's `dp-accounting`;
Gaussians alone compose exactly, without it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from flower_vfl.accounting.mechanisms import Gaussian, Mechanism, check_delta, check_epsilon, gaussian_delta
from flower_vfl.errors import ArgumentError, SetupError

SMALLEST_DELTA = 1e-9
"""Smallest delta above 0: rounding errors of a composition would count below it."""

_ROUNDING = 1e-12
"""Part of delta that is set aside for rounding errors of Fourier transforms."""

_INTERVAL, _POINTS, _TAIL = 1e-4, 400_000, 1e-15
_EXACT = 1e-7


@dataclass(frozen=True)
class Release:
    """A mechanism, and the number of times that it is applied to each label in one training.

    Attributes
    ----------
    mechanism : Mechanism
        The mechanism.
    draws : int
        Number of times that it is applied to one label, with independent noise each: the epochs, or 1.
    kept : bool
        True if the noise is drawn once, before training, from the secret, the labels and the mechanism alone. Another
        training with the same secret then repeats the noise and reveals nothing more.
    """

    mechanism: Mechanism
    draws: int = 1
    kept: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.draws, bool) or not isinstance(self.draws, int) or self.draws < 1:
            raise ArgumentError(f"draws must be a whole number of at least 1, given {self.draws!r}")
        if self.kept and self.draws > 1:
            raise ArgumentError(f"noise that is drawn once and kept is drawn once, given draws={self.draws}")


def compose_epsilon(releases: Iterable[Release], delta: float = 0.0) -> float:
    r"""Return the epsilon of several releases of the same labels together; infinity if no finite one holds.

    Parameters
    ----------
    releases : iterable of Release
        The releases, each with independent noise.
    delta : float
        0, or from 1e-9 to below 1. At 0 this is the sum of all epsilons.

    Returns
    -------
    float
        Never below the true value; for a delta above 0 at most 1e-3 above it, where it is below 600.

    Raises
    ------
    ArgumentError
        When delta is out of range.
    SetupError
        When `dp-accounting` is needed and missing.

    Examples
    --------
    >>> from flower_vfl.accounting import Gaussian, Laplace
    >>> compose_epsilon([Release(Laplace(2.0), draws=6)])
    3.0
    >>> round(compose_epsilon([Release(Gaussian(2.0), draws=6)], delta=1e-6), 4)
    6.1649
    """
    check_delta(delta)
    if 0.0 < delta < SMALLEST_DELTA:
        raise ArgumentError(f"delta must be 0, or at least {SMALLEST_DELTA}, given {delta!r}")
    counts = Counter[Mechanism]()  # number of coordinates that each mechanism draws
    for release in releases:
        counts[release.mechanism] += release.draws * release.mechanism.coordinates
    total = sum(count * mechanism.pure / mechanism.coordinates for mechanism, count in counts.items())
    if delta == 0.0 or not counts:
        return float(total)
    if all(isinstance(mechanism, Gaussian) for mechanism in counts):
        return _gaussian_epsilon(counts, delta)
    composed = _composed_distribution(tuple(counts.items()))
    return min(float(total), float(composed.get_epsilon_for_delta(delta - _ROUNDING)))


def largest_auc(epsilon: float, delta: float = 0.0) -> float:
    r"""Return the largest AUC with which two labels of one person, all else equal, can be distinguished.

    .. math:: 1 - \frac{(1 - \delta)^2}{1 + e^\varepsilon}

    At delta 0 randomised response reaches it, and no test has a higher power at any level [Kairouz et al., *The
    composition theorem for differential privacy*, 2015].

    Examples
    --------
    >>> [round(largest_auc(epsilon), 3) for epsilon in (0.5, 1.0, 2.0)]
    [0.622, 0.731, 0.881]
    """
    return 1.0 - (1.0 - delta) ** 2 / (1.0 + math.exp(min(epsilon, 700.0)))


def calibrate(make: Callable[[float], Mechanism], epsilon: float, delta: float = 0.0, *, draws: int = 1) -> Mechanism:
    """Return the mechanism with the least noise that keeps within an epsilon.

    Parameters
    ----------
    make : Callable[[float], Mechanism]
        Makes the mechanism for a level of noise above 0; more noise must give a smaller epsilon.
    epsilon : float
        The target, above 0.
    delta : float
        Delta of the target.
    draws : int
        Number of times that the mechanism is applied to one label.

    Raises
    ------
    ArgumentError
        When no level of noise reaches the target.

    Examples
    --------
    >>> from flower_vfl.accounting import Gaussian, RandomisedResponse
    >>> round(calibrate(lambda noise: RandomisedResponse(1.0 / noise), 3.0, draws=6).epsilon, 6)
    0.5
    >>> round(calibrate(Gaussian, 1.0, 1e-6).sigma, 4)
    4.2247
    """
    from scipy.optimize import brentq

    check_epsilon(epsilon)
    if not epsilon:
        raise ArgumentError("epsilon is 0: nothing would be left of the labels; give one above 0")

    def excess(exponent: float) -> float:
        found = compose_epsilon([Release(make(math.exp(exponent)), draws)], delta)
        return math.log(max(found, 1e-300)) - math.log(epsilon) if found < math.inf else math.inf

    high = low = math.log(draws / epsilon)
    reached = excess(high)
    while reached > 0.0:
        high += 1.0
        if high > low + 40.0:
            raise ArgumentError(
                f"{make(1.0).name} cannot reach epsilon {epsilon:g} at delta {delta:g} with {draws} draws, with any "
                "noise; give a delta above 0, such as 1e-6"
            )
        reached = excess(high)
    while excess(low) <= 0.0:
        low -= 1.0
    exponent = brentq(lambda at: min(excess(at), 50.0), low, high, xtol=_EXACT)
    step = _EXACT
    while excess(exponent) > 0.0:
        exponent, step = exponent + step, 2.0 * step
    return make(math.exp(exponent))


def _gaussian_epsilon(counts: Counter[Mechanism], delta: float) -> float:
    """Return the epsilon of Gaussian mechanisms, which compose to one [Dong, Roth, Su, 2019, corollary 3.3]."""
    from scipy.optimize import brentq

    squares = (n / one.sigma**2 for one, n in counts.items() if isinstance(one, Gaussian))
    separation = math.sqrt(sum(squares))
    if gaussian_delta(separation, 0.0) <= delta:
        return 0.0
    most = separation**2 / 2.0 + separation * math.sqrt(2.0 * math.log(1.0 / delta)) + 1.0
    return float(brentq(lambda epsilon: float(gaussian_delta(separation, epsilon)) - delta, 0.0, most, xtol=1e-13))


@lru_cache(maxsize=2)  # for several deltas; each has up to `_POINTS` points
def _composed_distribution(counts: tuple[tuple[Mechanism, int], ...]) -> Any:
    distributions = _dp_accounting()
    interval = _interval(dict(counts))
    found = None
    for mechanism, count in counts:
        one = _discretised(mechanism, interval).self_compose(count, _TAIL)
        found = one if found is None else found.compose(one, _TAIL)
    return distributions.identity(interval) if found is None else found


def _interval(counts: Mapping[Mechanism, int]) -> float:
    """Return the step of the grid of privacy losses: small for small losses, but with a bounded number of points."""
    most = sum(count * mechanism.largest_loss for mechanism, count in counts.items())
    square = sum(count * mechanism.spread**2 for mechanism, count in counts.items())
    usual = square / 2.0 + 9.0 * math.sqrt(square)  # the probability beyond it is below `_TAIL`
    smallest = min((mechanism.largest_loss for mechanism in counts if mechanism.largest_loss), default=1.0)
    return max(min(_INTERVAL, smallest / 20.0), min(most, usual) / _POINTS)


def _discretised(mechanism: Mechanism, interval: float) -> Any:
    """Return the privacy loss distribution of one coordinate."""
    from dp_accounting.pld import pld_pmf

    most = max(1, math.ceil(mechanism.largest_loss / interval))
    deltas = np.clip(mechanism.delta(interval * np.arange(-most, most + 1, dtype=np.float64)), 0.0, 1.0)
    mass = pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap(interval, -most, most, deltas)
    return _dp_accounting().PrivacyLossDistribution(mass.to_dense_pmf())


def _dp_accounting() -> Any:
    try:
        from dp_accounting.pld import privacy_loss_distribution
    except ImportError as error:
        raise SetupError(
            f"an epsilon at a delta above 0 needs dp-accounting, which cannot be imported ({error}): "
            "pip install 'flower-vfl[dp]'. At delta 0 epsilons add up without it"
        ) from None
    return privacy_loss_distribution
