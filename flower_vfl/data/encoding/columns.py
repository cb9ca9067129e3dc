"""Kinds of the columns of any prepared data set, read from its folder."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from flower_vfl.data.encoding.encoding import NumericEncoding
from flower_vfl.data.encoding.reading import ColumnFormat
from flower_vfl.data.encoding.values import MISSING
from flower_vfl.data.store import layout
from flower_vfl.data.store.dataset import Dataset


@dataclass(frozen=True)
class Column:
    """One column of a party.

    Parameters
    ----------
    party, name : str
        Party that holds the column, and the column's name.
    kind : str
        "left out", "number", "number, log" (compressed because it is skewed), "category", "text", or the shape of
        arrays.
    missing : float or None
        Share of the training rows in which it is missing; None where that is not known: a missing category that is too
        rare for an id is one of those in `rare`.
    values : int or None
        Number of values in the training rows with an id of their own, a missing one included; for texts, of words.
    rare : float or None
        For a category: share of the training rows whose value is too rare for an id.
    why : str
        Reason for the kind, where the data gives one.
    change : tuple of str or None
        Column of the file and another kind, which the option dtype can set; None where no option does.
    """

    party: str
    name: str
    kind: str
    missing: float | None = None
    values: int | None = None
    rare: float | None = None
    why: str = ""
    change: tuple[str, str] | None = None


def columns_of(dataset: Dataset) -> list[Column]:
    """Return the columns of the parties whose features this host holds, in the order of the arrays.

    Raises
    ------
    DataError
        When a file does not match its description.
    """
    return [column for party in dataset.held for column in _columns_with_reasons(dataset, party)]


def class_counts(dataset: Dataset) -> dict[str, int]:
    """Return the number of training rows of each class, by its name; empty where this host holds no labels.

    Raises
    ------
    DataError
        When a file does not match its description.
    """
    if not dataset.has_labels:
        return {}
    counts = np.bincount(dataset.labels().train, minlength=dataset.classes)
    return dict(zip(dataset.class_names, counts.tolist(), strict=True))


def _columns_with_reasons(dataset: Dataset, party: str) -> Iterator[Column]:
    """Yield columns with the reasons of their reader, then those that it leaves out."""
    reader = dataset.encoding(party).reader
    readings = {name: reading for reading in reader.columns for name in reading.columns} if reader else {}
    for column in _encoded_columns(dataset, party):
        reading = readings.get(column.name)
        yield replace(column, why=reading.why, change=_change(reading)) if reading else column
    for reading in reader.columns if reader else ():
        if not reading.columns:
            yield Column(party, reading.name, "left out", why=reading.why, change=_change(reading))


def _change(reading: ColumnFormat) -> tuple[str, str]:
    """Return a column of the file and another kind for it."""
    return reading.name, "ignore" if reading.kind == "category" else "category"


def _encoded_columns(dataset: Dataset, party: str) -> Iterator[Column]:
    spec, encoding = dataset.spec(party), dataset.encoding(party)
    if encoding.text is not None:
        yield Column(party, encoding.text.name, "text", values=len(encoding.text.words))
    elif spec.shape:
        yield Column(party, "features", f"{'pixels' if spec.pixels else 'numbers'} {' x '.join(map(str, spec.shape))}")
    elif not (encoding.numeric or encoding.categorical):  # made by a program, never encoded
        names = dataset.party(party).columns
        yield from (Column(party, name, "number") for name in names[: spec.numeric])
        yield from (
            Column(party, name, "category", values=levels - 1)
            for name, levels in zip(names[spec.numeric :], spec.cardinalities, strict=False)
        )
    if encoding.numeric:
        yield from _numbers(dataset, party, encoding.numeric, spec.numeric)
    if encoding.categorical:
        ids = layout.open_array(
            dataset.folder / party / "train" / "categorical.npy",
            (dataset.rows("train"), len(encoding.categorical)),
            "int32",
        )
        absent = [
            known.index(MISSING) + 1 if MISSING in known[:1] else -1
            for known in (column.values[:1].to_pylist() for column in encoding.categorical)
        ]
        counts = np.zeros((2, len(absent)), np.int64)
        for _, piece in layout.chunks(ids):
            counts += [(piece == absent).sum(axis=0), (piece == 0).sum(axis=0)]
        shares = counts / dataset.rows("train")
        for place, column in enumerate(encoding.categorical):
            missing, rare = (float(share) for share in shares[:, place])
            unknown = rare > 0.0 and absent[place] < 0  # missing values may be among the rare ones
            yield Column(party, column.name, "category", None if unknown else missing, len(column.values), rare)


def _numbers(dataset: Dataset, party: str, columns: tuple[NumericEncoding, ...], width: int) -> Iterator[Column]:
    """Yield numeric columns; the share of missing values is the mean of the indicator beside them."""
    path = dataset.folder / party / "train" / "numeric.npy"
    sums = np.zeros(width)
    for _, piece in layout.chunks(layout.open_array(path, (dataset.rows("train"), width), "float32")):
        sums += piece.sum(axis=0, dtype=np.float64)
    end = 0
    for column in columns:
        end += column.width
        known = {"error": 0.0, "mean": float(sums[end - 1]) / dataset.rows("train"), "zero": None}[column.missing]
        yield Column(party, column.name, "number, log" if column.transform == "log1p" else "number", known)
