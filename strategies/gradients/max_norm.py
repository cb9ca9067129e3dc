"""Max-norm noise on cut gradients: every row as long, on average, as the longest of its batch [L22 section 4.1]."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import ClassVar, Self

import torch
from torch import Tensor

from flower_vfl.auditing.noise import LineNoise
from flower_vfl.errors import UnprotectedBatchError
from flower_vfl.parties.hooks import Log, StepView
from flower_vfl.strategies.gradients.base import Protection, of_one_run
from flower_vfl.strategies.gradients.noise import Noise, NoiseDefense, draw_each
from flower_vfl.strategies.gradients.units import each_run, unit_of, working

_TINY = 1e-12
_NOT_FINITE = "max_norm: a gradient is not finite, so its noise cannot be computed"
_ONE_ROW = "max_norm: a batch of one row has no longer row to hide behind"


def perturb(g: Tensor, *, generator: torch.Generator) -> Tensor:
    r"""Stretch every row at random along itself, so that all rows have the same expected squared norm.

    .. math::
        \tilde g_j = g_j (1 + \sigma_j \varepsilon_j), \quad \varepsilon_j \sim N(0, 1), \quad
        \sigma_j = \sqrt{\max_i \|g_i\|_2^2 / \|g_j\|_2^2 - 1}

    so that :math:`E \|\tilde g_j\|_2^2 = \max_i \|g_i\|_2^2` and :math:`E \tilde g_j = g_j`. A row of zeros has no
    direction to be stretched along and would reveal its label by staying zero: it gets
    :math:`N(0, \max_i \|g_i\|_2^2 / d \; I)` instead.

    It hides labels from attacks on the norm by every feature party. The direction of a row, but for its sign, is sent
    as it is, and so is the longest row; a batch of one row is not changed at all.

    Parameters
    ----------
    g : Tensor
        (B, D) cut gradients, of any scale.
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

    References
    ----------
    Li et al., *Label Leakage and Protection in Two-party Split Learning*, ICLR 2022, section 4.1.

    Examples
    --------
    >>> g = torch.tensor([[3.0, 4.0], [0.0, 0.1]])
    >>> noisy = perturb(g, generator=torch.Generator().manual_seed(0))
    >>> noisy[0].tolist(), noisy[1, 0].item()  # the longest row stays, the others keep their line
    ([3.0, 4.0], 0.0)
    """
    noisy, (noise,) = _perturb(g, [Noise(generator)])
    if noise is None:
        raise UnprotectedBatchError(_NOT_FINITE)
    return noisy


def _perturb(g: Tensor, noises: Sequence[Noise]) -> tuple[Tensor, list[tuple[float, float] | None]]:
    """Return the perturbed gradients (B, D) or (R, B, D), and each run's mean power of noise and longest row.

    None stands for a run whose gradients are not finite: nothing is drawn for it. Reads the device once, and again
    where rows are nearly zero.
    """
    if not g.numel():
        return g.clone(), [(0.0, 0.0)] * len(noises)
    work = working(g)
    scaled, unit, lengths, missing, measured = _measure(work)
    numbers = measured.view(-1, 4).tolist()
    drawn = [noise if all(map(math.isfinite, each)) else None for noise, each in zip(noises, numbers, strict=True)]
    if any(shortest < _TINY * reach or reach == 0.0 for _, reach, shortest, _ in numbers):
        scaled, lengths = _lengthen(scaled, lengths, work)
    noisy = _stretched(work, scaled, unit, lengths, missing, draw_each(drawn, work, 1)[..., 0])
    runs = zip(drawn, numbers, each_run(noisy), each_run(lengths, dims=1), strict=True)
    for noise, (scale, reach, shortest, _), rows, long in runs:
        if noise is not None and shortest == 0.0:
            zeros = (long == 0.0).nonzero()[:, 0]
            isotropic = noise.draw(rows, g.shape[-1], chosen=zeros, stream=1)
            rows[zeros] = isotropic * (reach * scale / math.sqrt(g.shape[-1]))
    return noisy.to(g.dtype), [
        None if noise is None else (spread * scale * scale, reach * scale)
        for noise, (scale, reach, _, spread) in zip(drawn, numbers, strict=True)
    ]


def _measure(work: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return gradients (..., B, D) in units of their largest entry, and the statistics that determine the noise.

    These are that unit (...), the rows' lengths in it (..., B), the mean that the noise adds to the square of each, and
    four numbers (..., 4): unit, largest and smallest length, mean of the added noise.
    """
    unit = unit_of(work)
    scaled = work / unit[..., None, None]
    lengths = torch.linalg.vector_norm(scaled, dim=-1)
    longest = lengths.amax(dim=-1)
    missing = (longest.square()[..., None] - lengths.square()).clamp(min=0.0)
    numbers = torch.stack([unit, longest, lengths.amin(dim=-1), missing.mean(dim=-1)], dim=-1)
    return scaled, unit, lengths, missing, numbers


def _stretched(work: Tensor, scaled: Tensor, unit: Tensor, lengths: Tensor, missing: Tensor, draw: Tensor) -> Tensor:
    """Return gradients (..., B, D), each stretched along itself by its number of `draw` (..., B); zeros stay zeros."""
    stretch = torch.where(lengths > 0, draw * missing.sqrt() / lengths, torch.zeros_like(lengths))
    # In this order: unit * stretch may overflow.
    return torch.addcmul(work, scaled * stretch[..., None], unit[..., None, None])


def _lengthen(scaled: Tensor, lengths: Tensor, work: Tensor) -> tuple[Tensor, Tensor]:
    """Scale up rows so short that their squares vanish beside those of the longest row."""
    short = lengths < _TINY
    scaled, lengths, rows = scaled.clone(), lengths.clone(), work[short]
    scaled[short] = rows / unit_of(rows[:, None])[:, None]
    lengths[short] = torch.linalg.vector_norm(scaled[short], dim=1)
    return scaled, lengths


class MaxNorm(NoiseDefense):
    """Noise along each row that makes all rows equally long on average, without a strength parameter.

    Good against the norm attack of any feature party, weaker against attacks on directions. A batch that it cannot
    protect (one row alone, or a value that is not finite) is replaced by zeros.

    Parameters
    ----------
    strategy : HookedStrategy
        The wrapped strategy.
    scope, rho
        See `NoiseDefense`.
    """

    name: ClassVar[str] = "max_norm"
    read_by: ClassVar[tuple[str, ...]] = ("shell", "remembered_scales")
    unbiased: ClassVar[bool] = True
    checks_finite: ClassVar[bool] = True

    @classmethod
    def perturb_runs(
        cls, defenses: Sequence[Self], g: Tensor, y: Tensor, steps: Sequence[StepView]
    ) -> tuple[Tensor, list[Protection]]:
        """Add the noise and log its mean power; one row alone, and values that are not finite, cannot be protected."""
        if g.shape[-2] == 1:
            return g.clone(), [UnprotectedBatchError(_ONE_ROW) for _ in defenses]
        noises = [defense.noise(own, step) for defense, own, step in zip(defenses, each_run(g), steps, strict=True)]
        noisy, added = _perturb(g, noises)
        logs: list[Protection] = []
        for defense, step, noise in zip(defenses, steps, added, strict=True):
            if noise is None:
                logs.append(UnprotectedBatchError(_NOT_FINITE))
                continue
            power, longest = noise
            defense.describe_noise(step, partial(LineNoise, longest))
            logs.append({"noise_power": power})
        return noisy, logs

    def perturb(self, g: Tensor, y: Tensor, step: StepView | None = None) -> tuple[Tensor, Log]:
        """Add the noise and log its mean power.

        Raises
        ------
        UnprotectedBatchError
            For one row alone, and where a gradient is not finite.
        """
        return of_one_run(*type(self).perturb_runs([self], g, y, [step or self.base.step]))
