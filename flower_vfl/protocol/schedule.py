"""The schedule of rows by step: both sides derive it from the shared seed, so that IDs do not travel.

Nothing here may depend on labels, and nothing else may derive from the shared seed.
"""

from __future__ import annotations

import hashlib
import json
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import accumulate
from math import ceil
from typing import Literal, TypeGuard

import numpy as np
from numpy.typing import NDArray

from flower_vfl.errors import ConfigError
from flower_vfl.rng import derive_seed, schedule_root

RowsPart = Literal["train", "validation", "next", "test"]
"""Rows whose embeddings the label party may request; "train" are all of the training table, in its order."""

EVALUATED_PARTS: tuple[RowsPart, ...] = ("validation", "next", "test")
"""Rows that are evaluated; "next" are those of the next period, before anything is trained on them."""

Rows = NDArray[np.int64]


def is_scored(step: int, every: int) -> bool:
    """Return True for one step of each `every` in a row, the first step among them.

    Which one it is varies: steps at equal distances would all lie on one side of anything that repeats.

    Examples
    --------
    >>> [step for step in range(24) if is_scored(step, 4)]
    [0, 7, 11, 14, 19, 21]
    """
    block, place = divmod(step, every)
    if block == 0 or every == 1:
        return place == 0
    drawn = hashlib.blake2b(block.to_bytes(8, "little"), digest_size=8).digest()
    return place == int.from_bytes(drawn, "little") % every


@dataclass(frozen=True)
class Schedule:
    """The order of rows in training and evaluation.

    Without periods, every epoch goes through all training rows in an order of its own. With periods, rows lie in time
    order and an epoch is one period: its rows in a random order, then the next period's are evaluated.

    Parameters
    ----------
    seed : int
        The shared seed.
    rows, test_rows : int
        Rows of the training table (validation included) and of the test table.
    batch_size, eval_batch_size : int
        Rows of a step and of an evaluation message.
    epochs : int
        Passes over the training rows; with periods, the number of periods.
    validation : float
        Part of the training rows that is kept for validation, drawn at random.
    periods : tuple of int
        Rows of each period of the training table, in its order; empty for a random order.

    Raises
    ------
    ConfigError
        When no row is left to train on, or the periods are not the whole table with one epoch for each period.
    """

    seed: int
    rows: int
    test_rows: int
    batch_size: int
    eval_batch_size: int
    epochs: int
    validation: float = 0.1
    periods: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.train_rows < 1:
            raise ConfigError(f"no row is left to train on: {self.rows} rows, {self.validation:.0%} for validation")
        whole = sum(self.periods) == self.rows and min(self.periods, default=0) > 0 and self.validation == 0.0
        if self.periods and not (whole and len(self.periods) == self.epochs):
            raise ConfigError(
                f"periods of {self.periods} rows must be the {self.rows} rows of the table, each an epoch of "
                f"{self.epochs}, and none kept for validation ({self.validation:.0%})"
            )

    @cached_property
    def validation_rows(self) -> int:
        """Number of rows that are kept for validation."""
        return int(self.rows * self.validation)

    @cached_property
    def train_rows(self) -> int:
        """Number of rows that gradients are computed on."""
        return self.rows - self.validation_rows

    @property
    def held_out(self) -> Rows:
        """The positions (V,) in the training table of the rows that are kept for validation, sorted."""
        if not self.validation_rows:
            return np.zeros(0, dtype=np.int64)
        return _validation(self.seed, self.rows, self.validation_rows).astype(np.int64)

    @cached_property
    def _epoch_rows(self) -> tuple[int, ...]:
        return self.periods or (self.train_rows,) * self.epochs

    @cached_property
    def _starts(self) -> tuple[int, ...]:
        """The first step of each epoch, and the number of all steps."""
        return _running_sums([ceil(rows / self.batch_size) for rows in self._epoch_rows])

    @cached_property
    def _next_starts(self) -> tuple[int, ...]:
        """The first evaluation batch of each period after the first, and the number of all these batches."""
        return _running_sums([ceil(rows / self.eval_batch_size) for rows in self.periods[1:]])

    @property
    def steps(self) -> int:
        """Number of steps of the whole training."""
        return self._starts[-1]

    def epoch_of(self, step: int) -> int:
        """Return the epoch of a step, from 1."""
        return bisect_right(self._starts, step)

    def steps_of(self, epoch: int) -> range:
        """Return the steps of an epoch (from 1); the last one may have fewer rows."""
        return range(self._starts[epoch - 1], self._starts[epoch])

    def epoch_start(self, steps: int) -> int:
        """Return the number of steps before the epoch that holds the last of `steps` steps."""
        return self._starts[self.epoch_of(max(steps - 1, 0)) - 1]

    def train_batch(self, step: int) -> Rows:
        """Return the positions (B,) in the training table of the rows of `step`."""
        epoch = self.epoch_of(step)
        low = (step - self._starts[epoch - 1]) * self.batch_size
        first = sum(self.periods[: epoch - 1])
        return first + self._order(epoch)[low : low + self.batch_size].astype(np.int64)

    def _order(self, epoch: int) -> NDArray[np.integer]:
        """Return the order of an epoch's rows, counted within its period."""
        rows = self.periods[epoch - 1] if self.periods else self.rows
        return _epoch_order(self.seed, rows, self.validation_rows, epoch - 1)

    def times_before(self, epoch: int) -> int:
        """Return the number of earlier epochs that had the rows of an epoch (from 1)."""
        return 0 if self.periods else epoch - 1

    def trained_rows(self, epoch: int) -> NDArray[np.integer]:
        """Return the rows (N,) that were trained on by the end of an epoch (from 1), in their latest order."""
        if not self.periods:
            return self._order(epoch)
        starts = _running_sums(self.periods)
        return np.concatenate([start + self._order(1 + day) for day, start in enumerate(starts[:epoch])])

    def batches_of(self, rows: NDArray[np.integer]) -> NDArray[np.int64] | None:
        """Return the step (n,) of each of these rows in time order; None in other orders, where rows recur.

        In time order rows are compared within their batch only: days have other shares of positives, and what tells the
        day of a row tells nothing of the row itself.
        """
        return np.asarray(self._steps_of_rows[rows]) if self.periods else None

    @cached_property
    def _steps_of_rows(self) -> NDArray[np.int64]:
        found = np.zeros(self.rows, dtype=np.int64)
        for step in range(self.steps):
            found[self.train_batch(step)] = step
        return found

    def places(self, step: int) -> slice:
        """Return the slice of the rows of `step` in the result of `trained_rows` for its epoch."""
        epoch = self.epoch_of(step)
        low = sum(self.periods[: epoch - 1]) + (step - self._starts[epoch - 1]) * self.batch_size
        return slice(low, low + self.batch_rows(step))

    def batch_rows(self, step: int) -> int:
        """Return the number of rows of `step`."""
        epoch = self.epoch_of(step)
        return min(self.batch_size, self._epoch_rows[epoch - 1] - (step - self._starts[epoch - 1]) * self.batch_size)

    def batches(self, part: RowsPart) -> int:
        """Return the number of evaluation batches of `part`."""
        if part == "next":
            return self._next_starts[-1]
        rows = {"train": self.rows, "validation": self.validation_rows, "test": self.test_rows}[part]
        return ceil(rows / self.eval_batch_size)

    def batches_after(self, part: RowsPart, epoch: int) -> range:
        """Return the evaluation batches of `part` that are due after an epoch (from 1)."""
        if part != "next":
            return range(self.batches(part))
        starts = self._next_starts
        return range(starts[epoch - 1], starts[epoch]) if epoch < len(starts) else range(0)

    def eval_batch(self, part: RowsPart, index: int) -> Rows:
        """Return the positions (B,) of an evaluation batch in the test table for "test", else in the training table."""
        low, high = index * self.eval_batch_size, (index + 1) * self.eval_batch_size
        if part in ("train", "test"):
            return np.arange(low, min(high, self.rows if part == "train" else self.test_rows), dtype=np.int64)
        if part == "next":
            epoch = bisect_right(self._next_starts, index)
            first, last = sum(self.periods[:epoch]), sum(self.periods[: epoch + 1])
            low = first + (index - self._next_starts[epoch - 1]) * self.eval_batch_size
            return np.arange(low, min(low + self.eval_batch_size, last), dtype=np.int64)
        return _validation(self.seed, self.rows, self.validation_rows)[low:high].astype(np.int64)

    @property
    def digest(self) -> str:
        """A digest that is equal on both sides exactly when the schedule is."""
        values = [getattr(self, name) for name in self.__dataclass_fields__]
        return hashlib.sha256(json.dumps(values).encode()).hexdigest()


def is_part(name: str) -> TypeGuard[RowsPart]:
    """Return True if a name is that of a part whose embeddings may be requested."""
    return name in (*EVALUATED_PARTS, "train")


def _running_sums(counts: Sequence[int]) -> tuple[int, ...]:
    """Return the running sums, from 0 to the total."""
    return tuple(accumulate(counts, initial=0))


def _permutation(seed: int, rows: int, *purpose: str | int) -> NDArray[np.integer]:
    import torch  # here, because a schedule is made before sessions are offered, an order afterwards

    generator = torch.Generator().manual_seed(derive_seed(schedule_root(seed), *purpose))
    dtype = torch.int32 if rows < 2**31 else torch.int64
    return torch.randperm(rows, generator=generator, dtype=dtype).numpy()


@lru_cache(maxsize=4)
def _validation(seed: int, rows: int, count: int) -> NDArray[np.integer]:
    """Return the sorted positions of the validation rows."""
    return np.sort(_permutation(seed, rows, "validation")[:count])


_CHUNK = 2**20
_last_order: dict[tuple[int, int, int, int], NDArray[np.integer]] = {}


def _epoch_order(seed: int, rows: int, held_out: int, epoch: int) -> NDArray[np.integer]:
    """Return the order of an epoch's training rows among `rows`; parties of one process share it (4 bytes a row)."""
    key = (seed, rows, held_out, epoch)
    order = _last_order.get(key)
    if order is None:
        _last_order.clear()  # before the next one is made: two at once would double the memory
        validation = _validation(seed, rows, held_out) if held_out else None  # first, as it needs as much memory
        order = _permutation(seed, rows, "epoch", epoch)
        if validation is not None:
            order = _without(order, validation)
        order.flags.writeable = False  # other parties share it
        _last_order[key] = order
    return order


def _without(order: NDArray[np.integer], held_out: NDArray[np.integer]) -> NDArray[np.integer]:
    """Drop the held-out rows in place, piece by piece: a second array of all rows would double the memory."""
    keep = np.ones(len(order), dtype=bool)
    keep[held_out] = False
    end = 0
    for low in range(0, len(order), _CHUNK):
        piece = order[low : low + _CHUNK]
        piece = piece[keep[piece]]
        order[end : end + len(piece)] = piece
        end += len(piece)
    return order[:end]
