"""Loading of training batches to the device of a party's model, on a GPU while the model computes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from threading import Thread
from typing import Any, Generic, TypeGuard, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from flower_vfl.data.store.source import ArraySource, FeatureSource
from flower_vfl.nn.placement import Placement
from flower_vfl.protocol.schedule import Rows, Schedule

LARGE_TABLE = 2**30
"""Size of a table's files, in bytes, above which its rows are read in windows."""

WINDOW_BYTES = 384 * 2**20
"""Size of a window in bytes; two windows are in memory."""

T = TypeVar("T")


class Loader:
    """A loader of the batch of a step and, where the model is on a GPU, of the next one while the GPU computes.

    For a GPU, the next batch is gathered into pinned memory by a thread of its own and copied on a stream of its own.
    In main memory a gather is so short that a second thread would cost more than it saves. Tables in large files are
    read in windows, see `Windows`.

    Parameters
    ----------
    source : FeatureSource
        The training rows.
    schedule : Schedule
        The rows of each step.
    placement : Placement
        The device of the model.
    ahead : bool, optional
        True if the next batch is loaded ahead; by default where the model is on a GPU.
    """

    def __init__(
        self, source: FeatureSource, schedule: Schedule, placement: Placement, *, ahead: bool | None = None
    ) -> None:
        self._schedule, self._placement = schedule, placement
        self._gather: Callable[[int], Sequence[Tensor]] = lambda step: source.gather(schedule.train_batch(step))
        if in_windows(source):
            self._gather = Windows(source, schedule).batch
        ahead = placement.on_gpu if ahead is None else ahead
        self._stream: torch.Stream | None = None
        if ahead and placement.on_gpu:
            self._stream = torch.get_device_module(placement.device).Stream(placement.device)
        self._prefetcher: _Prefetcher[_Loaded] | None = _Prefetcher() if ahead else None

    def batch(self, step: int) -> list[Tensor]:
        """Return the features of a step's rows, each tensor (B, ...).

        Raises
        ------
        DataError
            When the source cannot gather them.
        """
        if self._prefetcher is None:
            return self._load(step).tensors
        return self._prefetcher.get(self._load, step, _later_step(self._schedule, step, 1)).ready()

    def _load(self, step: int) -> _Loaded:
        gathered = self._gather(step)
        if self._stream is None:
            return _Loaded(self._placement.bring_all(gathered))
        with torch.get_device_module(self._placement.device).stream(self._stream):
            pinned = (tensor.pin_memory() if self._placement.travels(tensor) else tensor for tensor in gathered)
            return _Loaded(self._placement.bring_all(pinned), self._stream.record_event())


class Windows:
    """A reader of a table in files larger than the memory: it reads the rows of many steps in one pass over the files.

    Rows in random order are far apart in the files: each would cost the wait for a page. So the rows of as many batches
    as a window holds are read together, in the order of the files, by a thread of its own while the window before is
    used. Two windows are in memory, whatever the size of the table, and no part of the files stays mapped.

    Parameters
    ----------
    source : ArraySource
        The training rows.
    schedule : Schedule
        The rows of each step.
    window : int
        Size of a window in bytes.
    """

    def __init__(self, source: ArraySource, schedule: Schedule, *, window: int = WINDOW_BYTES) -> None:
        self._source, self._schedule = source, schedule
        self._batches = max(1, window // max(1, source.row_bytes * schedule.batch_size))
        self._prefetcher = _Prefetcher[list[NDArray[Any]]]()
        self._first, self._stored = -1, list[NDArray[Any]]()

    def batch(self, step: int) -> tuple[Tensor, ...]:
        """Return the features of a step's rows, each tensor (B, ...).

        Raises
        ------
        DataError
            When the files cannot be read.
        """
        epoch = self._schedule.steps_of(self._schedule.epoch_of(step))
        first = step - (step - epoch.start) % self._batches
        if first != self._first:
            self._first, self._stored = -1, []  # freed before the two next windows are in memory
            following = _later_step(self._schedule, first, self._batches)
            self._stored = self._prefetcher.get(self._read, first, following)
            self._first = first
        low = (step - first) * self._schedule.batch_size
        return self._source.converted([array[low : low + self._schedule.batch_rows(step)] for array in self._stored])

    def _read(self, first: int) -> list[NDArray[Any]]:
        steps = self._schedule.steps_of(self._schedule.epoch_of(first))
        last = min(first + self._batches, steps.stop)
        return self._source.read(np.concatenate([self._schedule.train_batch(step) for step in range(first, last)]))


def in_windows(source: FeatureSource) -> TypeGuard[ArraySource]:
    """Return True if the files of a table are so large that its rows are read in windows."""
    return isinstance(source, ArraySource) and source.file_bytes > LARGE_TABLE


def gather(source: FeatureSource, rows: Rows, placement: Placement) -> list[Tensor]:
    """Return the features of any rows on the device of a model; large files of a table do not stay mapped."""
    found = placement.bring_all(source.gather(rows))
    if in_windows(source):
        source.release_pages()
    return found


@dataclass(frozen=True, slots=True)
class _Loaded:
    """A batch, and the event of its finished copy on a stream of its own."""

    tensors: list[Tensor]
    copied: torch.Event | None = None

    def ready(self) -> list[Tensor]:
        """Return the batch for use on the GPU's current stream; the processor does not wait for the copy."""
        for tensor in self.tensors:
            if self.copied is not None and tensor.device.type != "cpu":
                used = torch.get_device_module(tensor.device).current_stream(tensor.device)
                used.wait_event(self.copied)
                tensor.record_stream(used)
        return self.tensors


class _Prefetcher(Generic[T]):
    """A loader of the data of a step, which loads the data of the following step in a thread of its own."""

    def __init__(self) -> None:
        self._next: tuple[int, Future[T]] | None = None

    def get(self, load: Callable[[int], T], step: int, following: int | None) -> T:
        """Return the data of `step`, and begin to load `following`, whose error is raised when it is requested."""
        pending, self._next = self._next, None
        found = pending[1].result() if pending is not None and pending[0] == step else load(step)
        if following is not None:
            future: Future[T] = Future()
            # A daemon: a run that is ended does not wait for it.
            Thread(target=_load_into, args=(future, load, following), name="loader", daemon=True).start()
            self._next = (following, future)
        return found


def _load_into(future: Future[T], load: Callable[[int], T], step: int) -> None:
    try:
        future.set_result(load(step))
    except Exception as error:  # noqa: BLE001 # raised in the thread that waits
        future.set_exception(error)


def _later_step(schedule: Schedule, step: int, more: int) -> int | None:
    """Return the step `more` steps later; None if it is in another epoch.

    The order of the next epoch's rows would have to be held beside that of this one, and for tables of many million
    rows it is as large as the rest of the process.
    """
    return step + more if step + more in schedule.steps_of(schedule.epoch_of(step)) else None
