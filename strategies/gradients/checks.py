"""Checks shared by several defenses: parameters, and batches of two classes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from numbers import Real

from torch import Tensor

from flower_vfl.errors import ConfigError, UnprotectedBatchError


def is_real(value: object) -> bool:
    """Return True if a value is a real number, one of numpy included; a bool is none.

    Examples
    --------
    >>> import numpy as np
    >>> is_real(2), is_real(np.int64(2)), is_real(True), is_real("2")
    (True, True, False, False)
    """
    return isinstance(value, Real) and not isinstance(value, bool)


def strength(what: str, value: float) -> float:
    """Return a strength, a finite number of at least 0, as a float.

    Parameters
    ----------
    what : str
        The defense and its parameter, such as "iso: t".
    value : float
        The given value.

    Raises
    ------
    ConfigError
        When it is no number, negative or not finite.
    """
    if not is_real(value) or not 0.0 <= value < math.inf:
        raise ConfigError(f"{what} must be a finite number of at least 0, given {value!r}")
    return float(value)


def check_shapes(defense: str, g: Tensor, y: Tensor) -> None:
    """Refuse gradients other than (B, D), labels other than (B,), and an empty batch.

    Raises
    ------
    ConfigError
        When shapes do not fit.
    UnprotectedBatchError
        When the batch is empty.
    """
    if g.dim() != 2 or y.shape != g.shape[:1]:
        raise ConfigError(f"{defense}: gradients {tuple(g.shape)} and labels {tuple(y.shape)}; give (B, D) and (B,)")
    if not g.numel():
        raise UnprotectedBatchError(f"{defense}: the batch is empty")


def check_two_classes(defense: str, numbers: Sequence[float], counts: Sequence[float], rows: int) -> None:
    """Refuse a batch from which the two classes cannot be estimated.

    Parameters
    ----------
    defense : str
        The defense's name, for messages.
    numbers : Sequence[float]
        Statistics of all gradients: not finite if a gradient is not.
    counts : Sequence[float]
        Numbers of rows with the labels 0 and 1.
    rows : int
        Number of rows of the batch.

    Raises
    ------
    ConfigError
        When a label is neither 0 nor 1.
    UnprotectedBatchError
        When a class is missing or a value is not finite.
    """
    if not all(map(math.isfinite, numbers)):
        raise UnprotectedBatchError(f"{defense}: a gradient is not finite, so the classes cannot be estimated")
    if sum(counts) != rows:
        raise ConfigError(f"{defense} hides two classes, but some labels are neither 0 nor 1")
    if not all(counts):
        raise UnprotectedBatchError(f"{defense}: all {rows} examples of the batch are of one class; it needs both")
