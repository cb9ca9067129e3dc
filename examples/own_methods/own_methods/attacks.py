"""An attack of one's own: the largest entries of a gradient instead of its norm."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from flower_vfl.attacks import RowAttack
from flower_vfl.errors import ConfigError


def score(g: Tensor, k: int = 1) -> Tensor:
    """Score each example by the k-th largest absolute entry of its gradient.

    Parameters
    ----------
    g : Tensor
        (..., B, D) gradients, one row an example.
    k : int
        Rank of the entry; of rows with fewer, the smallest counts.

    Returns
    -------
    Tensor
        (..., B), higher means more likely positive.
    """
    return g.abs().topk(min(k, g.shape[-1]), dim=-1).values[..., -1]


class PeakAttack(RowAttack):
    """Scores each example by the k-th largest entry of its gradient; needs nothing.

    Parameters
    ----------
    k : int
        Rank of the entry, at least 1.
    """

    name: ClassVar[str] = "peak"

    def __init__(self, k: int = 1) -> None:
        if not isinstance(k, int) or isinstance(k, bool) or k < 1:
            raise ConfigError(f"peak: k must be a whole number of at least 1, given {k!r}")
        self.k = k

    def rate(self, rows: Tensor, known: Tensor | None) -> Tensor:
        """Return the scores of the rows (..., B, D) of many runs at once."""
        return score(rows, self.k)
