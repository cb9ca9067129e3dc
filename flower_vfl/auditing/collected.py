"""The sampled batches of one epoch, which are kept for informed readers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


@dataclass(slots=True)
class Collected:
    """Rows, columns and embeddings of some steps.

    Attributes
    ----------
    steps
        The steps, in their order.
    pieces
        Rows (B,), gradient columns (B, F) and embeddings (B, E) of each step.
    """

    steps: list[int] = field(default_factory=list)
    pieces: list[tuple[Tensor, Tensor, Tensor]] = field(default_factory=list)

    def add(self, step: int, rows: NDArray[np.int64], columns: Tensor, z: Tensor) -> None:
        """Add the rows, gradient columns and embeddings of one step."""
        self.steps.append(step)
        self.pieces.append((torch.from_numpy(rows.copy()), columns, z))

    @property
    def rows(self) -> NDArray[np.int64]:
        """The rows of all steps, (n,)."""
        return self._joined(0).long().numpy()

    @property
    def columns(self) -> Tensor:
        """The gradient columns of all steps, (n, F)."""
        return self._joined(1)

    @property
    def embeddings(self) -> Tensor:
        """The embeddings of all steps, (n, E)."""
        return self._joined(2)

    @property
    def batches(self) -> NDArray[np.int64]:
        """The step of each row, (n,)."""
        return np.repeat(np.array(self.steps, dtype=np.int64), [len(piece[0]) for piece in self.pieces])

    def _joined(self, place: int) -> Tensor:
        return torch.cat([piece[place] for piece in self.pieces]) if self.pieces else torch.zeros(0, 1)[:, :place]

    def state(self) -> dict[str, Any]:
        """Return the batches as plain values and tensors."""
        names = ("rows", "columns", "embeddings")
        return {
            "steps": list(self.steps),
            "pieces": [dict(zip(names, piece, strict=True)) for piece in self.pieces],
        }

    @classmethod
    def of(cls, state: Mapping[str, Any]) -> Collected:
        """Return the object with this `state`."""
        pieces = [(piece["rows"], piece["columns"], piece["embeddings"]) for piece in state["pieces"]]
        return cls(list(state["steps"]), pieces)
