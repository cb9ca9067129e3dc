"""Raw files of data sets: found under one of the names that are in use, read whether they are gzipped or not."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, cast

from flower_vfl.errors import DataError

_GZIP = b"\x1f\x8b"


def find_file(folder: Path, names: Sequence[str], kind: str = "") -> Path:
    """Return the first file of a folder that has one of these names; `kind` says what it would be.

    Raises
    ------
    DataError
        When there is none.
    """
    for name in names:
        if (folder / name).is_file():
            return folder / name
    raise DataError(f"{folder} holds neither {' nor '.join(names)}" + (f": no {kind}" if kind else ""))


@contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
    """Open a file, unpacking it where it is gzipped: its content tells.

    Raises
    ------
    DataError
        When it cannot be opened; or read, inside the `with` block.
    """
    try:
        with path.open("rb") as raw:
            zipped = raw.read(len(_GZIP)) == _GZIP
        with gzip.open(path, "rb") if zipped else path.open("rb") as file:
            yield cast("BinaryIO", file)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} cannot be read: {error}") from None
