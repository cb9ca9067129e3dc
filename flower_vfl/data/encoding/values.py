"""Columns of files as texts and as numbers, with errors that name the file, the column and the row."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from flower_vfl.data.encoding.messages import named_rows, set_options
from flower_vfl.errors import DataError, suggestion

MISSING = ""
MISSING_TEXTS = (MISSING, "NA", "N/A", "NaN", "nan", "null", "NULL")
"""Texts that stand for a missing number or label."""

_LARGEST_WHOLE = 2.0**53
"""Number below which a float holds every whole number exactly."""
_LARGEST = 1e150
"""Largest number that is encoded: the variance of larger ones overflows a float."""

Missing = Literal["error", "mean"]
Absent = Literal["error", "mean", "zero"]


@dataclass(frozen=True)
class Place:
    """Origin of a column, for messages.

    Parameters
    ----------
    file : str
        File or other source of the rows.
    column : str
        Name of the column.
    """

    file: str
    column: str


def require_columns(table: pa.Table, names: Sequence[str], file: str) -> None:
    """Check that a table has these columns, each once.

    Raises
    ------
    DataError
        When a column is missing (the message suggests the nearest one) or occurs more than once.
    """
    counted = Counter(table.column_names)
    for name in names:
        if not counted[name]:
            raise DataError(f"{file} has no column {name!r}; {suggestion(name, table.column_names)}")
        if counted[name] > 1:
            raise DataError(f"{file} has {counted[name]} columns named {name!r}; names must be unique")


def texts(column: pa.ChunkedArray | pa.Array, place: Place) -> pa.Array:
    """Return a column as trimmed texts, missing values as "".

    Raises
    ------
    DataError
        When values are neither numbers nor texts; the message has file, column and type.
    """
    try:
        return _trimmed(whole_array(column))
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid):
        raise DataError(
            f"{place.file}: column {place.column!r} is of type {column.type}, which does not read as texts; make it "
            "numbers or texts"
        ) from None


def numbers(
    column: pa.ChunkedArray | pa.Array, place: Place, missing: Absent = "error", needed: pa.Array | None = None
) -> NDArray[np.float64]:
    """Return a column as finite numbers, or NaN where missing numbers are allowed.

    Parameters
    ----------
    column : pyarrow array
        Numbers, or texts that read as such.
    place : Place
        Origin of the column, for messages.
    missing : {"error", "mean", "zero"}
        Treatment of missing numbers; "error" allows none.
    needed : pyarrow.Array of bool, optional
        The rows that are checked; all by default. The others become 0.

    Raises
    ------
    DataError
        When a value is no finite number, is beyond 1e150, or is missing and may not be; the message has file, column
        and row (from 1) of the first.
    """
    values, unreadable = parse_numbers(column)
    if needed is not None:
        checked = np.asarray(needed)
        values, unreadable = np.where(checked, values, 0.0), unreadable & checked
    if unreadable.any():
        row = int(unreadable.argmax())
        given = whole_array(column)[row].as_py()
        raise DataError(
            f"{place.file}: column {place.column!r}, {named_rows(place.file, [row])} holds {given!r}, a finite number "
            "is needed"
        )
    large = np.abs(values) > _LARGEST
    if large.any():
        row = int(large.argmax())
        given = whole_array(column)[row].as_py()
        raise DataError(
            f"{place.file}: column {place.column!r}, {named_rows(place.file, [row])} holds {given!r}; numbers up to "
            f"{_LARGEST:g} can be encoded: correct it, or leave it empty where it stands for a missing number"
        )
    absent = np.isnan(values)
    if missing == "error" and absent.any():
        row = int(absent.argmax())
        raise DataError(
            f"{place.file}: column {place.column!r}, {named_rows(place.file, [row])} is missing or NaN "
            f"({int(absent.sum())} such rows); fill it, or set {set_options(('missing', 'mean'))} where the data set "
            "has it"
        )
    return values


def parse_numbers(column: pa.ChunkedArray | pa.Array) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Return numbers, NaN where missing, and a mask of values that are neither finite numbers nor missing."""
    array = whole_array(column)
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if pa.types.is_string(array.type) or pa.types.is_large_string(array.type):
        array = _trimmed(array)
        absent = pc.is_in(array, value_set=pa.array(MISSING_TEXTS))
        array = pc.if_else(absent, pa.scalar(None, pa.string()), array)
        try:
            values = _to_numpy(array.cast(pa.float64()))
        except pa.ArrowInvalid:
            values = np.array([_number(value) for value in array.to_pylist()])
        unreadable = np.isnan(values) & ~absent.to_numpy(zero_copy_only=False)
        return values, unreadable | np.isinf(values)
    if pa.types.is_null(array.type) or pa.types.is_boolean(array.type):
        array = array.cast(pa.int8())
    try:
        values = _to_numpy(array.cast(pa.float64(), safe=False))
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid):
        return np.full(len(array), np.nan), np.ones(len(array), bool)
    return values, np.isinf(values)


def _trimmed(array: pa.Array) -> pa.Array:
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    return pc.fill_null(pc.utf8_trim_whitespace(_as_texts(array)), MISSING)


def _as_texts(array: pa.Array) -> pa.Array:
    """Return values as texts, whole numbers without a fraction or the exponent that Arrow gives to floats from 1e10."""
    if not pa.types.is_floating(array.type):
        return array.cast(pa.string())
    numbers = array.cast(pa.float64())
    whole = pc.and_(pc.equal(numbers, pc.floor(numbers)), pc.less(pc.abs(numbers), _LARGEST_WHOLE))
    found = pc.if_else(whole, numbers, pa.scalar(None, pa.float64())).cast(pa.int64()).cast(pa.string())
    return pc.coalesce(found, array.cast(pa.string()))


def _number(value: str | None) -> float:
    """Return a text as a number, NaN if it is none; underscores, which Python allows, are not: 18_25 may be ages."""
    try:
        return np.nan if value is None or "_" in value else float(value)
    except ValueError:
        return np.nan


def whole_array(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    """Return a column as one array."""
    if not isinstance(column, pa.ChunkedArray):
        return column
    joined = column.combine_chunks()
    return pa.concat_arrays(joined.chunks) if isinstance(joined, pa.ChunkedArray) else joined


def _to_numpy(array: pa.Array) -> NDArray[np.float64]:
    return np.asarray(array.to_numpy(zero_copy_only=False), dtype=np.float64)
