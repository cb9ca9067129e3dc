"""Sums over all pairs of rows of a batch, with their gradients, for the regularisers.

A batch of B rows has B^2 pairs. They are visited in strips of the upper triangle, so that each distance is computed
once, a strip fits into the processor's cache, and no more than a few strips are in memory. The gradient is computed
along with the value, from the same strips: until `backward` only its (B, D) numbers are kept.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from flower_vfl.errors import ConfigError
from flower_vfl.strategies.gradients.units import working

_HEIGHT = 64

ClassRange = tuple[int, int]
"""First row of a class and the first row after it, in a batch that is sorted by class."""


def check_batch(name: str, z: Tensor, y: Tensor) -> None:
    """Refuse tensors other than embeddings (B, ...) with one label each."""
    if not z.is_floating_point():
        raise ConfigError(f"{name}: the embedding must be of floating point, given {z.dtype}; convert it first")
    if z.dim() < 2 or y.shape != z.shape[:1]:
        raise ConfigError(f"{name}: an embedding (B, D) needs labels (B,), given {tuple(z.shape)} and {tuple(y.shape)}")


def sort_by_class(z: Tensor, y: Tensor) -> tuple[Tensor, Tensor, list[ClassRange]]:
    """Return the rows (B, D) sorted by class in the number format to compute in, their order, and the classes' runs."""
    order = torch.argsort(y, stable=True)
    counts = torch.unique_consecutive(y[order], return_counts=True)[1].tolist()
    rows = working(z).flatten(1)[order]
    runs, begin = [], 0
    for count in counts:
        runs.append((begin, begin + count))
        begin += count
    return rows, order, runs


def strips(begin: int, end: int) -> Iterator[tuple[slice, slice]]:
    """Yield the strips of the pairs of rows `begin` to `end`: some rows, and all rows from the first of them on."""
    for start in range(begin, end, _HEIGHT):
        yield slice(start, min(start + _HEIGHT, end)), slice(start, end)


def blocks_of_one_class(head: slice, runs: list[ClassRange]) -> Iterator[tuple[slice, slice]]:
    """Yield the sub-blocks of a strip of rows that contain same-class pairs."""
    for begin, end in runs:
        if begin < head.stop and end > head.start:
            first = max(begin, head.start) - head.start
            yield slice(first, min(end, head.stop) - head.start), slice(first, end - head.start)


def spread(gradient: Tensor, weights: Tensor, rows: Tensor, head: slice, tail: slice) -> None:
    """Add the weights of a strip's pairs (h, m) times the partner's row to `gradient`, for both sides of each pair."""
    gradient[head].addmm_(weights, rows[tail])
    gradient[head.stop : tail.stop].addmm_(weights[:, len(weights) :].T, rows[head])


def add_row_sums(sums: Tensor, strip: Tensor, head: slice, tail: slice) -> None:
    """Add the sums over all partners of each row to `sums` (B,), for both sides of each pair."""
    sums[head] += strip.sum(dim=1)
    sums[head.stop : tail.stop] += strip[:, len(strip) :].sum(dim=0)


def both_ways(strip: Tensor) -> Tensor:
    """Return the sum over a strip's ordered pairs: entries outside the square at its left count twice."""
    return 2.0 * strip.sum().double() - strip[:, : len(strip)].sum()


def squared_distances(rows: Tensor, squares: Tensor, head: slice, tail: slice) -> Tensor:
    """Return the squared Euclidean distances of a strip, (h, m); 0 where they are below rounding.

    They are computed from inner products, which lose distances far below the rows' lengths: center the rows.
    """
    lengths = squares[head, None] + squares[tail]
    distances = torch.addmm(lengths, rows[head], rows[tail].T, alpha=-2.0)
    lost = distances <= lengths.mul_(8.0 * torch.finfo(rows.dtype).eps)
    distances.masked_fill_(lost, 0.0).diagonal().zero_()
    return distances


class _WithGradient(torch.autograd.Function):
    """A number that was computed together with its gradient."""

    @staticmethod
    def forward(ctx: Any, z: Tensor, value: Tensor, gradient: Tensor) -> Tensor:
        ctx.save_for_backward(gradient)
        return value.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, None, None]:
        (gradient,) = ctx.saved_tensors
        return gradient * upstream.to(gradient.dtype), None, None


def wants_gradient(z: Tensor) -> bool:
    """Return True if a gradient with respect to `z` is required."""
    return torch.is_grad_enabled() and z.requires_grad


def with_gradient(z: Tensor, value: Tensor, gradient: Tensor | None, order: Tensor) -> Tensor:
    """Return a value that back-propagates `gradient` (B, D), whose rows are in this order, to `z`."""
    if gradient is None:
        return value
    unsorted = torch.empty_like(gradient)
    unsorted[order] = gradient
    result: Tensor = _WithGradient.apply(z, value, unsorted.view(z.shape).to(z.dtype))  # type: ignore[no-untyped-call]
    return result
