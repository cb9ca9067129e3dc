"""IDs: one order and one test set that every party derives alone, from the IDs and from nothing else."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from flower_vfl.data.encoding import require_columns, texts
from flower_vfl.errors import DataError

Join = Literal["strict", "inner"]


def read_ids(table: pa.Table, column: str, file: str) -> pa.Array:
    """Return the IDs of a table as texts.

    Raises
    ------
    DataError
        When the column is missing, an ID is empty, or IDs repeat.
    """
    require_columns(table, [column], file)
    if pa.types.is_floating(table.schema.field(column).type):
        raise DataError(f"{file}: IDs in column {column!r} are fractions; make them whole numbers or texts")
    ids = texts(table.column(column))
    empty = pc.equal(ids, "")
    if pc.any(empty).as_py():
        raise DataError(f"{file}: row {pc.index(empty, True).as_py() + 1} has no ID in column {column!r}")
    counts = pc.value_counts(ids)
    repeated = counts.filter(pc.greater(counts.field(1), 1)).field(0).to_pylist()
    if repeated:
        raise DataError(f"{file}: {len(repeated)} IDs of column {column!r} occur more than once: {_some(repeated)}")
    return ids


def join_ids(ids: Mapping[str, pa.Array], how: Join) -> list[str]:
    """Return the IDs that all files share, sorted by character code.

    Parameters
    ----------
    ids : Mapping
        File to its IDs.
    how : {"strict", "inner"}
        "strict": all files must have the same IDs; "inner": keep those that all have.

    Raises
    ------
    DataError
        When nothing is shared or, with "strict", an ID is not in all files; the message says how many.
    """
    sets = {file: set(values.to_pylist()) for file, values in ids.items()}
    shared = set.intersection(*sets.values())
    if how == "strict":
        for file, values in sets.items():
            for other, others in sets.items():
                alone = values - others
                if alone:
                    raise DataError(
                        f"{len(alone)} of {len(values)} IDs in {file} are not in {other}: {_some(alone)}; align the "
                        "files first, or keep the shared IDs with the option join = 'inner'"
                    )
    if not shared:
        raise DataError(f"no ID is in all of {', '.join(sets)}; do they use the same kind of ID?")
    return sorted(shared)


def in_test_set(ids: Sequence[str], fraction: float, seed: int) -> NDArray[np.bool_]:
    """Say which IDs belong to the test set: those whose hash is small.

    Each party finds the same answer alone, an ID keeps its place when others come or go, and labels play no part.

    Parameters
    ----------
    ids : sequence of str
        IDs.
    fraction : float
        Expected part of the test set.
    seed : int
        Another seed, another test set.
    """
    prefix = f"flower-vfl split {seed}\x1f".encode()
    limit = int(fraction * 2**64)
    hashes = (hashlib.blake2b(prefix + value.encode(), digest_size=8).digest() for value in ids)
    return np.fromiter((int.from_bytes(value, "big") < limit for value in hashes), bool, len(ids))


def _some(ids: Sequence[str] | set[str]) -> str:
    return ", ".join(repr(value) for value in sorted(ids)[:3]) + (", ..." if len(ids) > 3 else "")
