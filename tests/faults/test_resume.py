"""A run that is killed at any moment, any number of times, and resumed has the results of an undisturbed run."""

from __future__ import annotations

import json
import signal

import numpy as np
import pyarrow.compute as pc
import pytest
import torch
from safetensors.torch import load_file

from flower_vfl import build_config, run
from flower_vfl.apps.folder import RunFolder
from flower_vfl.data import Labels, MemoryData
from flower_vfl.files import LEFTOVERS
from flower_vfl.parties.feature import FeatureParty
from flower_vfl.protocol.frame import Kind
from flower_vfl.tracking import read_steps
from tests.faults.common import TRANSPORTS, Interrupt, assert_same, outcome, setup
from tests.faults.killed import start
from tests.toys import toy_config, toy_data


def replacing(count, *, before):
    return {"replacing": count, "before": before}


KILLS = [
    [{"step": 0}, replacing(1, before=True), replacing(4, before=False), {"epoch": 3}],
    [replacing(1, before=True), replacing(1, before=False), replacing(9, before=True)],
    [replacing(4, before=True), {"step": 6}, replacing(24, before=True)],
    [replacing(4, before=False), replacing(9, before=False)],
    [replacing(9, before=True), replacing(24, before=False)],
]
"""Moments at which a run is killed, one after the other: after a step or an epoch, or just before or after it replaces
its n-th file."""


@pytest.mark.slow
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_an_interrupted_run_goes_on_to_the_same_result(tmp_path, undisturbed_run, transport, monkeypatch):
    monkeypatch.setenv("FLOWER_VFL_STATE", str(tmp_path / "state"))
    config = build_config(setup(transport))
    for step in (5, 17, 17):
        with pytest.raises(KeyboardInterrupt):
            run(config, out=tmp_path / "run", resume=True, observers=(Interrupt(step),))
        assert outcome(tmp_path / "run")["status"] == "interrupted"
    run(config, out=tmp_path / "run", resume=True)
    assert_same(tmp_path / "run", undisturbed_run(transport))


@pytest.mark.slow
def test_readers_fitted_to_labels_find_the_same_after_an_interruption(tmp_path):
    attack = {"names": ["norm"], "informed": 200, "every": 1, "snapshots": [3]}
    config = toy_config(attack=attack, checkpoint={"every": 2})
    config = config.model_copy(update={"defenses": [{"name": "marvell", "s": 1.0}]})
    data = toy_data(rows=300)
    run(config, out=tmp_path / "alone", data=lambda _: data)
    with pytest.raises(KeyboardInterrupt):
        run(config, out=tmp_path / "run", data=lambda _: data, observers=(Interrupt(7),))
    run(config, out=tmp_path / "run", data=lambda _: data, resume=True)
    assert_same(tmp_path / "run", tmp_path / "alone")
    found = [entry["mean"] for entry in outcome(tmp_path / "run")["leakage"] if entry["label"] == "informed"]
    assert any(mean is not None for mean in found)


@pytest.mark.slow
@pytest.mark.parametrize("more", [{}, {"scope": "per-party", "rho": 0.5}], ids=["joint", "per-party"])
def test_full_marvell_goes_on_with_the_noise_of_the_latest_batch_with_both_classes(tmp_path, more):
    data = toy_data(rows=600, test_rows=100)
    rare = np.where(np.arange(600) % 29 == 0, data.labels().train, 0)  # most batches have negatives only
    data = MemoryData("rare", data.tables, "label", Labels(rare, data.labels().test, 2))
    training, attack = {"epochs": 2, "batch_size": 32}, {"names": ["norm"], "snapshots": [3]}
    defenses = [{"name": "marvell_full", "s": 1.0, **more}]
    config = toy_config(training=training, attack=attack, checkpoint={"every": 1}, defenses=defenses)
    found = run(config, out=tmp_path / "alone", data=lambda _: data).summary["log"]
    assert all(0.2 < value < 1 for name, value in found.items() if name.startswith("marvell_full.fallback"))
    for step in (9, 15, 22):
        with pytest.raises(KeyboardInterrupt):
            run(config, out=tmp_path / "run", resume=True, data=lambda _: data, observers=(Interrupt(step),))
    run(config, out=tmp_path / "run", resume=True, data=lambda _: data)
    assert_same(tmp_path / "run", tmp_path / "alone")


@pytest.mark.slow
@pytest.mark.parametrize("kills", KILLS, ids=json.dumps)
def test_a_killed_run_goes_on_to_the_same_result(tmp_path, undisturbed_run, kills):
    for kill in kills:
        assert start(tmp_path, setup("inproc"), kill) == -signal.SIGKILL
    assert start(tmp_path, setup("inproc"), {}) == 0
    assert_same(tmp_path / "run", undisturbed_run("inproc"))
    assert list((tmp_path / "run").rglob(LEFTOVERS)) == []


@pytest.mark.slow
def test_a_party_has_written_all_its_results_when_it_reports(tmp_path, undisturbed_run, monkeypatch):
    """It may be killed, or end slowly, right after its report, and is not asked again."""
    handle, found = FeatureParty.handle, {}

    def watched(party, frame):
        answer = handle(party, frame)
        if frame.kind is Kind.FINISH:
            found[party.name] = load_file(tmp_path / "run" / "weights" / f"{party.name}.safetensors")
            rows = read_steps(tmp_path / "run").filter(pc.field("party") == party.name)
            rows = rows.filter(pc.field("attack") == "model_completion(draws=1)")
            assert "inference_auc" in rows["metric"].to_pylist()
        return answer

    monkeypatch.setattr(FeatureParty, "handle", watched)
    run(build_config(setup("stream")), out=tmp_path / "run")
    for party, weights in found.items():
        kept = load_file(undisturbed_run("stream") / "weights" / f"{party}.safetensors")
        assert all(torch.equal(weights[name], kept[name]) for name in kept)
    assert sorted(found) == ["a", "b"]


@pytest.mark.slow
def test_the_result_of_a_finished_run_is_written_last(tmp_path, monkeypatch):
    """A run that is killed before can be resumed; one that is killed after is complete."""
    write, found = RunFolder.write_result, []

    def watched(folder, *more):
        found.extend(path.name for path in (folder.path / "weights").iterdir())
        write(folder, *more)

    monkeypatch.setattr(RunFolder, "write_result", watched)
    run(build_config(setup()), out=tmp_path / "run")
    assert sorted(found) == ["a.safetensors", "b.safetensors", "label.safetensors"]
