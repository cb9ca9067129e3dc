"""Questions of the label party and their answers, as Flower messages."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping

from flwr.app import Message
from flwr.serverapp import Grid

from flower_vfl.apps.alignment.wire import AGAIN, MESSAGE_TYPE, SPARE_FIELD, AlignmentStage, frame, stage_of
from flower_vfl.errors import PartyError, ProtocolError, SessionError, SetupError
from flower_vfl.protocol.frame import Frame, Scalar, from_records, to_records
from flower_vfl.transport.mailbox import LONGEST_PAUSE, Mailbox, check_registered, poll_pauses, raised, reason

_log = logging.getLogger(__name__)

_ABORT_SECONDS = 30.0
_CONNECT_SECONDS = 60.0
_OTHERS_SECONDS = 60.0


class Conversation:
    """The exchange of messages between the label party and the feature parties in one alignment.

    Parameters
    ----------
    grid : Grid
        Flower's grid.
    session : str
        The id of this alignment.
    fields : Mapping
        Fields of every question.
    timeout : float
        Seconds to wait for an answer.
    """

    def __init__(self, grid: Grid, session: str, fields: Mapping[str, Scalar], timeout: float) -> None:
        self._mailbox = Mailbox(grid)
        self._session, self._fields, self._timeout = session, dict(fields), timeout
        self._nodes: dict[str, int] = {}
        self._contacted: set[int] = set()

    def open(self, parties: tuple[str, ...], proposal: Frame) -> dict[str, Frame]:
        """Send the proposal to every node, and return the answers of the parties.

        Raises
        ------
        SetupError
            When a party is missing.
        PartyError
            When a node fails, two claim to be the same party, or one is registered under another name.
        ProtocolError
            When a node claims to be a party that the alignment does not have.
        """
        nodes = self._wait_for_nodes(len(parties))
        for node in nodes:
            self._push(node, proposal)
        found: dict[str, Frame] = {}
        named: dict[str, int] = {}
        known = {node: f"node {node}" + (f", registered as {name!r}," if name else "") for node, name in nodes.items()}
        replies = self._collect({node: (name, proposal) for node, name in known.items()}, frozenset(parties))
        for node, reply in sorted(replies.items()):
            if reply.fields.get(SPARE_FIELD) is True:
                continue
            party = reply.text("party")
            if party not in parties:
                raise ProtocolError(
                    f"node {node} claims to be {party!r}, and this alignment has {', '.join(parties)}: name the party "
                    "in parties.features, correct `party` in --node-config of its host, or stop the node; then align "
                    "again"
                )
            if party in named:
                raise PartyError(
                    f"two nodes claim to be party {party!r}; give each its own `party` in --node-config, align again"
                )
            check_registered(node, nodes[node], party, simulation=bool(self._fields.get("simulation")))
            named[party], found[party] = node, reply
        missing = [party for party in parties if party not in found]
        if missing:
            raise SetupError(
                f"no node is party {' nor '.join(missing)}; start for each a SuperNode with --node-config "
                f"\"party='{missing[0]}' ids=... alignment=...\", or name in parties.features those that there are"
            )
        self._nodes = named
        return {party: found[party] for party in parties}

    def _wait_for_nodes(self, count: int) -> dict[int, str]:
        """Wait for `count` nodes, and return the connected ones with their registered names."""
        deadline = time.monotonic() + min(_CONNECT_SECONDS, self._timeout)
        while len(nodes := self._mailbox.nodes()) < count and time.monotonic() < deadline:
            time.sleep(LONGEST_PAUSE)
        return nodes

    def ask(self, questions: Mapping[str, Frame]) -> dict[str, Frame]:
        """Ask several parties at once and wait for all answers.

        Raises
        ------
        PartyError
            When a party fails or does not answer in time.
        ProtocolError
            When an answer does not belong to its question.
        """
        for party, question in questions.items():
            self._push(self._nodes[party], question)
        waiting = {self._nodes[party]: (f"party {party!r}", question) for party, question in questions.items()}
        replies = self._collect(waiting)
        return {party: replies[self._nodes[party]] for party in questions}

    def ask_all(self, parties: tuple[str, ...], question: Frame) -> dict[str, Frame]:
        """Ask several parties the same question, and return their answers."""
        return self.ask(dict.fromkeys(parties, question))

    def abort(self, why: str) -> None:
        """Notify the parties that the alignment has failed, so that they drop its keys; wait for them 30 s at most.

        Until it is known which nodes are the parties, all are notified.
        """
        deadline, notified = time.monotonic() + _ABORT_SECONDS, set[int]()
        nodes = set(self._nodes.values()) or self._contacted
        for pause in poll_pauses():
            for node in nodes:
                self._mailbox.take(node)
            for node in nodes - notified - self._mailbox.busy:
                notified.add(node)
                try:
                    self._push(node, frame(AlignmentStage.ABORT, fields={"reason": why}))
                except SessionError as error:
                    _log.warning("%s", error)
            if (notified == nodes and not nodes & self._mailbox.busy) or time.monotonic() > deadline:
                return
            time.sleep(pause)

    def _push(self, node: int, question: Frame) -> None:
        fields = {**self._fields, **question.fields}
        self._contacted.add(node)
        content = to_records(Frame(question.kind, question.step, fields, question.tensors), self._session)
        self._mailbox.push(node, content, MESSAGE_TYPE)

    def _collect(
        self, waiting: Mapping[int, tuple[str, Frame]], parties: frozenset[str] = frozenset()
    ) -> dict[int, Frame]:
        """Return the answers of nodes, given with their names and questions; the first failure is raised at once.

        When all of `parties` have answered, other nodes have a minute left: one that takes no part may be busy.
        """
        deadline, found = time.monotonic() + self._timeout, dict[int, Frame]()
        last: float | None = None
        for pause in poll_pauses():
            for node in waiting.keys() - found.keys():
                reply = self._mailbox.take(node)
                if reply is not None:
                    found[node] = self._read(reply, *waiting[node])
            silent = [name for node, (name, _) in waiting.items() if node not in found]
            if not silent:
                break
            if parties and parties <= {reply.fields.get("party") for reply in found.values()}:
                last = time.monotonic() + _OTHERS_SECONDS if last is None else last
                if time.monotonic() > last:
                    _log.warning("the alignment continues without an answer of %s", " and ".join(silent))
                    break
            if time.monotonic() > deadline:
                raise PartyError(
                    f"{' and '.join(silent)} did not answer within {self._timeout:g} s: see the log of that "
                    "host, allow more with align.timeout, and align again"
                )
            time.sleep(pause)
        return found

    def _read(self, reply: Message, name: str, question: Frame) -> Frame:
        if reply.has_error():
            cure = "" if raised(reply) else "; start its SuperNode there if it does not run, and align again"
            raise PartyError(f"{name} failed: {reason(reply)}{cure}")
        try:
            answer = from_records(reply.content, self._session)
            if (stage_of(answer), answer.step) != (stage_of(question), question.step):
                raise ProtocolError(
                    f"it answered {stage_of(answer)} {answer.step} to {stage_of(question)} {question.step}"
                )
        except ProtocolError as error:
            raise ProtocolError(f"{name} sent what it must not: {error}; {AGAIN}") from None
        return answer
