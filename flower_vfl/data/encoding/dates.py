"""Dates and times of day in the formats of files, and their parts as features."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from flower_vfl.errors import ConfigError

DAY = 86_400.0

FORMATS = (
    "%Y-%m-%d",
    "%Y/%m/%d",
    "%d.%m.%Y",
    "%d/%m/%Y",
    "%m/%d/%Y",
    "%d-%m-%Y",
    "%m-%d-%Y",
    "%Y-%m",
    "%d.%m.%y",
    "%d/%m/%y",
    "%m/%d/%y",
    "%d %b %Y",
    "%d-%b-%Y",
    "%b %d, %Y",
    "%Y%m%d",
    "%H:%M",
)
"""Formats that are tried; behind a date there may be a time of day, behind that an offset from UTC."""

_FIELDS = {
    "Y": "(?P<Y>[0-9]{4})",
    "y": "(?P<y>[0-9]{2})",
    "m": "(?P<m>[0-9]{1,2})",
    "d": "(?P<d>[0-9]{1,2})",
    "b": "(?P<b>[A-Za-z]{3,9})[.]?",
    "H": "(?P<H>[0-9]{1,2})",
    "M": "(?P<M>[0-9]{2})",
    "S": "(?P<S>[0-9]{2})(?:[.,][0-9]+)?",
}
_CLOCK = "(?P<H>[0-9]{1,2}):(?P<M>[0-9]{2})(?::(?P<S>[0-9]{2})(?:[.,][0-9]+)?)?(?: ?(?P<p>[AaPp])[.]?[Mm][.]?)?"
_OPTIONAL_TIME = f"(?:(?:T|,? +){_CLOCK}(?: ?(?:Z|UTC|[-+][0-9]{{2}}(?::?[0-9]{{2}})?))?)?"
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")


@dataclass(frozen=True)
class DateFormat:
    """A format of dates or of times of day.

    Parameters
    ----------
    text : str
        Directives of `strftime`: %Y %y %m %b %d %H %M %S; "%H:%M" takes seconds too; "" for columns of dates or
        timestamps, which are "%Y-%m-%d" where other rows have them as texts.
    """

    text: str

    def __post_init__(self) -> None:
        known = set(re.findall("%(.)", self.text))
        dated = known & {"Y", "y"} and known & {"m", "b"}
        if self.text and (known - set(_FIELDS) or not (dated or "H" in known)):
            raise ConfigError(
                f"{self.text!r} is no format of dates: %Y or %y, with %m or %b, %d, %H, %M and %S, as in "
                "'%d.%m.%Y'; '%H:%M' for times of day"
            )

    @property
    def dated(self) -> bool:
        """True if it has a date, not a time of day alone."""
        return not self.text or "%Y" in self.text or "%y" in self.text

    def parse(self, values: pa.Array) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """Return texts as seconds, NaN for null, and a mask of texts that are neither such a date nor null.

        Seconds count from 1970 in the local time of the text, without its offset, or from midnight without a date.

        Examples
        --------
        >>> DateFormat("%d.%m.%Y").parse(pa.array(["02.01.1970", "1.1.1970 00:01", "31.02.2000"]))[0].tolist()
        [86400.0, 60.0, nan]
        """
        absent = values.is_null().to_numpy(zero_copy_only=False)
        fields = pc.extract_regex(values, f"^{self._pattern}$")
        names = {field.name for field in fields.type}

        def field(name: str, otherwise: float) -> NDArray[np.float64]:
            if name not in names:
                return np.full(len(values), otherwise)
            texts = pc.struct_field(fields, name)
            filled = pc.if_else(pc.equal(texts, ""), pa.scalar(None, pa.string()), texts).cast(pa.float64())
            found = np.asarray(filled.to_numpy(zero_copy_only=False), np.float64)
            return np.where(np.isnan(found), otherwise, found)

        month = _months(pc.struct_field(fields, "b")) if "b" in names else field("m", 1.0)
        year = field("Y", 1970.0)
        if "y" in names:
            short = field("y", 0.0)
            year = short + np.where(short < 69, 2000.0, 1900.0)
        hour, minute, second = field("H", 0.0), field("M", 0.0), field("S", 0.0)
        if "p" in names:
            half = np.asarray(pc.utf8_lower(pc.struct_field(fields, "p")).fill_null("").to_numpy(zero_copy_only=False))
            hour = np.where(half == "p", hour % 12 + 12, np.where(half == "a", hour % 12, hour))
        seconds = calendar_days(year, month, field("d", 1.0)) * DAY + hour * 3600 + minute * 60 + second
        matched = fields.is_valid().to_numpy(zero_copy_only=False)
        seconds[~matched | (hour > 23) | (minute > 59) | (second > 60)] = np.nan
        return seconds, np.isnan(seconds) & ~absent

    @property
    def _pattern(self) -> str:
        if self.text == "%H:%M":
            return _CLOCK
        if not self.text:
            return f"(?:{DateFormat('%Y-%m-%d')._pattern})"
        pieces = re.split("(%.)", self.text)
        pattern = "".join(
            _FIELDS[piece[1]] if piece.startswith("%") else re.escape(piece).replace(r"\ ", " ") for piece in pieces
        )
        if self.text == "%Y%m%d":
            pattern = "(?P<Y>19[0-9]{2}|20[0-9]{2})(?P<m>[0-9]{2})(?P<d>[0-9]{2})(?:[.]0+)?"
        return pattern if "%H" in self.text else pattern + _OPTIONAL_TIME


def _months(names: pa.Array) -> NDArray[np.float64]:
    short = pc.utf8_slice_codeunits(pc.utf8_lower(names), 0, 3)
    found = pc.add(pc.index_in(short, value_set=pa.array(_MONTHS)), 1).cast(pa.float64())
    return np.asarray(found.to_numpy(zero_copy_only=False), np.float64)


def calendar_days(year: NDArray[Any], month: NDArray[Any], day: NDArray[Any]) -> NDArray[np.float64]:
    """Return days since 1970, NaN for invalid dates."""
    possible = (month >= 1) & (month <= 12) & (year >= 1) & (day >= 1)
    months = np.where(possible, (year - 1970) * 12 + month - 1, 0).astype(np.int64)
    first = months.astype("datetime64[M]")
    length = ((first + 1).astype("datetime64[D]") - first.astype("datetime64[D]")).astype(np.int64)
    days = first.astype("datetime64[D]").astype(np.float64) + day - 1
    return np.where(possible & (day <= length), days, np.nan)


def from_type(column: pa.Array) -> NDArray[np.float64]:
    """Return a column of dates, timestamps or times as seconds in local time, NaN where it is null."""
    if pa.types.is_time(column.type):
        ticks = column.cast(pa.time64("us")).cast(pa.int64())
    else:
        if getattr(column.type, "tz", None):
            column = pc.local_timestamp(column)  # as in a text, which has the local time before its offset
        ticks = column.cast(pa.timestamp("us"), safe=False).cast(pa.int64())
    return np.asarray(ticks.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False), np.float64) / 1e6


def parts(seconds: NDArray[np.float64], latest: float, *, dated: bool) -> dict[str, pa.Array]:
    """Return the features of dates or times: numbers as floats, categories as texts.

    Parameters
    ----------
    seconds : ndarray, (N,)
        Seconds as `DateFormat.parse` returns them; NaN for missing.
    latest : float
        Seconds from which ages count.
    dated : bool
        True if there is a date, not only a time of day.
    """
    known = ~np.isnan(seconds)
    whole = np.where(known, seconds, 0.0).astype(np.int64)
    hours = _category(whole // 3600 % 24, known)
    if not dated:
        minutes = np.where(known, whole // 60 % 1440, np.nan).astype(np.float64)
        return {"minutes": pa.array(minutes, from_pandas=True), "hour": hours}
    days = whole // int(DAY)
    months = days.astype("datetime64[D]").astype("datetime64[M]")
    first = months.astype("datetime64[D]").astype(np.int64)
    return {
        "age in days": pa.array((latest - seconds) / DAY, from_pandas=True),
        "day of the month": pa.array(np.where(known, days - first + 1.0, np.nan), from_pandas=True),
        "month": _category(months.astype(np.int64) % 12 + 1, known),
        "weekday": _category((days + 3) % 7 + 1, known),
        "hour": hours,
    }


def _category(values: NDArray[np.int64], known: NDArray[np.bool_]) -> pa.Array:
    return pc.if_else(pa.array(known), pa.array(values).cast(pa.string()), "")
