"""Periods of time, such as days, of the rows of a table in time order.

They are public: every party's manifest has them. They reveal only the number of rows of each period.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flower_vfl.errors import DataError

_LONGEST_NAME = 64


@dataclass(frozen=True)
class Period:
    """One period of time.

    Parameters
    ----------
    name : str
        Name in reports, such as "2014-10-21".
    rows : int
        Number of rows, at least 1.

    Raises
    ------
    DataError
        When the period has no name, a very long one, or no row.
    """

    name: str
    rows: int

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not 0 < len(self.name) <= _LONGEST_NAME:
            raise DataError(f"a period has a name of 1 to {_LONGEST_NAME} characters, given {self.name!r}")
        if not isinstance(self.rows, int) or isinstance(self.rows, bool) or self.rows < 1:
            raise DataError(f"a period has 1 row or more, {self.name!r} has {self.rows!r}")


@dataclass(frozen=True)
class Periods:
    """The periods of a data set: those of the training table, and after them those of the test table.

    Parameters
    ----------
    train, test : tuple of Period
        Periods in time order; the first period has the first rows.
    """

    train: tuple[Period, ...]
    test: tuple[Period, ...]

    @property
    def rows(self) -> tuple[int, ...]:
        """Number of rows of each period of the training table."""
        return tuple(period.rows for period in self.train)

    def name(self, epoch: int) -> str:
        """Return the name of the period that is trained in an epoch (from 1); after the last epoch, that of the test.

        Examples
        --------
        >>> Periods((Period("Mon", 5),), (Period("Tue", 3), Period("Wed", 2))).name(2)
        'Tue to Wed'
        """
        if epoch <= len(self.train):
            return self.train[epoch - 1].name
        first, last = self.test[0].name, self.test[-1].name
        return first if first == last else f"{first} to {last}"

    def check(self, rows: int, test_rows: int) -> None:
        """Check that the periods have as many rows as the tables.

        Raises
        ------
        DataError
            When they have more or fewer.
        """
        for table, periods, needed in (("training", self.train, rows), ("test", self.test, test_rows)):
            found = sum(period.rows for period in periods)
            if found != needed:
                raise DataError(f"the periods of the {table} table have {found} rows, the table has {needed}")

    def to_json(self) -> dict[str, list[list[Any]]]:
        """Return plain values; `periods_from_json` reads them."""
        return {
            part: [[period.name, period.rows] for period in periods]
            for part, periods in (("train", self.train), ("test", self.test))
        }


def periods_from_json(where: Path, content: Mapping[str, Any]) -> Periods:
    """Return the periods from the values that `Periods.to_json` returned.

    Raises
    ------
    DataError
        When the content is something else.
    """
    found = {}
    for part in ("train", "test"):
        entries = content.get(part)
        if not isinstance(entries, list) or not all(isinstance(pair, list) and len(pair) == 2 for pair in entries):
            raise DataError(f"{where}: the {part} periods must be a list of pairs of a name and a number of rows")
        found[part] = tuple(Period(*pair) for pair in entries)
    return Periods(found["train"], found["test"])


def days_of(counts: Sequence[tuple[int, int]]) -> tuple[Period, ...]:
    """Return a period for each (day, rows), the days counted from 1970-01-01.

    Examples
    --------
    >>> days_of([(16000, 7)])
    (Period(name='2013-10-22', rows=7),)
    """
    return tuple(Period(str(np.datetime64(day, "D")), rows) for day, rows in counts)


def runs_of(days: NDArray[np.int64]) -> list[tuple[int, int]] | None:
    """Return each day with its number of rows, from the day of each row (N,); None where days are not in order.

    Examples
    --------
    >>> runs_of(np.array([3, 3, 5]))
    [(3, 2), (5, 1)]
    """
    if (np.diff(days) < 0).any():
        return None
    found, counts = np.unique(days, return_counts=True)
    return [(int(day), int(count)) for day, count in zip(found, counts, strict=True)]
