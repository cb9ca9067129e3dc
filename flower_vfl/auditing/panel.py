"""A panel of rows that are followed over all epochs: sums of their gradients, in bounded memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import cosine_similarity

from flower_vfl.auditing.halves import Split
from flower_vfl.auditing.members import ALONE, Members
from flower_vfl.metrics.arrays import class_counts
from flower_vfl.protocol.schedule import Schedule

_CHUNK = 1 << 20
_TOGETHER = 16
"""Number of batches that are added up at once: an index operation for all of them costs as much as for one."""

_RANDOM, _BY_CLASS = 1, 2
"""Purposes of the draws that choose rows."""

SHORTEST = 1e-6
"""Least length of a gradient, where a batch's root mean square is 1: shorter ones count as this long."""


class Membership:
    """A choice of rows of a table by hashes of their numbers, so that a resumed run makes the same one.

    Half is drawn from all rows, half evenly from the classes: readers need enough rows of a rare one. All canaries are
    followed. In time order the first half are whole batches, because rows are compared within their batch, which needs
    many rows of each.

    Parameters
    ----------
    split : Split
        The seed of the draws, and the canaries.
    labels : NDArray
        (N,) class of each row.
    classes, count : int
        Number of classes, and approximate number of rows, without canaries.
    schedule : Schedule, optional
        Gives the rows of each batch; needed in time order only.
    """

    def __init__(
        self, split: Split, labels: NDArray[Any], classes: int, count: int, schedule: Schedule | None = None
    ) -> None:
        self._split, self._labels = split, labels
        self._share = count / 2 / max(len(labels), 1)
        self._of_class = count / 2 / classes / np.maximum(class_counts(labels, classes), 1)
        self._batches = _whole_batches(split, schedule, count // 2) if schedule and schedule.periods else None

    @property
    def total(self) -> int:
        """Number of rows of the table."""
        return len(self._labels)

    def drawn(self, rows: NDArray[np.integer]) -> NDArray[np.bool_]:
        """Return a mask (n,) of the rows that were drawn regardless of their class."""
        if self._batches is not None:
            return np.isin(rows, self._batches)
        return np.asarray(self._split.places(rows, _RANDOM) < self._share)

    def of(self, rows: NDArray[np.integer]) -> NDArray[np.bool_]:
        """Return a mask (n,) of the rows that are followed."""
        by_class = self._split.places(rows, _BY_CLASS) < self._of_class[self._labels[rows].astype(np.int64)]
        return np.asarray(self.drawn(rows) | by_class | np.isin(rows, self._split.canaries))

    def all(self) -> NDArray[np.int64]:
        """Return all rows (n,) that are followed, sorted."""
        found = [np.zeros(0, dtype=np.int64)]
        for low in range(0, len(self._labels), _CHUNK):
            rows = np.arange(low, min(low + _CHUNK, len(self._labels)))
            found.append(rows[self.of(rows)])
        return np.concatenate(found)


def _whole_batches(split: Split, schedule: Schedule, count: int) -> NDArray[np.int64]:
    """Return the rows of as many batches as have about `count` rows together, rounded up, at least one."""
    chosen = np.argsort(split.places(np.arange(schedule.steps), _RANDOM))[: max(1, -(-count // schedule.batch_size))]
    return np.concatenate([schedule.train_batch(int(step)) for step in chosen])


class RowPanel:
    """Running sums of some rows' gradients, their signs, lengths and cosines, with first and last ones and embeddings.

    The mean gradient does not show the lengths where the directions differ from epoch to epoch, nor whether each one
    resembles that of the epoch before. It does not converge
    under noise with heavy tails, such as Cauchy's; the mean sign does.

    Parameters
    ----------
    membership : Membership
        Gives the rows of the table that are followed.
    width, z_width : int
        Widths of a gradient and of an embedding.
    members : Members
        Parties whose parts of a gradient have lengths of their own, beside the whole.

    Attributes
    ----------
    rows
        (n,) the rows, sorted.
    random
        (n,) mask of the rows that were drawn regardless of their class.
    """

    def __init__(self, membership: Membership, width: int, z_width: int, members: Members = ALONE) -> None:
        self._members = members
        self.rows = membership.all()
        self._followed = np.zeros(membership.total, dtype=np.bool_)
        self._followed[self.rows] = True
        self.random = membership.drawn(self.rows)
        self.times = torch.zeros(len(self.rows), dtype=torch.int64)
        self.sums, self.signs, self.first, self.last = (torch.zeros(len(self.rows), width) for _ in range(4))
        self.logs, self.squares, self.cosines = (torch.zeros(len(self.rows), 1 + len(members.names)) for _ in range(3))
        self.embeddings = torch.zeros(len(self.rows), z_width)
        self.scales = torch.zeros(len(self.rows))
        self._pending: list[tuple[Tensor, Tensor, Tensor, Tensor, Tensor]] = []

    def places(self, rows: NDArray[np.integer]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the positions in a batch of rows of the panel, and the positions of these rows in the panel."""
        found = np.flatnonzero(self._followed[rows])
        return found, self.rows.searchsorted(rows[found])

    def add(self, places: NDArray[np.int64], x: Tensor, signs: Tensor, z: Tensor, scales: Tensor) -> None:
        """Add a step's gradients (m, D) in units of their batch, their signs (m, D), and embeddings (m, E) of rows.

        ``places`` (m,) are the rows' positions in the panel, ``scales`` (m,) the logarithm of the batch's scale. All
        takes effect at the next `settle`, at the end of the epoch at the latest.
        """
        at = torch.from_numpy(places)
        self._pending.append((at, x, signs, z, scales))
        if len(self._pending) >= _TOGETHER:
            self.settle()

    def settle(self) -> None:
        """Add up the pending batches at once; they have no row in common."""
        if not self._pending:
            return
        at, x, signs, z, scales = (torch.cat(pieces) for pieces in zip(*self._pending, strict=True))
        self._pending = []
        times = self.times[at]
        new = times == 0
        self.first[at[new]] = x[new]
        lengths = torch.stack([torch.linalg.vector_norm(part, dim=1) for _, part in self._members.views(x)], dim=1)
        self.logs.index_add_(0, at, lengths.clamp(min=SHORTEST).log())
        self.squares.index_add_(0, at, lengths.square())
        pairs = zip(self._members.views(x), self._members.views(self.last[at]), strict=True)
        self.cosines.index_add_(
            0, at, torch.stack([cosine_similarity(own, was) for (_, own), (_, was) in pairs], dim=1)
        )
        self.sums.index_add_(0, at, x)
        self.signs.index_add_(0, at, signs)
        self.scales.index_add_(0, at, scales)
        self.last.index_copy_(0, at, x)
        self.embeddings.index_copy_(0, at, z)
        self.times[at] = times + 1

    @property
    def arrived(self) -> Tensor:
        """A mask (n,) of the rows that occurred, at most once less than any other; training may stop mid-epoch."""
        return (self.times > 0) & (self.times >= self.times.amax() - 1) if len(self.rows) else self.times > 0

    @property
    def mean(self) -> Tensor:
        """The mean gradient of each row, (n, D)."""
        return self.sums / self.times.clamp(min=1)[:, None]

    @property
    def mean_sign(self) -> Tensor:
        """The mean of the signs of each row's gradients, less those of its batches, (n, D)."""
        return self.signs / self.times.clamp(min=1)[:, None]

    @property
    def mean_scale(self) -> Tensor:
        """The mean logarithm of the scales of each row's batches, (n,); zeros where nobody reads them."""
        return self.scales / self.times.clamp(min=1)

    @property
    def lengths(self) -> Tensor:
        """The mean logarithm of each row's lengths, and the logarithm of their root mean square, by view, (n, V, 2)."""
        times = self.times.clamp(min=1)[:, None]
        return torch.stack([self.logs / times, (self.squares / times).clamp(min=SHORTEST**2).log() / 2], dim=2)

    @property
    def likeness(self) -> Tensor:
        """The mean cosine of each row's gradient with that of the epoch before, by view, (n, V)."""
        return self.cosines / (self.times - 1).clamp(min=1)[:, None]

    def state(self) -> dict[str, Tensor]:
        """Return the state that a resumed run needs; the rows derive from the secret."""
        self.settle()
        names = ("times", "sums", "signs", "first", "last", "logs", "squares", "cosines", "embeddings", "scales")
        return {name: getattr(self, name) for name in names}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Restore the result of `state`."""
        self._pending = []
        for name, values in state.items():
            setattr(self, name, values.clone())
