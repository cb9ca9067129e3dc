"""Bounds on attacks from a modelled divergence of the perturbed gradients, and their check against measurements.

Every bound here is marginal over rows: it holds for attacks without other information on a row than its gradient. With
more, such as its columns or the label party's prediction, an attack may exceed it (docs/methods/certificate.md).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from flower_vfl.errors import ArgumentError
from flower_vfl.metrics.null import null_quantile

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray


def auc_bound(sum_kl: float) -> float:
    r"""Return the largest AUC of a fixed scoring function of a gradient alone, for a divergence of the classes.

    .. math:: AUC \le \tfrac12 + \tfrac12 \sqrt{\epsilon} - \tfrac18 \epsilon, \qquad 0 \le \epsilon < 4

    with epsilon = KL(P1 || P0) + KL(P0 || P1) between the perturbed gradients of positives and negatives. It holds for
    the modelled distributions, over all rows together, and is trivial from 4 on.

    Parameters
    ----------
    sum_kl
        Epsilon, at least 0; infinity is allowed.

    Returns
    -------
    float
        The bound, 1.0 where the theorem gives none.

    Raises
    ------
    ArgumentError
        For a negative divergence and for NaN.

    References
    ----------
    Li et al., *Label Leakage and Protection in Two-party Split Learning*, ICLR 2022, Theorem 1.

    Examples
    --------
    >>> auc_bound(0.0), auc_bound(1.0), auc_bound(9.0)
    (0.5, 0.875, 1.0)
    """
    _refuse_negative(sum_kl)
    if sum_kl >= 4:
        return 1.0
    return 0.5 + math.sqrt(sum_kl) / 2 - sum_kl / 8


def detection_error_bound(sum_kl: float) -> float:
    r"""Return the least detection error of a fixed scoring function of a gradient alone, for a divergence.

    .. math:: \min_t \tfrac12 (FNR + FPR) \ge \tfrac12 - \tfrac14 \sqrt{\epsilon}

    so that an error of at least L needs :math:`\epsilon \le (2 - 4 L)^2`. Like `auc_bound` it holds for the
    modelled distributions and is trivial from 4 on.

    Parameters
    ----------
    sum_kl
        Epsilon, at least 0; infinity is allowed.

    Returns
    -------
    float
        In [0, 0.5], 0.0 where the theorem gives none.

    Raises
    ------
    ArgumentError
        For a negative divergence and for NaN.

    References
    ----------
    Li et al., *Label Leakage and Protection in Two-party Split Learning*, 2021 workshop version, section 4.2.

    Examples
    --------
    >>> detection_error_bound(0.0), detection_error_bound(1.0), detection_error_bound(9.0)
    (0.5, 0.25, 0.0)
    """
    _refuse_negative(sum_kl)
    return max(0.5 - math.sqrt(sum_kl) / 4, 0.0)


def one_against_rest_bound(divergences: ArrayLike, shares: ArrayLike) -> float:
    r"""Return the largest AUC of a fixed scoring function of a gradient alone, for any one class against the rest.

    .. math:: \max_c \sum_{k \ne c} \frac{p_k}{1 - p_c} \, b(\epsilon_{ck})

    with b the `auc_bound` of a pair's symmetric divergence: the AUC against a mixture is the mean of the AUCs against
    its parts.

    Parameters
    ----------
    divergences
        (C, C) symmetric divergences of the classes' distributions, at least 0; infinity is allowed.
    shares
        (C,) relative frequencies of the classes.

    Returns
    -------
    float
        The bound; for two classes it is `auc_bound`.

    Raises
    ------
    ArgumentError
        For shapes that do not fit, and for values that are negative or NaN.

    Examples
    --------
    >>> one_against_rest_bound([[0, 1, 9], [1, 0, 9], [9, 9, 0]], [0.25, 0.25, 0.5])
    1.0
    >>> one_against_rest_bound([[0, 1, 1], [1, 0, 1], [1, 1, 0]], [0.25, 0.25, 0.5])
    0.875
    """
    epsilon, p = _classes(divergences, shares)
    bounds = np.array([[auc_bound(float(value)) for value in row] for row in epsilon])
    np.fill_diagonal(bounds, 0.0)
    return min(float((bounds @ p / (1.0 - p)).max()), 1.0)


def accuracy_bound(divergences: ArrayLike, shares: ArrayLike) -> float:
    r"""Return the largest accuracy of a rule that predicts a class from a gradient alone: the lower of two bounds.

    .. math::
        \max_c p_c + \min_k \sum_c p_c T(\epsilon_{ck}), \quad
        T(\epsilon) = \min\big(\tfrac12 \sqrt\epsilon, \sqrt{1 - e^{-\epsilon / 2}}\big)

    by total variation (Pinsker, Bretagnolle and Huber), and :math:`1 - e` with the least e for which, by Fano's
    inequality,

    .. math:: h(e) + e \log(C - 1) \ge H(p) - \sum_{c < k} p_c p_k \epsilon_{ck},

    since the last sum is at least the information that a gradient has about its label. It holds for the modelled
    distributions and examples that are drawn by these shares, one at a time.

    Parameters
    ----------
    divergences, shares
        As for `one_against_rest_bound`.

    Returns
    -------
    float
        At least the share of the most frequent class, the accuracy of a constant answer.

    Raises
    ------
    ArgumentError
        As `one_against_rest_bound`.

    References
    ----------
    Cover and Thomas, *Elements of Information Theory*, theorem 2.10.1; Tsybakov, *Introduction to Nonparametric
    Estimation*, lemmas 2.5 and 2.6.

    Examples
    --------
    >>> accuracy_bound([[0, 1, 1], [1, 0, 1], [1, 1, 0]], [0.25, 0.25, 0.5])  # Pinsker: 0.5 + 0.5 * 0.5
    0.75
    >>> round(accuracy_bound(np.ones((10, 10)) - np.eye(10), np.full(10, 0.1)), 3)  # Fano
    0.472
    """
    epsilon, p = _classes(divergences, shares)
    constant = float(p.max())
    variation = np.minimum(np.sqrt(epsilon) / 2.0, np.sqrt(-np.expm1(-epsilon / 2.0)))
    by_variation = constant + float((p @ variation).min())
    pairs = p[:, None] * p
    information = float((pairs * np.where(pairs > 0.0, epsilon, 0.0)).sum()) / 2.0
    entropy = -float(np.sum(p * np.log(np.maximum(p, 1e-300))))
    return float(min(by_variation, 1.0 - _least_error(entropy - information, len(p))))


def _least_error(entropy: float, classes: int) -> float:
    """Return the least e in [0, 1 - 1 / C] with h(e) + e log(C - 1) of at least an entropy, by bisection from below."""
    if entropy <= 0.0:
        return 0.0
    low, high = 0.0, 1.0 - 1.0 / classes
    for _ in range(60):
        e = 0.5 * (low + high)
        reached = -e * math.log(e) - (1.0 - e) * math.log1p(-e) + e * math.log(classes - 1)
        low, high = (low, e) if reached >= entropy else (e, high)
    return low


def _classes(divergences: ArrayLike, shares: ArrayLike) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    epsilon, p = np.asarray(divergences, dtype=np.float64), np.asarray(shares, dtype=np.float64)
    if p.ndim != 1 or len(p) < 2 or epsilon.shape != (len(p), len(p)):
        raise ArgumentError(f"Divergences {epsilon.shape} of shares {p.shape}: give (C, C) and (C,), C > 1.")
    if not (epsilon >= 0).all() or not (p >= 0).all() or not 0.0 < p.max() < p.sum():
        raise ArgumentError("Divergences are at least 0, and shares too, of which two are above 0.")
    return epsilon, p / p.sum()


def _refuse_negative(sum_kl: float) -> None:
    if not sum_kl >= 0:
        raise ArgumentError(f"sum_kl is {sum_kl}: a divergence is at least 0.")


@dataclass(frozen=True, slots=True, eq=False)
class Exceedances:
    """Counts of measured leak AUCs above their bounds, and of those above by more than chance explains.

    Attributes
    ----------
    steps
        Number of steps with a measured AUC and a bound below 1.
    exceeded
        Number of these steps above the bound.
    beyond_chance
        (K,) positions, in the given arrays, of the steps above the bound by more than chance explains.
    expected
        Largest expected K where the model holds.
    worst
        Largest difference of a measured AUC and its bound, negative where all stay below; NaN without steps.
    """

    steps: int
    exceeded: int
    beyond_chance: NDArray[np.int64]
    expected: float
    worst: float


def exceedances(
    measured: ArrayLike, bounds: ArrayLike, negatives: ArrayLike, positives: ArrayLike, *, q: float = 0.95
) -> Exceedances:
    r"""Compare the leak AUC of each step with the bound of Theorem 1 for it.

    The bound is about the distribution; the AUC of one batch scatters around its own expectation. A step counts as
    beyond chance when

    .. math:: AUC > bound + (null_q - \tfrac12)

    with the q-quantile of the AUC of a random score, on a batch with the same class counts. Where the classes are
    Gaussian as modelled and the scoring function is fixed, that happens in at most the share 1 - q of the steps: at a
    divergence of 0 by the definition of the quantile, at larger ones because the slack of the theorem exceeds the
    additional scatter of the AUC (checked by simulation, `tests/metrics/test_certificate.py`; not proved).

    Parameters
    ----------
    measured
        (N,) leak AUC of each step; NaN where the batch had none, such steps are left out.
    bounds
        (N,) `auc_bound` of each step; where it is 1 it is trivial, and the step is left out.
    negatives, positives
        (N,) numbers of scored rows of each class.
    q
        Level of the quantile of a random score that is allowed for.

    Returns
    -------
    Exceedances
        Counts, positions and the largest excess.

    Raises
    ------
    ArgumentError
        For arguments of different lengths.

    References
    ----------
    Li et al., *Label Leakage and Protection in Two-party Split Learning*, ICLR 2022, Theorem 1.

    Examples
    --------
    >>> found = exceedances([0.99, 0.61, 0.52], [0.6, 0.6, 0.6], [940, 940, 940], [84, 84, 84])
    >>> found.exceeded, found.beyond_chance.tolist(), round(found.expected, 2), round(found.worst, 2)
    (2, [0], 0.15, 0.39)
    """
    auc, bound = np.asarray(measured, dtype=np.float64), np.asarray(bounds, dtype=np.float64)
    counts = np.stack([np.asarray(negatives, dtype=np.int64), np.asarray(positives, dtype=np.int64)], axis=-1)
    if auc.ndim != 1 or auc.shape != bound.shape or counts.shape != (auc.size, 2):
        raise ArgumentError(
            f"AUCs {auc.shape}, bounds {bound.shape} and class counts {counts.shape[:-1]}: give vectors of one length."
        )
    known = np.flatnonzero(np.isfinite(auc) & (bound < 1) & (counts > 0).all(axis=1))
    if not known.size:
        return Exceedances(0, 0, known, 0.0, math.nan)
    excess = auc[known] - bound[known]
    pairs, which = np.unique(counts[known], axis=0, return_inverse=True)
    allowed = np.array([_null_quantile(int(n), int(p), q) - 0.5 for n, p in pairs])[which.ravel()]
    return Exceedances(
        steps=known.size,
        exceeded=int(np.count_nonzero(excess > 0)),
        beyond_chance=known[excess > allowed],
        expected=(1 - q) * known.size,
        worst=float(excess.max()),
    )


@lru_cache(maxsize=4096)
def _null_quantile(negatives: int, positives: int, q: float) -> float:
    """Return the null quantile of one batch from a cache: a run has few different class counts and many steps."""
    return null_quantile([(negatives, positives)], q)
