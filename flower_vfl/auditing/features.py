"""What readers see of a batch: gradients in units of their batch, and quantities of a row within its batch."""

from __future__ import annotations

import torch
from torch import Tensor

from flower_vfl.attacks.principal import Follower
from flower_vfl.attacks.remembering import in_batch_units
from flower_vfl.attacks.residual import residual_lengths
from flower_vfl.attacks.rows import as_rows

MORE = 8
"""Columns beside the gradient itself."""

DIRECTIONS = 4
"""Principal directions of the batch whose remainder counts as residual."""

_TINY = 1e-6
"""Length below which a row counts as zero, where a batch's root mean square is 1."""


class GradientFeatures:
    """Turns the gradients of batches into columns, batch by batch in their order.

    Beside the gradient in units of its batch, so that all steps weigh alike, stand: the logarithm of the row's length,
    how far that is from the batch's root mean square, the logarithm of what the first principal directions leave of
    the row, the share of exact zeros, how evenly its entries are spread, its cosine with the batch's mean, and its
    place along the first principal direction, which is followed from batch to batch, signed and not.
    """

    def __init__(self) -> None:
        self._follower = Follower()

    def of(self, g: Tensor) -> Tensor:
        """Return the columns (B, D + `MORE`) of a batch's gradients (B, ...), float32 and finite."""
        x = in_batch_units(g)
        width = max(x.shape[1], 1)
        length = torch.linalg.vector_norm(x, dim=1)
        relative = (length / width**0.5).clamp(min=_TINY).log()
        residual = residual_lengths(x[None], DIRECTIONS)[0].float()
        even = (torch.linalg.vector_norm(x, ord=1, dim=1) / (length * width**0.5).clamp(min=_TINY)).clamp(min=_TINY)
        along = self._follower.place(x).along
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

    def state(self) -> dict[str, Tensor]:
        """Return what a resumed run needs."""
        return self._follower.state()

    def restore(self, state: dict[str, Tensor]) -> None:
        """Take up what `state` returned."""
        self._follower.restore(state)


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
