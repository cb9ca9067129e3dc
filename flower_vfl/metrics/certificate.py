"""What the divergence of the perturbed gradients promises about every attack."""

from __future__ import annotations

import math

from flower_vfl.metrics.arrays import ArgumentError


def auc_bound(sum_kl: float) -> float:
    r"""Largest AUC that any fixed scoring function can reach at this symmetric divergence of the classes.

    .. math:: AUC \le \tfrac12 + \tfrac12 \sqrt{\epsilon} - \tfrac18 \epsilon, \qquad 0 \le \epsilon < 4

    with epsilon = KL(P1 || P0) + KL(P0 || P1) between the perturbed gradients of positives and negatives. It holds for
    the modelled distributions and says nothing from 4 on.

    Parameters
    ----------
    sum_kl
        Epsilon, at least 0; infinity is allowed.

    Returns
    -------
    float
        The bound, 1.0 where the theorem says nothing.

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
    if not sum_kl >= 0:
        raise ArgumentError(f"sum_kl is {sum_kl}: a divergence is at least 0.")
    if sum_kl >= 4:
        return 1.0
    return 0.5 + math.sqrt(sum_kl) / 2 - sum_kl / 8
