"""A feature party's end of a session: over a stream it dials the label party, answers its frames, and reconnects."""

from __future__ import annotations

import logging
import math
import queue
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import grpc
from flwr.app import ConfigRecord

from flower_vfl.config.schema import TransportConfig
from flower_vfl.errors import ProtocolError, SessionError, UnreachableError
from flower_vfl.protocol.frame import Frame, Kind, encode, to_records
from flower_vfl.protocol.printable import printable
from flower_vfl.transport.authority import SERVER_NAME, Identity, SessionKey, check_clock
from flower_vfl.transport.base import Machine, check_refusal, error_frame
from flower_vfl.transport.inproc import InprocEndpoint
from flower_vfl.transport.wire import METHOD, NONCE, SERVICE, Traffic, Wire, key_of, options, proof, words_to_sign

_log = logging.getLogger(__name__)

_END = None
_BROKEN = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.INTERNAL, grpc.StatusCode.CANCELLED, grpc.StatusCode.UNKNOWN)
"""Codes of a stream that ends because its connection breaks; a refused party receives another code."""
_PAUSES = (0.05, 1.0)

_REFUSED_BYTES = 2**24
"""Bytes by which a message may exceed a party's largest frame and still be refused by name; gRPC ends the session at
larger ones before they are in memory."""

Outgoing = queue.SimpleQueue[bytes | None]


def take_part(
    offer: ConfigRecord, machine: Machine, config: TransportConfig, outward: Callable[[Exception], Exception]
) -> str | None:
    """Exchange the frames of an offered session until it ends.

    Parameters
    ----------
    offer, machine, outward : ConfigRecord, Machine, Callable[[Exception], Exception]
        As in `attend`.
    config : TransportConfig
        Configuration with the timeouts.

    Returns
    -------
    str or None
        None when the session has ended. Otherwise its frames must be sent in Flower's own messages; the string is the
        reason, empty where the offer asks for them.

    Raises
    ------
    UnreachableError
        When the label party cannot be reached, and the offer allows no other way.
    """
    session = str(offer["session"])
    if offer["kind"] == "messages":
        return ""
    if offer["kind"] == "inproc":
        InprocEndpoint.attend(session, machine)
        return None
    wait = config.connect_timeout / 2  # half the time, so that the label party still receives the reason
    try:
        attend(offer, session, machine, timeout=wait, reconnect=config.reconnect_timeout, outward=outward)
    except UnreachableError as error:
        if offer.get("fallback") != "messages":
            raise
        _log.warning("%s. Frames travel in Flower's own messages instead, which is slow", error)
        return str(error)
    return None


def attend(
    offer: ConfigRecord,
    session: str,
    machine: Machine,
    *,
    timeout: float,
    reconnect: float = 0.0,
    outward: Callable[[Exception], Exception] = lambda error: error,
) -> None:
    """Dial the label party and answer its frames until training is finished.

    Parameters
    ----------
    offer : ConfigRecord
        The offer of the label party's endpoint to this node.
    session : str
        Id of the session.
    machine : Machine
        State machine that answers the frames.
    timeout : float
        Seconds to reach the endpoint for the first time.
    reconnect : float
        Seconds to reach it again after a stream broke; it goes on with the next frame. With 0 a break is the end. For
        a finished party only its report may be missing then, which is logged.
    outward : Callable[[Exception], Exception]
        Function that returns the error to send to the label party for the party's own error; it is raised here too.

    Raises
    ------
    UnreachableError
        When the endpoint does not answer within `timeout` seconds.
    SessionError
        When it refuses or breaks off, or the clocks differ by a day or more.
    """
    check_clock(_pem(offer, "authority"))
    dialler = Dialler(offer, session, machine, outward)
    wait, pause, since = timeout, _PAUSES[0], math.inf
    while True:
        received = dialler.received
        dialler.converse(wait)
        if dialler.broken is None or dialler.complete:
            break
        if dialler.received > received:
            pause, since = _PAUSES[0], time.monotonic()
        since = min(since, time.monotonic())
        if time.monotonic() >= since + reconnect:
            if not machine.finished:
                raise dialler.broken
            _log.warning("%s when training was finished: the label party may not have its report", dialler.broken)
            return
        _log.warning("%s; dialling again", dialler.broken)
        time.sleep(pause)
        wait, pause = reconnect, min(2 * pause, _PAUSES[1])
    if not machine.finished:
        raise SessionError("the label party ended the session before it was finished")


class Dialler:
    """One session of a party, over all its connections.

    Attributes
    ----------
    broken : SessionError or None
        Reason why the last connection ended; None where the label party closed it.
    received : int
        Number of received messages.
    complete : bool
        True once the last frame of a training has arrived: its results are written, and nothing follows.
    """

    def __init__(
        self, offer: ConfigRecord, session: str, machine: Machine, outward: Callable[[Exception], Exception]
    ) -> None:
        self._outward = outward
        self.broken: SessionError | None = None
        self.received, self.complete = 0, False
        self._wire = Wire(session, str(offer["wire-dtype"]))
        self._machine, self._hello, self._traffic = machine, machine.hello(), Traffic()
        self._address, self._token = str(offer["address"]), str(offer["token"])
        limit = int(str(offer["limit"]))
        self._options = [
            *options(limit, received=min(limit, machine.frame_limit + _REFUSED_BYTES)),  # the label party chose `limit`
            ("grpc.ssl_target_name_override", _server_name(offer)),
            ("grpc.use_local_subchannel_pool", 1),
            ("grpc.max_reconnect_backoff_ms", 1_000),
        ]
        self._authority, self._key = _pem(offer, "authority"), SessionKey()
        self._identity = Identity(_pem(offer, "certificate"), _pem(offer, "key"))
        self._dialled = False

    def converse(self, timeout: float) -> None:
        """Dial, and answer frames until the stream ends; `broken` holds the reason.

        Raises
        ------
        UnreachableError
            When the endpoint has never answered.
        SessionError
            When it refuses.
        """
        self.broken = None
        outgoing: Outgoing = queue.SimpleQueue()
        identity = self._identity
        credentials = grpc.ssl_channel_credentials(self._authority, identity.key, identity.certificate)
        with grpc.secure_channel(self._address, credentials, self._options) as channel:
            if not _becomes_ready(channel, timeout):
                if not self._dialled:
                    raise UnreachableError(_unreachable(self._address, timeout))
                self.broken = UnreachableError(_interrupted(self._address, timeout))
                return
            answers = channel.stream_stream(f"/{SERVICE}/{METHOD}")(iter(outgoing.get, _END))
            try:
                self._greet(answers, outgoing)
                self.answer(answers, outgoing)
            except grpc.RpcError as error:
                broken = SessionError(
                    f"the session with {self._address} broke: {error.code().name} {printable(error.details())}"
                )
                if error.code() not in _BROKEN:
                    raise broken from None
                self.broken = broken
            finally:
                outgoing.put(_END)

    def _greet(self, answers: Any, outgoing: Outgoing) -> None:
        """Send the greeting: with the token the first time, later with a signature of the label party's nonce.

        If nothing was received yet, the first greeting may be lost, and the label party does not have the key: then a
        proof of the token is added.
        """
        fields = {**self._hello.fields, "key": self._key.public}
        if self._dialled:
            nonce = str(dict(answers.initial_metadata()).get(NONCE, ""))
            taken, session = self._traffic.taken, self._wire.session
            fields |= {"taken": taken, "signature": self._key.sign(words_to_sign(nonce, session, taken))}
            if not self.received:
                fields["proof"] = proof(key_of(self._token), nonce, session, taken)
        else:
            fields["token"] = self._token
        self._dialled = True
        outgoing.put(encode(to_records(Frame(Kind.HELLO, fields=fields), self._wire.session)))

    def answer(self, answers: Any, outgoing: Outgoing) -> None:
        """Answer frames until the stream ends; after an error, the label party receives the reason first."""
        welcomed = False
        for message in answers:
            self.received += 1
            try:
                if not welcomed:
                    welcomed = True
                    self._welcome(message, outgoing)
                    continue
                data = self._traffic.take(message)
                if not data:
                    continue
                frame = self._wire.unpack(data, self._machine.frame_limit)
                reply = self._machine.handle(frame) if frame.kind is not Kind.ERROR else None
                answer = b"" if reply is None else self._wire.pack(reply)
            except grpc.RpcError:
                raise
            except Exception as error:
                outward = self._outward(error)
                self._report(outward, answers, outgoing)
                if outward is error:
                    raise
                raise outward from None
            check_refusal(frame)
            self.complete = frame.kind is Kind.EXPORTED
            if answer:
                outgoing.put(self._traffic.pack(answer))
            elif self.complete or self._traffic.owes_confirmation:
                outgoing.put(self._traffic.message())

    def _welcome(self, message: bytes, outgoing: Outgoing) -> None:
        """Read the label party's count of taken frames, send the others, and keep the certificate for the next dial.

        The offer has another key, which the SuperLink's database holds too, and whose certificate expires soon.
        """
        certificate = self._traffic.take_welcome(message)
        if certificate:
            self._identity = self._key.identity(certificate)
        for missed in self._traffic.missed():
            outgoing.put(missed)

    def _report(self, error: Exception, answers: Any, outgoing: Outgoing) -> None:
        """Send the error to the label party, and wait until it has read it and closed."""
        outgoing.put(self._traffic.pack(self._wire.pack(error_frame(error))))
        outgoing.put(_END)
        with suppress(grpc.RpcError):  # a stream that breaks now must not hide the error
            for _ in answers:
                continue


def _becomes_ready(channel: grpc.Channel, timeout: float) -> bool:
    """Return True if a channel connects in time; gRPC's own `channel_ready_future` waits by a clock that can jump."""
    ready = threading.Event()

    def changed(state: grpc.ChannelConnectivity) -> None:
        if state is grpc.ChannelConnectivity.READY:
            ready.set()

    channel.subscribe(changed, try_to_connect=True)
    try:
        return ready.wait(timeout)
    finally:
        channel.unsubscribe(changed)


def _unreachable(address: str, timeout: float) -> str:
    """Return advice for an endpoint that does not answer this host."""
    host = address.rpartition(":")[0].strip("[]")
    words = f"the label party's session endpoint {address} could not be reached within {timeout:g} s"
    ended = (
        "If none of this is the cause, the label party may have ended the run before: its log has the reason, such as "
        "a privacy ledger that allows no further training"
    )
    if host in ("localhost", "::1") or host.startswith("127."):
        return (
            f"{words}: that is an address of this host itself; if the label party has another host, its configuration "
            f"must name one that parties can dial, in transport.host (and transport.advertise). {ended}"
        )
    return (
        f"{words}: is the address right, does this host resolve its name, and do firewalls on both sides let it "
        f"through? On this host try: flower-vfl doctor --dial {address}. {ended}"
    )


def _interrupted(address: str, timeout: float) -> str:
    """Return advice for an endpoint that answered this host before."""
    return (
        f"the session broke, and the label party's endpoint {address} could not be reached again within {timeout:g} s: "
        "the label party's run has ended, or the network is interrupted. Leave this SuperNode running: the label party "
        "asks this host again when the network is back, or when it resumes the run; its log has the reason"
    )


def _server_name(offer: ConfigRecord) -> str:
    """Return the server name to request, by which the label party's port recognises a party of the run."""
    name = offer.get("server-name")
    if not isinstance(name, str) or not name.endswith(f".{SERVER_NAME}"):
        raise ProtocolError("the offer has no 'server-name'")
    return name


def _pem(offer: ConfigRecord, name: str) -> bytes:
    value = offer[name]
    if not isinstance(value, bytes):
        raise ProtocolError(f"the offer has no {name!r}")
    return value
