"""A sample of the long run: what would grow without end over a million steps can be seen to grow over thousands."""

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


def alone(call: str) -> dict[str, Any]:
    """Do that in a process of its own: what other tests have left in this one goes away meanwhile."""
    code = f"import json; from tests.faults import soak, test_soak; print(json.dumps({call}))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


def hoard(steps: int) -> dict[str, Any]:
    train, held = LabelParty.train_step, []

    def hoarding(party, step, embeddings):
        held.append((bytearray(64 * 1024), open(os.devnull) if step % 50 == 0 else None))  # noqa: SIM115
        return train(party, step, embeddings)

    LabelParty.train_step = hoarding
    return soak.soak(steps, "inproc")


@pytest.mark.slow
@pytest.mark.release
def test_memory_handles_and_threads_stay_as_they_are_over_thousands_of_steps():
    found = alone(f"soak.soak({int(os.environ.get('FLOWER_VFL_SOAK_STEPS', '3000'))})")
    assert found["status"] == "finished"
    assert found["steps"] >= 3000
    assert found["memory_grown_mib"] < 16
    assert (found["handles_grown"], found["threads_grown"]) == (0, 0)


@pytest.mark.slow
def test_what_is_held_for_good_is_found():
    found = alone("test_soak.hoard(1000)")
    assert found["memory_grown_mib"] > 32
    assert found["handles_grown"] >= 8
