"""Hints over the epochs: the attacker knows a few positives, and searches for rows with similar mean gradients."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, ClassVar, Literal, get_args

import torch

from flower_vfl.attacks.base import HINTS, one_of, whole
from flower_vfl.attacks.longitudinal.base import NO_KNOWN_ROWS, KnownRows, Memory, MemoryAttack

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from torch import Tensor

RowMeasure = Literal["inner", "cosine"]


def score(pieces: Callable[[], Iterable[Tensor]], known: Tensor, measure: RowMeasure = "inner") -> Tensor:
    r"""Score each row by its nearness to the mean of known positives, both relative to the mean of all rows.

    .. math:: r(x_i) = \langle x_i - \bar x, \; \bar h - \bar x \rangle \quad \text{or their cosine}

    Parameters
    ----------
    pieces
        Function that yields the rows in pieces (n, D).
    known
        (k, D) rows of positives, k > 0.
    measure
        Measure of nearness: "inner" or "cosine".

    Returns
    -------
    Tensor
        (N,) of float64; a row at the mean of all has 0.

    Examples
    --------
    >>> rows = torch.tensor([[2.0, 0.0], [-1.0, 1.0], [-1.0, -1.0]])
    >>> score(lambda: [rows], rows[:1], "cosine")
    tensor([ 1.0000, -0.7071, -0.7071], dtype=torch.float64)
    """
    count, total = 0, torch.zeros((), dtype=torch.float64)
    for piece in pieces():
        count, total = count + len(piece), total + piece.sum(dim=0, dtype=torch.float64)
    mean = total / max(count, 1)
    towards = known.double().mean(dim=0) - mean
    found = []
    for piece in pieces():
        x = piece.double() - mean
        inner = x @ towards
        if measure == "cosine":
            both = torch.linalg.vector_norm(x, dim=1) * torch.linalg.vector_norm(towards)
            inner = inner / both.where(both > 0, 1.0)
        found.append(inner)
    return torch.cat(found)


class RememberedHintAttack(MemoryAttack):
    """An attack that scores each row by the nearness of its mean gradient to those of k known positives.

    Parameters
    ----------
    k
        Number of positives that it knows, at least 1.
    measure
        "inner" or "cosine".
    """

    name: ClassVar[str] = "remembered_hint"
    needs: ClassVar[frozenset[str]] = frozenset({HINTS})

    def __init__(self, k: int = 5, measure: RowMeasure = "inner") -> None:
        self.k = whole(self.name, "k", k)
        self.measure = one_of(self.name, "measure", measure, get_args(RowMeasure))

    @property
    def hints(self) -> int:
        """The number of positives that it knows."""
        return self.k

    def score(self, memory: Memory, known: KnownRows = NO_KNOWN_ROWS) -> Tensor:
        """Return the nearness of the mean gradients to those of the known positives, (N,)."""
        positives = known.require(1).rows[known.labels == 1]
        return score(partial(memory.pieces, "mean"), memory.at(positives, "mean"), self.measure)
