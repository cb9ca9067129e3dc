"""What a party remembers of each row, in files of its own: running sums that survive a kill without being copied.

A row's sum as it stands after its n-th time is written beside the one after its (n - 1)-th time, which stays as it is
until all rows have come again. So nothing is added twice, whatever is interrupted: a resumed run does the steps since
its checkpoint again, bit for bit, and each writes what it wrote before. No copy goes into a checkpoint.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import IO
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from flower_vfl.attacks.remembering import DEPTH, Kept, Memory, in_batch_units
from flower_vfl.errors import DataError
from flower_vfl.files import writing_to
from flower_vfl.protocol.schedule import Rows, Schedule

Sums = NDArray[np.float32]


class RowMemory:
    """Adds up the gradients of each row over the epochs, each batch in its own units.

    Parameters
    ----------
    schedule : Schedule
        Says how often a row has come.
    keeps : Iterable[Kept]
        What is to be read of it.
    folder : Path, optional
        Where the files lie, this training's and this party's own; a resumed run, or another process, finds them there.
        Without one they have no name and are gone with the process; they then lie where temporary files do (`TMPDIR`).
    """

    def __init__(self, schedule: Schedule, keeps: Iterable[Kept], *, folder: Path | None = None) -> None:
        self._schedule, self._folder = schedule, folder
        depth = int(min(max(DEPTH[kept] for kept in keeps), schedule.epochs))
        self._depth = depth if folder is None else max(depth, 2)  # what is done again needs what was there before
        self._layers: dict[str, tuple[Sums, ...]] = {}
        self._next = 0

    def record(self, step: int, rows: Rows, gradients: Mapping[str, Tensor]) -> None:
        """Take in the gradients (B, ...) of one step, by layer.

        Raises
        ------
        StorageError
            When there is no room on the disk.
        DataError
            When the run goes on, and what it remembered is not there.
        """
        if step != self._next and step and self._folder is None:
            raise DataError(f"step {step} is not the next one, and what was remembered before it was not kept")
        self._next = step + 1
        before = self._schedule.times_before(self._schedule.epoch_of(step))
        for layer, gradient in gradients.items():
            x: Sums = in_batch_units(gradient).cpu().numpy()
            slots = self._open(layer, x.shape[1], begins=step == 0)
            if before:
                x += slots[(before - 1) % self._depth].take(rows, axis=0)
            slots[before % self._depth][rows] = x

    def at(self, layer: str, epoch: int) -> Memory:
        """Return what is remembered of a layer at the end of an epoch (from 1), the one that has just been recorded."""
        times = self._schedule.times_before(epoch) + 1
        slots = self._layers[layer]
        kept = min(times, self._depth)
        sums = tuple(slots[(times - 1 - back) % self._depth] for back in range(kept))
        return Memory(self._schedule.came(epoch), times, sums)

    def forget(self) -> None:
        """Let go of everything, also on the disk."""
        self._layers.clear()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _open(self, layer: str, width: int, *, begins: bool) -> tuple[Sums, ...]:
        """Return a layer's sums: of a row that came n times before, the next go into ``slots[n % len(slots)]``."""
        if begins or layer not in self._layers:
            shape = (self._schedule.rows, width)
            self._layers[layer] = tuple(self._map(layer, slot, shape, begins=begins) for slot in range(self._depth))
        return self._layers[layer]

    def _map(self, layer: str, slot: int, shape: tuple[int, int], *, begins: bool) -> Sums:
        """Map one file of 4 bytes a row and scalar, all of it on the disk: a full one would end the process later."""
        size = 4 * shape[0] * shape[1]
        if self._folder is None:
            with writing_to(Path(tempfile.gettempdir()) / "memory"), tempfile.TemporaryFile() as file:
                return _reserved(file, size, shape)
        path = self._folder / f"{quote(layer, safe='')}-{slot}.f32"
        if begins:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with writing_to(path), path.open("wb+") as file:
                return _reserved(file, size, shape)
        if not path.is_file() or path.stat().st_size != size:
            raise DataError(
                f"{path} does not hold what the party remembers of {shape[0]} rows at layer {layer!r}: attacks that "
                "remember cannot go on; begin the run anew in another folder"
            )
        return _mapped(path, shape)


def _reserved(file: IO[bytes], size: int, shape: tuple[int, int]) -> Sums:
    os.posix_fallocate(file.fileno(), 0, size)
    return _mapped(file, shape)


def _mapped(file: IO[bytes] | Path, shape: tuple[int, int]) -> Sums:
    mapped = np.memmap(file, dtype=np.float32, mode="r+", shape=shape)
    return mapped.view(np.ndarray)  # which keeps the map open; slices of it cost less
