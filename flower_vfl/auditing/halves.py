"""The split of a table's rows: some to fit readers, some to choose one of them, the rest to score it."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from flower_vfl.rng import scattered

FIT, CHOOSE, SCORE, CANARY = 0, 1, 2, 3
"""The parts of the rows: to fit readers, to choose one, to score it, and canaries; they stay the same in all epochs."""

_SHARES = (0.35, 0.5)
"""Cumulative shares of the rows to fit and of those to choose: together one half."""


@dataclass(frozen=True, slots=True)
class Split:
    """A split of a table's rows by hashes of their numbers, which needs no memory.

    Parameters
    ----------
    seed
        Seed of the hashes, from the label party's secret, so that no party knows the rows on which its gradients are
        scored.
    canaries
        (m,) rows whose labels are coins, sorted: they are in no other part.

    Examples
    --------
    >>> parts = Split(7).parts(np.arange(10_000))
    >>> [round(float(np.mean(parts == part)), 2) for part in (FIT, CHOOSE, SCORE)]
    [0.35, 0.16, 0.5]
    """

    seed: int
    canaries: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, dtype=np.int64), compare=False)

    def parts(self, rows: NDArray[np.integer]) -> NDArray[np.int8]:
        """Return the part of each row (n,) of the table: `FIT`, `CHOOSE`, `SCORE` or `CANARY`."""
        found = np.digitize(self.places(rows), _SHARES).astype(np.int8)
        found[np.isin(rows, self.canaries)] = CANARY
        return found

    def places(self, rows: NDArray[np.integer], purpose: int = 0) -> NDArray[np.float64]:
        """Return a pseudorandom number from 0 to 1 for each row (n,); purpose p takes that of the p-th row after it."""
        start = (self.seed + purpose * 0x9E3779B97F4A7C15) % 2**64
        return np.asarray((scattered(rows.astype(np.uint64), start=start) >> np.uint64(11)) / 2.0**53)
