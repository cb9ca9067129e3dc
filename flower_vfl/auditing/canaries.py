"""Canaries: rows whose labels are replaced by coins before training, so that a lower bound on epsilon needs no odds.

The label party draws them, and nobody else knows which they are. Their columns say nothing about a coin: who reads
coins reads them from the messages. They cost utility, for the model learns wrong labels of so many rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flower_vfl.errors import ConfigError
from flower_vfl.rng import Secret

FEWEST = 100
"""Canaries of which an audit can tell anything: a third of them serve to weigh what readers say."""

LARGEST_SHARE = 0.1
"""Of the rows that are trained on: more coins would make it another training."""


@dataclass(frozen=True, eq=False)
class Canaries:
    """Rows of the training table and the coins that are their labels.

    Attributes
    ----------
    rows
        (m,) sorted.
    coins
        (m,) each class is as likely, whatever the row.

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
        """Draw so many of the rows that are trained on, and a coin for each, from the label party's secret.

        Raises
        ------
        ConfigError
            For fewer than `FEWEST`, and more than `LARGEST_SHARE` of the rows.
        """
        most = int(len(trained) * LARGEST_SHARE)
        if count and not FEWEST <= count <= most:
            raise ConfigError(
                f"attack.canaries is {count}; of these {len(trained)} rows {FEWEST} to {most} can be some, or none: 0"
            )
        generator = np.random.default_rng(secret.seed("canaries"))
        rows = np.sort(generator.choice(trained, size=count, replace=False))
        return cls(rows.astype(np.int64), generator.integers(classes, size=count))

    def into(self, labels: NDArray[Any]) -> NDArray[Any]:
        """Return labels (N,) with the coins in their places."""
        found = labels.copy()
        found[self.rows] = self.coins
        return found


NO_CANARIES = Canaries(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64))
"""No label is replaced."""
