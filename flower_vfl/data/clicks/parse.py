"""Parsing of a block of lines into a table of numbers; bad lines are left out and reported."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
from numpy.typing import NDArray

from flower_vfl.data.clicks.blocks import Block
from flower_vfl.data.clicks.fields import Field, FieldKind
from flower_vfl.errors import DataError, suggestion

MOST_BAD_LINES = 5
"""Largest number of bad lines that are reported."""

_ASCII = bytes(range(128)) + b"?" * 128


@dataclass(frozen=True)
class Format:
    """Format of the lines of a file.

    Parameters
    ----------
    names : tuple of str
        All fields in the order of the file.
    delimiter : str
        Separator of the fields.
    fields : tuple of Field
        Fields that are read.
    header : bool
        True if the first line names the fields.
    """

    names: tuple[str, ...]
    delimiter: str
    fields: tuple[Field, ...]
    header: bool

    @cached_property
    def features(self) -> dict[str, FieldKind]:
        """Kind of each feature column of a line, by name, numeric ones first."""
        found = {name: kind for field in self.fields for name, kind in field.features().items()}
        return dict(sorted(found.items(), key=lambda item: item[1] != "number"))


@dataclass(frozen=True)
class Parsed:
    """The parsed content of a block.

    Parameters
    ----------
    table : pyarrow.Table
        The good rows: the fields' columns, and "row", their number in the file, from 1 behind the header.
    lines, bad : int
        Number of lines, and of bad ones among them.
    examples : tuple of str
        Numbers and errors of the first bad lines.
    """

    table: pa.Table
    lines: int
    bad: int
    examples: tuple[str, ...]


def check_header(path: Path, line: str, delimiter: str, fields: Sequence[Field], hint: str) -> Format:
    """Return the format of a file with a header.

    Raises
    ------
    DataError
        When the header lacks a field, or names one twice.
    """
    names = tuple(name.strip() for name in line.split(delimiter))
    for field in fields:
        found = names.count(field.name)
        if found == 0:
            raise DataError(f"{path} has no column {field.name!r}; {suggestion(field.name, names)}. {hint}")
        if found > 1:
            raise DataError(f"{path} has {found} columns named {field.name!r}; names must be unique")
    if len(set(names)) < len(names):
        raise DataError(f"{path} has several columns of the same name; names must be unique")
    return Format(names, delimiter, tuple(fields), header=True)


def parse(block: Block, made: Format) -> Parsed:
    """Return the rows of a block; a wrong line is counted and left out, the header is left out."""
    first, data, lines = block.first, block.data, block.lines
    if made.header and block.number == 0:
        first, data, lines = first + 1, data[data.index(b"\n") + 1 :], lines - 1
    if not data:  # A header, and nothing else.
        return Parsed(pa.table({"row": pa.array([], pa.int64())}), 0, 0, ())
    try:
        table, short = _read(data, made, {field.name: field.arrow for field in made.fields})
        wrong: dict[str, NDArray[np.bool_]] = {}
    except pa.ArrowInvalid:
        table, short = _read(data, made, {field.name: pa.binary() for field in made.fields})
        table, wrong = _convert_valid(table, made)
    numbers = np.delete(np.arange(first, first + lines), [row - 1 for row in short])
    columns = {"row": pa.array(numbers - made.header)}
    for field in made.fields:
        read = field.read(_chunk(table, field.name))
        columns |= read.columns
        wrong[field.name] = read.wrong | wrong.get(field.name, False)
    problems = [(first + row - 1, text) for row, text in short.items()]
    problems += _problems(numbers, wrong, made)
    good = ~np.logical_or.reduce(list(wrong.values()))
    bad = lines - int(good.sum())
    examples = tuple(f"line {line}: {text}" for line, text in sorted(problems)[:MOST_BAD_LINES])
    rows = pa.table(columns)
    return Parsed(rows if good.all() else rows.filter(pa.array(good)), lines, bad, examples)


def _read(data: bytes, made: Format, types: dict[str, pa.DataType]) -> tuple[pa.Table, dict[int, str]]:
    """Return the lines with the right number of fields, and the numbers (from 1) of the others with their errors."""
    short: dict[int, str] = {}

    def note(row: pa_csv.InvalidRow) -> str:
        short[row.number] = f"{row.actual_columns} fields, {row.expected_columns} are needed"
        return "skip"

    # Arrow fails to report a wrong line that is not UTF-8; the fields of a good line hold ASCII only.
    plain = data if data.isascii() else data.translate(_ASCII)
    table = pa_csv.read_csv(
        pa.BufferReader(plain),
        # One piece and one thread: only then has a skipped line a number.
        read_options=pa_csv.ReadOptions(use_threads=False, column_names=made.names, block_size=len(data) + 1),
        parse_options=pa_csv.ParseOptions(
            delimiter=made.delimiter, quote_char=False, ignore_empty_lines=False, invalid_row_handler=note
        ),
        convert_options=pa_csv.ConvertOptions(
            column_types=types,
            include_columns=list(types),
            null_values=[""],
            strings_can_be_null=True,
            check_utf8=False,
        ),
    )
    return table, short


def _convert_valid(table: pa.Table, made: Format) -> tuple[pa.Table, dict[str, NDArray[np.bool_]]]:
    """Convert the texts of a block with wrong values, and return masks of these values by field."""
    columns, wrong = {}, {}
    for field in made.fields:
        values = _chunk(table, field.name)
        fits = pc.match_substring_regex(values, field.pattern)
        wrong[field.name] = ~np.asarray(pc.fill_null(fits, True))
        # A value that does not match becomes missing.
        kept = pc.if_else(fits, values, pa.scalar(None, values.type))
        columns[field.name] = kept.cast(field.arrow if field.arrow == pa.binary(8) else pa.string()).cast(field.arrow)
    return pa.table(columns), wrong


def _problems(numbers: NDArray[np.int64], wrong: dict[str, NDArray[np.bool_]], made: Format) -> list[tuple[int, str]]:
    """Return the numbers and errors of the first wrong lines, without their content, which may be private."""
    found = []
    for field in made.fields:
        for row in np.flatnonzero(wrong[field.name])[:MOST_BAD_LINES]:
            found.append((int(numbers[row]), f"{field.name} is not {field.needed}"))
    return found


def _chunk(table: pa.Table, name: str) -> pa.Array:
    column = table.column(name)
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks or [pa.array([], column.type)])
