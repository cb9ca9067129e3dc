"""Frames in plain Flower messages: several in one message, in order, and nothing else in it."""

import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, RecordDict
from hypothesis import given, settings
from hypothesis import strategies as st

from flower_vfl.apps.local_grid import LocalGrid
from flower_vfl.errors import PartyError, ProtocolError, SessionError
from flower_vfl.protocol.frame import OVERHEAD, Frame, Kind
from flower_vfl.transport.mailbox import Mailbox
from flower_vfl.transport.messages import FRAMES, bundle, unbundle
from flower_vfl.transport.sessions import TRAINING
from tests.transport.fakes import FakeParty, client_app, converse, fit

FRAME = Frame(Kind.STEP, 3, {"gradient_of": 2}, {"gradient": torch.arange(6.0).view(2, 3)})


class CountingGrid(LocalGrid):
    """A grid that records the number of frames in each message."""

    def push_messages(self, messages):
        messages = list(messages)
        self.carried = getattr(self, "carried", [])
        for message in messages:
            if message.metadata.message_type == f"train.{FRAMES}":
                self.carried.append(sum(name.endswith(".header") for name in message.content))
        return super().push_messages(messages)


@pytest.mark.parametrize(("ahead", "carried"), [(1, [1] * 8 + [2]), (4, [4, 4, 5]), (8, [8, 9]), (16, [8, 9])])
def test_as_many_frames_as_are_under_way_share_one_flower_message(sessions, ahead, carried):
    party = FakeParty()
    grid = CountingGrid(client_app([party]), 1, {})
    with sessions("messages", [party], grid=grid, in_flight=ahead) as opened:
        converse(opened.links, 8, ahead=ahead)
        opened.finish(10)
    assert grid.carried == carried


@given(st.lists(st.integers(0, 10**6), max_size=20))
@settings(max_examples=30)
def test_a_bundle_gives_its_frames_back_in_their_order(steps):
    frames = [Frame(Kind.STEP, step, {"n": step}, {"g": torch.full((1, 2), float(step))}) for step in steps]
    found = unbundle(bundle(frames, "s", "exact"), "s", "exact", limit=OVERHEAD)
    assert [frame.step for frame in found] == steps
    assert all(torch.equal(one.tensors["g"], two.tensors["g"]) for one, two in zip(frames, found, strict=True))


def test_records_that_come_in_another_order_are_the_same_frames():
    records = bundle([FRAME, Frame(Kind.FINISH)], "s", "exact")
    shuffled = RecordDict({name: records[name] for name in sorted(records, reverse=True)})
    assert [frame.kind for frame in unbundle(shuffled, "s", "exact", limit=OVERHEAD)] == [Kind.STEP, Kind.FINISH]


def without(records, name):
    return RecordDict({key: record for key, record in records.items() if key != name})


def renamed(records, old, new):
    return RecordDict({new if key == old else key: record for key, record in records.items()})


ODD_NAMES = ["header", ".header", "x.header", "-1.header", "00.header", "².header", "٣.header", "1e3.header", "0", ""]


@pytest.mark.parametrize(
    "new", [*ODD_NAMES, "9" * 5000 + ".h", "10000.header", "0.other", "0.header.x"], ids=lambda name: name[:12]
)
def test_a_record_with_an_unknown_name_is_refused(new):
    records = renamed(bundle([FRAME], "s", "exact"), "0.header", new)
    with pytest.raises(ProtocolError):
        unbundle(records, "s", "exact", limit=OVERHEAD)


def test_missing_records_and_missing_frames_are_refused():
    records = bundle([FRAME, FRAME, FRAME], "s", "exact")
    for name in list(records):
        with pytest.raises(ProtocolError):
            unbundle(without(records, name), "s", "exact", limit=OVERHEAD)
    with pytest.raises(ProtocolError, match="frames of a message are missing"):
        unbundle(without(without(records, "1.header"), "1.tensors"), "s", "exact", limit=OVERHEAD)


def test_a_record_of_the_wrong_kind_is_refused():
    for name, record in (("0.header", ArrayRecord({})), ("0.tensors", ConfigRecord({}))):
        with pytest.raises(ProtocolError):
            unbundle(RecordDict({**bundle([FRAME], "s", "exact"), name: record}), "s", "exact", limit=OVERHEAD)


def test_frames_of_another_session_are_refused():
    with pytest.raises(ProtocolError, match="another session"):
        unbundle(bundle([FRAME], "s", "exact"), "t", "exact", limit=OVERHEAD)


def test_the_limit_holds_for_each_frame_of_a_message():
    size = FRAME.nbytes
    records = bundle([FRAME] * 5, "s", "exact")
    assert len(unbundle(records, "s", "exact", limit=size)) == 5
    with pytest.raises(ProtocolError, match=f"a frame of {size} bytes came; at most {size - 1}"):
        unbundle(records, "s", "exact", limit=size - 1)


@given(st.dictionaries(st.text(max_size=12) | st.sampled_from(["0.header", "0.tensors"]), st.booleans(), max_size=5))
@settings(max_examples=100)
def test_unknown_records_are_a_protocol_error_and_no_records_are_no_frames(names):
    records = RecordDict(
        {name: ConfigRecord({}) if is_config else ArrayRecord({}) for name, is_config in names.items()}
    )
    if not names:
        assert unbundle(records, "s", "exact", limit=OVERHEAD) == []
        return
    with pytest.raises(ProtocolError):
        unbundle(records, "s", "exact", limit=OVERHEAD)


def test_a_party_that_answers_nothing_is_named_at_once(sessions):
    party = FakeParty()
    party.handle = lambda frame: None
    with sessions("messages", [party]) as opened:
        opened.links["a"].send(Frame(Kind.AUDIT))
        with pytest.raises(PartyError, match="party 'a' has nothing to answer"):
            opened.links["a"].receive(60)


class Flooding(FakeParty):
    """A party that answers one request with five frames."""

    def handle(self, frame):
        return [super(Flooding, self).handle(Frame(Kind.STEP, step, {"gradient_of": -1})) for step in range(5)]


def test_frames_that_were_not_asked_for_are_refused(sessions, monkeypatch):
    def flattened(frames, *named):
        return bundle(frames[0] if isinstance(frames[0], list) else frames, *named)

    with sessions("messages", [Flooding()]) as opened:
        link = opened.links["a"]
        fit(link)
        monkeypatch.setattr("flower_vfl.transport.messages.bundle", flattened)
        link.send(Frame(Kind.STEP, 0, {"gradient_of": -1}))
        with pytest.raises(ProtocolError, match="party 'a': 5 frames came, in answer to 1"):
            link.receive(10)


def test_the_export_is_a_last_message_and_a_party_that_does_not_take_it_is_named(sessions, caplog):
    a, *_ = parties = [FakeParty("a"), FakeParty("b"), FakeParty("c")]

    def handle(frame, handle=a.handle):
        if frame.kind is Kind.EXPORTED:
            raise ValueError("its disk is full")
        return handle(frame)

    a.handle = handle
    with sessions("messages", parties, offer={TRAINING: "0" * 32}) as opened:
        opened.finish(10)
        push = opened.grid.push_messages
        opened.grid.push_messages = lambda messages: [] if messages[0].metadata.dst_node_id == 3 else push(messages)
        opened.announce_export(10)
    assert [party.seen[-1][0] for party in parties] == [Kind.FINISH, Kind.FINISH, Kind.EXPORTED]
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(warnings) == 2
    assert any(warning.startswith("party 'a' failed: ValueError: its disk is full; its secret") for warning in warnings)
    assert any("no message for node 3" in warning for warning in warnings)


def test_parties_that_keep_no_states_get_no_further_message(sessions):
    party = FakeParty()
    with sessions("messages", [party]) as opened:
        opened.finish(10)
        opened.announce_export(10)
    assert party.seen == [(Kind.FINISH, -1)]


def test_a_party_that_sends_another_sessions_frames_is_named(sessions):
    party = FakeParty()
    with sessions("messages", [party]) as opened:
        opened.links["a"]._session = "another"
        opened.links["a"].send(Frame(Kind.FINISH))
        with pytest.raises(PartyError, match="party 'a' failed: ProtocolError: the frame belongs to another session"):
            opened.links["a"].receive(10)


def test_a_message_that_flower_does_not_take_is_an_error_that_names_the_node():
    grid = LocalGrid(client_app([None]), 1, {})
    grid.push_messages = lambda messages: []
    with pytest.raises(SessionError, match="no message for node 2"):
        Mailbox(grid).push(2, RecordDict(), "train")
