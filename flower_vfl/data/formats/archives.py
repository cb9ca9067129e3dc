"""Tar archives, read where they lie: nothing is unpacked on the disk, and no name in one becomes a path of the system.

A file in an archive is named by a path that goes on inside, such as `dbpedia_csv.tar.gz/dbpedia_csv/train.csv`.
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
"""Bytes of headers that one file may have: a header can ask for any amount of memory."""

_LONGEST_NAME, _MOST_FILES = 1024, 100_000
_MARK = slice(257, 262)


def holds_mark(beginning: bytes) -> bool:
    """Say whether a file with this beginning, unpacked, is a tar archive."""
    return beginning[_MARK] == b"ustar"


def is_archive(path: Path) -> bool:
    """Say whether a path is a tar archive, possibly compressed; its content tells."""
    if not path.is_file():
        return False
    try:
        with _unpacked(path) as file:
            return holds_mark(file.read(_MARK.stop))
    except BROKEN:
        return False


def on_disk(path: Path) -> Path:
    """Return the archive of a path that goes on inside one, or the path itself."""
    return next((above for above in path.parents if above.is_file()), path)


def size_of(path: Path) -> int:
    """Return how many bytes a file has, or one inside an archive."""
    archive = on_disk(path)
    return path.stat().st_size if path == archive else _listed(archive)[path.relative_to(archive).as_posix()]


def plain_files(path: Path) -> Iterator[tuple[tarfile.TarFile, tarfile.TarInfo]]:
    """Go once through an archive and read only its plain files, no link, device or file with holes.

    Raises
    ------
    DataError
        When it cannot be read, is cut off, or has headers that are larger than any file's.
    """
    try:
        with _unpacked(path) as file:
            stream = _Stream(file, path)
            with tarfile.open(fileobj=cast("IO[bytes]", stream), mode="r|") as archive:
                while (member := archive.next()) is not None:
                    archive.members.clear()  # type: ignore[attr-defined]  # it keeps them all
                    stream.allow(archive.offset)
                    if member.isfile() and not member.issparse():
                        yield archive, member
                end = archive.offset
            stream.drain()
    except (*BROKEN, ValueError, RecursionError) as error:
        raise DataError(f"{path} cannot be read: {error}") from None
    # tarfile takes a header that is cut off or damaged for the end.
    if not stream.content <= end < stream.length:
        raise DataError(f"{path} cannot be read: it is cut off, or damaged behind {end} bytes")


def find_members(path: Path, names: Sequence[str]) -> dict[str, Path]:
    """Return where files of these names lie in an archive, in whatever folder of it.

    Raises
    ------
    DataError
        When the archive cannot be read, or when one of the names is there twice.
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
    """Return names and sizes of the files in an archive; names that no system's file could have are passed over."""
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
    """Return the name of a file in an archive; empty for one that leads out of it or is none."""
    name = name.removeprefix("./")
    odd = len(name) > _LONGEST_NAME or not name.isprintable() or {"", ".", ".."} & set(name.split("/"))
    return "" if odd else name


class _Forward(io.RawIOBase):
    """Reads a file of an archive that is gone through once: it has no way back, and says so."""

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
    """Reads a file and notes how long it is and where its last byte that is not zero ends."""

    def __init__(self, file: IO[bytes], path: Path) -> None:
        self._file, self._path = file, path
        self.length = self.content = 0
        self._most = _HEADERS

    def allow(self, end: int) -> None:
        """Let a file be read to its end, and the headers of the one behind it."""
        self._most = end + _HEADERS

    def read(self, size: int) -> bytes:
        """Read a piece, if headers do not go on and on."""
        if self.length > self._most:
            raise DataError(f"{self._path} cannot be read: the headers of a file have more than {_HEADERS} bytes")
        piece = self._file.read(size)
        if held := len(piece.rstrip(b"\0")):
            self.content = self.length + held
        self.length += len(piece)
        return piece

    def drain(self) -> None:
        """Read what is left; behind the end of an archive there may be any number of zeros."""
        self._most = sys.maxsize
        while self.read(2**20):
            pass


def _unpacked(path: Path) -> IO[bytes]:
    """Open an archive, unpacking it where its content says that it is compressed."""
    with path.open("rb") as raw:
        start = raw.read(6)
    for magic, compressed in _COMPRESSED.items():
        if start.startswith(magic):
            return cast("IO[bytes]", compressed(path))
    return path.open("rb")
