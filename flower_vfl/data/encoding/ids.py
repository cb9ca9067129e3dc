"""IDs: one order and one test set that each party derives on its own, from the IDs alone."""

from __future__ import annotations

import hashlib
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from flower_vfl.data.encoding.values import Place, require_columns, texts
from flower_vfl.errors import DataError
from flower_vfl.rng import scattered

Join = Literal["strict", "inner"]
_ID_TYPES = (pa.types.is_integer, pa.types.is_string, pa.types.is_large_string, pa.types.is_null)
_SAMPLE, _LONGEST_FORM = 1000, 40
_SHORTENED = r"^[0-9][.][0-9]+[eE][+][0-9]+$"


def read_ids(table: pa.Table, column: str, file: str) -> pa.Array:
    """Return the IDs of a table as texts: trimmed, in Unicode's normal form C, whole numbers as their digits.

    Messages name rows, never IDs: they may be read on another party's host.

    Raises
    ------
    DataError
        When the column is missing or of a type that is no ID, an ID is empty, or IDs repeat.
    """
    require_columns(table, [column], file)
    kind = table.schema.field(column).type
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if pa.types.is_floating(kind):
        raise DataError(
            f"{file}: IDs in column {column!r} are fractions, from row 1 on; make them whole numbers or texts, or read "
            f"1.0 as 1 with the option dtype.{column}=integer"
        )
    if not any(is_kind(kind) for is_kind in _ID_TYPES):
        raise DataError(f"{file}: IDs in column {column!r} are of type {kind}; make them whole numbers or texts")
    ids = _composed(texts(table.column(column), Place(file, column)))
    if len(ids) and pc.all(pc.match_substring_regex(ids, r"^[0-9]+[.]0*$")).as_py():
        raise DataError(
            f"{file}: IDs in column {column!r} are numbers with a fraction, from row 1 on, which other programs write "
            f"without; make them whole, or read 1.0 as 1 with the option dtype.{column}=integer"
        )
    empty = pc.equal(ids, "")
    if pc.any(empty).as_py():
        raise DataError(
            f"{file}: row {pc.index(empty, True).as_py() + 1} has no ID in column {column!r}; leave such rows out, or "
            "name the column of the ID in the option id"
        )
    if len(ids) and pc.all(pc.match_substring_regex(ids, _SHORTENED)).as_py():
        raise DataError(
            f"{file}: IDs in column {column!r} are numbers with an exponent, from row 1 on: a program shortened "
            "them, and their last digits are lost; write the file again with this column as text, or name the column "
            "of the ID in the option id"
        )
    counts = pc.value_counts(ids)
    repeated = counts.filter(pc.greater(counts.field(1), 1)).field(0)
    if len(repeated):
        rows = _rows(pc.is_in(ids, value_set=repeated))
        raise DataError(
            f"{file}: {len(repeated)} IDs of column {column!r} occur more than once, in rows {rows}; keep one row of "
            "each, or name the column of the ID in the option id"
        )
    return ids


def whole_ids(table: pa.Table, column: str, file: str) -> pa.Table:
    """Return a table whose IDs are whole numbers where they have a fraction of zeros: 1.0 becomes 1.

    Raises
    ------
    DataError
        When there is no such column, or a fraction is not zero.
    """
    require_columns(table, [column], file)
    ids = texts(table.column(column), Place(file, column))
    whole = pc.replace_substring_regex(ids, r"^([0-9]+)[.]0*$", r"\1")
    broken = pc.match_substring_regex(whole, r"^[-+]?[0-9]*[.][0-9]+$|[0-9][eE][-+]?[0-9]+$")
    if pc.any(broken).as_py():
        row = pc.index(broken, True).as_py() + 1
        raise DataError(f"{file}: row {row} has an ID in column {column!r} that is no whole number")
    return table.set_column(table.column_names.index(column), column, whole)


def _composed(ids: pa.Array) -> pa.Array:
    """Return texts in Unicode's normal form C, which PyArrow's own function leaves decomposed in releases before 26."""
    foreign = pc.invert(pc.string_is_ascii(ids))
    normal = [unicodedata.normalize("NFC", text) for text in ids.filter(foreign).to_pylist()]
    return pc.replace_with_mask(ids, foreign, pa.array(normal, ids.type))


def join_ids(ids: Mapping[str, pa.Array], how: Join) -> list[str]:
    """Return the IDs that all files share, sorted by character code.

    Parameters
    ----------
    ids : Mapping
        IDs of each file.
    how : {"strict", "inner"}
        "strict": all files must have the same IDs; "inner": keep those that all have.

    Raises
    ------
    DataError
        When no ID is shared or, with "strict", some are not in all files; the message has their number.
    """
    shared = set.intersection(*(set(values.to_pylist()) for values in ids.values()))
    if how == "strict":
        for file, values in ids.items():
            for other, others in ids.items():
                alone = pc.invert(pc.is_in(values, value_set=others))
                if pc.any(alone).as_py():
                    raise DataError(
                        f"{pc.sum(alone).as_py()} of {len(values)} IDs in {file} are not in {other}, those of rows "
                        f"{_rows(alone)}; align the files first, or keep the shared IDs with the option join = 'inner'"
                    )
    if not shared:
        forms = ", ".join(f"{_form(values)!r} in {file}" for file, values in ids.items())
        raise DataError(
            f"no ID is in all of {', '.join(ids)}. Most IDs look like {forms} (9: any digit, a: any letter); write "
            "them in one form in all files, or name the column of the ID in the option id"
        )
    return sorted(shared)


def _form(ids: pa.Array) -> str:
    """Return the most frequent form of some IDs without revealing one: digits as 9, letters as a."""
    forms = Counter("".join(map(_kind, text)) for text in ids.slice(0, _SAMPLE).to_pylist())
    return forms.most_common(1)[0][0][:_LONGEST_FORM] if forms else ""


def _kind(character: str) -> str:
    return "9" if character.isdecimal() else "a" if character.isalpha() else character


def select_ids(ids: Mapping[str, pa.Array], aligned: Sequence[str]) -> list[str]:
    """Return the aligned IDs after checking that every file has them all.

    Raises
    ------
    DataError
        When a file lacks some; the message names it, and their number.
    """
    wanted = pa.array(aligned, pa.string())
    for file, values in ids.items():
        lacking = len(aligned) - pc.sum(pc.is_in(wanted, value_set=values)).as_py()
        if lacking:
            raise DataError(
                f"{lacking} of the {len(aligned)} aligned IDs are not in {file}; name the file that was aligned, or "
                "align again"
            )
    return list(aligned)


def in_test_set(ids: Sequence[str], fraction: float, seed: int) -> NDArray[np.bool_]:
    """Return a mask of the IDs in the test set: those whose hash is small.

    Each party computes the same mask on its own. Neither other IDs nor labels change the part of an ID.

    Parameters
    ----------
    ids : sequence of str
        IDs of the rows.
    fraction : float
        Expected part of the test set.
    seed : int
        Seed of the test set.
    """
    prefix = f"flower-vfl split {seed}\x1f".encode()
    limit = int(fraction * 2**64)
    hashes = (hashlib.blake2b(prefix + value.encode(), digest_size=8).digest() for value in ids)
    return np.fromiter((int.from_bytes(value, "big") < limit for value in hashes), bool, len(ids))


def drawn(numbers: NDArray[np.int64], fraction: float, key: str) -> NDArray[np.bool_]:
    """Return a mask of the numbered rows that are drawn, millions a second: those whose hash is small.

    Other rows do not change whether a row is drawn.

    Parameters
    ----------
    numbers : ndarray of int64, (N,)
        Numbers of rows.
    fraction : float
        Expected part that is drawn.
    key : str
        Key of the draw.
    """
    digest = hashlib.blake2b(f"flower-vfl rows {key}".encode(), digest_size=8).digest()
    mixed = scattered(numbers.astype(np.uint64), start=int.from_bytes(digest, "big"))
    return np.asarray(mixed < np.uint64(int(fraction * 2**64))) if fraction < 1.0 else np.ones(len(numbers), bool)


def _rows(mask: pa.Array) -> str:
    """Return the numbers of the first rows, from 1, at which a mask is true."""
    rows = pc.add(pc.indices_nonzero(mask), 1).to_pylist()
    return ", ".join(map(str, rows[:4])) + (", ..." if len(rows) > 4 else "")


def id_numbers(ids: Iterable[str], count: int, key: bytes) -> NDArray[np.uint64]:
    """Return a number for each ID, derived from the ID and a key alone: neither position nor other IDs change it.

    The number is a keyed BLAKE2b digest of 64 bits of the ID's UTF-8 bytes in Unicode's normal form C. It takes 8 bytes
    a row; IDs are read one after the other.

    Parameters
    ----------
    ids : iterable of str
        The IDs of the rows in their order.
    count : int
        Number of rows N.
    key : bytes
        Key of up to 64 bytes; two IDs with one number cannot be found without it.

    Returns
    -------
    ndarray of uint64, (N,)
        Numbers of the rows, all different.

    Raises
    ------
    DataError
        When there are more or fewer IDs than rows, one is no text, or occurs twice. Two IDs with one number raise the
        same error: among 45 million that happens once in 18,000 tables.

    Examples
    --------
    >>> numbers = id_numbers(["ann", "bob"], 2, b"key")
    >>> bool(id_numbers(["bob"], 1, b"key")[0] == numbers[1])
    True
    """
    start, normal = hashlib.blake2b(digest_size=8, key=key), unicodedata.normalize
    digests = bytearray()
    for value in ids:
        digest = start.copy()
        try:
            digest.update(normal("NFC", value).encode())
        except (TypeError, UnicodeEncodeError):
            raise DataError(f"IDs are texts that UTF-8 can write; a {type(value).__name__} is among them") from None
        digests += digest.digest()
    numbers = np.frombuffer(digests, "<u8").astype(np.uint64, copy=False)
    if len(numbers) != count:
        raise DataError(f"there are {len(numbers)} IDs for {count} rows; each row has one")
    ordered = np.sort(numbers)
    if (ordered[1:] == ordered[:-1]).any():
        raise DataError("an ID comes twice among the training rows; give each row an ID of its own, or none")
    return numbers
