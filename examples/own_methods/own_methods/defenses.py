"""A defense of one's own: cut gradients of few bits."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from flower_vfl.errors import ConfigError
from flower_vfl.strategies import GradientDefense, HookedStrategy


def quantise(g: Tensor, *, bits: int, generator: torch.Generator) -> Tensor:
    r"""Round every value to a grid, with triangular noise before rounding.

    .. math::
        \tilde g = \Delta \, \mathrm{round}(g / \Delta + a - b), \quad \Delta = \max |g| / 2^{bits - 1}, \quad
        a, b \sim U(0, 1)

    The noise makes the rounding unbiased and lets zeros become something else, so that they do not stand out.

    Parameters
    ----------
    g : Tensor
        (B, D) cut gradients, of any scale.
    bits : int
        The grid has 2 ** bits + 1 points between the largest value and its negative.
    generator : torch.Generator
        On the device of `g`.

    Returns
    -------
    Tensor
        (B, D), unbiased; not finite where a gradient is not.
    """
    if not g.numel():
        return g.clone()
    work = g if g.dtype == torch.float64 else g.float()
    largest = float(work.abs().amax())
    if largest == 0.0:
        return g.clone()
    levels = 2 ** (bits - 1)
    a, b = torch.rand((2, *g.shape), generator=generator, device=g.device, dtype=work.dtype)
    return (torch.round(work / largest * levels + a - b) / levels * largest).to(g.dtype)


class Quantise(GradientDefense):
    """Cut gradients of few bits: hides what is smaller than a step of the grid, from every feature party.

    Parameters
    ----------
    strategy : HookedStrategy
        The wrapped strategy.
    bits : int
        The fewer, the more is hidden: 1 to 16.
    scope : {"joint", "per-party"}
        See `GradientDefense`.
    """

    name: ClassVar[str] = "quantise"
    unbiased: ClassVar[bool] = True

    def __init__(
        self, strategy: HookedStrategy, bits: int = 4, *, scope: Literal["joint", "per-party"] = "joint"
    ) -> None:
        super().__init__(strategy, scope=scope)
        if not isinstance(bits, int) or isinstance(bits, bool) or not 1 <= bits <= 16:
            raise ConfigError(f"quantise: bits must be a whole number from 1 to 16, given {bits!r}")
        self.bits = bits

    @property
    def params(self) -> dict[str, Any]:
        """The number of bits, and the scope."""
        return {"bits": self.bits, **super().params}

    def perturb(self, g: Tensor, y: Tensor) -> tuple[Tensor, dict[str, float]]:
        """Round the gradients and log the mean power of what that adds."""
        sent = quantise(g, bits=self.bits, generator=self.generator(g.device))
        power = (sent - g).double().square().sum(dim=1).mean() if len(g) else torch.zeros(())
        return sent, {"noise_power": float(power)}
