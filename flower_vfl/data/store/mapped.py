"""Memory-mapped arrays: release of their pages, and reading of their files without a map."""

from __future__ import annotations

import mmap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flower_vfl.errors import DataError

BYTES_AT_ONCE = 4 * 2**20
"""Number of bytes of a file that are read at once."""


@dataclass(frozen=True, slots=True)
class ArrayInFile:
    """A whole array in a file.

    Attributes
    ----------
    path
        The file.
    offset
        Position in the file at which the array begins, in bytes.
    shape, dtype
        Shape and dtype of the array, which is stored row by row.
    """

    path: Path
    offset: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    def rows(self, rows: NDArray[np.integer], places: NDArray[np.integer]) -> NDArray[Any]:
        """Read the file once from front to end and return some of its rows, (n, ...).

        Parameters
        ----------
        rows : ndarray of integers, (n,)
            Positions of the rows, ascending.
        places : ndarray of integers, (n,)
            Position of each of them in the result.

        Raises
        ------
        DataError
            When the file is shorter than the array.
        """
        found = np.empty((len(rows), *self.shape[1:]), self.dtype)
        size = found[:1].nbytes or self.dtype.itemsize * int(np.prod(self.shape[1:]))
        count = max(1, BYTES_AT_ONCE // max(1, size))
        piece = np.empty((count, *self.shape[1:]), self.dtype)
        ends = np.searchsorted(rows, np.arange(count, self.shape[0] + count, count))
        start = 0
        with self.path.open("rb", buffering=0) as file:
            for index, end in enumerate(ends):
                if end > start:
                    first = index * count
                    into = piece[: min(count, self.shape[0] - first)]
                    file.seek(self.offset + first * size)
                    if file.readinto(into.data.cast("B")) != into.nbytes:
                        raise DataError(f"{self.path} became shorter while it was read")
                    found[places[start:end]] = into[rows[start:end] - first]
                    start = end
        return found


def file_of(array: NDArray[Any]) -> ArrayInFile | None:
    """Return the file and position of a whole memory-mapped array; None for one in memory, or a part of a map."""
    mapped: Any = array
    while mapped is not None and not isinstance(mapped, np.memmap):
        mapped = getattr(mapped, "base", None)
    if mapped is None or mapped.filename is None or not array.flags.c_contiguous or not array.size:
        return None
    while isinstance(mapped.base, np.memmap):  # of a view of a map, the offset is that of the map
        mapped = mapped.base
    if array.nbytes != mapped.nbytes or array.ctypes.data != mapped.ctypes.data:
        return None
    return ArrayInFile(Path(mapped.filename), mapped.offset, array.shape, array.dtype)


def release_pages(array: NDArray[Any]) -> None:
    """Release the pages of a memory map from this process, so that reading a large array keeps none of it in memory."""
    mapped: Any = array
    while mapped is not None and not isinstance(mapped, mmap.mmap):
        mapped = getattr(mapped, "base", None)
    if mapped is not None:
        mapped.madvise(mmap.MADV_DONTNEED)
