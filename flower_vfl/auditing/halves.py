"""Rows are split once: readers are fitted on some, one of them is chosen on others, and it is scored on the rest."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from flower_vfl.rng import scattered

FIT, CHOOSE, SCORE, CANARY = 0, 1, 2, 3
"""The purposes of the parts of the rows; a row stays in its part over the epochs."""

_SHARES = (0.35, 0.5)
"""Up to where, of all rows, those to fit and those to choose lie: the two make one half."""


@dataclass(frozen=True, slots=True)
class Split:
    """A split of a table's rows that needs no memory.

    Parameters
    ----------
    seed
        Its seed, from the label party's secret, so that no party knows the rows on which its gradients are scored.
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
        """Return a number from 0 to 1 for each row (n,); for another purpose another one."""
        start = (self.seed + purpose * 0x9E3779B97F4A7C15) % 2**64
        return np.asarray((scattered(rows.astype(np.uint64), start=start) >> np.uint64(11)) / 2.0**53)
