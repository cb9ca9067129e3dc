"""A small network as a reader of the row memory, fitted on a few rows with known labels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import torch

from flower_vfl.attacks.base import whole
from flower_vfl.attacks.longitudinal.learned import History, LearnedAttack
from flower_vfl.attacks.readers import TensorReader, network, standardising
from flower_vfl.errors import ConfigError

if TYPE_CHECKING:
    from torch import Tensor


class RememberedNetworkAttack(LearnedAttack):
    """An attack that scores each row by a network with one hidden layer, fitted on k known rows of each class.

    Rows are standardised by the known ones (`standardising`). The same seed and rows give the same network.

    Parameters
    ----------
    k
        Number of labelled rows of each class that it knows, at least 1.
    hidden
        Number of units of the hidden layer, at least 1.
    steps
        Number of steps of training, at least 1.
    seed
        Seed of its initial weights, from 0; it is no secret.
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
        """The parameters of every learned reader, and those of the network."""
        return {**super().params, "hidden": self.hidden, "steps": self.steps, "seed": self.seed}

    def fit(self, x: Tensor, positive: Tensor) -> TensorReader:
        """Return the network, fitted to standardised rows."""
        standard = standardising(x)
        generator = torch.Generator().manual_seed(self.seed)
        read = network(standard(x), positive.long(), 2, hidden=self.hidden, steps=self.steps, generator=generator)
        return lambda rows: read(standard(rows))
