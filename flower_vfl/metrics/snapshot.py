"""The parts of the gradients of one step, class by class: the quantities of L22's Figure 2."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from flower_vfl.errors import ArgumentError
from flower_vfl.metrics.arrays import as_numpy, polar

if TYPE_CHECKING:
    from flower_vfl.metrics.arrays import Array

Values = Mapping[tuple[str, str], NDArray[np.float64]]
"""Values of one snapshot by quantity and group."""

RESIDUAL, SLOPE_NORM = "residual", "slope_norm"
SLOPE_COSINE, GRADIENT_COSINE = "slope_cosine", "gradient_cosine"
NEGATIVE, POSITIVE, CROSS = "negative", "positive", "cross"
MOST = 500
"""Largest number of rows of a class, and of pairs of a kind: it gives shares to about two percentage points."""


def snapshot(
    labels: Array, logits: Array, slopes: Array, gradients: Array, *, generator: np.random.Generator
) -> dict[tuple[str, str], NDArray[np.float64]]:
    r"""Return the parts of one batch's cut gradients, class by class.

    A gradient is :math:`g = (p_1 - y) \, \partial h / \partial z` up to a constant of the batch. The parts are, for
    each class, :math:`|p_1 - y|`, :math:`\|\partial h / \partial z\|` and :math:`\|g\|` of its rows, and the cosines of
    :math:`\partial h / \partial z` and of g between two rows of one class and between rows of both; for large batches
    those of a random sample. All of it reveals labels and belongs to the label party alone.

    Parameters
    ----------
    labels
        (B,) of 0 and 1, as the training uses them.
    logits
        (B,) logits of the batch; the residual is computed from them without cancellation.
    slopes
        (B, D) derivatives of each row's logit by its embedding.
    gradients
        (B, D) clean cut gradients, of any scale.
    generator
        Random generator of the sampled rows and pairs.

    Returns
    -------
    dict[tuple[str, str], NDArray]
        Values by quantity ("residual", "slope_norm", "gradient_norm", "slope_cosine", "gradient_cosine") and group
        ("negative", "positive"; for cosines also "cross"); a group without rows is left out.

    Raises
    ------
    ArgumentError
        For shapes that do not fit.

    References
    ----------
    Li et al., *Label Leakage and Protection in Two-party Split Learning*, ICLR 2022, section 3.3 and Figure 2.

    Examples
    --------
    >>> slopes, gradients = [[3.0, 4.0], [3.0, 4.0]], [[3.0, 4.0], [-3.0, -4.0]]
    >>> found = snapshot([0, 1], [0.0, 0.0], slopes, gradients, generator=np.random.default_rng(0))
    >>> found["residual", "positive"].tolist(), found["gradient_norm", "negative"].tolist()
    ([0.5], [5.0])
    >>> round(float(found["gradient_cosine", "cross"].max()), 12)
    -1.0
    """
    y, logit = as_numpy(labels), as_numpy(logits).astype(np.float64)
    directions = {"slope": as_numpy(slopes), "gradient": as_numpy(gradients)}
    if logit.shape != y.shape or y.ndim != 1 or any(m.ndim != 2 or len(m) != y.size for m in directions.values()):
        shapes = [logit.shape, *(m.shape for m in directions.values())]
        raise ArgumentError(f"Labels {y.shape}, logits, slopes, gradients {shapes}: give (B,), (B,), (B, D), (B, D).")
    rows = {group: _sample(np.flatnonzero(y == label), generator) for group, label in ((NEGATIVE, 0), (POSITIVE, 1))}
    pairs = _pairs(rows[NEGATIVE].size, rows[POSITIVE].size, generator)
    found = {(RESIDUAL, NEGATIVE): _logistic(logit[rows[NEGATIVE]])}
    found[RESIDUAL, POSITIVE] = _logistic(-logit[rows[POSITIVE]])
    for name, matrix in directions.items():
        units = {}
        for group, members in rows.items():
            found[f"{name}_norm", group], units[group] = polar(matrix[members].astype(np.float64))
        for group, (one, other, first, second) in pairs.items():
            products = np.einsum("ij,ij->i", units[one][first], units[other][second])
            found[f"{name}_cosine", group] = products.clip(-1, 1)
    return {key: values for key, values in found.items() if values.size}


def _sample(members: NDArray[np.int64], generator: np.random.Generator) -> NDArray[np.int64]:
    return generator.choice(members, MOST, replace=False) if members.size > MOST else members


def _logistic(x: NDArray[np.float64]) -> NDArray[np.float64]:
    small = np.exp(-np.abs(x))  # never overflows, and keeps the relative precision of tiny values
    return np.where(x < 0, small, 1.0) / (1.0 + small)


def _pairs(
    negatives: int, positives: int, generator: np.random.Generator
) -> dict[str, tuple[str, str, NDArray[np.int64], NDArray[np.int64]]]:
    """Draw pairs of different rows; return the groups of both rows and their positions in them, by kind of pair."""
    found = {}
    for group, count in ((NEGATIVE, negatives), (POSITIVE, positives)):
        if count > 1:
            first = generator.integers(count, size=MOST)
            found[group] = (group, group, first, (first + generator.integers(1, count, size=MOST)) % count)
    if negatives and positives:
        first, second = generator.integers(negatives, size=MOST), generator.integers(positives, size=MOST)
        found[CROSS] = (NEGATIVE, POSITIVE, first, second)
    return found


@dataclass(frozen=True, slots=True)
class Observations:
    """The observations of L22, section 3.3, as numbers of one snapshot; None where a class is missing.

    Attributes
    ----------
    residual_above
        Share of positives whose residual exceeds the median of the negatives' (observation 1: nearly all, for the
        model is less sure of the rare class).
    slope_distance
        Kolmogorov-Smirnov distance between the classes' lengths of the slopes, 0 to 1 (observation 2: small).
    gradient_opposed
        Share of pairs across the classes with gradients of negative cosine (observation 4: nearly all).
    slope_cosines
        Mean cosine of slopes within the negatives, within the positives and across (observation 4: all positive).
    """

    residual_above: float | None
    slope_distance: float | None
    gradient_opposed: float | None
    slope_cosines: Mapping[str, float]


def observations(values: Values) -> Observations:
    """Return the observations of L22 section 3.3 on one `snapshot`.

    References
    ----------
    Li et al., *Label Leakage and Protection in Two-party Split Learning*, ICLR 2022, section 3.3.

    Examples
    --------
    >>> values = {("residual", "negative"): np.array([0.1, 0.2, 0.3]), ("residual", "positive"): np.array([0.9, 0.15])}
    >>> observations(values).residual_above
    0.5
    """
    cross = values.get((GRADIENT_COSINE, CROSS))
    residuals, slopes = _by_class(values, RESIDUAL), _by_class(values, SLOPE_NORM)
    cosines = {group: found for (quantity, group), found in values.items() if quantity == SLOPE_COSINE}
    return Observations(
        residual_above=None if residuals is None else float((residuals[1] > np.median(residuals[0])).mean()),
        slope_distance=None if slopes is None else _ks_distance(*slopes),
        gradient_opposed=None if cross is None else float((cross < 0).mean()),
        slope_cosines={group: float(found.mean()) for group, found in cosines.items()},
    )


def _by_class(values: Values, quantity: str) -> tuple[NDArray[np.float64], NDArray[np.float64]] | None:
    negatives, positives = values.get((quantity, NEGATIVE)), values.get((quantity, POSITIVE))
    return None if negatives is None or positives is None else (negatives, positives)


def _ks_distance(first: NDArray[np.float64], second: NDArray[np.float64]) -> float:
    at = np.concatenate([first, second])
    shares = [np.sort(values).searchsorted(at, "right") / values.size for values in (first, second)]
    return float(np.abs(shares[0] - shares[1]).max())
