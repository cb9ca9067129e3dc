"""A panel of rows that is followed over all epochs: the gradients of each of them, in bounded memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from flower_vfl.auditing.halves import Split
from flower_vfl.auditing.members import ALONE, Members

_CHUNK = 1 << 20
_TOGETHER = 16
"""Batches that are added up at once: an index operation for all of them costs as much as for one."""

_RANDOM, _BY_CLASS = 1, 2
"""Purposes of the draws that choose rows."""

SHORTEST = 1e-6
"""Least length of a gradient, where a batch's root mean square is 1: shorter ones count as this long."""


class Membership:
    """A choice of rows of a table, drawn from their numbers, so that a resumed run makes the same one.

    Half is drawn from all rows, half evenly from the classes: readers need enough rows of a rare one.

    Parameters
    ----------
    split : Split
        The seed of the draws.
    labels : NDArray
        (N,) class of each row.
    classes, count : int
        Number of classes, and of rows that are wanted, about.
    """

    def __init__(self, split: Split, labels: NDArray[Any], classes: int, count: int) -> None:
        self._split, self._labels = split, labels
        counts = np.zeros(classes, dtype=np.int64)
        for low in range(0, len(labels), _CHUNK):  # as whole numbers of eight bytes, labels may need gigabytes
            counts += np.bincount(labels[low : low + _CHUNK].astype(np.int64), minlength=classes)
        self._share = count / 2 / max(len(labels), 1)
        self._of_class = count / 2 / classes / np.maximum(counts, 1)

    @property
    def total(self) -> int:
        """Number of rows of the table."""
        return len(self._labels)

    def drawn(self, rows: NDArray[np.integer]) -> NDArray[np.bool_]:
        """Return which rows (n,) were drawn whatever their class."""
        return np.asarray(self._split.places(rows, _RANDOM) < self._share)

    def of(self, rows: NDArray[np.integer]) -> NDArray[np.bool_]:
        """Return which rows (n,) are followed."""
        by_class = self._split.places(rows, _BY_CLASS) < self._of_class[self._labels[rows].astype(np.int64)]
        return np.asarray(self.drawn(rows) | by_class)

    def all(self) -> NDArray[np.int64]:
        """Return all rows (n,) that are followed, sorted."""
        found = [np.zeros(0, dtype=np.int64)]
        for low in range(0, len(self._labels), _CHUNK):
            rows = np.arange(low, min(low + _CHUNK, len(self._labels)))
            found.append(rows[self.of(rows)])
        return np.concatenate(found)


class RowPanel:
    """Running sums of gradients of some rows and of their lengths, their first and last ones, and last embeddings.

    A mean of gradients tells little of their lengths where their directions differ from epoch to epoch.

    Parameters
    ----------
    membership : Membership
        Gives the rows of the table that are followed.
    width, z_width : int
        Numbers of one gradient and of one embedding.
    members : Members
        Parties whose parts of a gradient have lengths of their own, beside the whole.

    Attributes
    ----------
    rows
        (n,) the rows, sorted.
    random
        (n,) which of them were drawn whatever their class.
    """

    def __init__(self, membership: Membership, width: int, z_width: int, members: Members = ALONE) -> None:
        self._members = members
        self.rows = membership.all()
        self._followed = np.zeros(membership.total, dtype=np.bool_)
        self._followed[self.rows] = True
        self.random = membership.drawn(self.rows)
        self.times = torch.zeros(len(self.rows), dtype=torch.int64)
        self.sums, self.first, self.last = (torch.zeros(len(self.rows), width) for _ in range(3))
        self.logs, self.squares = (torch.zeros(len(self.rows), 1 + len(members.names)) for _ in range(2))
        self.embeddings = torch.zeros(len(self.rows), z_width)
        self._waiting: list[tuple[Tensor, Tensor, Tensor]] = []

    def places(self, rows: NDArray[np.integer]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return where in a batch rows of the panel are, and their places in it."""
        found = np.flatnonzero(self._followed[rows])
        return found, self.rows.searchsorted(rows[found])

    def add(self, places: NDArray[np.int64], x: Tensor, z: Tensor) -> None:
        """Take in gradients (m, D) in units of their batches and embeddings (m, E) of rows at these places.

        They count from the next `settle` on, which comes at the end of an epoch at the latest.
        """
        self._waiting.append((torch.from_numpy(places), x, z))
        if len(self._waiting) >= _TOGETHER:
            self.settle()

    def settle(self) -> None:
        """Add up the pending batches at once; they have no row in common."""
        if not self._waiting:
            return
        at, x, z = (torch.cat(pieces) for pieces in zip(*self._waiting, strict=True))
        self._waiting = []
        times = self.times[at]
        new = times == 0
        self.first[at[new]] = x[new]
        lengths = torch.stack([torch.linalg.vector_norm(part, dim=1) for _, part in self._members.views(x)], dim=1)
        self.logs.index_add_(0, at, lengths.clamp(min=SHORTEST).log())
        self.squares.index_add_(0, at, lengths.square())
        self.sums.index_add_(0, at, x)
        self.last.index_copy_(0, at, x)
        self.embeddings.index_copy_(0, at, z)
        self.times[at] = times + 1

    @property
    def arrived(self) -> Tensor:
        """A mask (n,) of the rows that have occurred as often as any; early stopping may end within an epoch."""
        return (self.times > 0) & (self.times >= self.times.amax() - 1) if len(self.rows) else self.times > 0

    @property
    def mean(self) -> Tensor:
        """The mean gradient of each row, (n, D)."""
        return self.sums / self.times.clamp(min=1)[:, None]

    @property
    def lengths(self) -> Tensor:
        """The mean logarithm of each row's lengths and that of its mean squared length, of each view, (n, V, 2)."""
        times = self.times.clamp(min=1)[:, None]
        return torch.stack([self.logs / times, (self.squares / times).clamp(min=SHORTEST**2).log() / 2], dim=2)

    def state(self) -> dict[str, Tensor]:
        """Return what a resumed run needs; the rows derive from the secret."""
        self.settle()
        names = ("times", "sums", "first", "last", "logs", "squares", "embeddings")
        return {name: getattr(self, name) for name in names}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Take up what `state` returned."""
        self._waiting = []
        for name, values in state.items():
            setattr(self, name, values.clone())
