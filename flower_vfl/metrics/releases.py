"""The joint divergence of several releases of one example, all epochs together, for Theorem 1."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flower_vfl.errors import ArgumentError

Matrix = NDArray[np.float64]

_ROUNDING = 1e-14
"""Share of the largest number below which values are rounding errors; a tenth of it occurs with a thousand rows."""

_INDEFINITE = 1e-9
"""Distance of an eigenvalue below 0, for each row of a matrix of correlations, beyond which it is no rounding error."""


@dataclass(frozen=True, slots=True, eq=False)
class EpochRelease:
    r"""The model of the perturbed gradients of one epoch.

    The gradient of a negative is :math:`N(\mu_0, u I)` plus noise of variance `along[0]` on the line of the means'
    difference and `across[0]` in each other direction; that of a positive has :math:`\mu_1`, v, `along[1]` and
    `across[1]`.

    Parameters
    ----------
    direction : ndarray, (D,)
        Direction of the difference of the class means, of length 1.
    distance : float
        Distance of the class means.
    spread : tuple of float
        (u, v), the variances of a coordinate of clean gradients, of negatives and of positives.
    along, across : tuple of float
        Variances of the noise of negatives and of positives; along is not below across.

    Raises
    ------
    ArgumentError
        For numbers that are no such variances, and for a direction of another length than 1.
    """

    direction: NDArray[np.float64]
    distance: float
    spread: tuple[float, float]
    along: tuple[float, float]
    across: tuple[float, float]

    def __post_init__(self) -> None:
        direction = np.asarray(self.direction, dtype=np.float64)
        numbers = (self.distance, *self.spread, *self.along, *self.across)
        if direction.ndim != 1 or not abs(np.linalg.norm(direction) - 1.0) < 1e-3:
            raise ArgumentError(f"The direction {direction.shape} must be a vector of length 1.")
        if not all(math.isfinite(value) and value >= 0 for value in numbers):
            raise ArgumentError(f"Distances and variances are finite and at least 0, given {numbers}.")
        if any(one < two for one, two in zip(self.along, self.across, strict=True)):
            raise ArgumentError(f"Noise along the means, {self.along}, must not be less than across, {self.across}.")
        length = np.linalg.norm(direction)
        if abs(length - 1.0) > _ROUNDING:  # else keep its bits: it may be another release's
            direction = direction / length
        object.__setattr__(self, "direction", direction)


@dataclass(frozen=True, slots=True, eq=False)
class ShapedRelease:
    r"""The model of the perturbed gradients of one batch, for classes with any covariances.

    The gradient of an example of class c is :math:`\mu_c + R_c \zeta + F_c \varepsilon` with standard normal
    :math:`\zeta` and :math:`\varepsilon`.

    Parameters
    ----------
    difference : ndarray, (D,)
        Difference of the class means, :math:`\mu_1 - \mu_0`.
    own : ndarray, (2, D, D)
        :math:`R_c`, symmetric roots of the covariances of clean gradients, of negatives and of positives.
    noise : ndarray, (2, D, M)
        :math:`F_c`, factors of the covariances :math:`F_c F_c^T` of the noise, of negatives and of positives.

    Raises
    ------
    ArgumentError
        For arrays of other shapes, and for values that are not finite.
    """

    difference: NDArray[np.float64]
    own: NDArray[np.float64]
    noise: NDArray[np.float64]

    def __post_init__(self) -> None:
        width = len(self.difference)
        if self.own.shape != (2, width, width) or self.noise.ndim != 3 or self.noise.shape[:2] != (2, width):
            raise ArgumentError(
                f"Give a difference (D,), roots (2, D, D) and noise (2, D, M), given {self.difference.shape}, "
                f"{self.own.shape} and {self.noise.shape}."
            )
        if not all(np.isfinite(values).all() for values in (self.difference, self.own, self.noise)):
            raise ArgumentError("A value is not finite.")


@dataclass(frozen=True, slots=True)
class Together:
    """The joint model of an example's releases of all epochs, for each of the two classes.

    The T releases are one vector of T D numbers. In r directions, which span the differences of the means, covariances
    (T r, T r) are general; each of the D - r coordinates outside has the same covariance (T, T), and equal means.

    Attributes
    ----------
    difference
        (T r,) difference of the class means.
    inside
        (T r, T r) covariances of negatives and of positives.
    outside
        (T, T) covariances of one coordinate outside, of negatives and of positives.
    others
        Number of coordinates outside, D - r.
    """

    difference: NDArray[np.float64]
    inside: tuple[Matrix, Matrix]
    outside: tuple[Matrix, Matrix]
    others: int

    def sum_kl(self) -> float:
        """Return KL(P1 || P0) + KL(P0 || P1); inf where a direction without variance separates the classes."""
        found = _sum_kl(self.difference, *self.inside)
        if self.others:
            found += self.others * _sum_kl(np.zeros(len(self.outside[0])), *self.outside)
        return found


def together(releases: Sequence[EpochRelease], *, rho: float, kept: float | Matrix) -> Together:
    r"""Return the joint model of an example's releases, one an epoch.

    With :math:`\tau = \lambda_1 - \lambda_2`, an example of class c in epoch t gets

    .. math::
        \mu_c^t + \sqrt{w_c^t} \, \zeta^t + \sqrt{\tau_c^t} \, \varepsilon^t \hat\Delta^t + \sqrt{\lambda_2^{c,t}} \,
        \eta^t

    where :math:`\varepsilon^t` and :math:`\eta^t` of two epochs correlate by rho, the persistent share of the noise,
    and the example's own deviations :math:`\zeta^t` from its class by `kept`. So for two epochs s and t

    .. math::
        Cov_c^{st} = k_c^{st} \sqrt{w^s w^t} I + \rho \left( \sqrt{\tau^s \tau^t} \, \hat\Delta^s \hat\Delta^{t\top} +
        \sqrt{\lambda_2^s \lambda_2^t} I \right).

    Its divergence, put into `auc_bound`, bounds the AUC of every rule that sees all T of them.

    Parameters
    ----------
    releases : Sequence[EpochRelease]
        One an epoch, all of one width.
    rho : float
        Persistent share of the noise, 0 to 1.
    kept : float or ndarray, (2, T, T)
        Correlation of an example's deviation from its class mean between epochs, 0 (independent) to 1 (always the
        same): one number for all, or the correlations of negatives and of positives.

    Returns
    -------
    Together
        Joint model of the two classes.

    Raises
    ------
    ArgumentError
        Without a release, for releases of several widths, for shares outside 0 to 1, and for other correlations.

    References
    ----------
    The model of one release: Li et al., *Label Leakage and Protection in Two-party Split Learning*, ICLR 2022, A.4.

    Examples
    --------
    >>> one = EpochRelease(np.array([1.0, 0.0]), 1.0, (0.0, 0.0), (4.0, 4.0), (4.0, 4.0))
    >>> [round(together([one] * epochs, rho=0.0, kept=0.0).sum_kl(), 3) for epochs in (1, 2, 8)]
    [0.25, 0.5, 2.0]
    >>> round(together([one] * 8, rho=1.0, kept=0.0).sum_kl(), 3)
    0.25
    """
    if not releases or len({len(release.direction) for release in releases}) != 1:
        raise ArgumentError("Give at least one release, all of one width.")
    noise, own = _correlations(rho, kept, len(releases))
    directions = np.stack([release.direction for release in releases])
    basis = np.linalg.svd(directions, full_matrices=False)[2]
    places = directions @ basis.T
    rank = places.shape[1]
    difference = (np.array([release.distance for release in releases])[:, None] * places).ravel()
    inside, outside = [], []
    for c in (0, 1):
        spread, along, across = (
            np.sqrt([getattr(release, name)[c] for release in releases]) for name in ("spread", "along", "across")
        )
        line = np.sqrt(np.maximum(along**2 - across**2, 0.0))
        shared = own[c] * np.outer(spread, spread) + noise * np.outer(across, across)
        stretched = (line[:, None] * places).ravel()
        on_line = np.kron(noise, np.ones((rank, rank))) * np.outer(stretched, stretched)
        inside.append(np.kron(shared, np.eye(rank)) + on_line)
        outside.append(shared)
    return Together(difference, (inside[0], inside[1]), (outside[0], outside[1]), directions.shape[1] - rank)


def together_shaped(releases: Sequence[ShapedRelease], *, rho: float, kept: float | Matrix) -> Together:
    r"""Return the joint model of an example's releases, one an epoch, where classes have any covariances.

    With the names of `ShapedRelease`, the releases of two epochs s and t have the covariance

    .. math::
        Cov_c^{st} = R_c^s K_c^{st} R_c^{t\top} + \rho F_c^s F_c^{t\top}.

    Parameters
    ----------
    releases : Sequence[ShapedRelease]
        One an epoch, all of one shape.
    rho : float
        Correlation of the numbers :math:`\varepsilon` of two epochs, 0 to 1.
    kept : float or ndarray, (2, T D, T D)
        Correlation of the numbers :math:`\zeta` of two epochs: one share for all, from 0 to 1, or the matrices K of
        negatives and of positives; numbers of one epoch are independent.

    Returns
    -------
    Together
        Joint model of the two classes; all directions are inside.

    Raises
    ------
    ArgumentError
        Without a release, for releases of several shapes, for shares outside 0 to 1, and for other correlations.

    Examples
    --------
    >>> one = ShapedRelease(np.array([1.0, 0.0]), np.zeros((2, 2, 2)), np.stack([2.0 * np.eye(2)] * 2))
    >>> [round(together_shaped([one] * 4, rho=rho, kept=0.0).sum_kl(), 3) for rho in (0.0, 1.0)]
    [1.0, 0.25]
    """
    if not releases or len({release.noise.shape for release in releases}) != 1:
        raise ArgumentError("Give at least one release, all of one shape.")
    count, width = len(releases), len(releases[0].difference)
    noise, own = _correlations(rho, kept, count, width)
    covariances = []
    for c in (0, 1):
        roots, factors = (np.stack([getattr(r, name)[c] for r in releases]) for name in ("own", "noise"))
        correlations = own[c].reshape(count, width, count, width)
        blocks = np.einsum("sik,sktl,tjl->sitj", roots, correlations, roots, optimize=True)
        blocks += np.einsum("st,sik,tjk->sitj", noise, factors, factors, optimize=True)
        covariances.append(blocks.reshape(count * width, count * width))
    difference = np.concatenate([release.difference for release in releases])
    return Together(difference, (covariances[0], covariances[1]), (np.zeros((1, 1)), np.zeros((1, 1))), 0)


def _correlations(rho: float, kept: float | Matrix, count: int, width: int = 1) -> tuple[Matrix, Matrix]:
    """Return the correlations of noise, (T, T), and of the deviations of each class, (2, T width, T width)."""
    if not 0.0 <= rho <= 1.0:
        raise ArgumentError(f"rho is {rho}; a share lies between 0 and 1.")
    if isinstance(kept, int | float):
        if not 0.0 <= kept <= 1.0:
            raise ArgumentError(f"kept is {kept}; a share lies between 0 and 1.")
        return _equal_correlations(rho, count), np.stack([np.kron(_equal_correlations(kept, count), np.eye(width))] * 2)
    own, size = np.asarray(kept, dtype=np.float64), count * width
    if own.shape != (2, size, size) or not np.isfinite(own).all():
        raise ArgumentError(f"Of {count} releases kept is a number or finite (2, {size}, {size}), given {own.shape}.")
    within_epochs = np.kron(np.eye(count), np.ones((width, width))) * own
    if not np.allclose(own, own.transpose(0, 2, 1)) or not np.allclose(within_epochs, np.eye(size)):
        raise ArgumentError("kept are correlations: symmetric, 1 on the diagonal, 0 beside it within an epoch.")
    if (np.linalg.eigvalsh(own) < -_INDEFINITE * size).any():
        raise ArgumentError("kept are correlations: no eigenvalue is below 0.")
    return _equal_correlations(rho, count), own


def _equal_correlations(share: float, count: int) -> Matrix:
    return share + (1.0 - share) * np.eye(count)


def _sum_kl(difference: NDArray[np.float64], first: Matrix, second: Matrix) -> float:
    r"""Return the symmetric divergence of two Gaussians; directions that are constant and equal in both add nothing.

    In directions in which their covariances add up to the identity, those of the first are :math:`\alpha_i`, those of
    the second :math:`1 - \alpha_i`, and with the difference m of the means the divergence is

    .. math:: \tfrac12 \sum_i \frac{(1 - 2 \alpha_i)^2 + m_i^2}{\alpha_i (1 - \alpha_i)}.
    """
    scale, axes = np.linalg.eigh(first + second)
    varying = scale > _ROUNDING * scale[-1]
    constant = difference - axes[:, varying] @ (axes[:, varying].T @ difference)
    if np.linalg.norm(constant) > _ROUNDING * len(scale) * np.linalg.norm(difference):
        return math.inf
    if not varying.any():
        return 0.0
    white = axes[:, varying] / np.sqrt(scale[varying])
    alpha, rotation = np.linalg.eigh(white.T @ first @ white)
    if min(alpha[0], 1.0 - alpha[-1]) <= _ROUNDING:
        return math.inf
    m = rotation.T @ (white.T @ difference)
    found = 0.5 * float((((1.0 - 2.0 * alpha) ** 2 + m**2) / (alpha * (1.0 - alpha))).sum())
    return found if math.isfinite(found) else math.inf  # NaN is no bound
