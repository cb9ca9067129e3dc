"""A party's own file as it is read: its columns, the rows that have a label, and which file has the labels."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from flower_vfl.data.encoding.ids import read_ids, whole_ids
from flower_vfl.data.encoding.labels import labelled
from flower_vfl.data.encoding.messages import set_options
from flower_vfl.data.encoding.values import Place, require_columns
from flower_vfl.data.formats.arrays import StoredArrays, holds_arrays, open_arrays
from flower_vfl.data.formats.tables import read_table
from flower_vfl.data.sources.files_options import LABELS, FilesOptions
from flower_vfl.errors import DataError, suggestion

_log = logging.getLogger(__name__)


class RawFile(NamedTuple):
    """Content of one file or folder.

    Parameters
    ----------
    path : Path
        The file or folder.
    table : pyarrow.Table
        Its columns; for arrays and images, the ID, possibly the label, and the number of each row.
    arrays : StoredArrays or None
        The rows of arrays or images; None for a table.
    needed : pyarrow.Array of bool or None
        Rows that are not left out for want of a label; None for all. The table keeps the others, so that messages have
        the row numbers of the file.
    """

    path: Path
    table: pa.Table
    arrays: StoredArrays | None = None
    needed: pa.Array | None = None

    def ids(self, column: str) -> pa.Array:
        """Return the IDs as texts, null in rows that are left out."""
        return read_ids(self.table, column, str(self.path), self.needed)


def read_raw(path: Path, options: FilesOptions, key: str) -> RawFile:
    """Return the content of a table, or of arrays or images, whose values are not read yet."""
    if not holds_arrays(path):
        table = read_table(path, dialect=options.dialect(key))
        return RawFile(path, whole_ids(table, options.id, str(path)) if options.whole_ids else table)
    arrays = open_arrays(path, id_name=options.id, label=options.label, size=options.image_size)
    return RawFile(path, arrays.columns, arrays)


def labelled_rows(file: RawFile, options: FilesOptions) -> RawFile:
    """Return a file of which only the rows with a label are needed."""
    require_columns(file.table, [options.label], str(file.path))
    place = Place(str(file.path), options.label)
    return file._replace(needed=with_label(file.table.column(options.label), place, options.missing_values))


def with_label(column: pa.ChunkedArray, place: Place, missing: Sequence[str]) -> pa.Array:
    """Return a mask (N,) of the rows with a label, after a warning of the number of the others."""
    kept = labelled(column, place, missing)
    left = len(column) - (pc.sum(kept).as_py() or 0)
    if left:
        _log.warning("%s: %d of all %d rows have no label and are left out", place.file, left, len(column))
    return kept


def label_holder(files: Mapping[str, RawFile], options: FilesOptions) -> str:
    """Return the party whose file has the labels, "labels" for a file of their own, "" when this host has none."""
    if options.labels_file:
        require_columns(files[LABELS].table, [options.label], str(files[LABELS].path))
        return LABELS
    if not options.label:
        return ""
    holders = [party for party, file in files.items() if options.label in file.table.column_names]
    if options.label_party in holders:
        return options.label_party
    if len(holders) > 1:
        raise DataError(
            f"the label {options.label!r} is in the files of {' and '.join(holders)}; name in label_party whose labels "
            "count, and the others' column is left out"
        )
    if not holders:
        names = sorted({name for file in files.values() for name in file.table.column_names})
        raise DataError(
            f"no file has the label column {options.label!r}; {suggestion(options.label, names)}; on a host that holds "
            f"no labels set {set_options(('label', ''))}"
        )
    if options.label_party:
        raise DataError(f"label_party is {options.label_party!r}, but the label is in the file of {holders[0]!r}")
    return holders[0]


def resolved(source: Path | None, name: str) -> Path:
    """Return the path of a file; a relative name is in the folder `source`.

    Raises
    ------
    DataError
        When there is no such file.
    """
    path = Path(name).expanduser()
    if source is not None and not path.is_absolute():
        path = source / path
    if not path.exists():
        raise DataError(f"there is no file {path}")
    return path
