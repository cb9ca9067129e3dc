"""The opening of sessions: every node receives an offer in a Flower message, and the parties connect."""

from __future__ import annotations

import logging
import math
import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from operator import methodcaller
from types import TracebackType
from typing import Self

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from flower_vfl.config.schema import TransportConfig
from flower_vfl.errors import FlowerVflError, PartyError, PartyLostError, ProtocolError, SessionError, SetupError
from flower_vfl.protocol.frame import OVERHEAD, Frame, Kind
from flower_vfl.protocol.printable import printable
from flower_vfl.transport.authority import OFFER_SECONDS
from flower_vfl.transport.base import Endpoint, Link
from flower_vfl.transport.inproc import InprocEndpoint
from flower_vfl.transport.mailbox import Mailbox, check_registered, passes, raised, reason
from flower_vfl.transport.messages import MessagesLink, unbundle
from flower_vfl.transport.signing import Signer
from flower_vfl.transport.stream import StreamEndpoint, StreamLink

_log = logging.getLogger(__name__)

OFFER, REPLY = "offer", "reply"
"""Names of the config records in the Flower message that opens a session and in its answer."""

TRAINING = "training"
"""Field of an offer: the label party's name of the training run, the same after an interruption."""

SPARE, OPEN, FINISHED = "spare", "open", "finished"
"""Statuses in a node's answer: it is not needed, its session goes on in further messages, training is finished."""

_NOT_BEGUN = "it failed before training began; the reason is in its own log"
"""The reason that nodes receive in place of the error, which may reveal something about the labels."""

_SETTLE_SECONDS = 5.0
_TURN_AWAY_SECONDS = 30.0
_INVITE_SECONDS = 0.5
_EXPORT_SECONDS = 120.0
_MOST_DEATHS = 3
"""Number of times that a node is asked again if its process dies while sessions open."""


class _MessagesEndpoint:
    """The endpoint for frames in Flower messages: a party's greeting is the answer to the offer."""

    def __init__(self, session: str, wire_dtype: str, mailbox: Mailbox, purpose: str) -> None:
        self._purpose = purpose
        self._session, self._wire_dtype, self._mailbox = session, wire_dtype, mailbox
        self._arrived: list[MessagesLink] = []

    def offer(self, node: str) -> dict[str, str | bytes | int]:
        return {"wire-dtype": self._wire_dtype}

    def greet(self, node: int, content: RecordDict) -> None:
        """Read the greeting in a node's answer to its offer, and add the link to its party."""
        records = RecordDict({name: record for name, record in content.items() if name != REPLY})
        greetings = unbundle(records, self._session, self._wire_dtype, limit=OVERHEAD)
        if len(greetings) != 1:
            raise ProtocolError(f"node {node} should have sent one greeting, it sent {len(greetings)}")
        self._arrived.append(
            MessagesLink(node, greetings[0], self._session, self._wire_dtype, self._mailbox, self._purpose)
        )

    def revoke(self, node: str) -> None:
        """Do nothing: a node answers an offer once, and Flower identifies it."""

    def accept(self) -> Link | None:
        return self._arrived.pop() if self._arrived else None

    def close(self) -> None:
        self._arrived.clear()


class Sessions:
    """The open sessions of one run; closing them ends the run for every party.

    Parameters
    ----------
    grid : Grid
        Flower's grid.
    parties : Sequence[str]
        Names of the feature parties that must arrive, in their order.
    config : TransportConfig
        The transport, its address and its timeouts.
    simulation : bool
        True if all parties run within one trust boundary; the offers contain it.
    offer : Mapping[str, str], optional
        Further fields of every offer.
    purpose : {"train", "query"}
        Flower's type of the messages: "train" to train, "query" to predict.
    sign : Signer, optional
        Function that signs every offer.
    """

    def __init__(
        self,
        grid: Grid,
        parties: Sequence[str],
        config: TransportConfig,
        *,
        simulation: bool,
        offer: Mapping[str, str] | None = None,
        purpose: str = "train",
        sign: Signer | None = None,
    ) -> None:
        self._purpose, self._sign = purpose, sign
        self.session = secrets.token_hex(16)
        self.links: dict[str, Link] = {}
        self.reports: dict[str, Frame] = {}
        """The reports of the parties that have finished."""
        self._ended: set[Link] = set()
        self._open_called, self._closed = False, False
        self._check: Callable[[Link], None] = lambda _: None
        self._last_query = -math.inf
        self._parties, self._config = tuple(parties), config
        self._mailbox = Mailbox(grid)
        self._names: dict[int, str] = {}
        """The name under which each node is registered; it stays when the node is asked again."""
        self._invited: set[int] = set()
        self._given_up: set[int] = set()
        self._party_nodes: dict[str, str] = {}
        """The node of each party, also of one that is lost."""
        self._deaths: Counter[int] = Counter()
        self._messages = _MessagesEndpoint(self.session, config.wire_dtype, self._mailbox, purpose)
        self._endpoint = self._make_endpoint()
        self._offer: dict[str, str | bool] = {
            **(offer or {}),
            "kind": config.kind,
            "session": self.session,
            "simulation": simulation,
            "fallback": config.fallback,
        }
        self._simulation = simulation

    def _make_endpoint(self) -> Endpoint:
        config = self._config
        if config.kind == "inproc":
            return InprocEndpoint(self.session)
        if config.kind == "messages":
            return self._messages
        return StreamEndpoint(
            self.session,
            host=config.host,
            port=config.port,
            advertise=config.advertise,
            parties=len(self._parties),
            wire_dtype=config.wire_dtype,
            limit=config.max_frame_mib * 2**20,
            reconnect=config.reconnect_timeout,
            offer_seconds=max(config.connect_timeout, config.rejoin_timeout) + OFFER_SECONDS,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._closed:
            return
        self._closed = True
        if isinstance(error, Exception) and not self._open_called:
            self._turn_away()
        for link in self.links.values():
            link.close()
        self._endpoint.close()
        reasons = self._settle()
        if isinstance(error, PartyError | SetupError) and reasons:
            raise type(error)(f"{error} ({'; '.join(reasons)})") from error

    def _settle(self) -> list[str]:
        """Wait briefly until the nodes have ended their handlers, and return the reasons of those that failed."""
        reasons = []
        deadline = time.monotonic() + _SETTLE_SECONDS
        while (busy := self._mailbox.busy) and time.monotonic() < deadline:
            for node in busy:
                reply = self._mailbox.take(node)
                if reply is not None and reply.has_error():
                    reasons.append(reason(reply))
            time.sleep(0.005)
        return reasons

    def _turn_away(self) -> None:
        """Refuse the invited nodes as they arrive."""
        deadline = time.monotonic() + _TURN_AWAY_SECONDS
        while (busy := self._mailbox.busy) and time.monotonic() < deadline:
            for node in busy:
                reply = self._mailbox.take(node)
                if reply is not None:
                    with suppress(FlowerVflError):  # it has failed too, and its reason is not needed
                        self._opening_reply(node, reply)
            for link in self._arrivals():
                link.refuse(_NOT_BEGUN)

    def open(self, check: Callable[[Link], None]) -> dict[str, Link]:
        """Offer a session to every node, also to those that connect late, and wait until all parties have arrived.

        Parameters
        ----------
        check : Callable[[Link], None]
            Function that is called with each new link before it is used; it raises when the party does not fit, and
            sets `frame_limit`.

        Raises
        ------
        SetupError
            When nodes or parties are missing `connect_timeout` seconds after the last node connected, or
            `rejoin_timeout` seconds after a node's process has died.
        PartyError
            When a node fails or refuses.
        """
        self._check, self._open_called = check, True
        if self._parties:
            _log.info("waiting for %s", ", ".join(self._parties))
        until = time.monotonic() + self._config.connect_timeout
        while len(self.links) < len(self._parties):
            if self.invite():
                until = max(until, time.monotonic() + self._config.connect_timeout)
            for node in self._mailbox.busy & self._invited:
                reply = self._mailbox.take(node)
                if reply is not None and self._has_died(node, reply):
                    self._ask_again(node, reply)
                    until = max(until, time.monotonic() + self._config.rejoin_timeout)
                elif reply is not None:
                    self._opening_reply(node, reply)
            self._admit_arrivals()
            if time.monotonic() > until:
                raise self._give_up()
        _log.info("all parties have arrived: %s", ", ".join(self.links))
        self._complete()
        return self.links

    def drop(self, party: str) -> None:
        """Release a party that was lost; `rejoin` takes it back."""
        link = self.links.pop(party, None)
        if link is not None:
            link.close()
            if int(link.node) in self._mailbox.busy:  # Flower has still to report the end of its handler
                self._given_up.add(int(link.node))
            else:
                self._revoke_offer(int(link.node))

    def drop_all(self, reason: str) -> None:
        """Release all parties, with the reason for those that are connected; `rejoin` offers new sessions to all."""
        for party, link in list(self.links.items()):
            link.refuse(reason)
            self.drop(party)

    def rejoin(self) -> None:
        """Offer sessions to the nodes of missing parties, also to newly connected ones, until all parties are back.

        Raises
        ------
        PartyError
            When they are not back within `rejoin_timeout` seconds, or a returning one does not fit or reports an error.
        """
        _log.warning(
            "waiting up to %g s (transport.rejoin_timeout) for %s: a SuperNode that ended must be started again there",
            self._config.rejoin_timeout,
            ", ".join(party for party in self._parties if party not in self.links),
        )
        deadline = time.monotonic() + self._config.rejoin_timeout
        failures: dict[int, str] = {}
        while missing := [party for party in self._parties if party not in self.links]:
            here = {int(link.node) for link in self.links.values()}
            if time.monotonic() > deadline:
                words = "".join(
                    f"; node {node} reported: {text}" for node, text in failures.items() if node not in here
                )
                raise PartyError(
                    f"these parties did not come back within {self._config.rejoin_timeout:g} s "
                    f"(transport.rejoin_timeout): {', '.join(missing)}; start their SuperNodes "
                    f"again, then this run with resume beside all that it was started with{words}"
                )
            for node in self._mailbox.busy - here:
                reply = self._mailbox.take(node)
                if reply is not None and reply.has_error():
                    failures[node] = reason(reply)
                if reply is not None:
                    self._returning_reply(node, reply, lost={self._party_nodes[party] for party in missing})
            self.invite()
            self._admit_arrivals()
        self._complete()

    def _returning_reply(self, node: int, reply: Message, *, lost: set[str]) -> None:
        """Handle a node's answer during a `rejoin` of the parties of the nodes `lost`."""
        if node in self._given_up or (reply.has_error() and passes(reply)):
            self._ask_again(node, reply)
        elif reply.has_error() and str(node) not in lost:
            _log.warning("node %d takes no part: %s", node, reason(reply))
        else:
            self._opening_reply(node, reply)

    def _has_died(self, node: int, reply: Message) -> bool:
        """Return True if a node's process died, for the first few times; a simulation does not replace it."""
        if self._simulation or not reply.has_error() or raised(reply):
            return False
        self._deaths[node] += 1
        return self._deaths[node] <= _MOST_DEATHS

    def _ask_again(self, node: int, reply: Message) -> None:
        """Offer a new session to a node once it is connected; its state of the old one is lost."""
        words = reason(reply) if reply.has_error() else "its session was given up"
        _log.warning("node %d is asked again: %s", node, words)
        for party in [party for party, link in self.links.items() if link.node == str(node)]:
            self.links.pop(party).close()
        self._revoke_offer(node)

    def _revoke_offer(self, node: int) -> None:
        """Revoke the offer of a node; while it is connected, it gets another one."""
        self._endpoint.revoke(str(node))
        self._given_up.discard(node)
        self._invited.discard(node)

    def _complete(self) -> None:
        """Order the links by party, in the same mapping object, and revoke the offers that were not used."""
        streams = {link.node for link in self.links.values() if isinstance(link, StreamLink)}
        for node in {str(node) for node in self._invited} - streams:
            self._endpoint.revoke(node)
        links = {party: self.links[party] for party in self._parties}
        self.links.clear()
        self.links.update(links)

    def _watch(self, link: Link) -> None:
        """Raise when the node of a broken link has ended its handler: it will not reconnect by itself."""
        reply = self._mailbox.take(int(link.node))
        if reply is not None:
            words = reason(reply) if reply.has_error() else "it ended before it was finished"
            raise PartyLostError(
                f"the session with party {link.party!r} broke: it died or lost its connection ({words})", link.party
            )

    def invite(self) -> bool:
        """Offer a session to every node that is connected and has no offer yet; return True if there was one.

        It may be called before `open`: nodes take seconds to arrive. Flower is queried at intervals only.
        """
        now = time.monotonic()
        if now < self._last_query + _INVITE_SECONDS:
            return False
        self._last_query = now
        connected = self._mailbox.nodes()
        self._names.update(connected)
        newcomers = connected.keys() - self._invited
        for node in sorted(newcomers):
            offer = {**self._offer, **self._endpoint.offer(str(node))}
            signed = ConfigRecord(offer if self._sign is None else self._sign(offer))  # type: ignore[arg-type]
            self._mailbox.push(node, RecordDict({OFFER: signed}), self._purpose)
            self._invited.add(node)
        return bool(newcomers)

    def _opening_reply(self, node: int, reply: Message) -> None:
        """Handle the answer of a node while sessions open."""
        if reply.has_error():
            raise PartyError(f"node {node} could not open its session: {reason(reply)}")
        record = reply.content.config_records.get(REPLY) or ConfigRecord()
        status = record.get("status")
        if status == OPEN and "messages" in (self._config.kind, self._config.fallback):
            if self._config.kind != "messages":
                _log.warning(
                    "node %d takes part through Flower's own messages, which is slow (transport.fallback): %s",
                    *(node, printable(record.get("reason"))),
                )
            self._messages.greet(node, reply.content)
        elif status == SPARE:
            _log.info("node %d is not needed: %s", node, printable(record.get("reason")))
        else:
            raise ProtocolError(f"node {node} answered its offer with {status!r}")

    def _admit_arrivals(self) -> None:
        """Admit the parties that have dialled or greeted since the last call."""
        for link in self._arrivals():
            self._admit(link)

    def _arrivals(self) -> Iterator[Link]:
        """Yield the links to parties that have dialled or greeted since the last call, then wait briefly for more."""
        for endpoint in {self._endpoint, self._messages}:
            while (link := endpoint.accept()) is not None:
                yield link
        time.sleep(0.002 if self._config.kind == "inproc" else 0.02)

    def _admit(self, link: Link) -> None:
        try:
            if link.hello.kind is not Kind.HELLO or link.party not in self._parties:
                raise PartyError(f"a party {link.party!r} arrived; this run has {', '.join(self._parties)}")
            registered = self._names.get(int(link.node), "") if link.node else ""
            check_registered(link.node, registered, link.party, simulation=self._simulation)
            if link.party in self.links:
                raise PartyError(
                    f"two nodes claim to be party {link.party!r}; give each its own `party` in --node-config, and "
                    "start one SuperNode a party only"
                )
            self._check(link)
        except BaseException as error:
            link.refuse(str(error))  # it is not in `links` yet: its party would wait for ever
            raise
        if link.node:
            link.watch = partial(self._watch, link)
        self.links[link.party] = link
        self._party_nodes[link.party] = link.node

    def _advice(self) -> str:
        count = len(self._parties)
        if self._simulation:
            return (
                "all of them must run at once. Start the simulation with: --federation-config "
                f'"num-supernodes={count} client-resources-num-cpus=1 init-args-num-cpus={count}"'
            )
        way = f" --dial {self._endpoint.address}" if isinstance(self._endpoint, StreamEndpoint) else ""
        return (
            "start one SuperNode a party, or wait until another run (`flwr list`) has ended, because a SuperNode "
            "trains one run at a time; on the host of a party that is missing, its SuperNode's log has the reason, "
            f"and `flower-vfl doctor{way}` checks that host"
        )

    def _give_up(self) -> SetupError:
        """Refuse the parties that have arrived because others have not, and return the error for this side."""
        missing = ", ".join(party for party in self._parties if party not in self.links)
        for link in self.links.values():
            link.refuse(f"these parties have not arrived: {missing}")
        if len(self._invited) < len(self._parties):
            return SetupError(
                f"{len(self._invited)} nodes are connected, the run has {len(self._parties)} feature parties "
                f"({', '.join(self._parties)}); {self._advice()}"
            )
        return SetupError(
            f"after {self._config.connect_timeout:g} s these parties have not arrived: {missing}; {self._advice()}"
        )

    @property
    def unfinished(self) -> list[str]:
        """The parties that have not received the end of training yet."""
        return [party for party, link in self.links.items() if link not in self._ended]

    def finish(self, timeout: float) -> dict[str, Frame]:
        """Send every party the end of training, each once, and return their reports."""
        for link in [self.links[party] for party in self.unfinished]:
            self._ended.add(link)
            link.send(Frame(Kind.FINISH))
            link.flush()
        for party, link in self.links.items():
            if party not in self.reports:
                report = link.receive(timeout)
                if report.kind is not Kind.REPORT:
                    raise ProtocolError(f"party {party!r} should have reported, it sent {report.kind}")
                self.reports[party] = report
        return self.reports

    def announce_export(self, timeout: float) -> None:
        """Notify the parties that no state of this training run is needed any more.

        Over `messages` that is one Flower message more, to parties that keep states. A party that does not confirm it
        within `timeout` seconds, two minutes at most, is only logged, because the results are written already.
        """
        timeout = min(timeout, _EXPORT_SECONDS)
        keeps_states = TRAINING in self._offer
        links = [link for link in self.links.values() if keeps_states or not isinstance(link, MessagesLink)]
        for link in links:
            link.send(Frame(Kind.EXPORTED))
        for wait in (methodcaller("flush"), methodcaller("await_taken", timeout)):
            for link in list(links):
                try:
                    wait(link)
                except SessionError as error:
                    links.remove(link)
                    _log.warning("%s; its secret and states of this training stay there until its next one", error)
