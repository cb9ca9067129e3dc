"""The configuration of a run with all stateful parts, and the comparison of two runs."""

from __future__ import annotations

import json
import subprocess
from contextlib import contextmanager

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file

from flower_vfl.strategies import Observer

SETUP = {
    "data": {"name": "synthetic", "options": {"rows": 600, "test_rows": 120, "parties": 3}},
    "training": {"epochs": 3, "batch_size": 64, "patience": 2},
    "model": {"bottom": [8], "cut": 4, "top": [8], "dropout": 0.1},
    "attack": {
        "names": [
            *(
                "norm",
                "direction",
                "cosine",
                "hint(k=2)",
                "direction_count",
                "spectral",
                "model_completion(k=1,draws=1)",
            ),
            *("remembered_norm", "remembered_difference", "remembered_hint(k=2)", "remembered_fit(k=2)"),
            *("remembered_quadratic(k=2)", "remembered_network(k=2,steps=20)"),
        ],
        "informed": 0,
        "layers": ["cut"],
        "snapshots": [3, 12],
        "max_leak": 0.99,
        "max_bound": 0.6,
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
"""All stateful parts: generators, running estimates, scorers, dropout, early stopping.

Without the readers that are fitted to labels, which take half of a small run's time and have a test of their own.
"""

FEW = ["norm", "direction", "remembered_fit(k=2)", "model_completion(k=1,draws=1)"]
"""An attack of each kind: without a state, with a running estimate, on histories, on the trained model. A run with
them alone takes a bit more than half as long."""

ATTACKER_EPOCHS = 50
"""Epochs of model completion: its results must be equal, not good, and the paper's 1000 take most of a run's time."""

STEPS = 27
"""Number of steps; a checkpoint follows each fourth one and the last of each epoch."""

TRANSPORTS = {"inproc": {}, "stream": {"kind": "stream", "in_flight": 3}, "messages": {"kind": "messages"}}


@contextmanager
def small_disk(folder, kibibytes):
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={kibibytes}k", "tmpfs", str(folder)]
    mounted = subprocess.run(command, capture_output=True, text=True, check=False)
    if mounted.returncode:
        pytest.skip(f"a small disk cannot be mounted here: {mounted.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def setup(transport="inproc"):
    return {**SETUP, "transport": TRANSPORTS[transport]}


def setup_of_few(transport):
    """Return `setup` with few attacks, for faults of transports: which states are restored is tested with all."""
    return {**setup(transport), "attack": {**SETUP["attack"], "names": FEW}}


def outcome(folder):
    """Return the result of a run, without times and bytes."""
    result = json.loads((folder / "result.json").read_text())
    for name in ("seconds", "seconds_compute", "seconds_wait", "bytes_up", "bytes_down"):
        del result["cost"][name]
    return result


def assert_same(folder, other):
    one, two = outcome(folder), outcome(other)
    assert one == two, f"result.json: {[key for key in one.keys() | two.keys() if one.get(key) != two.get(key)]}"
    for file in ("steps.parquet", "snapshots.parquet"):
        one, two = (pq.read_table(place / file) for place in (folder, other))
        assert one.drop(["value"]).equals(two.drop(["value"])), file
        np.testing.assert_array_equal(one["value"].to_numpy(), two["value"].to_numpy(), err_msg=file)
    names = sorted(path.name for path in (folder / "weights").iterdir())
    assert names == sorted(path.name for path in (other / "weights").iterdir()), f"weights: {names}"
    for name in names:
        one, two = (load_file(place / "weights" / name) for place in (folder, other))
        assert one.keys() == two.keys(), name
        assert all(torch.equal(one[key], two[key]) for key in one), name


class Interrupt(Observer):
    """An observer that ends a run as Ctrl-C does, after a step or at the first call of another hook."""

    def __init__(self, step=-1, hook=""):
        self.step = step
        if hook:
            setattr(self, hook, self._end)

    def _end(self, *_):
        raise KeyboardInterrupt

    def on_step(self, step, epoch, loss, leak):
        if step == self.step:
            raise KeyboardInterrupt
