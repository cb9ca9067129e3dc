"""Noise of the same mean power as Marvell's for many classes, but of other shapes, for comparison."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import numpy as np
from torch import Tensor

from flower_vfl.errors import ConfigError
from flower_vfl.parties.hooks import Log
from flower_vfl.strategies import GradientDefense, HookedStrategy
from flower_vfl.strategies.gradients.marvell import estimates
from flower_vfl.strategies.gradients.marvell.isotropic import NoisePlan, add_noise, optimal_noise
from flower_vfl.strategies.gradients.marvell.multiclass import ManyClasses, ManyEstimates, estimate
from flower_vfl.strategies.gradients.marvell.multiclass_solver import ClassProblem, optimal_levels
from flower_vfl.strategies.gradients.noise import Noise


class OfPower(GradientDefense):
    """Noise of mean power s times the mean squared distance of two class means of the batch.

    Parameters
    ----------
    strategy : HookedStrategy
        The wrapped strategy.
    s : float
        Strength, as in Marvell.
    """

    unbiased: ClassVar[bool] = True

    def __init__(self, strategy: HookedStrategy, *, s: float) -> None:
        super().__init__(strategy)
        if not 0.0 <= s < math.inf:
            raise ConfigError(f"{self.name}: s must be a finite number of at least 0, given {s}")
        self.s = s

    @property
    def params(self) -> dict[str, Any]:
        """The strength."""
        return {"s": self.s}

    def perturb(self, g: Tensor, y: Tensor) -> tuple[Tensor, Log]:
        """Add noise by `shaped`; the log has the measured mean power of the noise."""
        model = estimate(g, y, ManyEstimates(self.base.labels.classes))
        pairs = len(model.known) * (len(model.known) - 1)
        power = self.s * float(model.problem.distances.sum()) / pairs
        noisy = self.shaped(g, y, model, power)
        return noisy, {"noise_power": float((noisy - g).square().sum(dim=1).mean())}

    def shaped(self, g: Tensor, y: Tensor, model: ManyClasses, power: float) -> Tensor:
        """Return the gradients with noise of that power, in units of the model squared."""
        raise NotImplementedError


class Even(OfPower):
    """The same noise in all directions for all classes: iso, at Marvell's power."""

    name: ClassVar[str] = "even"

    def shaped(self, g: Tensor, y: Tensor, model: ManyClasses, power: float) -> Tensor:
        """Add isotropic noise."""
        return g + Noise(self.generator(g.device)).draw(g, g.shape[1]) * (model.unit * math.sqrt(power / g.shape[1]))


class Rest(OfPower):
    """Marvell for two classes, each class in turn against all others together, with an equal part of the power."""

    name: ClassVar[str] = "rest"

    def shaped(self, g: Tensor, y: Tensor, model: ManyClasses, power: float) -> Tensor:
        """Add the independent noises of all classes."""
        noisy, numbers = g, Noise(self.generator(g.device))
        for c in y.unique().tolist():
            two = estimates.estimate(g, (y == c).long())
            part = power * (model.unit / two.unit) ** 2 / len(y.unique())
            spectrum, positives = optimal_noise(two.u, two.v, two.d, two.g, two.p, part), round(two.p * len(y))
            plan = NoisePlan(two, spectrum, numbers, (len(y) - positives, positives))
            noisy = noisy + (add_noise(g, (y == c).long(), [plan]) - g)
        return noisy


class Span(OfPower):
    """Marvell for many classes with one level for all directions within the span of the class means."""

    name: ClassVar[str] = "span"

    def shaped(self, g: Tensor, y: Tensor, model: ManyClasses, power: float) -> Tensor:
        """Add noise with one level within the span of the class means."""
        given, rank = model.problem, model.axes.shape[1]
        merged = ClassProblem(
            np.array([float(rank), *given.sizes[rank:]]),
            _merged(given.distances, rank, "sum"),
            _merged(given.variances, rank, "mean"),
            given.shares,
        )
        found = optimal_levels(merged, power)
        levels = found.levels.repeat([rank] + [1] * (len(found.levels) - 1), axis=0)
        return model.draw(g, y, given.solved(levels, 0.0), Noise(self.generator(g.device)))


def _merged(values: Any, rank: int, how: str) -> Any:
    return np.concatenate([getattr(values[:rank], how)(axis=0, keepdims=True), values[rank:]])
