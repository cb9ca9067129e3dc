"""The messages of an alignment: a stage, small fields, and blocks of equal width."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from enum import StrEnum

import torch
from torch import Tensor

from flower_vfl.errors import ProtocolError
from flower_vfl.protocol.frame import Frame, Kind, Scalar

MESSAGE_TYPE = "query.align"
"""Flower message type of an alignment."""

AGAIN = "install the same flower-vfl on both hosts (`flower-vfl doctor`), and align again"
"""The advice when a host broke the protocol."""

SESSION = r"[0-9a-f]{32}"
"""Pattern of a session's id."""

SPARE_FIELD = "spare"
"""Field of a node that takes no part."""


class AlignmentStage(StrEnum):
    """The stages of an alignment, each a question of the label party."""

    HELLO = "hello"
    QUERY = "query"
    TABLE = "table"
    HASHES = "hashes"
    MATCH = "match"
    FINISH = "finish"
    ABORT = "abort"


def frame(
    stage: AlignmentStage,
    step: int = -1,
    fields: Mapping[str, Scalar] | None = None,
    blocks: Mapping[str, Tensor] | None = None,
) -> Frame:
    """Return the frame of a message."""
    return Frame(Kind.ALIGN, step, {**(fields or {}), "stage": str(stage)}, blocks or {})


def blocks_of(data: bytes, width: int) -> Tensor:
    """Return bytes as a tensor (N, width)."""
    if not data:
        return torch.empty((0, width), dtype=torch.uint8)
    return torch.frombuffer(bytearray(data), dtype=torch.uint8).view(-1, width)


def read_blocks(message: Frame, name: str, count: int, width: int) -> bytes:
    """Return the bytes of `count` blocks.

    Raises
    ------
    ProtocolError
        When the number or the width of the blocks differs.
    """
    return message.tensor(name, shape=(count, width), dtype=torch.uint8).numpy().tobytes()


def stage_of(message: Frame) -> AlignmentStage:
    """Return the stage of a message; raise ProtocolError if it has none that is known."""
    try:
        if message.kind is not Kind.ALIGN:
            raise ValueError
        return AlignmentStage(message.text("stage"))
    except ValueError:
        raise ProtocolError("a message of an alignment is for nothing that is known here") from None


def message_count(count: int, size: int) -> int:
    """Return the number of messages that carry `count` blocks, `size` in each; one at least."""
    return max(1, math.ceil(count / size))


def pieces(count: int, size: int) -> Iterator[tuple[int, int, int]]:
    """Yield number, start and end of the messages that carry `count` blocks, `size` in each; one at least."""
    for number in range(message_count(count, size)):
        yield number, number * size, min(count, (number + 1) * size)


def split_blocks(data: bytes, width: int) -> list[bytes]:
    """Return blocks of `width` bytes, one by one."""
    return [data[at : at + width] for at in range(0, len(data), width)]
