"""Faults of a run's machine: disks that are full or slow, two runs in one folder, a clock that jumps, no memory."""

from __future__ import annotations

import ast
import errno
import itertools
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import flower_vfl
from flower_vfl import build_config, run
from flower_vfl.checkpoint import Checkpoints
from flower_vfl.errors import FlowerVflError, OutputExistsError, PartyError, StorageError
from flower_vfl.files import FolderLock
from flower_vfl.parties.feature import FeatureParty
from flower_vfl.parties.label import LabelParty
from tests.cases import parametrize
from tests.faults.common import Interrupt, assert_same, small_disk

SETUP = {
    "data": {"name": "synthetic", "options": {"rows": 160, "test_rows": 60, "parties": 3}},
    "training": {"epochs": 3, "batch_size": 16},
    "model": {"bottom": [8], "cut": 4, "top": [8], "dropout": 0.1},
    "attack": {"names": ["norm"], "snapshots": [3, 20], "informed": 0},
    "checkpoint": {"every": 4},
    "defenses": [{"name": "iso", "t": 0.1}],
}


def config(transport="inproc"):
    return build_config({**SETUP, "transport": {"kind": transport}})


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("undisturbed") / "run"
    run(config(), out=folder)
    return folder


@pytest.fixture
def full(monkeypatch):
    """Return a function that fills the disk for paths with an ending, from the n-th on, and returns an undo."""
    sync, opened = flower_vfl.files._sync, flower_vfl.files.append_private
    armed = []

    def check(path, ending):
        if armed and str(path).endswith(ending):
            armed[0] -= 1
            if armed[0] < 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def fill(ending, after):
        armed[:] = [after]

        def syncing(path):
            target = path.name[1:].rsplit(".", 2)[0]  # the file whose place the temporary one will take
            check(path.with_name(target), ending)
            sync(path)

        def appending(path, mode):
            check(path, ending)
            return opened(path, mode)

        monkeypatch.setattr("flower_vfl.files._sync", syncing)
        monkeypatch.setattr("flower_vfl.tracking.append_private", appending)
        return armed.clear

    return fill


@parametrize(
    ("ending", "after"),
    [
        *(("label.journal", after) for after in (0, 3)),
        ("/a.journal", 2),
        *((f"{party}/step-000000008.safetensors", 0) for party in ("label", "a")),
        *(("label/committed.json", after) for after in (0, 4)),
        ("snapshots.parquet", 1),
        *((f"weights/{party}.safetensors", 0) for party in ("label", "b")),
        ("steps.parquet", 0),
        ("result.json", 0),
    ],
    quick=2,
)
def test_a_full_disk_ends_a_run_that_goes_on_to_the_same_result_when_there_is_space(
    tmp_path, undisturbed, full, ending, after
):
    make_space = full(ending, after)
    with pytest.raises((StorageError, PartyError), match=rf"{Path(ending).name} could not be written: No space left"):
        run(config(), out=tmp_path / "run")
    make_space()
    run(config(), out=tmp_path / "run", resume=True)
    assert_same(tmp_path / "run", undisturbed)


def test_a_small_disk_that_is_full_again_and_again_loses_nothing(tmp_path, undisturbed):
    with small_disk(tmp_path / "disk", 2048) as disk:
        for left in (8, 40, 90, 130, 180):
            status = os.statvfs(disk)
            (disk / "filler").write_bytes(bytes(status.f_bavail * status.f_frsize - left * 1024))
            with pytest.raises((FlowerVflError, OSError), match=r"could not be written: .*No space left"):
                run(config(), out=disk / "run", resume=True)
            (disk / "filler").unlink()
        run(config(), out=disk / "run", resume=True)
        assert_same(disk / "run", undisturbed)


def test_two_runs_do_not_work_in_one_folder(tmp_path, undisturbed):
    with pytest.raises(KeyboardInterrupt):
        run(config(), out=tmp_path / "run", observers=(Interrupt(10),))
    lock = FolderLock(tmp_path / "run")
    before = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    with pytest.raises(OutputExistsError, match=rf"run is in use by process {os.getpid()} on .*: wait until"):
        run(config(), out=tmp_path / "run", resume=True)
    assert {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()} == before
    lock.release()
    run(config(), out=tmp_path / "run", resume=True)
    assert_same(tmp_path / "run", undisturbed)


def test_a_kill_leaves_no_folder_locked(tmp_path):
    code = "import sys, time; from pathlib import Path; from flower_vfl.files import FolderLock; "
    code += "lock = FolderLock(Path(sys.argv[1])); print('locked', flush=True); time.sleep(600)"
    with subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True) as process:
        process.stdout.readline()
        try:
            with pytest.raises(OutputExistsError, match=f"process {process.pid} on "):
                FolderLock(tmp_path)
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait()
    FolderLock(tmp_path).release()
    run(config(), out=tmp_path)  # a folder that a kill has left with its lock alone is empty


@pytest.mark.slow
@pytest.mark.parametrize("transport", ["stream", "messages"])
def test_a_disk_that_takes_seconds_for_a_checkpoint_ends_nothing(tmp_path, undisturbed, transport, monkeypatch):
    monkeypatch.setenv("FLOWER_VFL_STATE", str(tmp_path / "state"))
    save = Checkpoints.save

    def slowly(self, step, state, **more):
        time.sleep(3.0 if step == 12 else 0.0)
        save(self, step, state, **more)

    monkeypatch.setattr(Checkpoints, "save", slowly)
    run(config(transport), out=tmp_path / "run")
    assert (
        json.loads((tmp_path / "run" / "result.json").read_text())["weights"]
        == json.loads((undisturbed / "result.json").read_text())["weights"]
    )


def test_a_clock_that_jumps_changes_nothing(tmp_path, undisturbed, monkeypatch):
    days = itertools.cycle((0.0, 86_400.0, -86_400.0, 4e9))
    now = time.time()

    def jumping():
        caller = sys._getframe(1).f_globals.get("__name__", "")
        return now + (0.0 if caller == "grpc._server" else next(days))  # gRPC waits by it where a server starts

    monkeypatch.setattr(time, "time", jumping)
    run(config("stream"), out=tmp_path / "run")
    monkeypatch.undo()
    found, expected = (
        json.loads((folder / "result.json").read_text())["weights"] for folder in (tmp_path / "run", undisturbed)
    )
    assert found == expected


def test_nothing_waits_by_a_clock_that_can_jump():
    """`time.time` serves time stamps only; `time.monotonic` and `time.perf_counter` measure durations."""
    paths = Path(flower_vfl.__file__).parent.rglob("*.py")
    used = [
        (path.name, node.lineno)
        for path in paths
        if re.search(r"\btime\s*\.\s*time\b", text := path.read_text(encoding="utf-8"))  # only such a text is parsed
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Attribute) and node.attr == "time" and ast.unparse(node) == "time.time"
    ]
    stamps = ["follower.py", "live.py", "live.py", "live.py", "metrics.py", "tracking.py"]  # time stamps that users see
    assert sorted(name for name, _ in used) == stamps


@parametrize("transport", ["inproc", "stream"], quick=1)
def test_a_party_without_memory_is_named_and_the_run_goes_on_later(tmp_path, undisturbed, transport, monkeypatch):
    handle, left = FeatureParty.handle, [40]

    def failing(party, frame):
        left[0] -= 1
        if left[0] == 0:
            raise MemoryError
        return handle(party, frame)

    with monkeypatch.context() as patch:
        patch.setattr(FeatureParty, "handle", failing)
        with pytest.raises(PartyError, match=r"'[ab]'.*MemoryError"):
            run(config(transport), out=tmp_path / "run")
    assert json.loads((tmp_path / "run" / "result.json").read_text())["status"] == "failed"
    run(config(transport), out=tmp_path / "run", resume=True)
    ours, theirs = (
        json.loads((folder / "result.json").read_text())["weights"] for folder in (tmp_path / "run", undisturbed)
    )
    assert ours == theirs


def test_a_label_party_without_memory_ends_the_run_which_goes_on_later(tmp_path, undisturbed, monkeypatch):
    train, left = LabelParty.train_step, [15]

    def failing(party, step, embeddings):
        left[0] -= 1
        if left[0] == 0:
            raise MemoryError
        return train(party, step, embeddings)

    with monkeypatch.context() as patch:
        patch.setattr(LabelParty, "train_step", failing)
        with pytest.raises(MemoryError):
            run(config(), out=tmp_path / "run")
    found = json.loads((tmp_path / "run" / "result.json").read_text())
    assert (found["status"], found["error"].partition(":")[0]) == ("failed", "MemoryError")
    run(config(), out=tmp_path / "run", resume=True)
    assert_same(tmp_path / "run", undisturbed)
