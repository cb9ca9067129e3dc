"""A sample of the long run: what would grow without end over a million steps can be seen to grow over thousands."""

from __future__ import annotations

import os

import pytest

from flower_vfl.parties.label import LabelParty
from tests.faults import soak


@pytest.mark.slow
def test_memory_handles_and_threads_stay_as_they_are_over_thousands_of_steps():
    found = soak.soak(int(os.environ.get("FLOWER_VFL_SOAK_STEPS", "3000")))
    assert found["status"] == "finished"
    assert found["steps"] >= 3000
    assert found["memory_grown_mib"] < 16
    assert (found["handles_grown"], found["threads_grown"]) == (0, 0)


@pytest.mark.slow
def test_what_is_held_for_good_is_found(monkeypatch):
    train, held = LabelParty.train_step, []

    def hoarding(party, step, embeddings):
        held.append((bytearray(64 * 1024), open(os.devnull) if step % 50 == 0 else None))  # noqa: SIM115
        return train(party, step, embeddings)

    monkeypatch.setattr(LabelParty, "train_step", hoarding)
    found = soak.soak(1000, "inproc")
    for _, file in held:
        if file is not None:
            file.close()
    assert found["memory_grown_mib"] > 32
    assert found["handles_grown"] >= 8
