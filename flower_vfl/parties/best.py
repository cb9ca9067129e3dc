"""A copy of a party's weights after its best epoch, kept while training goes on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from torch import Tensor, nn


@dataclass(frozen=True, eq=False)
class BestModel:
    """The weights of one party after some step.

    Attributes
    ----------
    step
        Number of steps before the copy.
    weights
        A copy in main memory, also where the model is on a GPU.
    """

    step: int
    weights: Mapping[str, Tensor]

    @classmethod
    def of(cls, module: nn.Module, step: int) -> Self:
        """Copy the weights of a module."""
        return cls(step, {name: value.detach().to("cpu", copy=True) for name, value in module.state_dict().items()})

    @classmethod
    def from_state(cls, state: Mapping[str, Any] | None) -> Self | None:
        """Return the copy that `state` returned; None where no copy was kept."""
        return None if state is None else cls(state["step"], state["weights"])

    def state(self) -> dict[str, Any]:
        """Return the copy as plain values and tensors."""
        return {"step": self.step, "weights": dict(self.weights)}

    def load_into(self, module: nn.Module) -> None:
        """Load the weights into a module."""
        module.load_state_dict(self.weights)
