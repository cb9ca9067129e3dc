"""A defense that asks what other labels would do: each row's gradient is mixed with that of the other label."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from flower_vfl.errors import ConfigError
from flower_vfl.strategies import GradientDefense, HookedStrategy, StepView


class LabelMixture(GradientDefense):
    r"""Sends a mixture of the gradients of both labels, :math:`(1 - m) \, g(y) + m \, g(1 - y)`.

    The weight m of each row is drawn again in each step, uniform between 0 and `most`. At 0.5 both labels give the same
    gradient; below, the true label's side stays the likelier one, and `norm` and `direction` read it.

    Parameters
    ----------
    strategy : HookedStrategy
        The wrapped strategy.
    most : float
        Largest weight of the other label's gradient, above 0 and at most 1.
    scope : {"joint", "per-party"}
        See `GradientDefense`.
    """

    name: ClassVar[str] = "label_mixture"
    two_classes_only: ClassVar[bool] = True
    asks_other_labels: ClassVar[bool] = True

    def __init__(
        self, strategy: HookedStrategy, most: float = 0.6, *, scope: Literal["joint", "per-party"] = "joint"
    ) -> None:
        super().__init__(strategy, scope=scope)
        if isinstance(most, bool) or not isinstance(most, int | float) or not 0.0 < most <= 1.0:
            raise ConfigError(f"label_mixture: most must be above 0 and at most 1, given {most!r}")
        self.most = most

    @property
    def params(self) -> dict[str, Any]:
        """The largest weight, and the scope."""
        return {"most": self.most, **super().params}

    def perturb(self, g: Tensor, y: Tensor, step: StepView | None = None) -> tuple[Tensor, dict[str, float]]:
        """Mix the gradients; log the mean weight of the other label's."""
        step = step or self.base.step
        other = step.gradients_of(1 - y)
        drawn = torch.rand((len(g), 1), generator=self.generator(g.device), device=g.device)
        weight = (self.most * drawn).to(g.dtype)
        return g + weight * (other - g), {"weight": float(weight.mean()) if len(g) else 0.0}
