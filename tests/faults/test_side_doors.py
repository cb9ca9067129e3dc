"""Nothing but what a defense has passed tells a feature party anything of the labels.

Each test runs twice with other labels and the same of everything else. A defense that sends the same gradients whatever
the labels are freezes the one thing that may depend on them. What leaves the label party must then be the same bit for
bit: kinds, steps, fields, tensors, sizes and order of frames, what the parties log, fail with and keep on disk.
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
from flower_vfl.training.loop import Training
from flower_vfl.transport.sessions import Sessions
from tests.apps.alignment.common import people, write_people
from tests.faults.common import TRANSPORTS
from tests.faults.listening import Listener, differences
from tests.toys import toy_data

ROWS, TEST_ROWS = 192, 64
DATA = toy_data(ROWS, TEST_ROWS, label_features=True)
BLIND = replace(DATA, target=Labels(np.zeros(ROWS, np.int64), np.zeros(TEST_ROWS, np.int64), 2))
DICE = np.random.default_rng(5)
LABELS = {
    "true": DATA.target,
    "others": Labels(DICE.integers(0, 2, ROWS), DICE.integers(0, 2, TEST_ROWS), 2),
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
    """Sends the same gradients whatever the labels are; at a step of the test's choice it does what the test says."""

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
def listener(monkeypatch, tmp_path):
    return Listener(monkeypatch, tmp_path)


@pytest.fixture
def frozen(monkeypatch):
    """Freeze what may depend on labels."""
    defend = label_party.defend
    monkeypatch.setattr(label_party, "defend", lambda strategy, entries: Frozen(defend(strategy, entries)))
    return Frozen


def heard(listener, config, *names):
    """What is heard of a training with each of these labels, or of two."""
    return [listener.train(config, replace(DATA, target=LABELS[name]), BLIND) for name in names or ("true", "others")]


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_nothing_of_a_training_depends_on_labels_but_what_a_defense_has_passed(listener, frozen, transport):
    one, *others = heard(listener, setup(transport, attack={"informed": ROWS}), *LABELS)
    assert not one.error
    assert [differences(one, other) for other in others] == [[], []]
    assert all(len(entries) > 20 for entries in one.parties.values())
    assert {path.partition("/")[0] for path in one.kept} == {"a", "b"}
    assert any(path.endswith(".safetensors") for path in one.kept)


@pytest.mark.parametrize("defense", DEFENSES)
def test_under_each_defense_nothing_else_depends_on_labels(listener, frozen, defense):
    one, other = heard(listener, setup(defenses=DEFENSES[defense]), "true", "nearly all of one class")
    assert differences(one, other) == []
    assert not one.error


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_what_is_sent_without_a_defense_is_heard(listener, transport):
    one, other = heard(listener, setup(transport))
    found = differences(one, other)
    assert [text.partition(" ")[0] for text in found if "parties" in text] == ["a", "b"]


def test_with_flipped_labels_frozen_the_true_ones_are_not_heard_at_all(listener, monkeypatch):
    """Label differential privacy: gradients, class weights and regularisers are all of the flipped labels."""
    flipped = torch.from_numpy(LABELS["nearly all of one class"].train)
    monkeypatch.setattr(label_dp, "flip", lambda labels, **_: flipped)
    defenses = [{"name": "label_dp", "flip": 0.1}, {"name": "potential_energy", "alpha": 0.5}]
    one, other = heard(listener, setup(defenses=defenses))
    assert differences(one, other) == []
    assert not one.error


@pytest.mark.parametrize(("transport", "classes"), [("inproc", 3), ("stream", 2), ("messages", 2)])
def test_with_randomised_labels_frozen_local_heads_say_nothing_of_the_true_ones(
    listener, monkeypatch, transport, classes
):
    """All that leaves, with class weights, clipping, checkpoints, snapshots and a limit of the leak that warns."""
    drawn = torch.from_numpy(DICE.integers(0, classes, ROWS))
    monkeypatch.setattr(mechanisms, "flip", lambda labels, **_: drawn.clone())
    config = setup(transport, defenses=[{"name": "local_head"}], attack={"names": ["norm"]}, training={"refit": 2})
    runs = []
    for name in ("true", "nearly all of one class"):
        labels = LABELS[name]
        target = Labels((labels.train + labels.train[::-1]) % classes, labels.test, classes)
        blind = replace(BLIND, target=Labels(BLIND.target.train, BLIND.target.test, classes))
        runs.append(listener.train(config, replace(DATA, target=target), blind))
    assert differences(*runs) == []
    assert not runs[0].error
    assert all(len(entries) > 20 for entries in runs[0].parties.values())


STOPS = {
    "early stopping": (
        {"training": {"epochs": 6, "patience": 1}},
        ("true", "others"),
        ["keep", *["evaluate"] * 3],  # the best epoch's
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
        ["keep", *["evaluate"] * 3],  # there is a model from before
    ),
}


def without_best(parties):
    """What the parties heard, but for the copies of their weights that patience asks for."""
    return {party: [entry for entry in entries if entry[0] != "best"] for party, entries in parties.items()}


@pytest.mark.parametrize("stop", STOPS)
def test_of_early_stopping_and_of_a_limit_it_is_heard_when_they_end_training_and_nothing_else(listener, frozen, stop):
    """As SECURITY.md says: with patience also which epochs were better, and at the end which model stays."""
    sections, names, kept = STOPS[stop]
    runs = [without_best(one.parties) for one in heard(listener, setup(**sections), *names)]
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


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_label_party_that_fails_because_of_its_labels_says_nothing_of_them(listener, frozen, transport, monkeypatch):
    runs = []
    monkeypatch.setattr(frozen, "at", 5)
    for name, then in zip(LABELS, FAILURES.values(), strict=True):
        monkeypatch.setattr(frozen, "then", staticmethod(then))
        runs += heard(listener, setup(transport), name)
    assert len({one.error for one in runs}) == len(runs)
    assert [differences(runs[0], other) for other in runs[1:]] == [[], []]
    words = " ".join(text for texts in runs[0].said.values() for text in texts)
    assert not re.search(r"\bnan\b|loss|labels \[", words)


class Wrong(MemoryData):
    """Labels that are none of the two classes."""

    def labels(self):
        return Labels(np.full(ROWS, 7), self.target.test, 2)


def test_labels_that_do_not_fit_end_a_run_before_anybody_hears_of_it(listener):
    one = listener.train(setup(), Wrong(DATA.name, DATA.tables, DATA.label_party, DATA.target), BLIND)
    assert "given 0 to 7" in one.error
    assert not one.parties


def test_nothing_of_a_prediction_depends_on_labels(listener, frozen):
    runs = []
    for name in ("true", "others"):
        data = replace(DATA, target=LABELS[name])
        listener.train(setup(), data, BLIND)
        runs.append(listener.predict(setup(), data, BLIND))
    assert [one.error for one in runs] == ["", ""]
    assert differences(*runs) == []
    assert "predict" in runs[0].kinds["a"]


@pytest.mark.parametrize("method", ["psi", "hash"])
def test_nothing_of_an_alignment_depends_on_labels(listener, monkeypatch, tmp_path, method):
    monkeypatch.setattr("flower_vfl.alignment.group.secrets.randbelow", lambda most: 12345)
    same = SimpleNamespace(urandom=lambda count: bytes(index % 251 for index in range(count)))
    for module in ("psi", "table"):
        monkeypatch.setattr(f"flower_vfl.alignment.{module}.os", same)
    config = build_config({"parties": {"features": ["a", "b"]}, "align": {"method": method, "processes": 1}})
    runs = []
    for column in ("label", "income"):
        listener.begin()
        for party, span in {"a": (20, 90), "b": (5, 50)}.items():
            write_people(listener.hosts[party] / "people.csv", people(party, *span), ["x"])
        monkeypatch.setenv("FLOWER_VFL_IDS", write_people(tmp_path / "label.csv", people("", 0, 60), [column]))
        monkeypatch.setenv("FLOWER_VFL_ALIGNMENT", str(listener.hosts["a"].parent / "alignment.parquet"))
        runs.append(listener.align(config))
    assert [one.error for one in runs] == ["", ""]
    assert differences(*runs) == []


def with_the_loss_in_a_field(monkeypatch):
    answer = Training._answer

    def leaking(training, party, step, request, done, references):
        frame = answer(training, party, step, request, done, references)
        return replace(frame, fields={**frame.fields, "loss": done.loss})

    monkeypatch.setattr(Training, "_answer", leaking)


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
    evaluate = Training._evaluate

    def leaking(training, epoch):
        if training._labels[1].sum() > 36:
            training._predict("validation")
        return evaluate(training, epoch)

    monkeypatch.setattr(Training, "_evaluate", leaking)


@pytest.mark.parametrize(
    ("plant", "transport"),
    [
        (with_the_loss_in_a_field, "messages"),
        (with_the_loss_in_a_field, "stream"),
        (with_labels_in_an_error, "inproc"),
        (with_labels_in_an_error, "stream"),
        (with_commits_that_depend_on_the_loss, "messages"),
        (with_a_batch_that_is_asked_for_by_its_labels, "inproc"),
    ],
)
def test_a_leak_that_is_planted_is_found(listener, frozen, monkeypatch, transport, plant):
    plant(monkeypatch)
    one, other = heard(listener, setup(transport))
    assert differences(one, other)
