"""Files of a user's own as tables: CSV, every column as text, and Parquet."""

from __future__ import annotations

import csv
import gzip
import re
import zlib
from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from flower_vfl.data.encoding import require_columns
from flower_vfl.errors import DataError

_DELIMITERS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "vertical bars"}


def read_table(path: Path, only: str = "") -> pa.Table:
    """Read a CSV (.csv, .tsv, .txt, each also .gz), every column as text, or a Parquet file.

    Parameters
    ----------
    path : Path
        The file.
    only : str
        Read this column and no other.

    Raises
    ------
    DataError
        When the file is neither, is empty, lacks the column, or a name of a column occurs twice.
    """
    header = read_header(path)
    require_columns(header, [only] if only else [], str(path))
    names = [only] if only else header.column_names
    try:
        table = pq.read_table(path, columns=names) if _is_parquet(path) else _read_csv(path, header.column_names, names)
        table.validate(full=True)  # texts that are no UTF-8, for instance
    except (OSError, EOFError, zlib.error, UnicodeDecodeError, pa.ArrowException) as error:
        # Arrow's words end with the row that it stumbled over: data, which messages do not repeat.
        words = re.sub("(?<=got )([0-9]+):.*", r"\1", str(error), flags=re.DOTALL)
        place = re.search("Row #([0-9]+)", words)
        number = f" (row {int(place[1]) - 1} below the header)" if place else ""
        raise DataError(f"{path} cannot be read: {re.sub('Row #[0-9]+: ', '', words)}{number}") from None
    if not table.num_rows:
        raise DataError(f"{path} has no rows")
    return table


def read_header(path: Path) -> pa.Table:
    """Return the columns of a file, without rows; errors are those of `read_table`."""
    try:
        if _is_parquet(path):
            header = pq.read_schema(path).empty_table()
        elif _kind(path) in (".csv", ".tsv", ".txt"):
            opener = gzip.open if path.suffix == ".gz" else open
            with opener(path, "rt", encoding="utf-8-sig", newline="") as file:
                names = next(csv.reader(file, delimiter=_delimiter(path)), [])
            header = pa.schema([(name.strip(), pa.string()) for name in names]).empty_table()
        else:
            raise DataError(f"{path}: files end in .csv, .tsv, .txt (each also .gz), .parquet or .pq")
    except (OSError, EOFError, zlib.error, UnicodeDecodeError, pa.ArrowException, csv.Error) as error:
        raise DataError(f"{path} cannot be read: {error}") from None
    if not header.column_names:
        raise DataError(f"{path} is empty")
    _refuse_duplicates(header.column_names, path)
    if len(header.column_names) == 1 and not _is_parquet(path):
        _refuse_delimiter(header.column_names[0], path)
    return header


def _kind(path: Path) -> str:
    return Path(path.name.removesuffix(".gz")).suffix.lower()


def _is_parquet(path: Path) -> bool:
    return _kind(path) in (".parquet", ".pq")


def _delimiter(path: Path) -> str:
    return "\t" if _kind(path) == ".tsv" else ","


def _read_csv(path: Path, names: list[str], wanted: list[str]) -> pa.Table:
    def read(*, threads: bool) -> pa.Table:
        return pa_csv.read_csv(
            path,
            read_options=pa_csv.ReadOptions(column_names=names, skip_rows=1, use_threads=threads),
            parse_options=pa_csv.ParseOptions(delimiter=_delimiter(path), newlines_in_values=True),
            convert_options=pa_csv.ConvertOptions(
                column_types=dict.fromkeys(names, pa.string()), include_columns=wanted
            ),
        )

    try:
        return read(threads=True)
    except pa.ArrowInvalid:
        return read(threads=False)  # for the number of the row, which several threads do not know


def _refuse_delimiter(name: str, path: Path) -> None:
    """Refuse a file whose only column is the whole header, because something else separates its fields."""
    own = _delimiter(path)
    found = next((other for other in _DELIMITERS if other != own and other in name), None)
    if found:
        needed = "commas, or tabs in a file that is called .tsv," if own == "," else _DELIMITERS[own]
        raise DataError(f"{path}: fields are separated by {_DELIMITERS[found]}; {needed} are needed")


def _refuse_duplicates(names: Iterable[str], path: Path) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise DataError(f"{path} has several columns named {name!r}; names must be unique")
        seen.add(name)
