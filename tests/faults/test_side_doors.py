"""Nothing that a feature party receives depends on the labels but what a defense has passed.

Each test runs twice with different labels and everything else equal. Gradients, which alone may depend on labels, come
from a defense that ignores them. All that leaves the label party must then be equal bit for bit: kinds, steps, fields,
tensors, sizes and order of frames, and the logs, errors and files of the parties.
"""

from __future__ import annotations

import re
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from flower_vfl.apps import label_party
from flower_vfl.config import build_config
from flower_vfl.data.store.dataset import Labels
from flower_vfl.data.store.memory import MemoryData
from flower_vfl.strategies.base import Defense
from flower_vfl.strategies.labels import label_dp, mechanisms
from flower_vfl.training.checkpointing import Checkpointing
from flower_vfl.training.loop import TrainingLoop
from flower_vfl.transport.sessions import Sessions
from tests.apps.alignment.common import people, write_people
from tests.cases import parametrize
from tests.faults.common import TRANSPORTS
from tests.faults.recording import Recorder, differences
from tests.toys import toy_data

ROWS, TEST_ROWS = 192, 64
DATA = toy_data(ROWS, TEST_ROWS, label_features=True)
BLIND = replace(DATA, target=Labels(np.zeros(ROWS, np.int64), np.zeros(TEST_ROWS, np.int64), 2))
GENERATOR = np.random.default_rng(5)
LABELS = {
    "true": DATA.target,
    "others": Labels(GENERATOR.integers(0, 2, ROWS), GENERATOR.integers(0, 2, TEST_ROWS), 2),
    "nearly all of one class": Labels(np.arange(ROWS) // 190, np.arange(TEST_ROWS) // 62, 2),
}
EVERYTHING = {
    "training": {"epochs": 3, "batch_size": 32, "eval_batch_size": 25, "validation": 0.25, "clip_norm": 1.0,
                 "class_weights": "balanced"},
    "model": {"bottom": [8], "cut": 4, "top": [8], "dropout": 0.1},
    "parties": {"label_features": True},
    "attack": {"names": ["norm", "cosine", "spectral"], "snapshots": [3], "max_leak": 0.6, "on_leak": "warn",
               "informed": 0},
    "checkpoint": {"every": 2},
}  # fmt: skip
DEFENSES = {
    "none": [],
    "marvell": [{"name": "marvell", "s": 1.0}],
    "marvell_full": [{"name": "marvell_full", "s": 1.0}],
    "iso and label_dp": [{"name": "iso", "t": 0.1}, {"name": "label_dp", "flip": 0.05}],
    "max_norm": [{"name": "max_norm"}],
    "potential_energy": [{"name": "potential_energy", "alpha": 0.5}],
    "distance_correlation": [{"name": "distance_correlation", "alpha": 0.5}],
}


def setup(transport="inproc", **sections):
    values = {**EVERYTHING, "transport": TRANSPORTS[transport]}
    for name, section in sections.items():
        values[name] = {**values.get(name, {}), **section} if isinstance(section, dict) else section
    return build_config(values)


class Frozen(Defense):
    """A defense whose gradients do not depend on the labels; at step `at` its loss is `then` of the loss."""

    name = "frozen"
    at, then = None, None

    def __init__(self, strategy):
        super().__init__(strategy)
        self.calls = 0

    @property
    def params(self):
        return {}

    def loss(self, logits, labels, z):
        value, log = self.strategy.loss(logits, labels, z)
        if self.calls == self.at:
            return self.then(value, labels), log
        return value, log

    def protect(self, grads, labels, step=None):
        _, log = self.strategy.protect(grads, labels, step)
        self.calls += 1
        return torch.sin(torch.arange(grads.numel()) + self.calls).view_as(grads) * 0.1, log


@pytest.fixture
def recorder(monkeypatch, tmp_path):
    return Recorder(monkeypatch, tmp_path)


@pytest.fixture
def frozen(monkeypatch):
    """Send gradients that do not depend on labels; return the class of the defense."""
    defend = label_party.defend
    monkeypatch.setattr(label_party, "defend", lambda strategy, entries: Frozen(defend(strategy, entries)))
    return Frozen


def record(recorder, config, *names):
    """Return recordings of a training with each of the named labels, by default with two."""
    return [recorder.train(config, replace(DATA, target=LABELS[name]), BLIND) for name in names or ("true", "others")]


@parametrize("transport", TRANSPORTS, quick=1)
def test_nothing_of_a_training_depends_on_labels_but_what_a_defense_has_passed(recorder, frozen, transport):
    one, *others = record(recorder, setup(transport, attack={"informed": ROWS}), *LABELS)
    assert not one.error
    assert [differences(one, other) for other in others] == [[], []]
    assert all(len(entries) > 20 for entries in one.parties.values())
    assert {path.partition("/")[0] for path in one.files} == {"a", "b"}
    assert any(path.endswith(".safetensors") for path in one.files)


@parametrize("defense", DEFENSES, quick=1)
def test_under_each_defense_nothing_else_depends_on_labels(recorder, frozen, defense):
    one, other = record(recorder, setup(defenses=DEFENSES[defense]), "true", "nearly all of one class")
    assert differences(one, other) == []
    assert not one.error


@parametrize("transport", TRANSPORTS, quick=1)
def test_without_a_defense_what_parties_receive_depends_on_labels(recorder, transport):
    one, other = record(recorder, setup(transport))
    found = differences(one, other)
    assert [text.partition(" ")[0] for text in found if "parties" in text] == ["a", "b"]


def test_with_flipped_labels_frozen_nothing_depends_on_the_true_ones(recorder, monkeypatch):
    """Label differential privacy: gradients, class weights and regularisers are all of the flipped labels."""
    flipped = torch.from_numpy(LABELS["nearly all of one class"].train)
    monkeypatch.setattr(label_dp, "flip", lambda labels, **_: flipped)
    defenses = [{"name": "label_dp", "flip": 0.1}, {"name": "potential_energy", "alpha": 0.5}]
    one, other = record(recorder, setup(defenses=defenses))
    assert differences(one, other) == []
    assert not one.error


@parametrize(("transport", "classes"), [("inproc", 3), ("stream", 2), ("messages", 2)], quick=1)
def test_with_randomised_labels_frozen_nothing_of_local_heads_depends_on_the_true_ones(
    recorder, monkeypatch, transport, classes
):
    """This holds with class weights, clipping, checkpoints, snapshots and a limit of the leak that warns."""
    drawn = torch.from_numpy(GENERATOR.integers(0, classes, ROWS))
    monkeypatch.setattr(mechanisms, "flip", lambda labels, **_: drawn.clone())
    config = setup(transport, defenses=[{"name": "local_head"}], attack={"names": ["norm"]}, training={"refit": 2})
    runs = []
    for name in ("true", "nearly all of one class"):
        labels = LABELS[name]
        target = Labels((labels.train + labels.train[::-1]) % classes, labels.test, classes)
        blind = replace(BLIND, target=Labels(BLIND.target.train, BLIND.target.test, classes))
        runs.append(recorder.train(config, replace(DATA, target=target), blind))
    assert differences(*runs) == []
    assert not runs[0].error
    assert all(len(entries) > 20 for entries in runs[0].parties.values())


STOPS = {
    "early stopping": (
        {"training": {"epochs": 6, "patience": 1}},
        ("true", "others"),
        ["keep", *["evaluate"] * 3],  # of the best epoch
    ),
    "a limit of the leak": (
        {"attack": {"names": ["norm"], "max_leak": 0.85, "on_leak": "stop"}},
        ("true", "nearly all of one class"),
        ["keep"],
    ),
    "a limit of the bound": (
        {
            "attack": {"max_leak": 1.0, "max_bound": 0.9, "on_leak": "stop"},
            "defenses": [{"name": "marvell", "s": 4.0}],
        },
        ("true", "nearly all of one class"),
        ["keep", *["evaluate"] * 3],  # with the model of an earlier epoch
    ),
}


def without_best(parties):
    """Return the entries of the parties without the requests of patience to copy their weights."""
    return {party: [entry for entry in entries if entry[0] != "best"] for party, entries in parties.items()}


@parametrize("stop", STOPS, quick=1)
def test_early_stopping_and_a_limit_reveal_when_they_end_training_and_nothing_else(recorder, frozen, stop):
    """SECURITY.md adds: with patience also which epochs were better, and at the end which model is kept."""
    sections, names, kept = STOPS[stop]
    runs = [without_best(one.parties) for one in record(recorder, setup(**sections), *names)]
    shorter, longer = sorted(runs, key=lambda parties: len(parties["a"]))
    for party in ("a", "b"):
        kinds = [entry[0] for entry in shorter[party]]
        end = [*kept, "finish", "exported", "end"]
        assert kinds[-len(end) :] == end
        assert len(shorter[party]) < len(longer[party])
        assert longer[party][: len(shorter[party]) - len(end)] == shorter[party][: -len(end)]


FAILURES = {
    "a loss that is not finite": lambda value, labels: value * float("nan"),
    "an error that names labels": lambda value, labels: [][int(labels.sum())],
    "an interrupt": lambda value, labels: (_ for _ in ()).throw(RuntimeError(f"labels {labels.tolist()}")),
}


@parametrize("transport", TRANSPORTS, quick=1)
def test_a_label_party_that_fails_because_of_its_labels_reveals_nothing_of_them(
    recorder, frozen, transport, monkeypatch
):
    runs = []
    monkeypatch.setattr(frozen, "at", 5)
    for name, then in zip(LABELS, FAILURES.values(), strict=True):
        monkeypatch.setattr(frozen, "then", staticmethod(then))
        runs += record(recorder, setup(transport), name)
    assert len({one.error for one in runs}) == len(runs)
    assert [differences(runs[0], other) for other in runs[1:]] == [[], []]
    logged = " ".join(text for texts in runs[0].logs.values() for text in texts)
    assert not re.search(r"\bnan\b|loss|labels \[", logged)


class Wrong(MemoryData):
    """Data with labels that are none of the two classes."""

    def labels(self):
        return Labels(np.full(ROWS, 7), self.target.test, 2)


def test_labels_that_do_not_fit_end_a_run_before_any_party_gets_a_message(recorder):
    one = recorder.train(setup(), Wrong(DATA.name, DATA.tables, DATA.label_party, DATA.target), BLIND)
    assert "given 0 to 7" in one.error
    assert not one.parties


def test_nothing_of_a_prediction_depends_on_labels(recorder, frozen):
    runs = []
    for name in ("true", "others"):
        data = replace(DATA, target=LABELS[name])
        recorder.train(setup(), data, BLIND)
        runs.append(recorder.predict(setup(), data, BLIND))
    assert [one.error for one in runs] == ["", ""]
    assert differences(*runs) == []
    assert "predict" in runs[0].kinds["a"]


@pytest.mark.parametrize("method", ["psi", "hash"])
def test_nothing_of_an_alignment_depends_on_labels(recorder, monkeypatch, tmp_path, method):
    monkeypatch.setattr("flower_vfl.alignment.group.secrets.randbelow", lambda most: 12345)
    same = SimpleNamespace(urandom=lambda count: bytes(index % 251 for index in range(count)))
    for module in ("psi", "table"):
        monkeypatch.setattr(f"flower_vfl.alignment.{module}.os", same)
    config = build_config({"parties": {"features": ["a", "b"]}, "align": {"method": method, "processes": 1}})
    runs = []
    for column in ("label", "income"):
        recorder.begin()
        for party, span in {"a": (20, 90), "b": (5, 50)}.items():
            write_people(recorder.hosts[party] / "people.csv", people(party, *span), ["x"])
        monkeypatch.setenv("FLOWER_VFL_IDS", write_people(tmp_path / "label.csv", people("", 0, 60), [column]))
        monkeypatch.setenv("FLOWER_VFL_ALIGNMENT", str(recorder.hosts["a"].parent / "alignment.parquet"))
        runs.append(recorder.align(config))
    assert [one.error for one in runs] == ["", ""]
    assert differences(*runs) == []


def with_the_loss_in_a_field(monkeypatch):
    answer = TrainingLoop._answer

    def leaking(training, party, step, request, done, references):
        frame = answer(training, party, step, request, done, references)
        return replace(frame, fields={**frame.fields, "loss": done.loss})

    monkeypatch.setattr(TrainingLoop, "_answer", leaking)


def with_labels_in_an_error(monkeypatch):
    leave = Sessions.__exit__

    def leaking(sessions, kind, error, trace):
        for link in sessions.links.values():
            if error is not None:
                link.refuse(str(error))
        leave(sessions, kind, error, trace)

    monkeypatch.setattr(Sessions, "__exit__", leaking)
    monkeypatch.setattr(Frozen, "at", 5)
    monkeypatch.setattr(Frozen, "then", staticmethod(FAILURES["an interrupt"]))


def with_commits_that_depend_on_the_loss(monkeypatch):
    save = Checkpointing.save

    def leaking(checkpointing, step):
        losses = checkpointing._parts["training"].state()["losses"]
        if not losses or int(1e4 * losses[-1]) % 2:
            save(checkpointing, step)

    monkeypatch.setattr(Checkpointing, "save", leaking)


def with_a_batch_that_is_asked_for_by_its_labels(monkeypatch):
    evaluate = TrainingLoop._evaluate

    def leaking(training, epoch):
        if training._labels[1].sum() > 36:
            training._predict("validation")
        return evaluate(training, epoch)

    monkeypatch.setattr(TrainingLoop, "_evaluate", leaking)


@parametrize(
    ("plant", "transport"),
    [
        (with_the_loss_in_a_field, "messages"),
        (with_the_loss_in_a_field, "stream"),
        (with_labels_in_an_error, "inproc"),
        (with_labels_in_an_error, "stream"),
        (with_commits_that_depend_on_the_loss, "messages"),
        (with_a_batch_that_is_asked_for_by_its_labels, "inproc"),
    ],
    quick=1,
)
def test_a_leak_that_is_planted_is_found(recorder, frozen, monkeypatch, transport, plant):
    plant(monkeypatch)
    one, other = record(recorder, setup(transport))
    assert differences(one, other)
