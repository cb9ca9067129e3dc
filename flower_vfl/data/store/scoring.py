"""Rows that can be scored after training: those of its own data, or new ones, encoded as those were."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from flower_vfl.data.encoding.ids import Join, join_ids, read_id_lines, read_ids, whole_ids
from flower_vfl.data.encoding.values import Place, numbers, require_columns, texts
from flower_vfl.data.formats.tables import Dialect, dialect_of, read_table
from flower_vfl.data.store import layout
from flower_vfl.data.store.builder import ids_digest
from flower_vfl.data.store.dataset import Dataset, FeatureSpec, open_dataset
from flower_vfl.data.store.memory import VerticalData
from flower_vfl.data.store.source import ArraySource, FeatureSource, JoinedRows
from flower_vfl.errors import DataError

_log = logging.getLogger(__name__)

TABLE_ENDINGS = (".csv", ".tsv", ".parquet", ".pq", ".csv.gz", ".tsv.gz")
"""File name endings of tables with a header."""

_ROWS = (*TABLE_ENDINGS, ".txt", ".txt.gz")
"""File name endings of a party's rows, .txt tables included; in a list of requested IDs, a .txt has one ID a line."""


@dataclass(frozen=True)
class ScoredColumns:
    """One party's columns of the rows.

    Parameters
    ----------
    spec : FeatureSpec
        Shape of the columns.
    source : FeatureSource
        The rows, in the order that all parties share.
    encoding : str
        Digest of their encoding; empty without one.
    """

    spec: FeatureSpec
    source: FeatureSource
    encoding: str


class ScoreRows:
    """Rows in an order that all parties share, by position.

    Parameters
    ----------
    count : int
        Number of rows.
    digest : str
        Digest of their ordered IDs; equal at two parties exactly when rows and order are.
    chosen : range
        Rows that are scored when none are requested.
    features : Callable[[str], ScoredColumns]
        Function that opens one party's columns.
    ids : Callable[[], pa.ChunkedArray], optional
        Function that reads their IDs; without it they are the test rows of data without IDs, numbered from 0.
    left_out : int
        Number of IDs that some of the files lack.
    """

    def __init__(
        self,
        count: int,
        digest: str,
        chosen: range,
        features: Callable[[str], ScoredColumns],
        ids: Callable[[], pa.ChunkedArray] | None,
        left_out: int = 0,
    ) -> None:
        self.left_out = left_out
        self.count, self.digest, self.chosen, self.features, self._read_ids = count, digest, chosen, features, ids

    @cached_property
    def _ids(self) -> pa.ChunkedArray | None:
        return None if self._read_ids is None else self._read_ids()

    def ids(self, rows: NDArray[np.int64]) -> pa.Array:
        """Return the IDs (B,) of rows as texts."""
        if self._ids is None:
            return pa.array(rows).cast(pa.string())
        taken = self._ids.take(pa.array(rows))
        return taken.combine_chunks() if taken.num_chunks != 1 else taken.chunk(0)

    def find(self, asked: pa.Array) -> NDArray[np.int64]:
        """Return the positions (N,) of rows by their IDs.

        Memory holds a table of the requested IDs, not of all IDs.

        Raises
        ------
        DataError
            When IDs have no rows; the message has their number and the first of them.
        """
        found = np.full(len(asked), -1, np.int64)
        if self._ids is None:
            numbers = pc.if_else(pc.match_substring_regex(asked, "^(0|[1-9][0-9]{0,17})$"), asked, "-1")
            found = np.asarray(numbers.cast(pa.int64()))
            found = np.where(found < self.count, found, -1)
        else:
            start = 0
            for chunk in self._ids.chunks:
                place = pc.index_in(chunk, value_set=asked)
                here = np.flatnonzero(np.asarray(place.is_valid()))
                found[np.asarray(place.take(pa.array(here)))] = start + here
                start += len(chunk)
        unknown = np.flatnonzero(found < 0)
        if len(unknown):
            first = ", ".join(repr(value) for value in asked.take(pa.array(unknown[:3])).to_pylist())
            message = f"{len(unknown)} of {len(asked)} IDs are not in the data: {first}"
            message += ", ..." if len(unknown) > 3 else ""
            if self._ids is None:
                message += f"; its test rows have no IDs but numbers, 0 to {self.count - 1}, "
                message += "and its training rows cannot be asked for"
            raise DataError(message)
        return found


def rows_of(dataset: VerticalData) -> ScoreRows:
    """Return the rows of a data set, training rows first; where rows have no IDs, those of the test table alone."""
    alignment = dataset.alignment
    ids = dataset.all_ids if isinstance(dataset, Dataset) and dataset.has_ids else None

    def features(party: str) -> ScoredColumns:
        table = dataset.party(party)
        source: FeatureSource = JoinedRows(table.train, table.test) if ids else table.test
        return ScoredColumns(table.spec, source, encoding_digest(dataset, party))

    if ids is None:
        return ScoreRows(alignment.test_rows, alignment.digest, range(alignment.test_rows), features, None)
    count = alignment.rows + alignment.test_rows
    return ScoreRows(count, alignment.digest, range(alignment.rows, count), features, ids)


def encoding_digest(dataset: VerticalData, party: str) -> str:
    """Return the digest of the encoding of a party's columns; empty where the data has none."""
    return dataset.encoding_digest(party) if isinstance(dataset, Dataset) else ""


def new_rows(path: Path, trained: VerticalData) -> ScoreRows:
    """Return rows that were not in the training data.

    Parameters
    ----------
    path : Path
        A prepared folder, of which all rows can be requested, or the test rows where it has no IDs; or a CSV or
        Parquet file with a header, an ID column and the columns of every party of this host; or a folder with one such
        file a party, `<party>.csv` for instance. Rows of files are in the order of their IDs; if training kept only the
        IDs that all files share (`join = "inner"`), only such IDs are kept here, too.
    trained : VerticalData
        The data that the network was trained on, with the encoding of the columns.

    Raises
    ------
    DataError
        When `path` cannot be read, or when columns or IDs do not match the training data.
    """
    if not isinstance(trained, Dataset):
        raise DataError(
            f"{path} cannot be encoded: the training data {trained.name!r} is no prepared data set, so nothing says "
            "how its columns were encoded; score rows that its own loader opens"
        )
    if (path / layout.MANIFEST).is_file():
        return rows_of(open_dataset(path))
    files = _files(path, trained)
    column = id_column(trained)
    dialects = {party: dialect_of(trained.options, party, trained=True) for party in files}
    tables = {party: read_table(file, dialect=dialects[party]) for party, file in files.items()}
    if has_whole_ids(trained):
        tables = {party: whole_ids(table, column, str(files[party])) for party, table in tables.items()}
    own = {party: read_ids(table, column, str(files[party]), trained=True) for party, table in tables.items()}
    how: Join = "inner" if trained.options.get("join") == "inner" else "strict"
    ids = join_ids({str(files[party]): values for party, values in own.items()}, how)
    left_out = len(set().union(*(values.to_pylist() for values in own.values()))) - len(ids)

    def features(party: str) -> ScoredColumns:
        name = party if party in tables else ""
        if name not in tables:
            known = ", ".join(sorted(tables))
            raise DataError(f"{path} holds no file of party {party!r}, such as {party}.csv; it holds those of {known}")
        order = np.asarray(pc.index_in(pa.array(ids, pa.string()), value_set=own[name]))
        return _encode(trained, party, tables[name], str(files[name]), order)

    digest, chosen = ids_digest({"train": [], "test": ids}), range(len(ids))
    return ScoreRows(len(ids), digest, chosen, features, lambda: pa.chunked_array([ids], pa.string()), left_out)


def _files(path: Path, trained: Dataset) -> Mapping[str, Path]:
    """Return the file of each party that has one of its own, or one for all under ""."""
    if path.is_file():
        return {"": path}
    found = {}
    for name in dict.fromkeys((*trained.parties, trained.label_party)):
        files = [file for ending in _ROWS if (file := path / (name + ending)).is_file()]
        if len(files) > 1:
            raise DataError(f"{path} has {' and '.join(file.name for file in files)}, all of {name!r}: leave one there")
        if files:
            found[name] = files[0]
    if not found:
        raise DataError(
            f"{path} is neither a CSV or Parquet file, nor a prepared folder, nor a folder with a file a party "
            f"({', '.join(f'{name}.csv' for name in trained.parties)})"
        )
    return found


def _encode(trained: Dataset, party: str, table: pa.Table, file: str, order: NDArray[np.int32]) -> ScoredColumns:
    """Return one party's columns, encoded as its training rows, in `order` (N,); errors name rows of the file."""
    encoding, spec = trained.encoding(party), trained.spec(party)
    if not encoding.columns:
        raise DataError(
            f"{trained.name} does not say how the columns of party {party!r} were encoded; prepare the new rows with "
            "its own loader and give the prepared folder"
        )
    arrays: dict[str, NDArray[Any]]
    if encoding.text is not None:
        column = encoding.text.name
        require_columns(table, [column], file)
        arrays = {"features.npy": encoding.text.apply(texts(table.column(column), Place(file, column)).to_pylist())}
    else:
        read = table if encoding.reader is None else encoding.reader.read(table, file)
        numeric, categorical = replace(encoding, reader=None).encode(read, file)
        for number in encoding.numeric:
            if number.missing == "mean":
                values = numbers(read.column(number.name), Place(file, number.name), number.missing)
                _warn_of_missing(number.name, values[order], complete=number.complete)
        rare = int(trained.options.get("min_count", 1))
        for place, known in enumerate(encoding.categorical):
            _warn_of_unseen(known.name, categorical[order, place], read.column(known.name).take(order), rare)
        arrays = {"numeric.npy": numeric, "categorical.npy": categorical}
    source = ArraySource(*(arrays[name][order] for name in spec.arrays()))
    return ScoredColumns(spec, source, trained.encoding_digest(party))


def _warn_of_missing(column: str, values: NDArray[np.float64], *, complete: bool) -> None:
    """Log how many of the rows lack a number that no training row lacked, or that all lack now.

    It is in this host's log alone.
    """
    count = int(np.isnan(values).sum())
    if count == len(values) and not complete:
        _log.warning("column %r: none of %d rows has a number; they count as its mean", column, count)
    elif count and complete:
        _log.warning(
            "column %r: %d of %d rows have no number, which every training row had; they count as its mean",
            *(column, count, len(values)),
        )


def _warn_of_unseen(column: str, ids: NDArray[np.int32], values: pa.ChunkedArray, rare: int) -> None:
    """Log how many of the rows have a value that is not encoded, in this host's log alone."""
    unseen = np.flatnonzero(ids == 0)
    if len(unseen):
        example = values[int(unseen[0])].as_py()
        _log.warning(
            "column %r: %d of %d rows have a value that training %s, such as %s; they count as one new category",
            column,
            len(unseen),
            len(ids),
            "never saw" if rare == 1 else f"saw fewer than {rare} times",
            "an empty one" if example in ("", None) else repr(str(example)[:60]),
        )


def id_column(dataset: VerticalData) -> str:
    """Return the name of the column of the ID in a data set's files."""
    return str(dataset.options.get("id", "id")) if isinstance(dataset, Dataset) else "id"


def has_whole_ids(dataset: VerticalData) -> bool:
    """Return True if the IDs of a data set are whole numbers, whatever its files write: 007 and 7.0 are 7."""
    return isinstance(dataset, Dataset) and dataset.options.get("dtype", {}).get(id_column(dataset)) == "integer"


def read_requested_ids(path: Path, column: str, *, whole: bool = False) -> pa.Array:
    """Return the IDs of a list: a CSV or Parquet file with a column of that name, or a text file with one ID a line.

    With `whole` they are whole numbers, as `whole_ids` reads them.

    Raises
    ------
    DataError
        When there is no ID, or one occurs twice.
    """
    if not path.is_file():
        raise DataError(f"there is no file {path}")
    if path.name.lower().endswith(TABLE_ENDINGS):
        table = read_table(path, dialect=Dialect(trained=True))
        return read_ids(whole_ids(table, column, str(path)) if whole else table, column, str(path), trained=True)
    try:
        lines = [line.strip() for line in path.read_text(encoding="utf-8-sig").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read: {error}") from None
    while lines and not lines[-1]:
        lines.pop()
    if not lines:
        raise DataError(f"{path} names no ID")
    return read_id_lines(lines, str(path), whole=whole)
