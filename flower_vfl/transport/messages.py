"""The transport that needs no port: frames in plain Flower messages, several in one; slow, but it always works."""

from __future__ import annotations

import re
import time
from collections import deque

from flwr.app import ArrayRecord, Message, RecordDict

from flower_vfl.errors import PartyError, PartyLostError, ProtocolError
from flower_vfl.protocol.frame import Frame, from_records, to_records
from flower_vfl.transport.base import Link, Machine, check_refusal
from flower_vfl.transport.mailbox import Mailbox, poll_pauses, raised, reason

FRAMES = "frames"
"""Action of the Flower messages that carry frames: their type is "train.frames" or "query.frames"."""


def bundle(frames: list[Frame], session: str, wire_dtype: str) -> RecordDict:
    """Put several frames into one `RecordDict`, in their order."""
    from flower_vfl.protocol.numbers import compress  # it imports torch, which offers do not need

    records = RecordDict()
    for index, frame in enumerate(frames):
        for name, record in to_records(compress(frame, wire_dtype), session).items():
            records[f"{index}.{name}"] = record
    return records


def unbundle(records: RecordDict, session: str, wire_dtype: str, *, limit: int) -> list[Frame]:
    """Return the frames that `bundle` put into a `RecordDict`.

    Raises
    ------
    ProtocolError
        When something is missing, unknown, in another number format or larger than `limit` bytes a frame.
    """
    from flower_vfl.protocol.numbers import expand

    grouped: dict[int, RecordDict] = {}
    for key, record in records.items():
        index, _, name = key.partition(".")
        if not re.fullmatch("0|[1-9][0-9]{0,3}", index):
            raise ProtocolError(f"a message holds the unknown record {key!r}")
        grouped.setdefault(int(index), RecordDict())[name] = record
    if sorted(grouped) != list(range(len(grouped))):
        raise ProtocolError("frames of a message are missing")
    for part in grouped.values():
        if _size(part) > limit:
            raise ProtocolError(f"a frame of {_size(part)} bytes came; at most {limit} are allowed here")
    return [expand(from_records(grouped[index], session), wire_dtype) for index in range(len(grouped))]


def _size(records: RecordDict) -> int:
    return sum(
        len(array.data) for record in records.values() if isinstance(record, ArrayRecord) for array in record.values()
    )


def answer(content: RecordDict, session: str, wire_dtype: str, machine: Machine) -> RecordDict:
    """Return a party's answers to all frames of one Flower message (called by the party's handler)."""
    frames = unbundle(content, session, wire_dtype, limit=machine.frame_limit)
    answers = [machine.handle(check_refusal(frame)) for frame in frames]
    return bundle([frame for frame in answers if frame is not None], session, wire_dtype)


class MessagesLink(Link):
    """A link that holds frames back until an answer is needed, then sends them together in one Flower message."""

    def __init__(
        self, node: int, hello: Frame, session: str, wire_dtype: str, mailbox: Mailbox, purpose: str = "train"
    ) -> None:
        super().__init__(hello.text("party"), hello, str(node))
        self._type = f"{purpose}.{FRAMES}"
        self._node, self._session, self._wire_dtype, self._mailbox = node, session, wire_dtype, mailbox
        self._sent, self._taken = 0, 0
        self._outgoing: list[Frame] = []
        self._frames: deque[Frame] = deque()

    def send(self, frame: Frame) -> None:  # noqa: D102
        self._outgoing.append(frame)
        self._sent += 1

    def flush(self) -> None:  # noqa: D102
        if self._frames or not self._outgoing or self._node in self._mailbox.busy:
            return
        content = bundle(self._outgoing, self._session, self._wire_dtype)
        self._outgoing = []
        self.bytes_down += _size(content)
        self._mailbox.push(self._node, content, self._type)

    def receive(self, timeout: float) -> Frame:  # noqa: D102
        self.flush()
        if not self._frames:
            self._open(self._reply(timeout))
        return self._accept(self._frames.popleft())

    def await_taken(self, timeout: float) -> None:  # noqa: D102
        self._reply(timeout)

    def _reply(self, timeout: float) -> Message:
        """Wait for the answer to the Flower message that is under way."""
        deadline, pauses = time.monotonic() + timeout, poll_pauses()
        while (reply := self._mailbox.take(self._node)) is None:
            if time.monotonic() > deadline:
                raise PartyError(f"party {self.party!r} did not answer within {timeout:g} s")
            time.sleep(next(pauses))
        if reply.has_error():
            words = f"party {self.party!r} failed: {reason(reply)}"
            raise PartyError(words) if raised(reply) else PartyLostError(words, self.party)
        return reply

    def _open(self, reply: Message) -> None:
        self.bytes_up += _size(reply.content)
        try:
            frames = unbundle(reply.content, self._session, self._wire_dtype, limit=self.frame_limit)
            self._taken += len(frames)
            if self._taken > self._sent:
                raise ProtocolError(f"{self._taken} frames came, in answer to {self._sent}")
            self._frames.extend(frames)
        except ProtocolError as error:
            raise ProtocolError(f"party {self.party!r}: {error}") from None
        if not self._frames:
            raise PartyError(f"party {self.party!r} has nothing to answer")

    def close(self) -> None:  # noqa: D102
        self._outgoing = []
