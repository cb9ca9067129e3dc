"""Kinds of the columns of a party's own file, inferred from its training rows alone, with the reason."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from flower_vfl.data.encoding.dates import FORMATS, parts
from flower_vfl.data.encoding.messages import named_rows, option_line, set_options
from flower_vfl.data.encoding.number_texts import NumberStyle, decimal_of, grouped_by_points, mixed_notations, styles
from flower_vfl.data.encoding.reading import (
    EMPTY,
    FALSE,
    TRUE,
    ColumnFormat,
    ColumnKind,
    TableReader,
    is_dated,
    is_number_type,
    is_text,
    present,
    read_dates,
)
from flower_vfl.data.encoding.values import Place
from flower_vfl.errors import DataError

_log = logging.getLogger(__name__)

_SHOWN = 60
"""Number of characters of a value that a message shows."""
_ALMOST_ALL = 0.95
"""Share of rows that read as numbers or dates, from which a column is refused for its other rows."""
_MOSTLY = 0.5
"""Share of rows that read as numbers, from which a column that is read otherwise gives the reason."""
_LEAST_ROWS = 20
"""Number of rows below which no column counts as free text or almost unique."""
_UNIQUE_SHARE = 0.9
"""Share of rows with a value that no other row has, from which a column is uninformative for new rows."""
_FREE_TEXT_WORDS = 4.0
"""Mean number of words of a value from which texts are free text."""
_PANDAS_INDEX = re.compile(r"__index_level_[0-9]+__|Unnamed: 0(\.[0-9]+)*")
_LAST_SHORT_YEAR = datetime(2030, 12, 31, tzinfo=UTC).timestamp()
"""Latest date of which the century of a two-digit year is hardly in doubt."""
_CODE_NAMES = frozenset({"id", "key", "code", "zip", "zipcode", "postcode", "postal", "plz"})
"""Last words of names of columns whose whole numbers are codes: their order and distance mean nothing."""


@dataclass(frozen=True)
class Rules:
    """Column kinds and settings that the user gives.

    Parameters
    ----------
    dtype : Mapping
        Kind by column: "number", "category", "boolean", "date", "date:FORMAT" or "ignore".
    decimal : {"auto", ".", ","}
        Decimal mark.
    missing_values : tuple of str
        Texts that mark a missing value, besides the usual ones.
    """

    dtype: Mapping[str, str] = field(default_factory=dict)
    decimal: str = "auto"
    missing_values: tuple[str, ...] = ()


def infer(table: pa.Table, rules: Rules, file: str, rows: NDArray[np.int64]) -> TableReader:
    """Return the reader of a table, with the inferred format of each column.

    Parameters
    ----------
    table : pyarrow.Table
        Training rows, and no others; every column a feature.
    rules : Rules
        Kinds and settings from the user.
    file : str
        Origin of the rows, for messages.
    rows : (N,)
        Number in the file, from 0, of each row of the table.

    Raises
    ------
    DataError
        When a column is almost numbers or dates (the message has the first other value and its row), when no row
        distinguishes the day of its dates from the month, or when its type cannot be used.
    """
    columns = {
        name: present(table.column(name), rules.missing_values, Place(file, name)) for name in table.column_names
    }
    decimal = rules.decimal if rules.decimal != "auto" else _decimal(columns, rules)
    found = [
        _Column(name, values, file, rows).reading(rules.dtype.get(name, ""), decimal)
        for name, values in columns.items()
    ]
    return TableReader(tuple(found), rules.missing_values)


def _decimal(columns: Mapping[str, pa.Array], rules: Rules) -> str:
    """Return the decimal mark of a file if all columns that determine it agree; else ""."""
    marks = set()
    for name, values in columns.items():
        if is_text(values) and rules.dtype.get(name, "number") == "number":
            found = pc.unique(values.drop_null())
            marks.add(decimal_of(found) if len(found) else "")
    marks.discard("")
    return marks.pop() if len(marks) == 1 else ""


class _Column:
    """The training values of one column, null where missing."""

    def __init__(self, name: str, values: pa.Array, file: str, rows: NDArray[np.int64]) -> None:
        self.name, self.values, self.file = name, values, file
        self.rows = rows[np.asarray(values.is_valid())]
        self.known = values.drop_null()
        self.different = pc.unique(self.known) if not pa.types.is_nested(values.type) else self.known
        self._almost = ""
        """Why the column is none of numbers or dates although most of its values are; empty otherwise."""

    def reading(self, dtype: str, decimal: str) -> ColumnFormat:
        """Return the format of the column, from the user's kind or inferred from its values."""
        kind, _, format_ = dtype.partition(":")
        if not kind and _PANDAS_INDEX.fullmatch(self.name):
            return ColumnFormat(self.name, "ignore", "row numbers that pandas wrote: the index of its table")
        if not kind:
            return self._constant() or self._typed() or self._of_texts(decimal)
        why = "named in dtype, numeric, categorical or ignore"
        if not len(self.known):
            return ColumnFormat(self.name, "ignore", EMPTY)
        if kind == "number":
            chosen = self._number(decimal, why) if is_text(self.values) else None
            return chosen or ColumnFormat(self.name, "number", why)
        if kind == "date":
            given = format_ or not is_text(self.values)
            return self._dates(format_, why) if given else self._date(why, named=True) or self._category()
        kinds: dict[str, ColumnKind] = {"boolean": "boolean", "ignore": "ignore"}
        return ColumnFormat(self.name, kinds.get(kind, "category"), why)

    def _constant(self) -> ColumnFormat | None:
        if not len(self.known):
            return ColumnFormat(self.name, "ignore", EMPTY)
        if len(self.different) == 1 and not self.values.null_count:
            return ColumnFormat(self.name, "ignore", "the same value in every training row")
        return None

    def _typed(self) -> ColumnFormat | None:
        """Return the format of a column from its type; None for texts."""
        kind = self.values.type
        if is_number_type(kind):
            found = self._eight_digits() or self._codes_by_name()
            return found or ColumnFormat(self.name, "number", f"of type {kind}")
        if pa.types.is_boolean(kind):
            return ColumnFormat(self.name, "boolean", f"of type {kind}")
        if pa.types.is_date(kind) or pa.types.is_timestamp(kind):
            return self._dates("", f"of type {kind}")
        if pa.types.is_time(kind):
            return self._dates("%H:%M", f"of type {kind}")
        if not is_text(self.values):
            raise DataError(
                f"{self.file}: column {self.name!r} is of type {kind}; make it numbers or texts, or list it in ignore"
            )
        return None

    def _of_texts(self, decimal: str) -> ColumnFormat:
        found = (
            self._codes()
            or self._eight_digits()
            or self._codes_by_name()
            or self._number(decimal, "")
            or self._date("", named=False)
            or self._boolean()
        )
        return found or self._category(decimal=decimal)

    def _codes(self) -> ColumnFormat | None:
        """Return a category if all values are digits of one length, some with a leading zero; else None."""
        lengths = pc.unique(pc.utf8_length(self.different))
        digits = pc.all(pc.match_substring_regex(self.different, "^[0-9]+$")).as_py()
        led = pc.any(pc.starts_with(self.different, "0")).as_py()
        if len(lengths) == 1 and lengths[0].as_py() > 1 and digits and led:
            return self._category("digits with leading zeros: codes")
        return None

    def _codes_by_name(self) -> ColumnFormat | None:
        """Return a category if the name ends in a word for codes and all values are whole numbers; else None."""
        words = re.findall(r"[A-Z]?[a-z]+|[A-Z]+", self.name)
        if not words or words[-1].lower() not in _CODE_NAMES:
            return None
        if is_text(self.values):
            whole = pc.match_substring_regex(self.different, r"^-?[0-9]+(\.0+)?$")
        elif pa.types.is_integer(self.values.type):
            whole = pa.array([True])
        else:
            whole = pc.and_(pc.is_finite(self.different), pc.equal(self.different, pc.floor(self.different)))
        return self._category(f"whole numbers, named {words[-1]}: codes") if pc.all(whole).as_py() else None

    def _eight_digits(self) -> ColumnFormat | None:
        """Return the format of dates if all values are eight digits that are dates; else None."""
        if len(self.different) < 2 or not (is_text(self.values) or is_number_type(self.values.type)):
            return None
        if read_dates(self.different, "%Y%m%d")[1].any():
            return None
        return self._dates("%Y%m%d", "eight digits that are dates, all of them")

    def _number(self, decimal: str, why: str) -> ColumnFormat | None:
        style, bad = styles(self.different, decimal)[0] if len(self.different) else (NumberStyle(), 0)
        if bad and not why:
            others = style.parse(self.known)[1]
            self._refuse_almost(others, f"numbers{f' ({style.words})' if style.words else ''}")
            if others.mean() <= 1.0 - _MOSTLY:
                other = self.known[int(others.argmax())].as_py()
                self._almost = (
                    f"{1.0 - others.mean():.0%} of its values are numbers, others such as {other!r} are not; if these "
                    f"stand for a missing value, name them: {option_line('missing_values', [other])}"
                )
            return None
        if style.plain and (grouped := grouped_by_points(self.different)):
            _log.warning(
                "%s: column %r: %r is read as a decimal number. Every fraction has three digits, and others such as %r "
                "have none; if points separate thousands, set %s (of one party's file: decimal.PARTY)",
                *(self.file, self.name, *grouped, set_options(("decimal", ","))),
            )
        described = style.words or "reads as numbers"
        return ColumnFormat(
            self.name, "number", f"{why}; {described}" if why and style.words else why or described, style
        )

    def _refuse_almost(self, bad: np.ndarray, what: str) -> None:
        number = int(bad.sum())
        if 1.0 - number / len(bad) >= _ALMOST_ALL:
            first = min(np.flatnonzero(bad), key=lambda place: int(self.rows[place]))
            given = self.known[int(first)].as_py()
            same = len(given) <= _SHOWN and len(pc.unique(self.known.filter(pa.array(bad)))) == 1
            missing = [("missing_values", [given])] if same else []
            cure = set_options(*missing, (f"dtype.{self.name}", "category"))
            shown = given if len(given) <= _SHOWN else f"{given[:_SHOWN]}..."
            raise DataError(
                f"{self.file}: column {self.name!r} is {what} but for {number} of {len(bad)} training rows, the first "
                f"in {named_rows(self.file, [int(self.rows[first])])}, {shown!r}; correct them, or set {cure}"
            )

    def _date(self, why: str, *, named: bool) -> ColumnFormat | None:
        counted = [(int(read_dates(self.different, text)[1].sum()), text) for text in FORMATS]
        least = min(number for number, _ in counted)
        fitting = [text for number, text in counted if number == least]
        if least:
            if least < len(self.different):
                _, bad = read_dates(self.known, fitting[0])
                self._refuse_almost(bad, f"dates ({fitting[0]})")
            if named:
                bad = read_dates(self.known, fitting[0])[1]
                cure = set_options((f"dtype.{self.name}", "date:%d.%m.%Y"))
                raise DataError(
                    f"{self.file}: column {self.name!r} holds {self.known[int(bad.argmax())].as_py()!r}, which reads "
                    f"as none of the dates that are known; give their format, as in {cure}"
                )
            if least < len(self.different):
                self._almost = self._almost or self._several_formats(fitting[0])
            return None
        text = fitting[0] if len(fitting) == 1 else self._constant_day(fitting)
        if "%y" in text:
            self._warn_of_short_years(text)
        return self._dates(text, "; ".join(filter(None, [why, f"dates, {text}" if "%Y" in text else text])))

    def _several_formats(self, best: str) -> str:
        """Return why dates in several formats are not read as dates; empty if the texts are none."""
        unread = [read_dates(self.different, text)[1] for text in FORMATS]
        if np.logical_and.reduce(unread).mean() > 1.0 - _ALMOST_ALL:
            return ""
        bad = read_dates(self.different, best)[1]
        first, other = (self.different[int(place)].as_py() for place in (bad.argmin(), bad.argmax()))
        return f"dates in several formats, such as {first!r} and {other!r}: write them in one"

    def _warn_of_short_years(self, text: str) -> None:
        latest = float(np.nanmax(read_dates(self.different, text)[0]))
        if latest > _LAST_SHORT_YEAR:
            _log.warning(
                "%s: column %r has two-digit years: 69 to 99 are read as 1969 to 1999, others as 2000 and later, up to "
                "%d here; if that is wrong, write years with four digits",
                *(self.file, self.name, datetime.fromtimestamp(latest, UTC).year),
            )

    def _constant_day(self, fitting: list[str]) -> str:
        """Return the only format in which all dates have the same day of the month; refuse several formats or none."""
        firsts = [text for text in fitting if len(np.unique(self._days_of(text))) == 1]
        if len(firsts) == 1:
            return firsts[0]
        either = set_options(*((f"dtype.{self.name}", f"date:{text}") for text in fitting))
        raise DataError(
            f"{self.file}: column {self.name!r} has dates like {self.known[0].as_py()!r}, and no training row tells "
            f"the day from the month; set {either}"
        )

    def _days_of(self, text: str) -> np.ndarray:
        seconds = read_dates(self.different, text)[0]
        return np.asarray(parts(seconds, 0.0, dated=True)["day of the month"])

    def _dates(self, text: str, why: str) -> ColumnFormat:
        seconds, _ = read_dates(self.values, text)
        latest = float(np.nanmax(seconds)) if (~np.isnan(seconds)).any() else 0.0
        found = parts(seconds, latest, dated=is_dated(self.values, text))
        used = tuple(name for name, part in found.items() if len(pc.unique(part)) > 1)
        return ColumnFormat(self.name, "date", why or "dates", date=text, latest=latest, parts=used)

    def _boolean(self) -> ColumnFormat | None:
        words = set(pc.utf8_lower(self.different).to_pylist())
        if words <= {*TRUE, *FALSE, "0", "1"} and words & set(TRUE) and words & set(FALSE):
            return ColumnFormat(self.name, "boolean", "yes and no in words")
        return None

    def _category(self, why: str = "", decimal: str = "") -> ColumnFormat:
        rows, counts = len(self.known), pc.value_counts(self.known).field(1)
        alone = pc.sum(pc.equal(counts, 1)).as_py() / rows
        texts = is_text(self.values)
        words = pc.mean(pc.add(pc.count_substring_regex(self.different, r"\s+"), 1)).as_py() if texts else 1
        mixed = "" if why else mixed_notations(self.name, self.different, decimal) or self._almost
        if rows >= _LEAST_ROWS and words >= _FREE_TEXT_WORDS and 2 * len(self.different) > rows:
            return ColumnFormat(self.name, "ignore", mixed or f"free text, {words:.0f} words on average")
        if rows >= _LEAST_ROWS and alone >= _UNIQUE_SHARE:
            once = f"{alone:.0%} of its values occur in one training row only"
            return ColumnFormat(self.name, "ignore", mixed or once)
        if mixed:
            _log.warning("%s: column %r is read as a category: %s", self.file, self.name, mixed)
        return ColumnFormat(self.name, "category", why or mixed or "texts")
