"""Reading of a large text, plain, gzipped or in a tar archive, as blocks of whole lines."""

from __future__ import annotations

import codecs
import gzip
import hashlib
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from flower_vfl.data.formats.archives import BROKEN, opened_raw, size_of
from flower_vfl.data.formats.raw import GZIP, check_text
from flower_vfl.errors import DataError

BLOCK_BYTES = 32 * 2**20
"""Size of a block in bytes; no line may be longer."""

_PIECE_BYTES = 2**16


@dataclass(frozen=True)
class Block:
    """A block of whole lines.

    Parameters
    ----------
    number : int
        Number of the block, from 0.
    first : int
        Number of its first line in the file, from 1.
    lines : int
        Number of lines.
    data : bytes
        The lines, each with its end.
    done : float
        Share of the file that is read up to its end, 0 to 1.
    """

    number: int
    first: int
    lines: int
    data: bytes
    done: float


class BlockReader:
    """Reader of a text by blocks, which are always the same for a text.

    Parameters
    ----------
    path : Path
        The file, plain or gzipped.
    size : int
        Size in bytes of a block, and of the longest line.

    Attributes
    ----------
    digest
        SHA-256 of the text, unpacked, that was read so far.
    """

    def __init__(self, path: Path, size: int) -> None:
        self.path, self._size = path, size
        self._lines = self._line_ends = 0
        self.digest = hashlib.sha256()

    def blocks(self) -> Iterator[Block]:
        """Yield all blocks.

        Raises
        ------
        DataError
            When the file cannot be read, is no text, is an incomplete gzip file, or a line is longer than a block.
        """
        try:
            with opened_raw(self.path) as raw:
                length = max(1, size_of(self.path))
                packed = raw.peek(len(GZIP)).startswith(GZIP)
                file: IO[bytes] = gzip.GzipFile(fileobj=raw) if packed else raw  # type: ignore[assignment]
                rest, number = b"", 0
                while found := self._next_lines(file, rest):
                    data, rest = found
                    count = data.count(b"\n")
                    yield Block(number, self._lines + 1, count, data, min(1.0, raw.tell() / length))
                    self._lines, number = self._lines + count, number + 1
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise DataError(
                f"{self.path} is no whole gzip file: {error}; it broke after line {self._line_ends:,}. Fetch it again"
            ) from None
        except BROKEN as error:
            raise DataError(f"{self.path} cannot be read: {getattr(error, 'strerror', None) or error}") from None

    def _next_lines(self, file: IO[bytes], rest: bytes) -> tuple[bytes, bytes] | None:
        """Return whole lines and the rest behind them; None at the end."""
        data = rest + self._read(file, self._size - len(rest))
        whole = len(data) == self._size
        if not self._lines:
            check_text(self.path, data)
            data = data.removeprefix(codecs.BOM_UTF8)
        if not whole:
            data = data.rstrip(b"\r\n")
            return (_unix(data + b"\n"), b"") if data else None
        end = data.rfind(b"\n") + 1
        if not end:
            raise DataError(
                f"{self.path}: line {self._lines + 1} is longer than {self._size:,} characters: this is no such file"
            )
        return _unix(data[:end]), data[end:]

    def _read(self, file: IO[bytes], size: int) -> bytes:
        """Read small pieces, so that the line at which a damaged file ends is known."""
        pieces: list[bytes] = []
        while size and (piece := file.read(min(size, _PIECE_BYTES))):
            pieces.append(piece)
            self.digest.update(piece)
            self._line_ends += piece.count(b"\n")
            size -= len(piece)
        return b"".join(pieces)


def _unix(lines: bytes) -> bytes:
    """Return lines that end with a line feed; lone carriage returns, at which the parser ends a line, become spaces."""
    return lines.replace(b"\r\n", b"\n").replace(b"\r", b" ") if b"\r" in lines else lines
