"""A small network, fitted on a few known rows: it reads what no mean and no variance of a class tells."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import torch

from flower_vfl.attacks.base import whole
from flower_vfl.attacks.learned import History, LearnedAttack, Reader, standardising
from flower_vfl.errors import ConfigError

if TYPE_CHECKING:
    from torch import Tensor

RATE, MOMENTUM, DECAY = 1.0, 0.9, 1e-3
"""Of gradient descent on all known rows. Adam is no choice here: its steps are as large in each coordinate, so that
those which say nothing are learned by heart. The decay takes its part off each weight in every step, for the same."""


def fit_network(x: Tensor, positive: Tensor, *, hidden: int, steps: int, generator: torch.Generator) -> list[Tensor]:
    r"""Fit a network with one hidden layer to labelled rows, all of them in each step.

    .. math:: r(x) = \langle w, \tanh(A x + b) \rangle + c

    by the logistic loss, with momentum, weight decay and a fixed number of steps: there are too few known rows to set
    some aside that say when to stop.

    Parameters
    ----------
    x
        (n, F) rows, float64, around 0 and of mean squared length 1.
    positive
        (n,) of bool.
    hidden
        Units of the hidden layer, H.
    steps
        How many.
    generator
        Draws the initial weights.

    Returns
    -------
    list[Tensor]
        A (F, H), b (H,), w (H,) and c ().
    """
    inner = torch.randn(x.shape[1], hidden, generator=generator, dtype=x.dtype)
    outer = torch.randn(hidden, generator=generator, dtype=x.dtype) / hidden**0.5
    network = [inner, x.new_zeros(hidden), outer, x.new_zeros(())]
    decays = [DECAY, 0.0, DECAY, 0.0]
    moves = [torch.zeros_like(tensor) for tensor in network]
    target = positive.to(x.dtype)
    for _ in range(steps):
        slopes = _slopes(network, x, target)
        moves = [MOMENTUM * m + g + d * w for m, g, d, w in zip(moves, slopes, decays, network, strict=True)]
        network = [tensor - RATE * move for tensor, move in zip(network, moves, strict=True)]
    return network


def _slopes(network: list[Tensor], x: Tensor, target: Tensor) -> list[Tensor]:
    """Return the gradients of the mean logistic loss, written out: what reads a step keeps no graph."""
    inner, offsets, outer, offset = network
    units = torch.tanh(x @ inner + offsets)
    error = (torch.sigmoid(units @ outer + offset) - target) / len(x)
    back = torch.outer(error, outer) * (1 - units.square())
    return [x.T @ back, back.sum(dim=0), units.T @ error, error.sum()]


def _say(network: list[Tensor], x: Tensor) -> Tensor:
    inner, offsets, outer, offset = network
    return torch.tanh(x @ inner + offsets) @ outer + offset


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
        known = standard(x)
        length = known.shape[1] ** 0.5
        generator = torch.Generator().manual_seed(self.seed)
        network = fit_network(known / length, positive, hidden=self.hidden, steps=self.steps, generator=generator)
        return lambda rows: _say(network, standard(rows) / length)
