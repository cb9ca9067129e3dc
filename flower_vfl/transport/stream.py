"""One gRPC bidirectional stream a party, mutual TLS 1.3; frames as bytes, one thread each way so that nobody blocks.

The certificate of the run's authority, the party's own certificate and key and a one-time token reach the party in the
offer, through Flower's own channel. Whoever cannot show them is refused in the handshake.
"""

from __future__ import annotations

import hmac
import logging
import queue
import secrets
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
from flwr.app import ConfigRecord

from flower_vfl.errors import PartyError, ProtocolError, SessionError, SetupError, UnreachableError
from flower_vfl.protocol.codec import OVERHEAD, decode, encode
from flower_vfl.protocol.frame import Frame, Kind, from_records, to_records
from flower_vfl.protocol.numbers import compress, expand
from flower_vfl.transport.authority import SERVER_NAME, Authority, check_clock
from flower_vfl.transport.base import Link, Machine, check_refusal, error_frame

_log = logging.getLogger(__name__)

_SERVICE, _METHOD = "flower_vfl.Session", "Open"
_HELLO_LIMIT = OVERHEAD
_HELLO_SECONDS = 10.0
_GREETINGS = 2  # of one node at a time: a stream that hangs must not block its successor, nor other parties
_KEEPALIVE: list[tuple[str, int]] = [
    ("grpc.keepalive_time_ms", 5_000),
    # A ping waits behind the frames that are under way: five of 512 KiB take 20 s at 1 Mbit/s.
    ("grpc.keepalive_timeout_ms", 30_000),
    ("grpc.http2.ping_timeout_ms", 30_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.http2.min_ping_interval_without_data_ms", 4_000),
]
_END = None
Bytes = bytes | None


def _address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host and not host.startswith("[") else f"{host}:{port}"


def _options(limit: int) -> list[tuple[str, int]]:
    return [*_KEEPALIVE, ("grpc.max_receive_message_length", limit), ("grpc.max_send_message_length", limit)]


class _Wire:
    """Frames of one session as bytes."""

    def __init__(self, session: str, wire_dtype: str) -> None:
        self.session, self.wire_dtype = session, wire_dtype

    def pack(self, frame: Frame) -> bytes:
        return encode(to_records(compress(frame, self.wire_dtype), self.session))

    def unpack(self, data: bytes, limit: int) -> Frame:
        return expand(from_records(decode(data, limit=limit), self.session), self.wire_dtype)


class StreamLink(Link):
    """The label party's end of a stream; gRPC's threads fill and empty two queues."""

    def __init__(self, party: str, hello: Frame, node: str, wire: _Wire, context: Any) -> None:
        super().__init__(party, hello, node)
        self._wire = wire
        self._context = context
        self.outgoing: queue.SimpleQueue[Bytes] = queue.SimpleQueue()
        self.incoming: queue.SimpleQueue[Bytes] = queue.SimpleQueue()

    def send(self, frame: Frame) -> None:  # noqa: D102
        data = self._wire.pack(frame)
        self.bytes_down += len(data)
        self.outgoing.put(data)

    def receive(self, timeout: float) -> Frame:  # noqa: D102
        try:
            data = self.incoming.get(timeout=timeout)
        except queue.Empty:
            raise PartyError(f"party {self.party!r} did not answer within {timeout:g} s") from None
        if data is _END:
            self.incoming.put(_END)
            raise PartyError(f"the session with party {self.party!r} broke: it died or lost its connection")
        self.bytes_up += len(data)
        try:
            return self._accept(self._wire.unpack(data, self.frame_limit))
        except ProtocolError as error:
            raise ProtocolError(f"party {self.party!r}: {error}") from None

    def close(self) -> None:  # noqa: D102
        self.outgoing.put(_END)

    def end(self) -> None:
        """Wake whoever waits: the stream has ended."""
        self.incoming.put(_END)
        self.outgoing.put(_END)


class StreamEndpoint:
    """The label party's session endpoint.

    Parameters
    ----------
    session : str
        Id of the session; frames of another one are refused.
    host, port : str, int
        Where to listen; port 0 takes a free one.
    advertise : str
        The host that parties dial; empty for `host`.
    parties : int
        How many parties will dial.
    wire_dtype : str
        Number format on the wire.
    limit : int
        Most bytes of a message that gRPC takes at all; the limit of a party's frames follows from its embedding.

    Raises
    ------
    SetupError
        When the port is in use or the address is not of this host.
    """

    def __init__(
        self, session: str, *, host: str, port: int, advertise: str, parties: int, wire_dtype: str, limit: int
    ) -> None:
        self.session = session
        self._wire = _Wire(session, wire_dtype)
        self._limit = limit
        self._authority = Authority()
        self._tokens: dict[str, str] = {}
        self._greeting: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._arrived: queue.SimpleQueue[StreamLink] = queue.SimpleQueue()
        self._links: list[StreamLink] = []
        streams = 2 * parties + 4  # a half-open stream must not block its own successor
        self._server = grpc.server(
            ThreadPoolExecutor(streams, thread_name_prefix="session"),
            options=[*_options(limit), ("grpc.server_handshake_timeout_ms", 3_000), ("grpc.so_reuseport", 0)],
            maximum_concurrent_rpcs=streams,
        )
        handler = grpc.stream_stream_rpc_method_handler(self._serve)
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(_SERVICE, {_METHOD: handler}),))
        identity = self._authority.server()
        credentials = grpc.ssl_server_credentials(
            [(identity.key, identity.certificate)], self._authority.certificate, require_client_auth=True
        )
        try:
            bound = self._server.add_secure_port(_address(host, port), credentials)
        except RuntimeError:
            bound = 0
        if bound == 0:
            raise SetupError(
                f"the session endpoint cannot listen on {_address(host, port)}: the port is in use or the address is "
                "not of this host; set transport.port to 0 or to a free one, transport.host to an address of this host"
            )
        self.address = _address(advertise or host, bound)
        self._server.start()

    def offer(self, node: str) -> dict[str, str | bytes | int]:
        """Return what `node` needs to dial; it is for that node alone, and it opens one session once."""
        token, identity = secrets.token_hex(32), self._authority.client(node)
        self._tokens[node] = token
        return {
            "address": self.address,
            "token": token,
            "authority": self._authority.certificate,
            "certificate": identity.certificate,
            "key": identity.key,
            "limit": self._limit,
            "wire-dtype": self._wire.wire_dtype,
        }

    def accept(self) -> Link | None:
        """Return the link to a party that has arrived, if there is one."""
        try:
            return self._arrived.get_nowait()
        except queue.Empty:
            return None

    def close(self) -> None:
        """End all sessions and free the port."""
        for link in self._links:
            link.close()
        self._server.stop(grace=2.0).wait()

    def _admit(self, requests: Iterator[bytes], context: Any) -> StreamLink:
        """Check the newcomer's certificate, TLS version, token and greeting."""
        auth = context.auth_context()
        version = auth.get("ssl_tls_version", [b"an unknown version"])[0]
        if version != b"TLSv1.3":
            raise ProtocolError(f"sessions need TLS 1.3, {version.decode()} was negotiated")
        node = auth["x509_common_name"][0].decode()
        hello = self._greeting_of(node, requests, context)
        with self._lock:
            token = self._tokens.pop(node, None)
        shown = hello.text("token").encode(errors="replace")
        if token is None or hello.kind is not Kind.HELLO or not hmac.compare_digest(token.encode(), shown):
            raise ProtocolError(f"node {node} showed no valid token")
        fields = {name: value for name, value in hello.fields.items() if name != "token"}
        return StreamLink(hello.text("party"), Frame(Kind.HELLO, fields=fields), node, self._wire, context)

    def _greeting_of(self, node: str, requests: Iterator[bytes], context: Any) -> Frame:
        """Wait for the first message of a stream, of few streams of one node at a time and not for long."""
        with self._lock:
            self._greeting[node] += 1
        timer = threading.Timer(_HELLO_SECONDS, context.cancel)
        try:
            if self._greeting[node] > _GREETINGS:
                raise ProtocolError(f"node {node} has {_GREETINGS} other streams that have not greeted")
            timer.start()
            return from_records(decode(next(requests), limit=_HELLO_LIMIT), self.session)
        except (StopIteration, grpc.RpcError):
            raise ProtocolError("no greeting came") from None
        finally:
            timer.cancel()
            with self._lock:
                self._greeting[node] -= 1

    def _serve(self, requests: Iterator[bytes], context: Any) -> Iterator[bytes]:
        try:
            link = self._admit(requests, context)
        except ProtocolError as error:
            _log.warning("a peer of the session endpoint was refused: %s", error)
            context.abort(grpc.StatusCode.PERMISSION_DENIED, str(error)[:500])
        self._links.append(link)
        if not context.add_callback(link.end):
            link.end()  # it has ended already
        threading.Thread(target=_drain, args=(requests, link.incoming), daemon=True).start()
        self._arrived.put(link)
        yield from iter(link.outgoing.get, _END)


def _drain(source: Iterator[bytes], target: queue.SimpleQueue[Bytes]) -> None:
    """Move every message to the queue; the end, however it comes, is one `None`."""
    try:
        for data in source:
            target.put(data)
    except grpc.RpcError:
        _log.debug("a stream ended with an error")
    finally:
        target.put(_END)


def attend(offer: ConfigRecord, session: str, machine: Machine, *, timeout: float) -> None:
    """Dial the label party and answer its frames until training is finished (called by the party's handler).

    Raises
    ------
    UnreachableError
        When the endpoint does not answer within `timeout` seconds.
    SessionError
        When it refuses or breaks off, or the clocks differ by a day or more.
    """
    check_clock(_pem(offer, "certificate"))
    limit = int(str(offer["limit"]))
    wire = _Wire(session, str(offer["wire-dtype"]))
    credentials = grpc.ssl_channel_credentials(_pem(offer, "authority"), _pem(offer, "key"), _pem(offer, "certificate"))
    options = [*_options(limit), ("grpc.ssl_target_name_override", SERVER_NAME)]
    address = str(offer["address"])
    outgoing: queue.SimpleQueue[Bytes] = queue.SimpleQueue()
    hello = machine.hello()
    greeting = Frame(Kind.HELLO, fields={**hello.fields, "token": str(offer["token"])})
    outgoing.put(encode(to_records(greeting, session)))
    with grpc.secure_channel(address, credentials, options) as channel:
        try:
            grpc.channel_ready_future(channel).result(timeout=timeout)
        except grpc.FutureTimeoutError:
            raise UnreachableError(_unreachable(address, timeout)) from None
        answers = channel.stream_stream(f"/{_SERVICE}/{_METHOD}")(iter(outgoing.get, _END))
        try:
            _converse(answers, outgoing, wire, machine)
        except grpc.RpcError as error:
            raise SessionError(f"the session with {address} broke: {error.code().name} {error.details()}") from None
        finally:
            outgoing.put(_END)
    if not machine.finished:
        raise SessionError("the label party ended the session before it was finished")


def _unreachable(address: str, timeout: float) -> str:
    """Say what to look at when the endpoint does not answer this host."""
    host = address.rpartition(":")[0].strip("[]")
    words = f"the label party's session endpoint {address} could not be reached within {timeout:g} s"
    if host in ("localhost", "::1") or host.startswith("127."):
        return (
            f"{words}: that is an address of this host itself; if the label party has another host, its configuration "
            "must name one that parties can dial, in transport.host (and transport.advertise)"
        )
    return (
        f"{words}: is the address right, does this host resolve its name, and do firewalls on both sides let it "
        f"through? On this host try: flower-vfl doctor --dial {address}"
    )


def _converse(answers: Any, outgoing: queue.SimpleQueue[Bytes], wire: _Wire, machine: Machine) -> None:
    for data in answers:
        try:
            frame = wire.unpack(data, machine.frame_limit)
            reply = machine.handle(frame) if frame.kind is not Kind.ERROR else None
        except grpc.RpcError:
            raise
        except Exception as error:
            outgoing.put(wire.pack(error_frame(error)))
            outgoing.put(_END)
            for _ in answers:  # until the label party has read the report and closed
                continue
            raise
        check_refusal(frame)
        if reply is not None:
            outgoing.put(wire.pack(reply))


def _pem(offer: ConfigRecord, name: str) -> bytes:
    value = offer[name]
    if not isinstance(value, bytes):
        raise ProtocolError(f"the offer has no {name!r}")
    return value
