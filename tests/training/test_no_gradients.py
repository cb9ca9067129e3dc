"""Pre-training, and training without gradients: messages, results, resumed runs and refused configurations."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from flower_vfl.apps import predict, run
from flower_vfl.auditing.verdict import NO_LEAK
from flower_vfl.config import build_config
from flower_vfl.data.store.dataset import Labels
from flower_vfl.data.store.memory import MemoryData
from flower_vfl.errors import ConfigError, FlowerVflError, ProtocolError
from flower_vfl.protocol.frame import Frame, Kind
from flower_vfl.protocol.schedule import Schedule
from flower_vfl.reports import render
from flower_vfl.strategies import Observer
from flower_vfl.training.pretraining import pretrain
from flower_vfl.transport.inproc import InprocLink
from tests.cases import parametrize
from tests.faults.common import Interrupt, outcome
from tests.toys import mixed_data, text_data, toy_config, toy_data, with_unaligned

NO_GRADIENTS = {"gradients": False, "pretrain": 2}
ONE_ATTACK = {"names": ["norm"]}
EVALUATED = math.ceil(600 / 100) + math.ceil(150 / 100)
"""Number of batches of all training and test rows."""


class Pretrained(Observer):
    """An observer that counts answers to pre-training and interrupts at one of them, as Ctrl-C does."""

    def __init__(self, interrupt=0):
        self.answers, self.interrupt = 0, interrupt

    def on_pretraining(self, done, steps):
        self.answers += 1
        if self.answers == self.interrupt:
            raise KeyboardInterrupt


def with_labels(data, train):
    return MemoryData(data.name, data.tables, data.label_party, Labels(train, data.target.test, 2))


def test_parties_are_sent_the_same_whatever_the_labels_are(frames):
    data = toy_data(parties=2)
    sent = []
    for labels in (data.target.train, 1 - data.target.train, np.arange(600) % 2):
        frames.clear()
        run(toy_config(training=NO_GRADIENTS | {"epochs": 3}), data=lambda _, y=labels: with_labels(data, y))
        sent.append(frames.copy())
        kinds = [frame[0] for party, frame, _ in frames if party == "a"]
        assert kinds.count(Kind.EVALUATE) == EVALUATED
        assert set(kinds) == {Kind.PRETRAIN, Kind.EVALUATE, Kind.FINISH, Kind.EXPORTED}
    assert sent[0] == sent[1] == sent[2]


@parametrize("training", [{"pretrain": 2}, NO_GRADIENTS], ids=["pre-training", "no gradients"], quick=1)
def test_all_transports_give_identical_weights_and_scores(training, tmp_path):
    data, found = with_unaligned(mixed_data(rows=200, test_rows=60), 90), []
    for kind in ("inproc", "stream", "messages"):
        sections = {"model": {"dropout": 0.2, "bottom": [16, 16]}, "attack": ONE_ATTACK}
        config = toy_config(training=training, transport={"kind": kind}, **sections)
        result = run(config, data=lambda _: data, out=tmp_path / kind)
        predict(tmp_path / kind, tmp_path / f"{kind}.csv", data=lambda _: data)
        found.append((result.summary["weights"], (tmp_path / f"{kind}.csv").read_text()))
    assert found[0] == found[1] == found[2]
    without = toy_config(training=training | {"pretrain": 0}, **sections)
    assert run(without, data=lambda _: data).summary["weights"]["a"] != found[0][0]["a"]


@parametrize("training", [{"pretrain": 2}, NO_GRADIENTS], ids=["pre-training", "no gradients"], quick=1)
def test_a_run_goes_on_after_an_interruption_and_pre_trains_no_finished_model_again(training, tmp_path):
    data = toy_data(parties=2)
    config = toy_config(training=training | {"epochs": 3}, checkpoint={"every": 4}, attack=ONE_ATTACK)

    def go(out, *observers, resume=False):
        return run(config, data=lambda _: data, out=tmp_path / out, observers=observers, resume=resume)

    go("whole")
    for name, interrupt in (("early", Pretrained(interrupt=1)), ("late", Interrupt(14))):
        with pytest.raises(KeyboardInterrupt):
            go(name, interrupt)
        counter = Pretrained()
        go(name, counter, resume=True)
        assert bool(counter.answers) == (name == "early")
        assert outcome(tmp_path / "whole") == outcome(tmp_path / name)


@pytest.mark.slow
def test_the_result_reports_that_nothing_that_depends_on_labels_was_sent(tmp_path):
    result = run(toy_config(training=NO_GRADIENTS), data=lambda _: toy_data(), out=tmp_path / "run")
    summary = json.loads((tmp_path / "run" / "result.json").read_text())
    assert summary["baseline"] == "no_gradients"
    assert summary["leakage"] == summary["defenses"] == []
    assert summary["verdict"]["status"] == NO_LEAK
    assert [party["not_run"] for party in summary["verdict"]["parties"]] == [[], []]
    assert result.test_auc > 0.6
    page = render([tmp_path / "run"]).read_text()
    assert "Nothing that depends on labels left the label party." in page
    assert page.count("nothing sent") == 2
    assert "No defense was used" not in page

    sent = run(toy_config(), data=lambda _: toy_data(), out=tmp_path / "sent")
    assert "baseline" not in sent.summary
    compared = render([tmp_path / "run", tmp_path / "sent"], tmp_path / "both.html").read_text()
    assert "Recommended: no gradients (run run). Nothing that depends on labels left the label party." in compared
    assert "without any gradient" in compared


def test_images_are_pre_trained_and_texts_are_refused():
    images = toy_data(rows=100, test_rows=20, parties=1, shape=(2, 8, 8))
    weights = [
        run(toy_config(training={"pretrain": epochs}, attack=ONE_ATTACK), data=lambda _: images).summary["weights"]["a"]
        for epochs in (0, 1, 1)
    ]
    assert weights[0] != weights[1] == weights[2]
    texts = build_config({"training": {"pretrain": 1}, "model": {"network": "textcnn", "cut": 6}})
    with pytest.raises(FlowerVflError, match="party 'text' has texts"):
        run(texts, data=lambda _: text_data())


@pytest.mark.parametrize(
    ("sections", "words"),
    [
        ({"training": {"gradients": False}, "defenses": ["max_norm"]}, r"set defenses to \[\]"),
        ({"training": {"gradients": False, "patience": 2}}, "the moment of the end would tell of labels"),
        ({"training": {"gradients": False}, "attack": {"max_leak": 0.7}}, "there is no leak to limit"),
        ({"training": {"pretrain": 1, "order": "time", "validation": 0.0}}, "rows of later days"),
    ],
)
def test_options_without_effect_or_that_leak_labels_are_refused(sections, words):
    with pytest.raises(ConfigError, match=words):
        toy_config(**sections)


def test_without_gradients_automatic_options_set_no_patience_and_no_attack():
    config = toy_config(training={"gradients": False, "epochs": "auto"})
    assert config.fitted(600).training.patience == 0
    assert toy_config(training={"epochs": "auto"}).fitted(600).training.patience > 0
    assert config.fitted(600).attack.names == []


class Stuck:
    """A party that answers, and makes no progress."""

    name, finished, frame_limit = "a", False, 2**20

    def hello(self):
        return Frame(Kind.HELLO, fields={"party": "a"})

    def handle(self, frame):
        return Frame(Kind.PRETRAINED, fields={"done": 1, "steps": 4})


def test_a_party_without_progress_in_pre_training_is_not_waited_for():
    links = {"a": InprocLink(Stuck())}
    with pytest.raises(ProtocolError, match="reports 1 of 4 steps of pre-training after 1"):
        pretrain(links, Schedule(0, 64, 8, 16, 16, 1, 0.0), 1, Observer(), timeout=5.0)
