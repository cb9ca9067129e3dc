"""Pre-training at a feature party: in slices or at once, with restarts between, the weights are the same."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch import nn

from flower_vfl.errors import ProtocolError, TrainingError
from flower_vfl.nn import Optimizers, bind_dropout, seeded_initialisation, weights_digest
from flower_vfl.nn.placement import IN_MEMORY
from flower_vfl.nn.pretraining import reconstruction_of
from flower_vfl.parties.feature import FeatureParty
from flower_vfl.parties.pretraining import Pretraining
from flower_vfl.protocol.frame import Frame, Kind
from flower_vfl.protocol.schedule import Schedule
from tests.toys import mixed_data, with_unaligned

SCHEDULE = Schedule(1, 100, 20, 16, 50, 2, 0.1)
STEPS = 3 * 6
"""Three epochs of 90 rows, 16 a step."""


class Bottom(nn.Module):
    """A bottom model with all stateful parts: sparse embeddings, running statistics, dropout."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(16, 2, sparse=True)
        self.layers = nn.Sequential(nn.Linear(7, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 4))

    def forward(self, numbers, ids):
        return self.layers(torch.cat([numbers, self.embedding(ids).flatten(1)], dim=1))


def make_party(*, patience=1e9, seed=7, pretrain=True, scale=1.0, unaligned=0):
    with seeded_initialisation(3):
        model = Bottom()
    dropout = torch.Generator().manual_seed(5)
    bind_dropout(model, dropout)
    data = mixed_data(rows=100, test_rows=20)
    table = (with_unaligned(data, unaligned) if unaligned else data).party("a")
    with torch.no_grad():
        model.layers[0].weight.mul_(scale)
    with seeded_initialisation(4):
        objective = reconstruction_of(table.spec, (4,), "party 'a'")
    generator = torch.Generator().manual_seed(seed)
    more = {"generator": generator, "placement": IN_MEMORY, "patience": patience, "unaligned": table.unaligned}
    pretraining = Pretraining(model, objective, table.train, SCHEDULE, 3, **more) if pretrain else None
    optimizers = Optimizers(model, "adam", learning_rate=0.01)
    return FeatureParty("a", model, optimizers, table, SCHEDULE, dropout=dropout, pretraining=pretraining)


def pretrain(party, restart=lambda party: party):
    """Send requests until pre-training is complete; return the party and the steps that its answers count."""
    answers = []
    while not answers or answers[-1] < STEPS:
        party = restart(party)
        answer = party.handle(Frame(Kind.PRETRAIN))
        assert answer.kind is Kind.PRETRAINED
        assert not answer.tensors
        assert set(answer.fields) == {"done", "steps"}
        assert answer.integer("steps") == STEPS
        answers.append(answer.integer("done"))
    return party, answers


def restarted(party, **more):
    fresh = make_party(patience=0.0, seed=99, **more)
    fresh.restore(copy.deepcopy(party.state()))
    return fresh


def test_slices_and_restarts_between_them_give_the_weights_of_one_go():
    before = weights_digest(make_party().bottom)
    whole, answers = pretrain(make_party())
    assert answers == [STEPS]
    sliced, answers = pretrain(make_party(patience=0.0))
    assert answers == list(range(1, STEPS + 1))
    again, _ = pretrain(make_party(patience=0.0), restarted)
    assert weights_digest(whole.bottom) == weights_digest(sliced.bottom) == weights_digest(again.bottom) != before
    assert torch.equal(whole.handle(request(0)).tensors["embedding"], again.handle(request(0)).tensors["embedding"])
    assert weights_digest(pretrain(make_party(seed=8))[0].bottom) != weights_digest(whole.bottom)


@pytest.mark.slow
def test_answers_do_not_depend_on_unaligned_rows_which_are_trained_on():
    whole, found = pretrain(make_party(unaligned=230))
    assert found == [STEPS]
    assert weights_digest(whole.bottom) != weights_digest(pretrain(make_party())[0].bottom)
    for rows in (1, 230):
        sliced, answers = pretrain(make_party(patience=0.0, unaligned=rows))
        assert answers == list(range(1, STEPS + 1))
    assert weights_digest(sliced.bottom) == weights_digest(whole.bottom)
    again, _ = pretrain(make_party(patience=0.0, unaligned=230), lambda party: restarted(party, unaligned=230))
    assert weights_digest(again.bottom) == weights_digest(whole.bottom)


def test_each_epoch_goes_through_training_rows_and_unaligned_ones_once():
    table = with_unaligned(mixed_data(rows=100, test_rows=20), 37).party("a")
    seen = []

    class RecordingObjective(nn.Module):
        def corrupt(self, inputs, generator):
            seen.append(inputs[0])
            return inputs

        def loss(self, z, inputs):
            return z.sum() * 0.0

    more = {"generator": torch.Generator(), "placement": IN_MEMORY, "patience": 1e9, "unaligned": table.unaligned}
    Pretraining(Bottom(), RecordingObjective(), table.train, SCHEDULE, 2, **more).work()
    trained = torch.from_numpy(np.setdiff1d(np.arange(100), SCHEDULE.held_out))
    every = [table.train.gather(trained.numpy())[0], table.unaligned.gather(np.arange(37))[0]]
    expected = sorted(torch.cat(every).tolist())
    rows = torch.cat(seen).tolist()
    assert sorted(rows[:127]) == sorted(rows[127:]) == expected
    assert rows[:127] != rows[127:]


def request(step):
    return Frame(Kind.STEP, step, {"gradient_of": -1})


def test_pretraining_reconstructs_better_than_before():
    pretrained, _ = pretrain(make_party())
    losses = []
    for bottom in (make_party().bottom, pretrained.bottom):
        table = mixed_data(rows=100, test_rows=20).party("a")
        inputs = table.train.gather(SCHEDULE.train_batch(0))
        bottom.eval()
        z = bottom(*inputs).detach()
        target = inputs[0] - inputs[0].mean(dim=0)
        z = z - z.mean(dim=0)
        losses.append(((target - z @ torch.linalg.lstsq(z, target).solution) ** 2).mean().item())
    assert losses[1] < losses[0]


def test_pretraining_comes_before_the_first_step_and_once():
    party, _ = pretrain(make_party())
    with pytest.raises(ProtocolError, match="no pre-training to do"):
        party.handle(Frame(Kind.PRETRAIN))
    assert "pretraining" not in party.state()
    with pytest.raises(ProtocolError, match="no pre-training to do"):
        make_party(pretrain=False).handle(Frame(Kind.PRETRAIN))
    late = make_party()
    late.handle(request(0))
    with pytest.raises(ProtocolError, match="after the first step"):
        late.handle(Frame(Kind.PRETRAIN))


def test_a_loss_that_is_not_finite_is_an_error():
    with pytest.raises(TrainingError, match=r"pre-training diverged.*set training\.pretrain to 0"):
        make_party(scale=float("nan")).handle(Frame(Kind.PRETRAIN))
