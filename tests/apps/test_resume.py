"""A resumed run continues from the last step that all parties have; another configuration or data is refused."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, fields

import pytest

from flower_vfl import build_config, run
from flower_vfl.apps import local, make_server_app
from flower_vfl.apps.folder import RunFolder
from flower_vfl.apps.run_state import MAY_CHANGE, PartyStorage, config_digest, differences
from flower_vfl.auditing.monitor import LeakageMonitor
from flower_vfl.checkpoint import Checkpoints, read_committed
from flower_vfl.config import Config, leaf_paths
from flower_vfl.data.store.memory import MemoryData
from flower_vfl.errors import ConfigError, DataError, OutputExistsError, PartyError, ProtocolError
from flower_vfl.rng import Secret
from flower_vfl.simulations.flower_engine import in_processes, run_flower
from flower_vfl.simulations.running import run_here, run_observed
from flower_vfl.strategies import Observer
from flower_vfl.transport.sessions import Sessions
from tests.cases import parametrize
from tests.faults.common import Interrupt
from tests.toys import mixed_data, toy_config, toy_data


def interrupted(folder, **sections):
    config = toy_config(checkpoint={"every": 3}, **sections)
    with pytest.raises(KeyboardInterrupt):
        run(config, out=folder, data=lambda _: toy_data(), observers=(Interrupt(7),))
    return config


def test_without_resume_a_folder_is_not_touched_again(tmp_path):
    config = interrupted(tmp_path / "run")
    with pytest.raises(OutputExistsError):
        run(config, out=tmp_path / "run", data=lambda _: toy_data())


def test_an_interruption_is_answered_before_leaks_are_measured_and_results_written(tmp_path, caplog, monkeypatch):
    measured = []
    monkeypatch.setattr(LeakageMonitor, "entries", lambda monitor: measured.append(caplog.text) or [])
    interrupted(tmp_path / "run")
    assert "stopping; what was measured is being written …" in measured[0]


def test_an_interruption_of_pretraining_is_answered_too(tmp_path, caplog):
    config = toy_config(training={"pretrain": 1})
    with pytest.raises(KeyboardInterrupt):
        run(config, out=tmp_path / "run", data=lambda _: toy_data(), observers=(Interrupt(hook="on_pretraining"),))
    assert "stopping; what was measured is being written …" in caplog.text


@pytest.mark.parametrize("error", [PartyError, KeyboardInterrupt])
@pytest.mark.parametrize("moment", [(Sessions, "open"), (Checkpoints, "load")])
def test_a_resumed_run_that_ends_before_it_is_restored_leaves_the_earlier_results(tmp_path, monkeypatch, moment, error):
    config = interrupted(tmp_path / "run")
    kept = [tmp_path / "run" / name for name in ("result.json", "steps.parquet", "weights/label.safetensors")]
    before = [path.read_bytes() for path in kept]

    def fail(*_, **__):
        raise error("no room")

    def server_app(*, on_result, **given):
        return make_server_app(**given, on_result=lambda result: pytest.fail("there is no new result"))

    with monkeypatch.context() as patched:
        patched.setattr(*moment, fail)
        patched.setattr(local, "make_server_app", server_app)
        with pytest.raises(error):
            run(config, out=tmp_path / "run", resume=True, data=lambda _: toy_data())
    assert [path.read_bytes() for path in kept] == before
    resumed = run(config, out=tmp_path / "run", resume=True, data=lambda _: toy_data())
    assert resumed.summary["weights"] == run(config, data=lambda _: toy_data()).summary["weights"]


def test_another_configuration_is_refused_with_what_differs(tmp_path):
    interrupted(tmp_path / "run")
    other = toy_config(checkpoint={"every": 3}, seed=5)
    with pytest.raises(ConfigError, match=r"seed was 0 and is 5"):
        run(other, out=tmp_path / "run", resume=True, data=lambda _: toy_data())
    assert read_committed(tmp_path / "run" / "checkpoints" / "label")[0] == 6


def test_other_rows_are_refused(tmp_path):
    config = interrupted(tmp_path / "run")
    with pytest.raises((DataError, PartyError), match=r"belongs to something else: its alignment"):
        run(config, out=tmp_path / "run", resume=True, data=lambda _: toy_data(rows=590))


PEOPLE = range(60)


def tables(folder, *, a=lambda row: f"{row % 7},{'uvw'[row % 3]}", b=lambda row: f"{row % 5}", y=lambda row: row % 2):
    """Write the files of two parties and of the labels, and return a run of them."""
    folder.mkdir(exist_ok=True)
    for name, columns, value in (("a", "x,kind", a), ("b", "z", b), ("labels", "y", y)):
        rows = [f"p{row},{value(row)}\n" for row in PEOPLE]
        (folder / f"{name}.csv").write_text(f"id,{columns}\n" + "".join(rows))
    options = {"files.a": "a.csv", "files.b": "b.csv", "labels_file": "labels.csv", "label": "y"}
    sections = {"checkpoint": {"every": 3}, "training": {"epochs": 5, "batch_size": 16}}
    return build_config({**sections, "data": {"name": "files", "path": str(folder), "options": options}})


@pytest.fixture
def begun(tmp_path, monkeypatch):
    """The configuration of a run of files that was interrupted after a checkpoint."""
    monkeypatch.setenv("FLOWER_VFL_CACHE", str(tmp_path / "cache"))
    config = tables(tmp_path / "raw")
    with pytest.raises(KeyboardInterrupt):
        run(config, out=tmp_path / "run", observers=(Interrupt(7),))
    return config


@parametrize(
    "other",
    [
        pytest.param({"y": lambda row: 1 - row % 2}, id="labels"),
        pytest.param({"y": lambda row: ["no", "yes"][row % 2]}, id="names of the classes"),
        pytest.param({"a": lambda row: f"{6 - row % 7},{'uvw'[row % 3]}"}, id="numbers"),
        pytest.param({"a": lambda row: f"{row % 7},{'UVW'[row % 3]}"}, id="names of categories"),
        pytest.param({"b": lambda row: f"{row % 4}"}, id="another party"),
    ],
    quick=1,
)
def test_other_values_of_the_same_people_are_refused_and_no_digest_of_them_is_shown(begun, tmp_path, other):
    state = (tmp_path / "run" / "checkpoints" / "label" / "committed.json").read_text()
    tables(tmp_path / "raw", **other)
    with pytest.raises((DataError, PartyError), match="belongs to something else: its data is other than here") as info:
        run(begun, out=tmp_path / "run", resume=True)
    assert json.loads(state)["facts"]["data"] not in str(info.value)
    assert (tmp_path / "run" / "checkpoints" / "label" / "committed.json").read_text() == state


def test_the_same_values_in_new_files_are_the_same_data(begun, tmp_path):
    whole = run(begun, out=tmp_path / "whole")
    for file in (tmp_path / "raw").iterdir():
        os.utime(file, (0, 0))  # so that they are read and prepared again
    again = run(begun, out=tmp_path / "run", resume=True)
    assert again.summary["weights"] == whole.summary["weights"]


def test_a_folder_of_the_same_data_may_be_moved_at_a_partys_host(tmp_path):
    storage, data, secret = PartyStorage(tmp_path, "a", "0" * 32), toy_data(), Secret(b"x" * 32, "file")

    def store(**changes):
        return storage.store(toy_config(data={"path": "/srv/old", **changes}), data, "a", secret)

    store().save(3, {"step": 3})
    assert store(path="/mnt/new").load(3) == {"step": 3}
    with pytest.raises(DataError, match="training with other settings: the run config, or what --node-config says"):
        store(name="synthetic").load(3)


def test_a_users_own_class_of_data_may_give_a_digest_of_its_content(tmp_path):
    @dataclass(frozen=True)
    class Versioned(MemoryData):
        version: str = "1"

        def content_digest(self, party, *, labels):
            return f"{self.version} {party} {labels}"

    def versioned(version):
        held = {entry.name: getattr(toy_data(), entry.name) for entry in fields(MemoryData)}
        return lambda _: Versioned(**held, version=version)

    config = toy_config(checkpoint={"every": 3})
    with pytest.raises(KeyboardInterrupt):
        run(config, out=tmp_path / "run", data=versioned("1"), observers=(Interrupt(7),))
    facts = {party: read_committed(tmp_path / "run" / "checkpoints" / party) for party in ("label", "a")}
    assert facts["label"][1]["data"] == "1  True"
    with pytest.raises((DataError, PartyError), match="its data is other than here"):
        run(config, out=tmp_path / "run", resume=True, data=versioned("2"))


def test_a_party_that_has_lost_its_state_is_named(tmp_path):
    config = interrupted(tmp_path / "run")
    for file in (tmp_path / "run" / "checkpoints" / "a").glob("step-*"):
        file.unlink()
    with pytest.raises(PartyError, match=r"'a' .*no checkpoint of step 6; it has: none"):
        run(config, out=tmp_path / "run", resume=True, data=lambda _: toy_data())


def test_where_nothing_was_begun_a_run_begins(tmp_path):
    result = run(toy_config(), out=tmp_path / "run", resume=True, data=lambda _: toy_data())
    assert result.status == "finished"


def test_a_run_that_has_ended_is_left_as_it_is(tmp_path):
    config = build_config({"data": {"name": "breast-cancer"}, "training": {"epochs": 1}})
    first = run_here(config, tmp_path / "run", title="x")
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "run").rglob("*")}
    assert run_here(config, tmp_path / "run", title="x", resume=True) == first
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "run").rglob("*")} == before


def observed(config, out, *, title, resume):
    return run_observed(config, out, observers=())


def in_flower(config, out, *, title, resume):
    return run_flower(config, out, resume=resume)


@parametrize("go_on", [run_here, observed, in_flower], quick=1)
@pytest.mark.parametrize("left", [None, "interrupted"])
@pytest.mark.usefixtures("_sketched")
def test_resuming_an_ended_run_writes_a_missing_or_outdated_report(tmp_path, go_on, left):
    config = in_processes(
        build_config({"data": {"name": "breast-cancer"}, "training": {"epochs": 1}, "attack": {"informed": 0}})
    )
    out = tmp_path / "run"
    run(config, out=out)
    if left is not None:
        (out / "report.html").write_text(left)
        os.utime(out / "report.html", ns=(0, (out / "result.json").stat().st_mtime_ns - 1))
    go_on(config, out, title="x", resume=True)
    page = (out / "report.html").read_text()
    assert page.startswith("<!doctype html>")
    go_on(config, out, title="x", resume=True)
    assert (out / "report.html").read_text() == page


def test_half_written_weights_of_a_killed_party_are_removed(tmp_path):
    config = interrupted(tmp_path / "run")
    half = tmp_path / "run" / "weights" / ".a.safetensors.58c2ez4c.tmp"
    half.write_bytes(b"half")
    run(config, out=tmp_path / "run", resume=True, data=lambda _: toy_data())
    assert {path.name for path in half.parent.iterdir()} == {f"{party}.safetensors" for party in ("label", "a", "b")}


class Leaving(Observer):
    """Writes the temporary file that a party leaves when it is killed while it writes its weights."""

    def __init__(self, path):
        self.path = path

    def on_step(self, step, epoch, loss, leak):
        self.path.parent.mkdir(exist_ok=True)
        self.path.write_bytes(b"half")


def test_partial_weights_of_a_killed_party_are_removed(tmp_path):
    weights = tmp_path / "run" / "weights"
    run(
        toy_config(),
        out=tmp_path / "run",
        data=lambda _: toy_data(),
        observers=(Leaving(weights / ".b.safetensors.ebck4yk8.tmp"),),
    )
    assert {path.name for path in weights.iterdir()} == {f"{party}.safetensors" for party in ("label", "a", "b")}


def test_checkpoints_can_be_switched_off(tmp_path):
    run(toy_config(checkpoint={"every": -1}), out=tmp_path / "run", data=lambda _: toy_data())
    assert not list((tmp_path / "run").rglob("step-*"))


def test_without_a_folder_nothing_is_kept(tmp_path, monkeypatch):
    monkeypatch.setenv("FLOWER_VFL_STATE", str(tmp_path))
    run(toy_config(), data=lambda _: toy_data())
    assert not list(tmp_path.iterdir())


@parametrize("every", [0, 1, 5], quick=1)
@pytest.mark.parametrize("in_flight", [1, 4])
def test_how_often_states_are_kept_changes_no_weight_where_one_step_is_under_way(tmp_path, every, in_flight):
    def weights(every, out):
        config = toy_config(checkpoint={"every": every}, transport={"in_flight": in_flight})
        return run(config, out=out, data=lambda _: toy_data()).summary["weights"]

    same = weights(every, tmp_path / "run") == weights(-1, None)
    assert same == (in_flight == 1 or every == 0)


def test_an_ensemble_goes_on_to_the_weights_of_one_that_was_left_alone(tmp_path):
    data = mixed_data()
    config = toy_config(model={"ensemble": 2, "dropout": 0.2}, checkpoint={"every": 3})
    alone = run(config, data=lambda _: data).summary["weights"]
    with pytest.raises(KeyboardInterrupt):
        run(config, out=tmp_path / "run", data=lambda _: data, observers=(Interrupt(7),))
    assert run(config, out=tmp_path / "run", data=lambda _: data, resume=True).summary["weights"] == alone


def test_of_the_configuration_only_addresses_and_the_like_may_change():
    assert differences(Config(), build_config({"transport": {"port": 5}, "sinks": ["wandb"]})) == []
    assert config_digest(Config()) == config_digest(build_config({"transport": {"port": 5}, "checkpoint": {"keep": 9}}))
    assert config_digest(Config()) != config_digest(build_config({"training": {"epochs": 7}}))
    assert set(MAY_CHANGE) < set(leaf_paths())


@pytest.mark.parametrize("name", ["", "../../etc", "A" * 32, "0" * 31, "0" * 33, 7, None, "0" * 31 + "/"])
def test_a_training_is_called_by_digits_because_they_become_a_path(tmp_path, name):
    with pytest.raises(ProtocolError, match="a training ID must have 32 hexadecimal digits"):
        PartyStorage.of_feature_party(tmp_path, "a", name)


def test_a_run_without_a_state_of_all_parties_begins_anew(tmp_path):
    config = toy_config(checkpoint={"every": 0})
    with pytest.raises(KeyboardInterrupt):
        run(config, out=tmp_path / "run", data=lambda _: toy_data(), observers=(Interrupt(2),))
    result = run(config, out=tmp_path / "run", resume=True, data=lambda _: toy_data())
    alone = run(config, out=tmp_path / "alone", data=lambda _: toy_data())
    assert result.summary["weights"] == alone.summary["weights"]
    assert json.loads((tmp_path / "run" / "result.json").read_text())["status"] == "finished"


@parametrize("kind", ["inproc", "stream", "messages"], quick=1)
def test_a_run_killed_before_its_results_are_written_still_has_its_row_memories(kind, tmp_path, monkeypatch):
    attack = {"names": ["remembered_direction", "remembered_norm"], "informed": 0}
    config = toy_config(checkpoint={"every": 3}, attack=attack, transport={"kind": kind})
    write = RunFolder.write_result

    def killed(self, *given):
        monkeypatch.setattr(RunFolder, "write_result", write)
        raise KeyboardInterrupt

    monkeypatch.setattr(RunFolder, "write_result", killed)
    with pytest.raises(KeyboardInterrupt):
        run(config, out=tmp_path / "run", data=lambda _: toy_data())
    result = run(config, out=tmp_path / "run", resume=True, data=lambda _: toy_data())
    alone = run(config, out=tmp_path / "alone", data=lambda _: toy_data())
    assert result.summary["weights"] == alone.summary["weights"]
    assert result.summary["leakage"] == alone.summary["leakage"]
    assert not [*tmp_path.rglob("memory-*")]
