"""Tar archives, read in place: nothing is unpacked to the disk, and no name in an archive becomes a path of the system.

The path of a file in an archive is that of the archive and its name inside: `dbpedia_csv.tar.gz/dbpedia_csv/train.csv`.
"""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import sys
import tarfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import IO, cast

from flower_vfl.errors import DataError

BROKEN = (tarfile.TarError, lzma.LZMAError, zlib.error, OSError, EOFError)
"""Exceptions that a damaged file may raise when it is read, packed or in an archive."""

_COMPRESSED: Mapping[bytes, Callable[[Path], object]] = {
    b"\x1f\x8b": gzip.open,
    b"BZh": bz2.open,
    b"\xfd7zXZ\0": lzma.open,
}
_HEADERS = 2**20
"""Largest size of the headers of one file, in bytes: a header can ask for any amount of memory."""

_LONGEST_NAME, _MOST_FILES = 1024, 100_000
_MARK = slice(257, 262)


def holds_mark(beginning: bytes) -> bool:
    """Return True if a file with this beginning, unpacked, is a tar archive."""
    return beginning[_MARK] == b"ustar"


def is_archive(path: Path) -> bool:
    """Return True if the content of a path is a tar archive, possibly compressed."""
    if not path.is_file():
        return False
    try:
        with _unpacked(path) as file:
            return holds_mark(file.read(_MARK.stop))
    except BROKEN:
        return False


def on_disk(path: Path) -> Path:
    """Return the archive that holds the file of a path, or the path itself if none does."""
    return next((above for above in path.parents if above.is_file()), path)


def size_of(path: Path) -> int:
    """Return the size in bytes of a file, or of one inside an archive."""
    archive = on_disk(path)
    return path.stat().st_size if path == archive else _listed(archive)[path.relative_to(archive).as_posix()]


def plain_files(path: Path) -> Iterator[tuple[tarfile.TarFile, tarfile.TarInfo]]:
    """Yield the plain files of an archive in their order, without links, devices and sparse files.

    Raises
    ------
    DataError
        When the archive cannot be read, is cut off, or has too large headers.
    """
    try:
        with _unpacked(path) as file:
            stream = _Stream(file, path)
            with tarfile.open(fileobj=cast("IO[bytes]", stream), mode="r|") as archive:
                while (member := archive.next()) is not None:
                    archive.members.clear()  # type: ignore[attr-defined]  # tarfile keeps all members
                    stream.allow(archive.offset)
                    if member.isfile() and not member.issparse():
                        yield archive, member
                end = archive.offset
            stream.drain()
    except (*BROKEN, ValueError, RecursionError) as error:
        raise DataError(f"{path} cannot be read: {error}") from None
    # tarfile treats a header that is cut off or damaged as the end.
    if not stream.content <= end < stream.length:
        raise DataError(f"{path} cannot be read: it is cut off, or damaged behind {end} bytes")


def find_members(path: Path, names: Sequence[str]) -> dict[str, Path]:
    """Return the paths of the files with these names, in any folder of an archive.

    Raises
    ------
    DataError
        When the archive cannot be read, or one of the names occurs twice.
    """
    found: dict[str, Path] = {}
    for inside in _listed(path):
        name = inside.rpartition("/")[2]
        if name in names:
            if name in found:
                raise DataError(f"{path} holds {name} twice: {found[name].relative_to(path)} and {inside}")
            found[name] = path / inside
    return {name: found[name] for name in names if name in found}


@contextmanager
def opened_raw(path: Path) -> Iterator[io.BufferedReader]:
    """Open a file, or one inside an archive, to be read once to its end; errors are those of `BROKEN`."""
    if path == on_disk(path):
        with path.open("rb") as file:
            yield file
        return
    archive = on_disk(path)
    inside = path.relative_to(archive).as_posix()
    for tar, member in plain_files(archive):
        if _clean(member.name) == inside:
            yield io.BufferedReader(_Forward(tar.extractfile(member)))
            return
    raise DataError(f"{archive} does not hold {inside} any more")


def _listed(path: Path) -> dict[str, int]:
    facts = path.stat()
    return _listing(path, facts.st_size, facts.st_mtime_ns)


@lru_cache(maxsize=4)
def _listing(path: Path, size: int, changed: int) -> dict[str, int]:
    """Return the sizes of the files in an archive by name, without files whose name is not valid."""
    sizes: dict[str, int] = {}
    for _, member in plain_files(path):
        name = _clean(member.name)
        if name in sizes:
            raise DataError(f"{path} holds {name} twice")
        if name:
            sizes[name] = member.size
        if len(sizes) > _MOST_FILES:
            raise DataError(f"{path} holds more than {_MOST_FILES} files")
    return sizes


def _clean(name: str) -> str:
    """Return the name of a file in an archive; empty if it leads out of the archive or is not valid."""
    name = name.removeprefix("./")
    odd = len(name) > _LONGEST_NAME or not name.isprintable() or {"", ".", ".."} & set(name.split("/"))
    return "" if odd else name


class _Forward(io.RawIOBase):
    """Forward-only reader of a file in an archive; not seekable."""

    def __init__(self, file: IO[bytes] | None) -> None:
        self._file, self._done = file, 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        piece = self._file.read(len(buffer)) if self._file else b""
        buffer[: len(piece)] = piece
        self._done += len(piece)
        return len(piece)

    def tell(self) -> int:
        return self._done


class _Stream:
    """Reader of a file that records its length and the end of its last byte that is not zero."""

    def __init__(self, file: IO[bytes], path: Path) -> None:
        self._file, self._path = file, path
        self.length = self.content = 0
        self._most = _HEADERS

    def allow(self, end: int) -> None:
        """Set the limit of reading to the end of a file and the headers of the next one."""
        self._most = end + _HEADERS

    def read(self, size: int) -> bytes:
        """Read a piece; refuse headers beyond the limit."""
        if self.length > self._most:
            raise DataError(f"{self._path} cannot be read: the headers of a file have more than {_HEADERS} bytes")
        piece = self._file.read(size)
        if held := len(piece.rstrip(b"\0")):
            self.content = self.length + held
        self.length += len(piece)
        return piece

    def drain(self) -> None:
        """Read the rest; any number of zeros may follow the end of an archive."""
        self._most = sys.maxsize
        while self.read(2**20):
            pass


def _unpacked(path: Path) -> IO[bytes]:
    """Open an archive, unpacked if its first bytes are those of a compressed file."""
    with path.open("rb") as raw:
        start = raw.read(6)
    for magic, compressed in _COMPRESSED.items():
        if start.startswith(magic):
            return cast("IO[bytes]", compressed(path))
    return path.open("rb")
