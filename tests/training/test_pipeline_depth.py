"""Number of steps in flight where a measurement chooses it."""

import time
from collections import deque

import pytest
import torch

from flower_vfl.apps import run
from flower_vfl.config.schema import TransportConfig
from flower_vfl.errors import PartyError
from flower_vfl.protocol.frame import Frame, Kind
from flower_vfl.training import pipeline_depth
from flower_vfl.training.pipeline_depth import LIMIT, StepTiming, choose_depth
from flower_vfl.transport.base import Link
from tests.cases import parametrize
from tests.faults.common import Interrupt
from tests.toys import toy_config, toy_data


def timing(compute, round_trip, frame=0.0):
    """Return the timing of a step from the computing time of both sides, the round trip and the time of a frame."""
    return StepTiming(compute + round_trip + 2 * frame, compute / 3, 2 * compute / 3, round_trip)


@pytest.mark.parametrize(
    ("measured", "chosen"),
    [
        (timing(14, 0.2), 1),  # loopback
        (timing(14, 3), 1),
        (timing(14, 20), 3),
        (timing(14, 100), LIMIT),
        (timing(14, 10_000), LIMIT),
        (timing(14, 1, frame=42), 3),  # the link is busy for 42 a step: with more than three, steps only wait
        (timing(14, 1, frame=21), 3),
        (timing(0, 0), 1),
        (timing(0, 5), LIMIT),
        (StepTiming(1.0, 0.7, 0.7, 0.1), 1),  # clocks that disagree
    ],
)
def test_the_depth_is_the_smallest_that_hides_the_delay_of_the_link(measured, chosen):
    assert measured.in_flight == chosen


@pytest.mark.parametrize("compute", [1.0, 14.0])
@pytest.mark.parametrize("round_trip", [5.0, 20.0, 100.0])
@pytest.mark.parametrize("frame", [0.0, 10.0, 42.0])
def test_a_pipeline_of_that_depth_is_as_fast_as_computation_or_link_allow(compute, round_trip, frame):
    measured = timing(compute, round_trip, frame)
    chosen = measured.in_flight
    reached = max(measured.step / chosen, compute, frame)
    assert chosen == LIMIT or measured.step < 1.5 * max(compute, frame) or reached == max(compute, frame)


class Slow(Link):
    """A link that delays each answer."""

    def __init__(self, seconds, reported=0.001):
        super().__init__("a", Frame(Kind.HELLO))
        self.shape, self.dtype, self.seconds, self.reported = (3,), torch.float32, seconds, reported
        self.sent, self.answers = [], deque()

    def send(self, frame):
        self.sent.append(frame)
        if frame.kind is Kind.PROBE:
            tensors = {"embedding": frame.tensors["gradient"] + 1} if frame.tensors else {}
            self.answers.append(Frame(Kind.PROBED, fields={"seconds": self.reported}, tensors=tensors))

    def receive(self, timeout):
        time.sleep(self.seconds)
        return self.answers.popleft()

    def close(self):
        pass


class LabelPartyStub:
    def __init__(self):
        self.seen = []

    def dry_run(self, embeddings):
        self.seen.append(embeddings["a"].shape)


def test_every_party_receives_the_chosen_depth_and_the_measurement_is_short():
    link, label = Slow(0.005), LabelPartyStub()
    chosen = choose_depth(label, {"a": link}, 4, TransportConfig(kind="stream", in_flight=0))
    assert chosen > 1
    assert link.sent[-1] == Frame(Kind.IN_FLIGHT, fields={"in_flight": chosen})
    assert len(link.sent) <= 13
    assert set(label.seen) == {(4, 3)}


def test_a_known_depth_is_sent_without_a_measurement():
    link = Slow(0.0)
    assert choose_depth(LabelPartyStub(), {"a": link}, 4, TransportConfig(kind="stream", in_flight=0), known=7) == 7
    assert [frame.kind for frame in link.sent] == [Kind.IN_FLIGHT]


def test_without_a_link_one_step_is_in_flight():
    link = Slow(0.01)
    assert choose_depth(LabelPartyStub(), {"a": link}, 4, TransportConfig(in_flight=0)) == 1
    assert [frame.fields for frame in link.sent] == [{"in_flight": 1}]


@pytest.mark.parametrize("reported", [-1.0, float("nan"), float("inf"), "long", True])
def test_a_party_that_reports_impossible_seconds_is_refused(reported):
    with pytest.raises(PartyError, match="trial step took"):
        choose_depth(LabelPartyStub(), {"a": Slow(0.0, reported)}, 4, TransportConfig(kind="stream", in_flight=0))


@parametrize("kind", ["stream", "messages"], quick=1)
@pytest.mark.parametrize("chosen", [1, 3])
def test_a_run_with_a_chosen_number_is_the_run_with_that_number_bit_for_bit(monkeypatch, kind, chosen):
    monkeypatch.setattr(pipeline_depth.StepTiming, "in_flight", property(lambda _: chosen))
    data = toy_data()
    config = {"model": {"dropout": 0.3, "bottom": [16]}, "attack": {"names": ["norm", "cosine"]}}
    found, named = (
        run(toy_config(**config, transport={"kind": kind, "in_flight": number}), data=lambda _: data).summary
        for number in (0, chosen)
    )
    assert found["cost"]["in_flight"] == named["cost"]["in_flight"] == chosen
    assert found["weights"] == named["weights"]
    assert found["leakage"] == named["leakage"]
    assert found["utility"] == named["utility"]


def test_a_chosen_number_holds_where_each_message_has_a_fresh_process(monkeypatch, rebuilt):
    monkeypatch.setattr(pipeline_depth.StepTiming, "in_flight", property(lambda _: 3))
    data = toy_data()
    found, named = (
        run(toy_config(transport={"kind": "messages", "in_flight": number}), data=lambda _: data).summary
        for number in (0, 3)
    )
    assert found["cost"]["in_flight"] == 3
    assert found["weights"] == named["weights"]


def test_the_depth_is_in_the_result_of_a_run_in_one_process_too():
    data = toy_data()
    assert run(toy_config(transport={"in_flight": 0}), data=lambda _: data).summary["cost"]["in_flight"] == 1


@pytest.mark.slow
def test_a_resumed_run_goes_on_with_the_number_that_was_chosen(monkeypatch, tmp_path):
    data = toy_data()
    config = toy_config(transport={"kind": "stream", "in_flight": 0}, checkpoint={"every": 3})
    monkeypatch.setattr(pipeline_depth.StepTiming, "in_flight", property(lambda _: 3))
    whole = run(config, data=lambda _: data, out=tmp_path / "whole").summary
    with pytest.raises(KeyboardInterrupt):
        run(config, data=lambda _: data, out=tmp_path / "run", observers=(Interrupt(7),))
    monkeypatch.setattr(pipeline_depth.StepTiming, "in_flight", property(lambda _: 1))  # the link is faster now
    resumed = run(config, data=lambda _: data, out=tmp_path / "run", resume=True).summary
    assert resumed["cost"]["in_flight"] == 3
    assert resumed["weights"] == whole["weights"]
