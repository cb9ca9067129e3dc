r"""Lower bounds on the epsilon of a training run, from an attacker's guesses of labels by its messages.

A mechanism is :math:`\varepsilon`-label-private if a change of one label changes the probability of any output by a
factor of at most :math:`e^\varepsilon`. So the messages change the odds of a label by that factor at most, and guesses
that are right more often than that allows refute this epsilon.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from flower_vfl.errors import ArgumentError

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

LARGEST_EPSILON = 30.0
"""The largest bound that is returned."""

_HALVINGS = 26
_SHORT = 9
_GRID = np.arange(0.0, LARGEST_EPSILON, 0.05)


def coin_bound(
    right: ArrayLike, guesses: ArrayLike, *, delta: float = 0.0, canaries: int = 0, beta: float = 0.05
) -> NDArray[np.float64]:
    r"""Return a lower bound on epsilon with confidence 1 - beta, from guesses of fair coins.

    The labels of m rows, the canaries, were drawn by a fair coin. An attacker that has seen the messages guesses r of
    them, which it may choose, and v guesses are right. With :math:`q = e^\varepsilon / (1 + e^\varepsilon)` and
    :math:`W \sim \mathrm{Bin}(r, q)`, an :math:`(\varepsilon, \delta)`-private mechanism has

    .. math:: P[V \ge v] \le P[W \ge v] + 2 m \delta \max_{1 \le i \le v} \frac{P[v - i \le W < v]}{i}

    The bound is the largest epsilon up to which the right-hand side stays below beta. Without a delta that is the logit
    of Clopper and Pearson's lower bound on the share of right guesses.

    Parameters
    ----------
    right, guesses
        (...) numbers v and r of each audit; 0 guesses give 0.
    delta
        The delta of the claim, at least 0 and below 1.
    canaries
        Number m of canaries; needed with a delta.
    beta
        One minus the confidence, between 0 and 1.

    Returns
    -------
    NDArray
        (...) bounds from 0 to `LARGEST_EPSILON`.

    Raises
    ------
    ArgumentError
        For numbers out of range.

    References
    ----------
    Steinke, Nasr and Jagielski, *Privacy auditing with one (1) training run*, 2023, arXiv 2305.08846, theorem 5.2.

    Examples
    --------
    >>> coin_bound([75, 50, 0], [100, 100, 0]).round(3).tolist()
    [0.702, 0.0, 0.0]
    >>> round(float(coin_bound(75, 100, delta=1e-4, canaries=1000)), 3)
    0.673
    """
    v, r = np.broadcast_arrays(np.asarray(right, dtype=np.int64), np.asarray(guesses, dtype=np.int64))
    _check(v, r, beta)
    if not 0.0 <= delta < 1.0 or (delta > 0.0 and canaries < r.max(initial=0)):
        raise ArgumentError(
            f"A delta of {delta} with {canaries} canaries and {r.max(initial=0)} guesses: a delta is at least 0 and "
            "below 1, and with one the number of canaries is needed, no fewer than guesses."
        )
    if delta > 0.0:
        found = [_with_delta(int(a), int(b), delta, canaries, beta) for a, b in zip(v.flat, r.flat, strict=True)]
        return np.array(found).reshape(v.shape)
    from scipy.special import betaincinv, logit

    share = np.where(v > 0, betaincinv(np.maximum(v, 1), r - v + 1.0, beta), 0.5)
    return np.asarray(np.clip(logit(np.maximum(share, 0.5)), 0.0, LARGEST_EPSILON))


def _with_delta(v: int, r: int, delta: float, canaries: int, beta: float) -> float:
    """Return the bound of one audit at a delta: the first epsilon on a grid that is not refuted, refined."""
    if v == 0:
        return 0.0

    def probability(epsilon: float) -> float:
        return coin_p_value(v, r, epsilon, delta=delta, canaries=canaries)

    above = next((epsilon for epsilon in _GRID if probability(float(epsilon)) >= beta), LARGEST_EPSILON)
    if above == 0.0:
        return 0.0
    low, high = float(above) - 0.05, float(above)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if probability(middle) < beta else (low, middle)
    return low


def coin_p_value(right: int, guesses: int, epsilon: float, *, delta: float = 0.0, canaries: int = 0) -> float:
    r"""Return the largest probability of that many right guesses of coins under a claimed epsilon and delta.

    It is the right-hand side of the inequality of `coin_bound`, for coins of two classes; `odds_p_value` is for more.

    Parameters
    ----------
    right, guesses
        Numbers of right guesses and of all guesses.
    epsilon, delta
        The claim.
    canaries
        Number of canaries; needed with a delta.

    Examples
    --------
    >>> round(coin_p_value(75, 100, 0.702), 3), round(coin_p_value(75, 100, 1.0), 3)
    (0.05, 0.383)
    """
    from scipy.stats import binom

    q = 1.0 / (1.0 + math.exp(-epsilon))
    below, more = right - 1, 0.0
    if delta > 0.0 and right > 0:
        fewer = np.arange(1, right + 1)
        between = binom.cdf(below, guesses, q) - binom.cdf(below - fewer, guesses, q)
        more = 2.0 * canaries * delta * float((between / fewer).max())
    return min(1.0, float(binom.sf(below, guesses, q)) + more)


def odds_bound(right: ArrayLike, priors: ArrayLike, *, eta: float = 0.0, beta: float = 0.05) -> NDArray[np.float64]:
    r"""Return a lower bound on epsilon with confidence 1 - beta, from guesses of labels with known odds.

    No label need be drawn at random where labels are independent given all else that is known of the rows,
    :math:`\pi_i(c) = P(y_i = c \mid x_i)`. Under :math:`\varepsilon`-label privacy a guess :math:`\hat y_i` is right,
    whatever the earlier ones were, with probability at most :math:`\sigma(\varepsilon + \mathrm{logit}\,
    \pi_i(\hat y_i))`, so that the number of right ones is stochastically below a Poisson-binomial W of these:

    .. math:: P[V \ge v] \le P[W \ge v]

    Parameters
    ----------
    right
        (...) number v of right guesses of each audit.
    priors
        (..., r) the probability of each guessed label before any message was seen, at least 0 and below 1. A guess with
        a probability of 0 is always wrong, so zeros fill up rows of different lengths.
    eta
        The logarithm of the factor by which the odds may be wrong; it is subtracted from the bound.
    beta
        One minus the confidence, between 0 and 1.

    Returns
    -------
    NDArray
        (...) bounds from 0 to `LARGEST_EPSILON`.

    Raises
    ------
    ArgumentError
        For numbers out of range.

    References
    ----------
    The form of Steinke et al., 2023, with a fair coin's odds replaced by those of each label; docs/methods/
    epsilon-audit.md has the proof.

    Examples
    --------
    >>> round(float(odds_bound(75, np.full(100, 0.5))), 3)  # fair coins
    0.702
    >>> round(float(odds_bound(30, np.full(100, 0.1))), 3)  # three times the expected number
    0.96
    """
    shares = np.asarray(priors, dtype=np.float64)
    v = np.broadcast_to(np.asarray(right, dtype=np.int64), shares.shape[:-1])
    _check(v, np.full(v.shape, shares.shape[-1]), beta)
    if not (eta >= 0.0 and bool(np.all((shares >= 0.0) & (shares < 1.0)))):
        raise ArgumentError("Odds: probabilities of labels lie between 0 and 1, and eta is at least 0.")
    from scipy.special import expit, logit

    logits = logit(shares)
    low, high = np.zeros(v.shape), np.full(v.shape, LARGEST_EPSILON)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        refuted = poisson_binomial_tail(expit(middle[..., None] + logits), v) < beta
        low, high = np.where(refuted, middle, low), np.where(refuted, high, middle)
    refuted = poisson_binomial_tail(expit(logits), v) < beta
    return np.asarray(np.where(refuted, np.maximum(low - eta, 0.0), 0.0))


def odds_p_value(right: int, priors: ArrayLike, epsilon: float) -> float:
    """Return the largest probability of that many right guesses under a claimed epsilon, as in `odds_bound`.

    Parameters
    ----------
    right
        Number of right guesses.
    priors
        (r,) the probability of each guessed label before any message was seen.
    epsilon
        The claim.

    Examples
    --------
    >>> round(odds_p_value(75, np.full(100, 0.5), 0.702), 3)  # fair coins: that of `coin_p_value`
    0.05
    """
    from scipy.special import expit, logit

    return float(poisson_binomial_tail(expit(epsilon + logit(np.asarray(priors, dtype=np.float64))), right))


def poisson_binomial_tail(shares: ArrayLike, least: ArrayLike) -> NDArray[np.float64]:
    """Return the probability that at least a given number of independent events happen.

    The distribution is the convolution of its parts, pair by pair, by Fourier transforms: r log(r)^2 operations, with
    an error of about 1e-15 in a probability.

    Parameters
    ----------
    shares
        (..., r) the probability of each event.
    least
        (...) least number of events.

    Examples
    --------
    >>> poisson_binomial_tail([0.5, 0.5, 0.2], 2).round(3).tolist()
    0.35
    """
    given = np.asarray(shares, dtype=np.float64)
    count = given.shape[-1]
    wide = 1 << max(count - 1, 0).bit_length()
    padded = np.zeros((*given.shape[:-1], wide))
    padded[..., :count] = given
    parts = np.stack([1.0 - padded, padded], axis=-1)
    while parts.shape[-2] > 1:
        parts = _convolutions(parts[..., 0::2, :], parts[..., 1::2, :])
    mass = np.maximum(parts[..., 0, :], 0.0)
    reached = np.arange(mass.shape[-1]) >= np.asarray(least)[..., None]
    return np.asarray(np.minimum((mass * reached).sum(axis=-1), 1.0))


def _convolutions(left: NDArray[np.float64], right: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the convolutions (..., 2 n - 1) of distributions (..., n), term by term for short ones."""
    terms = left.shape[-1]
    size = 2 * terms - 1
    if terms <= _SHORT:
        found = np.zeros((*left.shape[:-1], size))
        for place in range(terms):
            found[..., place : place + terms] += left[..., place, None] * right
        return found
    length = 1 << (size - 1).bit_length()
    spectrum = np.fft.rfft(left, n=length, axis=-1) * np.fft.rfft(right, n=length, axis=-1)
    return np.asarray(np.fft.irfft(spectrum, n=length, axis=-1)[..., :size])


def audit_power(true: float, claimed: float, guesses: ArrayLike, *, beta: float = 0.05) -> NDArray[np.float64]:
    r"""Return the probability that an audit of fair coins refutes a claimed epsilon, where another one is true.

    Guesses are right with probability :math:`e^\varepsilon / (1 + e^\varepsilon)` of the true epsilon, the largest
    possible against randomised response. Where the claimed one is true it is the rate of false alarms, at most beta.

    Parameters
    ----------
    true, claimed
        Epsilons of at least 0.
    guesses
        (...) numbers of guesses.
    beta
        One minus the confidence.

    Examples
    --------
    >>> audit_power(2.0, 1.0, [50, 100, 200]).round(2).tolist(), bool(audit_power(1.0, 1.0, 200) <= 0.05)
    ([0.76, 0.99, 1.0], True)
    """
    from scipy.special import bdtrc, expit
    from scipy.stats import binom

    r = np.asarray(guesses, dtype=np.int64)
    _check(np.zeros_like(r), r, beta)
    needed = binom.isf(beta, r, expit(claimed)).astype(np.int64)  # more have a probability of at most beta
    needed = np.where(binom.sf(needed, r, expit(claimed)) < beta, needed, needed + 1)
    return np.asarray(np.where(needed < r, bdtrc(np.minimum(needed, r - 1), r, expit(true)), 0.0))


def guesses_needed(true: float, claimed: float, *, power: float = 0.95, beta: float = 0.05) -> int | None:
    """Return the number of guesses of fair coins from which on an audit has a power; None above half a million.

    Examples
    --------
    >>> guesses_needed(2.0, 1.0), guesses_needed(1.5, 1.0)
    (82, 265)
    """
    if true <= claimed:
        return None
    most = 1 << 10
    while most <= 1 << 20:
        lacking = np.flatnonzero(audit_power(true, claimed, np.arange(1, most + 1), beta=beta) < power)
        if len(lacking) < most // 2:  # the power is not monotonic: fewer guesses may reach it, too
            return int(lacking.max(initial=-1)) + 2
        most *= 4
    return None


def _check(right: NDArray[np.int64], guesses: NDArray[np.int64], beta: float) -> None:
    if not 0.0 < beta < 1.0:
        raise ArgumentError(f"beta is {beta}; give 1 minus the confidence, above 0 and below 1, such as 0.05.")
    if bool(np.any((right < 0) | (right > guesses))):
        raise ArgumentError("Right guesses are at least 0 and no more than guesses.")
