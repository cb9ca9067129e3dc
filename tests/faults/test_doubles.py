"""A message that comes twice: no update is applied twice, and a run that it ends can be resumed."""

from __future__ import annotations

import pytest

from flower_vfl import build_config, run
from flower_vfl.apps.local_grid import LocalGrid
from flower_vfl.errors import PartyError, ProtocolError
from flower_vfl.transport.dialling import Dialler
from flower_vfl.transport.stream import StreamLink
from tests.faults.common import assert_same, setup_of_few

pytestmark = pytest.mark.slow  # each trains several times


def doubling(messages, number, doubled):
    """Yield the messages, message `number` twice, unless `doubled` has one already."""
    for count, message in enumerate(messages):
        yield message
        if count == number and not doubled:
            doubled.append(message)
            yield message


def at_the_label_party(monkeypatch, number):
    drain, doubled = StreamLink.drain, []
    monkeypatch.setattr(
        StreamLink,
        "drain",
        lambda link, connection, messages: drain(link, connection, doubling(messages, number, doubled)),
    )
    return doubled


def at_a_party(monkeypatch, number):
    answer, doubled = Dialler.answer, []
    monkeypatch.setattr(
        Dialler, "answer", lambda self, answers, outgoing: answer(self, doubling(answers, number, doubled), outgoing)
    )
    return doubled


def in_flower(monkeypatch, number):
    handle, seen, doubled = LocalGrid._handle, [], []

    def twice(grid, message):
        handle(grid, message)
        seen.append(message)
        if len(seen) == number and message.metadata.message_type != "train":
            doubled.append(message)
            handle(grid, message)

    monkeypatch.setattr(LocalGrid, "_handle", twice)
    return doubled


@pytest.mark.parametrize("number", [3, 21, *(pytest.param(number, marks=pytest.mark.release) for number in (8, 34))])
@pytest.mark.parametrize("where", [at_the_label_party, at_a_party, in_flower])
def test_a_message_that_comes_twice_changes_no_result(tmp_path, undisturbed_run_of_few, monkeypatch, where, number):
    """It is refused, and the run can be resumed; or it repeats a request without effect, such as to save a state."""
    monkeypatch.setenv("FLOWER_VFL_STATE", str(tmp_path / "state"))
    transport = "messages" if where is in_flower else "stream"
    config = build_config(setup_of_few(transport))
    doubled = where(monkeypatch, number)
    try:
        run(config, out=tmp_path / "run")
    except (PartyError, ProtocolError):
        run(config, out=tmp_path / "run", resume=True)
    assert len(doubled) == 1
    assert_same(tmp_path / "run", undisturbed_run_of_few(transport))


@pytest.mark.parametrize("where", [at_the_label_party, at_a_party, in_flower])
def test_a_step_that_comes_twice_is_refused(tmp_path, monkeypatch, where):
    monkeypatch.setenv("FLOWER_VFL_STATE", str(tmp_path / "state"))
    values = setup_of_few("messages" if where is in_flower else "stream")
    where(monkeypatch, 12)
    with pytest.raises((PartyError, ProtocolError)):
        run(build_config({**values, "checkpoint": {"every": -1}}))
