"""Formats of the columns of a party's own file: inferred from training rows, stored with the data, used on new rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from flower_vfl.data.encoding.dates import DateFormat, from_type, parts
from flower_vfl.data.encoding.messages import named_rows, set_options
from flower_vfl.data.encoding.number_texts import NumberStyle
from flower_vfl.data.encoding.values import Place, numbers, parse_numbers, require_columns, texts, whole_array
from flower_vfl.errors import DataError

ColumnKind = Literal["number", "category", "boolean", "date", "ignore"]
COLUMN_KINDS: tuple[str, ...] = get_args(ColumnKind)

ABSENT = ("", "na", "n/a", "#n/a", "<na>", "nan", "null", "none", "?", "-", "--")
"""Texts that stand for a missing value in any column, in any case of letters."""

TRUE = ("true", "yes", "y", "t", "on", "ja", "j", "oui", "si", "sí", "sim", "wahr", "vrai")
FALSE = ("false", "no", "n", "f", "off", "nein", "non", "não", "nao", "falsch", "faux")

EMPTY = "empty in every training row"
"""The reason for which a column is left out, whatever kind the user named."""


@dataclass(frozen=True)
class ColumnFormat:
    """Format in which one column is read.

    Parameters
    ----------
    name : str
        Column of the file.
    kind : {"number", "category", "boolean", "date", "ignore"}
        Kind that the column is read as; "ignore" leaves it out.
    why : str
        The reason, in words.
    style : NumberStyle
        Notation of its numbers.
    date : str
        Format of its dates; "" for a column of dates or timestamps.
    latest : float
        Seconds of the latest training date, from which ages count.
    parts : tuple of str
        Parts of a date that are used.
    """

    name: str
    kind: ColumnKind
    why: str = ""
    style: NumberStyle = field(default_factory=NumberStyle)
    date: str = ""
    latest: float = 0.0
    parts: tuple[str, ...] = ()

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns that it is converted to."""
        if self.kind == "ignore":
            return ()
        return tuple(part_name(self.name, part) for part in self.parts) if self.kind == "date" else (self.name,)

    def read(self, values: pa.Array, place: Place) -> dict[str, pa.Array]:
        """Return the converted columns of rows (N,): numbers as floats or null, categories as texts, "" where missing.

        Parameters
        ----------
        values : pyarrow.Array
            Values as `present` returns them.
        place : Place
            Origin of the values, for messages.

        Raises
        ------
        DataError
            When a value is no number or no date; the message has the first such row.
        """
        if self.kind == "number":
            read, bad = self.style.parse(values) if is_text(values) else parse_numbers(values)
            if self.style.sign == "%" and not is_text(values):  # 0.12, where 12 % is 12: a spreadsheet's percentages
                bad |= ~np.isnan(read) & (read != 0.0)
            self._refuse(values, bad, place, f"a finite number ({self.style.words or 'decimal point'})")
            return {self.name: pa.array(read, from_pandas=True)}
        if self.kind == "date":
            seconds, bad = read_dates(values, self.date)
            self._refuse(values, bad, place, f"a date like {self.date}" if "%Y" in self.date else "a date or time")
            found = parts(seconds, self.latest, dated=is_dated(values, self.date))
            return {part_name(self.name, part): found[part] for part in self.parts}
        read_as = texts(values, place)
        if self.kind == "boolean":
            lower = without_fraction(pc.utf8_lower(read_as))
            words = pc.if_else(pc.is_in(lower, value_set=pa.array([*FALSE, "0"])), "false", lower)
            read_as = pc.if_else(pc.is_in(lower, value_set=pa.array([*TRUE, "1"])), "true", words)
        return {self.name: read_as}

    def _refuse(self, values: pa.Array, bad: NDArray[np.bool_], place: Place, needed: str) -> None:
        if bad.any():
            row = int(bad.argmax())
            given = values[row].as_py()
            # A value with digits is one in another notation, rather than a word for a missing one.
            word = not any(character.isdigit() for character in str(given))
            missing = [("missing_values", [str(given)])] if word else []
            cure = set_options(*missing, (f"dtype.{self.name}", "category"))
            raise DataError(
                f"{place.file}: column {place.column!r}, {named_rows(place.file, [row])} holds {given!r}, {needed} is "
                f"needed; training rows were taken for that ({self.why}). Correct it, or prepare the data again with "
                f"{cure}"
            )


def part_name(column: str, part: str) -> str:
    """Return the name of a part of a column of dates."""
    return f"{column}: {part}"


def is_text(values: pa.Array) -> bool:
    """Return True if a column holds texts."""
    return bool(pa.types.is_string(values.type) or pa.types.is_large_string(values.type))


def is_number_type(kind: pa.DataType) -> bool:
    """Return True for whole numbers, floats and decimals."""
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))


def is_dated(values: pa.Array, text: str) -> bool:
    """Return True if a column has dates, not times of day alone."""
    return not pa.types.is_time(values.type) and DateFormat(text).dated


def read_dates(values: pa.Array, text: str) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Return seconds, NaN where missing, and a mask of values that are no dates."""
    if pa.types.is_temporal(values.type):
        seconds = from_type(values)
        return seconds, np.zeros(len(seconds), bool)
    return DateFormat(text).parse(values.cast(pa.string()))


def present(column: pa.ChunkedArray | pa.Array, missing: Sequence[str], place: Place) -> pa.Array:
    """Return a column with trimmed texts, and with null for texts or numbers that mark a missing value.

    Parameters
    ----------
    column : pyarrow array
        Column as in the file.
    missing : sequence of str
        Texts that mark a missing value, besides `ABSENT`.
    place : Place
        Origin of the column, for messages.
    """
    values = whole_array(column)
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    if is_text(values):
        values = texts(values, place)
        absent = pc.is_in(pc.utf8_lower(values), value_set=pa.array(ABSENT))
        # Programs write -999.0 for -999 as soon as a row of the column is empty.
        marks = without_fraction(pa.array(list(missing), pa.string()))
        absent = pc.or_(absent, pc.is_in(without_fraction(values), value_set=marks))
        return pc.if_else(absent, pa.scalar(None, pa.string()), values)
    named = parse_numbers(pa.array(list(missing), pa.string()))[0]
    if len(named) and is_number_type(values.type):
        absent = np.isin(parse_numbers(values)[0], named[~np.isnan(named)])
        return pc.if_else(pa.array(absent), pa.scalar(None, values.type), values)
    return values


def without_fraction(values: pa.Array) -> pa.Array:
    """Return texts, whole numbers among them without a fraction of one or two zeros."""
    return pc.replace_substring_regex(values, r"^(-?[0-9]+)[.,]00?$", r"\1")


@dataclass(frozen=True)
class TableReader:
    """Reader of a party's own file.

    Parameters
    ----------
    columns : tuple of ColumnFormat
        Reading of each column, including those that are left out.
    missing_values : tuple of str
        Texts that mark a missing value, besides `ABSENT`.
    """

    columns: tuple[ColumnFormat, ...]
    missing_values: tuple[str, ...] = ()

    @property
    def numeric(self) -> list[str]:
        """Names of the numeric columns that it returns."""
        return [name for reading in self.columns for name in reading.columns if _is_number(reading, name)]

    @property
    def categorical(self) -> list[str]:
        """Names of the categorical columns that it returns."""
        return [name for reading in self.columns for name in reading.columns if not _is_number(reading, name)]

    def read(self, table: pa.Table, file: str, needed: pa.Array | None = None) -> pa.Table:
        """Return the converted columns, which the encoding takes.

        Parameters
        ----------
        table : pyarrow.Table
            Columns as in the file; more than needed are allowed.
        file : str
            Origin of the table, for messages.
        needed : pyarrow.Array of bool, optional
            The rows that are read; the others are missing. All by default.

        Raises
        ------
        DataError
            When a column is missing, or a value is not of its column's kind.
        """
        used = [reading for reading in self.columns if reading.kind != "ignore"]
        require_columns(table, [reading.name for reading in used], file)
        found: dict[str, pa.Array] = {}
        for reading in used:
            place = Place(file, reading.name)
            values = present(table.column(reading.name), self.missing_values, place)
            if needed is not None:
                values = pc.if_else(needed, values, pa.scalar(None, values.type))
            found.update(reading.read(values, place))
        return pa.table(found)

    def check(self, table: pa.Table, file: str, needed: pa.Array, missing: Literal["error", "mean"]) -> None:
        """Check the needed rows of a file, so that messages have the row numbers of the file.

        Raises
        ------
        DataError
            As `read`, and when a number is missing and `missing` is "error".
        """
        found = self.read(table, file, needed)
        names = {name: reading.name for reading in self.columns for name in reading.columns}
        for name in self.numeric:
            numbers(found.column(name), Place(file, names[name]), missing, needed)

    def to_json(self) -> dict[str, Any]:
        """Return the reader as JSON values, for `from_json`."""
        return {"missing_values": list(self.missing_values), "columns": [asdict(reading) for reading in self.columns]}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> TableReader:
        """Return the reader from the values that `to_json` returned.

        Raises
        ------
        KeyError, TypeError, ValueError
            When the content is something else.
        """
        return cls(tuple(_readings(content["columns"])), tuple(map(str, content["missing_values"])))


def _readings(columns: Sequence[Mapping[str, Any]]) -> Iterator[ColumnFormat]:
    for item in columns:
        if item["kind"] not in COLUMN_KINDS:
            raise ValueError(dict(item))
        DateFormat(str(item["date"]))
        style = NumberStyle(**{key: str(value) for key, value in item["style"].items()})
        used = tuple(map(str, item["parts"]))
        yield ColumnFormat(**{**item, "style": style, "parts": used, "latest": float(item["latest"])})


def _is_number(reading: ColumnFormat, name: str) -> bool:
    numeric = ("age in days", "day of the month", "minutes")
    return reading.kind == "number" or (
        reading.kind == "date" and any(name == part_name(reading.name, part) for part in numeric)
    )
