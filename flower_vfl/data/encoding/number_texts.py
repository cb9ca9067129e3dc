"""Numbers as texts: decimal commas, thousands in groups, currencies, percent, units, negatives as in accounting."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from flower_vfl.data.encoding.messages import option_line
from flower_vfl.data.encoding.values import parse_numbers

SIGNS = ("%", "€", "$", "£", "¥", "₹", "EUR", "USD", "GBP", "CHF", "JPY", "INR")
"""Signs that may stand before or behind a number."""
_CURRENCIES = SIGNS[1:]

_NAMED = {",": "decimal comma", ".": "decimal point"}
_GROUPS = {",": "commas", ".": "points", " ": "spaces", "'": "apostrophes"}
_SIGN = "|".join(re.escape(sign) for sign in SIGNS)
_SPACES = r"\s*+"  # possessive, as all quantifiers beside it: a text of spaces would take hours otherwise
_AFFIXED = re.compile(
    rf"^[-+(]?{_SPACES}({_SIGN})?{_SPACES}[-+]?{_SPACES}(?:[.,' ]*+[0-9])++[.,' ]*+{_SPACES}({_SIGN})?{_SPACES}\)?"
    rf"{_SPACES}-?$"
)
_UNIT = re.compile(r"^[-+(]?\s*+(?!0[0-9])(?:[.,' ]*+[0-9])++[.,]?(\s*)((?:[^\W\d_]|[°µ/²³·]){1,12})\s*\)?$")
_ZERO = re.compile(r"^[-+]?0+([.,]0*)?$")
_SAMPLE = 2000
_LETTERS = frozenset("kKmMghsl")
_MOST_UNITS, _MANY_VALUES = 3, 20
"""From how many values on 2 to 3 units look like a number with units, and not like names of categories."""
_ALMOST_ALL = 0.95
"""Share of texts that are numbers from which a column looks like numbers."""


@dataclass(frozen=True)
class NumberStyle:
    """Notation of the numbers of a column.

    Parameters
    ----------
    decimal : {".", ","}
        Mark before the fraction.
    thousands : {"", ",", ".", " ", "'"}
        Mark between groups of three digits; "" where there are no groups.
    sign : str
        One of `SIGNS` before or behind each number except zeros, or a unit behind it, such as kg; "" for none.
        Currencies may be missing; "%" and units may not.
    """

    decimal: str = "."
    thousands: str = ""
    sign: str = ""

    @property
    def plain(self) -> bool:
        """True for a decimal point without groups and signs, which needs no conversion."""
        return self == NumberStyle()

    @property
    def words(self) -> str:
        """The style in words; "" for a plain one."""
        parts = [] if self.decimal == "." and not self.thousands else [_NAMED[self.decimal]]
        parts += [f"thousands in {_GROUPS[self.thousands]}"] if self.thousands else []
        return ", ".join([*parts, *([f"with {self.sign}"] if self.sign else [])])

    def parse(self, values: pa.Array) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """Return trimmed texts as numbers, NaN for null, and a mask of texts that are neither finite numbers nor null.

        Examples
        --------
        >>> NumberStyle(",", ".", "€").parse(pa.array(["1.234,50 €", "(7 €)", "0", "x"]))[0].tolist()
        [1234.5, -7.0, 0.0, nan]
        """
        if self.plain:
            return parse_numbers(values)
        absent = values.is_null().to_numpy(zero_copy_only=False)
        whole = number = normal(values)
        if self.sign:
            sign = re.escape(self.sign)
            number = pc.replace_substring_regex(number, rf"^([-+]?)\s*{sign}\s*([-+]?)", r"\1\2")
            number = pc.replace_substring_regex(number, rf"\s*{sign}$", "")
        readable = pc.match_substring_regex(number, self._pattern)
        number = pc.if_else(readable, number, pa.scalar(None, pa.string()))
        if self.thousands:
            number = pc.replace_substring(number, self.thousands, "")
        found = pc.replace_substring(number, self.decimal, ".").cast(pa.float64())
        read = np.asarray(found.to_numpy(zero_copy_only=False), np.float64)
        bad = ~np.isfinite(read) & ~absent
        if self.sign and self.sign not in _CURRENCIES:  # 12 % and 0.12, or 3k and 800, are in different units
            unsigned = pc.equal(pc.find_substring(whole, self.sign), -1).fill_null(False)
            bad |= unsigned.to_numpy(zero_copy_only=False) & (read != 0.0)
        return read, bad

    @property
    def _pattern(self) -> str:
        point = re.escape(self.decimal)
        if not self.thousands:
            return rf"^[-+]?([0-9]+({point}[0-9]*)?|{point}[0-9]+)([eE][-+]?[0-9]+)?$"
        group = re.escape(self.thousands)
        return rf"^[-+]?([1-9][0-9]{{0,2}}({group}[0-9]{{3}})+|[0-9]+)({point}[0-9]*)?$"


def normal(values: pa.Array) -> pa.Array:
    """Return texts with one kind of minus, space and apostrophe, the minus in front of its number.

    Examples
    --------
    >>> normal(pa.array(["(1.5)", "2-", "\u22123", "1\u00a0000"])).to_pylist()
    ['-1.5', '-2', '-3', '1 000']
    """
    values = pc.replace_substring_regex(values, "[\u2212\u2013]", "-")
    values = pc.replace_substring_regex(values, "[\u00a0\u202f\u2009]", " ")
    values = pc.replace_substring(values, "\u2019", "'")
    values = pc.replace_substring_regex(values, r"^\((.*[0-9].*)\)$", r"-\1")
    return pc.replace_substring_regex(values, r"^([^-+]*[0-9].*)-$", r"-\1")


def signs(values: pa.Array) -> set[str]:
    """Return the signs beside the numbers in texts (N,), or their common unit; only `_SAMPLE` texts are read."""
    found: set[str] = set()
    for value in normal(values.slice(0, _SAMPLE)).to_pylist():
        match = _AFFIXED.match(value or "")
        if match:
            found.update(filter(None, match.groups()))
    return found or (set(shared) if len(shared := units(values)) == 1 else set())


def _is_unit(space: str, letters: str) -> bool:
    """Return False for a single letter directly behind a number, as of seats, unless it is a usual unit."""
    return bool(space) or len(letters) > 1 or letters in _LETTERS


def units(values: pa.Array) -> list[str]:
    """Return the units of texts (N,) that are nearly all numbers with a unit of letters, sorted; else an empty list.

    Examples
    --------
    >>> units(pa.array(["71 kg", "80.5 kg"])), units(pa.array(["2 kg", "900 g"])), units(pa.array(["A1", "B2"]))
    (['kg'], ['g', 'kg'], [])
    """
    texts = [value for value in normal(values.slice(0, _SAMPLE)).to_pylist() if value and not _ZERO.match(value)]
    known = [match.group(2) for match in map(_UNIT.match, texts) if match and _is_unit(*match.groups())]
    return sorted(set(known)) if known and len(known) >= _ALMOST_ALL * len(texts) else []


def styles(values: pa.Array, decimal: str = "") -> list[tuple[NumberStyle, int]]:
    """Return styles with the number of texts that each cannot read, the best first.

    Of two that read all, a decimal point comes before a decimal comma: 1,234 is 1234 unless other values decide.

    Parameters
    ----------
    values : pyarrow.Array of texts, (N,)
        Different values of a column, without missing ones.
    decimal : {"", ".", ","}
        Decimal mark; "" where it is not known.
    """
    found = signs(values)
    if len(found) > 1:
        return [(NumberStyle(), int(parse_numbers(values)[1].sum()))]
    known = _known([decimal] if decimal else [".", ","], next(iter(found), ""))
    counted = [(style, int(style.parse(values)[1].sum())) for style in known]
    return sorted(counted, key=lambda pair: pair[1])


def _known(marks: Sequence[str], sign: str) -> list[NumberStyle]:
    groups = ["", ",", ".", " ", "'"]
    return [NumberStyle(mark, group, sign) for mark, group in product(marks, groups) if group != mark]


def mixed_notations(name: str, values: pa.Array, decimal: str = "") -> str:
    """Return why texts that are numbers in several notations are not read as numbers; "" if they are not.

    Parameters
    ----------
    name : str
        Name of the column.
    values : pyarrow.Array of texts, (N,)
        Different values of a column that no style reads; only the first `_SAMPLE` are read.
    decimal : {"", ".", ","}
        Decimal mark; "" where it is not known.

    Examples
    --------
    >>> print(mixed_notations("x", pa.array(["12.5", "7.25"]), ","))
    numbers such as '12.5', which decimal = "," does not read: leave it out
    >>> mixed_notations("x", pa.array(["blue", "red"]))
    ''
    """
    values = values.slice(0, _SAMPLE)
    if len(values) > _MANY_VALUES and 1 < len(several := units(values)) <= _MOST_UNITS:
        return (
            f"numbers with different units: {', '.join(several)}, such as {values[0].as_py()!r}: write them in one, or "
            f"{option_line(f'dtype.{name}', 'category')} keeps them as categories"
        )
    found = sorted(signs(values))
    read = [~style.parse(values)[1] for sign in ["", *found] for style in _known([".", ","], sign)]
    numbers = np.logical_or.reduce(read)
    if not len(values) or numbers.mean() < _ALMOST_ALL:
        return ""
    style = styles(values, decimal)[0][0]
    bad = style.parse(values)[1]
    if not (bad & numbers).any():
        return ""
    other = values[int((bad & numbers).argmax())].as_py()
    if decimal and not styles(values)[0][1]:
        return f"numbers such as {other!r}, which {option_line('decimal', decimal)} does not read: leave it out"
    kept = f"write them in one, or {option_line(f'dtype.{name}', 'category')} keeps them as categories"
    if len(found) > 1:
        return f"numbers with different signs: {', '.join(found)}, such as {other!r}: {kept}"
    first = values[int(bad.argmin())].as_py()
    return f"numbers in different notations, such as {first!r} and {other!r}: {kept}"


def grouped_by_points(values: pa.Array) -> tuple[str, str] | None:
    """Return a number with a point and one without if the points may separate thousands; None if they do not.

    Parameters
    ----------
    values : pyarrow.Array of texts, (N,)
        Different values of a column that reads as numbers with a decimal point.

    Examples
    --------
    >>> grouped_by_points(pa.array(["1.993", "86", "12.004"])), grouped_by_points(pa.array(["1.993", "86", "0.5"]))
    (('1.993', '86'), None)
    """
    pointed = values.filter(pc.match_substring(values, "."))
    whole = values.filter(pc.match_substring_regex(values, "^[-+]?[0-9]{1,3}$"))
    if not len(whole) or not len(pointed):
        return None
    grouped = pc.all(pc.match_substring_regex(pointed, r"^[-+]?[1-9][0-9]{0,2}(\.[0-9]{3})+$")).as_py()
    return (pointed[0].as_py(), whole[0].as_py()) if grouped else None


def decimal_of(values: pa.Array) -> str:
    """Return the decimal mark, "," or ".", if only one of them reads all texts; else "".

    Examples
    --------
    >>> [decimal_of(pa.array([text])) for text in ("12,5", "12.5", "1.234", "1,234", "7")]
    [',', '.', '', '', '']
    """
    marks = {style.decimal for style, bad in styles(values) if not bad}
    return marks.pop() if len(marks) == 1 else ""
