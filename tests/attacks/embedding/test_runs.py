"""Attacks on the trained model in whole runs: scored on every transport, harmless to it, refused where impossible."""

from __future__ import annotations

import dataclasses
import itertools
import json

import numpy as np
import pytest
import torch
from torch import nn

from flower_vfl.apps import run, training_client
from flower_vfl.apps.client_app import make_client_app
from flower_vfl.apps.local_grid import LocalGrid
from flower_vfl.attacks.embedding import clustering, spectral
from flower_vfl.data.store.dataset import Labels
from flower_vfl.errors import ConfigError
from flower_vfl.metrics import leak_auc
from flower_vfl.protocol.frame import Kind
from flower_vfl.strategies import Iso, VerticalStrategy
from flower_vfl.tracking import read_steps
from tests.attacks.test_runs import deployed
from tests.cases import parametrize
from tests.toys import mixed_data, toy_config, toy_data

ALL = ["spectral", "clustering", "model_completion(k=2,draws=2)"]
UNSUPERVISED = ["clustering", "model_completion(k=2,draws=2)"]


def entries_of(summary, phase="inference"):
    """Return the entries of a phase by source, layer, label and party."""
    entries = [entry for entry in summary["leakage"] if entry["phase"] == phase]
    found = {(entry["source"], entry["layer"], entry["label"], entry["party"]): entry for entry in entries}
    assert len(found) == len(entries)
    return found


@parametrize("shape", [(6,), (2, 6, 6)], ids=["vectors", "feature maps"], quick=1)
def test_a_simulated_run_reads_the_trained_model_at_every_layer_and_the_monitor_at_the_cut(shape):
    data = toy_data(rows=200, test_rows=60, shape=shape)
    config = toy_config(attack={"names": [*ALL, "norm"]}, training={"epochs": 2})
    config = config.model_copy(update={"defenses": [{"name": "iso", "t": 0.01}]})
    summary = run(config, data=lambda _: data).summary
    entries = entries_of(summary)
    attackers = set(itertools.product(["attacker"], ["cut", "first"], ALL, "ab"))
    assert set(entries) == attackers | set(itertools.product(["monitor"], ["cut"], ALL[:2], ["a", "b", "a+b"]))
    for (source, _, label, _), entry in entries.items():
        assert entry["metric"] == ("auc" if label == "spectral" else "accuracy")
        assert entry["defended"]
        assert entry["steps"] == (2 if "completion" in label else 1)
        assert entry["interval95"][0] <= entry["mean"] <= entry["interval95"][1]
        assert (entry["q95_null"] is None) == (entry["metric"] == "accuracy")
        assert (entry["baseline"] is None) == (source == "monitor")
        if source == "attacker":
            assert entry["advantage"] == pytest.approx(entry["mean"] - entry["baseline"])
            protected = None if label == "spectral" else entry["advantage"] <= 0
            assert entry["perfect_protection"] is protected
    for party in "ab":  # both read the same embeddings
        seen, sent = (entries[source, "cut", "spectral", party] for source in ("attacker", "monitor"))
        assert seen["mean"] == sent["mean"]
    json.dumps(summary, allow_nan=False)


def test_while_training_spectral_is_scored_at_every_layer_and_once_whatever_is_sent():
    data = toy_data(rows=200, test_rows=60)
    config = toy_config(attack={"names": ["spectral"]}, training={"epochs": 1})
    config = config.model_copy(update={"defenses": [{"name": "iso", "t": 0.01}]})
    entries = entries_of(run(config, data=lambda _: data).summary, "train")
    assert {(source, layer) for source, layer, _, _ in entries} == {
        ("attacker", "cut"),
        ("attacker", "first"),
        ("monitor", "cut"),
    }
    assert all(entry["defended"] for entry in entries.values())
    assert entries["attacker", "cut", "spectral", "a"]["mean"] == entries["monitor", "cut", "spectral", "a"]["mean"]


class CollectedBottom(nn.Module):
    """Bottom model whose instances are collected in `made`."""

    made: list[CollectedBottom] = []  # noqa: RUF012

    def __init__(self, spec, config):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(spec.numeric, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.5))
        self.last = nn.Linear(8, config.model.cut)
        self.made.append(self)

    def forward(self, x):
        return self.last(self.layers(x))


def test_what_is_scored_are_the_embeddings_of_the_trained_model_in_evaluation_mode():
    CollectedBottom.made.clear()
    data = toy_data(rows=200, test_rows=60, parties=1)
    config = toy_config(attack={"names": ["spectral", "clustering"]}, training={"epochs": 1})
    entries = entries_of(run(config, data=lambda _: data, bottom=CollectedBottom).summary)
    model, labels = CollectedBottom.made[0].eval(), data.target.test
    with torch.no_grad():
        z = model(*data.party("a").test.gather(np.arange(60)))
        first = model.layers[:3](*data.party("a").test.gather(np.arange(60)))
    aucs = [leak_auc(spectral.score(output), labels) for output in (z, first)]
    assert [entries["attacker", layer, "spectral", "a"]["mean"] for layer in ("cut", "first")] == aucs
    accuracy = clustering.accuracy(z, labels, classes=2, seed=0)
    assert entries["attacker", "cut", "clustering", "a"]["mean"] == pytest.approx(accuracy, abs=0.05)


@pytest.mark.slow
@pytest.mark.parametrize("classes", [2, 4])
def test_attacking_the_trained_model_changes_no_weight(classes):
    data = toy_data(rows=200, test_rows=60, classes=classes)
    weights = []
    for names in (UNSUPERVISED if classes > 2 else ALL, []):
        config = toy_config(attack={"names": names}, training={"epochs": 1})
        weights.append(run(config, data=lambda _: data, bottom=CollectedBottom).summary["weights"])
    assert weights[0] == weights[1]


def test_the_global_generator_is_left_where_it_was():
    before = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    data = toy_data(rows=200, test_rows=60)
    run(toy_config(attack={"names": ALL}, training={"epochs": 1}), data=lambda _: data, bottom=CollectedBottom)
    assert torch.equal(before[0], torch.get_rng_state())
    assert np.array_equal(before[1], np.random.get_state()[1])  # noqa: NPY002


@pytest.mark.slow
def test_all_transports_read_the_same_and_end_with_the_same_weights():
    data = mixed_data(rows=200, test_rows=60)
    found = []
    for kind in ("inproc", "stream", "messages"):
        config = toy_config(
            attack={"names": ALL}, transport={"kind": kind}, training={"epochs": 1}, model={"dropout": 0.2}
        )
        summary = run(config, data=lambda _: data).summary
        found.append((summary["leakage"], summary["weights"]))
    assert found[0] == found[1] == found[2]
    assert len(found[0][0]) > 10


def test_a_party_restored_from_disk_for_each_message_gives_the_same_entries(monkeypatch):
    data = toy_data(rows=200, test_rows=60, parties=1)
    config = toy_config(attack={"names": ALL}, transport={"kind": "messages"}, training={"epochs": 1})
    leakage = run(config, data=lambda _: data).summary["leakage"]
    real = training_client.TrainingClient.frames

    def frames(self, message, context):
        self._live.clear()
        return real(self, message, context)

    monkeypatch.setattr(training_client.TrainingClient, "frames", frames)
    assert run(config, data=lambda _: data).summary["leakage"] == leakage
    assert len(entries_of({"leakage": leakage})) == 8


@pytest.mark.slow
def test_more_than_two_classes_are_clustered_and_completed():
    data = toy_data(rows=400, test_rows=120, classes=4, parties=1)
    config = toy_config(attack={"names": UNSUPERVISED}, training={"epochs": 2})
    summary = run(config, data=lambda _: data).summary
    entries = entries_of(summary)
    assert {label for _, _, label, _ in entries} == set(UNSUPERVISED)
    assert not entries_of(summary, "train")
    assert all(0.25 <= entry["chance"] < 0.5 for entry in entries.values())
    assert summary["utility"]["last"]["test_macro_auc"] > 0.5
    assert summary["utility"]["last"]["test_auc"] is None


@pytest.mark.parametrize("classes", [2, 4])
def test_learned_readers_read_every_layer_and_the_raw_inputs_at_attackers_only(classes):
    names = [f"embedding_reader(reader={reader},k=4,draws=2)" for reader in ("linear", "quadratic", "network")]
    data = mixed_data() if classes == 2 else toy_data(rows=400, test_rows=120, classes=4, parties=1)
    config = toy_config(attack={"names": names}, training={"epochs": 2})
    entries = entries_of(run(config, data=lambda _: data).summary)
    assert {(source, layer) for source, layer, _, _ in entries} == {("attacker", "cut"), ("attacker", "first")}
    assert {entry["params"]["reader"] for entry in entries.values()} == {"linear", "quadratic", "network"}
    for entry in entries.values():
        assert set(entry["measures"]) == {"accuracy", "balanced_accuracy", "auc"}
        assert entry["steps"] == 2
        for measure in entry["measures"].values():
            assert measure["advantage"] == pytest.approx(measure["mean"] - measure["baseline"])
            assert measure["interval95"][0] <= measure["mean"] <= measure["interval95"][1]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("classes", "defense"),
    [(2, "max_norm"), (2, "potential_energy"), (4, "iso"), (4, "potential_energy"), (4, "label_dp")],
)
def test_defended_runs_without_attacks_on_training_steps_are_attacked_once_trained(classes, defense):
    data = toy_data(rows=200, test_rows=60, classes=classes)
    config = toy_config(attack={"names": UNSUPERVISED}, training={"epochs": 1}, defenses=[{"name": defense}])
    entries = entries_of(run(config, data=lambda _: data).summary)
    monitored = set(itertools.product(["monitor"], ["cut"], ["clustering"], ["a", "b", "a+b"]))
    assert set(entries) == monitored | set(itertools.product(["attacker"], ["cut", "first"], UNSUPERVISED, "ab"))


@parametrize("missing", ["test", "both"], quick=1)
def test_a_class_that_never_occurs_is_counted_and_no_number_becomes_nan(missing):
    """The data has four classes; the last one has no test row, or no row at all."""
    data = toy_data(rows=200, test_rows=60, classes=4, parties=1)
    train, test = data.target.train, np.minimum(data.target.test, 2)
    data = with_labels(data, train if missing == "test" else np.minimum(train, 2), test)
    names = UNSUPERVISED if missing == "test" else ["clustering"]
    defenses = [{"name": "potential_energy"}, {"name": "distance_correlation"}, {"name": "label_dp", "flip": 0.1}]
    config = toy_config(attack={"names": names}, training={"epochs": 1}, defenses=defenses)
    summary = run(config, data=lambda _: data).summary
    for entry in entries_of(summary).values():
        assert 0.0 < entry["mean"] <= 1.0
        assert "unavailable" not in entry
    last = summary["utility"]["last"]
    assert all(last[name] is not None for name in ("test_macro_auc", "test_accuracy", "test_loss", "test_ace"))
    json.dumps(summary, allow_nan=False)


@pytest.mark.parametrize("kind", ["stream", "messages"])
def test_a_deployment_reads_trained_models_at_the_monitor_only_and_no_label_leaves(
    kind,
    frames,
    tmp_path,
    monkeypatch,
):
    monkeypatch.setenv("FLOWER_VFL_STATE", str(tmp_path))
    data = toy_data(rows=200, test_rows=60)
    config = toy_config(attack={"names": ALL, "audit": True}, transport={"kind": kind}, training={"epochs": 1})
    strategy = VerticalStrategy(
        lambda shape: nn.Linear(shape[0], 1), data.labels(), parties=data.parties, config=config
    )
    Iso(strategy, t=1.0).start(deployed(make_client_app(data=lambda _: data, config=config), data.parties))
    assert not [frame for frame in frames if frame.kind is Kind.AUDIT]
    entries = entries_of({"leakage": strategy.outcome.leakage})
    assert set(entries) == set(itertools.product(["monitor"], ["cut"], ALL[:2], ["a", "b", "a+b"]))


@pytest.mark.parametrize(("names", "tables"), [(["norm"], {"train"}), (ALL, {"train", "test"})])
def test_labels_of_the_test_rows_go_to_scorers_that_need_them(names, tables, frames):
    data = toy_data(rows=100, test_rows=60)
    config = toy_config(attack={"names": names}, parties={"attackers": ["b"]}, training={"epochs": 1})
    strategy = VerticalStrategy(
        lambda shape: nn.Linear(shape[0], 1), data.labels(), parties=data.parties, config=config
    )
    strategy.start(LocalGrid(make_client_app(data=lambda _: data, config=config), 2, {}))
    audits = [frame for frame in frames if frame.kind is Kind.AUDIT]
    assert {frame.fields["table"] for frame in audits} == tables
    assert len(audits) == len(tables)  # one attacker, small tables


def test_without_the_audit_channel_attackers_score_nothing():
    data = toy_data(rows=100, test_rows=60)
    config = toy_config(attack={"names": ALL, "audit": False}, training={"epochs": 1})
    assert {source for source, _, _, _ in entries_of(run(config, data=lambda _: data).summary)} == {"monitor"}


def with_labels(data, train, test):
    return dataclasses.replace(data, target=Labels(np.asarray(train), np.asarray(test), data.target.classes))


@pytest.mark.parametrize(
    ("names", "rare", "reason"),
    [
        (
            ["model_completion(k=3)"],
            2,
            r"3 labelled examples of each class.*of class 2 the training rows have 2: lower k",
        ),
        (["model_completion(k=1)"], 0, "of class 2 the training rows have none"),
        (["norm", "spectral"], 9, "spectral can tell two classes in embeddings, this data has 3; take clustering"),
        (["model_completion(k=0)"], 9, "k is 0"),
        (["model_completion(k=1,rounds=2)"], 9, "rounds"),
        (["clustering", "clustering(normalise=false)"], 9, "'clustering' is named twice"),
    ],
)
def test_attacks_that_cannot_be_run_are_refused_before_anything_starts(names, rare, reason, tmp_path):
    data = toy_data(rows=60, test_rows=30, classes=3)
    data = with_labels(data, np.where(np.arange(60) < rare, 2, np.arange(60) % 2), data.target.test)
    with pytest.raises(ConfigError, match=reason):
        run(toy_config(attack={"names": names}), data=lambda _: data, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_without_test_rows_there_is_nothing_to_attack():
    config = toy_config(attack={"names": ["clustering"]})
    with pytest.raises(ConfigError, match="this data has none"):
        VerticalStrategy(nn.Linear(2, 1), torch.arange(20) % 2, config=config)
    VerticalStrategy(nn.Linear(2, 1), torch.arange(20) % 2, config=toy_config(attack={"names": ["spectral"]}))


def test_a_limit_that_nothing_measures_is_refused():
    data = toy_data(rows=60, test_rows=30)
    with pytest.raises(ConfigError, match="attacks on the gradients of training: name one, such as norm"):
        run(toy_config(attack={"names": ["clustering"], "max_leak": 0.9}), data=lambda _: data)


class TopForCutOnly(nn.Module):
    """A user's own top model, whose input width is that of the cut."""

    def __init__(self, shape, classes, config):
        super().__init__()
        self.last = nn.Linear(config.model.cut, 1)

    def forward(self, z):
        return self.last(z).squeeze(1)


def test_a_layer_that_the_top_model_does_not_fit_is_reported_and_the_others_are_attacked():
    data = toy_data(rows=200, test_rows=60, parties=1)
    config = toy_config(attack={"names": ["model_completion(k=2,draws=2)"]}, training={"epochs": 1})
    config = config.model_copy(update={"model": config.model.model_copy(update={"bottom": [7], "cut": 5})})
    entries = entries_of(run(config, data=lambda _: data, top=TopForCutOnly).summary)
    cut, first = (entries["attacker", layer, "model_completion(k=2,draws=2)", "a"] for layer in ("cut", "first"))
    assert cut["mean"] is not None
    assert "unavailable" not in cut
    assert (first["mean"], first["advantage"], first["one_class_steps"]) == (None, None, 2)
    assert "shape" in first["unavailable"]


def test_a_log_holds_every_draw_of_every_party_and_its_mean_is_that_of_the_result(tmp_path):
    data = toy_data(rows=200, test_rows=60)
    config = toy_config(attack={"names": ALL}, training={"epochs": 2})
    summary = run(config, data=lambda _: data, out=tmp_path / "run").summary
    steps = read_steps(tmp_path / "run").to_pylist()
    trained = summary["cost"]["steps"]
    for (source, layer, label, party), entry in entries_of(summary).items():
        for measure, found in entry["measures"].items():
            metric = ("monitor_" if source == "monitor" else "") + f"inference_{measure}"
            fields = {"party": party, "layer": layer, "attack": label, "metric": metric}
            rows = [row for row in steps if fields.items() <= row.items()]
            assert [row["step"] for row in rows] == [trained + draw for draw in range(entry["steps"])]
            assert np.mean([row["value"] for row in rows]) == pytest.approx(found["mean"])
            if source == "attacker":
                fields |= {"layer": "", "metric": f"baseline_{measure}"}
                baselines = [row["value"] for row in steps if fields.items() <= row.items()]
                assert np.mean(baselines) == pytest.approx(found["baseline"])


@pytest.mark.parametrize("classes", [2, 4])
def test_utility_has_a_balanced_accuracy_beside_the_accuracy(classes):
    data = toy_data(rows=200, test_rows=60, classes=classes)
    last = run(toy_config(attack={"names": []}), data=lambda _: data).summary["utility"]["last"]
    assert {"test_balanced_accuracy", "validation_balanced_accuracy"} <= last.keys()
    assert 0 < last["test_balanced_accuracy"] <= 1
