"""The row memory of a party: running sums of each row's gradients, in files that a killed process leaves intact.

A row's sum after its n-th occurrence is written beside the one after its (n - 1)-th occurrence, which stays unchanged
until all rows have recurred. So no gradient is added twice: a resumed run repeats the steps since its checkpoint, bit
for bit, and each writes the same as before. A checkpoint has no copy of the sums.

Each file has the rows in the order of the epoch that wrote it: a batch is one piece of it. In the order of the table
each row of a batch would change a page of its own, thirty times the bytes of the rows. Each batch updates a checksum of
all rows that its epoch has written, which a checkpoint holds: a damaged file is not read.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import IO, Any, NamedTuple
from urllib.parse import quote
from weakref import WeakValueDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from zlib_ng import zlib_ng

from flower_vfl.attacks.longitudinal.base import (
    CACHED_NUMBERS,
    DEPTH,
    Kept,
    Memory,
    Sums,
    statistic_of_batch,
)
from flower_vfl.auditing.read_only import read_only
from flower_vfl.errors import DataError
from flower_vfl.files import reserve, writing_to
from flower_vfl.machine import free_memory
from flower_vfl.protocol.schedule import Rows, Schedule

RowPlaces = NDArray[np.integer]


HALF_PRECISION = 64
"""Largest number of epochs of sums in half precision, 2 bytes a number, where only the mean is read.

Sums in units of their batches then lie between 6e-8, below which they are rounded to 0, and 65,504, where they are
clipped. In simulations their relative error was 1/250 (root mean square) after so many additions, and the error of AUCs
computed from them a twentieth of their standard error, also with rows a million times smaller than others. After some
hundreds of epochs, the addends are as small as the rounding. Differences of two sums need full precision.
"""
_LARGEST = float(np.finfo(np.float16).max)


class _Layer(NamedTuple):
    """The sums of a layer: those of rows that occurred n times before go into ``slots[n % len(slots)]``."""

    slots: tuple[Sums, ...]
    in_place: bool = False
    """True if each row is at its own place in the table; otherwise all are in the order of their epoch."""


class _Written(NamedTuple):
    """The readable content of the files of a layer.

    ``slots`` has, for each slot, the number of rows that its epoch has written until now, and their CRC-32; zeros for
    a slot that is overwritten next.
    """

    width: int
    slots: list[tuple[int, int]]


class RowMemory:
    """A memory that adds up the gradients of each row over the epochs, each batch in its own units.

    Which values are added up depends on the statistics that are read (`statistic_of_batch`).

    Parameters
    ----------
    schedule : Schedule
        Gives the rows of each step.
    keeps : Iterable[Kept]
        The statistics that attacks read.
    folder : Path, optional
        Folder of the files, for this run and this party alone; a resumed run, or another process, finds them there.
        Without one the memory ends with the process: where one sum is enough and fits into half of the free main
        memory, it is kept there; other sums are in unnamed temporary files (`TMPDIR`).
    """

    def __init__(self, schedule: Schedule, keeps: Iterable[Kept], *, folder: Path | None = None) -> None:
        self._schedule, self._folder = schedule, folder
        self._times, needed = schedule.times_before(schedule.epochs) + 1, set(keeps)
        self._depth = int(min(max(DEPTH[kept] for kept in needed), self._times))
        self._within_batch = statistic_of_batch(needed)
        self._half = needed == {"mean"} and self._times <= HALF_PRECISION
        self._dtype: np.dtype[Any] = np.dtype(np.float16 if self._half else np.float32)
        self._layers: dict[str, _Layer] = {}
        self._written: dict[str, _Written] = {}
        self._places: dict[int, RowPlaces] = {}
        self._next = 0

    def record(self, step: int, rows: Rows, gradients: Mapping[str, Tensor]) -> None:
        """Add the gradients (B, ...) of one step, by layer; ``rows`` are those of the step in the schedule.

        Raises
        ------
        StorageError
            When the disk is full.
        DataError
            When the row memory of earlier steps is missing.
        """
        if step != self._next and step and self._folder is None:
            raise DataError(f"step {step} is not the next one, and the row memory before it was not kept")
        self._next = step + 1
        epoch = self._schedule.epoch_of(step)
        before = self._schedule.times_before(epoch)
        for layer, gradient in gradients.items():
            x = self._within_batch(gradient).cpu()
            slots, in_place = self._open(layer, x.shape[1], begins=step == 0)
            here = rows if in_place else self._schedule.places(step)
            if before:
                where = rows if in_place else self._places_of(epoch - 1).take(rows)
                x += torch.from_numpy(slots[(before - 1) % len(slots)].take(where, axis=0))
            slots[before % len(slots)][here] = (x.clamp_(-_LARGEST, _LARGEST).half() if self._half else x).numpy()
            if self._folder is not None:
                self._update_checksum(layer, before, self._schedule.places(step))

    def _update_checksum(self, layer: str, before: int, here: slice) -> None:
        """Update the checksum of the file of a layer with the rows that were just written."""
        written, slots = self._written[layer].slots, self._layers[layer].slots
        now = before % len(slots)
        written[now] = here.stop, zlib_ng.crc32(slots[now][here].data, written[now][1])
        if here.stop == self._schedule.train_rows:
            written[(before + 1) % len(slots)] = 0, 0

    def state(self) -> dict[str, Any]:
        """Return the widths and checksums of the files, as plain values."""
        return {layer: {"width": width, "slots": list(slots)} for layer, (width, slots) in self._written.items()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the result of `state`."""
        self._written = {layer: _Written(kept["width"], [*map(tuple, kept["slots"])]) for layer, kept in state.items()}

    def check(self, layer: str) -> None:
        """Open the files of a layer, if this process has not, and verify their checksums.

        It reads whole files: once for a run that resumes from a checkpoint, not for each message.

        Raises
        ------
        DataError
            When a file is missing, or its content differs.
        """
        if self._folder is None or layer in self._layers or layer not in self._written:
            return
        width, written = self._written[layer]
        found = self._in_files(layer, width, begins=False)
        for slot, (sums, (rows, expected)) in enumerate(zip(found.slots, written, strict=True)):
            if _checksum(sums[:rows]) != expected:
                raise DataError(
                    f"{self._path(self._folder, layer, slot)} was damaged or changed: its checksum is not that of "
                    f"what the party wrote at layer {layer!r}; longitudinal attacks cannot go on; start the run again "
                    "in another folder"
                )
        self._layers[layer] = found

    def at(self, layer: str, epoch: int) -> Memory:
        """Return the memory of a layer at the end of the epoch (from 1) that has just been recorded.

        It is read-only: training adds to the same files.
        """
        times = self._schedule.times_before(epoch) + 1
        slots, in_place = self._layers[layer]
        back = range(min(times, self._depth))
        sums = tuple(read_only(slots[(times - 1 - n) % len(slots)]) for n in back)
        places = () if in_place else tuple(read_only(self._places_of(epoch - n)) for n in back)
        return Memory(read_only(self._schedule.trained_rows(epoch)), times, sums, places)

    def forget(self) -> None:
        """Release all sums, and delete the files."""
        self._layers.clear()
        self._written.clear()
        self._places.clear()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _places_of(self, epoch: int) -> RowPlaces:
        """Return the position of each row of the table in the order of an epoch; cached while sums of it are read."""
        if epoch not in self._places:
            found = _places.get((self._schedule, epoch))
            if found is None:
                found = _places[self._schedule, epoch] = _inverse(
                    self._schedule.trained_rows(epoch), self._schedule.rows
                )
            kept = {other: places for other, places in self._places.items() if other > epoch - self._depth}
            self._places = {**kept, epoch: found}
        return self._places[epoch]

    def _open(self, layer: str, width: int, *, begins: bool) -> _Layer:
        if begins or layer not in self._layers:
            self._layers[layer] = self._in_memory(width) or self._in_files(layer, width, begins=begins)
        return self._layers[layer]

    def _in_memory(self, width: int) -> _Layer | None:
        """Return a layer with one sum in main memory, to which rows are added in place; None where files are needed.

        Without a folder no run resumes, and earlier sums are not needed. All memory is allocated at once, so that the
        next layer sees the rest.
        """
        size = self._dtype.itemsize * self._schedule.rows * width
        if self._folder is not None or self._depth > 1 or self._times == 1 or size > free_memory() // 2:
            return None
        return _Layer((np.full((self._schedule.rows, width), 0, dtype=self._dtype),), in_place=True)

    def _in_files(self, layer: str, width: int, *, begins: bool) -> _Layer:
        """Return a layer in mapped files, in which repeated steps find the sums before them."""
        count = min(max(self._depth, 2), self._times)
        shape = (self._schedule.train_rows, width)
        if begins or layer not in self._written:
            self._written[layer] = _Written(width, [(0, 0)] * count)
        return _Layer(tuple(self._map(layer, slot, shape, begins=begins) for slot in range(count)))

    def _map(self, layer: str, slot: int, shape: tuple[int, int], *, begins: bool) -> Sums:
        """Return one mapped file, all of it reserved on the disk: a full disk would end the process later."""
        size = self._dtype.itemsize * shape[0] * shape[1]
        if self._folder is None:
            with writing_to(Path(tempfile.gettempdir()) / "memory"), tempfile.TemporaryFile() as file:
                return _reserved(file, size, shape, self._dtype)
        path = self._path(self._folder, layer, slot)
        if begins:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with writing_to(path), path.open("wb+") as file:
                return _reserved(file, size, shape, self._dtype)
        if not path.is_file() or path.stat().st_size != size:
            raise DataError(
                f"{path} does not hold the party's row memory of {shape[0]} rows at layer {layer!r}: longitudinal "
                "attacks cannot go on; start the run again in another folder"
            )
        return _mapped(path, shape, self._dtype)

    def _path(self, folder: Path, layer: str, slot: int) -> Path:
        return folder / f"{quote(layer, safe='')}-{slot}.by-epoch.f{8 * self._dtype.itemsize}"


def _checksum(sums: Sums) -> int:
    found, step = 0, max(1, CACHED_NUMBERS // sums.shape[1])
    for low in range(0, len(sums), step):
        found = zlib_ng.crc32(sums[low : low + step].data, found)
    return found


def _reserved(file: IO[bytes], size: int, shape: tuple[int, int], dtype: np.dtype[Any]) -> Sums:
    reserve(file, size)
    return _mapped(file, shape, dtype)


def _mapped(file: IO[bytes] | Path, shape: tuple[int, int], dtype: np.dtype[Any]) -> Sums:
    mapped = np.memmap(file, dtype=dtype, mode="r+", shape=shape)
    return mapped.view(np.ndarray)  # keeps the map open; its slices cost less


_places: WeakValueDictionary[tuple[Schedule, int], RowPlaces] = WeakValueDictionary()
"""Positions of rows by schedule and epoch, which the memories of a process share: 4 bytes for each row."""

_PIECE = 2**20


def _inverse(order: NDArray[np.integer], rows: int) -> RowPlaces:
    """Return the position of each row in an order; for rows that are not in it, the number of rows."""
    places = np.full(rows, rows, dtype=order.dtype)
    for low in range(0, len(order), _PIECE):
        piece = order[low : low + _PIECE]
        places[piece] = np.arange(low, low + len(piece), dtype=order.dtype)
    return places
