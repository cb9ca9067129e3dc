"""Questions of the label party and their answers, as Flower messages."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping

from flwr.app import Message
from flwr.serverapp import Grid

from flower_vfl.apps.alignment.wire import (
    MESSAGE_TYPE,
    SPARE,
    Stage,
    frame,
    from_message,
    stage_of,
    to_content,
)
from flower_vfl.errors import PartyError, ProtocolError, SessionError, SetupError
from flower_vfl.protocol.frame import Frame, Scalar
from flower_vfl.transport.mailbox import Mailbox, reason

_log = logging.getLogger(__name__)
_POLL_SECONDS = (0.002, 0.25)
_ABORT_SECONDS = 30.0
_CONNECT_SECONDS = 60.0


class Conversation:
    """What the label party and the feature parties say to each other in one alignment.

    Parameters
    ----------
    grid : Grid
        Flower's grid.
    session : str
        The id of this alignment.
    fields : Mapping
        What goes into every question.
    timeout : float
        Seconds to wait for an answer.
    """

    def __init__(self, grid: Grid, session: str, fields: Mapping[str, Scalar], timeout: float) -> None:
        self._mailbox = Mailbox(grid)
        self._session, self._fields, self._timeout = session, dict(fields), timeout
        self._nodes: dict[str, int] = {}
        self._asked: set[int] = set()

    def open(self, parties: tuple[str, ...], proposal: Frame) -> dict[str, Frame]:
        """Ask every node, and return the answers of the parties.

        Raises
        ------
        SetupError
            When a party is missing.
        PartyError
            When a node fails or two claim to be the same party.
        """
        nodes = self._mailbox.nodes(len(parties), min(_CONNECT_SECONDS, self._timeout))
        for node in nodes:
            self._push(node, proposal)
        found: dict[str, Frame] = {}
        for node in nodes:
            reply = self._take(node, f"node {node}", Stage.HELLO)
            if reply.fields.get(SPARE) is True:
                continue
            party = reply.text("party")
            if party not in parties:
                raise ProtocolError(f"node {node} says it is {party!r}; this alignment has {', '.join(parties)}")
            if party in self._nodes:
                raise PartyError(f"two nodes claim to be party {party!r}; give each its own `party` in --node-config")
            self._nodes[party], found[party] = node, reply
        missing = [party for party in parties if party not in found]
        if missing:
            raise SetupError(
                f"no node is party {' nor '.join(missing)}; start for each a SuperNode with --node-config "
                f"\"party='{missing[0]}' ids=... alignment=...\", or name in parties.features those that there are"
            )
        return {party: found[party] for party in parties}

    def ask(self, questions: Mapping[str, Frame]) -> dict[str, Frame]:
        """Ask several parties at once and wait for all answers.

        Raises
        ------
        PartyError
            When a party fails or does not answer in time.
        ProtocolError
            When an answer is not one to its question.
        """
        for party, question in questions.items():
            self._push(self._nodes[party], question)
        return {
            party: self._take(self._nodes[party], f"party {party!r}", stage_of(question), question.step)
            for party, question in questions.items()
        }

    def ask_all(self, parties: tuple[str, ...], question: Frame) -> dict[str, Frame]:
        """Ask several parties the same."""
        return self.ask(dict.fromkeys(parties, question))

    def abort(self, why: str) -> None:
        """Tell the nodes that the alignment has failed, so that they forget its keys; none is waited for long."""
        deadline = time.monotonic() + _ABORT_SECONDS
        told: set[int] = set()
        while told != self._asked and time.monotonic() < deadline:
            for node in self._asked - told:
                self._mailbox.take(node)
                if node not in self._mailbox.busy:
                    try:
                        self._push(node, frame(Stage.ABORT, fields={"reason": why}))
                    except SessionError as error:
                        _log.warning("%s", error)
                    told.add(node)
            time.sleep(_POLL_SECONDS[0])
        while self._mailbox.busy and time.monotonic() < deadline:
            for node in self._mailbox.busy:
                self._mailbox.take(node)
            time.sleep(_POLL_SECONDS[0])

    def _push(self, node: int, question: Frame) -> None:
        fields = {**self._fields, **question.fields}
        self._asked.add(node)
        content = to_content(Frame(question.kind, question.step, fields, question.tensors), self._session)
        self._mailbox.push(node, content, MESSAGE_TYPE)

    def _take(self, node: int, name: str, stage: Stage, step: int = 0) -> Frame:
        deadline, pause = time.monotonic() + self._timeout, _POLL_SECONDS[0]
        while (reply := self._mailbox.take(node)) is None:
            if time.monotonic() > deadline:
                raise PartyError(f"{name} did not answer within {self._timeout:g} s (align.timeout)")
            time.sleep(pause)
            pause = min(2 * pause, _POLL_SECONDS[1])
        return self._read(reply, name, stage, step)

    def _read(self, reply: Message, name: str, stage: Stage, step: int) -> Frame:
        if reply.has_error():
            raise PartyError(f"{name} failed: {reason(reply)}")
        try:
            answer = from_message(reply, self._session)
            if stage_of(answer) is not stage or answer.step != step:
                raise ProtocolError(f"it answered {stage_of(answer)} {answer.step} to {stage} {step}")
        except ProtocolError as error:
            raise ProtocolError(f"{name} sent what it must not: {error}") from None
        return answer
