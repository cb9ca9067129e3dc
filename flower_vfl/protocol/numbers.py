"""Half-precision wire formats of embeddings and cut gradients."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from flower_vfl.errors import ProtocolError
from flower_vfl.protocol.frame import Frame
from flower_vfl.protocol.tensors import DTYPES

_SCALE, _DTYPE = ".scale", ".dtype"
_WIRE = {"float16": torch.float16, "bfloat16": torch.bfloat16}
_FULL = (torch.float32, torch.float64)


def compress(frame: Frame, wire_dtype: str) -> Frame:
    """Return the frame with its floating-point tensors in `wire_dtype` ("exact" leaves them).

    float16 has five bits of exponent and cut gradients of 1e-9 are normal, so each row is sent divided by its largest
    magnitude, and with that magnitude, one number a row in the tensor's own format.
    """
    if wire_dtype == "exact":
        return frame
    tensors: dict[str, Tensor] = {}
    fields = dict(frame.fields)
    for name, tensor in frame.tensors.items():
        if tensor.dtype not in _FULL or tensor.dim() == 0 or tensor.numel() == 0:
            tensors[name] = tensor
            continue
        fields[name + _DTYPE] = str(tensor.dtype).removeprefix("torch.")
        if wire_dtype == "float16":
            scale = tensor.reshape(len(tensor), -1).abs().amax(dim=1)
            safe = torch.where(scale > 0, scale, torch.ones_like(scale))
            tensors[name] = (tensor / safe.view(-1, *[1] * (tensor.dim() - 1))).to(torch.float16)
            tensors[name + _SCALE] = scale
        else:
            tensors[name] = tensor.to(_WIRE[wire_dtype])
    return Frame(frame.kind, frame.step, fields, tensors)


def expand(frame: Frame, wire_dtype: str) -> Frame:
    """Undo `compress`: return the frame with its tensors in the number format that they had.

    A row with a scale that is not finite has values that are not finite, and `Frame.tensor` refuses those in any case.

    Raises
    ------
    ProtocolError
        When a tensor has another wire format than the run, or claims an original format that it cannot have had, or a
        scale is missing, of another shape or format, or negative.
    """
    restored = [name for name in frame.tensors if name + _DTYPE in frame.fields and not name.endswith(_SCALE)]
    _check_format(frame, restored, wire_dtype)
    if not restored:
        return frame
    tensors = {name: tensor for name, tensor in frame.tensors.items() if not name.endswith(_SCALE)}
    for name in restored:
        dtype = DTYPES.get(frame.text(name + _DTYPE))
        if dtype not in _FULL:
            raise ProtocolError(f"{name!r} claims to have been {frame.fields[name + _DTYPE]!r}")
        tensor = tensors[name].to(dtype)
        if tensors[name].dtype == torch.float16:
            tensor *= _checked_scale(name, tensor, frame.tensors)
        tensors[name] = tensor
    return Frame(frame.kind, frame.step, frame.fields, tensors)


def _check_format(frame: Frame, restored: list[str], wire_dtype: str) -> None:
    """Refuse formats that `compress` does not write: both sides must round in the same way, or not at all."""
    scales, half = {name + _SCALE for name in restored}, _WIRE.get(wire_dtype)
    for name, tensor in frame.tensors.items():
        whole = tensor.dtype in _FULL and tensor.dim() > 0 and tensor.numel() > 0 and name not in scales
        if tensor.dtype != half if name in restored else whole and half:
            raise ProtocolError(f"{name!r} came as {tensor.dtype}; the run's transport.wire_dtype is {wire_dtype!r}")


def _checked_scale(name: str, tensor: Tensor, tensors: Mapping[str, Tensor]) -> Tensor:
    scale = tensors.get(name + _SCALE)
    if scale is None or scale.dtype != tensor.dtype or tensor.dim() == 0 or scale.shape != tensor.shape[:1]:
        raise ProtocolError(f"{name!r} in float16 needs one scale a row, of the tensor's own format")
    if bool((scale < 0).any()):
        raise ProtocolError(f"a scale of {name!r} is negative")
    return scale.view(-1, *[1] * (tensor.dim() - 1))
