"""The true labels that attacks are scored with, and which of them an attack knows as side information."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from flower_vfl.attacks.base import HINTS, REFERENCE
from flower_vfl.attacks.embedding.inference import LEAKED
from flower_vfl.attacks.longitudinal.base import KnownRows
from flower_vfl.errors import ConfigError, ProtocolError
from flower_vfl.metrics.arrays import class_counts
from flower_vfl.protocol.schedule import Rows
from flower_vfl.rng import scattered

_DRAWS = {REFERENCE: 1, HINTS: 2, LEAKED: 3}

UNSEEN_ROW = 255
"""Mark of rows that an attack does not have among labels of 0 and 1."""


class AuditLabels:
    """True labels for scoring in a simulation, handed over in pieces; no attack ever sees them.

    Parameters
    ----------
    rows : int
        Number of rows of the table.
    positives : Sequence[int]
        Classes that attacks detect, one in each scored step, in turn; if empty, class 1 of two, or all of more.
    """

    PIECE = 32_768
    """Largest number of labels in one frame."""

    CLASSES = 256
    """Number of class numbers that a label of one byte can hold."""

    def __init__(self, rows: int, *, positives: Sequence[int] = ()) -> None:
        self._labels = np.zeros(rows, dtype=np.uint8)
        self._filled, self._positives, self.classes = 0, positives, 2

    @classmethod
    def of(cls, labels: NDArray[Any], *, classes: int = 2, positives: Sequence[int] = ()) -> AuditLabels:
        """Return complete audit labels with these class numbers."""
        audit = cls(0, positives=positives)
        audit._labels, audit._filled, audit.classes = labels, len(labels), classes
        return audit

    def fill(self, offset: int, piece: torch.Tensor, *, classes: int) -> None:
        """Fill in one piece; the pieces must come in order.

        Raises
        ------
        ProtocolError
            When the piece does not follow the last one, or the number of classes is impossible.
        """
        if not 2 <= classes <= self.CLASSES:
            raise ProtocolError(f"audit labels of {classes} classes came; 2 to {self.CLASSES} are possible")
        self.classes = classes
        if offset != self._filled or offset + len(piece) > len(self._labels):
            raise ProtocolError(f"audit labels from row {offset} came, row {self._filled} was next")
        self._labels[offset : offset + len(piece)] = piece.numpy()
        self._filled += len(piece)

    @property
    def numbers(self) -> NDArray[Any]:
        """The class number of each row, (N,)."""
        return self._labels

    @property
    def complete(self) -> bool:
        """True if all labels are filled in."""
        return self._filled == len(self._labels)

    def class_counts(self, without: Rows) -> tuple[int, ...]:
        """Return the number of rows of each class, without some; none before all labels are filled in."""
        return tuple(class_counts(np.delete(self._labels, without), self.classes).tolist()) if self.complete else ()

    @property
    def positives(self) -> Sequence[int]:
        """The classes that are detected, one in each scored step, in turn."""
        return self._positives or ((1,) if self.classes == 2 else range(self.classes))

    def positive(self, turn: int) -> int:
        """Return the class that is detected in a scored step; the first one is turn 0."""
        return self.positives[turn % len(self.positives)]

    def at(self, rows: NDArray[np.integer]) -> NDArray[Any]:
        """Return the class numbers of the rows of a batch, (B,)."""
        return self._labels.take(rows)


def draw_positives(labels: NDArray[Any], step: int, kind: str) -> NDArray[np.int64]:
    """Return the positions of the batch's positives in random order.

    The draw depends on the step and on its purpose alone: every engine, every party and a resumed run draw the same,
    and two defenses are compared with the same side information.
    """
    positives = np.flatnonzero(labels)
    numbers = positives.astype(np.uint64) + np.uint64((_DRAWS[kind] << 60) + (step << 24))
    return positives[scattered(numbers).argsort()]


def draw_examples(labels: NDArray[Any], draw: int, *, classes: int, count: int) -> NDArray[np.int64]:
    """Return the rows (C * count,) of labelled examples that leak, the same number of each class.

    The draw depends on its number alone, and a smaller one is part of a larger one: two defenses, and two numbers of
    leaked labels, are compared with the same side information.

    Raises
    ------
    ConfigError
        When a class has fewer rows than ``count``.
    """
    drawn = []
    for number in range(classes):
        rows = np.flatnonzero(labels == number)
        if len(rows) < count:
            raise ConfigError(
                f"{count} labelled examples of each class were to leak; of class {number} the training rows have "
                f"{len(rows) or 'none'}: lower k"
            )
        order = scattered(rows.astype(np.uint64) + np.uint64((_DRAWS[LEAKED] << 60) + (draw << 40))).argsort()
        drawn.append(rows[order[:count]])
    return np.concatenate(drawn)


def draw_known(labels: NDArray[np.uint8], count: int) -> KnownRows | None:
    """Return `count` known rows of each class by labels of 0, 1 or `UNSEEN_ROW`, sorted; None if they are too few."""
    try:
        rows = np.sort(draw_examples(labels, 0, classes=2, count=count))
    except ConfigError:  # in time order, the first days may have too few
        return None
    return KnownRows(rows, labels[rows].astype(np.int64))
