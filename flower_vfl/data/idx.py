"""The idx format of MNIST and its relatives: a big-endian header, then bytes; gzipped or not."""

from __future__ import annotations

import gzip
import struct
import zlib
from math import prod
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from flower_vfl.errors import DataError

MAX_ITEMS = 1_000_000
"""More than this a header may not promise; it is read from a file that anybody may have made."""

_GZIP = b"\x1f\x8b"
_BYTES = 0x08


def read_idx(path: Path, shape: tuple[int, ...]) -> NDArray[np.uint8]:
    """Read an idx file of unsigned bytes.

    The header is a magic number, 0x800 plus the number of dimensions, and one size a dimension, each of four bytes.

    Parameters
    ----------
    path : Path
        The file, plain or gzipped; its content tells.
    shape : tuple of int
        Shape of one item: () for labels (magic 0x801), (height, width) for images (magic 0x803).

    Returns
    -------
    ndarray of uint8, (N, *shape)
        The items.

    Raises
    ------
    DataError
        When the file cannot be read, has another magic number or other sizes, or holds fewer or more bytes than its
        header says.
    """
    magic = _BYTES << 8 | len(shape) + 1
    header_length = 4 * (len(shape) + 2)
    try:
        with path.open("rb") as raw:
            zipped = raw.read(2) == _GZIP
        with gzip.open(path, "rb") if zipped else path.open("rb") as file:
            header = file.read(header_length)
            if len(header) < header_length:
                raise DataError(f"{path} is no idx file: it has {len(header)} bytes, its header alone {header_length}")
            found, items, *sizes = struct.unpack(f">{len(shape) + 2}I", header)
            if found != magic:
                raise DataError(f"{path} starts with the magic number {found:#x}, needed is {magic:#x}")
            if tuple(sizes) != shape or not 1 <= items <= MAX_ITEMS:
                raise DataError(
                    f"{path} says it holds {items} items of shape {tuple(sizes)}; needed: 1 to {MAX_ITEMS} of {shape}"
                )
            length = items * prod(shape)
            # One byte more than promised, to see that none follows; a gzip bomb is not unpacked further.
            content = file.read(length + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} cannot be read: {error}") from None
    if len(content) != length:
        held = f"only {len(content)}" if len(content) < length else "more"
        raise DataError(f"{path} says it holds {items} items of shape {shape}, {length} bytes, but holds {held}")
    return np.frombuffer(content, np.uint8).reshape(items, *shape)
