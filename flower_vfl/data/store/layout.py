"""Files of a prepared data set: safe reading, streaming writing, and folders that are complete or absent."""

from __future__ import annotations

import errno
import hashlib
import io
import json
import logging
import math
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from tokenize import TokenError
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from flower_vfl.data.store.mapped import release_pages
from flower_vfl.errors import ConfigError, DataError, OutputExistsError, StorageError
from flower_vfl.files import FolderLock, replacing, reserve, write_text_atomic, writing_to

if TYPE_CHECKING:
    import pyarrow as pa

LAYOUT_VERSION = 3
MANIFEST, PARTY, LABELS_FILE, ENCODING = "manifest.json", "party.json", "labels.json", "encoding.json"
IDS = "ids.json"
"""File of the digests of files of IDs, where the digest of the alignment is of another kind."""
VECTORS, VOCABULARY = "vectors.npy", "vocabulary.parquet"
ENCODINGS = (ENCODING, VOCABULARY)
"""Files of a party's encoding; there is no vocabulary where no column has categories."""

UNREADABLE = (OSError, ValueError, EOFError, SyntaxError, TypeError, KeyError, RecursionError, MemoryError, TokenError)
"""Exceptions that numpy may raise for the file of an array with a damaged header."""

_CHUNK_BYTES = 32 * 2**20
_IDS = 2**16
"""Number of IDs that are read at once."""

_ATTEMPTS = 10
"""Number of attempts to load an array. numpy parses headers as Python; while another thread parses too, for instance to
print a traceback, CPython 3.11 may raise a SystemError (gh-106905) in either."""

_log = logging.getLogger(__name__)

T = TypeVar("T")


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object.

    Raises
    ------
    DataError
        When the file is missing or holds something else.
    """
    try:
        content = json.loads(path.read_text(encoding="utf8"))
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path} is no valid JSON: {error}") from None
    if not isinstance(content, dict):
        raise DataError(f"{path} holds {type(content).__name__}, a JSON object is needed")
    return content


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write a JSON object."""
    with writing_to(path):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.write_text(json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False) + "\n", encoding="utf8")


def entry(where: Path, content: Mapping[str, Any], key: str, kind: type[T]) -> T:
    """Return `content[key]` after checking that it exists and is of that type."""
    value = content.get(key)
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise DataError(f"{where}: {key!r} must be {kind.__name__}, given {value!r}")
    return value


def count(where: Path, content: Mapping[str, Any], key: str) -> int:
    """Return a whole number of at least 0."""
    value = entry(where, content, key, int)
    if value < 0:
        raise DataError(f"{where}: {key!r} must be at least 0, given {value}")
    return value


def open_array(path: Path, shape: tuple[int, ...], dtype: str, mode: Literal["r", "c"] = "r") -> NDArray[Any]:
    """Memory-map an array and check its shape and dtype; its content is not read yet.

    Raises
    ------
    DataError
        When the file is missing, is no array, holds objects, is cut short, or has another shape or dtype.
    """
    try:
        array = _load(path, mode if np.prod(shape) else None)
    except FileNotFoundError:
        raise DataError(f"there is no file {path}") from None
    except UNREADABLE as error:
        raise DataError(f"{path} is no array that can be read: {error}") from None
    if not isinstance(array, np.ndarray):
        raise DataError(f"{path} is an archive, one array is needed")
    if array.shape != shape or array.dtype != np.dtype(dtype) or not array.flags.c_contiguous:
        raise DataError(f"{path} holds {array.dtype} of shape {array.shape}; needed: {dtype} of shape {shape}, by rows")
    return np.asarray(array)


def _load(path: Path, mode: Literal["r", "c"] | None) -> Any:
    for _ in range(_ATTEMPTS - 1):
        with suppress(SystemError):
            return np.load(path, mmap_mode=mode, allow_pickle=False)
    return np.load(path, mmap_mode=mode, allow_pickle=False)


def chunks(array: NDArray[Any]) -> Iterator[tuple[int, NDArray[Any]]]:
    """Yield the first row and the rows of pieces of bounded size."""
    step = max(1, _CHUNK_BYTES // max(1, array.nbytes // max(1, len(array))))
    for start in range(0, len(array), step):
        yield start, array[start : start + step]
        if not array.flags.writeable:
            release_pages(array)


def check_range(path: Path, array: NDArray[Any], cardinalities: Sequence[int]) -> None:
    """Check that each column of category ids lies in 0 to its cardinality - 1, reading in pieces."""
    limits = np.asarray(cardinalities)
    for start, piece in chunks(array):
        wrong = (piece < 0) | (piece >= limits)
        if wrong.any():
            row, column = (int(index) for index in np.argwhere(wrong)[0])
            raise DataError(
                f"{path}: row {start + row}, column {column} holds {int(piece[row, column])}, allowed are 0 to "
                f"{int(limits[column]) - 1}"
            )


def check_finite(path: Path, array: NDArray[Any]) -> None:
    """Check that floats are finite, reading in pieces."""
    for start, piece in chunks(array):
        wrong = ~np.isfinite(piece)
        if wrong.any():
            place = [int(index) for index in np.argwhere(wrong)[0]]
            raise DataError(f"{path}: row {start + place[0]}, position {place[1:]} is not a finite number")


def names_digest(names: Sequence[str]) -> str:
    """Return the SHA-256 of the names of the classes, in their order."""
    return hashlib.sha256(json.dumps(list(names)).encode()).hexdigest()


def digest(path: Path) -> str:
    """Return the SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def verify_file(folder: Path, file: str) -> None:
    """Check a file against the digest that was stored when it was written.

    Raises
    ------
    DataError
        When the digests differ, or when file or digest is missing.
    """
    notes = folder / {"labels": LABELS_FILE, "ids": IDS}.get(folder.name, PARTY)
    noted = entry(notes, read_json(notes), "files", dict)
    path = folder / file
    if not path.is_file():
        raise DataError(f"there is no file {path}")
    if file not in noted:
        raise DataError(f"{notes} notes no digest of {file}; prepare the data again")
    if digest(path) != noted[file]:
        raise DataError(f"{path} is not as it was prepared: its SHA-256 differs from the one in {notes}")


def check_array(path: Path, shape: tuple[int, ...], dtype: str, cardinalities: Sequence[int]) -> None:
    """Read a whole array and check shape, dtype, numbers and category ids."""
    array = open_array(path, shape, dtype)
    if array.dtype.kind == "f":
        check_finite(path, array)
    elif array.dtype != np.uint8:  # every byte is a pixel
        check_range(path, array.reshape(len(array), len(cardinalities)), cardinalities)


def verify_array(folder: Path, file: str, shape: tuple[int, ...], dtype: str, cardinalities: Sequence[int]) -> None:
    """Check an array against the digest that was stored when it was written, then its contents."""
    verify_file(folder, file)
    check_array(folder / file, shape, dtype, cardinalities)


def create_array(path: Path, shape: tuple[int, ...], dtype: str) -> NDArray[Any]:
    """Create an array on disk that is written piece by piece through its memory map.

    Its full size is reserved on the disk where the system can do so: writing to the map on a full disk would kill the
    process later.

    Raises
    ------
    StorageError
        When the disk is full or fails.
    """
    with writing_to(path):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if 0 in shape:
            np.save(path, np.zeros(shape, dtype))
            return np.zeros(shape, dtype)
        array = np.lib.format.open_memmap(path, mode="w+", dtype=np.dtype(dtype), shape=shape)
        with path.open("rb+") as file:
            reserve(file, path.stat().st_size)
        return array


class ArrayFile:
    """An array on disk that is written by pieces of rows, in any order, from any thread, and resumable after a kill.

    Parameters
    ----------
    path : Path
        File of the array; existing content is kept.
    shape : tuple of int
        Shape of the array, rows first.
    dtype : str
        Type of the elements.
    """

    def __init__(self, path: Path, shape: tuple[int, ...], dtype: str) -> None:
        self._path, self._dtype = path, np.dtype(dtype)
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        header = io.BytesIO()
        facts = {"descr": np.lib.format.dtype_to_descr(self._dtype), "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(header, facts)
        self._start = header.tell()
        self._row_bytes = self._dtype.itemsize * math.prod(shape[1:])
        with writing_to(path):
            if not path.exists():
                with replacing(path) as temporary:
                    temporary.write_bytes(header.getvalue())
                    os.truncate(temporary, self._start + self._row_bytes * shape[0])
            self._file = path.open("r+b", buffering=0)

    def write(self, row: int, values: NDArray[Any]) -> None:
        """Write rows, the first of them at position `row`; they survive a power failure only after `sync`.

        Raises
        ------
        StorageError
            When the disk is full or fails.
        """
        if not values.size:
            return
        data = memoryview(np.ascontiguousarray(values, self._dtype).data).cast("B")
        place = self._start + row * self._row_bytes
        with writing_to(self._path):
            while data:
                done = os.pwrite(self._file.fileno(), data, place)
                data, place = data[done:], place + done

    def sync(self) -> None:
        """Wait until all written rows are on the disk."""
        with writing_to(self._path):
            os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def save_array(path: Path, array: NDArray[Any], dtype: str) -> None:
    """Write an array (N, ...) by rows through `ArrayFile`, which reports a full disk as such."""
    file = ArrayFile(path, array.shape, dtype)
    try:
        file.write(0, array)
    finally:
        file.close()


def write_ids(path: Path, ids: Sequence[str]) -> None:
    """Write IDs in their order."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    with writing_to(path):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        pq.write_table(pa.table({"id": pa.array(ids, pa.string())}), path)


def read_id_column(path: Path, rows: int) -> pa.ChunkedArray:
    """Return IDs in their order after checking their number."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(path, columns=["id"])
        table.validate(full=True)  # texts that are no UTF-8, for instance
        found = [column.cast(pa.string()) for column in table.columns]
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"{path} cannot be read: {error}") from None
    if len(found) != 1 or len(found[0]) != rows:
        raise DataError(f"{path} holds {table.num_rows} IDs in {table.num_columns} columns, needed: {rows} in one")
    return found[0]


def ids_digest(ids: Mapping[str, tuple[int, Iterable[str]]]) -> str:
    """Return the SHA-256 of ordered IDs; equal exactly when all IDs, their order and their parts are.

    Parameters
    ----------
    ids : Mapping
        Number of IDs of each part, and the IDs in their order.
    """
    found = hashlib.sha256()
    for part, (rows, values) in ids.items():
        found.update(f"{part} {rows}\n".encode())
        for value in values:
            encoded = value.encode()
            found.update(b"%d:%s" % (len(encoded), encoded))
    return found.hexdigest()


def each_id(path: Path) -> Iterator[str]:
    """Yield IDs in their order, reading a piece of the file at a time."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            for piece in file.iter_batches(_IDS, columns=["id"]):
                piece.validate(full=True)  # texts that are no UTF-8, for instance
                if piece.num_columns != 1 or piece.column(0).null_count:
                    raise DataError(f"{path} needs one column of IDs, without an empty one")
                yield from piece.column(0).cast(pa.string()).to_pylist()
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"{path} cannot be read: {error}") from None


@contextmanager
def new_folder(out: Path) -> Iterator[Path]:
    """Yield a temporary folder that is renamed to `out` on success, and removed otherwise.

    It is in `.<name of out>.partial` beside `out`. The next process to work there removes the remains of a killed one.

    Raises
    ------
    DataError
        When no folder can replace `out`; checked before any work.
    OutputExistsError
        When `out` exists, before or after, or when another process does the same work.
    StorageError
        When the complete folder cannot be renamed to `out`.
    """
    with _work_folder(out) as (place, target):
        try:
            data = place / "data"
            shutil.rmtree(data, ignore_errors=True)
            with writing_to(data):
                data.mkdir(mode=0o700)
            yield data
            _move_into_place(data, target)
        finally:
            shutil.rmtree(place, ignore_errors=True)


@contextmanager
def lasting_folder(out: Path, plan: str) -> Iterator[tuple[Path, Path]]:
    """Yield a folder that is renamed to `out` on success, and one for notes; both survive a kill.

    They are in `.<name of out>.partial` beside `out`. They are removed when the input is wrong or when they belong to
    another plan; a complete folder that cannot be renamed to `out` is kept, too.

    Parameters
    ----------
    out : Path
        Target folder, which must not exist, or be empty; a link is followed.
    plan : str
        Digest of all that the work depends on; existing folders are resumed if they have the same.

    Raises
    ------
    DataError
        When no folder can replace `out`; checked before any work.
    OutputExistsError
        When `out` exists, before or after, or when another process does the same work.
    StorageError
        When the complete folder cannot be renamed to `out`.
    """
    with _work_folder(out) as (place, target):
        data, notes, planned = place / "data", place / "notes", place / "plan"
        try:
            found = planned.read_text(encoding="utf8") if planned.is_file() else ""
            if found == plan:
                _log.info("going on with the work in %s", place)
                for half in place.rglob(".*.tmp"):  # Incomplete files of a killed process.
                    half.unlink()
            else:
                for folder in (data, notes):
                    shutil.rmtree(folder, ignore_errors=True)
                write_text_atomic(planned, plan)
            for folder in (data, notes):
                folder.mkdir(mode=0o700, exist_ok=True)
            yield data, notes
            _move_into_place(data, target)
            shutil.rmtree(place, ignore_errors=True)
        except (ConfigError, DataError):
            shutil.rmtree(place, ignore_errors=True)
            raise
        except BaseException:
            _log.warning("what was done so far is kept in %s; the same command goes on from there", place)
            raise


@contextmanager
def _work_folder(out: Path) -> Iterator[tuple[Path, Path]]:
    """Yield the folder `.<name of out>.partial`, locked for this process, and the path of `out`."""
    target = _free_target(out)
    place = target.with_name(f".{target.name}.partial")
    lock = None
    while lock is None:
        try:
            place.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise DataError(f"{out} cannot be written: {error.strerror}") from None
        lock = _lock_folder(place)
    with lock:
        yield place, target


def _lock_folder(place: Path) -> FolderLock | None:
    """Return the lock of a folder; None if the process that worked in it has just removed it."""
    try:
        lock = FolderLock(place)
    except DataError:
        if place.exists():
            raise
        return None
    if lock.in_place():
        return lock
    lock.release()
    return None


def _free_target(out: Path) -> Path:
    """Return the path of `out`, links followed, after checking that it is free or an empty folder to be replaced."""
    place = Path(os.path.realpath(out))
    if place.exists() and not (place.is_dir() and not any(place.iterdir())):
        raise OutputExistsError(f"{out} exists; choose another folder or remove it")
    if os.path.ismount(place) or place == Path.cwd():
        what = "the current folder" if place == Path.cwd() else "where a disk is mounted"
        raise DataError(f"{out} is {what}, which no other folder can replace; name a new folder in it")
    return place


def _move_into_place(folder: Path, place: Path) -> None:
    try:
        os.rename(folder, place)
    except OSError as error:
        if error.errno in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR):
            raise OutputExistsError(f"{place} was written by someone else meanwhile") from None
        raise StorageError(
            f"{place} cannot be replaced by the folder that is complete: {error.strerror}; remove what is there"
        ) from error
