"""A party, and nobody else, resumes its broken stream at the next frame."""

import itertools
import queue
import random
import threading
import time
from contextlib import contextmanager

import grpc
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ed25519
from flwr.app import ConfigRecord
from hypothesis import given
from hypothesis import strategies as st

from flower_vfl.errors import PartyError, PartyLostError, ProtocolError, SessionError
from flower_vfl.protocol.frame import Frame, Kind, encode, to_records
from flower_vfl.transport.authority import Authority, SessionKey, is_signed, public_key
from flower_vfl.transport.dialling import attend
from flower_vfl.transport.stream import StreamLink
from flower_vfl.transport.wire import (
    METHOD,
    MOST_UNCONFIRMED,
    NONCE,
    SERVICE,
    Traffic,
    Wire,
    key_of,
    proof,
    words_to_sign,
)
from tests.cases import parametrize
from tests.transport.fakes import FakeParty, converse, fit
from tests.transport.proxies import Line
from tests.transport.test_stream import SESSION, arrived, listening


class Session:
    """A party that attends a session through a `Line`, and its errors."""

    def __init__(self, endpoint, party, reconnect, **changes):
        self.line = Line(endpoint.address)
        self.offer = ConfigRecord({**endpoint.offer("2"), "address": self.line.address, **changes})
        self.errors = []
        self.thread = threading.Thread(target=self._run, args=(party, reconnect), daemon=True)
        self.thread.start()

    def _run(self, party, reconnect):
        try:
            attend(self.offer, SESSION, party, timeout=10, reconnect=reconnect)
        except Exception as error:  # noqa: BLE001 - the test checks every error
            self.errors.append(error)

    def end(self):
        self.thread.join(15)
        self.line.close()
        assert not self.thread.is_alive()


@contextmanager
def joined(party=None, *, reconnect=20.0, dials=None, fitted=True, **options):
    """Yield an endpoint, the session of a party that dials again for `dials` seconds, and its link."""
    with listening(reconnect=reconnect, **options) as endpoint:
        session = Session(endpoint, party or FakeParty(), reconnect if dials is None else dials)
        link = arrived(endpoint)
        if fitted:
            fit(link)
        yield endpoint, session, link


def run_through_line(steps, ahead, disturb=lambda step, line: None, *, rows=3, width=4):
    """Run steps through a line that `disturb` may cut or hold; return embeddings, received frames, connections."""
    party = FakeParty(rows=rows, width=width)
    with joined(party, fitted=False) as (endpoint, session, link):
        fit(link, rows=rows, width=width)
        party.at = {step: lambda step=step: disturb(step, session.line) for step in range(steps)}
        answers = converse({"a": link}, steps, ahead=ahead, timeout=60)
        link.send(Frame(Kind.FINISH))
        assert link.receive(30).kind is Kind.REPORT
        endpoint.close()
        session.end()
    assert session.errors == []
    return [answer["a"].tolist() for answer in answers], party.seen, session.line.connections


@parametrize("ahead", [1, 4], quick=1)
def test_a_line_that_is_cut_again_and_again_loses_no_frame_and_repeats_none(ahead):
    generator = random.Random(ahead)
    undisturbed = run_through_line(40, ahead)

    def cut(step, line):
        if generator.random() < 0.3:
            threading.Timer(generator.random() * 0.01, line.cut).start()

    answers, seen, connections = run_through_line(40, ahead, cut)
    assert connections > 3
    assert seen == undisturbed[1]
    assert answers == undisturbed[0]


def test_a_report_that_is_lost_with_its_line_is_sent_again():
    party = FakeParty()
    with joined(party, fitted=False) as (_, session, link):
        party.at = {Kind.FINISH: session.line.cut}
        link.send(Frame(Kind.FINISH))
        assert link.receive(30).kind is Kind.REPORT
        link.close()
        session.end()
    assert session.errors == []
    assert party.seen == [(Kind.FINISH, -1)]
    assert session.line.connections == 2


def test_a_party_whose_report_nobody_takes_any_more_has_finished_all_the_same(caplog):
    party = FakeParty()
    with joined(party, reconnect=0.5, fitted=False) as (_, session, link):
        party.at = {Kind.FINISH: session.line.close}
        link.send(Frame(Kind.FINISH))
        session.end()
    assert session.errors == []
    assert "the label party may not have its report" in caplog.text


def test_a_party_that_knows_that_the_results_are_written_does_not_dial_again(caplog):
    party = FakeParty()
    with joined(party) as (_, session, link):
        link.send(Frame(Kind.FINISH))
        assert link.receive(30).kind is Kind.REPORT
        link.send(Frame(Kind.EXPORTED))
        while (Kind.EXPORTED, -1) not in party.seen:
            time.sleep(0.01)
        session.line.cut()
        session.end()
    assert (session.errors, session.line.connections) == ([], 1)
    assert "dialling again" not in caplog.text


def test_large_frames_that_are_cut_half_way_arrive_whole():
    undisturbed = run_through_line(6, 2, rows=512, width=1024)
    answers, seen, connections = run_through_line(
        6, 2, lambda step, line: threading.Timer(0.004, line.cut).start(), rows=512, width=1024
    )
    assert connections > 1
    assert seen == undisturbed[1]
    assert answers == undisturbed[0]


@pytest.mark.slow
def test_a_line_that_falls_silent_is_noticed_and_dialled_anew():
    def silence(step, line):
        if step == 5:
            line.held.set()
            threading.Timer(1.0, line.held.clear).start()

    answers, seen, connections = run_through_line(10, 1, silence)
    assert connections == 2
    assert [step for kind, step in seen if kind is Kind.STEP and step >= 0] == list(range(10))
    assert answers == run_through_line(10, 1)[0]


def test_a_line_that_stays_down_ends_both_sides_in_the_time_that_was_given():
    with joined(reconnect=0.5) as (_, session, link):
        converse({"a": link}, 2)
        session.line.close()
        with pytest.raises(PartyLostError, match="party 'a' broke: it died or lost its connection"):
            link.receive(60)
        session.end()
    assert type(session.errors[0]) is SessionError or "could not be reached" in str(session.errors[0])


def test_a_party_whose_session_was_open_is_told_to_wait_and_not_to_check_its_firewall():
    with joined(reconnect=0.0, dials=1.0) as (_, session, link):
        converse({"a": link}, 2)
        session.line.close()
        session.end()
    words = str(session.errors[0])
    assert "could not be reached again within 1 s" in words
    assert "Leave this SuperNode running" in words
    assert "firewall" not in words


def test_a_broken_connection_is_logged_once_with_the_time_that_training_waits(caplog):
    with joined(reconnect=0.6) as (_, session, link):
        converse({"a": link}, 2)
        session.line.close()
        with pytest.raises(PartyLostError):
            link.receive(60)
        session.end()
    broke = [text for text in caplog.messages if text.startswith("the connection to party 'a' broke")]
    assert len(broke) == 1
    assert "waits up to 0.6 s (transport.reconnect_timeout)" in broke[0]


def test_while_a_line_is_down_the_label_party_asks_whether_the_party_has_gone():
    with joined(reconnect=60.0, dials=1.0) as (_, session, link):

        def gone():
            raise PartyLostError("node 2 said that it has gone")

        link.watch = gone
        session.line.close()
        with pytest.raises(PartyLostError, match="node 2 said that it has gone"):
            link.receive(60)
        session.end()


def test_a_session_that_the_label_party_ends_is_not_dialled_again():
    with joined(fitted=False) as (_, session, link):
        link.close()
        session.end()
        assert session.line.connections == 1
    assert "ended the session before it was finished" in str(session.errors[0])


def test_a_party_that_is_refused_does_not_dial_again():
    with listening(reconnect=20.0) as endpoint:
        session = Session(endpoint, FakeParty(), 20.0, token="f" * 64)
        session.end()
        assert session.line.connections == 1
    assert "PERMISSION_DENIED" in str(session.errors[0])


class Context:
    """The part of a stream's gRPC context that a link uses."""

    cancelled = False

    def cancel(self):
        self.cancelled = True


def opened():
    """Return a link without a stream, with three queued frames for its party."""
    link = StreamLink("a", Frame(Kind.HELLO), "2", Wire(SESSION, "exact"), key=b"", reconnect=10.0)
    for step in range(3):
        link.send(Frame(Kind.STEP, step, {"gradient_of": -1}))
    return link


def take_all(messages):
    return [messages.get_nowait() for _ in range(messages.qsize())]


def test_a_message_that_still_arrives_on_a_replaced_stream_is_dropped():
    """The party sends it again on the new stream."""
    link, party = opened(), Traffic()
    first = link.attach(Context(), 0)

    def messages():
        yield party.pack(b"one")
        link.attach(Context(), 0)
        yield party.pack(b"two")

    link.drain(first, messages())
    assert take_all(link.incoming) == [b"one"]
    assert link._traffic.taken == 1


def test_a_stream_that_another_one_replaces_is_ended_and_cancelled():
    link, context = opened(), Context()
    first = link.attach(context, 0)
    assert not context.cancelled
    link.attach(Context(), 0)
    assert context.cancelled
    assert take_all(first.outgoing)[-1] is None


def test_a_party_that_comes_back_to_a_closed_session_is_sent_its_end():
    link = opened()
    link.close()
    assert take_all(link.attach(Context(), 0).outgoing)[-1] is None


def test_a_signature_holds_for_one_key_one_nonce_one_session_and_one_count():
    inputs = list(itertools.product((b"k", b"l"), ("n", "m"), ("s", "t"), (1, 2)))
    assert len({proof(*values) for values in inputs}) == 16
    keys = [SessionKey(), SessionKey()]
    signed = [(key, words_to_sign(*values)) for key, (_, *values) in itertools.product(keys, inputs[:8])]
    key, words = signed[0]
    signature = key.sign(words)
    valid = [is_signed(public_key(other.public), signature, text) for other, text in signed]
    assert valid == [True] + 15 * [False]


KEY = SessionKey()


def signed_by(key, nonce, *, session=SESSION, taken=0):
    """Return the fields of a greeting that the owner of a session key sends to resume."""
    return {"taken": taken, "signature": key.sign(words_to_sign(nonce, session, taken))}


def greeted(offer, *fields_of):
    """Open a stream for each function, with the fields that it returns for the nonce; return the status codes."""
    codes = []
    credentials = grpc.ssl_channel_credentials(offer["authority"], offer["key"], offer["certificate"])
    options = [("grpc.ssl_target_name_override", offer["server-name"])]
    for fields in fields_of:
        with grpc.secure_channel(offer["address"], credentials, options) as channel:
            outgoing = queue.SimpleQueue()
            call = channel.stream_stream(f"/{SERVICE}/{METHOD}")(iter(outgoing.get, None), timeout=10)
            nonce = dict(call.initial_metadata()).get(NONCE, "")  # empty if the handshake failed
            frame = Frame(Kind.HELLO, fields={"party": "a", "key": KEY.public, **fields(nonce)})
            outgoing.put(encode(to_records(frame, SESSION)))
            try:
                next(call)
                codes.append(None)
            except grpc.RpcError as error:
                codes.append(error.code())
            outgoing.put(None)
    return codes


DENIED = grpc.StatusCode.PERMISSION_DENIED


def test_a_party_comes_back_by_its_signature_and_an_eavesdropper_cannot():
    with listening(reconnect=20.0) as endpoint:
        offer = endpoint.offer("2")
        token, other_key = offer["token"], SessionKey()
        old = {}

        def signed(nonce):
            old.update(signed_by(KEY, nonce))
            return old

        right = greeted(offer, lambda nonce: {"token": token}, signed)
        arrived(endpoint).send(Frame(Kind.STEP, 0, {"gradient_of": -1}))
        wrong = greeted(
            offer,
            lambda nonce: {"token": token},  # the token opens one session once
            lambda nonce: dict(old),  # a signature of another nonce
            lambda nonce: signed_by(KEY, nonce, session="another"),
            lambda nonce: {**signed_by(KEY, nonce), "taken": 1},  # a signature of another count
            lambda nonce: signed_by(other_key, nonce),
            lambda nonce: {**signed_by(other_key, nonce), "key": other_key.public},
            lambda nonce: {**signed_by(KEY, nonce), "signature": "é"},
            lambda nonce: signed_by(KEY, nonce, taken=99),  # more than were ever sent
            lambda nonce: signed_by(KEY, nonce, taken=-1),
            lambda nonce: {},
        )
        assert right == [None, None]
        assert set(wrong) == {DENIED}
        assert greeted(offer, signed) == [None]
        other = endpoint.offer("3")
        assert greeted(other, signed) == [DENIED]  # the signature of one party with the certificate of another


def test_who_has_the_offer_of_an_open_session_cannot_take_it_over():
    """The thief has certificate, key and token of the offer, as in the SuperLink's database."""
    with joined() as (endpoint, session, link):
        converse({"a": link}, 2)
        thief = SessionKey()

        def forged(nonce, taken=3):
            proven = proof(key_of(session.offer["token"]), nonce, SESSION, taken)
            return {**signed_by(thief, nonce, taken=taken), "key": thief.public, "proof": proven}

        attempts = [forged, lambda nonce: {**forged(nonce), "token": session.offer["token"]}]
        assert greeted(session.offer, *attempts) == [DENIED, DENIED]
        converse({"a": link}, 2)  # its own party goes on, and comes back over a new line
        session.line.cut()
        assert greeted(session.offer, *attempts) == [DENIED, DENIED]
        converse({"a": link}, 2)
        link.send(Frame(Kind.FINISH))
        assert link.receive(30).kind is Kind.REPORT
        endpoint.close()
        assert greeted(session.offer, forged) == [grpc.StatusCode.UNAVAILABLE]  # after the run the port is closed
        session.end()
    assert session.errors == []


def test_a_link_says_for_how_long_its_party_is_away():
    with joined() as (endpoint, session, link):
        assert link.away == 0.0
        session.line.held.set()
        session.line.cut()
        deadline = time.monotonic() + 20.0
        while link.away < 0.5:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        session.line.held.clear()
        session.line.cut()
        converse({"a": link}, 2)
        assert link.away == 0.0
        link.send(Frame(Kind.FINISH))
        assert link.receive(30).kind is Kind.REPORT
        endpoint.close()
        session.end()
    assert session.errors == []


def test_an_offer_opens_no_connection_once_it_has_expired_and_its_party_comes_back():
    with joined(offer_seconds=2.0) as (endpoint, session, link):
        time.sleep(3.0)
        assert greeted(session.offer, lambda nonce: {"token": session.offer["token"]}) == [grpc.StatusCode.UNAVAILABLE]
        session.line.cut()
        converse({"a": link}, 2)
        link.send(Frame(Kind.FINISH))
        assert link.receive(30).kind is Kind.REPORT
        endpoint.close()
        session.end()
    assert link.reconnects == 1
    assert session.errors == []


def test_a_party_whose_first_greeting_was_lost_is_admitted_by_the_proof_of_its_token():
    with listening(reconnect=20.0) as endpoint:
        offer = endpoint.offer("2")
        key = key_of(offer["token"])
        assert greeted(
            offer,
            lambda nonce: signed_by(KEY, nonce),  # a signature by a key that was never admitted
            lambda nonce: {**signed_by(KEY, nonce), "proof": proof(key, nonce, SESSION, 0)},
            lambda nonce: signed_by(KEY, nonce),
        ) == [DENIED, None, None]


@pytest.mark.parametrize("key", ["", "00", "é", "a" * 2000, 5, None, "ed25519"])
def test_a_greeting_without_a_session_key_of_its_curve_is_refused(key):
    if key == "ed25519":
        form = (serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
        key = ed25519.Ed25519PrivateKey.generate().public_key().public_bytes(*form).hex()
    with listening() as endpoint:
        offer = endpoint.offer("2")
        assert greeted(offer, lambda nonce: {"token": offer["token"], "key": key or ""}) == [DENIED]
        assert greeted(offer, lambda nonce: {"token": offer["token"]}) == [None]


@pytest.mark.parametrize("sent", [b"garbage", b"", "another"])
def test_a_party_takes_no_certificate_but_one_of_its_own_session_key(sent):
    key, authority = SessionKey(), Authority()
    certificate = authority.client("2").certificate if sent == "another" else sent
    with pytest.raises(ProtocolError, match="no certificate of this party's session key"):
        key.identity(certificate)
    assert key.identity(authority.certify("2", public_key(key.public))).certificate.startswith(b"-----BEGIN")


def test_a_party_that_is_invited_anew_is_known_by_its_new_token_only():
    with listening(reconnect=20.0) as endpoint:
        offer = endpoint.offer("2")
        assert greeted(offer, lambda nonce: {"token": offer["token"]}) == [None]
        first = arrived(endpoint)
        again = endpoint.offer("2")

        def by_old(nonce):
            return {**signed_by(KEY, nonce), "proof": proof(key_of(offer["token"]), nonce, SESSION, 0)}

        assert greeted(offer, by_old) == [DENIED]
        assert greeted(again, lambda nonce: {"token": again["token"]}) == [None]
        assert arrived(endpoint) is not first


def test_a_party_that_confirms_nothing_does_not_fill_the_memory():
    with listening(reconnect=20.0) as endpoint:
        offer = endpoint.offer("2")
        assert greeted(offer, lambda nonce: {"token": offer["token"]}) == [None]
        link = arrived(endpoint)
        for _ in range(MOST_UNCONFIRMED):
            link.send(Frame(Kind.STEP, 0, {"gradient_of": -1}))
        with pytest.raises(
            PartyError, match="party 'a': the other side has not confirmed any of the last 256 messages"
        ):
            link.send(Frame(Kind.STEP, 0, {"gradient_of": -1}))


def test_many_frames_without_an_answer_are_confirmed_all_the_same():
    party = FakeParty()
    with joined(party, fitted=False) as (endpoint, session, link):
        for index in range(4 * MOST_UNCONFIRMED):
            link.send(Frame(Kind.AUDIT, 0, {"offset": index}))
            while len(party.seen) < index:  # a sender that runs ahead may leave a confirmation no time to arrive
                time.sleep(0.001)
        link.send(Frame(Kind.FINISH))
        assert link.receive(30).kind is Kind.REPORT
        endpoint.close()
        session.end()


@given(st.lists(st.sampled_from(["a sends", "b sends", "a takes", "b takes", "break"]), max_size=200))
def test_each_end_takes_every_message_once_and_in_order_whenever_the_line_breaks(events):
    ends = {"a": Traffic(), "b": Traffic()}
    lines = {"a": [], "b": []}  # messages on their way to each end
    sent, taken = {"a": [], "b": []}, {"a": [], "b": []}
    other = {"a": "b", "b": "a"}

    def take(end):
        if lines[end]:
            data = ends[end].take(lines[end].pop(0))
            taken[end] += [data] if data else []

    def resume():
        for end in "ab":
            lines[end].clear()
        for end in "ab":
            ends[end].confirm(ends[other[end]].taken)
            lines[other[end]].extend(ends[end].missed())

    for event in events:
        if event == "break":
            resume()
        elif event.endswith("sends"):
            data = f"{event[0]}{len(sent[event[0]])}".encode()
            sent[event[0]].append(data)
            lines[other[event[0]]].append(ends[event[0]].pack(data))
        else:
            take(event[0])
    resume()
    for end in "ab":
        while lines[end]:
            take(end)
    assert taken == {"a": sent["b"], "b": sent["a"]}


@pytest.mark.parametrize("message", [b"", b"1234567", (5).to_bytes(8, "big"), (2**64 - 1).to_bytes(8, "big") + b"x"])
def test_a_message_that_is_too_short_or_confirms_what_was_never_sent_is_refused(message):
    traffic = Traffic()
    traffic.pack(b"one")
    with pytest.raises(ProtocolError):
        traffic.take(message)
    assert traffic.taken == 0


@pytest.mark.parametrize("cut", [True, False])
def test_the_end_of_a_run_is_confirmed_by_the_party_also_over_a_new_line(cut):
    party = FakeParty()
    with joined(party, fitted=False) as (_, session, link):
        link.send(Frame(Kind.FINISH))
        assert link.receive(30).kind is Kind.REPORT
        if cut:
            session.line.cut()
        link.send(Frame(Kind.EXPORTED))
        link.await_taken(30)
        assert party.seen[-1] == (Kind.EXPORTED, -1)
        link.close()
        session.end()
    assert session.errors == []
    assert session.line.connections == 1 + cut


def test_a_party_that_does_not_confirm_the_end_of_a_run_is_named():
    with joined(reconnect=0.3, dials=0.1, fitted=False) as (_, session, link):
        session.line.close()
        link.send(Frame(Kind.EXPORTED))
        with pytest.raises(PartyLostError, match="the session with party 'a' broke"):
            link.await_taken(30)
        session.end()


def test_a_party_that_was_away_for_longer_than_an_answer_may_take_still_answers():
    with joined() as (_, session, link):
        party_is_back = threading.Timer(1.0, session.line.held.clear)
        session.line.held.set()
        session.line.cut()
        party_is_back.start()
        while not link.away:
            time.sleep(0.01)
        link.send(Frame(Kind.STEP, 0, {"gradient_of": -1}))
        assert link.receive(0.4).kind is Kind.EMBEDDING
        link.close()
        session.end()


def test_the_error_of_a_party_is_its_own_where_the_line_breaks_while_it_reports():
    def fail():
        session.line.cut()
        raise MemoryError("no memory for step 1")

    party = FakeParty(at={1: fail})
    with joined(party) as (_, session, link):
        for step in (0, 1):
            link.send(Frame(Kind.STEP, step, {"gradient_of": -1}))
        session.end()
        link.close()
    assert [str(error) for error in session.errors] == ["no memory for step 1"]
    assert session.line.connections == 1
