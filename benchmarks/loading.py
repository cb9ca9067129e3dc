"""(v) Waits of a GPU for its batches: a step with batches loaded ahead, and with a plain gather, against none.

A table of numbers and categories in files, as Criteo's, in random order. Without a GPU, a pause of the length of a
step stands in for it: like a GPU, it leaves the processor free. With one, a step is multiplications that take about
as long there, and loaded batches are used. Target: loaded ahead, at most 1.05 times the step without any loading.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from harness import Gate, arguments, compare, report
from torch import Tensor

from flower_vfl.data.store.source import ArraySource
from flower_vfl.nn.placement import Placement
from flower_vfl.parties.loading import Loader
from flower_vfl.protocol.schedule import Schedule

TARGET = 1.05
STEP = 0.005
WIDTH = 2048


def write(folder: Path, rows: int) -> None:
    """Write the table."""
    rng = np.random.default_rng(0)
    np.save(folder / "numeric.npy", rng.random((rows, 13), dtype=np.float32))
    np.save(folder / "categorical.npy", rng.integers(0, 10_000, (rows, 26), dtype=np.int32))


def work(gate: Gate, folder: str, device: str, loading: str) -> None:
    """Do steps until the benchmark is over."""
    arrays = (np.load(Path(folder) / f"{name}.npy", mmap_mode="r") for name in ("numeric", "categorical"))
    source = ArraySource(*arrays)
    schedule = Schedule(1, len(source), 1, 1024, 1024, 1_000, 0.0)
    loader = Loader(source, schedule, Placement(device), ahead=loading == "ahead")
    compute = _gpu_step(device) if device != "cpu" else lambda _: time.sleep(STEP)
    for step in range(schedule.steps):
        compute([] if loading == "none" else loader.batch(step))
        gate.tick()


def _gpu_step(device: str) -> Callable[[list[Tensor]], None]:
    """Return a step of about the right length on a GPU; the processor is at most one step ahead of it."""
    matrix = torch.randn(WIDTH, WIDTH, device=device)
    done = torch.cuda.Event()

    def multiply(times: int) -> None:
        for _ in range(times):
            torch.mm(matrix, matrix)

    multiply(20)
    torch.cuda.synchronize()
    started = time.perf_counter()
    multiply(100)
    torch.cuda.synchronize()
    times = max(1, round(STEP / (time.perf_counter() - started) * 100))

    def compute(batch: list[Tensor]) -> None:
        for tensor in batch:
            tensor.sum()
        multiply(times)
        done.synchronize()
        done.record()

    return compute


def main() -> None:
    """Measure and report."""
    quick = arguments(__doc__).quick
    device = "cuda" if torch.cuda.is_available() else "cpu"
    with tempfile.TemporaryDirectory(prefix="flower-vfl-benchmark-") as folder:
        write(Path(folder), 20_000 if quick else 4_000_000)
        lanes = [(name, work, folder, device, name) for name in ("none", "ahead", "plain")]
        size = {"starts": 1, "blocks": 4, "steps": 5} if quick else {"starts": 2, "blocks": 30, "steps": 50}
        none, ahead, plain = compare(lanes, **size).times
    ratio = ahead.over(none)
    report(
        "loading",
        target=f"<= {TARGET}",
        met=ratio.median <= TARGET,
        quick=quick,
        card=torch.cuda.get_device_name() if device == "cuda" else f"none: a pause of {STEP} s stands in for it",
        ahead=ratio.describe(),
        plain=plain.over(none).describe(),
        step_ms=none.milliseconds,
    )


if __name__ == "__main__":
    main()
