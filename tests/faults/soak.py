"""A soak test: very many steps of a small model, and the change of memory, handles and speed.

``python -m tests.faults.soak --steps 1000000`` trains over real streams with checkpoints, a defense, attacks and
journals, all parties in this process, and prints one line of JSON. Memory and handles are sampled a hundred times
and shown on stderr now and then. Growth is the median of the last tenth minus that of the second: in the first, buffers
and pools fill.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path

from flower_vfl import build_config, run
from flower_vfl.config import Config
from flower_vfl.strategies import Observer

SAMPLES = 100
_BATCH = 8


def soak_config(steps: int, transport: str = "stream") -> Config:
    """Return a run of `steps` steps or more in at least ten epochs, with a checkpoint each thousandth of them."""
    epochs = max(10, steps // 10_000)
    rows = -(-steps // epochs) * _BATCH
    return build_config(
        {
            "data": {"name": "synthetic", "options": {"rows": rows, "test_rows": 100, "parties": 2}},
            "training": {"epochs": epochs, "batch_size": _BATCH, "validation": 0.0},
            "model": {"bottom": [8], "cut": 4, "top": [8], "dropout": 0.1},
            "attack": {"names": ["norm"], "every": 10, "snapshots": []},
            "checkpoint": {"every": max(10, steps // 1000)},
            "defenses": [{"name": "iso", "t": 1.0}],
            "transport": {"kind": transport},
        }
    )


class Gauge(Observer):
    """An observer that samples memory, handles and times of this process."""

    def __init__(self) -> None:
        self.steps = 0
        self.memory: list[float] = []
        """Resident memory, MiB."""
        self.handles: list[int] = []
        self.threads: list[int] = []
        self.seconds: list[float] = []
        """Wall-clock time since the previous sample."""
        self.busy: list[float] = []
        """Processor time since the previous sample, of all processors together."""
        self._every = 1
        self._at = (0.0, 0.0)

    def on_start(self, steps: int, epochs: int, parties: tuple[str, ...]) -> None:
        self.steps, self._every = steps, max(1, steps // SAMPLES)
        self._at = (time.perf_counter(), time.process_time())

    def on_step(self, step: int, epoch: int, loss: float, leak: float) -> None:
        if (step + 1) % self._every:
            return
        now = (time.perf_counter(), time.process_time())
        self.seconds.append(now[0] - self._at[0])
        self.busy.append(now[1] - self._at[1])
        self._at = now
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
        self.memory.append(pages * os.sysconf("SC_PAGE_SIZE") / 2**20)
        self.handles.append(len(os.listdir("/proc/self/fd")))
        self.threads.append(threading.active_count())
        if len(self.memory) % (SAMPLES // 10) == 0:
            sys.stderr.write(f"step {step + 1}: {self.memory[-1]:.1f} MiB, {self.handles[-1]} handles\n")

    def found(self) -> dict[str, object]:
        """Return the growth and the speed that the samples show."""
        return {
            "steps": self.steps,
            "memory_mib": [round(self._tenth(self.memory, tenth), 1) for tenth in range(10)],
            "memory_grown_mib": round(self._grown(self.memory), 1),
            "handles_grown": self._grown(self.handles),
            "threads_grown": self._grown(self.threads),
            "step_ms": self._milliseconds(sum(self.seconds)),
            "last_tenth_over_first": self._last_over_first(self.seconds),
            "last_tenth_over_first_busy": self._last_over_first(self.busy),
        }

    def _tenth(self, samples: list[float], tenth: int) -> float:
        size = len(samples) // 10
        return statistics.median(samples[tenth * size : (tenth + 1) * size])

    def _grown(self, samples: list[float] | list[int]) -> float:
        values = [float(value) for value in samples]
        return self._tenth(values, 9) - self._tenth(values, 1)

    def _last_over_first(self, samples: list[float]) -> float:
        return round(self._tenth(samples, 9) / self._tenth(samples, 0), 3)

    def _milliseconds(self, seconds: float) -> float:
        return round(seconds / self.steps * 1000, 3)


def soak(steps: int, transport: str = "stream") -> dict[str, object]:
    """Train `steps` steps or more; return the samples' summary, the status and the duration."""
    gauge = Gauge()
    with tempfile.TemporaryDirectory(prefix="flower-vfl-soak-") as folder:
        result = run(soak_config(steps, transport), out=Path(folder) / "run", observers=(gauge,))
    return {**gauge.found(), "status": result.status, "minutes": round(result.outcome.seconds / 60, 1)}


def main() -> None:
    """Run the soak test with the options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--transport", choices=("stream", "inproc", "messages"), default="stream")
    logging.disable(logging.WARNING)
    print(json.dumps(soak(**vars(parser.parse_args()))))  # noqa: T201


if __name__ == "__main__":
    main()
