"""The number format that noise is computed in, and the length that gradients are measured in.

In units of a batch's own largest entry no square overflows, and of the longest row none vanishes.
"""

from __future__ import annotations

import torch
from torch import Tensor

WORKING = (torch.float32, torch.float64)
"""Number formats in which noise is computed."""


def working(g: Tensor) -> Tensor:
    """Return gradients in a number format of `WORKING`."""
    g = g.detach()
    return g if g.dtype in WORKING else g.float()


def beside(tensor: Tensor, like: Tensor) -> Tensor:
    """Return a tensor in the number format and on the device of another; copies to a GPU are not waited for."""
    return tensor.to(like, non_blocking=tensor.device.type == "cpu")


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
