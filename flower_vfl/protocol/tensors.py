"""Conversion of tensors to Flower arrays and back; frames without tensors need neither this module nor torch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from math import prod

import numpy as np
import torch
from flwr.app import Array
from torch import Tensor

from flower_vfl.errors import ProtocolError

_RAW = "flower-vfl.raw"
_MAX_DIMENSIONS = 8
_MAX_ELEMENTS = 2**40

DTYPES: dict[str, torch.dtype] = {
    name: getattr(torch, name) for name in ("float32", "float64", "float16", "bfloat16", "int64", "uint8")
}
"""Number formats that can be sent, by name."""

DTYPE_NAMES = {dtype: name for name, dtype in DTYPES.items()}


def is_finite(tensor: Tensor) -> bool:
    """Return True if all values of a floating point tensor are finite; the sum is 30 times faster than a mask."""
    # The sum of finite numbers may overflow, so a non-finite sum is only a reason to check each value.
    return math.isfinite(tensor.sum().item()) or bool(torch.isfinite(tensor).all())


def brought(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return tensors of one device in main memory, by one copy, which waits for a GPU once.

    They are copied as float64, which holds every float32 and every whole number up to 2^53. Tensors that are in main
    memory already are not copied.
    """
    if all(tensor.device.type == "cpu" for tensor in tensors):
        return [tensor.detach() for tensor in tensors]
    flat = torch.cat([tensor.detach().flatten().double() for tensor in tensors]).cpu()
    pieces = torch.split(flat, [tensor.numel() for tensor in tensors])
    return [piece.view(tensor.shape).to(tensor.dtype) for piece, tensor in zip(pieces, tensors, strict=True)]


def to_array(tensor: Tensor) -> Array:
    """Wrap a tensor as a Flower `Array` of raw little-endian bytes (Flower's own encoding has no bfloat16)."""
    name = DTYPE_NAMES.get(tensor.dtype)
    if name is None:
        raise ProtocolError(f"tensors of {tensor.dtype} do not travel; allowed: {', '.join(DTYPES)}")
    flat = tensor.detach().to("cpu").contiguous()
    if tensor.dtype == torch.bfloat16:
        flat = flat.view(torch.int16)
    return Array(name, tuple(tensor.shape), _RAW, flat.numpy().tobytes())


def from_array(name: str, array: Array) -> Tensor:
    """Return the tensor `name` from its array; ProtocolError when its format or shape cannot be sent."""
    dtype = DTYPES.get(array.dtype)
    if dtype is None or array.stype != _RAW:
        raise ProtocolError(f"{name!r} has the unknown type {array.dtype!r} / {array.stype!r}")
    shape = tuple(array.shape)
    # Sizes of 0 count as 1: torch computes the strides of an empty tensor too, and they must not overflow.
    if (
        len(shape) > _MAX_DIMENSIONS
        or min(shape, default=0) < 0
        or prod(max(1, size) for size in shape) > _MAX_ELEMENTS
    ):
        raise ProtocolError(f"{name!r} has an impossible shape of {len(shape)} dimensions")
    elements = prod(shape)
    if elements * dtype.itemsize != len(array.data):
        raise ProtocolError(
            f"{name!r} of shape {shape} needs {elements * dtype.itemsize} bytes, given {len(array.data)}"
        )
    # Copied into memory that torch aligned: some kernels round differently on unaligned input.
    tensor = torch.empty(elements, dtype=dtype)
    tensor.view(torch.uint8).numpy()[:] = np.frombuffer(array.data, dtype=np.uint8)
    return tensor.view(shape)
