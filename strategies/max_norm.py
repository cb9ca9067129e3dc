"""Max-norm noise on cut gradients: every row as long, on average, as the longest of its batch [L22 section 4.1]."""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Tensor

from flower_vfl.errors import UnprotectedBatchError
from flower_vfl.parties.label import Log
from flower_vfl.strategies.noise import Noise, NoiseDefense

_TINY = 1e-12


def perturb(g: Tensor, *, generator: torch.Generator) -> Tensor:
    r"""Stretch every row at random along itself, so that all rows have the same expected squared norm.

    .. math::
        \tilde g_j = g_j (1 + \sigma_j \varepsilon_j), \quad \varepsilon_j \sim N(0, 1), \quad
        \sigma_j = \sqrt{\max_i \|g_i\|_2^2 / \|g_j\|_2^2 - 1}

    so that :math:`E \|\tilde g_j\|_2^2 = \max_i \|g_i\|_2^2` and :math:`E \tilde g_j = g_j`. A row of zeros has no
    direction to be stretched along and would tell its label by staying zero: it gets
    :math:`N(0, \max_i \|g_i\|_2^2 / d \; I)` instead.

    It hides labels from attacks on the norm by every feature party. The direction of a row, but for its sign, is sent
    as it is, and so is the longest row; a batch of one row is not changed at all.

    Parameters
    ----------
    g : Tensor
        (B, D) cut gradients, of any scale.
    generator : torch.Generator
        On the device of `g`.

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
    return _perturb(g, Noise(generator))[0]


def _perturb(g: Tensor, noise: Noise) -> tuple[Tensor, float]:
    """Return the perturbed gradients and the mean power of the noise; reads the device once."""
    if not g.numel():
        return g.clone(), 0.0
    work = g if g.dtype in (torch.float32, torch.float64) else g.float()
    low, high = torch.aminmax(work)
    unit = torch.maximum(high, -low)
    unit = torch.where(unit > 0, unit, torch.ones_like(unit))
    scaled = work / unit  # no square overflows, and of the longest row none vanishes
    lengths = torch.linalg.vector_norm(scaled, dim=1)
    longest = lengths.amax()
    missing = (longest.square() - lengths.square()).clamp(min=0.0)  # what the noise adds to each squared norm
    numbers = torch.stack([unit, longest, lengths.amin(), missing.mean()]).tolist()
    scale, reach, shortest, spread = numbers
    if not all(map(math.isfinite, numbers)):
        raise UnprotectedBatchError("max_norm: a gradient is not finite, so its noise cannot be computed")
    if shortest < _TINY * reach or reach == 0.0:
        scaled, lengths = _lengthen(scaled, lengths, work)
    draw = noise.draw(work, 1)[:, 0]
    stretch = torch.where(lengths > 0, draw * missing.sqrt() / lengths, torch.zeros_like(lengths))
    noisy = torch.addcmul(work, scaled * stretch[:, None], unit)  # in this order: unit * stretch may overflow
    if shortest == 0.0:
        zeros = (lengths == 0.0).nonzero()[:, 0]
        isotropic = noise.draw(work, g.shape[1], chosen=zeros, stream=1)
        noisy[zeros] = isotropic * (reach * scale / math.sqrt(g.shape[1]))
    return noisy.to(g.dtype), spread * scale * scale


def _lengthen(scaled: Tensor, lengths: Tensor, work: Tensor) -> tuple[Tensor, Tensor]:
    """Replace rows whose squares vanish beside those of the longest by multiples of themselves whose do not."""
    rows = (lengths < _TINY).nonzero()[:, 0]
    peaks = work[rows].abs().amax(dim=1, keepdim=True)
    scaled, lengths = scaled.clone(), lengths.clone()
    scaled[rows] = work[rows] / torch.where(peaks > 0, peaks, torch.ones_like(peaks))
    lengths[rows] = torch.linalg.vector_norm(scaled[rows], dim=1)
    return scaled, lengths


class MaxNorm(NoiseDefense):
    """Noise along each row that makes all rows equally long on average; it has no strength to choose.

    Good against the norm attack of any feature party, weaker against attacks on directions. A batch that it cannot
    protect (one row alone, which has no longer one to hide behind, or a value that is not finite) is replaced by
    zeros.

    Parameters
    ----------
    strategy : HookedStrategy
        What it wraps.
    scope, rho
        See `NoiseDefense`.
    """

    name: ClassVar[str] = "max_norm"
    unbiased: ClassVar[bool] = True

    def perturb(self, g: Tensor, y: Tensor) -> tuple[Tensor, Log]:
        """Add the noise and log its mean power.

        Raises
        ------
        UnprotectedBatchError
            For one row alone, and where a gradient is not finite.
        """
        if len(g) == 1:
            raise UnprotectedBatchError("max_norm: a batch of one row has no longer row to hide behind")
        noisy, power = _perturb(g, self.noise(g))
        return noisy, {"noise_power": power}
