"""The feature party's state machine: the frames that it refuses, and the completeness of its saved state."""

from __future__ import annotations

import copy
import math

import numpy as np
import pytest
import torch
from torch import nn

from flower_vfl.attacks import NormAttack
from flower_vfl.auditing.attacker import Attacker
from flower_vfl.errors import NotFiniteError, ProtocolError, TrainingError
from flower_vfl.nn import Optimizers, bind_dropout, seeded_initialisation, weights_digest
from flower_vfl.parties.feature import FeatureParty
from flower_vfl.protocol.frame import Frame, Kind
from flower_vfl.protocol.schedule import Schedule
from tests.toys import toy_data

SCHEDULE = Schedule(1, 100, 20, 16, 50, 2, 0.1)


def make_party(*, in_flight=1, bottom=None, **more):
    with seeded_initialisation(3):
        model = bottom or nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 4))
    generator = torch.Generator().manual_seed(5)
    bind_dropout(model, generator)
    table = toy_data(rows=100, test_rows=20, parties=1).party("a")
    optimizers = Optimizers(model, "adam", learning_rate=0.01)
    return FeatureParty("a", model, optimizers, table, SCHEDULE, in_flight=in_flight, dropout=generator, **more)


def request(step, gradient_of=-1, gradient=None):
    tensors = {} if gradient is None else {"gradient": gradient}
    return Frame(Kind.STEP, step, {"gradient_of": gradient_of}, tensors)


def gradient_for(step, dtype=torch.float32):
    generator = torch.Generator().manual_seed(100 + step)
    return torch.randn(len(SCHEDULE.train_batch(step)), 4, generator=generator, dtype=dtype)


def drive(party, first, last, in_flight, restart=None):
    """Run steps of a schedule with random gradients; `restart` replaces the party before each frame."""
    for step in range(first, last):
        frame = request(step + in_flight if step + in_flight < last else -1, step, gradient_for(step))
        party = restart(party) if restart else party
        party.handle(frame)
    return party


def fill(party, in_flight):
    for step in range(in_flight):
        party.handle(request(step))


@pytest.mark.parametrize(
    ("frame", "reason"),
    [
        (request(1), "step 1 was asked for, the next one is 0"),
        (request(99), "step 99"),
        (request(0, 0, torch.zeros(16, 4)), "gradient of step 0, expected step none"),
        (Frame(Kind.STEP, 0), "integer field 'gradient_of'"),
        (Frame(Kind.STEP, 0, {"gradient_of": True}), "integer field"),
        (Frame(Kind.EVALUATE, 0, {"part": "train"}), r"here training\.refit is 0"),
        (Frame(Kind.EVALUATE, 1, {"part": "test"}), "no evaluation batch 1"),
        (Frame(Kind.EVALUATE, 0, {}), "text field 'part'"),
        (Frame(Kind.HELLO), "does not take hello"),
        (Frame(Kind.AUDIT, fields={"offset": 0}), "does not take audit"),
    ],
)
def test_frames_out_of_place_are_refused_and_name_what_was_expected(frame, reason):
    with pytest.raises(ProtocolError, match=reason):
        make_party().handle(frame)


def test_without_gradients_embeddings_of_training_rows_are_given_and_no_step_is_taken():
    party = make_party(gradients=False)
    embedding = party.handle(Frame(Kind.EVALUATE, 1, {"part": "train"})).tensors["embedding"]
    table = toy_data(rows=100, test_rows=20, parties=1).party("a")
    party.bottom.eval()
    with torch.no_grad():
        assert torch.equal(embedding, party.bottom(*table.train.gather(np.arange(50, 100))))
    with pytest.raises(ProtocolError, match=r"training\.gradients is false"):
        party.handle(request(0))


def test_for_a_refit_embeddings_of_training_rows_are_given_once_after_the_steps():
    first, second = (Frame(Kind.EVALUATE, batch, {"part": "train"}) for batch in (0, 1))
    party = make_party(refit=True)
    with pytest.raises(ProtocolError, match="sent once, in order, after the steps"):
        party.handle(first)
    party.handle(request(0))
    with pytest.raises(ProtocolError, match="1 steps wait for their gradient"):
        party.handle(first)
    party.handle(request(1, 0, gradient_for(0)))
    party.handle(request(-1, 1, gradient_for(1)))
    before = party.state()
    with pytest.raises(ProtocolError, match="batch 1 of all training rows"):
        party.handle(second)
    party.handle(first)
    party.handle(second)
    for refused in (first, second):
        with pytest.raises(ProtocolError, match="sent once"):
            party.handle(refused)
    with pytest.raises(ProtocolError, match="after the end of the steps"):
        party.handle(request(2))
    party.restore(before)
    party.handle(request(2))


def test_no_step_follows_the_end_of_a_training():
    party = make_party()
    party.handle(Frame(Kind.FINISH))
    with pytest.raises(ProtocolError, match="after the end of the steps"):
        party.handle(request(0))


@pytest.mark.parametrize(
    "gradient",
    [
        torch.zeros(15, 4),
        torch.zeros(16, 5),
        torch.zeros(16, 4, dtype=torch.float64),
        torch.full((16, 4), math.nan),
        torch.full((16, 4), math.inf),
        None,
    ],
    ids=["rows", "width", "dtype", "NaN", "infinity", "absent"],
)
def test_a_wrong_gradient_is_refused_and_changes_no_weight(gradient):
    party = make_party()
    party.handle(request(0))
    before = weights_digest(party.bottom)
    with pytest.raises(ProtocolError):
        party.handle(request(1, 0, gradient))
    assert weights_digest(party.bottom) == before


def test_no_more_steps_are_under_way_than_agreed():
    party = make_party(in_flight=2)
    fill(party, 2)
    with pytest.raises(ProtocolError, match="while 2 steps wait"):
        party.handle(request(2))


def probe(value=0.0, rows=16):
    return Frame(Kind.PROBE, tensors={"gradient": torch.full((rows, 4), value)})


def test_a_probe_shows_the_first_embedding_and_changes_nothing():
    party, other = make_party(in_flight=0), make_party(in_flight=1)
    for _ in range(2):
        shown = party.handle(probe(1.0))
        assert shown.kind is Kind.PROBED
        assert shown.fields["seconds"] > 0
    assert party.handle(Frame(Kind.PROBE)) == Frame(Kind.PROBED)
    assert all(weight.grad is None for weight in party.bottom.parameters())
    party.handle(Frame(Kind.IN_FLIGHT, fields={"in_flight": 1}))
    first = other.handle(request(0)).tensors["embedding"]
    assert torch.equal(shown.tensors["embedding"], first)
    assert torch.equal(party.handle(request(0)).tensors["embedding"], first)
    for one in (party, other):
        drive(one, 0, 8, 1)
    assert weights_digest(party.bottom) == weights_digest(other.bottom)


@pytest.mark.parametrize(
    ("in_flight", "frame", "message"),
    [
        (1, probe(), "here transport.in_flight is 1"),
        (2, Frame(Kind.IN_FLIGHT, fields={"in_flight": 2}), "transport.in_flight is 2"),
        (0, Frame(Kind.IN_FLIGHT, fields={"in_flight": 0}), "1 to 64 are possible"),
        (0, Frame(Kind.IN_FLIGHT, fields={"in_flight": 65}), "1 to 64 are possible"),
        (0, Frame(Kind.IN_FLIGHT), "integer field 'in_flight'"),
        (0, probe(float("nan")), "not finite"),
        (0, probe(rows=5), "must be float32"),
    ],
)
def test_the_label_party_chooses_the_steps_in_flight_only_where_that_was_agreed_and_within_bounds(
    in_flight, frame, message
):
    with pytest.raises((ProtocolError, NotFiniteError), match=message):
        make_party(in_flight=in_flight).handle(frame)


def test_the_steps_in_flight_are_settled_before_the_first_step_is_under_way():
    party = make_party(in_flight=0)
    party.handle(request(0))
    with pytest.raises(ProtocolError, match="before the first step"):
        party.handle(Frame(Kind.IN_FLIGHT, fields={"in_flight": 2}))


def test_training_cannot_be_finished_while_a_gradient_is_missing():
    party = make_party()
    party.handle(request(0))
    with pytest.raises(ProtocolError, match="1 steps wait"):
        party.handle(Frame(Kind.FINISH))
    assert not party.finished


@pytest.mark.parametrize("in_flight", [1, 3])
def test_a_party_rebuilt_from_its_state_before_every_frame_ends_with_the_same_weights(in_flight):
    def rebuild(party):
        fresh = make_party(in_flight=in_flight)
        fresh.restore(party.state())
        return fresh

    undisturbed, disturbed = make_party(in_flight=in_flight), make_party(in_flight=in_flight)
    for party in (undisturbed, disturbed):
        fill(party, in_flight)
    undisturbed = drive(undisturbed, 0, 8, in_flight)
    disturbed = drive(disturbed, 0, 8, in_flight, restart=rebuild)
    assert weights_digest(undisturbed.bottom) == weights_digest(disturbed.bottom)


def test_repeating_a_forward_pass_updates_running_statistics_once():
    party = make_party(in_flight=2)
    fill(party, 2)
    counts = party.bottom[1].num_batches_tracked.item()
    party.handle(request(-1, 0, gradient_for(0)))
    assert party.bottom[1].num_batches_tracked.item() == counts == 2


def test_a_bottom_model_that_returns_no_batch_of_numbers_is_refused():
    class Wrong(nn.Module):
        def forward(self, x):
            return x.sum()

    with pytest.raises(TrainingError, match=r"party 'a'.*floating point tensor.*given torch.float32 \(\)"):
        make_party(bottom=Wrong())


def make_attacked(**more):
    party = make_party()
    party.observer = Attacker(party.point, attacks=[NormAttack()], **more)
    return party


def audit_frame(rows=100):
    labels = torch.from_numpy(toy_data(rows=100, test_rows=20, parties=1).target.train[:rows]).to(torch.uint8)
    return Frame(Kind.AUDIT, fields={"offset": 0, "classes": 2}, tensors={"labels": labels})


def test_a_deployed_attacker_refuses_labels_and_scores_nothing():
    party = make_attacked(simulation=False)
    with pytest.raises(ProtocolError, match="deployment refuses"):
        party.handle(audit_frame())
    fill(party, 1)
    drive(party, 0, 3, 1)
    assert party.report()["leakage"] == []


def test_a_simulated_attacker_scores_the_cut_and_the_first_layer():
    party = make_attacked(simulation=True)
    party.handle(audit_frame())
    fill(party, 1)
    party = drive(party, 0, 3, 1)
    entries = party.report()["leakage"]
    assert [(entry["layer"], entry["steps"]) for entry in entries] == [("cut", 3), ("first", 3)]
    assert set(party.observer.view.transcript.last.gradients) == {"cut", "first"}


def test_a_step_that_no_attack_reads_is_not_kept():
    party = make_attacked(simulation=True, every=2)
    party.handle(audit_frame())
    fill(party, 1)
    drive(party, 0, 5, 1)  # 0 and 3 are scored
    assert party.report()["leakage"][0]["steps"] == 2
    assert party.observer.view.transcript.last.step == 3


def test_half_of_the_audit_labels_are_not_enough_to_score():
    party = make_attacked(simulation=True)
    party.handle(audit_frame(rows=50))
    fill(party, 1)
    drive(party, 0, 2, 1)
    assert party.report()["leakage"] == []


def test_audit_labels_that_skip_rows_are_refused():
    party = make_attacked(simulation=True)
    piece = audit_frame().tensors["labels"][:10]
    with pytest.raises(ProtocolError, match="row 0 was next"):
        party.handle(Frame(Kind.AUDIT, fields={"offset": 5, "classes": 2}, tensors={"labels": piece}))


def test_the_first_layer_gradient_is_the_one_that_autograd_gives():
    party = make_attacked(simulation=False)
    twin = make_party()
    party.handle(request(0))
    x = twin._loader.batch(0)[0]
    twin.bottom.train()
    hidden = twin.bottom[2](twin.bottom[1](twin.bottom[0](x)))
    hidden.retain_grad()
    twin.bottom[4](twin.bottom[3](hidden)).backward(gradient_for(0))
    party.handle(request(-1, 0, gradient_for(0)))
    assert torch.equal(party.observer.view.transcript.last.gradients["first"], hidden.grad)


def test_the_state_of_an_attacker_has_its_measurements():
    party = make_attacked(simulation=True)
    party.handle(audit_frame())
    fill(party, 1)
    party = drive(party, 0, 4, 1)
    again = make_attacked(simulation=True)
    again.restore(party.state())
    assert again.report()["leakage"] == party.report()["leakage"]


class MemoryStore:
    """A store of checkpoints in memory."""

    def __init__(self):
        self.states = {}

    def save(self, step, state, *, hold):
        self.held = hold
        self.states[step] = copy.deepcopy(state)

    def load(self, step):
        return copy.deepcopy(self.states[step])


def test_a_party_saves_its_state_on_request_and_restores_it():
    store = MemoryStore()
    party = make_party(store=store)
    party.handle(request(0))
    party.handle(request(-1, 0, gradient_for(0)))
    assert party.handle(Frame(Kind.SAVE, 1)) == Frame(Kind.SAVED, 1)
    kept = weights_digest(party.bottom)
    for last in range(2):
        party.handle(request(1))
        party.handle(request(-1, 1, gradient_for(1)))
        later = weights_digest(party.bottom)
        assert later != kept
        if not last:
            first_time = later
            answer = party.handle(Frame(Kind.RESTORE, 1, {"count": 3}))
            assert answer == Frame(Kind.RESTORED, 1, {"count": 3})
            assert weights_digest(party.bottom) == kept
    assert later == first_time


def test_a_party_keeps_an_earlier_model_as_its_final_one_and_all_its_measurements():
    party = make_party(store=MemoryStore())
    party.handle(Frame(Kind.SAVE, 0))
    first = weights_digest(party.bottom)
    party.handle(request(0))
    party.handle(request(-1, 0, gradient_for(0)))
    assert party.handle(Frame(Kind.KEEP, 0)) == Frame(Kind.KEPT, 0)
    assert party.report()["weights"] == first
    assert party.state()["next_step"] == 1
    assert not party.discarded


def test_a_party_that_is_to_keep_no_model_names_none_until_it_restores_a_state():
    party = make_party(store=MemoryStore())
    party.handle(Frame(Kind.SAVE, 0))
    assert party.handle(Frame(Kind.KEEP, -1)) == Frame(Kind.KEPT, -1)
    assert party.discarded
    assert party.report()["weights"] == ""
    again = make_party()
    again.restore(party.state())
    assert again.discarded
    party.handle(Frame(Kind.RESTORE, 0, {"count": 1}))
    assert not party.discarded


def test_the_state_with_which_an_epoch_began_is_held_until_the_next_one_has_ended():
    store = MemoryStore()
    party = make_party(store=store)
    per_epoch = party._schedule.steps_of(1).stop
    for step in range(per_epoch + 1):
        party.handle(request(step))
        party.handle(request(-1, step, gradient_for(step)))
        party.handle(Frame(Kind.SAVE, step + 1))
        assert store.held == (0 if step + 1 <= per_epoch else per_epoch)


@pytest.mark.parametrize(
    ("frames", "store", "reason"),
    [
        ([Frame(Kind.KEEP, 0)], None, "keeps no checkpoints"),
        ([request(0), Frame(Kind.KEEP, -1)], None, "1 steps wait"),
        ([Frame(Kind.SAVE, 0)], None, "keeps no checkpoints"),
        ([Frame(Kind.RESTORE, 0)], None, "keeps no checkpoints"),
        ([request(0), Frame(Kind.SAVE, 0)], MemoryStore(), "1 steps wait"),
        ([request(0), Frame(Kind.BEST, 1)], None, "1 steps wait"),
        ([Frame(Kind.BEST, 3)], None, "keep the model after step 3, but this party is at step 0"),
        ([Frame(Kind.RESTORE, 0)], MemoryStore(), "integer field 'count'"),
        ([Frame(Kind.SAVE, 3)], MemoryStore(), "save the state after step 3, but this party is at step 0"),
    ],
)
def test_a_state_that_cannot_be_kept_is_refused(frames, store, reason):
    party = make_party(store=store)
    for frame in frames[:-1]:
        party.handle(frame)
    with pytest.raises(ProtocolError, match=reason):
        party.handle(frames[-1])
