"""Isotropic Gaussian noise on cut gradients, scaled to the longest gradient of the batch [L22 section 5.2]."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from flower_vfl.auditing.noise import GaussianNoise
from flower_vfl.errors import ConfigError, UnprotectedBatchError
from flower_vfl.parties.hooks import Log, StepView
from flower_vfl.rng import NOISE_KEY_FILE_VARIABLE
from flower_vfl.strategies.base import HookedStrategy
from flower_vfl.strategies.gradients.base import Protection, Scope, of_one_run
from flower_vfl.strategies.gradients.checks import strength
from flower_vfl.strategies.gradients.noise import Noise, NoiseDefense, draw_each
from flower_vfl.strategies.gradients.units import each_run, per_run, unit_of, working

_NOT_FINITE = "iso: a gradient is not finite, so its noise cannot be computed"


def perturb(g: Tensor, *, t: float, generator: torch.Generator) -> Tensor:
    r"""Add noise :math:`N(0, (t/d) \max_j \|g_j\|_2^2 I)` to every row, independently.

    The mean power of the noise is t times the squared norm of the longest gradient, whatever the width.

    Parameters
    ----------
    g : Tensor
        (B, D) cut gradients.
    t : float
        Noise power relative to the longest squared norm; it multiplies the *variance*. (The authors' `ratio`
        multiplies the standard deviation: t = ratio ** 2.)
    generator : torch.Generator
        Generator on the device of `g`.

    Returns
    -------
    Tensor
        (B, D), unbiased.

    Raises
    ------
    UnprotectedBatchError
        When a gradient is not finite.
    ConfigError
        For a t that is negative or not finite.

    References
    ----------
    Li et al., *Label Leakage and Protection in Two-party Split Learning*, ICLR 2022, section 5.2.

    Examples
    --------
    >>> generator = torch.Generator().manual_seed(0)
    >>> perturb(torch.zeros(2, 3), t=1.0, generator=generator)
    tensor([[0., 0., 0.],
            [0., 0., 0.]])
    """
    noisy, (power,) = _perturb(g, [strength("iso: t", t)], [Noise(generator)])
    if math.isnan(power):
        raise UnprotectedBatchError(_NOT_FINITE)
    return noisy


def _perturb(g: Tensor, ts: Sequence[float], noises: Sequence[Noise]) -> tuple[Tensor, list[float]]:
    """Return the perturbed gradients (B, D) or (R, B, D) and the power of each run's noise; reads the device once.

    The power is NaN for a run whose gradients are not finite: nothing is drawn for it.
    """
    if not g.numel():
        return g.clone(), [0.0] * len(ts)
    work, width = working(g), g.shape[-1]
    longest = _longest(work)
    lengths = longest.reshape(-1).tolist()
    drawn = [noise if math.isfinite(length) else None for noise, length in zip(noises, lengths, strict=True)]
    scales = longest * per_run([math.sqrt(t / width) for t in ts], longest)
    noisy = work + draw_each(drawn, work, width) * scales[..., None, None]
    powers = [t * length * length if math.isfinite(length) else math.nan for t, length in zip(ts, lengths, strict=True)]
    return noisy.to(g.dtype), powers


def _model(variance: float, width: int) -> GaussianNoise:
    no_directions = torch.zeros(width, 0)
    return GaussianNoise((variance, variance), (no_directions, no_directions))


def _longest(g: Tensor) -> Tensor:
    """Return the largest norm of the rows of (..., B, D), (...); NaN if a value is."""
    unit = unit_of(g)
    longest: Tensor = (g / unit[..., None, None]).norm(dim=-1).amax(dim=-1) * unit
    return longest


class Iso(NoiseDefense):
    """Isotropic Gaussian noise: hides labels from attacks on cut gradients, by every feature party.

    It is simple but inefficient: only one direction separates the classes, and the noise goes in all. A batch with a
    value that is not finite is replaced by zeros.

    Parameters
    ----------
    strategy : HookedStrategy
        The wrapped strategy.
    t : float
        Noise power relative to the squared norm of the batch's longest gradient.
    scope, rho
        See `NoiseDefense`.
    """

    name: ClassVar[str] = "iso"
    read_by: ClassVar[tuple[str, ...]] = ("norm", "remembered_direction", "remembered_scales")
    unbiased: ClassVar[bool] = True
    checks_finite: ClassVar[bool] = True

    def __init__(self, strategy: HookedStrategy, t: float = 1.0, *, scope: Scope = "joint", rho: float = 0.0) -> None:
        super().__init__(strategy, scope=scope, rho=rho)
        self.t = strength("iso: t", t)

    def begin(self) -> None:
        """Refuse a noise key that is kept between training runs.

        Persistent noise is fixed in the coordinates of the cut, and the line of the classes differs between
        training runs: the difference of two runs with one key revealed every label (docs/results/trainings.md).

        Raises
        ------
        ConfigError
            When `rho` is above 0 and the noise key is kept; the message names the alternatives.
        """
        if self.rho and self.base.secret.keeps_noise_key:
            raise ConfigError(
                f"iso with rho = {self.rho:g} and a noise key that is kept: what differs between two trainings would "
                f"give all labels away. Unset {NOISE_KEY_FILE_VARIABLE} here, or take marvell_full"
            )
        super().begin()

    @property
    def params(self) -> dict[str, Any]:
        """The strength, the persistent share and the scope."""
        return {"t": self.t, **super().params}

    @classmethod
    def perturb_runs(
        cls, defenses: Sequence[Self], g: Tensor, y: Tensor, steps: Sequence[StepView]
    ) -> tuple[Tensor, list[Protection]]:
        """Add the noise and log its power."""
        noises = [defense.noise(own, step) for defense, own, step in zip(defenses, each_run(g), steps, strict=True)]
        noisy, powers = _perturb(g, [defense.t for defense in defenses], noises)
        for defense, step, power in zip(defenses, steps, powers, strict=True):
            if g.numel() and not math.isnan(power):
                defense.describe_noise(step, partial(_model, power / g.shape[-1], g.shape[-1]))
        return noisy, [
            UnprotectedBatchError(_NOT_FINITE) if math.isnan(power) else {"noise_power": power} for power in powers
        ]

    def perturb(self, g: Tensor, y: Tensor, step: StepView | None = None) -> tuple[Tensor, Log]:
        """Add the noise and log its power."""
        return of_one_run(*type(self).perturb_runs([self], g, y, [step or self.base.step]))
