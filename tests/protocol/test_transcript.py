"""The transcript keeps the steps that a party saw, and no more than its history."""

import dataclasses

import numpy as np
import pytest
import torch

from flower_vfl.checkpoint import load_state, save_state
from flower_vfl.errors import ConfigError, ProtocolError
from flower_vfl.protocol.transcript import StepTrace, Transcript


def trace(step):
    gradients = {"cut": torch.full((2, 3), float(step)), "first": torch.zeros(2, 5)}
    return StepTrace(step=step, epoch=0, rows=np.arange(2), embedding=torch.zeros(2, 3), gradients=gradients)


def test_by_default_the_last_step_only_is_kept():
    transcript = Transcript()
    for step in range(3):
        transcript.record(trace(step))
    assert [seen.step for seen in transcript] == [2]
    assert transcript.last.step == 2
    assert len(transcript) == 1


@pytest.mark.parametrize(("history", "kept"), [(2, [3, 4]), (9, [0, 1, 2, 3, 4]), (None, [0, 1, 2, 3, 4])])
def test_history_is_the_number_of_kept_steps_oldest_first(history, kept):
    transcript = Transcript(history)
    for step in range(5):
        transcript.record(trace(step))
    assert [seen.step for seen in transcript] == kept
    assert transcript.last.step == 4
    assert len(transcript) == len(kept)


def test_a_recorded_step_comes_back_as_it_is():
    transcript, seen = Transcript(), trace(7)
    transcript.record(seen)
    assert transcript.last is seen


def test_an_empty_transcript_has_no_last_step_and_says_so():
    with pytest.raises(ProtocolError, match="empty"):
        _ = Transcript().last
    assert list(Transcript()) == []


def test_the_latest_steps_are_a_transcript_of_their_own():
    transcript = Transcript(5)
    for step in range(4):
        transcript.record(trace(step))
    assert [seen.step for seen in transcript.latest(2)] == [2, 3]
    assert [seen.step for seen in transcript.latest(9)] == [0, 1, 2, 3]
    assert len(transcript) == 4


def test_a_restored_transcript_has_the_same_steps_and_moves_to_the_device_of_the_next(tmp_path):
    before, after = Transcript(3), Transcript(3)
    for step in range(4):
        before.record(trace(step))
    save_state(tmp_path / "state", {"transcript": before.state()})
    after.restore(load_state(tmp_path / "state")["transcript"])
    for one, other in zip(before, after, strict=True):
        assert (one.step, one.epoch, one.rows.tolist()) == (other.step, other.epoch, other.rows.tolist())
        assert torch.equal(one.embedding, other.embedding)
        assert all(torch.equal(one.gradients[layer], g) for layer, g in other.gradients.items())
    after.record(trace(4).to(torch.device("meta")))  # in place of a GPU
    assert {tensor.device.type for seen in after for tensor in (seen.embedding, *seen.gradients.values())} == {"meta"}
    assert [seen.step for seen in after] == [2, 3, 4]


@pytest.mark.parametrize("history", [0, -1])
def test_a_history_of_nothing_is_refused(history):
    with pytest.raises(ConfigError, match=str(history)):
        Transcript(history)


def test_a_trace_cannot_be_rewritten_and_holds_no_label():
    with pytest.raises(dataclasses.FrozenInstanceError):
        trace(0).step = 1
    assert {field.name for field in dataclasses.fields(StepTrace)} == {
        "step",
        "epoch",
        "rows",
        "embedding",
        "gradients",
        "outputs",
    }
