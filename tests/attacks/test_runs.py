"""Attacks in whole runs: equal on every transport, bad input is refused, and a deployment sends no audit data."""

from __future__ import annotations

import itertools
import json
import math
import time

import pytest
import torch
from torch import nn

from flower_vfl.apps import run
from flower_vfl.apps.client_app import make_client_app
from flower_vfl.apps.local_grid import LocalGrid
from flower_vfl.apps.result import RunResult
from flower_vfl.attacks import Attack, make_attacks
from flower_vfl.attacks.base import NOTHING
from flower_vfl.auditing.attacker import Attacker
from flower_vfl.auditing.audit_labels import AuditLabels
from flower_vfl.config import build_config
from flower_vfl.errors import ConfigError, PartyError
from flower_vfl.protocol.frame import Kind
from flower_vfl.protocol.schedule import is_scored
from flower_vfl.strategies import Iso, VerticalStrategy
from flower_vfl.strategies.gradients.base import GradientDefense
from flower_vfl.tracking import read_steps
from flower_vfl.training.outcome import Outcome
from flower_vfl.transport.wire import MOST_UNCONFIRMED
from tests.attacks.common import RecordingAttack
from tests.cases import parametrize
from tests.grids import DeployedGrid
from tests.toys import toy_config, toy_data

ALL = ["norm", "cosine", "inner_product", "direction_count", "hint(k=1)", "hint(k=3,measure=cosine)"]


@pytest.mark.parametrize("parties", [1, 2])
def test_a_defense_that_overwrites_the_gradients_does_not_change_the_clean_copy(parties):
    class Eraser(GradientDefense):
        name = "eraser"
        params = {}  # noqa: RUF012

        def perturb(self, g, y):
            return g.mul_(0.0), {}

    config = toy_config(training={"epochs": 1}, attack={"names": ["norm"]})
    data = toy_data(rows=200, parties=parties)
    strategy = Eraser(VerticalStrategy(nn.Linear(8 * parties, 1), data.labels(), parties=data.parties, config=config))
    strategy.start(LocalGrid(make_client_app(data=lambda _: data, config=config), parties, {}))
    means = {e["defended"]: e["mean"] for e in strategy.base.outcome.leakage if e["source"] == "monitor"}
    assert means[True] == 0.5
    assert means[False] != 0.5


class Known(Attack):
    """Knows the labels of a few rows, of which a batch may have none."""

    name = "known"
    needs = frozenset({"labels"})
    leaks = 1

    def score(self, transcript, layer, side=NOTHING):
        return side.tensor("labels").double()


def test_batches_without_a_row_whose_label_an_attack_knows_are_scored():
    attack = {"names": [f"{__name__}:Known"]}
    config = toy_config(training={"epochs": 1, "batch_size": 16}, attack=attack)
    (entry, *_) = run(config, data=lambda _: toy_data(rows=200)).summary["leakage"]
    assert entry["one_class_steps"] < entry["steps"]
    assert entry["mean"] == 0.5  # known rows do not count


def entries_of(summary):
    return {
        (entry["source"], entry["defended"], entry["layer"], entry["label"], entry["party"]): entry
        for entry in summary["leakage"]
    }


@parametrize("kind", ["inproc", "stream", "messages"], quick=1)
@pytest.mark.parametrize("shape", [(6,), (2, 6, 6)], ids=["vectors", "feature maps"])
def test_a_simulated_run_scores_every_attack_at_every_layer_and_at_the_monitor(kind, shape, tmp_path):
    data = toy_data(rows=300, shape=shape)
    config = toy_config(attack={"names": ALL}, transport={"kind": kind}, training={"epochs": 1})
    config = config.model_copy(update={"defenses": [{"name": "iso", "t": 0.01}]})
    result = run(config, data=lambda _: data, out=tmp_path / "run")
    entries = entries_of(result.summary)
    views = [
        ("attacker", True, "cut"),
        ("attacker", True, "first"),
        ("monitor", True, "cut"),
        ("monitor", False, "cut"),
    ]
    expected = {(*view, label, party) for view in views for label in ALL for party in "ab"}
    expected |= {(*view, label, "a+b") for view in views[2:] for label in ALL}
    expected |= {("monitor", True, "cut", "conditional_oracle", party) for party in ("a", "b", "a+b")}
    assert set(entries) == expected
    assert all(entry["steps"] == 5 and entry["q95"] is not None for entry in entries.values())
    for party, label in itertools.product("ab", ALL):
        seen, sent = (entries[source, True, "cut", label, party] for source in ("attacker", "monitor"))
        assert (seen["mean"], seen["q95"]) == (sent["mean"], sent["q95"])  # both attack the same numbers
    # Little noise, few steps: the oracle reads the direction from sent and from clean gradients.
    cosines = [entries[source, defended, "cut", "cosine", "a"]["mean"] for source, defended, _ in views[2:]]
    assert min(cosines) > 0.7
    table = read_steps(tmp_path / "run")
    assert set(ALL) <= set(table["attack"].to_pylist())
    json.dumps(result.summary)


@pytest.mark.parametrize("defenses", [[], [{"name": "iso", "params": {}}]])
def test_the_leak_of_a_run_is_that_of_the_sent_gradients(defenses):
    entry = {"layer": "cut", "source": "monitor", "attack": "norm"}
    leakage = [{**entry, "defended": True, "q95": 0.6}] if defenses else []
    leakage += [{**entry, "defended": False, "q95": 0.9}, {**entry, "phase": "inference", "defended": True, "q95": 1.0}]
    leakage += [{**entry, "phase": "inference", "defended": False, "q95": 1.0}]
    result = RunResult("finished", {"defenses": defenses, "leakage": leakage}, Outcome())
    assert result.leak(source="monitor") == (0.6 if defenses else 0.9)


def test_attacks_with_side_information_change_no_weight():
    data = toy_data()
    attacked = run(toy_config(attack={"names": ALL}, model={"dropout": 0.2}), data=lambda _: data)
    plain = run(toy_config(attack={"names": []}, model={"dropout": 0.2}), data=lambda _: data)
    assert attacked.summary["weights"] == plain.summary["weights"]


def test_all_transports_measure_the_same():
    data = toy_data(rows=300)
    measured = [
        run(toy_config(attack={"names": ALL}, transport={"kind": kind}), data=lambda _: data).summary["leakage"]
        for kind in ("inproc", "stream", "messages")
    ]
    assert measured[0] == measured[1] == measured[2]


@parametrize("kind", ["inproc", "stream", "messages"], quick=1)
def test_scorers_get_the_labels_of_a_table_of_any_size_as_fast_as_they_take_them(kind, monkeypatch):
    data, config = toy_data(), toy_config(attack={"names": ["norm"]}, transport={"kind": kind})
    expected = run(config, data=lambda _: data).summary["leakage"]
    answer = Attacker.answer

    def slowly(attacker, frame):
        time.sleep(0.001)
        return answer(attacker, frame)

    monkeypatch.setattr(Attacker, "answer", slowly)
    monkeypatch.setattr(AuditLabels, "PIECE", 1)
    assert len(data.labels().train) > 2 * MOST_UNCONFIRMED
    assert run(config, data=lambda _: data).summary["leakage"] == expected


def test_named_layers_are_scored():
    data = toy_data(rows=200, parties=1)
    config = toy_config(attack={"names": ["norm"], "layers": ["first"], "monitor": False}, training={"epochs": 1})
    result = run(config, data=lambda _: data)
    assert [entry["layer"] for entry in result.summary["leakage"]] == ["first"]
    with pytest.raises((ConfigError, PartyError), match=r"'last'.*cut.*first"):
        run(toy_config(attack={"layers": ["last"]}), data=lambda _: data)


def deployed(client_app, parties):
    nodes = [{"party": party, "train-epochs": 99, "partition-id": 0, "out": ""} for party in parties]
    return DeployedGrid(nodes, {}, client_app)


def start(grid_of, config, data):
    strategy = Iso(
        VerticalStrategy(
            lambda shape: nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), 1)),
            data.labels(),
            parties=data.parties,
            config=config,
        ),
        t=1.0,
    )
    strategy.start(grid_of(make_client_app(data=lambda _: data, config=config)))
    return strategy.base.outcome


@pytest.mark.parametrize("kind", ["stream", "messages"])
def test_a_deployment_sends_no_clean_gradient_and_no_label_whatever_attacks_are_named(
    kind, frames, tmp_path, monkeypatch
):
    monkeypatch.setenv("FLOWER_VFL_STATE", str(tmp_path))
    data = toy_data(rows=200)
    config = toy_config(attack={"names": ALL, "audit": True}, transport={"kind": kind}, training={"epochs": 1})
    outcome = start(lambda client: deployed(client, data.parties), config, data)
    steps = [frame for frame in frames if frame.kind is Kind.STEP]
    assert len(steps) >= 8
    assert not [frame for frame in frames if frame.kind is Kind.AUDIT]
    for frame in frames:
        assert not [name for name in (*frame.fields, *frame.tensors) if "audit" in name]
        assert set(frame.tensors) <= {"gradient"}
    assert {entry["source"] for entry in outcome.leakage} == {"monitor"}
    assert {entry["label"] for entry in outcome.leakage} == set(ALL)


def test_a_simulation_sends_references_to_attackers_only_and_only_on_request(frames):
    data = toy_data(rows=200)

    def steps_with_reference(**attack):
        frames.clear()
        config = toy_config(attack=attack, parties={"features": ["a", "b"], "attackers": ["a"]}, training={"epochs": 1})
        start(lambda client: LocalGrid(client, 2, {}), config, data)
        return sum("audit.reference" in frame.tensors for frame in frames)

    assert steps_with_reference(names=ALL) == 3  # one party, three steps
    assert steps_with_reference(names=ALL, every=2) == sum(is_scored(step, 2) for step in range(3))
    assert steps_with_reference(names=["norm", "hint(k=1)"]) == 0
    assert steps_with_reference(names=ALL, audit=False) == 0


@pytest.mark.parametrize(
    ("names", "reason"),
    [
        (["hint(k=0)"], "k is 0"),
        (["hint(k=many)"], "k is 'many'"),
        (["hint(measure=euclid)"], "did you mean|Allowed: cosine, distance, inner"),
        (["hint(k=64)"], r"a batch has 64 rows.*63 at most: lower k"),
        (["hint(k=500)"], r"of the training rows are positive"),
        (["norm(k=1)"], "norm"),
        (["norm", "norm()"], "'norm' is named twice"),
        (["hint", "hint(k=5,measure=inner)"], "'hint' is named twice"),
        (["hint(k=5"], r"attack\.names.*not understood"),
        (["hint(5)"], r"attack\.names.*no key=value"),
        (["hint(k=1,k=2)"], r"attack\.names.*'k' is given twice"),
        (["cosin"], "did you mean 'cosine'"),
    ],
)
def test_bad_attacks_are_refused_before_anything_starts(names, reason, tmp_path):
    config = toy_config(attack={"names": names})
    with pytest.raises(ConfigError, match=reason):
        run(config, data=lambda _: toy_data(), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_hints_that_outnumber_the_positives_of_the_data_are_refused():
    labels = torch.tensor([0] * 50 + [1] * 3)
    config = toy_config(attack={"names": ["hint(k=3)"]})
    with pytest.raises(ConfigError, match=r"3 of the training rows are positive.*2 at most"):
        VerticalStrategy(nn.Linear(2, 1), labels, config=config)
    VerticalStrategy(nn.Linear(2, 1), labels, config=toy_config(attack={"names": ["hint(k=2)"]}))


def test_side_information_that_does_not_exist_is_refused():
    from flower_vfl.auditing.evaluator import check_side_information

    with pytest.raises(ConfigError, match=r"needs \['truth'\]; there is only reference, hints"):
        check_side_information([RecordingAttack("truth")], positives=10, batch_size=10)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("norm,hint(k=5,measure=inner)", ["norm", "hint(k=5,measure=inner)"]),
        ("hint(k=1)", ["hint(k=1)"]),
        ('["norm", "hint(k=5,measure=inner)"]', ["norm", "hint(k=5,measure=inner)"]),
        ("[norm, hint(k=5, measure=inner), cosine]", ["norm", "hint(k=5, measure=inner)", "cosine"]),
        ("", []),
    ],
)
def test_attacks_with_parameters_are_read_from_the_command_line(text, names):
    config = build_config({}, {"attack.names": text})
    assert config.attack.names == names
    assert [attack.label.split("(")[0] for attack in make_attacks(config.attack.calls)] == [
        name.split("(")[0] for name in names
    ]


def test_where_a_defense_changes_labels_alone_there_are_no_gradients_before_the_change():
    """Those would be computed from changed labels, and show that the defense does nothing."""
    given = toy_config(training={"epochs": 1}, attack={"names": ["norm"]}, defenses=[{"name": "label_dp", "flip": 0.3}])
    monitored = [e for e in run(given, data=lambda _: toy_data()).summary["leakage"] if e["source"] == "monitor"]
    assert {entry["defended"] for entry in monitored} == {True}
