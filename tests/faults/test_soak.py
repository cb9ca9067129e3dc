"""A sample of the soak test: growth without end over a million steps shows over thousands of steps."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from flower_vfl.parties.label import LabelParty
from tests.faults import soak

ROOT = Path(__file__).resolve().parents[2]


def in_new_process(call: str) -> dict[str, Any]:
    """Evaluate a call in a new process: in this one, memory of earlier tests is freed meanwhile."""
    code = f"import json; from tests.faults import soak, test_soak; print(json.dumps({call}))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


def soak_with_leak(steps: int) -> dict[str, Any]:
    train, held = LabelParty.train_step, []

    def leaking(party, step, embeddings):
        held.append((bytearray(64 * 1024), open(os.devnull) if step % 50 == 0 else None))  # noqa: SIM115
        return train(party, step, embeddings)

    LabelParty.train_step = leaking
    return soak.soak(steps, "inproc")


@pytest.mark.slow
@pytest.mark.release
def test_memory_handles_and_threads_stay_as_they_are_over_thousands_of_steps():
    found = in_new_process(f"soak.soak({int(os.environ.get('FLOWER_VFL_SOAK_STEPS', '3000'))})")
    assert found["status"] == "finished"
    assert found["steps"] >= 3000
    assert found["memory_grown_mib"] < 16
    assert (found["handles_grown"], found["threads_grown"]) == (0, 0)


@pytest.mark.slow
def test_memory_and_handles_that_are_never_released_are_found():
    found = in_new_process("test_soak.soak_with_leak(1000)")
    assert found["memory_grown_mib"] > 32
    assert found["handles_grown"] >= 8
