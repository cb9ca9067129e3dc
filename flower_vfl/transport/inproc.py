"""The transport within one process: the label party's own thread calls the state machines of the parties."""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import replace
from typing import ClassVar

from flower_vfl.errors import PartyError, SessionError
from flower_vfl.protocol.frame import Frame, Kind
from flower_vfl.protocol.printable import words_of
from flower_vfl.transport.base import Link, Machine


class InprocLink(Link):
    """A link with a queue of frames, which are handled when their answer is requested.

    A step's frame is queued in two parts, its gradient and the request for the next embedding: all parties update their
    weights when links are flushed, and each computes its embedding when it is requested, which takes less time than
    both in turn for each party.
    """

    def __init__(self, machine: Machine) -> None:
        super().__init__(machine.name, machine.hello())
        self._machine = machine
        self._queue: deque[Frame] = deque()
        self.closed = threading.Event()
        self.refusal = ""

    def send(self, frame: Frame) -> None:  # noqa: D102
        self.bytes_down += frame.nbytes
        if frame.kind is Kind.EXPORTED:  # the last frame, which has no answer
            self._machine.handle(frame)
        elif frame.kind is Kind.STEP and frame.tensors and frame.step >= 0:
            self._queue += [replace(frame, step=-1), Frame(Kind.STEP, frame.step, {"gradient_of": -1})]
        else:
            self._queue.append(frame)

    def flush(self) -> None:  # noqa: D102
        while self._queue and self._queue[0].kind is Kind.STEP and self._queue[0].step < 0:
            self._handle_next()

    def receive(self, timeout: float) -> Frame:  # noqa: D102
        while self._queue:
            answer = self._handle_next()
            if answer is not None:
                self.bytes_up += answer.nbytes
                return self._accept(answer)
        raise PartyError(f"party {self.party!r} has nothing to answer")

    def _handle_next(self) -> Frame | None:
        try:
            return self._machine.handle(self._queue.popleft())
        except Exception as error:
            raise PartyError(f"party {self.party!r} failed: {words_of(error)}") from error

    def refuse(self, reason: str) -> None:  # noqa: D102
        self.refusal = reason
        self.close()

    def close(self) -> None:  # noqa: D102
        self.closed.set()


class InprocEndpoint:
    """An endpoint at which the handlers of parties in this process hand in their state machines."""

    _open: ClassVar[dict[str, InprocEndpoint]] = {}

    def __init__(self, session: str) -> None:
        self.session = session
        self._arrived: deque[InprocLink] = deque()
        self._open[session] = self

    @classmethod
    def attend(cls, session: str, machine: Machine) -> None:
        """Hand in a state machine and wait until its session is closed (called by the party's handler).

        Raises
        ------
        SessionError
            When no label party of this process has opened the session, or the label party ended it early.
        """
        endpoint = cls._open.get(session)
        if endpoint is None:
            raise SessionError("transport 'inproc' joins parties of one process, and this one has no such session")
        link = InprocLink(machine)
        endpoint._arrived.append(link)
        if cls._open.get(session) is not endpoint:  # closed meanwhile: nothing else would release the link
            link.close()
        link.closed.wait()
        if link.refusal:
            raise SessionError(f"the label party ended the session: {link.refusal}")
        if not machine.finished:
            raise SessionError("the label party ended the session before it was finished")

    def offer(self, node: str) -> dict[str, str | bytes | int]:
        """Return an empty offer: within one process the session's id is enough."""
        return {}

    def revoke(self, node: str) -> None:
        """Do nothing: every arriving party is in this process."""

    def accept(self) -> Link | None:
        """Return the link to a party that has arrived, if there is one."""
        return self._arrived.popleft() if self._arrived else None

    def close(self) -> None:
        """Drop the session and release the handlers of parties that were not accepted."""
        self._open.pop(self.session, None)
        while self._arrived:
            self._arrived.popleft().close()
