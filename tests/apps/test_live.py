"""The files with which others follow a training: its live state, which is deleted at the end, and its log."""

from __future__ import annotations

import json
import logging
import math
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from flower_vfl.apps import run
from flower_vfl.apps.live import LIVE, LOG, LiveState, read_live
from flower_vfl.protocol.frame import Frame, Kind
from flower_vfl.strategies import Observer
from flower_vfl.transport.base import Link
from tests.toys import toy_config, toy_data

ROOT = Path(__file__).parents[2]


def test_a_training_leaves_its_log_and_its_state_only_while_it_lasts(tmp_path, caplog):
    caplog.set_level(logging.INFO, "flower_vfl")
    seen, before = [], list(logging.getLogger("flower_vfl").handlers)

    class StateReader(Observer):
        def on_start(self, steps, epochs, parties):
            seen.append(read_live(out))

    out = tmp_path / "run"
    run(toy_config(training={"epochs": 1}), data=lambda _: toy_data(), out=out, observers=(StateReader(),))
    (state,) = seen
    assert (state["steps"], state["epochs"]) == (9, 1)
    assert set(state["parties"]) == {"a", "b"}
    assert state["parties"]["a"]["reconnects"] == 0
    assert not (out / LIVE).exists()
    assert "training: epochs: 1, steps: 9, with a, b" in (out / LOG).read_text()
    assert {(out / LOG).stat().st_mode & 0o777} == {0o600}
    assert logging.getLogger("flower_vfl").handlers == before


def test_the_speed_is_that_between_two_writes_and_a_full_disk_ends_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr("flower_vfl.apps.live.WRITE_SECONDS", 1000.0)
    now = [100.0]
    live = LiveState(lambda: now[0])
    live.open(tmp_path)
    live.on_start(1000, 2, ("a",))
    for step in range(80):
        now[0] += 0.5 if step < 20 else 0.1  # 2 steps a second, then 10
        live.on_step(step, 1, 0.5, math.nan)
        if step == 19:
            live.write()
            assert read_live(tmp_path)["speed"] == pytest.approx(2.0)
    live.write()
    state = read_live(tmp_path)
    assert (state["step"], state["speed"]) == (80, pytest.approx(10.0))
    now[0] += 60.0
    live.write()
    assert read_live(tmp_path)["speed"] == pytest.approx(10.0)  # no step since, which `stepped` tells
    assert (tmp_path / LIVE).stat().st_mode & 0o777 == 0o600

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", full)
    live.write()
    live.close()
    assert read_live(tmp_path) is None


class BrokenLink(Link):
    away = 12.5

    def __init__(self):
        super().__init__("a", Frame(Kind.HELLO))

    def send(self, frame):
        raise NotImplementedError

    def receive(self, timeout):
        raise NotImplementedError

    def close(self):
        raise NotImplementedError


def test_while_no_step_ends_the_state_is_written_and_says_for_how_long_a_party_is_away(tmp_path, monkeypatch):
    monkeypatch.setattr("flower_vfl.apps.live.WRITE_SECONDS", 0.01)
    threads = threading.active_count()
    live, link = LiveState(), BrokenLink()
    live.open(tmp_path)
    live.on_links({"a": link})
    assert read_live(tmp_path)["parties"]["a"]["away"] == 12.5
    link.away, deadline = 13.5, time.monotonic() + 30.0
    while read_live(tmp_path)["parties"]["a"]["away"] != 13.5:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    live.close()
    assert threading.active_count() == threads
    assert not list(tmp_path.iterdir())


def test_a_state_that_another_process_wrote_wrongly_is_read_as_far_as_it_is_one(tmp_path):
    for text in ("", "[]", "{", '"x"', "[" * 100_000):
        (tmp_path / LIVE).write_text(text)
        assert not read_live(tmp_path)
    wrong = {
        "step": True,
        "steps": "9",
        "epoch": 3,
        "speed": float("nan"),
        "loss": 10**400,
        "parties": {"a": [1], "b": {"queued": 2}},
    }
    (tmp_path / LIVE).write_text(json.dumps(wrong))
    assert read_live(tmp_path) == {"epoch": 3, "parties": {"a": {}, "b": {"queued": 2}}}


@pytest.mark.slow
def test_warnings_are_still_shown_where_nobody_set_up_logging(tmp_path):
    code = "from flower_vfl.apps import run; from tests.toys import toy_config, toy_data; import sys; "
    code += "run(toy_config(training={'epochs': 1}), data=lambda _: toy_data(), out=sys.argv[1])"
    command = [sys.executable, "-c", code, str(tmp_path / "run")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=120)
    assert "no defense is in force" in (tmp_path / "run" / LOG).read_text()
    assert "no defense is in force" in done.stderr
