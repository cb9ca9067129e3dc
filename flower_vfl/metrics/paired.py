"""The difference of the AUCs of two scores of the same rows, with interval and p-value."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from flower_vfl.errors import ArgumentError
from flower_vfl.metrics.arrays import binary, refuse_nan
from flower_vfl.metrics.interval import Interval, auc_interval, placements, welch_freedom
from flower_vfl.metrics.leakage import leak_auc
from flower_vfl.metrics.summary import none_if_nan

if TYPE_CHECKING:
    from flower_vfl.metrics.arrays import Array


FEWEST = 4
"""Fewest rows of each class: with fewer, differences of chance are called certain too often."""


@dataclass(frozen=True, slots=True)
class AucDifference:
    """The AUC of one score less that of another on the same rows.

    Attributes
    ----------
    value
        The difference, from -1 to 1.
    interval95
        Its paired 95 % interval; both ends are ``value`` where the two scores order all pairs of rows equally. Where
        the error is 0 for another reason, as of a perfect score against a constant one, it follows from both AUCs' own.
    p_value
        One-sided p-value of the hypothesis that the first AUC is not larger than the second.
    """

    value: float
    interval95: Interval
    p_value: float


def auc_difference(scores: Array, baseline: Array, labels: Array) -> AucDifference | None:
    r"""Return the AUC of ``scores`` less that of ``baseline``; None below `FEWEST` rows of a class.

    Both AUCs are means over the same rows, so their errors are correlated and mostly cancel:

    .. math:: Var(\Delta) = \frac{1}{P} Var_i(v_i - v'_i) + \frac{1}{N} Var_j(w_j - w'_j)

    with :math:`v_i` the share of negatives below positive i and :math:`w_j` the share of positives above negative j.
    Interval and p-value are of Student's distribution, with the degrees of freedom of Welch and Satterthwaite: with few
    rows of a class the two variances are uncertain.

    Parameters
    ----------
    scores, baseline
        (N,) higher means more likely positive.
    labels
        (N,) of 0 and 1.

    Raises
    ------
    ArgumentError
        When the lengths differ, and for NaN.

    References
    ----------
    DeLong, DeLong and Clarke-Pearson, *Comparing the areas under two or more correlated receiver operating
    characteristic curves: a nonparametric approach*, Biometrics 44, 1988; Welch, *The generalization of "Student's"
    problem when several different population variances are involved*, Biometrika 34, 1947.

    Examples
    --------
    >>> found = auc_difference([1, 2, 3, 4, 5, 6, 7, 8], [1, 4, 2, 8, 3, 6, 5, 7], [0, 0, 0, 0, 1, 1, 1, 1])
    >>> round(found.value, 3), [round(end, 3) for end in found.interval95], round(found.p_value, 3)
    (0.312, [-0.415, 1.04], 0.141)
    """
    from scipy.special import stdtr, stdtrit

    mine, positive = binary(scores, labels)
    other, _ = binary(baseline, labels)
    for values, name in ((mine, "scores"), (other, "baseline")):
        refuse_nan(values, name)
    if min(np.count_nonzero(positive), np.count_nonzero(~positive)) < FEWEST:
        return None
    below, above = (a - b for a, b in zip(placements(mine, positive), placements(other, positive), strict=True))
    value = float(below.mean())
    variances = np.array([part.var(ddof=1) / part.size for part in (below, above)])
    error = math.sqrt(variances.sum())
    if error == 0.0:
        of_mine, of_other = (auc_interval(one, positive) for one in (mine, other))
        ends = (value, value)
        if value and of_mine is not None and of_other is not None:
            ends = of_mine[0] - of_other[1], of_mine[1] - of_other[0]
        rare = 0.5 ** min(below.size, above.size)  # of k pairs that share no row, all lie in one order
        return AucDifference(value, ends, 0.5 if value == 0.0 else rare if value > 0.0 else 1.0 - rare)
    freedom = welch_freedom(variances, below.size, above.size)
    half = float(stdtrit(freedom, 0.975)) * error
    return AucDifference(value, (value - half, value + half), float(stdtr(freedom, -value / error)))


def auc_p_value(auc: float, negatives: int, positives: int) -> float:
    r"""Return the probability that a random score reaches an AUC at least as large on as many rows of each class.

    By the normal distribution of the Mann-Whitney statistic, whose variance without ties is
    :math:`(P + N + 1) / (12 P N)`; with ties it is smaller, and the value returned too large rather than too small.

    Raises
    ------
    ArgumentError
        When one class has no row.

    Examples
    --------
    >>> round(auc_p_value(0.5, 100, 100), 2), round(auc_p_value(0.6, 100, 100), 4)
    (0.5, 0.0073)
    """
    if min(negatives, positives) < 1:
        raise ArgumentError(f"An AUC of {negatives} negatives and {positives} positives: give at least one of each.")
    error = math.sqrt((positives + negatives + 1) / (12 * positives * negatives))
    return math.erfc((auc - 0.5) / error / math.sqrt(2)) / 2


def auc_fields(scores: Array, labels: Array) -> dict[str, Any]:
    """Return the AUC of scores for ``result.json``: with its interval and p-value, None where undefined, and rows."""
    positives = int(np.count_nonzero(labels))
    interval = auc_interval(scores, labels)
    auc = leak_auc(scores, labels) if interval is not None else math.nan
    return {
        "mean": none_if_nan(auc),
        "interval95": None if interval is None else list(interval),
        "p_value": None if interval is None else auc_p_value(auc, len(labels) - positives, positives),
        "rows": len(labels),
        "positives": positives,
    }


def advantage_fields(scores: Array, baseline: Array, labels: Array) -> dict[str, Any]:
    """Return the advantage in AUC of scores over a baseline on the same rows for ``result.json``."""
    found = auc_difference(scores, baseline, labels)
    return {
        "baseline": none_if_nan(leak_auc(baseline, labels)),
        "advantage": None if found is None else found.value,
        "advantage_interval95": None if found is None else list(found.interval95),
        "advantage_p_value": None if found is None else found.p_value,
    }
