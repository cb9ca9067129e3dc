"""Random sequences of batches, one of each epoch: the releases that a row may have had."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, Generic, TypeVar

import numpy as np

T = TypeVar("T")

CHAINS = 8
"""Number of sequences of batches, one an epoch, over which the divergence is averaged."""

PLACES_AT_ONCE = 64
"""Number of batches whose places are drawn at once: between two training steps a generator takes ten times as long."""


class Chains(Generic[T]):
    """`CHAINS` sequences of releases, each of one random batch of each epoch.

    A row occurs in one batch of each epoch, and these batches are as random as the sequences: the mean of their
    divergences is that of a row's releases together with the identity of its batches.

    Attributes
    ----------
    sequences
        The sequences of the epochs that have ended.
    """

    def __init__(self) -> None:
        self.sequences: list[list[T]] = [[] for _ in range(CHAINS)]
        self._drawn: list[Callable[[], T]] = []  # most are replaced before the epoch ends
        self._epochs = self._batches = 0

    def add(self, make: Callable[[], T]) -> None:
        """Add a batch of this epoch; `make` returns its release, and is called if the batch is drawn."""
        place = self._batches
        self._batches += 1
        if place >= CHAINS:  # reservoir sampling: all batches are equally likely
            place = _drawn_places(self._epochs, place // PLACES_AT_ONCE)[place % PLACES_AT_ONCE]
        if place < CHAINS:
            self._drawn[place : place + 1] = [make]

    def end_epoch(self) -> bool:
        """Append a batch of the epoch to each sequence; return False if the epoch had none."""
        self._epochs += 1
        if self._drawn:
            order = np.random.default_rng(self._epochs).permutation(CHAINS)
            drawn = [make() for make in self._drawn]
            for chain, number in zip(self.sequences, order, strict=True):
                chain.append(drawn[number % len(drawn)])
        had, self._drawn, self._batches = bool(self._drawn), [], 0
        return had

    def forget(self) -> None:
        """Drop the sequences: they begin with the next epoch that ends."""
        self.sequences = [[] for _ in range(CHAINS)]

    def state(self, of_release: Callable[[T], Any]) -> dict[str, Any]:
        """Return the state as plain values, with each release as `of_release` returns it."""
        return {
            "chains": [[of_release(one) for one in chain] for chain in self.sequences],
            "drawn": [of_release(make()) for make in self._drawn],
            "numbers": [self._epochs, self._batches],
        }

    def restore(self, state: Mapping[str, Any], to_release: Callable[[Any], T]) -> None:
        """Restore a state that `state` returned."""

        def made(saved: Any) -> Callable[[], T]:
            return lambda: to_release(saved)

        self.sequences = [[to_release(one) for one in chain] for chain in state["chains"]]
        self._drawn = [made(one) for one in state["drawn"]]
        self._epochs, self._batches = state["numbers"]


@lru_cache(maxsize=4)
def _drawn_places(epoch: int, block: int) -> list[int]:
    """Return the places drawn for the batches of a block, each below the number of batches up to its own."""
    numbers = range(block * PLACES_AT_ONCE + 1, (block + 1) * PLACES_AT_ONCE + 1)
    return [int(np.random.default_rng([epoch, number]).integers(number)) for number in numbers]
