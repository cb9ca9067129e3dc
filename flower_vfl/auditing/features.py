"""What readers see of a batch: gradients in units of their batch, and quantities of a row within its batch."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from flower_vfl.attacks.remembering import in_batch_units
from flower_vfl.attacks.rows import as_rows

MORE = 8
"""Columns beside the gradient itself."""

DIRECTIONS = 4
"""Principal directions of the batch whose remainder counts as residual."""

_EXACT = 64
"""Up to so many rows or columns, whichever are fewer, principal directions come from all eigenvectors."""

_TINY = 1e-6
"""Length below which a row counts as zero, where a batch's root mean square is 1."""


class GradientFeatures:
    """Turns the gradients of batches into columns, batch by batch in their order.

    Beside the gradient in units of its batch, so that all steps weigh alike, stand: the logarithm of the row's length,
    how far that is from the batch's root mean square, the logarithm of what the first principal directions leave of
    the row, the share of exact zeros, how evenly its entries are spread, its cosine with the batch's mean, and its
    place along the first principal direction, signed and not. The side of that direction is free: it is followed from
    batch to batch.
    """

    def __init__(self) -> None:
        self._direction: Tensor | None = None

    def of(self, g: Tensor) -> Tensor:
        """Return the columns (B, D + `MORE`) of a batch's gradients (B, ...), float32 and finite."""
        x = in_batch_units(g)
        width = max(x.shape[1], 1)
        length = torch.linalg.vector_norm(x, dim=1)
        relative = (length / width**0.5).clamp(min=_TINY).log()
        centred = x - x.mean(dim=0)
        first = _directions(centred, DIRECTIONS)
        residual = torch.linalg.vector_norm(centred - (centred @ first) @ first.T, dim=1)
        even = (torch.linalg.vector_norm(x, ord=1, dim=1) / (length * width**0.5).clamp(min=_TINY)).clamp(min=_TINY)
        along = centred @ self._follow(first[:, 0]) if first.shape[1] else torch.zeros_like(length)
        mean = x.mean(dim=0)
        cosine = (x @ mean) / (length * torch.linalg.vector_norm(mean)).clamp(min=_TINY)
        more = [
            relative,
            relative.abs(),
            (residual / width**0.5).clamp(min=_TINY).log(),
            torch.eq(x, 0.0).float().mean(dim=1),
            even.log(),
            cosine,
            along,
            along.abs(),
        ]
        return torch.cat([x, torch.stack(more, dim=1)], dim=1)

    def _follow(self, direction: Tensor) -> Tensor:
        """Return the direction with the sign that is nearer to that of the batch before."""
        last = self._direction
        if last is not None and last.shape == direction.shape and float(last @ direction.to(last)) < 0.0:
            direction = -direction
        self._direction = direction
        return direction

    def state(self) -> dict[str, Tensor]:
        """Return what a resumed run needs."""
        return {} if self._direction is None else {"direction": self._direction}

    def restore(self, state: dict[str, Tensor]) -> None:
        """Take up what `state` returned."""
        self._direction = state.get("direction")


def with_embeddings(gradients: Tensor, z: Tensor) -> Tensor:
    """Return the columns (B, F) of a reader that has embeddings (B, ...) beside gradient columns (B, D + `MORE`).

    Where both are equally wide, as at a cut, entrywise products and their sum stand beside them: a label may be
    hidden in the sign of one relative to the other.
    """
    rows = as_rows(z).float()
    x = gradients[:, : gradients.shape[1] - MORE]
    if x.shape != rows.shape:
        return torch.cat([gradients, rows], dim=1)
    products = x * rows
    return torch.cat([gradients, rows, products, products.sum(dim=1, keepdim=True)], dim=1)


def _directions(centred: Tensor, r: int) -> Tensor:
    """Return the first r principal directions (D, r) of centred rows (B, D), fewer of fewer rows, the largest first."""
    count, width = centred.shape
    r = min(r, width // 2, count - 1)
    if r < 1:
        return centred.new_zeros(width, 0)
    if min(count, width) > _EXACT:
        basis = torch.linalg.qr(centred.T @ (centred @ _start(width, 2 * r).to(centred))).Q
        wide: Tensor = basis @ _eigenvectors(_moments(centred @ basis), r)
        return wide
    if width <= count:
        return _eigenvectors(_moments(centred), r)
    found: Tensor = torch.linalg.qr(centred.T @ _eigenvectors(centred @ centred.T, r)).Q
    return found


def _eigenvectors(symmetric: Tensor, r: int) -> Tensor:
    """Return the first r eigenvectors (n, r), that of the largest eigenvalue first."""
    vectors: Tensor = torch.linalg.eigh(symmetric).eigenvectors
    return vectors.flip(-1)[:, :r]


def _moments(tall: Tensor) -> Tensor:
    return tall.T @ tall


@lru_cache(maxsize=16)
def _start(width: int, columns: int) -> Tensor:
    """Return where subspace iteration begins, (D, columns): the same each time."""
    return torch.randn(width, columns, generator=torch.Generator().manual_seed(0))
