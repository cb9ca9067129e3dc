"""The clean gradient at an attacker: it reaches every layer, changes nothing, and a deployment refuses it."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from flower_vfl.attacks import make_attacks
from flower_vfl.auditing.attacker import Attacker
from flower_vfl.errors import ConfigError, ProtocolError
from flower_vfl.nn import Optimizers, bind_dropout, seeded_initialisation
from flower_vfl.nn.layers import watched_layers
from flower_vfl.parties.feature import FeatureParty
from flower_vfl.protocol.frame import Frame, Kind
from flower_vfl.protocol.schedule import Schedule
from tests.attacks.common import RecordingAttack, gradients
from tests.toys import toy_data

SCHEDULE = Schedule(1, 100, 20, 16, 50, 2, 0.1)
TABLE = toy_data(rows=100, test_rows=20, parties=1)


def make_attacked(*, simulation=True, layers=(), in_flight=1, bottom=None, attacks=None):
    with seeded_initialisation(3):
        model = bottom or nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 5), nn.Tanh(), nn.Linear(5, 4))
    optimizers = Optimizers(model, "adam", learning_rate=0.01)
    dropout = torch.Generator().manual_seed(5)
    bind_dropout(model, dropout)
    party = FeatureParty(
        "a", model, optimizers, TABLE.party("a"), SCHEDULE, in_flight=in_flight, dropout=dropout
    )  # fmt: skip
    party.observer = Attacker(
        party.point,
        attacks=attacks or make_attacks([{"name": "cosine"}, {"name": "hint", "k": 1}]),
        layers=layers, simulation=simulation, defended=True,
    )  # fmt: skip
    if simulation:
        labels = torch.from_numpy(TABLE.target.train).to(torch.uint8)
        party.handle(Frame(Kind.AUDIT, fields={"offset": 0, "classes": 2}, tensors={"labels": labels}))
    return party


def answer(step, request, *, row=3, reference=None, gradient=None):
    gradient = gradients(step, (16, 4)) if gradient is None else gradient
    tensors = {} if reference is None else {"audit.reference": reference}
    fields = {"gradient_of": step} | ({} if reference is None else {"audit.row": row})
    return Frame(Kind.STEP, request, fields, {"gradient": gradient, **tensors})


@pytest.mark.parametrize("in_flight", [1, 2])
def test_the_clean_gradient_is_followed_to_every_layer_of_the_partys_own_model(in_flight):
    attack = RecordingAttack("reference")
    party = make_attacked(layers=("cut", "first", "2"), in_flight=in_flight, attacks=[attack])
    for step in range(in_flight):
        party.handle(Frame(Kind.STEP, step, {"gradient_of": -1}))
    model = make_attacked(attacks=[attack]).bottom  # a model with the same weights
    x = TABLE.party("a").train.gather(SCHEDULE.train_batch(0)[3:4])[0]
    first = model[1](model[0](x))
    second = model[2](first)
    clean = gradients(9, (4,))
    expected = torch.autograd.grad(model[4](model[3](second)), (first, second), clean[None])
    party.handle(answer(0, in_flight, reference=clean))
    found = {layer: side.tensor("reference") for layer, side in attack.received}
    assert torch.equal(found["cut"], clean)
    torch.testing.assert_close(found["first"], expected[0][0])
    torch.testing.assert_close(found["2"], expected[1][0])
    assert all(side.left_out.tolist() == [3] for _, side in attack.received)


@pytest.mark.parametrize("in_flight", [1, 2])
def test_where_no_defense_changed_it_the_batchs_own_pass_gives_the_clean_gradient_at_every_layer(in_flight):
    attack = RecordingAttack("reference")
    party = make_attacked(layers=("cut", "first", "2"), in_flight=in_flight, attacks=[attack])
    for step in range(in_flight):
        party.handle(Frame(Kind.STEP, step, {"gradient_of": -1}))
    received = gradients(0, (16, 4))
    party.handle(answer(0, in_flight, reference=received[3], gradient=received))
    of_batch = party.observer.view.transcript.last.gradients
    assert len(attack.received) == 3
    for layer, side in attack.received:
        assert torch.equal(side.tensor("reference"), of_batch[layer][3])
        assert side.left_out.tolist() == [3]


def test_at_the_cut_alone_the_clean_gradient_is_used_as_it_is():
    attack = RecordingAttack("reference")
    party = make_attacked(layers=("cut",), attacks=[attack])
    party.handle(Frame(Kind.STEP, 0, {"gradient_of": -1}))
    party.handle(answer(0, 1, reference=torch.ones(4)))
    assert [(layer, side.tensor("reference").tolist()) for layer, side in attack.received] == [("cut", [1.0] * 4)]


class Functional(nn.Module):
    """Uses dropout as a function, which no module of the model shows."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(6, 8), nn.Linear(8, 4)

    def forward(self, x):
        return self.second(nn.functional.dropout(torch.tanh(self.first(x)), 0.5, self.training))


class Counting(nn.Module):
    """Counts its passes in a buffer."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(6, 8), nn.Linear(8, 4)
        self.register_buffer("passes", torch.zeros(()))

    def forward(self, x):
        self.passes += 1
        return self.second(torch.tanh(self.first(x)))


MIXERS = {
    "traces": Counting,
    "batch norm": lambda: nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 4)),
    "batch norm without memory": lambda: nn.Sequential(
        nn.Linear(6, 8), nn.BatchNorm1d(8, track_running_stats=False), nn.Tanh(), nn.Linear(8, 4)
    ),
    "dropout": lambda: nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Dropout(0.5), nn.Linear(8, 4)),
    "functional dropout": Functional,
}


@pytest.fixture
def own_draws():
    """A fixed global seed: once in 256 draws a row alone drops the same 8 units as in its batch."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


@pytest.mark.parametrize("in_flight", [1, 2])
@pytest.mark.parametrize("mixer", MIXERS)
def test_where_rows_depend_on_each_other_or_on_chance_the_graph_of_the_batch_is_followed(mixer, in_flight, own_draws):
    attack, seen = RecordingAttack("reference"), []
    with seeded_initialisation(3):
        bottom = MIXERS[mixer]()
    party = make_attacked(bottom=bottom, attacks=[attack], in_flight=in_flight, layers=("cut", "first"))
    look, passed = party.observer.before_backward, []
    watched_layers(bottom)["first"].register_forward_hook(lambda module, inputs, output: passed.append(output))

    def spy(observation):
        clean = torch.zeros(16, 4)
        clean[3] = gradients(9, (4,))
        seen.append(torch.autograd.grad(observation.output, passed[-1], clean, retain_graph=True)[0][3])
        look(observation)

    party.observer.before_backward = spy
    for step in range(in_flight):
        party.handle(Frame(Kind.STEP, step, {"gradient_of": -1}))
    for step in range(2):
        party.handle(answer(step, step + in_flight, reference=gradients(9, (4,))))
    references = [side.tensor("reference") for layer, side in attack.received if layer == "first"]
    assert len(references) == 2
    assert all(torch.equal(a, b) for a, b in zip(references, seen, strict=True))
    assert not party.observer._rows_independent


@pytest.mark.parametrize("in_flight", [1, 2])
@pytest.mark.parametrize("mixer", [None, *MIXERS])
def test_a_clean_gradient_changes_neither_weights_nor_the_transcript(mixer, in_flight):
    def train(clean):
        with torch.random.fork_rng(), seeded_initialisation(3):
            party = make_attacked(
                layers=("first",) if mixer else ("first", "2"),
                bottom=MIXERS[mixer]() if mixer else None,
                in_flight=in_flight,
            )
            torch.manual_seed(1)
            for step in range(in_flight):
                party.handle(Frame(Kind.STEP, step, {"gradient_of": -1}))
            for step in range(4):
                reference = gradients(step + 50, (4,)) if clean else None
                party.handle(answer(step, step + in_flight, reference=reference))
                yield from party.observer.view.transcript.last.gradients.values()
            yield from party.bottom.state_dict().values()

    assert all(torch.equal(a, b) for a, b in zip(list(train(True)), list(train(False)), strict=True))


def test_a_deployed_attacker_refuses_a_clean_gradient():
    party = make_attacked(simulation=False)
    party.handle(Frame(Kind.STEP, 0, {"gradient_of": -1}))
    with pytest.raises(ProtocolError, match="a deployment refuses it"):
        party.handle(answer(0, 1, reference=torch.ones(4)))


@pytest.mark.parametrize(
    ("row", "reference", "reason"),
    [
        (16, torch.ones(4), "row 16 came, the batch has 16"),
        (-1, torch.ones(4), "row -1 came"),
        (0, torch.ones(5), r"must be float32 \(4,\)"),
        (0, torch.full((4,), math.nan), "not finite"),
    ],
)
def test_a_clean_gradient_that_does_not_fit_is_refused_and_changes_no_weight(row, reference, reason):
    party = make_attacked()
    party.handle(Frame(Kind.STEP, 0, {"gradient_of": -1}))
    before = [p.clone() for p in party.bottom.parameters()]
    with pytest.raises(ProtocolError, match=reason):
        party.handle(answer(0, 1, row=row, reference=reference))
    assert all(torch.equal(a, b) for a, b in zip(before, party.bottom.parameters(), strict=True))
    party.handle(answer(0, 1, reference=torch.ones(4)))


def test_a_layer_that_does_not_exist_is_refused_with_those_that_do():
    with pytest.raises(ConfigError, match=r"'frist', which the model of party 'a'.*did you mean 'first'.* 0, 1, 2, 3"):
        make_attacked(layers=("cut", "frist"))


def test_a_layer_without_a_gradient_is_refused():
    class Aside(nn.Module):
        def __init__(self):
            super().__init__()
            self.used, self.unused = nn.Linear(6, 4), nn.Linear(6, 4)

        def forward(self, x):
            return self.used(x)

    party = make_attacked(layers=("unused",), bottom=Aside())
    party.handle(Frame(Kind.STEP, 0, {"gradient_of": -1}))
    with pytest.raises(ConfigError, match=r"no gradient at unused.*attack\.layers"):
        party.handle(answer(0, 1))
