"""The in-process transport copies no tensors, and no party waits forever."""

import threading

import pytest
import torch

from flower_vfl.errors import PartyError, SessionError
from flower_vfl.protocol.frame import Frame, Kind
from flower_vfl.transport.inproc import InprocEndpoint, InprocLink
from tests.transport.fakes import FakeParty


def test_tensors_travel_by_reference():
    party = FakeParty()
    received = []
    party.handle = lambda frame: received.append(frame) or frame
    link = InprocLink(party)
    tensor = torch.ones(2)
    link.send(Frame(Kind.STEP, 0, tensors={"gradient": tensor}))
    assert link.receive(1.0).tensors["gradient"] is tensor
    assert received[0].tensors["gradient"] is tensor


def test_a_frame_is_handled_when_its_answer_is_asked_for_and_not_before():
    party = FakeParty()
    link = InprocLink(party)
    link.send(Frame(Kind.STEP, 0, {"gradient_of": -1}))
    link.flush()
    assert party.seen == []
    link.receive(1.0)
    assert party.seen == [(Kind.STEP, 0)]


def test_all_parties_learn_before_the_first_one_embeds_its_next_batch():
    handled = []
    parties = {name: FakeParty(name) for name in "ab"}
    links = {name: InprocLink(party) for name, party in parties.items()}
    for name, party in parties.items():
        handle = party.handle
        party.handle = lambda frame, name=name, handle=handle: handled.append((name, frame.step)) or handle(frame)
        links[name].send(Frame(Kind.STEP, 1, {"gradient_of": 0}, {"gradient": torch.ones(3, 4)}))
    for link in links.values():
        link.flush()
    assert [link.receive(1.0).step for link in links.values()] == [1, 1]
    assert handled == [("a", -1), ("b", -1), ("a", 1), ("b", 1)]
    assert {link.bytes_down for link in links.values()} == {3 * 4 * 4}


def test_waiting_for_an_answer_that_nothing_asked_for_is_an_error_at_once():
    with pytest.raises(PartyError, match="party 'a' has nothing to answer"):
        InprocLink(FakeParty()).receive(1000.0)


def test_the_error_of_a_party_keeps_its_cause():
    party = FakeParty(at={0: lambda: 1 / 0})
    link = InprocLink(party)
    link.send(Frame(Kind.STEP, 0, {"gradient_of": -1}))
    with pytest.raises(PartyError, match="ZeroDivisionError") as caught:
        link.receive(1.0)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_a_session_of_another_process_is_not_found():
    with pytest.raises(SessionError, match="joins parties of one process"):
        InprocEndpoint.attend("nobody", FakeParty())


def test_a_session_is_forgotten_when_it_is_closed():
    endpoint = InprocEndpoint("s1")
    endpoint.close()
    with pytest.raises(SessionError, match="no such session"):
        InprocEndpoint.attend("s1", FakeParty())
    endpoint.close()


def attend_in_thread(session, party):
    errors = []

    def run():
        try:
            InprocEndpoint.attend(session, party)
        except SessionError as error:
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread, errors


def test_a_party_that_nobody_accepted_is_released_when_the_session_closes():
    endpoint = InprocEndpoint("s2")
    thread, errors = attend_in_thread("s2", FakeParty())
    while not endpoint._arrived:
        pass
    endpoint.close()
    thread.join(3)
    assert not thread.is_alive()
    assert len(errors) == 1


def test_a_party_that_arrives_while_the_session_closes_is_released_too():
    endpoint = InprocEndpoint("s3")
    party = FakeParty()
    hello = party.hello
    party.hello = lambda: (endpoint.close(), hello())[1]  # between the look-up of the session and the arrival
    thread, errors = attend_in_thread("s3", party)
    thread.join(3)
    assert not thread.is_alive()
    assert len(errors) == 1


def test_two_sessions_of_one_process_do_not_mix():
    first, second = InprocEndpoint("s4"), InprocEndpoint("s5")
    thread, _ = attend_in_thread("s5", FakeParty())
    while (link := second.accept()) is None:
        pass
    assert first.accept() is None
    link.close()
    thread.join(3)
    assert first.offer("1") == {}
    first.close()
    second.close()
