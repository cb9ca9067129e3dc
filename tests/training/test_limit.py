"""Where the leak passes its limit, every party keeps the model from before it, on all transports."""

from __future__ import annotations

import json

import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file

from flower_vfl import build_config, predict, run
from flower_vfl.auditing.monitor import LeakageMonitor
from flower_vfl.errors import DataError
from flower_vfl.protocol.frame import Kind
from flower_vfl.reports import render
from tests.cases import parametrize
from tests.faults.common import TRANSPORTS, Interrupt, assert_same
from tests.faults.test_rejoin import dies  # noqa: F401 - `dies` is a fixture

PARTIES = ("label", "a", "b")


@pytest.fixture
def leaks(monkeypatch):
    """Return a function that makes the monitor measure a leak above every limit from an epoch on."""

    def from_epoch(first):
        found, observe, epochs = LeakageMonitor.epoch_leak, LeakageMonitor.observe, {}

        def observed(monitor, step, epoch, *given, **more):
            epochs[monitor] = epoch
            observe(monitor, step, epoch, *given, **more)

        def measured(monitor):
            found.fget(monitor)  # evaluates pending steps
            return 1.0 if epochs.get(monitor, 0) >= first else 0.5

        monkeypatch.setattr(LeakageMonitor, "observe", observed)
        monkeypatch.setattr(LeakageMonitor, "epoch_leak", property(measured))

    return from_epoch


def limited(transport="inproc", *, epochs=3, on_leak="stop", **changes):
    """Return the values of a configuration with nine steps an epoch and one step in flight."""
    return {
        "data": {"name": "synthetic", "options": {"rows": 160, "test_rows": 60, "parties": 3}},
        "training": {"epochs": epochs, "batch_size": 16},
        "model": {"bottom": [8], "cut": 4, "top": [8], "dropout": 0.1},
        "attack": {
            **{"names": ["norm", "clustering"], "snapshots": [3], "max_leak": 0.99, "on_leak": on_leak},
            "informed": 0,
        },
        "defenses": [{"name": "iso", "t": 0.1}],
        "transport": {"kind": transport},
        **changes,
    }


def weights(folder):
    return {party: load_file(folder / "weights" / f"{party}.safetensors") for party in PARTIES}


def result(folder):
    return json.loads((folder / "result.json").read_text())


@pytest.mark.slow
@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("every", [0, 2])
def test_the_model_from_before_the_leak_is_kept(tmp_path, leaks, transport, every, monkeypatch):
    monkeypatch.setenv("FLOWER_VFL_STATE", str(tmp_path / "state"))
    run(build_config(limited(epochs=2, on_leak="warn")), out=tmp_path / "before")
    leaks(3)
    run(build_config(limited(transport, checkpoint={"every": every})), out=tmp_path / "run")
    found, before = result(tmp_path / "run"), result(tmp_path / "before")
    assert (found["status"], found["cost"]["steps"]) == ("leak limit", 27)
    assert found["model"] == {"step": 18, "epoch": 2}
    assert (found["weights"], found["utility"]["last"]) == (before["weights"], before["utility"]["last"])
    ours, theirs = weights(tmp_path / "run"), weights(tmp_path / "before")
    assert all(torch.equal(ours[party][name], theirs[party][name]) for party in PARTIES for name in theirs[party])


def test_measured_leaks_are_kept_and_attacks_read_the_kept_model(tmp_path, leaks):
    run(build_config(limited(epochs=2, on_leak="warn")), out=tmp_path / "before")
    leaks(3)
    run(build_config(limited()), out=tmp_path / "run")

    def steps(folder):
        found = [entry for entry in result(folder)["leakage"] if (entry["attack"], entry["phase"]) == ("norm", "train")]
        return [entry["steps"] for entry in found]

    def trained(folder):
        keys = ("attack", "party", "source", "layer", "mean")
        entries = result(folder)["leakage"]
        return [[entry[key] for key in keys] for entry in entries if entry.get("phase") == "inference"]

    assert set(steps(tmp_path / "run")) == {27}
    assert set(steps(tmp_path / "before")) == {18}
    assert trained(tmp_path / "run") == trained(tmp_path / "before") != []
    assert pq.read_table(tmp_path / "run" / "steps.parquet")["epoch"].to_numpy().max() == 3
    embeddings = [pq.read_table(tmp_path / name / "embeddings.parquet") for name in ("run", "before")]
    assert embeddings[0].equals(embeddings[1])


@pytest.mark.parametrize(("first", "checkpoint"), [(1, {"every": 4}), (3, {"every": -1})])
@parametrize("transport", TRANSPORTS, quick=1)
def test_nothing_is_kept_where_there_is_no_checkpoint_from_before(
    tmp_path, leaks, transport, first, checkpoint, monkeypatch
):
    monkeypatch.setenv("FLOWER_VFL_STATE", str(tmp_path / "state"))
    leaks(first)
    run(build_config(limited(transport, checkpoint=checkpoint)), out=tmp_path / "run")
    found = result(tmp_path / "run")
    assert found["model"] == {"step": None, "epoch": 0}
    assert set(found["weights"].values()) == {""}
    assert not list((tmp_path / "run").glob("weights/*"))
    assert not (tmp_path / "run" / "embeddings.parquet").exists()
    assert set(found["utility"]["last"].values()) == {None}
    assert {entry["attack"] for entry in found["leakage"]} >= {"norm"}
    assert not [entry for entry in found["leakage"] if entry.get("phase") == "inference"]
    with pytest.raises(DataError, match="kept no model"):
        predict(tmp_path / "run", tmp_path / "scores.csv")


def test_the_weights_of_an_interrupted_run_are_deleted_too(tmp_path, leaks):
    leaks(1)
    config = build_config(limited())
    with pytest.raises(KeyboardInterrupt):
        run(config, out=tmp_path / "run", observers=(Interrupt(3),))
    assert (tmp_path / "run" / "weights" / "label.safetensors").is_file()
    run(config, out=tmp_path / "run", resume=True)
    assert not list((tmp_path / "run").glob("weights/*"))


@parametrize(("kind", "count"), [(Kind.KEEP, 1), (Kind.KEEP, 2), (Kind.FINISH, 1), (Kind.FINISH, 2)], quick=1)
@pytest.mark.parametrize("first", [1, 2])
def test_a_party_that_dies_meanwhile_is_restored_to_the_same_model(tmp_path, leaks, dies, kind, count, first):  # noqa: F811
    leaks(first)
    run(build_config(limited()), out=tmp_path / "alone")
    counts = dies(lambda now: now is kind and counts[kind] == count)
    transport = {"kind": "stream", "reconnect_timeout": 0.0}
    run(build_config({**limited(), "transport": transport}), out=tmp_path / "run")
    assert counts["deaths"] == 1
    assert result(tmp_path / "run")["weights"] == result(tmp_path / "alone")["weights"]
    assert result(tmp_path / "run")["leakage"] == result(tmp_path / "alone")["leakage"]


def test_a_run_that_is_killed_before_it_could_go_back_does_so_when_it_is_resumed(tmp_path, leaks, monkeypatch):
    leaks(2)
    config = build_config(limited())
    run(config, out=tmp_path / "alone")

    def killed(limit):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("flower_vfl.training.model_selection.ModelSelection._go_back", killed)
        with pytest.raises(KeyboardInterrupt):
            run(config, out=tmp_path / "run")
    assert not list((tmp_path / "run").glob("weights/*"))  # the leak is above the limit: no weights are kept
    run(config, out=tmp_path / "run", resume=True)
    assert_same(tmp_path / "run", tmp_path / "alone")


@parametrize(("first", "words"), [(2, "of step 9, the end of epoch 1"), (1, "no party kept a model")], quick=1)
@pytest.mark.usefixtures("_sketched")
def test_the_report_names_the_model_that_is_kept(tmp_path, leaks, first, words, capsys):
    from flower_vfl.simulations.tables import print_results

    leaks(first)
    run(build_config(limited()), out=tmp_path / "run")
    assert words in " ".join(render([tmp_path / "run"]).read_text().split())
    print_results([result(tmp_path / "run")])
    assert words in " ".join(capsys.readouterr().out.split())
