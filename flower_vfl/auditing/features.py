"""Features of a batch for readers: gradients in units of their batch, and quantities of a row within its batch."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from flower_vfl.attacks.gradient.principal_direction import SharedLine
from flower_vfl.attacks.gradient.residual import residual_lengths
from flower_vfl.attacks.longitudinal.base import in_batch_units
from flower_vfl.attacks.rows import as_rows
from flower_vfl.auditing.members import ALONE, Members

MORE_QUANTITIES = 11
"""Number of quantities beside the gradient itself."""

COMPARED = 2048
"""Largest number of rows of a batch, the first ones, with which each row is compared."""

DIRECTIONS = 4
"""Number of principal directions of the batch that are removed from the residual."""

_TINY = 1e-6
"""Length below which a row counts as zero, where a batch's root mean square is 1."""


class GradientFeatures:
    """A transformer of the gradients of batches into columns, batch by batch in their order.

    The columns are the gradient in units of its batch, so that all steps have equal weight, the logarithm of the row's
    length, its distance from the batch's root mean square, the logarithm of the row's residual length without the first
    principal directions, the share of exact zeros, the evenness of its entries, its cosine with the batch's mean, its
    largest and its least cosine with another row, and its position along the first principal direction, which is
    tracked from batch to batch, signed and absolute, and the mean number of zero bits at the end of its numbers.

    Parameters
    ----------
    members : Members
        Parties whose gradients are side by side. The quantities of each member's gradient follow those of the whole.
    """

    def __init__(self, members: Members = ALONE) -> None:
        self._members = members
        self._followers = [SharedLine() for _ in range(1 + len(members.names))]

    @property
    def more(self) -> int:
        """Number of columns beside the gradient."""
        return MORE_QUANTITIES * len(self._followers)

    def of(self, g: Tensor) -> Tensor:
        """Return the columns (B, D + `more`) of a batch's gradients (B, ...), float32 and finite."""
        x, found = in_batch_units(g), list[Tensor]()
        of_views = zip(self._members.views(x), self._members.views(as_rows(g)), self._followers, strict=True)
        for (name, part), (_, sent), follower in of_views:
            found += [_quantities(in_batch_units(part) if name else x, follower), _unused_bits(sent)[:, None]]
        return torch.cat([x, *found], dim=1)

    def views(self, columns: Tensor) -> list[tuple[str, Tensor]]:
        """Return the inputs of readers: all columns (n, F), named "", and each member's gradient and quantities."""
        width = columns.shape[1] - self.more
        found = [("", columns)]
        for place, (name, part) in enumerate(self._members.split(columns[:, :width])):
            first = width + MORE_QUANTITIES * (1 + place)
            found.append((name, torch.cat([part, columns[:, first : first + MORE_QUANTITIES]], dim=1)))
        return found

    def state(self) -> list[dict[str, Tensor]]:
        """Return the state that a resumed run needs."""
        return [follower.state() for follower in self._followers]

    def restore(self, state: Sequence[dict[str, Tensor]]) -> None:
        """Restore the result of `state`."""
        for follower, entry in zip(self._followers, state, strict=True):
            follower.restore(entry)


def _quantities(x: Tensor, follower: SharedLine) -> Tensor:
    """Return the quantities (B, `MORE_QUANTITIES` - 1) of gradients (B, D) in units of their batch."""
    width = max(x.shape[1], 1)
    length = torch.linalg.vector_norm(x, dim=1)
    relative = (length / width**0.5).clamp(min=_TINY).log()
    residual = residual_lengths(x[None], DIRECTIONS)[0].float()
    even = (torch.linalg.vector_norm(x, ord=1, dim=1) / (length * width**0.5).clamp(min=_TINY)).clamp(min=_TINY)
    along = follower.place(x).along
    mean = x.mean(dim=0)
    cosine = (x @ mean) / (length * torch.linalg.vector_norm(mean)).clamp(min=_TINY)
    found = [
        relative,
        relative.abs(),
        (residual / width**0.5).clamp(min=_TINY).log(),
        torch.eq(x, 0.0).float().mean(dim=1),
        even.log(),
        cosine,
        *_nearest_and_opposite(x, length),
        along,
        along.abs(),
    ]
    return torch.stack(found, dim=1)


def _unused_bits(g: Tensor) -> Tensor:
    """Return the mean number (B,) of zeros at the end of the numbers of gradients (B, D), as 32-bit floats.

    Numbers that were rounded, to half precision or to a grid, end in more zeros than others.
    """
    bits = g.float().contiguous().view(torch.int32)
    last = (bits & -bits).abs().clamp(max=1 << 23).float()  # the last bit that is set; 0 of a zero
    return torch.where(last > 0, last.log2(), 23.0).mean(dim=1)


def _nearest_and_opposite(x: Tensor, length: Tensor) -> tuple[Tensor, Tensor]:
    """Return the largest and the least cosine (B,) of each row with another one; 0 where there is none.

    Noise that rows share, or that is drawn in pairs of opposite sign, hides a label from every reader of single rows.
    """
    units = x / length.clamp(min=_TINY)[:, None]
    cosines = (units @ units[:COMPARED].mT).fill_diagonal_(0.0)
    return cosines.amax(dim=1), cosines.amin(dim=1)


def with_embeddings(columns: Tensor, z: Tensor) -> Tensor:
    """Return the columns (B, F') of a reader that has embeddings (B, ...) beside gradient columns (B, F).

    The gradients are the first of these columns, as wide as the embeddings. Entrywise products and their sum are added
    to both: a label may be hidden in the sign of one relative to the other.
    """
    rows = as_rows(z).float()
    products = columns[:, : rows.shape[1]] * rows
    return torch.cat([columns, rows, products, products.sum(dim=1, keepdim=True)], dim=1)
