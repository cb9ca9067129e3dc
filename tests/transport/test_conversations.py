"""Every transport gives the same numbers for the same frames, and the error of a failure names the party."""

import threading
import time

import pytest
import torch

from flower_vfl.apps.local_grid import LocalGrid
from flower_vfl.errors import PartyError, ProtocolError, SessionError
from flower_vfl.protocol.frame import Frame, Kind
from flower_vfl.transport.base import error_frame, expect
from tests.transport.fakes import FakeParty, client_app, converse

KINDS = ["inproc", "stream", "messages"]
CARRIED = ["stream", "messages"]


def run_session(sessions, kind, ahead, **config):
    parties = [FakeParty(name, rows=5, width=7) for name in ("a", "bb", "ccc")]
    with sessions(kind, parties, rows=5, width=7, in_flight=ahead, **config) as opened:
        answers = converse(opened.links, 17, ahead=ahead)
        reports = {party: frame.text("report") for party, frame in opened.finish(10).items()}
        counted = {party: (link.bytes_up, link.bytes_down) for party, link in opened.links.items()}
    assert all(party.finished for party in parties)
    return answers, reports, [party.weight for party in parties], [party.requests for party in parties], counted


@pytest.mark.parametrize("ahead", [1, 3, 8])
def test_the_same_conversation_gives_the_same_answers_over_every_transport_bit_for_bit(sessions, ahead):
    first, *others = [run_session(sessions, kind, ahead) for kind in KINDS]
    for other in others:
        for one, two in zip(first[0], other[0], strict=True):
            assert list(one) == list(two) == ["a", "bb", "ccc"]
            assert all(torch.equal(one[party], two[party]) for party in one)
        assert all(torch.equal(one, two) for one, two in zip(first[2], other[2], strict=True))
        assert first[1] == other[1]
        assert first[3] == other[3]


def test_more_steps_in_flight_give_other_numbers_so_that_the_tests_above_check_the_order(sessions):
    one, two = run_session(sessions, "inproc", 1)[0], run_session(sessions, "inproc", 3)[0]
    assert not torch.equal(one[-1]["a"], two[-1]["a"])


@pytest.mark.parametrize(("wire_dtype", "error"), [("float16", 2**-9), ("bfloat16", 2**-6)])
def test_half_precision_changes_little_and_the_same_over_every_wire(sessions, wire_dtype, error):
    exact = run_session(sessions, "inproc", 1)[0]
    streamed, messaged = (run_session(sessions, kind, 1, wire_dtype=wire_dtype)[0] for kind in CARRIED)
    for party in ("a", "bb", "ccc"):
        assert torch.equal(streamed[-1][party], messaged[-1][party])
        assert streamed[-1][party].dtype == torch.float32
        assert not torch.equal(exact[-1][party], streamed[-1][party])
        assert torch.allclose(exact[-1][party], streamed[-1][party], atol=8 * error)


def test_half_precision_halves_the_counted_bytes(sessions):
    exact, half = (run_session(sessions, "messages", 1, wire_dtype=dtype)[4]["a"] for dtype in ("exact", "bfloat16"))
    assert half[0] == exact[0] / 2
    assert half[1] == exact[1] / 2


@pytest.mark.parametrize("kind", KINDS)
def test_the_bytes_of_the_tensors_are_counted(sessions, kind):
    up, down = run_session(sessions, kind, 1)[4]["bb"]
    tensors = 17 * 5 * 7 * 4
    most = 0 if kind != "stream" else 40 * 512  # headers of at most 512 bytes a frame
    assert tensors <= up <= tensors + most
    assert tensors <= down <= tensors + most


@pytest.mark.parametrize("kind", KINDS)
def test_frames_without_an_answer_do_not_disturb_those_with_one(sessions, kind):
    party = FakeParty()
    with sessions(kind, [party]) as opened:
        for _ in range(5):
            opened.links["a"].send(Frame(Kind.AUDIT))
        assert len(converse(opened.links, 3)) == 3
        opened.finish(10)
    assert [seen for seen, _ in party.seen].count(Kind.AUDIT) == 5


def fail():
    raise ValueError("the disk is full")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("step", [0, 4])
def test_an_error_in_a_party_reaches_the_label_party_with_its_name_and_reason(sessions, kind, step):
    parties = [FakeParty("a"), FakeParty("b", at={step: fail})]
    with pytest.raises(PartyError, match=r"party 'b'.*ValueError: the disk is full"), sessions(kind, parties) as opened:
        converse(opened.links, 6)
    assert not any(party.finished for party in parties)


def forge():
    raise RuntimeError("\x1b]0;owned\x07\nINFO scores: all fine")


@pytest.mark.parametrize("kind", CARRIED)
def test_a_party_writes_no_lines_of_its_own_into_the_label_partys_log(sessions, kind):
    with pytest.raises(PartyError) as caught, sessions(kind, [FakeParty("a", at={2: forge})]) as opened:
        converse(opened.links, 6)
    assert str(caught.value).isprintable()
    assert r"INFO scores: all fine" in str(caught.value)


@pytest.mark.parametrize("kind", ["stream", "messages"])
def test_the_label_party_writes_no_lines_of_its_own_into_a_partys_log(sessions, kind):
    with sessions(kind, [FakeParty("a")]) as opened:
        converse(opened.links, 2)
        opened.links["a"].refuse("\x1b[2J\nINFO all is well")
    opened.grid.join(5)
    (failure,) = opened.grid.failures
    assert str(failure) == r"the label party ended the session: \x1b[2J\nINFO all is well"


def test_an_answer_that_cannot_be_sent_is_an_error_that_the_party_reports(sessions):
    party = FakeParty()
    party.handle = lambda frame: Frame(Kind.EMBEDDING, frame.step, {"text": "x" * 2**16})
    with sessions("stream", [party]) as opened:
        opened.links["a"].send(Frame(Kind.STEP, 0, {"gradient_of": -1}))
        with pytest.raises(PartyError, match=r"party 'a' reported: ProtocolError: the header of a frame has"):
            opened.links["a"].receive(10)


@pytest.mark.parametrize("kind", KINDS)
def test_all_handlers_return_when_one_party_fails(sessions, kind):
    parties = [FakeParty("a"), FakeParty("b", at={1: fail}), FakeParty("c")]
    grid = LocalGrid(client_app(parties), 3, {})
    with pytest.raises(PartyError), sessions(kind, parties, grid=grid) as opened:
        converse(opened.links, 6)
    grid.join(3)
    assert not any(thread.is_alive() for thread in grid._threads)


@pytest.mark.parametrize("kind", CARRIED)
def test_a_party_that_hangs_is_named_within_the_timeout(sessions, kind):
    release = threading.Event()
    parties = [FakeParty("a"), FakeParty("b", at={2: release.wait})]
    try:
        with sessions(kind, parties) as opened:
            started = time.monotonic()
            with pytest.raises(PartyError, match=r"party 'b' did not answer within 0\.4 s"):
                converse(opened.links, 6, timeout=0.4)
            assert time.monotonic() - started < 3
            release.set()
    finally:
        release.set()


@pytest.mark.parametrize("kind", ["inproc", "stream"])
def test_a_party_is_told_when_the_label_party_closes_early(sessions, kind):
    with sessions(kind, [FakeParty("a"), FakeParty("b")]) as opened:
        converse(opened.links, 2)
    opened.grid.join(5)
    assert [type(error) for error in opened.grid.failures] == [SessionError, SessionError]
    assert all("before it was finished" in str(error) for error in opened.grid.failures)


@pytest.mark.parametrize("kind", KINDS)
def test_no_handler_fails_when_training_is_finished(sessions, kind):
    with sessions(kind, [FakeParty("a"), FakeParty("b")]) as opened:
        converse(opened.links, 2)
        opened.finish(10)
    opened.grid.join(5)
    assert opened.grid.failures == []


@pytest.mark.parametrize("kind", KINDS)
def test_closing_a_link_twice_is_harmless(sessions, kind):
    with sessions(kind, [FakeParty("a")]) as opened:
        opened.finish(10)
        opened.links["a"].close()
        opened.links["a"].close()


@pytest.mark.parametrize("kind", CARRIED)
def test_a_frame_over_the_limit_of_the_label_party_is_refused_and_named(sessions, kind):
    party = FakeParty("a")
    with sessions(kind, [party]) as opened:
        party.rows = 20_000
        opened.links["a"].send(Frame(Kind.STEP, 0, {"gradient_of": -1}))
        with pytest.raises(ProtocolError, match=r"party 'a': a frame of \d+ bytes came; at most \d+ are allowed"):
            opened.links["a"].receive(10)


@pytest.mark.parametrize("kind", CARRIED)
def test_a_frame_over_the_limit_of_a_party_is_refused_there_and_reported(sessions, kind):
    big = Frame(Kind.STEP, 0, {"gradient_of": -1}, {"gradient": torch.zeros(100_000)})
    with sessions(kind, [FakeParty()]) as opened:
        opened.links["a"].send(big)
        with pytest.raises(PartyError, match=r"party 'a'.*ProtocolError: a frame of"):
            opened.links["a"].receive(10)


@pytest.mark.parametrize("kind", KINDS)
def test_a_party_that_answers_with_the_wrong_frame_is_named(sessions, kind):
    with sessions(kind, [FakeParty()]) as opened:
        opened.links["a"].send(Frame(Kind.STEP, 3, {"gradient_of": -1}))
        frame = opened.links["a"].receive(10)
        for expected in ((Kind.EMBEDDING, 2), (Kind.REPORT, 3)):
            with pytest.raises(ProtocolError, match=r"party 'a' should have answered with .* it sent embedding 3"):
                expect(frame, *expected, "a")
        assert expect(frame, Kind.EMBEDDING, 3, "a") is frame


@pytest.mark.parametrize("kind", KINDS)
def test_a_party_that_does_not_report_at_the_end_is_named(sessions, kind):
    party = FakeParty()
    party.handle = lambda frame: Frame(Kind.EMBEDDING)
    with pytest.raises(ProtocolError, match="party 'a' should have reported"), sessions(kind, [party]) as opened:
        opened.finish(10)


def test_the_report_of_an_error_has_a_kind_a_reason_and_a_bounded_length():
    frame = error_frame(ValueError("x" * 10_000))
    assert frame.kind is Kind.ERROR
    assert frame.text("message").startswith("ValueError: xxx")
    assert len(frame.text("message")) == 2000
