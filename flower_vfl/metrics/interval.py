"""95 % confidence intervals of measured numbers."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from flower_vfl.errors import ArgumentError
from flower_vfl.metrics.arrays import as_numpy, binary, refuse_nan

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from flower_vfl.metrics.arrays import Array

Z95 = 1.959963984540054
"""The normal distribution's 97.5 % quantile: half the width of a 95 % interval in standard errors."""

Interval = tuple[float, float]


def mean_interval(values: Sequence[float]) -> Interval | None:
    r"""Return Student's interval of a mean over independent draws, None for fewer than two of them.

    .. math:: \bar v \pm t_{0.975, n-1} \, s / \sqrt n

    Examples
    --------
    >>> [round(bound, 3) for bound in mean_interval([0.7, 0.8, 0.9])]
    [0.552, 1.048]
    """
    from scipy.special import stdtrit

    drawn = np.asarray(values, dtype=np.float64)
    if drawn.size < 2:
        return None
    half = float(stdtrit(drawn.size - 1, 0.975) * drawn.std(ddof=1) / math.sqrt(drawn.size))
    return float(drawn.mean()) - half, float(drawn.mean()) + half


def share_interval(share: float, count: int) -> Interval | None:
    """Return Wilson's interval of a share of ``count`` independent examples, None where there is none.

    References
    ----------
    Wilson, *Probable inference, the law of succession, and statistical inference*, JASA 22, 1927.

    Examples
    --------
    >>> [round(bound, 3) for bound in share_interval(0.9, 100)]
    [0.826, 0.945]
    """
    if not (0 <= share <= 1 and count >= 0):
        raise ArgumentError(f"A share of {share} of {count} examples: give a number between 0 and 1, and a count.")
    if not count:
        return None
    weight = Z95 * Z95 / count
    centre = (share + weight / 2) / (1 + weight)
    half = math.sqrt(share * (1 - share) * weight + weight * weight / 4) / (1 + weight)
    return max(0.0, centre - half), min(1.0, centre + half)


def mean_share_interval(shares: Array, counts: Array) -> Interval | None:
    r"""Return an interval of the mean of independent shares, None without any or where one has no example.

    With Wilson's interval :math:`[l_c, u_c]` of each share :math:`p_c` (`share_interval`),

    .. math:: \bar p - \tfrac1C \sqrt{\textstyle\sum_c (p_c - l_c)^2}, \quad
        \bar p + \tfrac1C \sqrt{\textstyle\sum_c (u_c - p_c)^2}

    Of the recalls of classes it is the interval of the balanced accuracy; of one share it is Wilson's.

    Parameters
    ----------
    shares
        (C,) between 0 and 1.
    counts
        (C,) numbers of examples of the shares.

    References
    ----------
    Zou and Donner, *Construction of confidence limits about effect measures: a general approach*, Statistics in
    Medicine 27, 2008.

    Examples
    --------
    >>> [round(bound, 3) for bound in mean_share_interval([0.9, 0.5], [1000, 20])]
    [0.599, 0.801]
    """
    values, sizes = as_numpy(shares), as_numpy(counts)
    bounds = [share_interval(float(p), int(n)) for p, n in zip(values, sizes, strict=True)]
    known = [bound for bound in bounds if bound is not None]
    if not known or len(known) < len(bounds):
        return None
    low, high = np.array(known).T
    below, above = (math.sqrt(float(np.square(values - edge).sum())) / values.size for edge in (low, high))
    return float(values.mean()) - below, float(values.mean()) + above


def auc_interval(scores: Array, labels: Array) -> Interval | None:
    r"""Return an interval of `leak_auc`, ties included, None where a class has fewer than two examples.

    The AUC is the mean over positives of the share of negatives below them, and the mean over negatives of the share of
    positives above them; the two variances add up (DeLong). The interval is symmetric on the scale of the logit,

    .. math:: \operatorname{logit} A \pm t_{0.975} \, \frac{\sqrt{Var(A)}}{A (1 - A)}

    because the error of an AUC is skewed near 0 and 1, where DeLong's symmetric interval is too narrow
    (docs/methods/leak.md). With few rows of a class the two variances are uncertain: t is of Student's distribution
    with the degrees of freedom of Welch and Satterthwaite.

    Both variances are 0 where all positives score above all negatives. The interval is then that of k successes in k
    trials by Clopper and Pearson,

    .. math:: [0.025^{1 / k}, 1], \quad k = \min(\text{positives}, \text{negatives})

    because k pairs that share no example are independent, and the AUC is the probability that one is in order. Where
    all positives score below all negatives it is one less these.

    References
    ----------
    DeLong, DeLong and Clarke-Pearson, *Comparing the areas under two or more correlated receiver operating
    characteristic curves: a nonparametric approach*, Biometrics 44, 1988.

    Qin and Hotilovac, *Comparison of non-parametric confidence intervals for the area under the ROC curve of a
    continuous-scale diagnostic test*, Statistical Methods in Medical Research 17, 2008.

    Clopper and Pearson, *The use of confidence or fiducial limits illustrated in the case of the binomial*, Biometrika
    26, 1934.

    Examples
    --------
    >>> [round(bound, 3) for bound in auc_interval([1, 2, 3, 4, 5, 6], [0, 0, 1, 0, 1, 1])]
    [0.088, 0.998]
    >>> [round(bound, 3) for bound in auc_interval([1, 2, 3, 4, 5, 6], [0, 0, 0, 1, 1, 1])]
    [0.292, 1.0]
    """
    from scipy.special import expit, logit, stdtrit

    values, positive = binary(scores, labels)
    refuse_nan(values, "scores")
    if min(np.count_nonzero(positive), np.count_nonzero(~positive)) < 2:
        return None
    below, above = placements(values, positive)
    auc = float(below.mean())
    if auc in (0.0, 1.0):
        least = 0.025 ** (1 / min(below.size, above.size))
        return (least, 1.0) if auc else (0.0, 1.0 - least)
    variances = np.array([part.var(ddof=1) / part.size for part in (below, above)])
    freedom = welch_freedom(variances, below.size, above.size)
    half = float(stdtrit(freedom, 0.975)) * math.sqrt(variances.sum()) / (auc * (1 - auc))
    return float(expit(logit(auc) - half)), float(expit(logit(auc) + half))


def welch_freedom(variances: NDArray[np.float64], first: int, second: int) -> float:
    """Return the degrees of freedom of the sum of two means' variances (2,), infinite where both are 0.

    Parameters
    ----------
    variances
        (2,) variances of the means.
    first, second
        Number of values of each.

    References
    ----------
    Welch, *The generalization of "Student's" problem when several different population variances are involved*,
    Biometrika 34, 1947.
    """
    total = float(variances.sum())
    return total**2 / float((np.square(variances) / (first - 1, second - 1)).sum()) if total > 0.0 else math.inf


def placements(values: NDArray[Any], positive: NDArray[np.bool_]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the share of negatives below each positive, and of positives above each negative; ties count half.

    Parameters
    ----------
    values
        (N,) scores without NaN, of both classes.
    positive
        (N,) mask of the positives.
    """
    ups, downs = np.sort(values[positive]), np.sort(values[~positive])
    below = (downs.searchsorted(values[positive], "left") + downs.searchsorted(values[positive], "right")) / 2
    above = (ups.searchsorted(values[~positive], "left") + ups.searchsorted(values[~positive], "right")) / 2
    return below / downs.size, 1 - above / ups.size
