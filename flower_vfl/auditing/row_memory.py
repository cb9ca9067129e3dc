"""The row memory of a party: running sums of each row's gradients, in files that survive a kill without being copied.

A row's sum after its n-th occurrence is written beside the one after its (n - 1)-th occurrence, which stays unchanged
until all rows have recurred. So nothing is added twice, whatever is interrupted: a resumed run repeats the steps since
its checkpoint, bit for bit, and each writes the same as before. No copy goes into a checkpoint.

Each file has the rows in the order of the epoch that wrote it: a batch is one piece of it. In the order of the table
each row of a batch would be a page of its own that changes, thirty times the bytes of the rows. So a checksum of all
that an epoch has written grows with each batch, and a checkpoint holds it: a file that was damaged is not read.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
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
    DEPTH,
    PIECE,
    Kept,
    Memory,
    Sums,
    centred_in_batch_units,
    in_batch_units,
)
from flower_vfl.auditing.read_only import read_only
from flower_vfl.errors import DataError
from flower_vfl.files import reserve, writing_to
from flower_vfl.protocol.schedule import Rows, Schedule

Places = NDArray[np.integer]


HALF_PRECISION = 64
"""Largest number of epochs of sums in half precision, 2 bytes a number, where only the mean is read.

Sums in units of their batches then lie between 6e-8, below which they are rounded away, and 65,504, where they stay. In
simulations they were right to 1 part in 250 (root mean square) after so many additions, and AUCs read of them to a
twentieth of their standard error, also with rows a million times smaller than others. After some hundreds, what is
added is as small as the rounding. What is read of the difference of two sums needs them as they are.
"""
_LARGEST = float(np.finfo(np.float16).max)


class _Layer(NamedTuple):
    """The sums of a layer: those of rows that occurred n times before go into ``slots[n % len(slots)]``."""

    slots: tuple[Sums, ...]
    in_place: bool = False
    """True if each row is added up at its own place; otherwise all are in the order of their epoch."""


class _Written(NamedTuple):
    """The readable content of the files of a layer.

    For each slot the number of rows that its epoch has written until now, and their CRC-32; none for a slot that is
    overwritten next.
    """

    width: int
    slots: list[tuple[int, int]]


class RowMemory:
    """A memory that adds up the gradients of each row over the epochs, each batch in its own units.

    Where the mean alone is read, each batch is centred, too (`centred_in_batch_units`). Differences of epochs are read
    of gradients as they came: persistent noise cancels in them, and the means of two batches would not.

    Parameters
    ----------
    schedule : Schedule
        Gives the rows of each step.
    keeps : Iterable[Kept]
        The statistics that attacks read.
    folder : Path, optional
        Folder of the files, this run's and this party's own; a resumed run, or another process, finds them there.
        Without one nothing is left when the process ends: sums that fit into half of the main memory that is free are
        kept there where one sum is enough, others in files without a name where temporary files lie (`TMPDIR`).
    """

    def __init__(self, schedule: Schedule, keeps: Iterable[Kept], *, folder: Path | None = None) -> None:
        self._schedule, self._folder = schedule, folder
        self._times, wanted = schedule.times_before(schedule.epochs) + 1, set(keeps)
        self._read = int(min(max(DEPTH[kept] for kept in wanted), self._times))
        self._within_batch = centred_in_batch_units if wanted == {"mean"} else in_batch_units
        self._half = wanted == {"mean"} and self._times <= HALF_PRECISION
        self._dtype: np.dtype[Any] = np.dtype(np.float16 if self._half else np.float32)
        self._layers: dict[str, _Layer] = {}
        self._written: dict[str, _Written] = {}
        self._places: dict[int, Places] = {}
        self._next = 0

    def record(self, step: int, rows: Rows, gradients: Mapping[str, Tensor]) -> None:
        """Take in the gradients (B, ...) of one step, by layer; rows are those that the schedule has for it.

        Raises
        ------
        StorageError
            When there is no room on the disk.
        DataError
            When the run goes on, and its row memory is missing.
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
                self._note(layer, before, self._schedule.places(step))

    def _note(self, layer: str, before: int, here: slice) -> None:
        """Take what was just written into the checksum of its file."""
        written, slots = self._written[layer].slots, self._layers[layer].slots
        now = before % len(slots)
        written[now] = here.stop, zlib_ng.crc32(slots[now][here].data, written[now][1])
        if here.stop == self._schedule.train_rows:
            written[(before + 1) % len(slots)] = 0, 0

    def state(self) -> dict[str, Any]:
        """Return by which the files can be known again, as plain values."""
        return {layer: {"width": width, "slots": list(slots)} for layer, (width, slots) in self._written.items()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state` returned."""
        self._written = {layer: _Written(kept["width"], [*map(tuple, kept["slots"])]) for layer, kept in state.items()}

    def check(self, layer: str) -> None:
        """Open the files of a layer, where this process has not, and see that all that was written is there.

        It reads all that is kept: once for a run that goes on from a checkpoint, not for each message.

        Raises
        ------
        DataError
            When a file is not there, or holds something else.
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
        """Return the memory of a layer at the end of an epoch (from 1), the one that has just been recorded.

        It is for reading only: the files go on from there.
        """
        times = self._schedule.times_before(epoch) + 1
        slots, in_place = self._layers[layer]
        back = range(min(times, self._read))
        sums = tuple(read_only(slots[(times - 1 - n) % len(slots)]) for n in back)
        places = () if in_place else tuple(read_only(self._places_of(epoch - n)) for n in back)
        return Memory(read_only(self._schedule.came(epoch)), times, sums, places)

    def forget(self) -> None:
        """Let go of everything, also on the disk."""
        self._layers.clear()
        self._written.clear()
        self._places.clear()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _places_of(self, epoch: int) -> Places:
        """Return where each row of the table is in the order of an epoch; so many as are read together are kept."""
        if epoch not in self._places:
            found = _places.get((self._schedule, epoch))
            if found is None:
                found = _places[self._schedule, epoch] = _inverse(self._schedule.came(epoch), self._schedule.rows)
            kept = {other: places for other, places in self._places.items() if other > epoch - self._read}
            self._places = {**kept, epoch: found}
        return self._places[epoch]

    def _open(self, layer: str, width: int, *, begins: bool) -> _Layer:
        if begins or layer not in self._layers:
            self._layers[layer] = self._in_memory(width) or self._in_files(layer, width, begins=begins)
        return self._layers[layer]

    def _in_memory(self, width: int) -> _Layer | None:
        """Add to one sum in place: nothing goes back behind what is there where no state is kept to go on from.

        All of it is taken at once, so that the next layer sees what is left.
        """
        size = self._dtype.itemsize * self._schedule.rows * width
        if self._folder is not None or self._read > 1 or self._times == 1 or size > free_memory() // 2:
            return None
        return _Layer((np.full((self._schedule.rows, width), 0, dtype=self._dtype),), in_place=True)

    def _in_files(self, layer: str, width: int, *, begins: bool) -> _Layer:
        """Map files where what is done again finds what was there before."""
        count = min(max(self._read, 2), self._times)
        shape = (self._schedule.train_rows, width)
        if begins or layer not in self._written:
            self._written[layer] = _Written(width, [(0, 0)] * count)
        return _Layer(tuple(self._map(layer, slot, shape, begins=begins) for slot in range(count)))

    def _map(self, layer: str, slot: int, shape: tuple[int, int], *, begins: bool) -> Sums:
        """Map one file, all of it on the disk: a full one would end the process later."""
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
    found, step = 0, max(1, PIECE // sums.shape[1])
    for low in range(0, len(sums), step):
        found = zlib_ng.crc32(sums[low : low + step].data, found)
    return found


def _reserved(file: IO[bytes], size: int, shape: tuple[int, int], dtype: np.dtype[Any]) -> Sums:
    reserve(file, size)
    return _mapped(file, shape, dtype)


def _mapped(file: IO[bytes] | Path, shape: tuple[int, int], dtype: np.dtype[Any]) -> Sums:
    mapped = np.memmap(file, dtype=dtype, mode="r+", shape=shape)
    return mapped.view(np.ndarray)  # which keeps the map open; slices of it cost less


_places: WeakValueDictionary[tuple[Schedule, int], Places] = WeakValueDictionary()
"""Places of rows that the memories of a process share: 4 bytes a row."""

_PIECE = 2**20


def _inverse(order: NDArray[np.integer], rows: int) -> Places:
    """Return at which place of an order each row is; of rows that are not in it, one that does not exist."""
    places = np.full(rows, rows, dtype=order.dtype)
    for low in range(0, len(order), _PIECE):
        piece = order[low : low + _PIECE]
        places[piece] = np.arange(low, low + len(piece), dtype=order.dtype)
    return places


def free_memory(root: Path = Path("/")) -> int:
    """Return the bytes of main memory that are free to this process, also by its control groups; 0 if unknown.

    Parameters
    ----------
    root : Path
        Root of the system's files.
    """
    try:
        lines = (root / "proc/meminfo").read_text(encoding="ascii").splitlines()
        groups = (root / "proc/self/cgroup").read_text(encoding="utf-8").splitlines()
        free = [1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")]
    except (OSError, ValueError):
        return 0
    for group in groups:
        free += _left_to_group(root / "sys/fs/cgroup", *group.split(":", 2)[1:])
    return max(min(free, default=0), 0)


def _left_to_group(top: Path, controllers: str, path: str) -> Iterator[int]:
    """Yield what each limit on the way from the top to a control group leaves, of either version of control groups."""
    names = ("memory.max", "memory.current")
    if controllers:
        top, names = top / "memory", ("memory.limit_in_bytes", "memory.usage_in_bytes")
    if controllers and "memory" not in controllers.split(","):
        return
    folder = top / path.lstrip("/")
    for place in (folder, *folder.parents):
        if place.is_relative_to(top):
            try:
                limit, used = (int((place / name).read_text(encoding="ascii")) for name in names)
            except (OSError, ValueError):  # "max", or a group that this container does not see
                continue
            yield limit - used
