"""Vocabularies and scales of the training rows, a column at a time: exact, and stored as numbers, not as texts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from flower_vfl.data.clicks.fields import FieldKind, key_texts
from flower_vfl.data.clicks.survey import Source, Survey, TestSplit
from flower_vfl.data.clicks.threads import in_order
from flower_vfl.data.clicks.work import WorkFolder
from flower_vfl.data.encoding.encoding import CategoricalEncoding, NumericEncoding, transformed
from flower_vfl.data.encoding.moments import Moments
from flower_vfl.data.sources.recipe import Progress

Scaling = Literal["standard", "min-max"]

_PENDING = 2**21


class KeyCounter:
    """Counter of keys in pieces; its memory grows with the number of different keys, not with the rows."""

    def __init__(self) -> None:
        self._keys = np.zeros(0, np.uint32)
        self._counts = np.zeros(0, np.int64)
        self._pending: list[tuple[NDArray[np.uint32], NDArray[np.int64]]] = []

    def add(self, keys: NDArray[np.uint32]) -> None:
        """Count (N,) keys."""
        self._pending.append(np.unique(keys, return_counts=True))
        if sum(len(found) for found, _ in self._pending) > max(_PENDING, len(self._keys)):
            self._merge()

    def at_least(self, count: int) -> NDArray[np.uint32]:
        """Return the keys that occurred at least `count` times, sorted."""
        self._merge()
        return self._keys[self._counts >= count]

    def _merge(self) -> None:
        parts = [(self._keys, self._counts), *self._pending]
        keys, counts = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
        order = np.argsort(keys, kind="stable")
        keys, counts = keys[order], counts[order]
        first = np.flatnonzero(np.diff(keys, prepend=keys[:1] + np.uint32(1))) if len(keys) else np.zeros(0, np.int64)
        self._keys, self._counts = keys[first], np.add.reduceat(counts, first) if len(first) else counts
        self._pending = []


@dataclass(frozen=True)
class Vocabulary:
    """A categorical column: the ids of its keys.

    Parameters
    ----------
    name : str
        Name of the column.
    kind : {"hex", "code"}
        Format of the values that its keys encode.
    keys : ndarray of uint32, (V,)
        Keys that are frequent enough in training, sorted.
    missing : bool
        True if missing values are frequent enough in training: they are then the first value.
    """

    name: str
    kind: FieldKind
    keys: NDArray[np.uint32]
    missing: bool

    def ids(self, keys: pa.Array) -> NDArray[np.int32]:
        """Return the ids of (N,) keys: 0 for keys that are not in the vocabulary."""
        absent = np.asarray(keys.is_null())
        wanted = keys.fill_null(0).to_numpy(zero_copy_only=False).astype(np.uint64)
        # Sorted queries read the vocabulary in its order: seven times as fast for millions of keys.
        order = np.sort(wanted << np.uint64(32) | np.arange(len(wanted), dtype=np.uint64))
        queries, rows = (order >> np.uint64(32)).astype(np.uint32), (order & np.uint64(0xFFFFFFFF)).astype(np.int64)
        place = np.searchsorted(self.keys, queries)
        known = place < len(self.keys)
        known[known] = self.keys[place[known]] == queries[known]
        found = np.empty(len(wanted), np.int32)
        found[rows] = np.where(known, place + 1 + self.missing, 0)
        found[absent] = int(self.missing)
        return found

    def encoding(self) -> CategoricalEncoding:
        """Return the encoding of the column, with its values as texts of the file."""
        texts = key_texts(self.kind, self.keys)
        return CategoricalEncoding(
            self.name, pa.concat_arrays([pa.array([""], pa.string()), texts]) if self.missing else texts
        )


@dataclass(frozen=True)
class Fitting:
    """Settings for fitting the columns.

    Parameters
    ----------
    rows : {"train", "all"}
        Rows that are read; "all" includes test rows in vocabularies and scales.
    scaling : {"standard", "min-max"}
        Scale of numeric columns: as in own data, missing numbers with an indicator; or 0 to 1, missing numbers as 0.
    min_count : int
        Values that occur less often share the bucket of unseen ones.
    """

    rows: Literal["train", "all"]
    scaling: Scaling
    min_count: int


class Fitter:
    """Fitter of columns on pieces of rows.

    Parameters
    ----------
    work : WorkFolder
        Storage of the pieces and of the results.
    source, split, found : Source, TestSplit, Survey
        Number of pieces, selection of the test rows, and number of the last day.
    fitting : Fitting
        Settings of the fit.
    """

    def __init__(self, work: WorkFolder, source: Source, split: TestSplit, found: Survey, fitting: Fitting) -> None:
        self._work, self._source, self._split, self._survey, self._fitting = work, source, split, found, fitting

    def fit(self, features: dict[str, FieldKind], progress: Progress) -> dict[str, NumericEncoding | Vocabulary]:
        """Return the encoding of each column; columns that were fitted before are not fitted again."""
        fitted: dict[str, NumericEncoding | Vocabulary] = {}
        for name in in_order(lambda item: self._fit(*item), features.items()):
            fitted[name] = self._read(name, features[name])
            progress(len(fitted) / len(features))
        return fitted

    def _fit(self, name: str, kind: FieldKind) -> str:
        if not self._work.has_note(f"fit-{name}"):
            if kind == "number":
                self._work.keep_note(f"fit-{name}", asdict(self._numeric(name)))
            else:
                self._work.keep_note(f"fit-{name}", {"missing": self._count(name)})
        return name

    def _read(self, name: str, kind: FieldKind) -> NumericEncoding | Vocabulary:
        note = self._work.read_note(f"fit-{name}")
        if kind == "number":
            return NumericEncoding(**note)
        return Vocabulary(name, kind, self._work.read_keys(name), bool(note["missing"]))

    def _pieces(self, name: str) -> Iterator[pa.Array]:
        for number in range(self._source.pieces):
            rows = self._work.read_piece(number, {name, *self._split.columns})
            if self._fitting.rows == "train":
                rows = rows.filter(pa.array(~self._split.held_out(rows, self._survey.last_day)))
            yield rows.column(name).combine_chunks()

    def _numeric(self, name: str) -> NumericEncoding:
        plain, compressed, low, high = Moments(), Moments(), np.inf, -np.inf
        for column in self._pieces(name):
            absent = column.null_count
            values = column.drop_null().to_numpy(zero_copy_only=False).astype(np.float64)
            plain += Moments.of(values)
            compressed += Moments.of(transformed(values, "log1p"))
            seen = np.append(values, 0.0) if absent else values
            low, high = min(low, seen.min(initial=np.inf)), max(high, seen.max(initial=-np.inf))
        if self._fitting.scaling == "min-max":
            return NumericEncoding.from_range(name, float(low), float(high))
        return NumericEncoding.from_moments(name, plain, compressed, "mean")

    def _count(self, name: str) -> bool:
        """Store the vocabulary of a column; return True if missing values are a value of it."""
        counter, absent = KeyCounter(), 0
        for column in self._pieces(name):
            absent += column.null_count
            counter.add(column.drop_null().to_numpy(zero_copy_only=False))
        self._work.keep_keys(name, counter.at_least(self._fitting.min_count))
        return absent >= self._fitting.min_count
