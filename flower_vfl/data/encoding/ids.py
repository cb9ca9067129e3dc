"""IDs: one order and one test set that each party derives on its own, from the IDs alone."""

from __future__ import annotations

import hashlib
import logging
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from flower_vfl.data.encoding.messages import MOST_ROWS, named_lines, named_rows, set_options
from flower_vfl.data.encoding.values import Place, require_columns, texts
from flower_vfl.errors import DataError
from flower_vfl.rng import scattered

_log = logging.getLogger(__name__)

Join = Literal["strict", "inner"]
_ID_TYPES = (pa.types.is_integer, pa.types.is_string, pa.types.is_large_string, pa.types.is_null)
_SAMPLE, _LONGEST_FORM = 1000, 40
_PADDED = r"^0[0-9]|^[0-9]+[.]0*$"
_SHORTENED = r"^[0-9][.][0-9]+[eE][+][0-9]+$"


def read_ids(
    table: pa.Table, column: str, file: str, needed: pa.Array | None = None, *, trained: bool = False
) -> pa.Array:
    """Return the IDs of a table as texts: trimmed, in Unicode's normal form C, whole numbers as their digits.

    Messages name rows, never IDs: they may be read on another party's host.

    Parameters
    ----------
    table : pyarrow.Table
        Rows in the order of the file.
    column : str
        Column of the ID.
    file : str
        Origin of the table, for messages.
    needed : pyarrow.Array of bool, optional
        The rows that are read; the IDs of the others are null. All by default.
    trained : bool
        True for rows after training, whose IDs no option changes.

    Raises
    ------
    DataError
        When the column is missing or of a type that is no ID, an ID is empty, or IDs repeat.
    """
    require_columns(table, [column], file)
    kind = table.schema.field(column).type
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    whole = "" if trained else f", or read 1.0 as 1 with {set_options((f'dtype.{column}', 'integer'))}"
    other = "" if trained else ", or name the column of the ID in the option id"
    where = f" in column {column!r}"
    if pa.types.is_floating(kind):
        raise DataError(f"{file}: IDs{where} are fractions, from row 1 on; make them whole numbers or texts{whole}")
    if not any(is_kind(kind) for is_kind in _ID_TYPES):
        raise DataError(f"{file}: IDs{where} are of type {kind}; make them whole numbers or texts")
    ids = _composed(texts(table.column(column), Place(file, column)))
    if needed is not None:
        ids = pc.if_else(needed, ids, pa.scalar(None, pa.string()))
    known = ids.drop_null()
    if len(known) and pc.all(pc.match_substring_regex(known, r"^[0-9]+[.]0*$")).as_py():
        raise DataError(
            f"{file}: IDs{where} are numbers with a fraction, from row 1 on, which other programs write without; make "
            f"them whole{whole}"
        )
    if len(known) and pc.all(pc.match_substring_regex(known, _SHORTENED)).as_py():
        raise DataError(
            f"{file}: IDs{where} are numbers with an exponent, from row 1 on: a program shortened them, and their last "
            f"digits are lost; write the file again with this column as text{other}"
        )
    _require_distinct(ids, file, where, partial(named_rows, file), other)
    return ids


def read_id_lines(lines: Sequence[str], file: str, *, whole: bool = False) -> pa.Array:
    """Return the IDs of a text with one ID a line, in Unicode's normal form C; `whole` as `whole_ids` does.

    Raises
    ------
    DataError
        When a line is empty, or IDs repeat.
    """
    ids = _composed(pa.array(lines, pa.string()))
    ids = _whole(ids) if whole else ids
    _require_distinct(ids, file, "", named_lines, "")
    return ids


def _require_distinct(ids: pa.Array, file: str, where: str, named: Callable[[Sequence[int]], str], other: str) -> None:
    """Refuse empty and repeated IDs; `where`, `named` and `other` are words of the message: column, rows and advice."""
    empty = pc.equal(ids, "")
    if pc.any(empty).as_py():
        raise DataError(f"{file}: {named(_first(empty)[:1])} has no ID{where}; leave such rows out{other}")
    counts = pc.value_counts(ids.drop_null())
    repeated = counts.filter(pc.greater(counts.field(1), 1)).field(0)
    if len(repeated):
        number = f"{len(repeated)} IDs{where} occur" if len(repeated) > 1 else f"1 ID{where} occurs"
        rows = named(_first(pc.is_in(ids, value_set=repeated)))
        raise DataError(f"{file}: {number} more than once, in {rows}; keep one of each{other}")


def whole_ids(table: pa.Table, column: str, file: str) -> pa.Table:
    """Return a table whose IDs are whole numbers where they have leading zeros or a fraction of zeros.

    Both 007 and 7.0 become 7.

    Raises
    ------
    DataError
        When there is no such column, or a fraction is not zero.
    """
    require_columns(table, [column], file)
    whole = _whole(texts(table.column(column), Place(file, column)))
    broken = pc.match_substring_regex(whole, r"^[-+]?[0-9]*[.][0-9]+$|[0-9][eE][-+]?[0-9]+$")
    if pc.any(broken).as_py():
        raise DataError(
            f"{file}: {named_rows(file, _first(broken)[:1])} has an ID in column {column!r} that is no whole number"
        )
    return table.set_column(table.column_names.index(column), column, whole)


def _whole(ids: pa.Array) -> pa.Array:
    return pc.replace_substring_regex(ids, r"^0*([0-9]+)([.]0*)?$", r"\1")


def _composed(ids: pa.Array) -> pa.Array:
    """Return texts in Unicode's normal form C, which PyArrow's own function leaves decomposed in releases before 26."""
    foreign = pc.invert(pc.string_is_ascii(ids))
    normal = [unicodedata.normalize("NFC", text) for text in ids.filter(foreign).to_pylist()]
    return pc.replace_with_mask(ids, foreign, pa.array(normal, ids.type))


def join_ids(ids: Mapping[str, pa.Array], how: Join, column: str = "") -> list[str]:
    """Return the IDs that all files share, sorted by character code.

    Parameters
    ----------
    ids : Mapping
        IDs of each file; rows without one are left out.
    how : {"strict", "inner"}
        "strict": all files must have the same IDs; "inner": keep those that all have.
    column : str
        Column of the ID, whose option messages name; "" after training, when no option changes the IDs.

    Raises
    ------
    DataError
        When no ID is shared or, with "strict", some are not in all files; the message has their number.
    """
    shared = set.intersection(*(set(values.drop_null().to_pylist()) for values in ids.values()))
    _check_padded({file: values.drop_null() for file, values in ids.items()}, len(shared), column)
    if how == "strict":
        for file, values in ids.items():
            for other, others in ids.items():
                alone = pc.and_(values.is_valid(), pc.invert(pc.is_in(values, value_set=others)))
                if pc.any(alone).as_py():
                    option = f", or keep the shared IDs with {set_options(('join', 'inner'))}" if column else ""
                    raise DataError(
                        f"{pc.sum(alone).as_py()} of {len(values) - values.null_count} IDs in {file} are not in "
                        f"{other}, those of {named_rows(file, _first(alone))}; align the files first{option}"
                    )
    if not shared:
        forms = ", ".join(f"{_form(values.drop_null())!r} in {file}" for file, values in ids.items())
        cure = ", or name the column of the ID in the option id" if column else ""
        alike = _shared_in_lower_case(ids)
        case = f"{alike} would be if upper and lower case were the same. " if alike else ""
        raise DataError(
            f"no ID is in all of {', '.join(ids)}. {case}Most IDs look like {forms} (9: any digit, a: any letter, "
            f"A: any capital letter); write them in one form in all files{cure}"
        )
    if column and any(len(values) > len(shared) for values in ids.values()):
        alike = _shared_in_lower_case(ids)
        if alike > len(shared):
            _log.warning(
                "only %d of the IDs are in all of %s, but %d would be if upper and lower case were the same; write "
                "them in one form",
                *(len(shared), ", ".join(ids), alike),
            )
    return sorted(shared)


def _shared_in_lower_case(ids: Mapping[str, pa.Array]) -> int:
    return len(set.intersection(*(set(pc.utf8_lower(values.drop_null()).to_pylist()) for values in ids.values())))


def _check_padded(ids: Mapping[str, pa.Array], shared: int, column: str) -> None:
    """Warn if more IDs are in all files once they are read as whole numbers; refuse if none is `shared` as it is."""
    zeros = [file for file, values in ids.items() if pc.any(pc.match_substring_regex(values, _PADDED)).as_py()]
    if not zeros or all(len(values) == shared for values in ids.values()):
        return
    numbers = len(set.intersection(*(set(_whole(values).to_pylist()) for values in ids.values())))
    if numbers <= shared:
        return
    cure = f", or read 007 and 7.0 as 7 with {set_options((f'dtype.{column}', 'integer'))}" if column else ""
    message = (
        f"{f'only {shared} IDs are' if shared else 'no ID is'} in all of {', '.join(ids)}, but {numbers} are as "
        f"numbers: IDs in {' and '.join(zeros)} have leading zeros or a fraction of zeros; write them in one form{cure}"
    )
    if not shared:
        raise DataError(message)
    if column:  # `predict` reports the number of people without a score instead
        _log.warning(message)


def _form(ids: pa.Array) -> str:
    """Return the most frequent form of some IDs without revealing one: digits as 9, letters as a, capital ones as A."""
    forms = Counter("".join(map(_kind, text)) for text in ids.slice(0, _SAMPLE).to_pylist())
    return forms.most_common(1)[0][0][:_LONGEST_FORM] if forms else ""


def _kind(character: str) -> str:
    if character.isdecimal():
        return "9"
    return ("A" if character.isupper() else "a") if character.isalpha() else character


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
                f"{lacking} of the {len(aligned)} aligned IDs are not in {file}, or were left out of it for want "
                "of a label; name the file that was aligned, or remove people without a label from it and align again"
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


def _first(mask: pa.Array) -> list[int]:
    """Return the first places at which a mask is true, one more than a message names."""
    return [int(place) for place in pc.indices_nonzero(mask)[: MOST_ROWS + 1].to_pylist()]


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
