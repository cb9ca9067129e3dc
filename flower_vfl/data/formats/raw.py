"""Raw files of data sets: found under any of their usual names, read plain or gzipped."""

from __future__ import annotations

import gzip
import io
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import chain, islice
from pathlib import Path
from typing import BinaryIO, cast

import pyarrow as pa
import pyarrow.csv as pa_csv

from flower_vfl.data.formats.archives import BROKEN, find_members, holds_mark, is_archive, opened_raw
from flower_vfl.errors import DataError

GZIP = b"\x1f\x8b"
_NO_TEXT = {
    b"\xff\xfe": "text in UTF-16; convert it to UTF-8",
    b"\xfe\xff": "text in UTF-16; convert it to UTF-8",
    b"PK\x03\x04": "a ZIP archive; unpack it",
    b"PAR1": "a Parquet file; the published text is needed",
    b"\xfd7zXZ": "compressed with xz; unpack it, or use gzip",
    b"BZh": "compressed with bzip2; unpack it, or use gzip",
    b"\x28\xb5\x2f\xfd": "compressed with zstd; unpack it, or use gzip",
    b"7z\xbc\xaf": "a 7z archive; unpack it",
}
_BEGINNING = 4096

SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "vertical bars"}
"""Separators of the fields of tables, in words."""


def require_folder(path: Path, content: str) -> None:
    """Refuse a path that is neither a folder nor a tar archive; `content` names the expected files.

    Raises
    ------
    DataError
        When the path is another file.
    """
    if not path.is_dir() and not is_archive(path):
        raise DataError(
            f"{path} is a file; name the folder that holds {content}, unpacked if this is its archive; a tar archive "
            "can be named itself"
        )


def find_file(folder: Path, names: Sequence[str], kind: str = "") -> Path:
    """Return the first file of a folder or tar archive that has one of these names; `kind` describes it in messages.

    Raises
    ------
    DataError
        When there is none.
    """
    require_folder(folder, names[0])
    found = find_files(folder, names)
    for name in names:
        if name in found:
            return found[name]
    raise DataError(f"{folder} holds neither {' nor '.join(names)}" + (f": no {kind}" if kind else ""))


def find_files(folder: Path, names: Sequence[str]) -> dict[str, Path]:
    """Return the paths, by name, of these files in a folder, or in any folder of a tar archive; others are left out.

    Raises
    ------
    DataError
        When the archive is damaged, or a name occurs twice.
    """
    if folder.is_file():
        return find_members(folder, names)
    return {name: folder / name for name in names if (folder / name).is_file()}


def listed(folder: Path) -> list[os.DirEntry[str]]:
    """Return the entries of a folder except hidden ones: notes of file managers, `._p1.png` beside `p1.png`.

    Raises
    ------
    DataError
        When the folder cannot be read, in which case a glob would silently find nothing.
    """
    try:
        with os.scandir(folder) as entries:
            return [entry for entry in entries if not entry.name.startswith(".")]
    except OSError as error:
        raise DataError(f"{folder} cannot be read: {error.strerror}") from None


@contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
    """Open a file, or one inside a tar archive, unpacked if its content is gzipped.

    Raises
    ------
    DataError
        When the file cannot be opened, or read inside the `with` block.
    """
    try:
        with opened_raw(path) as raw:
            zipped = raw.peek(len(GZIP)).startswith(GZIP)
            yield cast("BinaryIO", gzip.GzipFile(fileobj=raw)) if zipped else raw
    except BROKEN as error:
        raise DataError(f"{path} cannot be read: {error}") from None


def check_text(path: Path, beginning: bytes) -> None:
    """Refuse a file whose first unpacked bytes cannot begin a text in UTF-8.

    Raises
    ------
    DataError
        When they cannot; the message names the format of the file, if known.
    """
    for mark, what in _NO_TEXT.items():
        if beginning.startswith(mark):
            raise DataError(f"{path} is {what}")
    if holds_mark(beginning):
        raise DataError(f"{path} is a tar archive; unpack it")
    if b"\0" in beginning[:_BEGINNING]:
        raise DataError(f"{path} is no text: it begins with bytes that no text has, such as NUL")


def check_encoding(path: Path, file: BinaryIO) -> None:
    """Read a text that could not be parsed from its beginning, and refuse it if its encoding is the reason.

    Raises
    ------
    DataError
        When a line is not in UTF-8; the message names the first.
    """
    beginning = file.read(_BEGINNING)
    check_text(path, beginning)
    for number, line in enumerate(chain(io.BytesIO(beginning + file.readline()), file), start=1):
        try:
            line.decode()
        except UnicodeDecodeError:
            raise DataError(f"{path}: line {number} is no text in UTF-8; convert the file to UTF-8") from None


def read_csv(
    path: Path, content: bytes, kind: str, convert: pa_csv.ConvertOptions, names: Sequence[str] = ()
) -> pa.Table:
    """Return the rows of a published table, from the content of its file.

    Parameters
    ----------
    path : Path
        Origin of the content, for messages.
    content : bytes
        Unpacked content, without line breaks inside values.
    kind : str
        Kind of file that is expected, for messages.
    convert : pyarrow.csv.ConvertOptions
        Conversion of the values.
    names : sequence of str
        The columns of a file without a header.

    Raises
    ------
    DataError
        When the content is something else; the message names the first wrong line.
    """
    try:
        # One thread: several do not report the row of an error.
        reading = pa_csv.ReadOptions(use_threads=False, column_names=list(names) or None)
        table = pa_csv.read_csv(pa.BufferReader(content), read_options=reading, convert_options=convert)
    except pa.ArrowInvalid as error:
        check_encoding(path, io.BytesIO(content))
        raise DataError(f"{path} is no {kind}: {_reason(str(error), content)}") from None
    found = next((words for sign, words in SEPARATORS.items() if sign in table.column_names[0]), None)
    if table.num_columns == 1 and found:
        raise DataError(f"{path}: fields are separated by {found}; commas are needed")
    return table


def _reason(words: str, content: bytes) -> str:
    """Return Arrow's message with the number of the line, and without the rest of the line, which may be private."""
    row = re.search("Row #([0-9]+): ", words)
    if row is None:
        return words
    filled = (number for number, line in enumerate(io.BytesIO(content), start=1) if line.strip(b"\r\n"))
    line = next(islice(filled, int(row[1]) - 1, None), int(row[1]))
    fields = re.search("Expected ([0-9]+) columns, got ([0-9]+)", words)
    if fields is not None:
        return f"line {line} has {fields[2]} fields, {fields[1]} are needed"
    return f"line {line}: {words.replace(row[0], '')}"
