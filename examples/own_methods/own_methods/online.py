"""An online attack, which learns during training from a few rows whose labels the party knows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from flower_vfl.attacks import Attack, SideInformation
from flower_vfl.attacks.base import LABELS, NOTHING
from flower_vfl.errors import ConfigError

if TYPE_CHECKING:
    from torch import Tensor

    from flower_vfl.protocol.transcript import Transcript

KEPT = 0.95
"""Share of the class means that stays from one batch with known rows to the next."""


class OnlineAttack(Attack):
    """Scores each example along the line of two running class means, of rows whose labels the party knows.

    Gradients are measured in units of their batch's root mean square, because they become shorter as training goes on.
    Before both classes have come, it scores nothing but zeros.

    Parameters
    ----------
    k : int
        Of how many training rows of each class the party knows the label, at least 1.
    """

    name: ClassVar[str] = "online"
    needs: ClassVar[frozenset[str]] = frozenset({LABELS})
    sequential: ClassVar[bool] = True

    def __init__(self, k: int = 25) -> None:
        if not isinstance(k, int) or isinstance(k, bool) or k < 1:
            raise ConfigError(f"online: k must be a whole number of at least 1, given {k!r}")
        self.k = k
        self._means: dict[str, Tensor] = {}

    @property
    def leaks(self) -> int:
        """Of how many rows of each class it knows the label."""
        return self.k

    def score(self, transcript: Transcript, layer: str, side: SideInformation = NOTHING) -> Tensor:
        """Move the class means by the known rows of the batch, and return the places along their line, (B,)."""
        known = side.tensor(LABELS)
        g = transcript.last.gradients[layer].flatten(1).double()
        unit = g.abs().amax().clamp(min=torch.finfo(torch.float64).tiny)
        rows = g / unit
        rows = rows / rows.square().sum(dim=1).mean().sqrt().clamp(min=torch.finfo(torch.float64).tiny)
        for label in (0, 1):
            mine = rows[known == label]
            if len(mine):
                name = str(label)
                before = self._means.get(name)
                mean = mine.mean(dim=0)
                self._means[name] = mean if before is None else KEPT * before.to(mean) + (1.0 - KEPT) * mean
        if len(self._means) < 2:
            return rows.new_zeros(len(rows))
        return rows @ (self._means["1"] - self._means["0"]).to(rows)

    def state(self) -> dict[str, Any]:
        """Return the class means."""
        return dict(self._means)

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from what `state` returned."""
        self._means = dict(state)
