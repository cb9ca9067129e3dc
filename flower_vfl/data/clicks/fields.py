"""Kinds of fields of a line, and their conversion to columns of numbers.

A categorical value becomes a key of 32 bits, without loss: these logs hold 8 hexadecimal digits or small whole numbers.
Keys are counted and searched by the million; `key_texts` converts them back to the texts of the file.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from flower_vfl.data.encoding.dates import calendar_days

FieldKind = Literal["number", "hex", "code"]
"""A numeric column, and two kinds of categorical ones."""

_LOW, _HIGH = -(2**31), 2**31 - 1
_NO_DIGIT = 255
_UPPER_HALVES = np.uint64(0xF0F0F0F0F0F0F0F0)
_DIGITS = np.full(256, _NO_DIGIT, np.uint8)
_DIGITS[np.frombuffer(b"0123456789abcdef", np.uint8)] = np.arange(16)
_HEX = np.array([f"{byte:02x}".encode() for byte in range(256)], "S2")


class Read(NamedTuple):
    """The encoded values of a field.

    Attributes
    ----------
    columns : dict of str to pyarrow.Array, each (N,)
        Numbers int32, keys uint32, null where missing.
    wrong : ndarray of bool, (N,)
        True for rows whose value is not valid for the field.
    """

    columns: dict[str, pa.Array]
    wrong: NDArray[np.bool_]


@dataclass(frozen=True)
class Field(ABC):
    """One field of a line.

    Parameters
    ----------
    name : str
        Name of the field in the file's header, or in its documentation.
    """

    name: str
    arrow: ClassVar[pa.DataType] = pa.int64()
    pattern: ClassVar[str]
    needed: ClassVar[str]

    def features(self) -> dict[str, FieldKind]:
        """Return the kind of each feature column of the field, by name."""
        return {}

    @abstractmethod
    def read(self, values: pa.Array) -> Read:
        """Return the columns of (N,) values of type `arrow`, which are null where the field is empty."""


class Number(Field):
    """A whole number, or nothing."""

    pattern = "^-?[0-9]{1,18}$"
    needed = "a whole number of 32 bits, or nothing"

    def features(self) -> dict[str, FieldKind]:
        """Return one numeric column."""
        return {self.name: "number"}

    def read(self, values: pa.Array) -> Read:
        """Return the numbers; those of more than 32 bits are wrong."""
        numbers, absent, wrong = _whole_numbers(values)
        return Read({self.name: pa.array(numbers.astype(np.int32), mask=absent)}, wrong)


class Code(Number):
    """A category that is written as a whole number, or nothing."""

    def features(self) -> dict[str, FieldKind]:
        """Return one column of codes."""
        return {self.name: "code"}

    def read(self, values: pa.Array) -> Read:
        """Return the keys of the codes; codes of more than 32 bits are wrong."""
        numbers, absent, wrong = _whole_numbers(values)
        return Read({self.name: _code_keys(numbers, absent)}, wrong)


class Hex(Field):
    """A category that is written as 8 hexadecimal digits, or nothing."""

    arrow = pa.binary(8)
    pattern = "^[0-9a-f]{8}$"
    needed = "8 hexadecimal digits, or nothing"

    def features(self) -> dict[str, FieldKind]:
        """Return one column of hexadecimal digits."""
        return {self.name: "hex"}

    def read(self, values: pa.Array) -> Read:
        """Return the digits as keys of 32 bits."""
        absent = np.asarray(values.is_null())
        raw = np.frombuffer(values.buffers()[1], np.uint8)[8 * values.offset : 8 * (values.offset + len(values))]
        digits = _DIGITS.take(raw)
        # The eight digits of a value are checked as one number: the upper half of a digit's byte is 0.
        wrong = (digits.view(np.uint64) & _UPPER_HALVES != 0) & ~absent
        keys = ((digits[0::2] << 4) | (digits[1::2] & 15)).view(">u4").astype(np.uint32)
        return Read({self.name: pa.array(keys, mask=absent)}, wrong)


class Hour(Field):
    """A time written as YYMMDDHH, which becomes hour of day, weekday (Monday is 0) and the number of the day."""

    pattern = "^[0-9]{8}$"
    needed = "an hour as YYMMDDHH"

    def features(self) -> dict[str, FieldKind]:
        """Return hour of day and weekday."""
        return {"hour_of_day": "code", "weekday": "code"}

    def read(self, values: pa.Array) -> Read:
        """Return hour of day, weekday and day, which counts from 1970-01-01."""
        numbers, wrong = _filled(values, 70_01_01_00)
        date, hour = np.divmod(numbers, 100)
        found = calendar_days(2000 + date // 10_000 % 100, date // 100 % 100, date % 100)
        wrong |= (numbers < 0) | (numbers > 99_12_31_23) | (hour > 23) | np.isnan(found)
        days = np.where(wrong, 0, found).astype(np.int64)
        absent = np.zeros(len(values), bool)
        columns = {
            "hour_of_day": _code_keys(hour, absent),
            "weekday": _code_keys((days + 3) % 7, absent),
            "day": pa.array(days.astype(np.int32)),
        }
        return Read(columns, wrong)


class Click(Field):
    """The label, 0 or 1."""

    pattern = "^[0-9]{1,18}$"
    needed = "0 or 1"

    def read(self, values: pa.Array) -> Read:
        """Return the labels; values other than 0 and 1 are wrong."""
        labels, wrong = _filled(values, 0)
        wrong |= (labels < 0) | (labels > 1)
        return Read({"label": pa.array(np.where(wrong, 0, labels).astype(np.int8))}, wrong)


class NumberedRow(Field):
    """An ID that is a whole number."""

    pattern = "^[0-9]{1,18}$"
    needed = "an ID that is a whole number"

    def read(self, values: pa.Array) -> Read:
        """Return the IDs; missing ones are wrong."""
        numbers, wrong = _filled(values, 0)
        return Read({"id": pa.array(numbers)}, wrong)


class NamedRow(Field):
    """An ID of up to 24 digits, which may be too many for 64 bits, so that it stays a text."""

    arrow = pa.string()
    pattern = "^[0-9]{1,24}$"
    needed = "an ID of up to 24 digits"

    def read(self, values: pa.Array) -> Read:
        """Return the IDs; missing ones and those that are not up to 24 digits are wrong."""
        fits = pc.fill_null(pc.match_substring_regex(values, self.pattern), False)
        return Read({"id": values.fill_null("")}, ~np.asarray(fits))


def key_texts(kind: FieldKind, keys: NDArray[np.uint32]) -> pa.Array:
    """Return the texts in the file of (N,) keys of a categorical column.

    Examples
    --------
    >>> key_texts("hex", np.array([0x68FD1E64], np.uint32)).to_pylist()
    ['68fd1e64']
    >>> key_texts("code", np.array([2**31 - 1], np.uint32)).to_pylist()
    ['-1']
    """
    if kind != "hex":
        return pa.array(keys.astype(np.int64) + _LOW).cast(pa.string())
    digits = _HEX.take(keys.astype(">u4").view(np.uint8))
    offsets = np.arange(0, 8 * len(keys) + 1, 8, dtype=np.int32)
    return pa.StringArray.from_buffers(len(keys), pa.py_buffer(offsets), pa.py_buffer(digits))


def _filled(values: pa.Array, filler: int) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return numbers and a mask of missing ones."""
    return values.fill_null(filler).to_numpy(zero_copy_only=False), np.asarray(values.is_null()).copy()


def _whole_numbers(values: pa.Array) -> tuple[NDArray[np.int64], NDArray[np.bool_], NDArray[np.bool_]]:
    """Return numbers, a mask of missing ones, and a mask of those with more than 32 bits."""
    numbers, absent = _filled(values, 0)
    wrong = (numbers < _LOW) | (numbers > _HIGH)
    return np.where(wrong, 0, numbers), absent, wrong


def _code_keys(numbers: NDArray[np.int64], absent: NDArray[np.bool_]) -> pa.Array:
    """Return keys in the order of the numbers."""
    return pa.array((np.clip(numbers, _LOW, _HIGH) - _LOW).astype(np.uint32), mask=absent)
