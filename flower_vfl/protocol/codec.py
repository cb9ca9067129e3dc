"""Flower's `RecordDict` of one frame as bytes, and back; nothing is trusted, nothing is executed.

Layout, little-endian: magic `FVFL`, format version (u16), length of the JSON index (u32), CRC-32 of everything behind
it (u32), the index, then the raw data of the arrays in the order of the index. Flower's own byte form of a
`RecordDict` is not public API and costs ten times as much (docs/decisions/0003-wire.md).
"""

from __future__ import annotations

import json
import struct

from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from zlib_ng import zlib_ng

from flower_vfl.errors import ProtocolError
from flower_vfl.protocol import strict_json

_MAGIC = b"FVFL"
_FORMAT = 1
_PREFIX = struct.Struct("<4sHII")
_MAX_INDEX = 64 * 1024
_MAX_ARRAYS = 64

OVERHEAD = _PREFIX.size + _MAX_INDEX
"""Most bytes that a frame can have beyond the data of its arrays."""


def encode(records: RecordDict) -> bytes:
    """Write config records and array records as bytes.

    Raises
    ------
    ProtocolError
        When the records are of a kind, or hold values, that do not travel.
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
    """Read what `encode` wrote.

    Parameters
    ----------
    data : bytes
        One frame.
    limit : int
        Most bytes that a frame may have; it follows from the negotiated shape of the cut.

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
