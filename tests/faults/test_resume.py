"""Killed at any moment, any number of times, a run that goes on gives what nobody's run gives that was left alone."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys

import pytest

from flower_vfl import build_config, run
from tests.faults.common import STEPS, TRANSPORTS, Interrupt, assert_same, outcome, setup

KILLS = [
    *({"step": 0}, {"step": 6}, {"epoch": 3}),
    *({"replacing": count, "before": before} for count in (9, 24) for before in (True, False)),
]


def start(folder, kill, transport="inproc"):
    words = [str(folder), json.dumps(setup(transport)), json.dumps(kill)]
    environment = {**os.environ, "FLOWER_VFL_STATE": str(folder.parent / "state")}
    return subprocess.run(
        [sys.executable, "-m", "tests.faults.killed", *words],
        capture_output=True, text=True, check=False, timeout=240, env=environment,
    )  # fmt: skip


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
