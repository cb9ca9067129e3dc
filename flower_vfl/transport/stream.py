"""The label party's end of streams: one gRPC bidirectional stream a party, mutual TLS 1.3, frames as bytes.

The certificate of the run's authority, the party's own certificate and key and a one-time token reach the party in the
offer, through Flower's own channel. A party without them is refused in the handshake. A party with a broken stream
dials again, proves by its certificate and by a signature that it is the one that was admitted, and goes on.
"""

from __future__ import annotations

import hmac
import logging
import math
import queue
import secrets
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import grpc
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey

from flower_vfl.errors import PartyError, PartyLostError, ProtocolError
from flower_vfl.protocol.frame import OVERHEAD, Frame, Kind, decode, from_records
from flower_vfl.transport.acceptor import Acceptor, address_text
from flower_vfl.transport.authority import OFFER_SECONDS, SERVER_NAME, Authority, is_signed, public_key
from flower_vfl.transport.base import Link
from flower_vfl.transport.wire import METHOD, NONCE, SERVICE, Traffic, Wire, key_of, options, proof, words_to_sign

_log = logging.getLogger(__name__)

_HELLO_LIMIT = OVERHEAD
_HELLO_SECONDS = 10.0
_GREETINGS = 2  # at a time from one node: a stream that hangs must not block its successor, nor other parties
_WATCH_SECONDS = 0.2
_CONFIRMED_SECONDS = 0.005
_GRACE_SECONDS = 10.0  # for parties to close their sides when all has been sent: a busy host needs more than a moment
_PROOF_FIELDS = ("token", "taken", "proof", "signature", "key")
_END = None
Outgoing = queue.SimpleQueue[bytes | None]


@dataclass(eq=False)
class _Connection:
    """One stream of a session; when it breaks, another may take its place."""

    context: Any
    outgoing: Outgoing = field(default_factory=queue.SimpleQueue)

    def end(self) -> None:
        """End the stream once all queued messages are sent."""
        self.outgoing.put(_END)


class StreamLink(Link):
    """The label party's end of a session; gRPC's threads fill one queue and empty another.

    The party may reconnect after a stream broke; meanwhile `receive` waits and calls `watch` repeatedly.
    """

    def __init__(
        self, party: str, hello: Frame, node: str, wire: Wire, *, key: EllipticCurvePublicKey, reconnect: float
    ) -> None:
        super().__init__(party, hello, node)
        self.key, self.reconnects = key, 0
        self._wire, self._reconnect = wire, reconnect
        self._traffic, self._lock = Traffic(), threading.Lock()
        self._connection: _Connection | None = None
        self._broken, self._closed = math.inf, False
        self._logged_break = math.inf
        self.incoming: queue.SimpleQueue[bytes | ProtocolError | None] = queue.SimpleQueue()

    def send(self, frame: Frame) -> None:  # noqa: D102
        data = self._wire.pack(frame)
        with self._lock:
            try:
                message = self._traffic.pack(data)
            except PartyError as error:
                raise PartyError(f"party {self.party!r}: {error}") from None
            self.bytes_down += len(data)
            if self._connection is not None:
                self._connection.outgoing.put(message)

    def receive(self, timeout: float) -> Frame:  # noqa: D102
        deadline = time.monotonic() + timeout
        while True:
            broken = self._broken < math.inf
            try:
                item = self.incoming.get(timeout=_WATCH_SECONDS if broken else max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                if not broken:
                    raise PartyError(f"party {self.party!r} did not answer within {timeout:g} s") from None
                item = _END
            if item is not _END:
                return self._read_item(item)
            self._check_lost()
            deadline = time.monotonic() + timeout  # it may have been away for longer, and has all its time to answer

    def await_taken(self, timeout: float) -> None:  # noqa: D102
        deadline = time.monotonic() + timeout
        while self._traffic.unconfirmed:
            self._check_lost()
            if time.monotonic() > deadline:
                raise PartyError(f"party {self.party!r} did not confirm the end of the run within {timeout:g} s")
            time.sleep(_CONFIRMED_SECONDS)

    def _check_lost(self) -> None:
        """Raise when the stream is broken and will not be resumed."""
        since = self._broken
        if since == math.inf:
            return
        if time.monotonic() < since + self._reconnect:
            self.watch()
            if since != self._logged_break:
                self._logged_break = since
                _log.warning(
                    "the connection to party %r broke; training waits up to %g s (transport.reconnect_timeout) for it "
                    "to dial again",
                    self.party,
                    self._reconnect,
                )
            return
        self.incoming.put(_END)  # the next call raises the same error
        raise PartyLostError(f"the session with party {self.party!r} broke: it died or lost its connection", self.party)

    def _read_item(self, item: bytes | ProtocolError) -> Frame:
        try:
            if isinstance(item, ProtocolError):
                raise item
            self.bytes_up += len(item)
            return self._accept(self._wire.unpack(item, self.frame_limit))
        except ProtocolError as error:
            raise ProtocolError(f"party {self.party!r}: {error}") from None

    def close(self) -> None:  # noqa: D102
        with self._lock:
            self._closed = True
            if self._connection is not None:
                self._connection.end()

    @property
    def queued(self) -> int:  # noqa: D102
        return self.incoming.qsize()

    @property
    def away(self) -> float:  # noqa: D102
        return max(0.0, time.monotonic() - self._broken)

    def attach(self, context: Any, taken: int, certificate: bytes = b"") -> _Connection:
        """Go on over a new stream with a party that has taken `taken` frames, and end the old one.

        The party dials with the certificate when this stream breaks.

        Raises
        ------
        ProtocolError
            When it cannot have taken this number of frames.
        """
        new = _Connection(context)
        with self._lock:
            self._traffic.confirm(taken)
            for message in (self._traffic.message(certificate), *self._traffic.missed()):
                new.outgoing.put(message)
            old, self._connection, self._broken = self._connection, new, math.inf
            if self._closed:
                new.end()
        if old is not None:
            self.reconnects += 1
            _log.warning("party %r is back after a break", self.party)
            old.end()
            old.context.cancel()
        return new

    def drain(self, connection: _Connection, messages: Iterator[bytes]) -> None:
        """Read the messages of a stream until it ends or another one has taken its place."""
        try:
            for message in messages:
                with self._lock:
                    if connection is not self._connection:
                        return
                    data = self._traffic.take(message)
                    if data:
                        self._check_allowed(len(data))
                        self.incoming.put(data)
        except grpc.RpcError:
            _log.debug("a stream ended with an error")
        except ProtocolError as error:
            self.incoming.put(error)
        finally:
            self.ended(connection)

    def _check_allowed(self, size: int) -> None:
        """Refuse a received frame that is too large, or that answers no sent one, before it is queued."""
        if size > self.frame_limit:
            raise ProtocolError(f"a frame of {size} bytes came; at most {self.frame_limit} are allowed here")
        if self._traffic.taken > self._traffic.sent:
            raise ProtocolError(f"{self._traffic.taken} frames came, in answer to {self._traffic.sent}")

    def ended(self, connection: _Connection) -> None:
        """Record that a stream has ended, and wake `receive`."""
        with self._lock:
            if connection is self._connection and self._broken == math.inf:
                self._broken = time.monotonic()
                self.incoming.put(_END)
        connection.end()


class StreamEndpoint:
    """The label party's session endpoint.

    Parameters
    ----------
    session : str
        Id of the session; frames of another one are refused.
    host, port : str, int
        Address to listen on; port 0 takes a free one.
    advertise : str
        The host that parties dial; empty for `host`.
    parties : int
        Number of parties that will dial.
    wire_dtype : str
        Number format on the wire.
    limit : int
        Largest frame that gRPC takes at all, in bytes; the limit of a party's frames follows from its embedding.
    reconnect : float
        Seconds that a party has to reconnect after its stream broke.
    offer_seconds : float
        Seconds that the certificate of an offer is valid. An admitted party has another one, which is in no offer.

    Raises
    ------
    SetupError
        When the port is in use or the address is not of this host.
    """

    def __init__(
        self,
        session: str,
        *,
        host: str,
        port: int,
        advertise: str,
        parties: int,
        wire_dtype: str,
        limit: int,
        reconnect: float = 0.0,
        offer_seconds: float = OFFER_SECONDS,
    ) -> None:
        self.session = session
        self._wire = Wire(session, wire_dtype)
        self._limit, self._reconnect, self._offer_seconds = limit, reconnect, offer_seconds
        self._authority = Authority()
        self._tokens: dict[str, str] = {}
        self._greeting_streams: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._arrived: queue.SimpleQueue[StreamLink] = queue.SimpleQueue()
        self._links: dict[str, StreamLink] = {}
        self._closed = False
        streams = 2 * parties + 4  # a half-open stream must not block its own successor
        self._server = grpc.server(
            ThreadPoolExecutor(streams, thread_name_prefix="session"),
            options=[*options(limit), ("grpc.server_handshake_timeout_ms", 3_000), ("grpc.so_reuseport", 0)],
            maximum_concurrent_rpcs=streams,
        )
        handler = grpc.stream_stream_rpc_method_handler(self._serve)
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, {METHOD: handler}),))
        identity = self._authority.server()
        credentials = grpc.ssl_server_credentials(
            [(identity.key, identity.certificate)], self._authority.certificate, require_client_auth=True
        )
        self._acceptor = Acceptor(host, port)
        try:
            self._server.add_secure_port(self._acceptor.target, credentials)
            self._server.start()
            self._acceptor.wait_ready()
        except BaseException:
            self._acceptor.close()
            raise
        self.address = address_text(advertise or host, self._acceptor.port)

    def offer(self, node: str) -> dict[str, str | bytes | int]:
        """Return the offer with which `node`, and no other node, can dial; it opens one session once."""
        token, mark = secrets.token_hex(32), secrets.token_hex(16)
        identity = self._authority.client(node, seconds=self._offer_seconds)
        self._tokens[node] = token
        self._acceptor.let(mark)  # it stays after `revoke`: a party with it must be refused at once, with the reason
        return {
            "address": self.address,
            "server-name": f"{mark}.{SERVER_NAME}",
            "token": token,
            "authority": self._authority.certificate,
            "certificate": identity.certificate,
            "key": identity.key,
            "limit": self._limit,
            "wire-dtype": self._wire.wire_dtype,
        }

    def revoke(self, node: str) -> None:
        """Revoke earlier offers to `node`, also for a party that has dialled with one and was not accepted yet."""
        with self._lock:
            self._tokens.pop(node, None)
            link = self._links.pop(node, None)
        if link is not None:
            link.close()

    def accept(self) -> Link | None:
        """Return the link to a party that has arrived, if there is one."""
        while True:
            try:
                link = self._arrived.get_nowait()
            except queue.Empty:
                return None
            if self._links.get(link.node) is link:  # else its offer was revoked meanwhile
                return link

    def close(self) -> None:
        """End all sessions, also those of parties that are being admitted, and free the port."""
        with self._lock:
            self._closed = True
            for link in self._links.values():
                link.close()
        self._server.stop(grace=_GRACE_SECONDS).wait()
        self._acceptor.close()

    def _admit(self, requests: Iterator[bytes], context: Any) -> tuple[StreamLink, _Connection]:
        """Return the link to a dialling party and its stream, after checks of TLS, certificate, greeting and proof."""
        auth = context.auth_context()
        version = auth.get("ssl_tls_version", [b"an unknown version"])[0]
        if version != b"TLSv1.3":
            raise ProtocolError(f"sessions need TLS 1.3, {version.decode()} was negotiated")
        node = auth["x509_common_name"][0].decode()
        nonce = secrets.token_hex(32)
        context.send_initial_metadata(((NONCE, nonce),))
        hello = self._read_greeting(node, requests, context)
        if hello.kind is not Kind.HELLO:
            raise ProtocolError(f"node {node} did not greet")
        taken = hello.integer("taken") if "signature" in hello.fields else 0
        link, new = self._authenticated(node, hello, nonce, taken)
        connection = link.attach(context, taken, self._authority.certify(node, link.key))
        if new:
            self._arrived.put(link)
        return link, connection

    def _authenticated(self, node: str, hello: Frame, nonce: str, taken: int) -> tuple[StreamLink, bool]:
        """Return the link of a party that shows its token for the first time, or signs, and True if the link is new."""
        key = public_key(hello.text("key"))
        with self._lock:
            token, link = self._tokens.get(node), self._links.get(node)
            if token is not None:
                proven = proof(key_of(token), nonce, self.session, taken)
                if _shows(hello, "token", token) or _shows(hello, "proof", proven):
                    del self._tokens[node]
                    shown = Frame(Kind.HELLO, fields={k: v for k, v in hello.fields.items() if k not in _PROOF_FIELDS})
                    link = StreamLink(hello.text("party"), shown, node, self._wire, key=key, reconnect=self._reconnect)
                    self._links[node] = link
                    if self._closed:
                        link.close()
                    return link, True
        signed = words_to_sign(nonce, self.session, taken)
        if token is None and link is not None and is_signed(link.key, hello.fields.get("signature"), signed):
            return link, False
        raise ProtocolError(f"node {node} showed no valid token")

    def _read_greeting(self, node: str, requests: Iterator[bytes], context: Any) -> Frame:
        """Return the first message of a stream; the wait and the number of waiting streams of a node are limited."""
        with self._lock:
            self._greeting_streams[node] += 1
        timer = threading.Timer(_HELLO_SECONDS, context.cancel)
        try:
            if self._greeting_streams[node] > _GREETINGS:
                raise ProtocolError(f"node {node} has {_GREETINGS} other streams that have not greeted")
            timer.start()
            return from_records(decode(next(requests), limit=_HELLO_LIMIT), self.session)
        except (StopIteration, grpc.RpcError):
            raise ProtocolError("no greeting came") from None
        finally:
            timer.cancel()
            with self._lock:
                self._greeting_streams[node] -= 1

    def _serve(self, requests: Iterator[bytes], context: Any) -> Iterator[bytes]:
        try:
            link, connection = self._admit(requests, context)
        except ProtocolError as error:
            _log.warning("a peer of the session endpoint was refused: %s", error)
            context.abort(grpc.StatusCode.PERMISSION_DENIED, str(error)[:500])
        self._acceptor.admit(context.peer())
        if not context.add_callback(lambda: link.ended(connection)):
            link.ended(connection)  # it has ended already
        threading.Thread(target=link.drain, args=(connection, requests), daemon=True).start()
        yield from iter(connection.outgoing.get, _END)


def _shows(hello: Frame, name: str, expected: str) -> bool:
    """Return True if a greeting holds the expected text, by a comparison in constant time."""
    shown = hello.fields.get(name)
    return isinstance(shown, str) and hmac.compare_digest(expected.encode(), shown.encode(errors="replace"))
