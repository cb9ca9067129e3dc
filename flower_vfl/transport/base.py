"""The small interface that all transports share: a `Link` at the label party, a `Machine` at the feature party."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from flower_vfl.errors import PartyError, ProtocolError, SessionError
from flower_vfl.protocol.frame import OVERHEAD, Frame, Kind
from flower_vfl.protocol.printable import printable, words_of

if TYPE_CHECKING:
    import torch


class Machine(Protocol):
    """The interface of a feature party to its transport: it answers frames until it is `finished`."""

    name: str
    finished: bool

    @property
    def frame_limit(self) -> int:
        """Largest size of a frame to this party, in bytes."""

    def hello(self) -> Frame:
        """Return the frame that introduces the party."""

    def handle(self, frame: Frame) -> Frame | None:
        """Handle one frame from the label party, and return the answer, if there is one."""


class Link(ABC):
    """The label party's end of one session.

    Frames that are sent are answered in their order; at most as many as the schedule allows are outstanding.

    Attributes
    ----------
    party : str
        The feature party at the other end.
    hello : Frame
        The frame with which the party introduced itself.
    node : str
        The Flower node at the other end, empty where all are in one process. The party chooses its name,
        not its node.
    shape, dtype, frame_limit : tuple[int, ...], torch.dtype, int
        The negotiated shape and format of one row's embedding, and the largest size of a frame in bytes.
    bytes_up, bytes_down : int
        Bytes of frames handed to the transport; with `inproc`, bytes of the tensors.
    reconnects, queued : int
        Number of reconnects of a broken stream, and of received frames that are unread; 0 for transports without them.
    away : float
        Number of seconds since the party's stream broke; 0 while it is connected, and for transports without streams.
    watch : Callable[[], None]
        Function that is called repeatedly while a link waits for a party to reconnect; it raises PartyLostError when
        the party will not.
    """

    dtype: torch.dtype
    reconnects = 0

    def __init__(self, party: str, hello: Frame, node: str = "") -> None:
        self.party = party
        self.hello = hello
        self.node = node
        self.shape: tuple[int, ...] = ()
        self.frame_limit = OVERHEAD
        self.bytes_up = 0
        self.bytes_down = 0
        self.watch: Callable[[], None] = lambda: None

    @property
    def queued(self) -> int:
        """The number of received frames that are unread."""
        return 0

    @property
    def away(self) -> float:
        """The number of seconds since the party's stream broke."""
        return 0.0

    @abstractmethod
    def send(self, frame: Frame) -> None:
        """Send a frame to the party; it may be held back until `flush`."""

    def flush(self) -> None:  # noqa: B027 - most transports send at once
        """Put all sent frames on their way; called on all links before an answer is waited for."""

    def await_taken(self, timeout: float) -> None:  # noqa: B027 - where all are in one process, frames are taken at once
        """Wait until the party has taken all sent frames, after those that need no answer.

        Raises
        ------
        PartyError
            When it could not take them, or does not confirm them within `timeout` seconds.
        """

    @abstractmethod
    def receive(self, timeout: float) -> Frame:
        """Wait for the next frame from the party.

        Raises
        ------
        PartyError
            When the party died, reported an error or did not answer within `timeout` seconds.
        """

    @abstractmethod
    def close(self) -> None:
        """Close the session; harmless when it is closed already."""

    def refuse(self, reason: str) -> None:
        """Send the party the reason why its session ends before it has begun, and close."""
        self.send(Frame(Kind.ERROR, fields={"message": reason[:2000]}))
        self.flush()
        self.close()

    def _accept(self, frame: Frame) -> Frame:
        """Return a frame; a party's own error report is raised as a `PartyError`."""
        if frame.kind is Kind.ERROR:
            raise PartyError(f"party {self.party!r} reported: {printable(frame.fields.get('message', 'no reason'))}")
        return frame


class Endpoint(Protocol):
    """The label party's endpoint, at which parties arrive."""

    def offer(self, node: str) -> dict[str, str | bytes | int]:
        """Return the offer with which `node`, and no other node, can connect."""

    def revoke(self, node: str) -> None:
        """Revoke earlier offers to `node`, also for a party that has dialled with one and was not accepted yet."""

    def accept(self) -> Link | None:
        """Return the link to a party that has arrived, if there is one."""

    def close(self) -> None:
        """End all sessions and free their resources."""


def error_frame(error: Exception) -> Frame:
    """Return the frame with which a feature party reports an error."""
    return Frame(Kind.ERROR, fields={"message": words_of(error)[:2000]})


def check_refusal(frame: Frame) -> Frame:
    """Return the frame at a party, unless the label party ends the session with it.

    Raises
    ------
    SessionError
        When it does; the message has the label party's reason.
    """
    if frame.kind is Kind.ERROR:
        raise SessionError(f"the label party ended the session: {printable(frame.fields.get('message', 'no reason'))}")
    return frame


def expect(frame: Frame, kind: Kind, step: int, party: str) -> Frame:
    """Return the frame if it is the expected answer.

    Raises
    ------
    ProtocolError
        When it is not; the message names the party, the expected and the received frame.
    """
    if frame.kind is not kind or frame.step != step:
        raise ProtocolError(
            f"party {party!r} should have answered with {kind} {step}, it sent {frame.kind} {frame.step}"
        )
    return frame
