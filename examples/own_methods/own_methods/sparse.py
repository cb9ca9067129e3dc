"""A defense that changes embeddings: of each row only a few entries take part in a step."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from flower_vfl.errors import ConfigError
from flower_vfl.strategies import Defense, HookedStrategy


def keep_mask(z: Tensor, count: int, *, explore: float = 0.0, generator: torch.Generator | None = None) -> Tensor:
    r"""Say which entries of each row are kept: the largest ones, a few of them exchanged for others at random.

    Of the `count` largest entries, :math:`n \sim \mathrm{Bin}(count, explore)` are given up, and as many of the others
    take their place.

    Parameters
    ----------
    z : Tensor
        (B, D) embeddings.
    count : int
        Entries that are kept of each row.
    explore : float
        Probability with which one of the largest entries is given up, at least 0 and below 1.
    generator : torch.Generator, optional
        On the device of `z`; needed where `explore` is above 0.

    Returns
    -------
    Tensor
        (B, D), true where an entry is kept, `count` times in each row.
    """
    rows, width = z.shape
    order = z.detach().abs().argsort(dim=1, descending=True, stable=True)
    rank = torch.empty_like(order).scatter_(1, order, torch.arange(width, device=z.device).expand(rows, width))
    if not explore:
        return rank < count
    chance = torch.rand(z.shape, generator=generator, device=z.device)
    given_up = (rank < count) & (chance < explore)
    # As many of the others as are given up: those with the smallest draws.
    others = torch.where(rank < count, torch.inf, chance).argsort(dim=1).argsort(dim=1)
    number = given_up.sum(dim=1, keepdim=True).clamp(max=width - count)
    back = given_up & (torch.where(given_up, chance, torch.inf).argsort(dim=1).argsort(dim=1) < number)
    return ((rank < count) & ~back) | ((rank >= count) & (others < number))


class RandomTopK(Defense):
    """Keeps a share of each embedding's entries: cut gradients are zero everywhere else, whatever the label.

    In training some of the largest entries are exchanged for others, so that all of them learn. A prediction keeps the
    largest ones.

    Parameters
    ----------
    strategy : HookedStrategy
        The wrapped strategy.
    share : float
        Share of the entries that is kept, above 0 and at most 1; never fewer than one.
    explore : float
        Probability with which one of the largest entries is exchanged in training, at least 0 and below 1.

    References
    ----------
    Zheng et al., *Reducing Communication for Split Learning by Randomized Top-k Sparsification*, IJCAI 2023.
    """

    name: ClassVar[str] = "random_top_k"

    def __init__(self, strategy: HookedStrategy, share: float = 0.25, explore: float = 0.1) -> None:
        super().__init__(strategy)
        if isinstance(share, bool) or not isinstance(share, int | float) or not 0.0 < share <= 1.0:
            raise ConfigError(f"random_top_k: share must be above 0 and at most 1, given {share!r}")
        if isinstance(explore, bool) or not isinstance(explore, int | float) or not 0.0 <= explore < 1.0:
            raise ConfigError(f"random_top_k: explore must be at least 0 and below 1, given {explore!r}")
        self.share, self.explore = share, explore

    @property
    def params(self) -> dict[str, Any]:
        """The share, and how often others are tried."""
        return {"share": self.share, "explore": self.explore}

    def embed(self, z: Tensor, *, party: str = "", train: bool = True) -> tuple[Tensor, dict[str, float]]:
        """Let the inner strategy embed first, then set all but a few entries to zero."""
        inner, log = self.strategy.embed(z, party=party, train=train)
        flat = inner.flatten(1)
        explore = self.explore if train else 0.0
        count = max(1, round(self.share * flat.shape[1]))
        mask = keep_mask(flat, count, explore=explore, generator=self.generator(z.device))
        return (flat * mask).view_as(inner), log
