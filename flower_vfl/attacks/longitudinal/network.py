"""A small network, fitted on a few known rows: it reads what no mean and no variance of a class tells."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import torch

from flower_vfl.attacks.base import whole
from flower_vfl.attacks.longitudinal.learned import History, LearnedAttack
from flower_vfl.attacks.readers import Reader, network, standardising
from flower_vfl.errors import ConfigError

if TYPE_CHECKING:
    from torch import Tensor


class RememberedNetworkAttack(LearnedAttack):
    """Scores each row by a network with one hidden layer, fitted on k known rows of each class.

    Rows are standardised by the known ones (`standardising`). The same seed gives the same network of the same rows.

    Parameters
    ----------
    k
        How many labelled rows of each class it knows, at least 1.
    hidden
        Units of the hidden layer, at least 1.
    steps
        Steps of training, at least 1.
    seed
        Where its initial weights start, from 0; it protects nothing.
    reads
        "all", for mean, last and difference; or one of these, or "epochs".
    """

    name: ClassVar[str] = "remembered_network"

    def __init__(self, k: int = 16, hidden: int = 16, steps: int = 300, seed: int = 0, reads: History = "all") -> None:
        super().__init__(k, reads)
        self.hidden, self.steps = whole(self.name, "hidden", hidden), whole(self.name, "steps", steps)
        if not isinstance(seed, int) or isinstance(seed, bool) or not 0 <= seed < 2**63:
            raise ConfigError(f"remembered_network: seed is {seed!r}; give a whole number from 0, below 2 ** 63")
        self.seed = seed

    @property
    def params(self) -> dict[str, Any]:
        """What every learned reader has, and how the network is made."""
        return {**super().params, "hidden": self.hidden, "steps": self.steps, "seed": self.seed}

    def fit(self, x: Tensor, positive: Tensor) -> Reader:
        """Return the network, fitted to standardised rows."""
        standard = standardising(x)
        generator = torch.Generator().manual_seed(self.seed)
        read = network(standard(x), positive.long(), 2, hidden=self.hidden, steps=self.steps, generator=generator)
        return lambda rows: read(standard(rows))
