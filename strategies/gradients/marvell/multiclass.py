"""Marvell's estimates of more than two classes, from one batch and from earlier ones, and the noise that it draws.

Everything is relative to a unit of length, so that gradients of any scale give ordinary numbers. The derivation is
in `docs/methods/marvell-classes.md`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from flower_vfl.errors import ConfigError, UnprotectedBatchError
from flower_vfl.strategies.gradients.checks import check_shapes, strength
from flower_vfl.strategies.gradients.marvell import strengths
from flower_vfl.strategies.gradients.marvell.estimates import MEMORY
from flower_vfl.strategies.gradients.marvell.multiclass_solver import (
    ClassNoise,
    ClassProblem,
    Floats,
    least_levels,
    optimal_levels,
)
from flower_vfl.strategies.gradients.noise import Noise
from flower_vfl.strategies.gradients.units import unit_of, working

_STATE = ("weights", "means", "spreads", "shares")

_SMALLEST_WEIGHT = 1e-12
"""Smallest weight of a class's estimates; they are dropped below it, after some 260 batches without the class."""


def perturb(g: Tensor, y: Tensor, *, classes: int, s: float, generator: torch.Generator) -> tuple[Tensor, ClassNoise]:
    r"""Add the optimal noise of mean power s times the mean squared distance of two class means.

    With the axes E of the class means of this batch and the levels :math:`\lambda` of `optimal_levels`, a row of class
    c becomes

    .. math::
        \tilde g_j = g_j + \sum_i \sqrt{\lambda_{ic}} \, \langle e_i, \eta_j \rangle \, e_i +
        \sqrt{\lambda_{0c}} \, (I - E E^T) \, \eta_j, \qquad \eta_j \sim N(0, I).

    Parameters
    ----------
    g : Tensor
        (B, D) cut gradients, of any scale.
    y : Tensor
        (B,) labels from 0 to C - 1.
    classes : int
        Number of classes C; those that the batch does not have are left out.
    s : float
        Power of the noise relative to the mean over pairs of the squared distance of the class means, at least 0.
    generator : torch.Generator
        Generator on the device of `g`.

    Returns
    -------
    tuple[Tensor, ClassNoise]
        (B, D) perturbed gradients, unbiased; and the noise, its levels in the units of `g`, of the classes that occur.

    Raises
    ------
    UnprotectedBatchError
        When the batch has one class only, a value is not finite, or the class means coincide although the classes
        differ, so that there is no power to hide that.
    ConfigError
        For an s that is negative or not finite, and for labels out of range.

    Examples
    --------
    >>> y = torch.arange(60) % 3
    >>> g = torch.randn(60, 8, generator=torch.Generator().manual_seed(0)) + 3 * torch.eye(3, 8)[y]
    >>> noisy, noise = perturb(g, y, classes=3, s=4.0, generator=torch.Generator().manual_seed(1))
    >>> noisy.shape, noise.levels.shape  # two axes of three means, and all that is across them
    (torch.Size([60, 8]), (3, 3))
    """
    value = strength("marvell: s", s)
    model = estimate(g, y, ManyEstimates(classes))
    noise = model.noise("s", value)
    scaled = ClassNoise(noise.levels * model.unit**2, noise.divergences, noise.gap)
    return model.draw(g, y, noise, Noise(generator)), scaled


class ClassMoments(NamedTuple):
    """Moments of the classes: a mask of the known ones (C,), shares (C,), means (C, D) and summed variances (C,)."""

    known: NDArray[np.bool_]
    shares: Floats
    means: Floats
    spreads: Floats


@dataclass(frozen=True, slots=True, eq=False)
class ManyClasses:
    """The Gaussian model of the classes, in axes of its own.

    Parameters
    ----------
    unit : float
        Length in which the rest is measured.
    rms : float
        Root of the mean squared length of a row, in units.
    known : ndarray, (K,)
        Numbers of the modelled classes.
    means : ndarray, (K, D)
        Their means, in units.
    axes : Tensor
        (D, R) unit vectors along which class means differ, orthogonal to each other; on the device of the batch.
    problem : ClassProblem
        The classes along each axis and, as last group, across the axes if there are further directions.
    """

    unit: float
    rms: float
    known: NDArray[np.int64]
    means: Floats
    axes: Tensor
    problem: ClassProblem

    def noise(self, name: str, value: float) -> ClassNoise:
        """Return the noise of a strength, in units squared.

        Raises
        ------
        UnprotectedBatchError
            When noise is requested and needed, but this strength gives none, because the class means coincide.
        """
        if name in ("sum_kl", "detection_error"):
            return least_levels(self.problem, strengths.target(name, value))[1]
        apart = float(self.problem.distances.sum()) / (len(self.known) * (len(self.known) - 1))
        power = strengths.power(name, value, apart, self.unit)
        noise = optimal_levels(self.problem, power)
        strengths.check_power("marvell", value, power, noise.largest)
        return noise

    def draw(self, g: Tensor, y: Tensor, noise: ClassNoise, numbers: Noise) -> Tensor:
        """Return gradients (B, D) of modelled classes with noise.

        A row's normal numbers are drawn in the coordinates of the gradients and rotated into those of the axes, so that
        persistent numbers do not depend on the axes.
        """
        work = working(g)
        table = np.zeros((int(self.known.max()) + 1, len(self.problem.sizes)))
        table[self.known] = np.sqrt(noise.levels.T) * self.unit
        scales = torch.from_numpy(table).to(work)[y.long()]
        axes, normal = self.axes.to(work), numbers.draw(work, work.shape[1])
        along = normal @ axes
        count = axes.shape[1]
        noisy = work + (along * scales[:, :count]) @ axes.T
        if table.shape[1] > count and table[:, count].any():
            noisy += scales[:, count:] * (normal - along @ axes.T)
        return noisy.to(g.dtype)

    def shares(self, y: Tensor) -> Floats:
        """Return the shares of the modelled classes among rows with labels y (B,), (K,); 0 without a row."""
        found: Floats = np.bincount(_numbers(y), minlength=int(self.known.max()) + 1)[self.known] / len(y)
        return found

    def power(self, y: Tensor, noise: ClassNoise) -> float:
        """Return the mean squared norm of the noise of rows with labels y (B,), in the gradients' unit squared."""
        return float(self.problem.sizes @ noise.levels @ self.shares(y)) * self.unit**2


class ManyEstimates:
    """Running estimates of each class, over about ten batches, relative to the length of the rows of its batch.

    They stand in for classes that a batch does not have, and for the spread of a class with one row. The estimates of a
    class that has not occurred for long are dropped.

    Parameters
    ----------
    classes : int
        Number of classes C.
    """

    def __init__(self, classes: int) -> None:
        self.classes = classes
        self._reset(0)

    def _reset(self, width: int) -> None:
        self._batches = self._length = 0.0
        self._weights, self._spreads, self._shares = (np.zeros(self.classes) for _ in range(3))
        self._means = np.zeros((self.classes, width))

    def of_width(self, width: int) -> ClassMoments:
        """Return the classes' moments for rows of length 1, (C,) and (C, D); no class is known for another width."""
        if self._means.shape[1] != width:
            nothing = np.zeros(self.classes)
            return ClassMoments(nothing > 0.0, nothing, np.zeros((self.classes, width)), nothing)
        weights = np.maximum(self._weights, 1e-30)
        shares = self._shares / max(self._batches, 1e-30)
        return ClassMoments(self._weights > 0.0, shares, self._means / weights[:, None], self._spreads / weights)

    def add(self, model: ManyClasses, y: Tensor) -> None:
        """Update the estimates by a batch with labels y (B,); a batch of zeros has no effect."""
        if model.rms <= 0.0:
            return
        if self._means.shape[1] != model.means.shape[1]:
            self._reset(model.means.shape[1])
        counts = np.bincount(_numbers(y), minlength=self.classes)
        present = counts[model.known] > 0
        rows = model.known[present]
        self._batches, self._length = MEMORY * self._batches + 1.0, MEMORY * self._length + model.unit * model.rms
        stale = MEMORY * self._weights < _SMALLEST_WEIGHT
        for sums in (self._weights, self._means, self._spreads, self._shares):
            np.multiply(sums, MEMORY, out=sums)
            sums[stale] = 0.0
        self._weights[rows] += 1.0
        self._means[rows] += model.means[present] / model.rms
        self._spreads[rows] += (model.problem.sizes @ model.problem.variances)[present] / model.rms**2
        self._shares += counts / len(y)

    def recall(self, g: Tensor, y: Tensor) -> ManyClasses | None:
        """Return the model for gradients (B, D) without an estimate; None if a class of theirs is unknown.

        Raises
        ------
        UnprotectedBatchError
            When a value is not finite.
        """
        work = working(g)
        unit = float(unit_of(work))
        if not math.isfinite(unit):
            raise UnprotectedBatchError("marvell: a gradient is not finite, so its noise cannot be computed")
        known, shares, means, spreads = self.of_width(g.shape[1])
        if not known[_numbers(y)].all():
            return None
        rms = unit * math.sqrt(float((work / unit).square().sum(dim=1).mean()))
        axes, places = principal_axes(means[known], torch.finfo(work.dtype).eps)
        groups = places.shape[1] + (places.shape[1] < g.shape[1])
        variances = np.tile(spreads[known] / g.shape[1], (groups, 1))
        problem = _problem(places, variances, shares[known], g.shape[1])
        longest = max(rms, self._length / self._batches)
        return ManyClasses(longest, 1.0, np.flatnonzero(known), means[known], torch.from_numpy(axes), problem)

    def state(self) -> dict[str, Any]:
        """Return the state as plain values and tensors."""
        arrays = {name: torch.from_numpy(getattr(self, f"_{name}").copy()) for name in _STATE}
        return {"batches": self._batches, "length": self._length, **arrays}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore a state that `state` returned."""
        self._batches, self._length = float(state["batches"]), float(state["length"])
        for name in _STATE:
            setattr(self, f"_{name}", state[name].numpy().copy())


def estimate(g: Tensor, y: Tensor, memory: ManyEstimates) -> ManyClasses:
    """Estimate the model from gradients (B, D) of examples with labels (B,), and from memory where these give none.

    Along an axis each class has the variance that its rows have there, and the same one in every direction across the
    axes. A class without rows is taken from memory, or left out. The mean of a class with one row is that of the batch;
    its spread comes from memory, else from the other classes.

    Raises
    ------
    UnprotectedBatchError
        When there are fewer than two classes or a value is not finite.
    ConfigError
        When a label is out of range, or shapes do not fit.
    """
    unit, work, members, (number, squares, sums) = _sums(g, y, memory.classes)
    rms, width = math.sqrt(squares.sum() / len(g)), g.shape[1]
    running, present = memory.of_width(width), number > 0
    means = np.where(present[:, None], sums / np.maximum(number, 1)[:, None], running.means * rms)
    known = present | running.known
    precision = torch.finfo(work.dtype).eps
    axes, places = principal_axes(means[known], precision)
    turned = torch.from_numpy(axes).to(work)
    deviations = work - torch.from_numpy(means).to(work)[y.long()]
    inside, whole = (deviations @ turned).square(), deviations.square().sum(dim=1, keepdim=True)
    spreads = (members.T @ torch.cat([inside, whole], dim=1)).double().cpu().numpy() / np.maximum(number, 1)[:, None]
    variances = _with_all_spreads(_by_group(spreads, width, 16 * precision), number, running, rms, width)
    shares = np.where(present, number / len(g), running.shares)
    problem = _problem(places, variances[:, known], shares[known], width)
    return ManyClasses(unit, rms, np.flatnonzero(known), means[known], turned, problem)


def _sums(g: Tensor, y: Tensor, classes: int) -> tuple[float, Tensor, Tensor, tuple[Floats, Floats, Floats]]:
    """Return the unit, gradients in it, the membership (B, C), and numbers (C,), squares (C,), sums (C, D)."""
    check_shapes("marvell", g, y)
    low, high = (int(value) for value in torch.aminmax(y))
    if low < 0 or high >= classes:
        raise ConfigError(f"marvell: labels of {classes} classes are 0 to {classes - 1}; {low} to {high} came")
    work = working(g)
    unit = unit_of(work)
    work = work / unit
    members = torch.nn.functional.one_hot(y.long(), classes).to(work.dtype)
    each = [members.sum(dim=0), members.T @ work.square().sum(dim=1), unit.expand(classes)]
    found = torch.cat([torch.stack(each, dim=1), members.T @ work], dim=1).double().cpu().numpy()
    if not np.isfinite(found).all():
        raise UnprotectedBatchError("marvell: a gradient is not finite, so the classes cannot be estimated")
    if np.count_nonzero(found[:, 0]) < 2:
        raise UnprotectedBatchError(f"marvell: all {len(g)} examples of the batch are of one class; it needs two")
    return float(found[0, 2]), work, members, (found[:, 0], found[:, 1], found[:, 3:])


def principal_axes(means: Floats, precision: float) -> tuple[Floats, Floats]:
    """Return the axes (D, R) along which means (K, D) differ, and the means' coordinates on them (K, R).

    They are the principal axes of the means, with equal weights of the classes; R is the numerical rank of their
    differences at this precision.
    """
    centred = means - means.mean(axis=0)
    left, lengths, right = np.linalg.svd(centred, full_matrices=False)
    rank = int((lengths > 32.0 * precision * np.abs(means).max(initial=0.0)).sum())
    return right[:rank].T.copy(), left[:, :rank] * lengths[:rank]


def _problem(places: Floats, variances: Floats, shares: Floats, width: int) -> ClassProblem:
    classes, rank = places.shape
    distances = np.zeros((len(variances), classes, classes))
    distances[:rank] = np.square(places.T[:, :, None] - places.T[:, None, :])
    sizes = np.ones(len(variances))
    sizes[rank:] = width - rank
    return ClassProblem(sizes, distances, variances, shares / shares.sum())


def _by_group(spreads: Floats, width: int, precision: float) -> Floats:
    """Return variances (M, C) from the mean squared deviations along R axes and altogether, (C, R + 1)."""
    inside, total = spreads[:, :-1], spreads[:, -1]
    rank = inside.shape[1]
    if rank == width:
        return inside.T
    rest = total - inside.sum(axis=1)
    rest = np.where(rest > precision * total.max(), rest, 0.0)  # smaller values are rounding errors
    return np.concatenate([inside, rest[:, None] / (width - rank)], axis=1).T


def _with_all_spreads(variances: Floats, number: Floats, running: ClassMoments, rms: float, width: int) -> Floats:
    """Return variances with a spread of classes of fewer than two rows: that of all others, or the running estimate."""
    several = number > 1
    if several.all():
        return variances
    if not several.any():
        if not running.known.any():
            return variances
        known = running.spreads * rms**2 / width
        known = np.where(running.known, known, known[running.known].mean())
        return np.broadcast_to(known, variances.shape)
    pooled = variances[:, several] @ (number[several] / number[several].sum())
    sizes = np.ones(len(variances))
    sizes[-1] = width - len(variances) + 1
    whole = float(sizes @ pooled)
    ratios = running.spreads * rms**2 / whole if whole > 0.0 else np.ones_like(number)
    ratios = np.where(running.known, ratios, 1.0)
    return np.where(several, variances, pooled[:, None] * ratios)


def _numbers(y: Tensor) -> NDArray[np.int64]:
    return y.cpu().numpy().astype(np.int64)
