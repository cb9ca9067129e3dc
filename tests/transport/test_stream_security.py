"""A session needs a party's own certificate and its own unused token; unknown hosts do not keep a party out."""

import contextlib
import json
import logging
import queue
import socket
import ssl
import threading
import time

import grpc
import pytest
import torch
from flwr.app import ConfigRecord

from flower_vfl.apps.local_grid import LocalGrid
from flower_vfl.config import build_config, to_run_config
from flower_vfl.errors import PartyLostError, ProtocolError
from flower_vfl.protocol.frame import OVERHEAD, Frame, Kind, encode, to_records
from flower_vfl.transport import stream
from flower_vfl.transport.authority import Authority, SessionKey
from flower_vfl.transport.dialling import attend
from flower_vfl.transport.sessions import Sessions
from tests.transport.fakes import FakeParty, client_app, converse, fit
from tests.transport.test_stream import SESSION, arrived, attending, listening


@pytest.fixture
def endpoint():
    with listening(parties=2) as opened:
        admit, opened.calls = opened._admit, []

        def counted(requests, context):
            opened.calls.append(context.auth_context())
            return admit(requests, context)

        opened._admit = counted
        yield opened


KEY = SessionKey().public


def greeting(token, *, session=SESSION, kind=Kind.HELLO, **fields):
    fields = {"party": "a", "token": token, "key": KEY, **fields}
    return encode(to_records(Frame(kind, fields={k: v for k, v in fields.items() if v is not None}), session))


def dial(offer, data, *, credentials=None, timeout=10.0):
    """Open a stream, send one message and return the status code of its end, None without an error."""
    credentials = credentials or grpc.ssl_channel_credentials(offer["authority"], offer["key"], offer["certificate"])
    options = [("grpc.ssl_target_name_override", offer["server-name"]), ("grpc.enable_retries", 0)]
    with grpc.secure_channel(offer["address"], credentials, options) as channel:
        waiting = iter([data]) if data is not None else iter(lambda: time.sleep(60), 0)
        call = channel.stream_stream("/flower_vfl.Session/Open")(waiting, timeout=timeout)
        try:
            for _ in call:
                continue
        except grpc.RpcError as error:
            return error.code()
    return None


def admitted(endpoint, offer, data=None):
    """Greet with the token of the offer, or with `data`, and return the new link."""
    credentials = grpc.ssl_channel_credentials(offer["authority"], offer["key"], offer["certificate"])
    options = [("grpc.ssl_target_name_override", offer["server-name"])]
    with grpc.secure_channel(offer["address"], credentials, options) as channel:
        call = channel.stream_stream("/flower_vfl.Session/Open")(iter([data or greeting(offer["token"])]), timeout=20)
        link = arrived(endpoint)
        call.cancel()
    return link


class Tap:
    """A TCP proxy that records all bytes between a party and the endpoint, as an eavesdropper can."""

    def __init__(self, endpoint):
        self.seen = bytearray()
        self._target = address_of(endpoint)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                inner, _ = self._listener.accept()
                outer = socket.create_connection(self._target)
                for source, target in ((inner, outer), (outer, inner)):
                    threading.Thread(target=self._copy, args=(source, target), daemon=True).start()

    def _copy(self, source, target):
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                self.seen += data
                target.sendall(data)
        for end in (source, target):
            end.close()

    def close(self):
        self._listener.close()


def test_an_eavesdropper_sees_no_embedding_no_gradient_no_token_and_no_name(endpoint):
    tap, party = Tap(endpoint), FakeParty("a-name-that-would-show", rows=64, width=64)
    offer = endpoint.offer("2")
    endpoint.offer = lambda node: offer
    with attending(endpoint, party, address=tap.address) as errors:
        link = arrived(endpoint, 5)
        fit(link, rows=64, width=64)
        plain = []
        pack, unpack = link._wire.pack, link._wire.unpack
        link._wire.pack = lambda frame: plain.append(pack(frame)) or plain[-1]
        link._wire.unpack = lambda data, limit: plain.append(data) or unpack(data, limit)
        converse({link.party: link}, 3)
        link.send(Frame(Kind.FINISH))
        link.receive(5)
    tap.close()
    assert errors == []
    assert len(tap.seen) > sum(map(len, plain)) > 6 * 64 * 64 * 4  # it all went past the eavesdropper
    for secret in (offer["token"].encode(), b"a-name-that-would-show", SESSION.encode() * 2, b"gradient", b"embedding"):
        assert secret not in tap.seen
    payload = max(plain, key=len)
    assert b"gradient" in payload or b"embedding" in payload  # it would show without encryption
    assert payload[-256:] not in tap.seen


def test_what_was_offered_in_one_run_opens_nothing_in_the_next_one(endpoint):
    with listening() as earlier:
        old = earlier.offer("2")
    offer = endpoint.offer("2")
    credentials = grpc.ssl_channel_credentials(offer["authority"], old["key"], old["certificate"])
    assert dial(offer, greeting(old["token"]), credentials=credentials) is grpc.StatusCode.UNAVAILABLE
    assert endpoint.calls == []
    assert dial(offer, greeting(old["token"])) is REFUSED


def test_whoever_knows_the_whole_run_config_knows_nothing_that_opens_a_session():
    grid = LocalGrid(client_app([]), 0, {})
    config = build_config({"seed": 7, "transport": {"kind": "stream"}})
    runs = []
    for _ in range(2):
        with Sessions(grid, ["a"], config.transport, simulation=False) as sessions:
            runs.append({"session": sessions.session, **sessions._endpoint.offer("2")})
    public = json.dumps(to_run_config(config))
    for name in ("session", "token", "authority", "certificate", "key"):
        assert runs[0][name] != runs[1][name]  # so it does not follow from what both runs have in common
        assert str(runs[0][name]) not in public


@pytest.mark.slow
def test_a_party_with_many_streams_that_never_greet_is_refused_and_the_others_are_served(endpoint):
    channel, calls = open_silently(endpoint, 2)
    while len(endpoint.calls) < len(calls):
        time.sleep(0.01)
    more, excess = open_silently(endpoint, 30)
    try:
        for call in excess:
            with pytest.raises(grpc.RpcError) as caught:
                next(call)
            assert caught.value.code() in (REFUSED, grpc.StatusCode.RESOURCE_EXHAUSTED)
        assert serves(endpoint)
    finally:
        channel.close()
        more.close()


def serves(endpoint):
    """Return True if a genuine party still gets its session."""
    with attending(endpoint, FakeParty()) as errors:
        link = arrived(endpoint, 5)
        fit(link)
        assert len(converse({"a": link}, 2)) == 2
        link.send(Frame(Kind.FINISH))
        link.receive(5)
    return errors == []


REFUSED = grpc.StatusCode.PERMISSION_DENIED


@pytest.mark.parametrize("certified", [False, True], ids=["no certificate", "of another authority"])
def test_a_stranger_dies_in_the_handshake_and_no_handler_runs(endpoint, certified):
    offer, other = endpoint.offer("2"), Authority().client("2")
    own = (other.key, other.certificate) if certified else ()
    credentials = grpc.ssl_channel_credentials(offer["authority"], *own)
    assert dial(offer, greeting(offer["token"]), credentials=credentials) is grpc.StatusCode.UNAVAILABLE
    assert endpoint.calls == []
    assert serves(endpoint)


def test_the_label_partys_own_kind_of_certificate_is_not_a_partys(endpoint):
    offer, server = endpoint.offer("2"), endpoint._authority.server()
    credentials = grpc.ssl_channel_credentials(offer["authority"], server.key, server.certificate)
    assert dial(offer, greeting(offer["token"]), credentials=credentials) in (grpc.StatusCode.UNAVAILABLE, REFUSED)
    assert endpoint.accept() is None


def test_a_plain_connection_gets_nothing(endpoint):
    offer = endpoint.offer("2")
    with grpc.insecure_channel(offer["address"]) as channel:
        call = channel.stream_stream("/flower_vfl.Session/Open")(iter([greeting(offer["token"])]), timeout=5)
        with pytest.raises(grpc.RpcError):
            next(call)
    assert endpoint.calls == []


def test_a_party_refuses_a_label_party_of_another_authority(endpoint):
    own = Authority()
    with attending(endpoint, FakeParty(), timeout=0.7, authority=own.certificate) as errors:
        while not errors:
            time.sleep(0.01)
    assert "could not be reached" in str(errors[0])
    assert endpoint.calls == []


@pytest.mark.parametrize("token", ["", "0" * 64, "wrong", "\ud800", "é" * 32, None])
def test_the_right_certificate_with_a_wrong_token_is_refused(endpoint, token):
    assert dial(endpoint.offer("2"), greeting(token)) is REFUSED
    assert len(endpoint.calls) == 1
    assert endpoint.accept() is None
    assert serves(endpoint)


def test_the_right_token_is_admitted_so_that_the_refusals_mean_something(endpoint):
    offer = endpoint.offer("2")
    assert admitted(endpoint, offer).party == "a"


@pytest.mark.parametrize("shown", ["right", "wrong", "rightx", "", 1, True, None])
def test_tokens_are_compared_in_constant_time(monkeypatch, shown):
    compared, original = [], stream.hmac.compare_digest

    def compare(one, other):
        compared.append((one, other))
        return original(one, other)

    monkeypatch.setattr(stream.hmac, "compare_digest", compare)
    hello = Frame(Kind.HELLO, fields={} if shown is None else {"token": shown})
    assert stream._shows(hello, "token", "right") is (shown == "right")
    assert len(compared) == isinstance(shown, str)


@pytest.mark.parametrize("token", ["again", "", None])
def test_a_token_opens_one_session_once_and_afterwards_nothing_does(endpoint, token):
    offer = endpoint.offer("2")
    admitted(endpoint, offer)
    assert dial(offer, greeting(offer["token"] if token == "again" else token)) is REFUSED
    assert endpoint.accept() is None


def test_an_offer_that_was_revoked_opens_nothing_and_the_next_one_does(endpoint):
    offer = endpoint.offer("2")
    endpoint.revoke("2")
    assert dial(offer, greeting(offer["token"])) is REFUSED
    again = endpoint.offer("2")
    assert dial(offer, greeting(offer["token"])) is REFUSED
    assert admitted(endpoint, again).party == "a"


def test_a_party_that_has_dialled_by_a_revoked_offer_is_not_accepted_and_gets_the_end(endpoint):
    with attending(endpoint, FakeParty()) as errors:
        while endpoint._arrived.empty():
            time.sleep(0.005)
        endpoint.revoke("2")
        assert endpoint.accept() is None
        while not errors:
            time.sleep(0.005)
    assert "the label party ended the session before it was finished" in str(errors[0])


def test_a_certificate_of_one_party_with_the_token_of_another_is_refused(endpoint):
    first, second = endpoint.offer("2"), endpoint.offer("3")
    assert dial(first, greeting(second["token"])) is REFUSED
    assert endpoint.accept() is None
    admitted(endpoint, second)


def test_a_node_without_an_offer_is_refused_even_with_a_certificate_of_the_authority(endpoint):
    stranger = endpoint._authority.client("99")
    offer = {**endpoint.offer("2"), "key": stranger.key, "certificate": stranger.certificate}
    for token in (offer["token"], "", "None"):
        assert dial(offer, greeting(token)) is REFUSED


def test_another_session_another_kind_and_a_missing_name_are_refused(endpoint):
    for change in ({"session": "5e56"}, {"kind": Kind.REPORT}, {"party": None}, {"party": 3}, {"token": 5}):
        offer = endpoint.offer("2")
        assert dial(offer, greeting(**{"token": offer["token"], **change})) is REFUSED
    assert endpoint.accept() is None


@pytest.mark.parametrize("data", [b"", b"garbage", b"FVFL" + bytes(100), b"\0" * 100_000, b"FVFL\1\0" + b"\xff" * 50])
def test_garbage_instead_of_a_greeting_is_refused_and_the_endpoint_goes_on(endpoint, data, caplog):
    caplog.set_level(logging.WARNING)
    assert dial(endpoint.offer("2"), data) is REFUSED
    assert "a peer of the session endpoint was refused" in caplog.text
    assert serves(endpoint)


def test_a_refused_greeting_does_not_use_up_the_token(endpoint):
    offer = endpoint.offer("2")
    assert dial(offer, b"garbage") is REFUSED
    admitted(endpoint, offer)


def test_a_greeting_may_be_as_long_as_a_header_and_no_longer(endpoint):
    offer = endpoint.offer("2")

    def padded(padding):
        hello = Frame(
            Kind.HELLO,
            fields={"party": "a", "token": offer["token"], "key": KEY},
            tensors={"x": torch.zeros(padding, dtype=torch.uint8)},
        )
        return encode(to_records(hello, SESSION))

    most = 10_000 + OVERHEAD - len(padded(10_000))
    assert len(padded(most)) == OVERHEAD
    assert dial(offer, padded(most + 1)) is REFUSED
    assert endpoint.accept() is None
    assert admitted(endpoint, offer, padded(most)).party == "a"


def test_a_greeting_over_the_limit_of_grpc_ends_that_stream_alone(endpoint):
    assert dial(endpoint.offer("2"), bytes(2**23 + 1)) in (grpc.StatusCode.RESOURCE_EXHAUSTED, REFUSED)
    assert serves(endpoint)


def test_a_stream_that_ends_without_a_greeting_is_refused(endpoint):
    offer = endpoint.offer("2")
    credentials = grpc.ssl_channel_credentials(offer["authority"], offer["key"], offer["certificate"])
    with grpc.secure_channel(
        offer["address"], credentials, [("grpc.ssl_target_name_override", offer["server-name"])]
    ) as channel:
        with pytest.raises(grpc.RpcError) as caught:
            next(channel.stream_stream("/flower_vfl.Session/Open")(iter([]), timeout=5))
        assert caught.value.code() is REFUSED


@pytest.mark.parametrize("asked", [0, 3])
def test_frames_that_nobody_asked_for_are_refused_as_they_come_and_are_not_kept(endpoint, asked):
    offer, messages = endpoint.offer("2"), queue.SimpleQueue()
    messages.put(greeting(offer["token"]))
    credentials = grpc.ssl_channel_credentials(offer["authority"], offer["key"], offer["certificate"])
    options = [("grpc.ssl_target_name_override", offer["server-name"])]
    with grpc.secure_channel(offer["address"], credentials, options) as channel:
        call = channel.stream_stream("/flower_vfl.Session/Open")(iter(messages.get, None), timeout=20)
        link = arrived(endpoint)
        for _ in range(asked):
            link.send(Frame(Kind.STEP, 0, {"gradient_of": -1}))
        for _ in range(asked + 50):
            messages.put((0).to_bytes(8, "big") + encode(to_records(Frame(Kind.EMBEDDING, 0), SESSION)))
        for _ in call:  # until the endpoint hangs up
            continue
        messages.put(None)
    assert [link.receive(5).kind for _ in range(asked)] == [Kind.EMBEDDING] * asked
    with pytest.raises(ProtocolError, match=f"party 'a': {asked + 1} frames came, in answer to {asked}"):
        link.receive(5)
    with pytest.raises(PartyLostError):
        link.receive(5)


def test_a_frame_over_the_negotiated_limit_is_not_kept_until_it_is_read(endpoint):
    with attending(endpoint, FakeParty(rows=4096)):
        link = arrived(endpoint)
        fit(link)
        link.send(Frame(Kind.STEP, 0, {"gradient_of": -1}))
        kept = link.incoming.get(timeout=10)
    assert isinstance(kept, ProtocolError)
    assert f"bytes came; at most {link.frame_limit} are allowed here" in str(kept)


def address_of(endpoint):
    host, _, port = endpoint.address.rpartition(":")
    return host, int(port)


def test_connections_that_stay_silent_do_not_keep_a_party_out(endpoint):
    silent = [socket.create_connection(address_of(endpoint)) for _ in range(30)]
    try:
        started = time.monotonic()
        assert serves(endpoint)
        assert time.monotonic() - started < 4
    finally:
        for connection in silent:
            connection.close()


@pytest.mark.slow
def test_a_connection_that_stays_silent_is_dropped_after_the_handshakes_deadline(endpoint):
    with socket.create_connection(address_of(endpoint)) as connection:
        connection.settimeout(8)
        while connection.recv(1024):  # until the endpoint hangs up
            continue


def tls(endpoint, offer, folder):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(cadata=offer["authority"].decode())
    for name in ("certificate", "key"):
        (folder / name).write_bytes(offer[name])
    context.load_cert_chain(folder / "certificate", folder / "key")
    context.set_alpn_protocols(["h2"])
    return context.wrap_socket(socket.create_connection(address_of(endpoint)), server_hostname=offer["server-name"])


@pytest.mark.slow
def test_tls_connections_that_stay_silent_do_not_keep_a_party_out(endpoint, tmp_path):
    offer = endpoint.offer("7")
    silent = [tls(endpoint, offer, tmp_path) for _ in range(20)]
    try:
        assert all(connection.version() == "TLSv1.3" for connection in silent)
        assert serves(endpoint)
        assert len(endpoint.calls) == 1
    finally:
        for connection in silent:
            connection.close()


def open_silently(endpoint, count):
    """Return a channel, and `count` streams with a genuine certificate that send nothing."""
    offer = endpoint.offer("7")
    credentials = grpc.ssl_channel_credentials(offer["authority"], offer["key"], offer["certificate"])
    channel = grpc.secure_channel(
        endpoint.address, credentials, [("grpc.ssl_target_name_override", offer["server-name"])]
    )
    return channel, [
        channel.stream_stream("/flower_vfl.Session/Open")(iter(lambda: time.sleep(60), 0)) for _ in range(count)
    ]


@pytest.mark.slow
def test_streams_that_never_greet_leave_room_for_the_parties(endpoint):
    channel, calls = open_silently(endpoint, 4)
    while len(endpoint.calls) < len(calls):
        time.sleep(0.01)
    try:
        assert serves(endpoint)
    finally:
        channel.close()


def test_streams_that_never_greet_are_ended_and_free_their_threads(monkeypatch):
    monkeypatch.setattr("flower_vfl.transport.stream._HELLO_SECONDS", 0.4)
    with listening(parties=1) as endpoint:
        channel, calls = open_silently(endpoint, 12)
        for call in calls:
            with pytest.raises(grpc.RpcError) as caught:
                next(call)
            assert caught.value.code() in (grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.CANCELLED, REFUSED)
        try:
            assert serves(endpoint)
        finally:
            channel.close()


def test_tls_1_3_is_negotiated_and_the_node_is_known_by_its_certificate(endpoint):
    assert serves(endpoint)
    (auth,) = endpoint.calls
    assert auth["ssl_tls_version"] == [b"TLSv1.3"]
    assert auth["x509_common_name"] == [b"2"]


class FakeContext:
    def __init__(self, version):
        self.version = version

    def auth_context(self):
        return {"x509_common_name": [b"2"], **({"ssl_tls_version": [self.version]} if self.version else {})}

    def send_initial_metadata(self, metadata):
        self.metadata = dict(metadata)

    def cancel(self):
        raise AssertionError("nothing to cancel")


@pytest.mark.parametrize("version", [b"TLSv1.2", b"TLSv1.1", b"", None])
def test_a_session_below_tls_1_3_is_refused_before_its_token_is_looked_at(endpoint, version):
    offer = endpoint.offer("2")
    with pytest.raises(ProtocolError, match=r"sessions need TLS 1\.3"):
        endpoint._admit(iter([greeting(offer["token"])]), FakeContext(version))
    link, _ = endpoint._admit(iter([greeting(offer["token"])]), FakeContext(b"TLSv1.3"))
    assert link.party == "a"


def test_an_offer_without_a_certificate_is_refused_by_the_party(endpoint):
    offer = {**endpoint.offer("2"), "key": "not bytes"}
    with pytest.raises(ProtocolError, match="the offer has no 'key'"):
        attend(ConfigRecord(offer), SESSION, FakeParty(), timeout=1)


def test_every_offer_has_a_token_and_a_key_of_its_own(endpoint):
    offers = [endpoint.offer(node) for node in ("2", "3", "4")]
    for name in ("token", "key", "certificate"):
        assert len({offer[name] for offer in offers}) == 3
    assert all(len(offer["token"]) == 64 for offer in offers)
    assert len({offer["authority"] for offer in offers}) == 1
    assert b"PRIVATE" not in offers[0]["authority"] + offers[0]["certificate"]
