"""The refit of the label party's network after the last step: messages, kept weights, resumed runs."""

from __future__ import annotations

import csv

import numpy as np
import pytest
import torch

from flower_vfl.apps import predict, run
from flower_vfl.errors import ConfigError, PartyError
from flower_vfl.metrics.utility import utility
from flower_vfl.parties.label import LabelParty
from flower_vfl.protocol.frame import Kind
from tests.faults.common import outcome
from tests.toys import mixed_data, toy_config, toy_data

PASSES = 3
ONE_ATTACK = {"names": ["norm"]}
LOCAL = [{"name": "local_head", "epsilon": 1.0}]


def config(**training):
    return toy_config(training={"refit": PASSES, **training}, model={"dropout": 0.1}, attack=ONE_ATTACK, defenses=LOCAL)


def test_a_refit_sends_all_embeddings_once_more_and_nothing_else(frames):
    data = toy_data()
    sent = []
    for passes in (0, 1, PASSES):
        frames.clear()
        run(config(refit=passes), data=lambda _: data)
        sent.append([(frame[0], frame[3].get("part") if len(frame) > 3 else None, frame) for _, frame, _ in frames])
    without, one, many = ([kind for kind, _, _ in found] for found in sent)
    assert len(one) == len(without) + 2 * (6 + 2)  # two parties; batches of 100 of 600 and 150 rows
    assert one == many
    assert sent[1][: -2 * 2] == sent[2][: -2 * 2]


def test_only_the_label_partys_own_network_changes():
    data = mixed_data()
    before, after = (run(config(refit=passes), data=lambda _: data).summary for passes in (0, PASSES))
    assert before["weights"]["a"] == after["weights"]["a"]
    assert before["weights"]["label"] != after["weights"]["label"]
    refit = after["model"]["refit"]
    assert refit["validation"][0] == before["utility"]["last"]["validation_auc"]
    assert refit["kept"] == np.argmax(refit["validation"]) > 0
    assert after["utility"]["last"]["validation_auc"] == max(refit["validation"])
    assert after["utility"]["last"]["epoch"] == after["model"]["epoch"] == 2


def test_a_refit_changes_no_local_head(monkeypatch):
    """The second stage of a mechanism belongs to the training, and no local head learns afterwards."""
    unchanged, original = [], LabelParty.refit_step

    def refit_step(label, *given):
        before = {name: value.clone() for name, value in label.module["defenses"].state_dict().items()}
        loss = original(label, *given)
        after = label.module["defenses"].state_dict()
        unchanged.append(
            before.keys() == after.keys() and all(torch.equal(before[name], after[name]) for name in before)
        )
        return loss

    monkeypatch.setattr(LabelParty, "refit_step", refit_step)
    run(config(), data=lambda _: toy_data())
    assert len(unchanged) == PASSES * 9
    assert all(unchanged)


def test_earlier_weights_are_kept_where_no_pass_validates_better(monkeypatch):
    data = toy_data()
    without = run(config(refit=0), data=lambda _: data).summary

    def spoil(label, *_):
        for weight in label.top.parameters():
            torch.nn.init.zeros_(weight)
        return 1.0

    monkeypatch.setattr(LabelParty, "refit_step", spoil)
    spoilt = run(config(), data=lambda _: data).summary
    assert spoilt["model"]["refit"]["kept"] == 0
    assert spoilt["weights"] == without["weights"]
    assert spoilt["utility"] == without["utility"]


def test_without_a_validation_part_the_last_pass_is_kept():
    found = run(config(validation=0.0), data=lambda _: toy_data()).summary
    assert found["model"]["refit"] == {"passes": PASSES, "kept": PASSES, "validation": [None] * (PASSES + 1)}


def test_the_best_model_of_a_training_with_patience_is_refitted():
    data, more = toy_data(), {"epochs": 30, "patience": 2, "learning_rate": 0.05}
    found = run(toy_config(training={"refit": PASSES, **more}, attack=ONE_ATTACK), data=lambda _: data).summary
    without = run(toy_config(training=more, attack=ONE_ATTACK), data=lambda _: data).summary
    assert found["status"] == without["status"] == "early stopping"
    assert found["weights"]["a"] == without["weights"]["a"]
    assert found["model"]["refit"]["validation"][0] == without["utility"]["best"]["validation_auc"]


def test_an_interrupted_refit_begins_again_and_ends_with_the_same_weights(tmp_path, monkeypatch):
    data, original, calls = toy_data(), LabelParty.refit_step, []
    run(config(), data=lambda _: data, out=tmp_path / "whole")

    def interrupted(label, *given):
        calls.append(1)
        if len(calls) == 12:
            raise KeyboardInterrupt
        return original(label, *given)

    monkeypatch.setattr(LabelParty, "refit_step", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run(config(), data=lambda _: data, out=tmp_path / "broken")
    run(config(), data=lambda _: data, out=tmp_path / "broken", resume=True)
    assert len(calls) == 12 + PASSES * 9
    assert outcome(tmp_path / "whole") == outcome(tmp_path / "broken")


def test_all_transports_give_identical_weights_and_predictions_are_of_the_refitted_model(tmp_path):
    data, found = mixed_data(), []
    for kind in ("inproc", "stream", "messages"):
        given = toy_config(training={"refit": PASSES}, transport={"kind": kind}, attack=ONE_ATTACK, defenses=LOCAL)
        summary = run(given, data=lambda _: data, out=tmp_path / kind).summary
        predict(tmp_path / kind, tmp_path / f"{kind}.csv", data=lambda _: data)
        found.append((summary["weights"], summary["model"], (tmp_path / f"{kind}.csv").read_text()))
    assert found[0] == found[1] == found[2]
    rows = list(csv.DictReader(found[0][2].splitlines()))
    column = next(name for name in rows[0] if name not in ("row", "id"))
    scores = torch.tensor([float(row[column]) for row in rows])
    measured = utility(torch.logit(scores.double()), data.labels().test, 2)["auc"]
    assert measured == pytest.approx(summary["utility"]["last"]["test_auc"], abs=1e-4)


def test_a_party_sends_the_embeddings_of_training_rows_only_where_its_configuration_has_a_refit(monkeypatch):
    """Both sides read it in their own configuration."""
    from flower_vfl.apps import feature_party

    original = feature_party.FeatureParty

    def without_refit(*given, refit, **named):
        return original(*given, **named)

    monkeypatch.setattr(feature_party, "FeatureParty", without_refit)
    with pytest.raises(PartyError, match=r"here training\.refit is 0"):
        run(config(), data=lambda _: toy_data())


@pytest.mark.parametrize(
    ("training", "words"),
    [
        ({"gradients": False, "refit": 1}, r"set training\.refit to 0"),
        ({"order": "time", "validation": 0.0, "refit": 1}, "each row is trained on once"),
    ],
)
def test_a_refit_without_effect_is_refused(training, words):
    with pytest.raises(ConfigError, match=words):
        toy_config(training=training)


def test_the_last_frames_are_those_of_a_run_without_a_refit(frames):
    run(config(), data=lambda _: toy_data(rows=200, test_rows=60))
    kinds = [frame[0] for party, frame, _ in frames if party == "a"]
    assert kinds[-2:] == [Kind.FINISH, Kind.EXPORTED]
