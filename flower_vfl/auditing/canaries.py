"""Canaries: rows whose labels are replaced by coins before training, so that a lower bound on epsilon needs no odds.

Coins are random classes. The label party draws the rows and the coins in secret. The columns are independent of the
coins, so that a reader can detect these from the messages alone. Canaries cost utility: many of their labels are wrong.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flower_vfl.errors import ConfigError
from flower_vfl.rng import Secret

FEWEST_CANARIES = 100
"""Smallest number of canaries for an audit: a third of them calibrate the readers' scores."""

LARGEST_SHARE = 0.1
"""Largest share of canaries among the training rows: more would change the training too much."""


@dataclass(frozen=True, eq=False)
class Canaries:
    """Rows of the training table and the coins that are their labels.

    Attributes
    ----------
    rows
        (m,) rows of the training table, sorted.
    coins
        (m,) random classes, uniform and independent of the row.

    Examples
    --------
    >>> drawn = Canaries.draw(np.arange(5000), 100, 2, Secret.for_simulation(0, "label"))
    >>> len(drawn.rows), int(drawn.into(np.zeros(5000, dtype=np.int64)).sum())
    (100, 57)
    """

    rows: NDArray[np.int64]
    coins: NDArray[np.int64]

    @classmethod
    def draw(cls, trained: NDArray[np.int64], count: int, classes: int, secret: Secret) -> Canaries:
        """Return ``count`` of the rows that are trained on, and a coin for each, drawn from the label party's secret.

        Raises
        ------
        ConfigError
            When there are fewer than `FEWEST_CANARIES`, except for 0, or more than `LARGEST_SHARE` of the rows.
        """
        most = int(len(trained) * LARGEST_SHARE)
        if count and not FEWEST_CANARIES <= count <= most:
            raise ConfigError(
                f"attack.canaries is {count}; it must be 0 (off) or {FEWEST_CANARIES} to {most} for {len(trained)} "
                "training rows"
            )
        generator = np.random.default_rng(secret.seed("canaries"))
        rows = np.sort(generator.choice(trained, size=count, replace=False))
        return cls(rows.astype(np.int64), generator.integers(classes, size=count))

    def into(self, labels: NDArray[Any]) -> NDArray[Any]:
        """Return a copy of labels (N,) with the coins in the rows of the canaries."""
        found = labels.copy()
        found[self.rows] = self.coins
        return found

    def to_bytes(self) -> bytes:
        """Return rows and coins as bytes, empty without canaries: other canaries are other labels to a defense."""
        return np.concatenate([self.rows, self.coins]).astype("<i8").tobytes()


NO_CANARIES = Canaries(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64))
"""The canaries of a run that replaces no label."""
