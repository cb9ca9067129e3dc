"""Marvell's estimates of the two classes, from one batch and from earlier batches.

Everything is relative to a unit of length, so that gradients of any scale give ordinary numbers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from flower_vfl.errors import UnprotectedBatchError
from flower_vfl.protocol.tensors import brought
from flower_vfl.strategies.gradients.checks import check_shapes, check_two_classes
from flower_vfl.strategies.gradients.units import unit_of, working

MEMORY = 0.9
"""Weight of earlier batches after each new one: the average covers about ten batches."""

_NUMBERS = ("u", "v", "g", "p", "length")


@dataclass(frozen=True, slots=True)
class TwoClassModel:
    """The Gaussian model of the two classes.

    Parameters
    ----------
    unit : float
        Length in which the rest is measured.
    u, v : float
        Variance per coordinate of negatives and of positives, in units squared.
    g : float
        Squared distance of the class means, in units squared.
    p : float
        Fraction of positives.
    rms : float
        Root of the mean squared length of a row, in units.
    direction : Tensor
        (D,) unit vector along the difference of means, from negatives to positives. It lies in main memory, wherever
        the gradients are: averaging it over many batches is slower on a GPU than on a processor.
    """

    unit: float
    u: float
    v: float
    g: float
    p: float
    rms: float
    direction: Tensor

    @property
    def d(self) -> int:
        """The width of a gradient."""
        return len(self.direction)


def estimate(g: Tensor, y: Tensor) -> TwoClassModel:
    """Estimate the model from gradients (B, D) of examples with labels (B,); reads the device once.

    Raises
    ------
    UnprotectedBatchError
        When a class is missing or a value is not finite.
    ConfigError
        When a label is neither 0 nor 1, or shapes do not fit.
    """
    check_shapes("marvell", g, y)
    numbers, difference = brought(statistics(working(g), y))
    return classes_of(numbers.tolist(), difference, len(g))


def statistics(work: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Return eight numbers (..., 8) of gradients (..., B, D) with labels (..., B), and the means' difference (..., D).

    The numbers are the unit in which the rest is measured, the distance of the class means and, for negatives and
    positives, their number, the variance (summed over coordinates) and the squared norm of the mean.
    """
    unit = unit_of(work)
    work = work / unit[..., None, None]
    members = torch.stack([y == 0, y == 1], dim=-2).to(work.dtype)
    counts = members.sum(dim=-1)
    sizes = counts.clamp(min=1.0)
    means = (members @ work) / sizes[..., None]
    # Deviations first and squares afterwards: the variance may be tiny beside the mean.
    subtract = torch.addmm if work.dim() == 2 else torch.baddbmm
    deviations = torch.linalg.vector_norm(subtract(work, members.mT, means, alpha=-1), dim=-1)
    variances = (members @ deviations.square()[..., None])[..., 0] / sizes
    squares = means.square().sum(dim=-1)
    difference = means[..., 1, :] - means[..., 0, :]
    distance = torch.linalg.vector_norm(difference, dim=-1)
    return torch.cat([torch.stack([unit, distance], dim=-1), counts, variances, squares], dim=-1), difference


def classes_of(numbers: Sequence[float], difference: Tensor, rows: int) -> TwoClassModel:
    """Return the model from the `statistics` of one batch with this number of rows, which are in main memory.

    Raises
    ------
    UnprotectedBatchError, ConfigError
        As `estimate` does.
    """
    scale, gap, negatives, positives, spread0, spread1, square0, square1 = numbers
    check_two_classes("marvell", numbers, (negatives, positives), rows)
    p, d = positives / rows, len(difference)
    rms = math.sqrt((1.0 - p) * (spread0 + square0) + p * (spread1 + square1))
    return TwoClassModel(scale, spread0 / d, spread1 / d, gap * gap, p, rms, _unit_vector(difference, gap))


def _unit_vector(vector: Tensor, length: float) -> Tensor:
    """Return the vector scaled to length 1; for a vector of zeros, the first axis."""
    if length > 0.0:
        return vector / length
    vector = torch.zeros_like(vector)
    vector[0] = 1.0
    return vector


class RunningEstimates:
    """The model of the classes over the latest batches that had both, each relative to the length of its own rows.

    A batch of one class has no estimate; it gets the noise for these estimates, with rows as long as its own or as the
    earlier ones, whichever are longer.
    """

    def __init__(self) -> None:
        self._weight = 0.0
        self._sums = dict.fromkeys(_NUMBERS, 0.0)
        self._direction = torch.zeros(0)

    def add(self, classes: TwoClassModel) -> None:
        """Update the estimates by a batch with both classes; a batch of zeros has no effect."""
        if classes.rms <= 0.0:
            return
        if not self._fits(classes.direction):
            self._weight, self._sums = 0.0, dict.fromkeys(_NUMBERS, 0.0)
            self._direction = torch.zeros_like(classes.direction)
        square = classes.rms**2
        new = (classes.u / square, classes.v / square, classes.g / square, classes.p, classes.unit * classes.rms)
        self._weight = MEMORY * self._weight + 1.0
        self._sums = {
            name: MEMORY * total + value for (name, total), value in zip(self._sums.items(), new, strict=True)
        }
        relative = math.sqrt(classes.g) / classes.rms
        self._direction = torch.add(relative * classes.direction, self._direction, alpha=MEMORY)

    def recall(self, g: Tensor) -> TwoClassModel | None:
        """Return the model for gradients (B, D) of one class; None without estimates of this width.

        Raises
        ------
        UnprotectedBatchError
            When a value is not finite.
        """
        work = working(g)
        unit = unit_of(work)
        mean_square = (work / unit).square().sum(dim=1).mean()
        known = self._weight > 0.0 and self._fits(work[0])
        length = float(torch.linalg.vector_norm(self._direction)) if known else 0.0
        scale, square = torch.stack([unit, mean_square]).tolist()
        if not math.isfinite(scale):
            raise UnprotectedBatchError("marvell: a gradient is not finite, so its noise cannot be computed")
        if not known or length <= 0.0:
            return None
        u, v, distance, p, rms = (total / self._weight for total in self._sums.values())
        longest = max(rms, scale * math.sqrt(square))
        direction = (self._direction / length).to(work.dtype)
        return TwoClassModel(longest, u, v, distance, p, 1.0, direction)

    def _fits(self, row: Tensor) -> bool:
        return self._direction.shape == row.shape

    def state(self) -> dict[str, Any]:
        """Return the state as plain values and one tensor."""
        return {"weight": self._weight, "sums": dict(self._sums), "direction": self._direction.clone()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore a state that `state` returned."""
        self._weight = float(state["weight"])
        self._sums = {name: float(state["sums"][name]) for name in _NUMBERS}
        self._direction = state["direction"].clone()
