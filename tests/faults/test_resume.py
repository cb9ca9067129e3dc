"""Killed at any moment, any number of times, a run that goes on gives what nobody's run gives that was left alone."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file

from flower_vfl import build_config, run
from flower_vfl.strategies import Observer

SETUP = {
    "data": {"name": "synthetic", "options": {"rows": 600, "test_rows": 120, "parties": 2}},
    "training": {"epochs": 3, "batch_size": 64, "patience": 2},
    "model": {"bottom": [8], "cut": 4, "top": [8], "dropout": 0.1},
    "attack": {
        "names": ["norm", "cosine", "hint(k=2)", "direction_count", "spectral", "model_completion(k=1,draws=1)"],
        "layers": ["cut"],
        "snapshots": [3, 12],
        "max_leak": 0.99,
        "on_leak": "warn",
    },
    "checkpoint": {"every": 4},
    "defenses": [
        {"name": "marvell", "s": 1.0},
        {"name": "iso", "t": 0.1},
        {"name": "label_dp", "flip": 0.05},
        {"name": "potential_energy", "alpha": 0.5},
    ],
}
"""Everything that has a state of its own: generators, running estimates, scorers, dropout, early stopping."""

STEPS = 27
"""Of which a checkpoint follows each fourth and the last of each epoch."""

KILLS = [
    *({"step": 0}, {"step": 6}, {"epoch": 3}),
    *({"replacing": count, "before": before} for count in (9, 24) for before in (True, False)),
]
TRANSPORTS = {"inproc": {}, "stream": {"kind": "stream", "in_flight": 3}, "messages": {"kind": "messages"}}


def setup(transport="inproc"):
    return {**SETUP, "transport": TRANSPORTS[transport]}


def start(folder, kill, transport="inproc"):
    words = [str(folder), json.dumps(setup(transport)), json.dumps(kill)]
    environment = {**os.environ, "FLOWER_VFL_STATE": str(folder.parent / "state")}
    return subprocess.run(
        [sys.executable, "-m", "tests.faults.killed", *words],
        capture_output=True, text=True, check=False, timeout=240, env=environment,
    )  # fmt: skip


def outcome(folder):
    """What a run found, without times and bytes."""
    result = json.loads((folder / "result.json").read_text())
    for name in ("seconds", "seconds_compute", "seconds_wait", "bytes_up", "bytes_down"):
        del result["cost"][name]
    return result


def assert_same(folder, other):
    assert outcome(folder) == outcome(other)
    for file in ("steps.parquet", "snapshots.parquet"):
        one, two = (pq.read_table(place / file) for place in (folder, other))
        assert one.drop(["value"]).equals(two.drop(["value"])), file
        np.testing.assert_array_equal(one["value"].to_numpy(), two["value"].to_numpy(), err_msg=file)
    names = sorted(path.name for path in (folder / "weights").iterdir())
    assert names == sorted(path.name for path in (other / "weights").iterdir())
    for name in names:
        one, two = (load_file(place / "weights" / name) for place in (folder, other))
        assert one.keys() == two.keys()
        assert all(torch.equal(one[key], two[key]) for key in one)


@pytest.fixture(scope="session")
def left_alone(tmp_path_factory):
    """Runs that nobody disturbed, by transport."""
    made = {}

    def of(transport):
        if transport not in made:
            made[transport] = tmp_path_factory.mktemp("alone") / transport
            run(build_config(setup(transport)), out=made[transport])
        return made[transport]

    return of


class Interrupt(Observer):
    def __init__(self, step):
        self.step = step

    def on_step(self, step, epoch, loss, leak):
        if step == self.step:
            raise KeyboardInterrupt


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_an_interrupted_run_goes_on_to_the_same_result(tmp_path, left_alone, transport, monkeypatch):
    monkeypatch.setenv("FLOWER_VFL_STATE", str(tmp_path / "state"))
    config = build_config(setup(transport))
    for step in (5, 17, 17):
        with pytest.raises(KeyboardInterrupt):
            run(config, out=tmp_path / "run", resume=True, observers=(Interrupt(step),))
        assert outcome(tmp_path / "run")["status"] == "interrupted"
    run(config, out=tmp_path / "run", resume=True)
    assert_same(tmp_path / "run", left_alone(transport))


@pytest.mark.slow
@pytest.mark.parametrize("kill", KILLS, ids=json.dumps)
def test_a_killed_run_goes_on_to_the_same_result(tmp_path, left_alone, kill):
    killed = start(tmp_path / "run", kill)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    finished = start(tmp_path / "run", {})
    assert finished.returncode == 0, finished.stderr
    assert_same(tmp_path / "run", left_alone("inproc"))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(int(os.environ.get("FLOWER_VFL_KILLS", "2"))))
def test_a_run_that_is_killed_again_and_again_goes_on_to_the_same_result(tmp_path, left_alone, seed):
    """A sample; FLOWER_VFL_KILLS=70 makes a campaign of more than 200 kills, the same ones each time."""
    dice = random.Random(seed)
    transport = dice.choice(list(TRANSPORTS))
    kills = 0
    while kills < 3:
        kill = dice.choice(
            [{"step": dice.randrange(STEPS)}, {"replacing": dice.randrange(1, 60), "before": dice.random() < 0.5}]
        )
        ended = start(tmp_path / "run", kill, transport)
        assert ended.returncode in (0, -signal.SIGKILL), ended.stderr
        kills += 1
    finished = start(tmp_path / "run", {}, transport)
    assert finished.returncode == 0, finished.stderr
    assert_same(tmp_path / "run", left_alone(transport))
