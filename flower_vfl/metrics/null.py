"""The null distribution of the AUC, that of a random score."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from flower_vfl.errors import ArgumentError
from flower_vfl.metrics.epsilon import poisson_binomial_tail

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from typing import TypeAlias

    from numpy.typing import NDArray

    Cdf: TypeAlias = Callable[[NDArray[np.float64]], NDArray[np.float64]]

_TIE = 1e-9
"""Largest difference of two equal AUCs by rounding."""

_PARTS = np.arange(33) / 32
"""Ends of the parts of an interval of which a search for a quantile keeps one, as five halvings do."""

_SHIFTS = np.linspace(-8.0, 8.0, 161)
"""Shifts of the AUCs of all batches, in standard deviations."""

EXACT_WORK = 50_000  # takes some milliseconds; above, the normal one errs by at most 2e-3 in batches of a few thousand


def null_quantile(class_counts: Iterable[tuple[int, int]], q: float = 0.95) -> float:
    r"""Return a quantile of the AUC of a random score on batches with these class counts.

    For each batch ``AUC = U / (P N)`` with the Mann-Whitney statistic U. Its null distribution is exact for small
    batches and normal, continuity corrected, for large ones:

    .. math:: E[AUC] = \tfrac12, \qquad Var[AUC] = \frac{P + N + 1}{12 P N}

    The quantile is that of the mixture over the batches, so that a run's q95 is compared with it: where the two are
    equal, the attack is no better than guessing. Few positives a batch make it far larger than 0.5.

    Parameters
    ----------
    class_counts
        One pair (negatives, positives) for each batch; batches of one class have no AUC and are left out.
    q
        Level of the quantile, between 0 and 1.

    Returns
    -------
    float
        The smallest AUC that a random score does not exceed with probability ``q``; NaN where no batch has both
        classes.

    Raises
    ------
    ArgumentError
        For a ``q`` outside (0, 1) and for negative counts.

    References
    ----------
    Mann and Whitney, *On a test of whether one of two random variables is stochastically larger than the other*,
    Annals of Mathematical Statistics 18, 1947.

    Examples
    --------
    >>> round(null_quantile([(115, 13)]), 2)
    0.64
    """
    return _mixture_quantile(tuple(sorted(_batches_by_counts(class_counts, q).items())), q)


@lru_cache(maxsize=32)  # all attacks of a run are scored on the same batches
def _mixture_quantile(counts: tuple[tuple[tuple[int, int], int], ...], q: float) -> float:
    """Return the quantile of the AUC of a random score in batches of these class counts, each with its number."""
    mixture = [(_null_cdf(*pair), weight) for pair, weight in counts]
    if not mixture:
        return math.nan
    target = q * sum(weight for _, weight in mixture) * (1 - 1e-12)
    low, high = 0.0, 1.0
    while high - low > 1e-12:
        points = low + (high - low) * _PARTS  # exact: sums of powers of 1/2
        values = sum(weight * cdf(points[1:-1]) for cdf, weight in mixture)
        first = int(np.searchsorted(values, target))
        low, high = float(points[first]), float(points[first + 1])
    return high


def quantile_p_value(
    class_counts: Iterable[tuple[int, int]],
    value: float,
    q: float = 0.95,
    *,
    population: tuple[int, int] | None = None,
) -> float:
    r"""Return the probability that the quantile over steps of a random score's AUC is at least a value.

    Of T batches the nearest-rank quantile is the k-th smallest AUC, :math:`k = \lceil q\,T \rceil`. It is at least x
    where :math:`T - k + 1` batches or more have an AUC of at least x. Their number is Poisson binomial: the probability
    of each batch follows from its class counts, as in `null_quantile`, and is larger in a batch of few rows.

    Where rows recur in later batches, their scores may be the same ones, which persistent noise causes. Batches
    are then not independent: all of them share how well these scores happen to order the whole population. With a
    population of P positives and N negatives that is a shift of all AUCs,

    .. math:: \delta \sim N\Big(0, \frac{P + N + 1}{12 P N}\Big), \qquad
        P(q\text{-quantile} \ge x) = E_\delta\, P\big(\mathrm{Bin}(T, \bar p(x - \delta)) \ge T - k + 1\big)

    with :math:`\bar p(x)` the mean over batches of the probability of an AUC of at least x. Above its mean a Poisson
    binomial tail is at most that of the binomial with the same mean (Hoeffding).

    Parameters
    ----------
    class_counts
        One pair (negatives, positives) for each batch; batches of one class are left out.
    value
        Measured quantile.
    q
        Level of the quantile, between 0 and 1.
    population
        Negatives and positives among all rows from which the batches are drawn again and again; None where the scores
        of all batches are independent.

    Returns
    -------
    float
        The probability, one-sided; NaN where no batch has both classes.

    Raises
    ------
    ArgumentError
        For a ``q`` outside (0, 1) and for negative counts.

    References
    ----------
    Hoeffding, *On the distribution of the number of successes in independent trials*, Annals of Mathematical Statistics
    27, 1956, theorem 4.

    Examples
    --------
    >>> round(quantile_p_value([(1, 1)], 1.0), 2), round(quantile_p_value([(1, 1), (1, 1)], 1.0, q=0.5), 2)
    (0.5, 0.25)
    """
    counts = _batches_by_counts(class_counts, q)
    batches = sum(counts.values())
    if not batches:
        return math.nan
    least = batches - math.ceil(q * batches - 1e-9) + 1
    weights = np.array(list(counts.values()), dtype=np.int64)
    cdfs = [_null_cdf(*pair) for pair in counts]
    if population is None or min(population) < 1:
        chances = np.repeat([_at_least(cdf, np.array(value)) for cdf in cdfs], weights)
        return float(poisson_binomial_tail(chances, least))
    from scipy.special import bdtrc

    shifts = _SHIFTS * math.sqrt((sum(population) + 1) / (12 * math.prod(population)))
    chances = np.array([_at_least(cdf, value - shifts) for cdf in cdfs])
    density = np.exp(-(_SHIFTS**2) / 2)
    return float(density @ bdtrc(least - 1, batches, weights @ chances / batches) / density.sum())


def _at_least(cdf: Cdf, aucs: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the probabilities of at least these AUCs: the distribution is symmetric, P(AUC >= x) = P(AUC <= 1 - x)."""
    below = 1.0 - aucs + _TIE
    return np.where(below < 0.0, 0.0, cdf(np.clip(below, 0.0, 1.0)))


def step_p_values(class_counts: Sequence[tuple[int, int]], aucs: Sequence[float]) -> NDArray[np.float64]:
    """Return for each step the probability that a random score's AUC in its batch is at least the measured one.

    It may be compared far out in the tail: small batches have the exact distribution, and there the normal one of large
    batches has more mass than the exact one, which ends at 1. The scores are taken to be without ties.

    Parameters
    ----------
    class_counts
        (T,) pairs (negatives, positives), one for each step; each batch has both classes.
    aucs
        (T,) leak AUCs.

    Returns
    -------
    NDArray
        (T,) probabilities, one-sided.

    Examples
    --------
    >>> step_p_values([(1, 1), (8, 2)], [1.0, 1.0]).round(4).tolist()
    [0.5, 0.0222]
    """
    found, places = np.zeros(len(aucs)), defaultdict[tuple[int, int], list[int]](list)
    for place, (pair, _) in enumerate(zip(class_counts, aucs, strict=True)):
        places[pair].append(place)
    for pair, at in places.items():
        found[at] = _at_least(_null_cdf(*pair), np.asarray(aucs, dtype=np.float64)[at])
    return found


def _batches_by_counts(class_counts: Iterable[tuple[int, int]], q: float) -> Counter[tuple[int, int]]:
    """Return the number of batches by pair of class counts, without those of one class, after a check of arguments."""
    if not 0 < q < 1:
        raise ArgumentError(f"The quantile is {q}: give a number between 0 and 1, such as 0.95.")
    counts = Counter((int(negatives), int(positives)) for negatives, positives in class_counts)
    if any(min(pair) < 0 for pair in counts):
        raise ArgumentError("A batch has a negative number of rows: give (negatives, positives), both at least 0.")
    return Counter({pair: count for pair, count in counts.items() if min(pair) > 0})


def _null_cdf(negatives: int, positives: int) -> Cdf:
    """Return the function x -> P(AUC <= x) of a random score; the AUC is one of 0, 1/(P N), ..., 1."""
    pairs = negatives * positives
    if pairs * min(negatives, positives) <= EXACT_WORK:
        table = _mann_whitney_cdf(min(negatives, positives), max(negatives, positives))
        return lambda x: table[(x * pairs).astype(np.int64)]
    from scipy.special import erfc

    scale = math.sqrt(2 * pairs * (negatives + positives + 1) / 12)
    return lambda x: np.asarray(erfc((pairs / 2 - np.floor(x * pairs) - 0.5) / scale) / 2)


@lru_cache(maxsize=128)
def _mann_whitney_cdf(m: int, n: int) -> NDArray[np.float64]:
    r"""Return P(U <= u) for u = 0 ... m n, from the Gaussian binomial coefficient, in exact integers.

    .. math:: \sum_u \#\{U = u\} x^u = \prod_{i=1}^{m} \frac{1 - x^{n+i}}{1 - x^i}
    """
    ways = np.zeros(m * n + 1, dtype=object)
    ways[0] = 1
    for i in range(1, m + 1):
        ways[n + i :] = ways[n + i :] - ways[: max(ways.size - n - i, 0)]
        for start in range(min(i, ways.size)):
            ways[start::i] = np.cumsum(ways[start::i])
    total = math.comb(m + n, m)
    return np.array([below / total for below in np.cumsum(ways)])
