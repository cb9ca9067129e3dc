"""Encoding of columns as numbers: fitted on training rows only, kept beside the data, applied again to new rows.

Numeric columns are compressed when they are skewed, ``sign(x) log(1 + |x|)``, then standardised. Categorical columns
become ids: 0 stands for every value that is absent or too rare in training, a missing value is a value like others.
Texts become rows of word ids: `text.py`. Categorical columns may have millions of values, stored in a Parquet file.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from flower_vfl.data.encoding.moments import Moments
from flower_vfl.data.encoding.reading import TableReader
from flower_vfl.data.encoding.text import TextEncoding
from flower_vfl.data.encoding.values import Absent, Missing, Place, numbers, require_columns, texts, whole_array
from flower_vfl.data.store import layout
from flower_vfl.errors import DataError
from flower_vfl.files import writing_to

_SKEWED = 2.0


@dataclass(frozen=True)
class NumericEncoding:
    """One numeric column: compressed or not, then (x - mean) / scale.

    Parameters
    ----------
    name : str
        Name of the column.
    transform : {"identity", "log1p"}
        "log1p" is ``sign(x) log(1 + |x|)``, for skewed columns.
    mean, scale : float
        Subtrahend and divisor, fitted on the transformed training rows; a constant column has scale 1.
    missing : {"error", "mean", "zero"}
        Treatment of a missing number: an error; 0 (the mean) and a 1 in an indicator column of its own; or the
        encoding of the number zero.
    complete : bool
        True if no training row lacks the number: the indicator is then always 0.
    """

    name: str
    transform: Literal["identity", "log1p"]
    mean: float
    scale: float
    missing: Absent = "error"
    complete: bool = False

    @classmethod
    def fit(cls, name: str, values: NDArray[np.float64], missing: Missing = "error") -> NumericEncoding:
        """Choose and fit the transformation on training rows (N,); NaN stands for missing."""
        known = values[~np.isnan(values)]
        found = cls.from_moments(name, Moments.of(known), Moments.of(transformed(known, "log1p")), missing)
        return replace(found, complete=len(known) == len(values))

    @classmethod
    def from_moments(cls, name: str, plain: Moments, compressed: Moments, missing: Missing) -> NumericEncoding:
        """Choose and fit the transformation from the moments of the known training rows, as they are and compressed."""
        if not plain.count:
            return cls(name, "identity", 0.0, 1.0, missing)
        transform: Literal["identity", "log1p"] = "log1p" if abs(plain.skewness) > _SKEWED else "identity"
        moments = compressed if transform == "log1p" else plain
        # Standardising a column whose spread is rounding error would scale that error up to one.
        constant = not moments.spread > 1e-9 * max(1.0, abs(moments.mean))
        return cls(name, transform, moments.mean, 1.0 if constant else moments.spread, missing)

    @classmethod
    def from_range(cls, name: str, low: float, high: float) -> NumericEncoding:
        """Map low to 0 and high to 1; a missing number counts as the number zero."""
        return cls(name, "identity", low, high - low if high > low else 1.0, "zero")

    @property
    def width(self) -> int:
        """Number of encoded columns."""
        return 2 if self.missing == "mean" else 1

    def apply(self, values: NDArray[np.float64]) -> NDArray[np.float32]:
        """Encode (N,) numbers to (N, width)."""
        if self.missing == "zero":
            values = np.nan_to_num(values)
        shaped = (transformed(values, self.transform) - self.mean) / self.scale
        if self.missing != "mean":
            return shaped.astype(np.float32)[:, None]
        absent = np.isnan(shaped)
        indicator = absent & (not self.complete)  # no weight of it was trained where no training row lacks the number
        return np.stack([np.where(absent, 0.0, shaped), indicator], axis=1).astype(np.float32)


@dataclass(frozen=True)
class CategoricalEncoding:
    """One categorical column: value `values[i]` becomes i + 1, anything else 0.

    A whole number is one value, with a fraction of zeros or without: programs write 1.0 for 1 as soon as a row of the
    column is empty.

    Parameters
    ----------
    name : str
        Name of the column.
    values : pyarrow.Array of texts
        Values of the training rows, each once; "" stands for missing.
    """

    name: str
    values: pa.Array

    @classmethod
    def fit(cls, name: str, values: pa.Array, min_count: int = 1) -> CategoricalEncoding:
        """Collect the values of training rows; those rarer than `min_count` share bucket 0 with unseen values."""
        found, counts = pc.value_counts(values).flatten()
        whole = _without_zeros(found)
        named = pa.table({"value": pc.if_else(pc.is_in(whole, value_set=found), whole, found), "count": counts})
        summed = named.group_by("value").aggregate([("count", "sum")])
        kept = summed.filter(pc.greater_equal(summed["count_sum"], min_count))["value"]
        return cls(name, pa.array(sorted(kept.to_pylist()), pa.string()))

    @property
    def cardinality(self) -> int:
        """Number of ids, bucket 0 included."""
        return len(self.values) + 1

    def apply(self, values: pa.Array) -> NDArray[np.int32]:
        """Encode (N,) texts to (N,) ids."""
        known = pc.index_in(values, value_set=self.values)
        if known.null_count:
            whole = pc.index_in(_without_zeros(values), value_set=_without_zeros(self.values))
            known = pc.coalesce(known, whole)
        ids = pc.add(pc.fill_null(known, -1), 1)
        return np.asarray(ids.to_numpy(zero_copy_only=False), dtype=np.int32)


@dataclass(frozen=True)
class PartyEncoding:
    """The encodings of all columns of a party, numeric and categorical, each in the order of the arrays.

    Parameters
    ----------
    numeric : tuple of NumericEncoding
        Columns of `numeric.npy`.
    categorical : tuple of CategoricalEncoding
        Columns of `categorical.npy`.
    text : TextEncoding, optional
        Text column of a party that has no other columns.
    reader : TableReader, optional
        Reader that turns the columns of a file into those that are encoded; without it they are the same.
    """

    numeric: tuple[NumericEncoding, ...]
    categorical: tuple[CategoricalEncoding, ...]
    text: TextEncoding | None = None
    reader: TableReader | None = None

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the encoded columns, indicators of missing numbers included, numeric first."""
        names: list[str] = []
        for column in self.numeric:
            names += [column.name, f"{column.name} is missing"][: column.width]
        texts = () if self.text is None else (self.text.name,)
        return (*names, *(column.name for column in self.categorical), *texts)

    @property
    def numeric_width(self) -> int:
        """Width of the numeric array."""
        return sum(column.width for column in self.numeric)

    @property
    def cardinalities(self) -> tuple[int, ...]:
        """Number of ids of each categorical column."""
        return tuple(column.cardinality for column in self.categorical)

    def encode(self, table: pa.Table, file: str = "the table") -> tuple[NDArray[np.float32], NDArray[np.int32]]:
        """Encode rows as the training rows were, and return numbers (N, F) and ids (N, K).

        Parameters
        ----------
        table : pyarrow.Table
            Columns as texts or numbers; more columns than needed are allowed.
        file : str
            Origin of the rows, for messages.

        Raises
        ------
        DataError
            When a column is missing or of a type that cannot be read, or a number is missing or unreadable.
        """
        table = self.reader.read(table, file) if self.reader else table
        require_columns(
            table, [*(column.name for column in self.numeric), *(column.name for column in self.categorical)], file
        )
        rows = table.num_rows
        numeric = np.empty((rows, self.numeric_width), np.float32)
        start = 0
        for number in self.numeric:
            values = numbers(table.column(number.name), Place(file, number.name), number.missing)
            numeric[:, start : start + number.width] = number.apply(values)
            start += number.width
        categorical = np.empty((rows, len(self.categorical)), np.int32)
        for position, column in enumerate(self.categorical):
            categorical[:, position] = column.apply(texts(table.column(column.name), Place(file, column.name)))
        return numeric, categorical

    def write(self, path: Path) -> None:
        """Write the encoding as JSON, the values of categorical columns beside it as Parquet."""
        named = [
            {"name": column.name, "values": len(column.values), "sha256": _digest(column.values)}
            for column in self.categorical
        ]
        numeric, text = [asdict(column) for column in self.numeric], self.text and asdict(self.text)
        reader = {"reader": self.reader.to_json()} if self.reader else {}
        layout.write_json(path, {"numeric": numeric, "categorical": named, "text": text, **reader})
        if self.categorical:
            values = pa.chunked_array([column.values for column in self.categorical], pa.string())
            vocabulary = path.with_name(layout.VOCABULARY)
            with writing_to(vocabulary):
                pq.write_table(pa.table({"value": values}), vocabulary, use_dictionary=False)

    @classmethod
    def read(cls, path: Path) -> PartyEncoding:
        """Return the encoding that `write` wrote.

        Raises
        ------
        DataError
            When a file is missing, holds something else, or values are not those that were written.
        """
        content = layout.read_json(path)
        try:
            return cls(
                tuple(NumericEncoding(**_numeric(item)) for item in layout.entry(path, content, "numeric", list)),
                _categorical(path.with_name(layout.VOCABULARY), layout.entry(path, content, "categorical", list)),
                _text(content.get("text")),
                TableReader.from_json(content["reader"]) if "reader" in content else None,
            )
        except (TypeError, KeyError, ValueError, OverflowError) as error:
            raise DataError(f"{path} is no encoding of columns: {error!r}") from None


def _digest(values: pa.Array) -> str:
    """Return the SHA-256 of texts: of their lengths, then of their bytes."""
    digest = hashlib.sha256(np.asarray(pc.binary_length(values), np.int64).tobytes())
    start, stop = values.offset, values.offset + len(values)
    if len(values):
        offsets = np.frombuffer(values.buffers()[1], np.int32)
        digest.update(memoryview(values.buffers()[2] or b"")[offsets[start] : offsets[stop]])
    return digest.hexdigest()


def _categorical(path: Path, columns: list[Mapping[str, Any]]) -> tuple[CategoricalEncoding, ...]:
    named = [(str(item["name"]), int(item["values"]), str(item["sha256"])) for item in columns]
    if not named:
        return ()
    try:
        values = pq.read_table(path, columns=["value"]).column(0).cast(pa.string())
    except (OSError, KeyError, pa.ArrowException) as error:
        raise DataError(f"{path} cannot be read: {error}") from None
    found, start = [], 0
    for name, number, digest in named:
        own = whole_array(values.slice(start, number))
        if _digest(own) != digest:
            raise DataError(f"{path} is not as it was written: the values of column {name!r} differ")
        found.append(CategoricalEncoding(name, own))
        start += len(own)
    return tuple(found)


def _text(item: Any) -> TextEncoding | None:
    return (
        None if item is None else TextEncoding(str(item["name"]), tuple(map(str, item["words"])), int(item["length"]))
    )


def _numeric(item: Mapping[str, Any]) -> dict[str, Any]:
    if item["transform"] not in ("identity", "log1p") or item["missing"] not in ("error", "mean", "zero"):
        raise ValueError(dict(item))
    return {**item, "mean": float(item["mean"]), "scale": float(item["scale"])}


def fit_party(
    table: pa.Table,
    *,
    numeric: Sequence[str],
    categorical: Sequence[str],
    file: str,
    missing: Missing = "error",
    min_count: int = 1,
) -> PartyEncoding:
    """Fit the encodings of a party on its training rows.

    Parameters
    ----------
    table : pyarrow.Table
        Training rows, and no others.
    numeric, categorical : sequence of str
        Names of the columns.
    file : str
        Origin of the rows, for messages.
    missing : {"error", "mean"}
        Treatment of a missing number, as in `NumericEncoding`.
    min_count : int
        Values that occur less often share the bucket of unseen values.
    """
    require_columns(table, [*numeric, *categorical], file)
    return PartyEncoding(
        tuple(
            NumericEncoding.fit(name, numbers(table.column(name), Place(file, name), missing), missing)
            for name in numeric
        ),
        tuple(
            CategoricalEncoding.fit(name, texts(table.column(name), Place(file, name)), min_count)
            for name in categorical
        ),
    )


def _without_zeros(values: pa.Array) -> pa.Array:
    """Return texts, whole numbers among them without a fraction of zeros."""
    return pc.replace_substring_regex(values, r"^(-?[0-9]+)\.0*$", r"\1")


def transformed(values: NDArray[np.float64], transform: str) -> NDArray[np.float64]:
    """Return numbers after this transform of `NumericEncoding`."""
    return np.sign(values) * np.log1p(np.abs(values)) if transform == "log1p" else values
