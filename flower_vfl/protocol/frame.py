"""One message across the cut, its form as a Flower `RecordDict`, and the bytes of that.

The label party sends `PRETRAIN` (pre-train for one time slice), `STEP` (the gradient of one step and the request for
another, fused to one round trip), `EVALUATE`, `SAVE` and `RESTORE` (save the state of this step, return to it), `BEST`
(copy the weights, the best so far; not answered), `KEEP` (keep the model of this step; -1: none), `AUDIT` (simulations
only), `FINISH` and `EXPORTED` (the results of a finished training are written, so that no state is needed any more; not
answered); after training, `PREDICT`. A feature party sends `HELLO`, `PRETRAINED` (the number of finished steps),
`EMBEDDING`, `SAVED`, `RESTORED`, `KEPT`, `AUDITED` and `REPORT`. Where the pipeline depth is to be chosen, `PROBE` asks
for the time of a step (or, without tensors, of a round trip), `PROBED` answers and `IN_FLIGHT` carries the choice.
Both sides send `ERROR` and, before any training, `ALIGN`.

Received data is not trusted, and none of it is executed. Layout of the bytes, little-endian: magic `FVFL`,
format version (u16), length of the JSON index (u32), CRC-32 of everything behind it (u32), the index, then the raw data
of the arrays in the order of the index. Flower's own byte form of a `RecordDict` is not public API and costs ten times
as much (docs/decisions/0003-wire.md).
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from zlib_ng import zlib_ng

from flower_vfl.errors import NotFiniteError, ProtocolError
from flower_vfl.protocol import strict_json

if TYPE_CHECKING:
    import torch
    from torch import Tensor

HEADER_VERSION = 4
"""Version of the header; a peer with another one is refused."""

Scalar = str | int | float | bool
_HEADER, _TENSORS = "header", "tensors"
_MAX_STEP = 2**53
_MAGIC = b"FVFL"
_FORMAT = 1
_PREFIX = struct.Struct("<4sHII")
_MAX_INDEX = 64 * 1024
_MAX_ARRAYS = 64

OVERHEAD = _PREFIX.size + _MAX_INDEX
"""Largest size of a frame without the data of its arrays, in bytes."""


class Kind(StrEnum):
    """The kind of a frame."""

    HELLO = "hello"
    PRETRAIN = "pretrain"
    PRETRAINED = "pretrained"
    STEP = "step"
    EVALUATE = "evaluate"
    PREDICT = "predict"
    EMBEDDING = "embedding"
    SAVE = "save"
    SAVED = "saved"
    RESTORE = "restore"
    RESTORED = "restored"
    BEST = "best"
    KEEP = "keep"
    KEPT = "kept"
    PROBE = "probe"
    PROBED = "probed"
    IN_FLIGHT = "in_flight"
    AUDIT = "audit"
    AUDITED = "audited"
    FINISH = "finish"
    REPORT = "report"
    EXPORTED = "exported"
    ERROR = "error"
    ALIGN = "align"


@dataclass(frozen=True, slots=True)
class Frame:
    """One message across the cut.

    Parameters
    ----------
    kind : Kind
        Purpose of the frame.
    step : int
        The step (or evaluation batch) that it requests or answers; -1 for none.
    fields : Mapping[str, str | int | float | bool]
        Small values, e.g. the step of the carried gradient.
    tensors : Mapping[str, Tensor]
        Named tensors, (B, ...) each.
    """

    kind: Kind
    step: int = -1
    fields: Mapping[str, Scalar] = field(default_factory=dict)
    tensors: Mapping[str, Tensor] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        """Size of the tensors in bytes."""
        return sum(tensor.nbytes for tensor in self.tensors.values())

    def integer(self, name: str) -> int:
        """Return the integer field `name`; ProtocolError when it is missing or no integer."""
        value = self.fields.get(name)
        if not isinstance(value, int) or isinstance(value, bool):
            raise ProtocolError(f"a {self.kind} frame needs the integer field {name!r}, given {value!r}")
        return value

    def text(self, name: str) -> str:
        """Return the text field `name`; ProtocolError when it is missing or no text."""
        value = self.fields.get(name)
        if not isinstance(value, str):
            raise ProtocolError(f"a {self.kind} frame needs the text field {name!r}, given {value!r}")
        return value

    def tensor(self, name: str, *, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Return tensor `name` after checking shape, dtype and finiteness.

        Raises
        ------
        ProtocolError
            When the tensor is missing or another was expected; the message names both.
        NotFiniteError
            When a value is not finite.
        """
        from flower_vfl.protocol.tensors import DTYPE_NAMES, is_finite

        found = self.tensors.get(name)
        if found is None:
            raise ProtocolError(
                f"a {self.kind} frame of step {self.step} needs the tensor {name!r}; it has {sorted(self.tensors)}"
            )
        if found.dtype != dtype or tuple(found.shape) != shape:
            raise ProtocolError(
                f"{name!r} of step {self.step} must be {DTYPE_NAMES.get(dtype, dtype)} {shape}, "
                f"given {DTYPE_NAMES.get(found.dtype, found.dtype)} {tuple(found.shape)}"
            )
        if found.is_floating_point() and not is_finite(found):
            raise NotFiniteError(f"{name!r} of step {self.step} holds values that are not finite")
        return found


def to_records(frame: Frame, session: str) -> RecordDict:
    """Write a frame of `session` as a Flower `RecordDict`: a `ConfigRecord` header and an `ArrayRecord`."""
    header = {
        "version": HEADER_VERSION,
        "kind": str(frame.kind),
        "session": session,
        "step": frame.step,
        "fields": json.dumps(dict(frame.fields), allow_nan=False),
    }
    arrays = _to_arrays(frame.tensors) if frame.tensors else {}
    return RecordDict({_HEADER: ConfigRecord(header), _TENSORS: ArrayRecord(arrays)})  # type: ignore[arg-type]


def from_records(records: RecordDict, session: str) -> Frame:
    """Return the frame in records.

    Raises
    ------
    ProtocolError
        When they are no frame of this version and of this `session`; the message names the first problem.
    """
    header, arrays = records.get(_HEADER), records.get(_TENSORS)
    if not isinstance(header, ConfigRecord) or not isinstance(arrays, ArrayRecord) or len(records) != 2:
        raise ProtocolError(f"a frame holds a header and tensors, given {sorted(records)}")
    if header.get("version") != HEADER_VERSION:
        raise ProtocolError(
            f"the peer speaks protocol version {header.get('version')!r}, this is version {HEADER_VERSION}; install "
            "the same flower-vfl on both hosts"
        )
    if header.get("session") != session:
        raise ProtocolError("the frame belongs to another session")
    step = header.get("step")
    if not isinstance(step, int) or isinstance(step, bool) or not -1 <= step <= _MAX_STEP:
        raise ProtocolError(f"the frame has the impossible step {step!r}")
    try:
        kind = Kind(str(header.get("kind")))
        fields = strict_json.loads(str(header.get("fields")))
    except ValueError:
        raise ProtocolError(f"the frame has an unknown kind ({header.get('kind')!r}) or broken fields") from None
    if not isinstance(fields, dict) or not all(isinstance(value, Scalar) for value in fields.values()):
        raise ProtocolError("the fields of a frame are plain values by name")
    return Frame(kind, step, fields, _from_arrays(arrays) if arrays else {})


def _to_arrays(tensors: Mapping[str, Tensor]) -> dict[str, Array]:
    from flower_vfl.protocol.tensors import to_array

    return {name: to_array(tensor) for name, tensor in tensors.items()}


def _from_arrays(arrays: Mapping[str, Array]) -> dict[str, Tensor]:
    from flower_vfl.protocol.tensors import from_array

    return {name: from_array(name, array) for name, array in arrays.items()}


def encode(records: RecordDict) -> bytes:
    """Write config records and array records as the bytes of a frame.

    Raises
    ------
    ProtocolError
        When a record has a kind, or holds values, that cannot be sent.
    """
    index: dict[str, object] = {}
    chunks: list[bytes] = []
    for name, record in records.items():
        if isinstance(record, ConfigRecord):
            index[name] = dict(record)
        elif isinstance(record, ArrayRecord):
            index[name] = [
                [key, array.dtype, array.shape, array.stype, len(array.data)] for key, array in record.items()
            ]
            chunks += [array.data for array in record.values()]
        else:
            raise ProtocolError(f"a {type(record).__name__} does not travel in a frame")
    try:
        text = json.dumps(index, separators=(",", ":"), allow_nan=False).encode()
    except (TypeError, ValueError):
        raise ProtocolError("the header of a frame holds values that JSON does not have") from None
    if len(text) > _MAX_INDEX:
        raise ProtocolError(f"the header of a frame has {len(text)} bytes; at most {_MAX_INDEX} are allowed")
    checksum = 0
    for chunk in (text, *chunks):
        checksum = zlib_ng.crc32(chunk, checksum)
    return b"".join([_PREFIX.pack(_MAGIC, _FORMAT, len(text), checksum), text, *chunks])


def _is_array_entry(entry: object) -> bool:
    return (
        isinstance(entry, list)
        and len(entry) == 5
        and all(isinstance(entry[i], str) for i in (0, 1, 3))
        and isinstance(entry[2], list)
        and all(type(size) is int and size >= 0 for size in entry[2])
        and type(entry[4]) is int
        and entry[4] >= 0
    )


def decode(data: bytes, *, limit: int) -> RecordDict:
    """Return the records that `encode` wrote.

    Parameters
    ----------
    data : bytes
        One frame.
    limit : int
        Largest size of a frame in bytes; it follows from the negotiated shape of the cut.

    Raises
    ------
    ProtocolError
        When the bytes are not exactly one frame.
    """
    if len(data) > limit:
        raise ProtocolError(f"a frame of {len(data)} bytes came; at most {limit} are allowed here")
    if len(data) < _PREFIX.size:
        raise ProtocolError(f"a frame of {len(data)} bytes is too short")
    magic, version, length, checksum = _PREFIX.unpack_from(data)
    if magic != _MAGIC or version != _FORMAT:
        raise ProtocolError(f"these bytes are no frame of format {_FORMAT}")
    view = memoryview(data)
    if length > min(_MAX_INDEX, len(data) - _PREFIX.size):
        raise ProtocolError("the header of a frame is longer than allowed")
    if zlib_ng.crc32(view[_PREFIX.size :]) != checksum:
        raise ProtocolError("a frame was damaged on its way (checksum)")
    try:
        index = strict_json.loads(view[_PREFIX.size : _PREFIX.size + length])
    except ValueError:
        raise ProtocolError("the header of a frame is no JSON") from None
    if not isinstance(index, dict):
        raise ProtocolError("the header of a frame is no JSON object")
    return _read_body(index, view, _PREFIX.size + length)


def _read_body(index: dict[str, object], view: memoryview, position: int) -> RecordDict:
    records = RecordDict()
    for name, content in index.items():
        if isinstance(content, dict):
            try:
                records[name] = ConfigRecord(content)
            except (TypeError, ValueError):
                raise ProtocolError(f"the record {name!r} holds values that do not belong there") from None
        elif isinstance(content, list) and len(content) <= _MAX_ARRAYS and all(map(_is_array_entry, content)):
            arrays: dict[str, Array] = {}
            for key, dtype, shape, stype, size in content:
                if key in arrays or position + size > len(view):
                    raise ProtocolError(f"the record {name!r} does not fit its frame")
                arrays[key] = Array(dtype, tuple(shape), stype, bytes(view[position : position + size]))
                position += size
            records[name] = ArrayRecord(arrays)
        else:
            raise ProtocolError(f"the record {name!r} is of no known kind")
    if position != len(view):
        raise ProtocolError(f"a frame has {len(view) - position} bytes too many")
    return records
