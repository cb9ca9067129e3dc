"""A panel of rows that is followed over all epochs: what came for each of them, in bounded memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from flower_vfl.auditing.halves import Split

_CHUNK = 1 << 20
_RANDOM, _BY_CLASS = 1, 2
"""Purposes of the draws that choose rows."""


def choose_panel(
    split: Split, labels: NDArray[Any], classes: int, count: int
) -> tuple[NDArray[np.int64], NDArray[Any]]:
    """Return about ``count`` rows (n,) of a table, sorted, and which of them (n,) were drawn whatever their class.

    Half is drawn from all rows, half evenly from the classes: readers need enough rows of a rare one.

    Parameters
    ----------
    split : Split
        What the draws derive from.
    labels : NDArray
        (N,) class of each row.
    classes, count : int
        Number of classes, and of rows that are wanted.
    """
    share = count / 2 / max(len(labels), 1)
    counts = np.bincount(labels.astype(np.int64), minlength=classes) if len(labels) else np.zeros(classes)
    of_class = count / 2 / classes / np.maximum(counts, 1)
    chosen, random = [], []
    for low in range(0, len(labels), _CHUNK):
        rows = np.arange(low, min(low + _CHUNK, len(labels)))
        drawn = split.places(rows, _RANDOM) < share
        either = drawn | (split.places(rows, _BY_CLASS) < of_class[labels[rows].astype(np.int64)])
        chosen.append(rows[either])
        random.append(drawn[either])
    return np.concatenate([np.zeros(0, dtype=np.int64), *chosen]), np.concatenate([np.zeros(0, dtype=bool), *random])


class RowPanel:
    """Running sums of gradients of some rows, their first and last ones, and their last embeddings.

    Parameters
    ----------
    rows : NDArray
        (n,) sorted rows of the table that are followed.
    width, z_width : int
        Numbers of one gradient and of one embedding.
    """

    def __init__(self, rows: NDArray[np.int64], width: int, z_width: int) -> None:
        self.rows = rows
        self.times = torch.zeros(len(rows), dtype=torch.int64)
        self.sums, self.first, self.last = (torch.zeros(len(rows), width) for _ in range(3))
        self.embeddings = torch.zeros(len(rows), z_width)

    def places(self, rows: NDArray[np.integer]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return where in a batch rows of the panel are, and their places in it."""
        if not len(self.rows):
            return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
        places = np.minimum(self.rows.searchsorted(rows), len(self.rows) - 1)
        found = np.flatnonzero(self.rows[places] == rows)
        return found, places[found]

    def add(self, places: NDArray[np.int64], x: Tensor, z: Tensor) -> None:
        """Take in gradients (m, D) in units of their batches and embeddings (m, E) of rows at these places."""
        at = torch.from_numpy(places)
        new = self.times[at] == 0
        self.first[at[new]] = x[new]
        self.sums[at] += x
        self.last[at] = x
        self.embeddings[at] = z
        self.times[at] += 1

    @property
    def arrived(self) -> Tensor:
        """Which rows have come as often as any, (n,); early stopping may end within an epoch."""
        return (self.times > 0) & (self.times >= self.times.amax() - 1) if len(self.rows) else self.times > 0

    @property
    def mean(self) -> Tensor:
        """The mean gradient of each row, (n, D)."""
        return self.sums / self.times.clamp(min=1)[:, None]

    def state(self) -> dict[str, Tensor]:
        """Return what a resumed run needs; the rows derive from the secret."""
        names = ("times", "sums", "first", "last", "embeddings")
        return {name: getattr(self, name) for name in names}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Take up what `state` returned."""
        for name, values in state.items():
            setattr(self, name, values.clone())
