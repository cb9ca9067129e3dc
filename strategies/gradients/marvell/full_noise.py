"""The model of the two classes of a batch for Marvell with full covariances, and the noise that equalises them."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.linalg.lapack import dpotrf, dpotri
from torch import Tensor

from flower_vfl.errors import UnprotectedBatchError
from flower_vfl.protocol.tensors import brought
from flower_vfl.strategies.gradients.checks import check_shapes, check_two_classes
from flower_vfl.strategies.gradients.units import beside, working

EVERYWHERE = 0.5
"""Share of the noise for differences beyond the covariances that is equal in every direction."""

_STEPS, _STEP, _PRECISION = 200, 1.5, 0.01
"""Settings of the search for the least power: most steps, the factor of each step down, and the precision."""

_NEGLIGIBLE = 1e-12
"""Share of the largest squared length of a direction that the rows span; smaller lengths are rounding errors."""

_ROUNDING = 16.0
"""Share of the largest variance, in units of the gradients' precision, that may be a rounding error."""


@dataclass(frozen=True, slots=True)
class Pair:
    """The two classes of a batch, in a unit of length of its own.

    Attributes
    ----------
    unit
        The length.
    p
        Fraction of positives.
    square
        Mean squared length of a row.
    g
        Squared distance of the class means.
    centres
        (2, D) means of negatives and of positives.
    basis
        (D, R) orthonormal columns, the directions of the rows' deviations from their class means and of the means'
        difference. None for the identity.
    covariances
        (2, R, R) of negatives and of positives in that basis, biased (1/N), float64.

    All of it lies in main memory, wherever the gradients are: a processor decomposes matrices this small sooner than a
    GPU does.
    """

    unit: float
    p: float
    square: float
    g: float
    centres: Tensor
    basis: Tensor | None
    covariances: Tensor

    @property
    def means(self) -> Tensor:
        """The difference of the class means (D,), from negatives to positives."""
        return self.centres[1] - self.centres[0]


@dataclass(frozen=True, slots=True)
class FullNoise:
    r"""Noise of the two classes, in the units of a `Pair`.

    .. math:: N_c = \lambda \, u u^T + \varepsilon I + \sum_i \ell_{ci} w_i w_i^T

    Attributes
    ----------
    along
        lambda, the variance along the means' line.
    everywhere
        epsilon, the variance in every direction.
    levels
        l, (2, R) of negatives and of positives, float64.
    directions
        w, (D, R), orthonormal columns.
    line
        u, (D,), of length 1; zeros where the means coincide.
    power
        Mean squared length of a row's noise.
    matched
        Share of it that equalises the covariances, at most one half; 0 without noise.
    sum_kl
        Sum of the two divergences between the classes with this noise, as Gaussians with these covariances; inf where a
        direction in which they vary no more than by rounding may separate them.
    """

    along: float
    everywhere: float
    levels: Tensor
    directions: Tensor
    line: Tensor
    power: float
    matched: float
    sum_kl: float

    @property
    def common_levels(self) -> Tensor:
        """The part of the levels that both classes get, (R,)."""
        return self.levels.amin(dim=0)


def estimate(g: Tensor, y: Tensor) -> Pair:
    """Estimate the classes' means and covariances from gradients (B, D) of examples with labels (B,).

    Raises
    ------
    UnprotectedBatchError
        When a class is missing or a value is not finite.
    ConfigError
        When a label is neither 0 nor 1, or shapes do not fit.
    """
    check_shapes("marvell_full", g, y)
    work = working(g)
    ends, labels = brought([torch.stack(torch.aminmax(work)), y])
    low, high = ends.tolist()
    unit, sides = max(-low, high) or 1.0, [np.flatnonzero(labels.numpy() == label) for label in (0, 1)]
    counts = [len(rows) for rows in sides]
    check_two_classes("marvell_full", [unit], counts, len(g))
    # Class by class, and small arrays in NumPy: a small operation of PyTorch takes ten times as long.
    order = torch.from_numpy(np.concatenate(sides)).to(work.device, non_blocking=True)
    of_class = torch.split(work.index_select(0, order).div_(unit), counts)
    centres = [rows.mean(dim=0) for rows in of_class]
    apart = [rows.sub_(centre) for rows, centre in zip(of_class, centres, strict=True)]
    basis = _basis(torch.cat([*apart, (centres[1] - centres[0])[None]])) if g.shape[1] > len(g) else None
    inside = apart if basis is None else [rows @ beside(basis, rows) for rows in apart]
    found = [one.numpy() for one in brought([*centres, *(rows.T @ rows for rows in inside)])]
    means, squares = np.stack(found[:2]), np.stack(found[2:]).astype(np.float64)
    squares /= np.array(counts)[:, None, None]
    of_means, covariances = torch.from_numpy(means), torch.from_numpy(squares)
    means, spreads = means.astype(np.float64), squares.trace(axis1=1, axis2=2)
    square = float(np.array(counts) @ (spreads + np.square(means).sum(axis=1))) / len(g)
    distance = float(np.square(means[1] - means[0]).sum())
    return Pair(unit, counts[1] / len(g), square, distance, of_means, basis, covariances)


def _basis(rows: Tensor) -> Tensor:
    """Return an orthonormal basis (D, R) of the span of rows (B, D), by way of their inner products."""
    squares, vectors = torch.linalg.eigh((rows @ rows.T).double().cpu())
    kept = squares > _NEGLIGIBLE * max(float(squares[-1]), torch.finfo(torch.float64).tiny)
    columns = rows.T @ beside(vectors[:, kept] / squares[kept].sqrt(), rows)
    orthonormal: Tensor = torch.linalg.qr(columns.cpu())[0]  # removes rounding errors of the angles
    return orthonormal


def optimal_noise(pair: Pair, power: float, spread: float = 0.1) -> FullNoise:
    r"""Return noise of this power, in units of the pair, that equalises the covariances and covers the means' line.

    With :math:`E = A_1 - A_0 = \sum_i e_i w_i w_i^T`, the difference of the classes' covariances, noise
    :math:`\theta E_+` for negatives and :math:`\theta E_-` for positives equalises them: at theta = 1 both
    have :math:`A_0 + E_+ = A_1 + E_-`. Half of the power goes there at most, mostly far less. Of the rest,
    `spread` is noise that is equal for both classes, half of it in proportion to :math:`|e_i|`, half the same in every
    direction, for differences beyond the covariances; and the rest is noise that both get along the line of the means,
    the only remaining difference of the classes: with theta = 1 the divergence is :math:`\Delta^T C^{-1} \Delta`.

    Parameters
    ----------
    pair : Pair
        The classes.
    power : float
        Mean squared length of a row's noise, at least 0.
    spread : float
        Share of the remaining power that covers differences beyond the covariances, above 0 and below 1.
    """
    return _Family(pair, spread).noise(power)


def least_noise(pair: Pair, target: float, spread: float = 0.1) -> FullNoise:
    """Return the noise of `optimal_noise` of the least power, within a hundredth, that leaves at most this divergence.

    It is none if the classes differ by no more than that without noise.

    Parameters
    ----------
    pair : Pair
        The classes.
    target : float
        Divergence to reach, above 0.
    spread : float
        As for `optimal_noise`.

    Raises
    ------
    UnprotectedBatchError
        When no power is found: the target is as small as rounding.
    """
    family = _Family(pair, spread)
    if (nothing := family.noise(0.0)).sum_kl <= target:
        return nothing
    found = family.noise(2.0 * family.matching + pair.g / ((1.0 - spread) * target))  # often a little too much
    for _ in range(_STEPS):
        if found.sum_kl <= target:
            break
        found = family.noise(2.0 * found.power)
    else:
        raise UnprotectedBatchError(f"marvell_full: no power was found that leaves a divergence of {target}")
    for _ in range(_STEPS):
        less = family.noise(found.power / _STEP)
        if less.sum_kl > target:
            break
        found = less
    low, high = math.log(less.power), math.log(found.power)
    while high - low > _PRECISION:
        middle = family.noise(math.exp((low + high) / 2.0))
        if middle.sum_kl <= target:
            found, high = middle, (low + high) / 2.0
        else:
            low = (low + high) / 2.0
    return found


class _Family:
    """The noise of a pair of classes as a function of its power.

    Covariances are written in the directions in which the classes differ, so that most of the noise is diagonal. These
    matrices are small: NumPy takes half of PyTorch's time for them.
    """

    def __init__(self, pair: Pair, spread: float) -> None:
        self._pair, self._spread = pair, spread
        means, covariances = pair.means, pair.covariances.numpy()
        values, vectors = np.linalg.eigh(covariances[1] - covariances[0])
        self._covariances = vectors.T @ covariances @ vectors
        self._missing = np.stack([values.clip(min=0.0), (-values).clip(min=0.0)])
        self.matching = float((1.0 - pair.p) * self._missing[0].sum() + pair.p * self._missing[1].sum())
        self._total = float(self._missing.sum())
        self._least = _ROUNDING * torch.finfo(means.dtype).eps * float(self._covariances.max())
        self._line = means / math.sqrt(pair.g) if pair.g > 0.0 else torch.zeros_like(means)
        directions = torch.from_numpy(vectors).to(means)
        directions = directions if pair.basis is None else pair.basis @ directions
        self._directions = directions.contiguous()  # as a checkpoint returns it: products of another layout round
        inside = self._line if pair.basis is None else self._line @ pair.basis
        self._line_coordinates = inside.double().numpy() @ vectors

    def noise(self, power: float) -> FullNoise:
        """Return the noise of this power, in units of the pair."""
        pair, line, directions = self._pair, self._line, self._directions
        if power <= 0.0:
            nothing = np.zeros_like(self._missing)
            left = self._divergence(nothing, 0.0, equal=self._total == 0.0)
            return FullNoise(0.0, 0.0, torch.from_numpy(nothing), directions, line, 0.0, 0.0, left)
        theta = min(1.0, power / 2.0 / self.matching) if self.matching > 0.0 else 1.0
        matched = theta * self.matching / power
        rest = power - theta * self.matching
        covering = self._spread * rest if pair.g > 0.0 else rest  # without a line none is needed along it
        common = covering * (1.0 - EVERYWHERE) / self._total if self._total > 0.0 else 0.0
        everywhere = (covering - common * self._total) / line.shape[0]
        along = rest - covering
        levels = theta * self._missing + common * self._missing.sum(axis=0)
        left = self._divergence(levels + everywhere, along, equal=theta == 1.0)
        return FullNoise(along, everywhere, torch.from_numpy(levels), directions, line, power, matched, left)

    def _divergence(self, levels: NDArray[np.float64], along: float, *, equal: bool) -> float:
        """Return the divergence with noise of these levels (2, R) and, on the means' line, of this variance.

        Where it makes the covariances equal, one of them is enough.
        """
        if self._total == 0.0 and self._pair.g == 0.0:
            return 0.0
        classes = 1 if equal else 2
        noisy = self._covariances[:classes] + along * np.outer(self._line_coordinates, self._line_coordinates)
        places = np.arange(noisy.shape[-1])
        noisy[:, places, places] += levels[:classes]
        return divergence(noisy, math.sqrt(self._pair.g) * self._line_coordinates, least=self._least)


def divergence(covariances: NDArray[np.float64], difference: NDArray[np.float64], *, least: float = 0.0) -> float:
    """Return the sum of both divergences of Gaussians with covariances (2, D, D) and means that differ by (D,).

    One covariance (1, D, D) is that of both. The sum is inf where a direction has no more than the variance
    `least`, given the others.
    """
    inverses = []
    for covariance in covariances:
        # NumPy takes twice the time for matrices this small.
        factor, indefinite = dpotrf(covariance, lower=1, clean=1)
        if indefinite:
            return math.inf
        inverse, _ = dpotri(factor, lower=1, overwrite_c=1)
        if float(inverse.diagonal().max()) * least >= 1.0:
            return math.inf
        inverses.append(inverse)
    of_means = float(np.mean([_trace(inverse, np.outer(difference, difference)) for inverse in inverses]))
    if len(inverses) == 1:
        return of_means
    of_spreads = np.mean([_trace(*pair) for pair in zip(inverses, covariances[::-1], strict=True)]) - len(difference)
    return max(0.0, float(of_spreads)) + of_means


def _trace(lower: NDArray[np.float64], other: NDArray[np.float64]) -> float:
    """Return the trace of a product of symmetric matrices; of one the lower triangle is given, and zeros above."""
    return 2.0 * float(np.vdot(lower, other)) - float(lower.diagonal() @ other.diagonal())
