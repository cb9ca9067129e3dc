"""Conversion of the arguments of metrics: tensors or arrays in, checked numpy arrays out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from flower_vfl.errors import ArgumentError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import TypeAlias

    from numpy.typing import NDArray
    from torch import Tensor

    Array: TypeAlias = Tensor | NDArray[Any] | Sequence[float]


_CHUNK = 1 << 20


def as_numpy(values: Array) -> NDArray[Any]:
    """Return a tensor (any device, any floating type) or an array as a numpy array, without a copy where possible.

    Metrics do not import torch: it is loaded only where there are tensors.
    """
    if hasattr(values, "detach"):
        tensor = values.detach().cpu()
        if tensor.is_floating_point() and tensor.itemsize < 4:  # numpy has no bfloat16
            tensor = tensor.float()
        array: NDArray[Any] = tensor.numpy()
        return array
    return np.asarray(values)


def binary(scores: Array, labels: Array) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    """Check scores (B,) against binary labels (B,); return the scores and the mask of the positives.

    Raises
    ------
    ArgumentError
        For other shapes, for scores that are no real numbers, and for labels that are neither 0 nor 1.
    """
    values, y = as_numpy(scores), as_numpy(labels)
    if values.ndim != 1 or values.shape != y.shape:
        raise ArgumentError(f"Scores {values.shape} and labels {y.shape}: give two vectors of one length (B,).")
    if values.dtype.kind not in "biuf":
        raise ArgumentError(f"The scores are {values.dtype}: only real numbers can be ranked.")
    if y.dtype == np.bool_:
        return values, y
    positive = y == 1
    if np.count_nonzero(positive) + np.count_nonzero(y == 0) != y.size:
        wrong = y[(y != 0) & (y != 1)][0]
        raise ArgumentError(f"The labels contain {wrong}: give 0 for negatives and 1 for positives, nothing else.")
    return values, positive


def polar(rows: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the rows' lengths (B,) and directions (B, D), 0 for a row of zeros; no square vanishes or overflows."""
    largest = np.abs(rows).max(axis=1, initial=0.0)
    scaled = rows / np.where(largest > 0, largest, 1.0)[:, None]
    lengths = np.sqrt(np.einsum("ij,ij->i", scaled, scaled))
    return lengths * largest, scaled / np.where(lengths > 0, lengths, 1.0)[:, None]


def refuse_nan(values: NDArray[Any], name: str) -> None:
    """Raise an `ArgumentError` if a value is NaN, which cannot be ranked."""
    if values.dtype.kind == "f" and np.isnan(values).any():
        count = np.count_nonzero(np.isnan(values))
        raise ArgumentError(
            f"{count} of {values.size} {name} are NaN: a NaN cannot be ranked, find where it comes from."
        )


def class_counts(labels: NDArray[Any], classes: int) -> NDArray[np.int64]:
    """Return the number of rows of each class, (C,), from class numbers (N,) of any integer type."""
    counts = np.zeros(classes, dtype=np.int64)
    for low in range(0, len(labels), _CHUNK):  # as 64-bit integers, all labels may need gigabytes
        counts += np.bincount(labels[low : low + _CHUNK].astype(np.int64), minlength=classes)
    return counts
