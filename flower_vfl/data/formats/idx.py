"""The idx format of MNIST and its relatives: a big-endian header, then bytes; gzipped or not."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from flower_vfl.data.formats.raw import opened
from flower_vfl.errors import DataError

MAX_ITEMS = 1_000_000
"""Largest number of items that a header may declare, as the file is not trusted."""

_BYTES = 0x08
_PIECE_BYTES = 2**23


@dataclass(frozen=True)
class IdxFile:
    """An idx file of unsigned bytes whose header was read.

    Parameters
    ----------
    path : Path
        The file.
    items : int
        Number of items according to the header.
    shape : tuple of int
        Shape of one item.
    """

    path: Path
    items: int
    shape: tuple[int, ...]

    def pieces(self) -> Iterator[NDArray[np.uint8]]:
        """Yield the items ``(n, *shape)`` in pieces of bounded size.

        Raises
        ------
        DataError
            When the file cannot be read, or holds fewer or more bytes than its header declares.
        """
        size = prod(self.shape)
        most, left = max(1, _PIECE_BYTES // size), self.items
        with opened(self.path) as file:
            file.read(_header_length(self.shape))
            while left:
                count = min(most, left)
                content = file.read(count * size)
                if len(content) != count * size:
                    held = (self.items - left) * size + len(content)
                    raise DataError(f"{self._declared_size()}, but holds only {held}")
                left -= count
                yield np.frombuffer(content, np.uint8).reshape(count, *self.shape)
            # One byte more than declared, to check that none follows; a gzip bomb is not unpacked further.
            if file.read(1):
                raise DataError(f"{self._declared_size()}, but holds more")

    def _declared_size(self) -> str:
        length = self.items * prod(self.shape)
        return f"{self.path} says it holds {self.items} items of shape {self.shape}, {length} bytes"


def open_idx(path: Path, shape: tuple[int, ...]) -> IdxFile:
    """Read the header of an idx file of unsigned bytes.

    The header is a magic number, 0x800 plus the number of dimensions, and one size a dimension, each of four bytes.

    Parameters
    ----------
    path : Path
        The file, plain or gzipped.
    shape : tuple of int
        Shape of one item: () for labels (magic 0x801), (height, width) for images (magic 0x803).

    Raises
    ------
    DataError
        When the file cannot be read, or has another magic number or other sizes.
    """
    magic, length = _BYTES << 8 | len(shape) + 1, _header_length(shape)
    with opened(path) as file:
        header = file.read(length)
    if len(header) < length:
        raise DataError(f"{path} is no idx file: it has {len(header)} bytes, its header alone {length}")
    found, items, *sizes = struct.unpack(f">{len(shape) + 2}I", header)
    if found != magic:
        raise DataError(f"{path} starts with the magic number {found:#x}, needed is {magic:#x}")
    if tuple(sizes) != shape or not 1 <= items <= MAX_ITEMS:
        raise DataError(
            f"{path} says it holds {items} items of shape {tuple(sizes)}; needed: 1 to {MAX_ITEMS} of {shape}"
        )
    return IdxFile(path, items, shape)


def read_idx(path: Path, shape: tuple[int, ...]) -> NDArray[np.uint8]:
    """Read a whole idx file, ``(N, *shape)``.

    Raises
    ------
    DataError
        As `open_idx` and `IdxFile.pieces` do.
    """
    return np.concatenate(list(open_idx(path, shape).pieces()))


def _header_length(shape: tuple[int, ...]) -> int:
    return 4 * (len(shape) + 2)
