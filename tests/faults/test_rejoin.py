"""A party dies in the middle of a run and comes back; all go on from the last checkpoint, to the same result."""

from __future__ import annotations

import random
import re
from dataclasses import replace

import grpc
import pytest
import torch

from flower_vfl import build_config, run
from flower_vfl.errors import PartyError, PartyLostError
from flower_vfl.parties.feature import FeatureParty
from flower_vfl.protocol.frame import Kind
from flower_vfl.transport.sessions import Sessions
from tests.faults.common import assert_same, outcome, setup, setup_of_few
from tests.toys import mixed_data, toy_config, with_unaligned

pytestmark = pytest.mark.slow  # each trains several times


class Death(grpc.RpcError):
    """An error that ends a party without a message to the label party, as a kill does."""

    def code(self):
        return grpc.StatusCode.UNAVAILABLE

    def details(self):
        return "the party died"


@pytest.fixture
def dies(monkeypatch):
    """Return a function that lets parties die when `is_time` of a frame's kind; it returns counts over all parties."""
    handle, counts = FeatureParty.handle, {"frames": 0, "deaths": 0}

    def at(is_time):
        def counted(party, frame):
            counts["frames"] += 1
            counts[frame.kind] = counts.get(frame.kind, 0) + 1
            if is_time(frame.kind):
                counts["deaths"] += 1
                raise Death
            return handle(party, frame)

        monkeypatch.setattr(FeatureParty, "handle", counted)
        monkeypatch.setattr("flower_vfl.transport.messages.raised", lambda reply: False)
        return counts

    return at


def dying(transport, setup=setup_of_few, **changes):
    """Return a configuration in which a party whose line breaks does not dial again."""
    values = setup(transport)
    return build_config({**values, "transport": {**values["transport"], "reconnect_timeout": 0.0, **changes}})


@pytest.mark.parametrize("transport", ["stream", "messages"])
@pytest.mark.parametrize("seed", range(2))
def test_parties_that_die_at_any_frame_come_back_to_the_same_result(
    tmp_path, undisturbed_run, dies, transport, seed, monkeypatch
):
    monkeypatch.setenv("FLOWER_VFL_STATE", str(tmp_path / "state"))
    frames = random.Random(seed).sample(range(12, 90), 4)
    counts = dies(lambda kind: counts["frames"] in frames)
    run(dying(transport, setup), out=tmp_path / "run")
    assert counts["deaths"] == 4
    assert_same(tmp_path / "run", undisturbed_run(transport))


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("kind", [Kind.STEP, Kind.SAVE, Kind.EVALUATE, Kind.FINISH])
def test_a_party_that_dies_in_any_phase_comes_back(tmp_path, undisturbed_run_of_few, dies, kind, count):
    number = count + 2 * (kind is Kind.SAVE)  # both save a first state before training begins
    counts = dies(lambda now: now is kind and counts[kind] == number)
    run(dying("stream"), out=tmp_path / "run")
    assert counts["deaths"] == 1
    assert_same(tmp_path / "run", undisturbed_run_of_few("stream"))


def test_a_party_that_has_finished_is_left_alone_when_another_one_dies(tmp_path, dies):
    counts = dies(lambda kind: kind is Kind.FINISH and counts[kind] == 1)
    run(dying("stream"), out=tmp_path / "run")
    assert counts["deaths"] == 1
    assert (counts[Kind.FINISH], counts[Kind.RESTORE]) == (3, 1)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_party_that_dies_while_all_restore_a_checkpoint_comes_back(tmp_path, undisturbed_run_of_few, dies, count):
    counts = dies(lambda kind: counts["frames"] == 40 or (kind is Kind.RESTORE and counts[kind] == count))
    run(dying("stream"), out=tmp_path / "run")
    assert counts["deaths"] == 1 + (count < 3)
    assert_same(tmp_path / "run", undisturbed_run_of_few("stream"))


@pytest.mark.parametrize(
    ("kind", "deaths"),
    [(Kind.EVALUATE, [4]), (Kind.SAVE, range(4, 9))],  # before the first checkpoint one dies each time, or both
    ids=["same step", "first checkpoint"],
)
def test_a_party_that_dies_each_time_ends_the_run_which_can_be_resumed(
    tmp_path, undisturbed_run_of_few, dies, kind, deaths
):
    counts = dies(lambda found: found is kind)
    with pytest.raises(PartyLostError):
        run(dying("stream"), out=tmp_path / "run")
    assert counts["deaths"] in deaths
    dies(lambda kind: False)
    run(dying("stream"), out=tmp_path / "run", resume=True)
    assert_same(tmp_path / "run", undisturbed_run_of_few("stream"))


def test_the_steps_in_flight_that_were_chosen_by_a_measurement_stay(
    tmp_path, undisturbed_run_of_few, dies, monkeypatch
):
    monkeypatch.setattr("flower_vfl.training.pipeline_depth.StepTiming.in_flight", 3)
    counts = dies(lambda kind: counts["frames"] in (70, 110))
    run(dying("stream", in_flight=0), out=tmp_path / "run")
    assert counts["deaths"] == 2
    result = outcome(tmp_path / "run")
    assert result["cost"]["in_flight"] == 3
    assert result["weights"] == outcome(undisturbed_run_of_few("stream"))["weights"]


@pytest.mark.parametrize(
    ("transport", "kind", "count"),
    [
        *(("stream", kind, count) for kind in (Kind.AUDIT, Kind.SAVE) for count in (1, 2)),
        *(("messages", kind, 2) for kind in (Kind.AUDIT, Kind.SAVE)),
    ],
)
def test_before_the_first_checkpoint_all_begin_anew_when_a_party_dies(
    tmp_path, undisturbed_run_of_few, dies, transport, kind, count, monkeypatch
):
    monkeypatch.setenv("FLOWER_VFL_STATE", str(tmp_path / "state"))
    counts = dies(lambda now: now is kind and counts[kind] == count)
    run(dying(transport), out=tmp_path / "run")
    assert counts["deaths"] == 1
    assert Kind.RESTORE not in counts
    assert_same(tmp_path / "run", undisturbed_run_of_few(transport))


@pytest.mark.parametrize(("kind", "count"), [(Kind.PROBE, 3), (Kind.IN_FLIGHT, 2)])
def test_all_begin_anew_when_a_party_dies_while_the_pipeline_depth_is_chosen(
    tmp_path, undisturbed_run_of_few, dies, kind, count, monkeypatch
):
    monkeypatch.setattr("flower_vfl.training.pipeline_depth.StepTiming.in_flight", 3)
    counts = dies(lambda now: now is kind and counts[kind] == count)
    run(dying("stream", in_flight=0), out=tmp_path / "run")
    assert counts["deaths"] == 1
    assert Kind.RESTORE not in counts
    assert outcome(tmp_path / "run")["weights"] == outcome(undisturbed_run_of_few("stream"))["weights"]


def test_the_label_partys_pre_training_on_rows_of_its_own_begins_anew_too(tmp_path, dies):
    data = with_unaligned(mixed_data(rows=200, test_rows=60), 90)
    config = toy_config(
        parties={"features": ["a"]},
        training={"epochs": 1, "pretrain": 2},
        attack={"names": []},
        transport={"kind": "stream", "reconnect_timeout": 0.0},
    )
    undisturbed = run(config, data=lambda _: data, out=tmp_path / "undisturbed")
    counts = dies(lambda kind: kind is Kind.SAVE and counts[kind] == 1)
    disturbed = run(config, data=lambda _: data, out=tmp_path / "disturbed")
    assert counts["deaths"] == 1
    assert disturbed.summary["weights"] == undisturbed.summary["weights"]


def test_where_no_states_are_kept_a_party_that_dies_in_training_ends_the_run(dies):
    dies(lambda kind: kind is Kind.STEP)
    with pytest.raises(PartyLostError, match="the party died"):
        run(dying("stream"))


def test_a_party_that_does_not_come_back_is_named_when_its_time_is_up(tmp_path, dies, monkeypatch, caplog):
    invite, calls = Sessions.invite, []

    def once(sessions):
        calls.append(True)
        return invite(sessions) if len(calls) == 1 else False

    counts = dies(lambda kind: counts["frames"] == 30)
    monkeypatch.setattr(Sessions, "invite", once)
    with pytest.raises(PartyError, match=r"did not come back within 1 s \(transport\.rejoin_timeout\): [ab]; start"):
        run(dying("stream", rejoin_timeout=1.0), out=tmp_path / "run")
    assert re.search(r"waiting up to 1 s \(transport\.rejoin_timeout\) for [ab]: a SuperNode that ended", caplog.text)


@pytest.mark.parametrize("resumed", [False, True])
def test_a_party_that_comes_back_with_other_embeddings_cannot_subtract_the_noise(tmp_path, dies, monkeypatch, resumed):
    """With equal noise, far larger than the gradients, both gradients would be nearly equal."""
    attack = {"names": ["norm"], "informed": 0}
    values = setup("stream") | {"defenses": [{"name": "iso", "t": 1000.0}], "attack": attack}
    config = build_config({**values, "transport": {**values["transport"], "reconnect_timeout": 0.0}})
    learn, embed, gradients = FeatureParty._learn, FeatureParty._embed, []

    def learning(party, step, frame):
        if (party.name, step) == ("a", 0):
            gradients.append(frame.tensors["gradient"].clone().flatten())
        return learn(party, step, frame)

    def embedding(party, step):
        frame = embed(party, step)
        return replace(frame, tensors={"embedding": frame.tensors["embedding"] * (1.0 + len(gradients))})

    monkeypatch.setattr(FeatureParty, "_learn", learning)
    counts = dies(lambda kind: bool(gradients) and (resumed or counts["deaths"] == 0))
    if resumed:
        with pytest.raises(PartyLostError):
            run(config, out=tmp_path / "run")
        dies(lambda kind: False)
    monkeypatch.setattr(FeatureParty, "_embed", embedding)
    run(config, out=tmp_path / "run", resume=resumed)
    assert len(gradients) == 2
    assert abs(torch.corrcoef(torch.stack(gradients))[0, 1]) < 5 / gradients[0].numel() ** 0.5
