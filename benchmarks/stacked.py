"""(u) A curve of many runs trained together, against the same runs by themselves.

Strengths of Marvell times seeds of one epoch of the census preset, norm and cosine attacks and evaluation included.
On processors each core trains a stack, then the same runs one after the other; the two take turns, and the ratio is
that of the times of a round. On a GPU (`--device cuda`) all runs are one stack, and the time is compared with that of
one run there. Target on a GPU: 100 runs, 20 strengths by 5 seeds, in at most 3 times one run's time; on processors
there is none, since a sweep chooses what is faster.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from pathlib import Path
from typing import Any

from harness import PROCESSES, parser, report  # isort: skip - it sets the threads before torch is imported

import torch

from flower_vfl.apps.factories import computing, open_data
from flower_vfl.apps.local import run
from flower_vfl.config import Config, build_config, load_config
from flower_vfl.simulations.stacked.member import Member
from flower_vfl.simulations.stacked.running import train_stack
from flower_vfl.simulations.stacked.training import StackedTraining

TARGET = 3.0
STRENGTHS = (0.01, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 1.0, 1.5, 1.75, 2.0, 2.5, 3.0, 4.0, 5.0, 8.0, 10.0, 25.0)
SEEDS = 5


def runs_of(preset: str, device: str, epochs: int, strengths: int, seeds: int) -> list[Config]:
    """Return the configurations of a curve."""
    names = '["norm", "cosine"]'
    fixed = {
        "attack.names": names,
        "attack.snapshots": "[]",
        "attack.embeddings": 0,
        "attack.informed": 0,
        "attack.every": 1,
        "device": device,
    }
    base = load_config(preset, {**fixed, "training.epochs": epochs}).model_dump()
    chosen = product(range(seeds), STRENGTHS[:: len(STRENGTHS) // strengths][:strengths])
    return [build_config(base, {"seed": seed, "defenses": f"marvell(s={s})"}) for seed, s in chosen]


def together(configs: list[Config]) -> float:
    """Train runs as one stack and return the seconds of the training."""
    data = open_data(configs[0])
    with computing(configs[0]):
        training = StackedTraining([Member(config, data) for config in configs], data)
        training.train()
    if training.diverged.any():
        raise SystemExit("runs diverged")
    return training.seconds


def apart(configs: list[Config]) -> float:
    """Train the same runs one after the other and return the seconds of the trainings."""
    data = open_data(configs[0])
    return sum(run(config, data=lambda _: data).outcome.seconds for config in configs)


def on_processors(configs: list[Config], pairs: int) -> dict[str, Any]:
    """Compare stacks with single runs, which take turns on all cores."""
    cores = len(os.sched_getaffinity(0))
    shares = [configs[core::cores] for core in range(cores)]
    times: dict[str, list[float]] = {"together": [], "apart": []}
    with ProcessPoolExecutor(cores, mp_context=PROCESSES) as pool:
        list(pool.map(apart, [share[:1] for share in shares]))  # imports, data
        for pair in range(pairs):
            order = (("together", together), ("apart", apart))
            for name, work in order if pair % 2 == 0 else order[::-1]:
                times[name].append(max(pool.map(work, shares)))
    ratios = [one / other for one, other in zip(times["together"], times["apart"], strict=True)]
    return {
        "ratio": round(statistics.median(ratios), 3),
        "ratios": [round(ratio, 3) for ratio in ratios],
        "seconds": {name: [round(value, 2) for value in values] for name, values in times.items()},
        "runs_a_core": len(shares[0]),
    }


def on_gpu(configs: list[Config], pairs: int) -> dict[str, Any]:
    """Compare one stack of all runs with one run; with checkpoints, and without."""
    middle = configs[len(configs) // 2]
    apart([middle])  # excludes what is done once
    alone, stacks, kept, whole = [], [], [], []
    for _ in range(pairs):
        with tempfile.TemporaryDirectory() as folder:
            began = time.perf_counter()
            alone.append(run(middle, out=Path(folder) / "alone").outcome.seconds)
            whole.append(time.perf_counter() - began)
            stacks.append(together(configs))
            began = time.perf_counter()
            train_stack(configs, [Path(folder) / str(number) for number in range(len(configs))])
            kept.append(time.perf_counter() - began)
    memory = torch.cuda.max_memory_allocated() if torch.cuda.is_available() else 0
    return {
        "ratio": round(statistics.median(a / b for a, b in zip(stacks, alone, strict=True)), 2),
        "ratio_with_opening_and_checkpoints": round(
            statistics.median(a / b for a, b in zip(kept, whole, strict=True)), 2
        ),
        "seconds": {"one": [round(s, 2) for s in alone], "all": [round(s, 2) for s in stacks]},
        "memory_gib": round(memory / 2**30, 2),
    }


def main() -> None:
    """Measure and report."""
    options = parser(__doc__)
    options.add_argument("--device", default="cpu", help="cpu, or cuda for one stack of all runs against one run")
    given = options.parse_args()
    gpu = given.device != "cpu"
    if given.quick:
        configs = runs_of("toy-gap", given.device, 1, 2, 2)
    else:
        configs = runs_of("census", given.device, 1, 20 if gpu else 4, SEEDS if gpu else 2)
    measured = (on_gpu if gpu else on_processors)(configs, 1 if given.quick else 3)
    report(
        "stacked",
        target=f"on a GPU <= {TARGET} times one run; on processors none",
        met=measured["ratio"] <= TARGET if gpu else True,
        quick=given.quick,
        device=torch.cuda.get_device_name() if gpu else "cpu",
        runs=len(configs),
        **measured,
    )


if __name__ == "__main__":
    main()
