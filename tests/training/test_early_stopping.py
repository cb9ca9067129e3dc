"""With patience, every party keeps the model of the best epoch, on all transports and after a kill."""

from __future__ import annotations

import json

import numpy as np
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest
import torch
from sklearn.metrics import roc_auc_score

from flower_vfl import build_config, predict, run
from flower_vfl.apps.factories import open_data
from flower_vfl.protocol.frame import Kind
from tests.cases import parametrize
from tests.faults.common import TRANSPORTS, Interrupt, assert_same
from tests.faults.test_rejoin import dies  # noqa: F401 - `dies` is a fixture
from tests.training.test_limit import PARTIES, leaks, result, weights  # noqa: F401 - `leaks` is a fixture

STEPS, BEST = 8, 2
DATA = {"name": "synthetic", "options": {"rows": 160, "test_rows": 60, "parties": 3}}


def patient(transport="inproc", *, epochs=8, patience=2, **changes):
    """Return a configuration with eight steps an epoch; its second epoch has the best validation AUC."""
    return build_config(
        {
            "data": DATA,
            "training": {
                **{"epochs": epochs, "batch_size": 16, "patience": patience},
                **{"validation": 0.2, "learning_rate": 0.05},
            },
            "model": {"bottom": [8], "cut": 4, "top": [8], "dropout": 0.1},
            "attack": {"names": ["norm", "clustering"], "snapshots": [3]},
            "transport": {"kind": transport, "reconnect_timeout": 0.0},
            **changes,
        }
    )


def auc_of(folder):
    """Return the test AUC of a run's predictions for the test rows, by scikit-learn."""
    predict(folder, folder.with_suffix(".csv"), overwrite=True)
    scores = pa_csv.read_csv(folder.with_suffix(".csv"))["score"].to_numpy()
    return roc_auc_score(open_data(build_config({"data": DATA})).labels().test, scores)


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """Return the folder of a run without patience that ends with the best epoch."""
    folder = tmp_path_factory.mktemp("plain") / "run"
    run(patient(epochs=BEST, patience=0), out=folder)
    return folder


def assert_model_of(folder, plain):
    """Assert that all parties keep the model of the shorter run, bit for bit, and predict with it."""
    found, expected = result(folder), result(plain)
    assert found["weights"] == expected["weights"]
    ours, theirs = weights(folder), weights(plain)
    assert all(torch.equal(ours[party][name], theirs[party][name]) for party in PARTIES for name in theirs[party])
    assert found["utility"]["best"] == expected["utility"]["last"]
    assert auc_of(folder) == pytest.approx(found["utility"]["best"]["test_auc"], abs=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("transport", "every"),
    [("inproc", -1), ("inproc", 3), ("stream", -1), ("stream", 0), ("messages", -1), ("messages", 3)],
)
def test_all_parties_keep_the_model_of_the_best_epoch(tmp_path, plain, transport, every, monkeypatch):
    monkeypatch.setenv("FLOWER_VFL_STATE", str(tmp_path / "state"))
    ended = run(patient(transport, checkpoint={"every": every}), out=tmp_path / "run")
    scores = [epoch["validation_auc"] for epoch in ended.outcome.epochs]
    assert (int(np.argmax(scores)) + 1, len(scores)) == (BEST, BEST + 2)
    found = result(tmp_path / "run")
    assert (found["status"], found["cost"]["steps"]) == ("early stopping", STEPS * (BEST + 2))
    assert found["model"] == {"step": STEPS * BEST, "epoch": BEST, "chosen_by": "validation_auc"}
    assert found["utility"]["last"]["epoch"] == BEST + 2
    assert ended.test_auc == found["utility"]["best"]["test_auc"] != found["utility"]["last"]["test_auc"]
    assert_model_of(tmp_path / "run", plain)


@pytest.mark.slow
def test_the_best_model_is_kept_where_each_message_has_a_fresh_process(tmp_path, plain, rebuilt):
    run(patient("messages", checkpoint={"every": -1}), out=tmp_path / "run")
    assert_model_of(tmp_path / "run", plain)


@pytest.mark.slow
def test_a_run_with_patience_that_trains_all_epochs_keeps_its_best_model_too(tmp_path, plain):
    run(patient(epochs=BEST + 1), out=tmp_path / "run")
    assert result(tmp_path / "run")["status"] == "finished"
    assert result(tmp_path / "run")["model"]["epoch"] == BEST
    assert_model_of(tmp_path / "run", plain)


@pytest.mark.slow
def test_where_the_last_epoch_is_the_best_it_stays_and_without_patience_too(tmp_path):
    run(patient(epochs=BEST), out=tmp_path / "run")
    assert result(tmp_path / "run")["model"] == {"step": 16, "epoch": BEST, "chosen_by": "validation_auc"}
    run(patient(epochs=BEST + 1, patience=0), out=tmp_path / "other")
    found = result(tmp_path / "other")
    assert found["model"] == {"step": 24, "epoch": BEST + 1}
    assert auc_of(tmp_path / "other") == pytest.approx(found["utility"]["last"]["test_auc"], abs=1e-12)


def test_attacks_on_the_trained_model_read_the_one_that_is_kept(tmp_path, plain):
    run(patient(), out=tmp_path / "run")

    def trained(folder):
        keys = ("attack", "party", "source", "layer", "mean")
        entries = json.loads((folder / "result.json").read_text())["leakage"]
        return [[entry[key] for key in keys] for entry in entries if entry.get("phase") == "inference"]

    assert trained(tmp_path / "run") == trained(plain) != []
    tables = [pq.read_table(folder / "embeddings.parquet") for folder in (tmp_path / "run", plain)]
    assert tables[0].equals(tables[1])


@pytest.mark.slow
@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("step", [STEPS * (BEST + 1) + 1])
def test_after_a_kill_a_resumed_run_keeps_the_best_model(tmp_path, plain, transport, step, monkeypatch):
    monkeypatch.setenv("FLOWER_VFL_STATE", str(tmp_path / "state"))
    config = patient(transport, checkpoint={"every": 3})
    with pytest.raises(KeyboardInterrupt):
        run(config, out=tmp_path / "run", observers=(Interrupt(step),))
    run(config, out=tmp_path / "run", resume=True)
    assert_model_of(tmp_path / "run", plain)
    if transport == "inproc":
        run(config, out=tmp_path / "whole")
        assert_same(tmp_path / "run", tmp_path / "whole")


def test_a_run_that_is_killed_before_it_could_go_back_does_so_when_it_is_resumed(tmp_path, plain, monkeypatch):
    def killed(kept):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("flower_vfl.training.model_selection.ModelSelection._go_back", killed)
        with pytest.raises(KeyboardInterrupt):
            run(patient(), out=tmp_path / "run")
    run(patient(), out=tmp_path / "run", resume=True)
    assert_model_of(tmp_path / "run", plain)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "count"), [(Kind.BEST, 1), (Kind.BEST, 4), (Kind.KEEP, 1), (Kind.FINISH, 2)])
def test_a_party_that_dies_is_restored_to_the_best_model(tmp_path, plain, dies, kind, count):  # noqa: F811
    counts = dies(lambda now: now is kind and counts[kind] == count)
    run(patient("stream"), out=tmp_path / "run")
    assert counts["deaths"] == 1
    assert_model_of(tmp_path / "run", plain)


@parametrize("every", [-1, 0], quick=1)
@pytest.mark.parametrize(("first", "kept"), [(BEST + 1, BEST), (BEST, 1)])
def test_the_best_model_within_a_limit_is_kept_and_none_from_beyond_it(tmp_path, plain, leaks, every, first, kept):  # noqa: F811
    """The leak passes its limit in the third epoch, or in the second, which would have been the best."""
    leaks(first)
    attack = {"names": ["norm", "clustering"], "max_leak": 0.99, "on_leak": "stop"}
    run(patient(attack=attack, checkpoint={"every": every}), out=tmp_path / "run")
    found = result(tmp_path / "run")
    assert found["status"] == "leak limit"
    assert found["model"] == {"step": STEPS * kept, "epoch": kept, "chosen_by": "validation_auc"}
    assert auc_of(tmp_path / "run") == pytest.approx(found["utility"]["best"]["test_auc"], abs=1e-12)
    if kept == BEST:
        assert_model_of(tmp_path / "run", plain)
