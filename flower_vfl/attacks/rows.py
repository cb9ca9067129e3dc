"""Operations on rows of any scale, shared by attacks that compare directions and lengths, or read embeddings.

Gradients of 1e-30 and of 1e30 are compared as well as those of 1. Narrower floats become float64, in whose range their
squares and products stay; rows of float64 are brought to units of their own size.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from flower_vfl.errors import ArgumentError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

MOST_LEVELS, MOST_LEVEL_COLUMNS = 64, 1024
"""Largest numbers of values of one categorical column, and of all together, with a column each in `raw_features`."""


def as_rows(g: Tensor) -> Tensor:
    """Return gradients or embeddings (B, ...) as detached rows (B, D).

    Raises
    ------
    ArgumentError
        When ``g`` is no floating point tensor with a row for each example.
    """
    if g.dim() < 2 or not g.is_floating_point():
        raise ArgumentError(f"Rows of shape {tuple(g.shape)}, {g.dtype}: give a floating point tensor (B, D).")
    return g.detach().flatten(1)


def as_known(known: Tensor, g: Tensor, name: str) -> Tensor:
    """Return known gradients (k, ...), k > 0, as detached rows (k, D) of the width and on the device of the rows ``g``.

    Raises
    ------
    ArgumentError
        When there are none, or when they are of another width.
    """
    rows = as_rows(known)
    if not len(rows) or rows.shape[1] != g.shape[1]:
        raise ArgumentError(
            f"{name} of shape {tuple(known.shape)} beside gradients {tuple(g.shape)}: give at least one, all of the "
            f"gradients' width {g.shape[1]}."
        )
    return rows.to(g.device)


def required(known: Tensor | None, attack: str) -> Tensor:
    """Return the known gradients that an attack needs as side information.

    Raises
    ------
    ArgumentError
        When they are None.
    """
    if known is None:
        raise ArgumentError(
            f"The attack {attack} needs gradients of positives as side information: declare it in `needs`."
        )
    return known


def narrowed(scores: Tensor, like: Tensor) -> Tensor:
    """Return scores in the type of ``like``, but not in half precision: too many of them would be ties."""
    return scores.to(like.dtype if like.dtype.itemsize >= 4 else torch.float32)


def in_own_units(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Split rows (..., D) into rows whose largest entries lie in [1, 2), and their units (...), powers of two.

    No digit changes, and no product of such rows vanishes or overflows; a row of zeros has the unit 1.
    """
    largest = rows.abs().amax(dim=-1) if rows.shape[-1] else rows.new_zeros(rows.shape[:-1])
    unit = largest / (2.0 * torch.frexp(largest).mantissa)
    unit = unit.where((largest > 0) & largest.isfinite(), 1.0)  # a difference of two rows may have overflowed
    return rows / unit[..., None], unit


_SAFE = {torch.float32: (1e-9, 1e9), torch.float64: (1e-100, 1e100)}
"""Range of the longest row's length in which no fourth power that matters vanishes, and none overflows."""


def in_safe_units(rows: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return rows (..., B, D) in units in which sums of their squares are safe, for rows of float32 or float64.

    The units are powers of two, one a batch: no digit changes. Mostly they are 1, and the rows are returned as they
    are; do not write into them.

    Returns
    -------
    tuple of Tensor
        The rows, zeros for a batch that is not finite; (...) length of the longest row in these units, 1 where all are
        zeros; and the mask (...) of finite batches, None where all are.
    """
    if not rows.numel():
        return rows, rows.new_ones(rows.shape[:-2]), None
    longest = torch.linalg.vector_norm(rows, dim=-1).amax(dim=-1)
    least, most = _SAFE[rows.dtype]
    if all(least < one < most for one in longest.flatten().tolist()):
        return rows, longest, None
    x = in_own_units(rows.flatten(-2))[0].view(rows.shape)
    finite = x.sum(dim=(-2, -1)).isfinite()
    x = x.where(finite[..., None, None], 0.0)
    longest = torch.linalg.vector_norm(x, dim=-1).amax(dim=-1)
    return x, longest.where(longest > 0.0, 1.0), None if bool(finite.all()) else finite


def wide(rows: Tensor) -> tuple[Tensor, Tensor | None]:
    """Split rows (..., D) into float64 rows whose squares neither overflow nor vanish, and their units (...).

    The units are None for narrower rows: the range of float64 holds the squares of all narrower numbers.
    """
    if rows.dtype == torch.float64:
        return in_own_units(rows)
    return rows.double(), None


def lengths(rows: Tensor) -> Tensor:
    """Return the Euclidean norms (...) of rows (..., D), as float64."""
    x, unit = in_own_units(rows) if rows.dtype == torch.float64 else (rows, 1.0)
    found: Tensor = torch.linalg.vector_norm(x, dim=-1, dtype=torch.float64) * unit
    return found


def inner_products(known: Tensor, rows: Tensor) -> Tensor:
    """Return the inner products (..., k, B) of known rows (..., k, D) and rows (..., B, D), as float64."""
    (h, known_unit), (x, unit) = wide(known), wide(rows)
    found: Tensor = h @ x.mT
    if unit is not None:
        found = found * unit[..., None, :]
    return found if known_unit is None else found * known_unit[..., None]


def cosines(known: Tensor, rows: Tensor) -> Tensor:
    """Return the cosines (..., k, B) of known rows (..., k, D) and rows (..., B, D), as float64; 0 for a zero row."""
    (h, _), (x, _) = wide(known), wide(rows)
    both = torch.linalg.vector_norm(h, dim=-1, keepdim=True) * torch.linalg.vector_norm(x, dim=-1)[..., None, :]
    found: Tensor = (h @ x.mT) / both.where(both > 0, 1.0)
    return found


def normalised(z: Tensor) -> Tensor:
    """Return embeddings (B, ...) layer-normalised without affine: each row with mean 0 and variance 1, its shape kept.

    The potential energy defense does the same at the label party. A constant row becomes zeros.
    """
    rows, _ = wide(as_rows(z))
    centred = rows - rows.mean(dim=1, keepdim=True)
    scale = centred.square().mean(dim=1, keepdim=True).sqrt()
    constant = scale <= 1e-14 * rows.abs().amax(dim=1, keepdim=True)  # its centred values are rounding errors
    return narrowed((centred / scale.where(~constant, 1.0)).where(~constant, 0.0), z).reshape(z.shape)


def rarer_side_up(along: Tensor) -> Tensor:
    """Return scores (..., B) around 0 with their sign chosen without labels; rounding errors count as zeros.

    Positives are the rarer class: at most half of the scores are positive; on a tie the third moment is not negative.
    """
    if not along.numel():
        return along
    largest = along.gather(-1, along.abs().argmax(dim=-1, keepdim=True))
    along, largest = along * largest.sign(), largest.abs()  # the same, whatever the eigenvectors' sign was
    noise = 64 * torch.finfo(along.dtype).eps
    above, below = (along > largest * noise).sum(dim=-1), (along < -largest * noise).sum(dim=-1)
    skewness = (along / largest).pow(3).mean(dim=-1)
    turned = (above > below) | ((above == below) & (skewness < -noise))
    return torch.where(turned[..., None], -along, along)


def raw_features(inputs: Sequence[Tensor]) -> Tensor:
    """Return the inputs of a model, numbers (N, ...) and category numbers (N, K), as plain rows (N, F) of float32.

    Each category becomes a column of its own, of 0 and 1; where a column has more than `MOST_LEVELS` values, or all
    columns together more than `MOST_LEVEL_COLUMNS`, the most frequent ones do, and rows with another value have zeros
    there.

    Raises
    ------
    ArgumentError
        When there is no input.
    """
    if not inputs:
        raise ArgumentError("There are no inputs: the attack's baseline needs what the party's model takes.")
    flat = [tensor.detach().flatten(1) for tensor in inputs]
    columns = [column for tensor in flat if not tensor.is_floating_point() for column in tensor.unbind(dim=1)]
    levels = max(1, min(MOST_LEVELS, MOST_LEVEL_COLUMNS // max(1, len(columns))))
    numbers = [tensor.float() for tensor in flat if tensor.is_floating_point()]
    device = (*numbers, *flat)[0].device  # categories may have stayed in main memory
    one_hot = (torch.eq(column[:, None], frequent(column, levels)).float().to(device) for column in columns)
    return torch.cat([*numbers, *one_hot], dim=1)


def frequent(values: Tensor, most: int) -> Tensor:
    """Return the `most` most frequent values; of equally frequent ones, the smaller."""
    found, counts = torch.unique(values, return_counts=True)
    kept: Tensor = found[counts.argsort(descending=True, stable=True)[:most]]
    return kept
