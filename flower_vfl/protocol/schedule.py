"""Which rows make which step: both sides derive it from the shared seed, so that IDs do not travel.

Nothing here may depend on labels, and nothing else may derive from the shared seed.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import ceil
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from flower_vfl.errors import ConfigError
from flower_vfl.rng import derive_seed, schedule_root

Part = Literal["validation", "test"]
Rows = NDArray[np.int64]


@dataclass(frozen=True)
class Schedule:
    """The order of rows in training and evaluation.

    Parameters
    ----------
    seed : int
        The shared seed.
    rows, test_rows : int
        Rows of the training table (validation included) and of the test table.
    batch_size, eval_batch_size : int
        Rows of a step and of an evaluation message.
    epochs : int
        Passes over the training rows.
    validation : float
        Part of the training rows that is kept for validation, drawn at random.
    """

    seed: int
    rows: int
    test_rows: int
    batch_size: int
    eval_batch_size: int
    epochs: int
    validation: float = 0.1

    def __post_init__(self) -> None:
        if self.train_rows < 1:
            raise ConfigError(f"no row is left to train on: {self.rows} rows, {self.validation:.0%} for validation")

    @cached_property
    def validation_rows(self) -> int:
        """Rows kept for validation."""
        return int(self.rows * self.validation)

    @cached_property
    def train_rows(self) -> int:
        """Rows that gradients are computed on."""
        return self.rows - self.validation_rows

    @cached_property
    def steps_per_epoch(self) -> int:
        """Steps of one epoch; the last one may be smaller."""
        return ceil(self.train_rows / self.batch_size)

    @property
    def steps(self) -> int:
        """Steps of the whole training."""
        return self.steps_per_epoch * self.epochs

    def epoch_of(self, step: int) -> int:
        """Return the epoch of a step, from 1."""
        return step // self.steps_per_epoch + 1

    def steps_of(self, epoch: int) -> range:
        """Return the steps of an epoch (from 1)."""
        return range((epoch - 1) * self.steps_per_epoch, epoch * self.steps_per_epoch)

    def epoch_start(self, steps: int) -> int:
        """Return how many steps were done when the epoch of the last of so many steps began."""
        return max(steps - 1, 0) // self.steps_per_epoch * self.steps_per_epoch

    def train_batch(self, step: int) -> Rows:
        """Return the positions (B,) in the training table that make `step`."""
        epoch, index = divmod(step, self.steps_per_epoch)
        order = _epoch_order(self.seed, self.rows, self.validation_rows, epoch)
        return order[index * self.batch_size : (index + 1) * self.batch_size].astype(np.int64)

    def batch_rows(self, step: int) -> int:
        """Return how many rows make `step`."""
        return min(self.batch_size, self.train_rows - step % self.steps_per_epoch * self.batch_size)

    def batches(self, part: Part) -> int:
        """Return how many evaluation batches `part` has."""
        return ceil((self.validation_rows if part == "validation" else self.test_rows) / self.eval_batch_size)

    def eval_batch(self, part: Part, index: int) -> Rows:
        """Return the positions (B,) of an evaluation batch, in the training table for validation, else the test's."""
        low, high = index * self.eval_batch_size, (index + 1) * self.eval_batch_size
        if part == "test":
            return np.arange(low, min(high, self.test_rows), dtype=np.int64)
        return _validation(self.seed, self.rows, self.validation_rows)[low:high].astype(np.int64)

    @property
    def digest(self) -> str:
        """A digest that is equal on both sides exactly when the schedule is."""
        values = [getattr(self, name) for name in self.__dataclass_fields__]
        return hashlib.sha256(json.dumps(values).encode()).hexdigest()


def _permutation(seed: int, rows: int, *purpose: str | int) -> NDArray[np.integer]:
    generator = torch.Generator().manual_seed(derive_seed(schedule_root(seed), *purpose))
    dtype = torch.int32 if rows < 2**31 else torch.int64
    return torch.randperm(rows, generator=generator, dtype=dtype).numpy()


@lru_cache(maxsize=4)
def _validation(seed: int, rows: int, count: int) -> NDArray[np.integer]:
    """Return the sorted positions of the validation rows."""
    return np.sort(_permutation(seed, rows, "validation")[:count])


_CHUNK = 2**20
_latest: dict[tuple[int, int, int, int], NDArray[np.integer]] = {}


def _epoch_order(seed: int, rows: int, held_out: int, epoch: int) -> NDArray[np.integer]:
    """Return the order of the training rows in one epoch; parties of one process share it (4 bytes a row)."""
    key = (seed, rows, held_out, epoch)
    order = _latest.get(key)
    if order is None:
        _latest.clear()  # before the next one is made: two at once would double the memory
        validation = _validation(seed, rows, held_out) if held_out else None  # first, as it needs as much memory
        order = _permutation(seed, rows, "epoch", epoch)
        if validation is not None:
            order = _without(order, validation)
        _latest[key] = order
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
