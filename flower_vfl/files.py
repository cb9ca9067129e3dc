"""Atomic and private writing of files, and locks of folders."""

from __future__ import annotations

import errno
import fcntl
import json
import math
import os
import socket
import tempfile
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Self

from flower_vfl.errors import DataError, FolderInUseError, StorageError

if TYPE_CHECKING:
    from collections.abc import Iterator

_DISK_ERRORS = frozenset((errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS, errno.EFBIG))
"""Error numbers of a disk that is full, fails or is read-only."""

_PATH_ERRORS = frozenset(
    {
        errno.EACCES,
        errno.EPERM,
        errno.ENOENT,
        errno.ENOTDIR,
        errno.EEXIST,
        errno.EISDIR,
        errno.ENAMETOOLONG,
        errno.ELOOP,
    }
)
"""Error numbers of a path that this user may not use, or that is impossible, such as a file in place of a folder."""

LEFTOVERS = ".*.tmp"
"""Pattern of the temporary files of `replacing`."""


def keep_private() -> None:
    """Make all files that this process and its children write from now on accessible to their user alone."""
    os.umask(0o077)


@contextmanager
def replacing(path: Path | str) -> Iterator[Path]:
    """Yield a temporary path beside ``path`` that takes its place once the block has ended without an error.

    A block that raises leaves ``path`` as it was and no temporary file behind. Only its owner can access the file.

    Raises
    ------
    StorageError, DataError
        As `writing_to`, when the file could not be written.

    Examples
    --------
    >>> import tempfile
    >>> target = Path(tempfile.mkdtemp()) / "note.txt"
    >>> with replacing(target) as temporary:
    ...     _ = temporary.write_text("whole")
    >>> target.read_text()
    'whole'
    """
    target = Path(path)
    with writing_to(target):
        handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.", suffix=".tmp")
        os.close(handle)
        temporary = Path(name)
        try:
            yield temporary
            _sync(temporary)
            os.replace(temporary, target)
        except BaseException:
            with suppress(FileNotFoundError):
                temporary.unlink()
            raise


def append_private(path: Path, mode: str = "a") -> IO[Any]:
    """Open a file to append to it; only its owner can access a new one."""
    encoding = None if "b" in mode else "utf-8"
    return open(path, mode, encoding=encoding, opener=lambda name, flags: os.open(name, flags, 0o600))


def write_private(path: Path, data: bytes) -> None:
    """Write a new file that only its owner can read, from its first byte on; an existing one is never overwritten."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(data)


@contextmanager
def writing_to(path: Path | str) -> Iterator[None]:
    """Raise an error that names the file or folder, and the remedy, when writing fails in the block.

    Raises
    ------
    StorageError
        When the disk is full or fails.
    DataError
        When this user may not write there, or the path is impossible.
    """
    try:
        yield
    except StorageError:
        raise
    except OSError as error:
        if error.errno in _PATH_ERRORS:
            words = os.strerror(error.errno)
            raise DataError(f"{path} cannot be written: {words}; name another place, or make it this user's") from None
        if error.errno not in _DISK_ERRORS:
            raise
        raise StorageError(
            f"{path} could not be written: {os.strerror(error.errno)}. What was written before is whole; make space, "
            "or see to the disk, and go on"
        ) from error


def reserve(file: IO[bytes], size: int) -> None:
    """Make a file ``size`` bytes long, with reserved disk space where the system supports it.

    Writing through a memory map then cannot fail on a full disk, which would end the process. macOS has no such
    reservation.
    """
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file.fileno(), 0, size)
    else:
        os.truncate(file.fileno(), size)


def boot() -> str:
    """Return the id of the current boot of this machine; empty where the system has none.

    Data that was written without waiting for the disk survives the end of a process, not that of the machine.
    """
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


def remove_leftovers(folder: Path) -> None:
    """Remove temporary files that killed processes left in `replacing`, in a folder where no other process writes."""
    for path in folder.glob(LEFTOVERS):
        path.unlink(missing_ok=True)


class FolderLock:
    """A lock that lets one process at a time work in a folder; it is released however the process ends.

    Parameters
    ----------
    folder : Path
        An existing folder; a hidden file stays in it.

    Raises
    ------
    FolderInUseError
        When another process, or another run of this one, works there.

    Examples
    --------
    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> lock = FolderLock(folder)
    >>> FolderLock(folder)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    flower_vfl.errors.FolderInUseError: ... is in use by process ...
    >>> lock.release()
    """

    NAME = ".lock"

    def __init__(self, folder: Path) -> None:
        self._path = folder / self.NAME
        with writing_to(self._path):
            self._file: IO[str] = append_private(self._path, "a+")
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                self._file.seek(0)
                owner = self._file.read(200) or "another process"
                self._file.close()
                raise FolderInUseError(
                    f"{folder} is in use by {owner}: wait until that run has ended, or name another folder"
                ) from None
            self._file.truncate(0)
            self._file.write(f"process {os.getpid()} on {socket.gethostname()}")
            self._file.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def in_place(self) -> bool:
        """Return True if the locked file is still in the folder: an earlier process may have removed both."""
        try:
            return os.path.samestat(os.fstat(self._file.fileno()), self._path.stat())
        except FileNotFoundError:
            return False

    def release(self) -> None:
        """Release the lock."""
        self._file.close()


def default_folder(source: str) -> Path:
    """Return runs/<name>-<time>, the default folder of a run; `source` is a name or a file."""
    return Path("runs") / f"{Path(source).stem}-{time.strftime('%Y%m%d-%H%M%S')}"


def write_text_atomic(path: Path | str, text: str) -> None:
    """Write a text file in UTF-8, whole or not at all."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json_atomic(path: Path | str, value: Any) -> None:
    """Write a JSON file, whole or not at all; NaN and infinities, which JSON does not have, become null."""
    write_text_atomic(path, json.dumps(_finite(value), indent=2, allow_nan=False, ensure_ascii=False) + "\n")


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value


def _sync(path: Path) -> None:
    with path.open("rb+") as file:
        os.fsync(file.fileno())
