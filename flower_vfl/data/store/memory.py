"""Data in memory, as a user's own loader returns it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from flower_vfl.data.store.dataset import Alignment, FeatureSpec, Labels, PartyTable
from flower_vfl.data.store.party_names import check_parties
from flower_vfl.data.store.periods import Periods
from flower_vfl.data.store.source import ArraySource
from flower_vfl.errors import DataError


class VerticalData(Protocol):
    """Data of a run; each party reads its own part only."""

    @property
    def name(self) -> str:
        """Name in the results."""
        ...

    @property
    def parties(self) -> tuple[str, ...]:
        """Parties that have features."""
        ...

    @property
    def label_party(self) -> str:
        """The party that holds the labels; it may have features too."""
        ...

    @property
    def alignment(self) -> Alignment:
        """Number of rows, and the digest of their ordered IDs."""
        ...

    def party(self, name: str) -> PartyTable:
        """Return a party's features."""
        ...

    def labels(self) -> Labels:
        """Return the labels; only the label party calls this."""
        ...


@runtime_checkable
class IdentifiedData(Protocol):
    """Data that can also give the ID of each training row, by which persistent noise is drawn."""

    def train_ids(self) -> Iterable[str] | None:
        """Return the IDs of the training rows in their order, all different; None where rows have numbers only."""
        ...


@runtime_checkable
class DigestedData(Protocol):
    """Data that can also give a digest of its content. An interrupted training resumes only with the same content."""

    def content_digest(self, party: str, *, labels: bool) -> str:
        """Return a digest of a party's columns (`party` is empty for none) and, with `labels`, of the labels.

        The digest must stay on the host: it would allow a party to check a guess of all labels.
        """
        ...


def content_digest(data: VerticalData, party: str, *, labels: bool) -> str:
    """Return the digest of one party's data; empty where the data has none."""
    return data.content_digest(party, labels=labels) if isinstance(data, DigestedData) else ""


@dataclass(frozen=True)
class MemoryData:
    """A vertical data set of arrays.

    Parameters
    ----------
    name : str
        Name in the results.
    tables : Mapping[str, PartyTable]
        Features of each party; `array_table` makes one from arrays.
    label_party : str
        The party that holds the labels.
    target : Labels
        The labels.
    digest : str
        Digest of the ordered IDs; empty where rows are aligned by construction.
    periods : Periods, optional
        Number of rows of each day, where rows are in time order, for `training.order = "time"`.
    ids : Sequence[str], optional
        The IDs of the training rows in their order, all different: persistent noise is then drawn by ID, so that a
        person's noise stays the same from one table to the next. Without them it is drawn by the number of the row.
        Nothing else uses them: predictions request test rows, by number.

    Raises
    ------
    DataError
        When tables, labels, periods and IDs differ in their number of rows, or a party's name is not allowed.
    """

    name: str
    tables: Mapping[str, PartyTable]
    label_party: str
    target: Labels
    digest: str = ""
    periods: Periods | None = None
    ids: Sequence[str] | None = None

    def __post_init__(self) -> None:
        check_parties(self.tables, self.label_party)
        for name, table in self.tables.items():
            rows = (len(table.train), len(table.test))
            if rows != (len(self.target.train), len(self.target.test)):
                raise DataError(
                    f"party {name!r} has {rows[0]} + {rows[1]} rows, the labels have "
                    f"{len(self.target.train)} + {len(self.target.test)}"
                )
        if self.periods is not None:
            self.periods.check(len(self.target.train), len(self.target.test))
        if self.ids is not None and len(self.ids) != len(self.target.train):
            raise DataError(f"there are {len(self.ids)} IDs for {len(self.target.train)} training rows")

    @property
    def parties(self) -> tuple[str, ...]:
        """Parties that have features."""
        return tuple(self.tables)

    @property
    def alignment(self) -> Alignment:
        """Number of rows, and their days."""
        return Alignment(len(self.target.train), len(self.target.test), self.digest, self.periods)

    def party(self, name: str) -> PartyTable:
        """Return a party's features."""
        if name not in self.tables:
            raise DataError(f"{self.name} has no party {name!r}; it has {', '.join(self.tables)}")
        return self.tables[name]

    def labels(self) -> Labels:
        """Return the labels."""
        return self.target

    def train_ids(self) -> Sequence[str] | None:
        """Return the IDs of the training rows; None without IDs."""
        return self.ids


def array_table(name: str, train: NDArray[Any], test: NDArray[Any]) -> PartyTable:
    """Return a party's features from arrays (N, ...) and (M, ...): matrices are numeric tables, others are images.

    Raises
    ------
    DataError
        When their shapes do not match, or a value is no finite number in float32.
    """
    train, test = _numbers(name, "training", train), _numbers(name, "test", test)
    if train.ndim < 2 or train.shape[1:] != test.shape[1:]:
        raise DataError(f"features must be (N, ...) and (M, ...), given {train.shape} and {test.shape}")
    spec = FeatureSpec(train.shape[1], ()) if train.ndim == 2 else FeatureSpec(0, (), tuple(train.shape[1:]))
    columns = tuple(f"x{index}" for index in range(train.shape[1])) if train.ndim == 2 else ()
    return PartyTable(name, spec, ArraySource(train), ArraySource(test), columns)


def _numbers(party: str, part: str, features: object) -> NDArray[np.float32]:
    """Return features as float32; missing or too large values raise an error, before they make training diverge."""
    given = np.asarray(features)
    if given.dtype.kind not in "biuf":
        raise DataError(f"party {party!r}: {part} features are {given.dtype}; real numbers are needed")
    with np.errstate(over="ignore"):
        values = given.astype(np.float32)
    finite = np.isfinite(values)
    if not finite.all():
        place = np.unravel_index(int(np.argmin(finite)), values.shape)
        where = f"row {place[0]}, column {', '.join(map(str, place[1:]))}" if values.ndim > 1 else f"row {place[0]}"
        raise DataError(
            f"party {party!r}: {part} features have {int(values.size - np.count_nonzero(finite))} values that are no "
            f"finite float32, the first in {where}: {given[place]}; fill them in, or scale the column"
        )
    return values
