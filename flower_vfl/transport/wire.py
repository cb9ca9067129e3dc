"""The wire format of a stream: frames as bytes, counts of confirmed messages, and the continuation after a break.

Each message begins with the number of messages that its sender has taken so far, 8 bytes, big-endian; a frame follows,
or nothing. Each end keeps the messages that the other has not taken. After a break each sends its count and gets the
messages that it has missed: no frame is lost, none arrives twice. The first message from the label party on each
connection has a certificate behind its count, for the key that the party made for this session.
"""

from __future__ import annotations

import hmac
import struct
from collections import deque

from flower_vfl.errors import PartyError, ProtocolError
from flower_vfl.protocol.frame import Frame, decode, encode, from_records, to_records

SERVICE, METHOD = "flower_vfl.Session", "Open"
NONCE = "flower-vfl-nonce"
"""Name in the metadata at the beginning of a stream: the label party's nonce, which a reconnecting party must sign."""

MOST_UNCONFIRMED = 256
"""Largest number of messages that may wait for the other end's confirmation."""

_COUNT = struct.Struct(">Q")
_CONFIRM_EVERY = 32
_KEEPALIVE: list[tuple[str, int]] = [
    ("grpc.keepalive_time_ms", 5_000),
    # A ping waits behind the frames that are under way: five of 512 KiB take 20 s at 1 Mbit/s.
    ("grpc.keepalive_timeout_ms", 30_000),
    ("grpc.http2.ping_timeout_ms", 30_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.http2.min_ping_interval_without_data_ms", 4_000),
]


def options(limit: int, *, received: int | None = None) -> list[tuple[str, int]]:
    """Return gRPC's settings for messages with frames of up to `limit` bytes; `received` is the limit to this end."""
    received = limit if received is None else received
    return [
        *_KEEPALIVE,
        ("grpc.max_receive_message_length", received + _COUNT.size),
        ("grpc.max_send_message_length", limit + _COUNT.size),
    ]


def key_of(token: str) -> bytes:
    """Return the key of the proof that a party has a token; the token itself is sent once only."""
    return hmac.digest(token.encode(), b"flower-vfl: the same party again", "sha256")


def proof(key: bytes, nonce: str, session: str, taken: int) -> str:
    """Return the proof that a party has its token, where its first greeting may have been lost."""
    return hmac.digest(key, f"{nonce}|{session}|{taken}".encode(), "sha256").hex()


def words_to_sign(nonce: str, session: str, taken: int) -> str:
    """Return the text that a reconnecting party signs: it is valid for one stream of one session."""
    return f"flower-vfl: the same party again|{nonce}|{session}|{taken}"


class Wire:
    """The conversion of one session's frames to bytes and back."""

    def __init__(self, session: str, wire_dtype: str) -> None:
        self.session, self.wire_dtype = session, wire_dtype

    def pack(self, frame: Frame) -> bytes:
        """Return the bytes of a frame."""
        from flower_vfl.protocol.numbers import compress  # it imports torch, which offers do not need

        return encode(to_records(compress(frame, self.wire_dtype), self.session))

    def unpack(self, data: bytes, limit: int) -> Frame:
        """Return the frame with these bytes; ProtocolError where they are none."""
        from flower_vfl.protocol.numbers import expand

        return expand(from_records(decode(data, limit=limit), self.session), self.wire_dtype)


class Traffic:
    """The messages of one session at one end of it, over all its connections.

    Attributes
    ----------
    taken : int
        Number of frames received from the other end so far.
    """

    def __init__(self) -> None:
        self.taken = 0
        self._reported = 0
        self._confirmed = 0
        self._kept: deque[bytes] = deque()

    @property
    def sent(self) -> int:
        """The number of frames sent by this end so far."""
        return self._confirmed + len(self._kept)

    @property
    def unconfirmed(self) -> int:
        """The number of frames sent by this end that the other end has not confirmed."""
        return len(self._kept)

    def pack(self, data: bytes) -> bytes:
        """Return the next message, with a frame in it, and keep it until the other end has taken it.

        Raises
        ------
        PartyError
            When the other end has confirmed none of the last 256 messages.
        """
        if len(self._kept) == MOST_UNCONFIRMED:
            raise PartyError(f"the other side has not confirmed any of the last {MOST_UNCONFIRMED} messages")
        self._kept.append(data)
        return self.message(data)

    def take_welcome(self, message: bytes) -> bytes:
        """Return the certificate in the label party's first message on a connection; empty where there is none.

        Raises
        ------
        ProtocolError
            As `take`.
        """
        self.confirm(_count(message))
        return message[_COUNT.size :]

    @property
    def owes_confirmation(self) -> bool:
        """True if enough messages were taken since the last confirmation that the other end needs one."""
        return self.taken - self._reported >= _CONFIRM_EVERY

    def take(self, message: bytes) -> bytes:
        """Return the bytes of the frame in a received message; empty where it only confirms.

        Raises
        ------
        ProtocolError
            When it is no message, or confirms frames that were never sent.
        """
        self.confirm(_count(message))
        data = message[_COUNT.size :]
        self.taken += bool(data)
        return data

    def missed(self) -> list[bytes]:
        """Return the messages that the other end has not taken, in their order."""
        return [self.message(data) for data in self._kept]

    def confirm(self, count: int) -> None:
        """Drop the messages that the other end has taken, `count` in all.

        Raises
        ------
        ProtocolError
            When it cannot have taken this number of messages, or has confirmed more before.
        """
        if not self._confirmed <= count <= self.sent:
            raise ProtocolError(
                f"{count} messages were confirmed, after {self._confirmed} of {self.sent} that were sent"
            )
        while self._confirmed < count:
            self._kept.popleft()
            self._confirmed += 1

    def message(self, data: bytes = b"") -> bytes:
        """Return a message with the count of taken ones and a frame, a next certificate (`take_welcome`) or nothing."""
        self._reported = self.taken
        return _COUNT.pack(self.taken) + data


def _count(message: bytes) -> int:
    if len(message) < _COUNT.size:
        raise ProtocolError(f"a message of {len(message)} bytes is too short")
    return int(_COUNT.unpack_from(message)[0])
