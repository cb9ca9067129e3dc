"""The first principal direction of the row memory: over many rows and epochs noise averages out, class means do not."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch

from flower_vfl.attacks.longitudinal.base import NO_KNOWN_ROWS, Kept, KnownRows, Memory, MemoryAttack
from flower_vfl.attacks.rows import rarer_side_up

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from torch import Tensor

    Pieces = Callable[[], Iterable[Tensor]]

ALL_EIGENVECTORS = 512
"""Largest width for which all eigenvectors are computed; for larger ones, as of images, Lanczos finds the first."""


def score(pieces: Pieces) -> Tensor:
    r"""Score each row by its coordinate along the first principal direction of all rows.

    .. math:: r(x_i) = \pm \langle x_i - \bar x, v_1 \rangle

    with :math:`v_1` the top eigenvector of the rows' covariance. The sign is chosen without labels: positives are the
    rarer class, so at most half of the scores are positive; on a tie the third moment is not negative.

    The rows are read twice, piece by piece; memory holds one (D, D) matrix of moments.

    Parameters
    ----------
    pieces
        Function that yields the rows in pieces (n, D).

    Returns
    -------
    Tensor
        (N,) of float64; zeros where all rows are equal.

    Examples
    --------
    >>> score(lambda: [torch.tensor([[1.0, 5.0], [1.0, 5.0]]), torch.tensor([[1.0, 5.0], [5.0, 5.0]])])
    tensor([-1., -1., -1.,  3.], dtype=torch.float64)
    """
    mean, covariance = moments(pieces)
    value, direction = _first(covariance)
    if not value > 1e-12 * mean.square().sum():  # rows are equal up to rounding errors
        return torch.cat([piece.new_zeros(len(piece), dtype=torch.float64) for piece in pieces()])
    along = torch.cat([piece @ direction.to(piece) for piece in pieces()]).double()
    return rarer_side_up(along - mean @ direction)


def _first(covariance: Tensor) -> tuple[Tensor, Tensor]:
    """Return the largest eigenvalue and its eigenvector (D,)."""
    width = len(covariance)
    if not covariance.any():
        return covariance[0, 0], covariance[0]
    if width <= ALL_EIGENVECTORS:
        values, vectors = torch.linalg.eigh(covariance)
        return values[-1], vectors[:, -1]
    from scipy.sparse.linalg import eigsh

    start = np.random.default_rng(0).standard_normal(width)  # ARPACK's own start changes from call to call
    values, vectors = eigsh(covariance.cpu().numpy(), k=1, v0=start)
    return covariance.new_tensor(values[0]), torch.from_numpy(vectors[:, 0]).to(covariance)


def moments(pieces: Pieces) -> tuple[Tensor, Tensor]:
    """Return mean (D,) and covariance (D, D) of rows, as float64, in one pass.

    Products are those of differences from the first piece's mean, so that a large common part costs no digits.
    """
    count, total, products = 0, torch.zeros(()), torch.zeros(())
    shift: Tensor | None = None
    for piece in pieces():
        shift = piece.mean(dim=0) if shift is None else shift
        x = piece - shift
        count, total, products = (
            count + len(x),
            total + x.sum(dim=0, dtype=torch.float64),
            products + (x.T @ x).double(),
        )
    mean = total / max(count, 1)
    return (mean if shift is None else mean + shift), products / max(count, 1) - torch.outer(mean, mean)


class RememberedDirectionAttack(MemoryAttack):
    """An attack that scores each row by its mean gradient's coordinate along the direction in which these differ most.

    It needs no label: the rarer side counts as positive.
    """

    name: ClassVar[str] = "remembered_direction"

    def score(self, memory: Memory, known: KnownRows = NO_KNOWN_ROWS) -> Tensor:
        """Return the coordinates of the mean gradients along their first direction, (N,)."""
        return score(partial(memory.pieces, "mean"))


class RememberedBatchesAttack(MemoryAttack):
    r"""An attack that scores each row by the mean gradients of its batches, along the direction in which these differ.

    Rows of a class are more often in batches with many of it. Gradients that were exchanged or averaged within their
    batch still show how many positives it has. If they show the number itself, E epochs of batches of B rows with a
    share :math:`\pi` of positives are read at an AUC of

    .. math:: \Phi\big(\sqrt{E / (2\,B\,\pi(1 - \pi))}\big)

    It needs no label, but which side counts as positive is a guess.
    """

    name: ClassVar[str] = "remembered_batches"
    keeps: frozenset[Kept] = frozenset({"batches"})

    def score(self, memory: Memory, known: KnownRows = NO_KNOWN_ROWS) -> Tensor:
        """Return the coordinates of the batches' mean gradients along their first direction, (N,)."""
        return score(partial(memory.pieces, "batches"))
