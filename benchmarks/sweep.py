"""(s) A sweep's trials one at a time against two at once: the use of two cores by a sweep.

The census preset, one epoch a trial, one thread each, attacks, checkpoints and reports as in any sweep. Rounds take
turns, one two, two one; in each the rate is that of trials ended after every worker has ended its first. So start-up
is left out: Ray, two workers that import torch and Flower, the first reading of the data; it is stated beside.
Target: two at once at least 0.9 of twice the rate of one.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path

from harness import arguments, report
from rich.console import Console

from flower_vfl.simulations.cluster import ray_cluster
from flower_vfl.simulations.sweep.board import Board
from flower_vfl.simulations.sweep.definition import load_definition
from flower_vfl.simulations.sweep.folder import SweepFolder
from flower_vfl.simulations.sweep.trials import trials_of

TARGET = 0.9
FULL = 'base = "census"\n[set]\ntraining.epochs = 1\n[grid]\nseed = {seeds}\n'
QUICK = 'base = "toy-gap"\n[set]\ntraining.epochs = 2\nattack.embeddings = 0\n[grid]\nseed = {seeds}\n'


class Watched(Board):
    """A board that records the times at which trials end."""

    def completed(self, run: str) -> None:
        """Record the time."""
        super().completed(run)
        self.ends = [*getattr(self, "ends", []), time.perf_counter()]


def round_of(text: str, places: int, count: int) -> dict[str, float]:
    """Run `count` trials, `places` at once, and return trials a second and the seconds until the first one ended."""
    from flower_vfl.simulations.sweep.ray_tune import run_trials  # Ray is imported by now

    with tempfile.TemporaryDirectory() as temporary:
        file = Path(temporary) / "sweep.toml"
        file.write_text(text.format(seeds=list(range(count))), encoding="utf8")
        trials = trials_of(load_definition(str(file)))
        with SweepFolder(Path(temporary) / "out", "", trials) as folder:
            with open("/dev/null", "w", encoding="utf8") as nowhere:
                board = Watched(count, 0, folder.named_result, Console(file=nowhere), places=places)
                began = time.perf_counter()
                with board:
                    run_trials(folder, board, cpus=1.0, gpus=0.0, retries=0)
            if board.failures:
                raise SystemExit(f"trials failed: {board.failures}")
    first, rest = board.ends[places - 1], board.ends[places:]
    return {"rate": len(rest) / (rest[-1] - first), "first": board.ends[0] - began}


def main() -> None:
    """Measure and report."""
    quick = arguments(__doc__).quick
    text, count, pairs = (QUICK, 4, 1) if quick else (FULL, 10, 4)
    rates: dict[int, list[float]] = {1: [], 2: []}
    firsts: dict[int, list[float]] = {1: [], 2: []}
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as place, ray_cluster("", Path(place)) as cluster:
        started = time.perf_counter() - began
        for pair in range(pairs):
            for places in (1, 2) if pair % 2 == 0 else (2, 1):
                found = round_of(text, places, count)
                rates[places].append(found["rate"])
                firsts[places].append(found["first"])
    ratios = [two / (2 * one) for one, two in zip(rates[1], rates[2], strict=True)]
    ratio = statistics.median(ratios)
    report(
        "sweep",
        target=f">= {TARGET} of twice the trials a second of one at a time",
        met=ratio >= TARGET,
        quick=quick,
        ratio=round(ratio, 3),
        ratios=[round(value, 3) for value in ratios],
        cores=cluster.nodes[0][0],
        seconds_a_trial=round(1 / statistics.median(rates[1]), 2),
        excluded={
            "ray_seconds": round(started, 1),
            "until_the_first_trial_ended": {places: round(statistics.median(v), 1) for places, v in firsts.items()},
        },
    )


if __name__ == "__main__":
    main()
