"""Encoding of labels as classes 0 to C - 1; labels that cannot be classes are refused."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from flower_vfl.data.encoding.messages import named_rows, option_line
from flower_vfl.data.encoding.reading import FALSE, without_fraction
from flower_vfl.data.encoding.values import Place, parse_numbers, texts
from flower_vfl.errors import DataError, suggestion

_TENSOR_TYPES = frozenset({"uint8", "int8", "int16", "int32", "int64"})
"""Integer types that a tensor can share with an array."""

MAX_CLASSES = 1000
_FEW, _ALMOST_ALL = 20, 0.95
"""Number of classes, and share of numbers among them, above which labels may be a regression target."""

_EXAMPLES = 3
"""Largest number of labels in a message."""

_ABSENT = ("", "na", "n/a", "#n/a", "<na>", "nan", "null", "?")
_NEGATIVES = ("0", "-1", "-", "negative", *FALSE)
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class EncodedLabels:
    """Labels as classes.

    Parameters
    ----------
    train, test : ndarray of int64, (N,)
        Class of each row.
    names : tuple of str
        Name of each class in the source.
    """

    train: NDArray[np.int64]
    test: NDArray[np.int64]
    names: tuple[str, ...]


def encode_labels(train: pa.ChunkedArray, test: pa.ChunkedArray, place: Place, positive: str = "") -> EncodedLabels:
    """Return labels as classes, which are those of the training rows.

    Two values become 0 and 1: 1 is `positive`, else the value that is not 0, -1, -, negative or one of `FALSE` (no,
    nein, non), else the later one in sorting. More values become classes in sorted order, or, with `positive`, that
    value against the rest.

    Parameters
    ----------
    train, test : pyarrow arrays
        Labels as they stand in the file.
    place : Place
        Origin of the labels, for messages.
    positive : str
        The value that counts as positive; empty to choose it as described.

    Raises
    ------
    DataError
        When a label is missing, all are the same, there are more than 1000, they look like a regression target, a test
        row has a class that no training row has, or `positive` is none of them.
    """
    for part in (train, test):
        require_labels(part, place)
    values = _canonical([texts(part, place) for part in (train, test)], place)
    names = _sorted(pc.unique(values[0]).to_pylist())
    unknown = _sorted(set(pc.unique(values[1]).to_pylist()) - set(names))
    _check_names(names, len(values[0]), place)
    alike = _alike(names)
    if alike:
        _log.warning(
            "%s: the labels %s in column %r differ in upper and lower case alone, and are different classes; write "
            "them in one way if they are the same",
            *(place.file, " and ".join(map(repr, alike)), place.column),
        )
    if unknown:
        raise DataError(
            f"{place.file}: column {place.column!r} has test rows of class {unknown[0]!r}, which no training row has; "
            f"training rows have {_examples(names)}: {_without_unknown(unknown, names)}"
        )
    if positive and positive not in names:
        raise DataError(f"{place.file}: no label is {positive!r} (option positive); {suggestion(positive, names[:50])}")
    if positive or len(names) == 2:
        return _binary(values, names, positive)
    mapping = pa.array(names)
    classes = [_ids(pc.index_in(part, value_set=mapping)) for part in values]
    return EncodedLabels(classes[0], classes[1], tuple(names))


def _alike(names: Sequence[str]) -> list[str]:
    """Return the first names that differ in upper and lower case alone."""
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(name.casefold(), []).append(name)
    return next((group for group in groups.values() if len(group) > 1), [])


def known_labels(
    column: pa.ChunkedArray, names: Sequence[str], place: Place, positive: str = "", missing: Sequence[str] = ()
) -> tuple[pa.Array, NDArray[np.int64]]:
    """Return a mask (N,) of the rows whose label occurs in training, and the classes of these rows.

    Parameters
    ----------
    column : pyarrow.ChunkedArray
        Labels as they stand in the file.
    names : sequence of str
        Name of each class, as `encode_labels` returned them.
    place : Place
        Origin of the labels, for messages.
    positive : str
        Value of `positive` that `encode_labels` received.
    missing : sequence of str
        Texts that mark a missing label, besides the usual ones.

    Raises
    ------
    DataError
        When they look like a regression target.
    """
    kept = labelled(column, place, missing)
    trained = pa.array([positive] if positive else names, pa.string())
    values, _ = _canonical([texts(column.filter(kept), place), trained], place)
    wanted = values if positive else pa.array(names)
    known = pc.is_in(values, value_set=wanted)
    mask = np.asarray(kept).copy()
    mask[mask] = np.asarray(known)
    values = values.filter(known)
    classes = pc.cast(pc.equal(values, positive), pa.int64()) if positive else pc.index_in(values, value_set=wanted)
    return pa.array(mask), _ids(classes)


def labelled(column: pa.ChunkedArray, place: Place, missing: Sequence[str] = ()) -> pa.Array:
    """Return a mask (N,) of the rows with a label; `missing` are texts that mark no label, besides the usual ones.

    Raises
    ------
    DataError
        When labels are neither numbers nor texts.
    """
    values = texts(column, place)
    absent = pc.is_in(pc.utf8_lower(values), value_set=pa.array(_ABSENT))
    named = without_fraction(pa.array(list(missing), pa.string()))
    return pc.invert(pc.or_(absent, pc.is_in(without_fraction(values), value_set=named)))


def require_labels(
    column: pa.ChunkedArray,
    place: Place,
    needed: pa.Array | None = None,
    missing: Sequence[str] = (),
    *,
    cure: str = "",
) -> None:
    """Check that no label is missing.

    Parameters
    ----------
    column : pyarrow.ChunkedArray
        Labels in the order of the file, so that a message names the row of the file.
    place : Place
        Origin of the labels, for messages.
    needed : pyarrow.Array of bool, optional
        The rows that need one; all by default.
    missing : sequence of str
        Texts that mark a missing label, besides the usual ones.
    cure : str
        Advice at the end of the message.

    Raises
    ------
    DataError
        When labels are missing (the message has their number and the first row), or are neither numbers nor texts.
    """
    absent = pc.invert(labelled(column, place, missing))
    if needed is not None:
        absent = pc.and_(absent, needed)
    if pc.any(absent).as_py():
        row, number = pc.index(absent, True).as_py(), pc.sum(absent).as_py()
        rows = "" if needed is None else f" in the {pc.sum(needed).as_py()} rows of shared IDs"
        raise DataError(
            f"{place.file}: column {place.column!r} has {number} missing label{'s' if number > 1 else ''}{rows}, the "
            f"first in {named_rows(place.file, [row])}{cure}"
        )


def _binary(values: list[pa.Array], names: list[str], positive: str) -> EncodedLabels:
    chosen = positive or next((name for name in names if _other(names, name).lower() in _NEGATIVES), names[-1])
    rest = _other(names, chosen) if len(names) == 2 else f"not {chosen}"
    if not positive:
        _log.info("label %r is the positive class, %r the negative one; the option positive changes it", chosen, rest)
    classes = [_ids(pc.cast(pc.equal(part, chosen), pa.int64())) for part in values]
    if len(np.unique(classes[0])) < 2:
        raise DataError(f"all training rows have the same class, {rest!r} or {chosen!r}: nothing can be learned")
    return EncodedLabels(classes[0], classes[1], (rest, chosen))


def _other(names: list[str], name: str) -> str:
    return next(other for other in names if other != name) if len(names) == 2 else ""


def _ids(array: pa.Array) -> NDArray[np.int64]:
    return np.asarray(array.to_numpy(zero_copy_only=False), dtype=np.int64)


def _canonical(parts: list[pa.Array], place: Place) -> list[pa.Array]:
    """Return labels as texts, without a fraction where all parts are whole numbers: 1, 1.0 and "1" are one class."""
    raw = pa.concat_arrays(parts)
    numbers, unreadable = parse_numbers(raw)
    if unreadable.any() or not len(numbers):
        return parts
    whole = numbers == np.floor(numbers)
    different = len(np.unique(numbers))
    if not whole.all() and different > 2:
        raise DataError(
            f"{place.file}: column {place.column!r} looks like a regression target ({different} different numbers, "
            f"{raw[int((~whole).argmax())].as_py()} among them); only classes are supported: make it classes, "
            "for instance by a threshold"
        )
    if not whole.all() or np.abs(numbers).max() >= 2**53:
        return parts
    written = pa.array(numbers.astype(np.int64)).cast("string")
    return [written.slice(0, len(parts[0])), written.slice(len(parts[0]))]


def _check_names(names: list[str], rows: int, place: Place) -> None:
    if len(names) < 2:
        raise DataError(
            f"{place.file}: column {place.column!r} is {names[0] if names else 'empty'!r} in every training row: there "
            "is nothing to learn; two classes at least are needed"
        )
    if len(names) > MAX_CLASSES or (len(names) > _FEW and rows < 2 * len(names)):
        raise DataError(
            f"{place.file}: column {place.column!r} has {len(names)} different labels in {rows} training rows, among "
            f"them {_examples(names)}: this is no classification; up to {MAX_CLASSES} classes are supported, each with "
            f"several rows: {_regression_target(names) or 'merge labels, or name another column in the option label'}"
        )


def _without_unknown(unknown: list[str], names: list[str]) -> str:
    """Return what to do about classes of test rows alone."""
    target = _regression_target([*names, *unknown])
    if target:
        return target
    drop = f"{option_line('missing_values', unknown)} and {option_line('unlabelled', 'drop')} below [data.options]"
    left_out = f"leave such rows out with {drop}, " if len(unknown) <= _EXAMPLES else ""
    return f"{left_out}merge rare classes into one, or choose other test rows with another split_seed"


def _regression_target(names: list[str]) -> str:
    """Return what to do about labels most of which are different numbers; "" for others."""
    numbers = len(names) - int(parse_numbers(pa.array(names, pa.string()))[1].sum())
    if len(names) <= _FEW or numbers < _ALMOST_ALL * len(names):
        return ""
    return (
        f"{numbers} of its {len(names)} different labels are numbers, and it looks like a regression target; only "
        "classes are supported: make it classes, for instance by a threshold"
    )


def _examples(names: list[str]) -> str:
    return ", ".join(names[:_EXAMPLES]) + (", ..." if len(names) > _EXAMPLES else "")


def _sorted(names: set[str] | list[str]) -> list[str]:
    """Sort numbers by value and texts by character."""
    ordered = sorted(names)
    numbers, unreadable = parse_numbers(pa.array(ordered, pa.string()))
    return ordered if unreadable.any() else [ordered[place] for place in numbers.argsort(kind="stable")]


def whole_labels(labels: object) -> NDArray[np.int64]:
    """Return labels (N,) as an array that tensors can share: integers in native byte order, contiguous.

    Raises
    ------
    DataError
        When they are no whole numbers or booleans, or not a vector.
    """
    values = np.asanyarray(labels)
    if values.dtype.kind == "f":
        with np.errstate(invalid="ignore"):  # what is not finite is not whole
            whole = bool((values % 1 == 0).all())
        values = values.astype(np.int64) if whole else values
    if values.ndim != 1 or values.dtype.kind not in "biu":
        raise DataError(
            f"labels are whole numbers (N,), the class of each row, given {values.dtype} {values.shape}; with "
            "labels.astype(int), or np.unique(labels, return_inverse=True)[1], classes become such"
        )
    shared = values.dtype.isnative and values.dtype.name in _TENSOR_TYPES and values.flags.c_contiguous
    return values if shared else np.ascontiguousarray(values, dtype=np.int64)
