"""The number format that noise is computed in, and the length that gradients are measured in.

In units of a batch's largest entry no square overflows, and that of the longest row does not vanish.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

WORKING = (torch.float32, torch.float64)
"""Number formats in which noise is computed."""


def working(g: Tensor) -> Tensor:
    """Return gradients in a number format of `WORKING`."""
    g = g.detach()
    return g if g.dtype in WORKING else g.float()


def each_run(tensor: Tensor, *, dims: int = 2) -> Sequence[Tensor]:
    """Return the part of each of R runs in (R, B, D); for a single run (B, D), only the tensor itself.

    Parameters
    ----------
    tensor : Tensor
        (B, D) or (R, B, D).
    dims : int
        Dimensions of one run's part, where it has others.
    """
    return (tensor,) if tensor.dim() == dims else tensor.unbind()


def beside(tensor: Tensor, like: Tensor) -> Tensor:
    """Return a tensor in the number format and on the device of another; copies to a GPU are not waited for."""
    return tensor.to(like, non_blocking=tensor.device.type == "cpu")


def per_run(numbers: Sequence[float], like: Tensor) -> Tensor | float:
    """Return one number a run as a tensor (R,) like another; beside a scalar, for a single run, the number."""
    return beside(torch.tensor(numbers, dtype=torch.float64), like) if like.dim() else numbers[0]


def unit_of(g: Tensor) -> Tensor:
    """Return the largest absolute entry of (..., B, D), (...); 1 where all are 0, NaN where one is.

    Examples
    --------
    >>> unit_of(torch.tensor([[[0.5, -2.0]], [[0.0, 0.0]]]))
    tensor([2., 1.])
    """
    if g.dim() == 2:
        low, high = torch.aminmax(g)
        largest = torch.maximum(-low, high)
    else:
        largest = g.abs().amax(dim=(-2, -1))  # `aminmax` of one dimension takes five times as long
    return largest.masked_fill(largest == 0.0, 1.0)
