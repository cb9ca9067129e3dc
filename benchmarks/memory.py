"""(t) A run whose attackers remember every row against the same run whose attackers look at each step only.

Census preset, `inproc`, one torch thread, journals and checkpoints on disk: the norm attack in both, and in one of them
the norm and the direction of what is remembered, at the cut and the first layer of the feature party and at the
monitor. A step's ratio is that of remembering; what reading and scoring takes at the end of each epoch is in the ratio
of totals. Then what it takes to remember a batch where the table has 45.8 million rows, on files of that size, whose
pages fit the machine's memory or not. Targets: at most 10 % of a step; at most 4 bytes a row and scalar kept.
"""

from __future__ import annotations

import statistics
import time
from typing import Any

import numpy as np
import torch
from harness import arguments, compare, report
from lanes import preset, split

from flower_vfl.parties.memory import RowMemory
from flower_vfl.protocol.schedule import Schedule

TARGET = 1.1
ROWS, BATCH, WIDTH = 45_840_617, 1024, 32


class _Scattered(Schedule):
    """Rows of a batch anywhere in the table, drawn anew for each step: an epoch's order takes seconds to draw."""

    def train_batch(self, step: int) -> np.ndarray[Any, np.dtype[np.int64]]:
        return np.random.default_rng(step).integers(0, self.rows, self.batch_size)


def of_a_batch(rows: int, steps: int) -> dict[str, Any]:
    """Return what it takes to remember a batch of many rows, milliseconds, and what is kept on disk."""
    schedule = _Scattered(0, rows, 0, BATCH, BATCH, 2, 0.0)
    first = schedule.steps_of(2).start
    memory = RowMemory(schedule, ["mean"])
    gradient = torch.randn(BATCH, WIDTH)
    memory.record(0, schedule.train_batch(0), {"cut": gradient})
    taken: dict[str, list[float]] = {"first_epoch_ms": [], "second_epoch_ms": []}
    for name, start in (("first_epoch_ms", 1), ("second_epoch_ms", first)):
        memory._next = start  # the steps between are left out
        for step in range(start, start + steps):
            batch = schedule.train_batch(step)
            started = time.perf_counter()
            memory.record(step, batch, {"cut": gradient})
            taken[name].append(1000 * (time.perf_counter() - started))
    (layer,) = memory._layers.values()
    kept = sum(sums.nbytes for sums in layer)
    found = {name: round(statistics.median(values), 4) for name, values in taken.items()}
    means = {f"{name}_mean": round(statistics.fmean(values), 4) for name, values in taken.items()}
    return {"rows": rows, "width": WIDTH, **found, **means, "bytes_a_row_and_scalar": kept / rows / WIDTH}


def main() -> None:
    """Measure and report."""
    quick = arguments(__doc__).quick
    names = ["norm", "remembered_norm", "remembered_direction"]
    remembering, looking = preset(quick, attack={"names": names}), preset(quick, attack={"names": names[:1]})
    lanes = (("remembering", split, remembering, True), ("looking", split, looking, True))
    size = {"starts": 1, "blocks": 4, "steps": 5} if quick else {"starts": 6, "blocks": 40, "steps": 20}
    measured = compare(lanes, **size)
    remembered, looked = measured.times
    ratio = remembered.over(looked)
    large = of_a_batch(100_000 if quick else ROWS, 20 if quick else 500)
    large["of_a_step"] = round(large["second_epoch_ms"] / looked.milliseconds, 4)
    report(
        "memory",
        target=f"<= {TARGET} x a step without, <= 4 bytes a row and scalar",
        met={
            "time": ratio.median <= TARGET,
            "large": large["of_a_step"] <= TARGET - 1,
            "bytes": large["bytes_a_row_and_scalar"] <= 4,
        },
        quick=quick,
        ratio=ratio.describe(),
        ratio_of_totals=round(sum(remembered.wall) / sum(looked.wall), 4),
        ratio_of_cpu=remembered.cpu_over(looked).describe(),
        remembering_ms=remembered.milliseconds,
        looking_ms=looked.milliseconds,
        large=large,
        equal_losses=measured.equal_values(0, 1),
    )


if __name__ == "__main__":
    main()
