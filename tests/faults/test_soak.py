"""A sample of the long run: what would grow without end over a million steps can be seen to grow over thousands."""

from __future__ import annotations

import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import pytest

from flower_vfl.parties.label import LabelParty
from tests.faults import soak


def alone(function: Any, *args: Any) -> dict[str, Any]:
    """Call a function of this module or the soak's in a process of its own: others' leftovers go away meanwhile."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as process:
        return process.submit(function, *args).result()


def hoard(steps: int) -> dict[str, Any]:
    train, held = LabelParty.train_step, []

    def hoarding(party, step, embeddings):
        held.append((bytearray(64 * 1024), open(os.devnull) if step % 50 == 0 else None))  # noqa: SIM115
        return train(party, step, embeddings)

    LabelParty.train_step = hoarding
    return soak.soak(steps, "inproc")


@pytest.mark.slow
def test_memory_handles_and_threads_stay_as_they_are_over_thousands_of_steps():
    found = alone(soak.soak, int(os.environ.get("FLOWER_VFL_SOAK_STEPS", "3000")))
    assert found["status"] == "finished"
    assert found["steps"] >= 3000
    assert found["memory_grown_mib"] < 16
    assert (found["handles_grown"], found["threads_grown"]) == (0, 0)


@pytest.mark.slow
def test_what_is_held_for_good_is_found():
    found = alone(hoard, 1000)
    assert found["memory_grown_mib"] > 32
    assert found["handles_grown"] >= 8
