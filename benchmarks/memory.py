"""(t) A run whose attackers keep a row memory against the same run whose attackers read single steps only.

Census preset, `inproc`, one torch thread, journals and checkpoints on disk: the norm attack in both, and in one of them
the longitudinal attacks on norm and direction, at the cut and the first layer of the feature party and at the monitor.
The ratio of the steps is the cost of row memory. Then a table of 45.8 million rows: the time to record a batch, all
batches of two epochs one right after the other, with the files of a run that can be resumed and without. Work that is
done once an epoch is added to each step: finding the place of each row, waiting until the disk has all that was
written, for which no run waits, and both attacks, which read the whole memory and are scored. The same for a table of
as many rows as the census trains on, at the width of its first layer: an epoch of few steps, and wide rows.
Targets: at most 10 % of a step; at most 4 bytes a row and scalar kept.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from harness import arguments, compare, report
from lanes import preset, split

from flower_vfl.attacks import RememberedDirectionAttack, RememberedNormAttack
from flower_vfl.auditing.row_memory import RowMemory
from flower_vfl.metrics import auc_interval, separation
from flower_vfl.protocol.schedule import Schedule

TARGET = 1.1
ROWS, BATCH, WIDTH = 45_840_617, 1024, 32
CENSUS_ROWS, FIRST = 134_257, 256
POSITIVE = 0.06
CACHE = 8 * 2**20
"""Bytes that are read between two batches, as training replaces the content of caches too."""


def of_a_batch(rows: int, width: int, folder: Path | None) -> dict[str, Any]:
    """Return the milliseconds to record a batch of a table of `rows` rows, and the bytes that are kept."""
    schedule = Schedule(0, rows, 0, BATCH, BATCH, 2, 0.0)
    memory = RowMemory(schedule, ["mean"], folder=folder)
    gradient, others = torch.randn(BATCH, width), np.ones(CACHE // 8)
    positive = np.random.default_rng(0).random(rows) < POSITIVE
    found: dict[str, Any] = {}
    for epoch in (1, 2):
        taken = []
        for step in schedule.steps_of(epoch):
            batch = schedule.train_batch(step)
            others.sum()
            started = time.perf_counter()
            memory.record(step, batch, {"cut": gradient[: len(batch)]})
            taken.append(1000 * (time.perf_counter() - started))
        started = time.perf_counter()
        at_end = memory.at("cut", epoch)
        placed = time.perf_counter()
        for file in [] if folder is None else folder.iterdir():
            with file.open("rb") as opened:
                os.fsync(opened.fileno())
        written = time.perf_counter()
        for attack in (RememberedNormAttack(), RememberedDirectionAttack()):
            scores, labels = attack.score(at_end).numpy(), positive[at_end.order]
            separation(scores, labels)
            auc_interval(scores, labels)
        read = time.perf_counter()
        once = {"places_ms": placed - started, "write_back_ms": written - placed, "reading_ms": read - written}
        found[f"epoch_{epoch}"] = {
            "median_ms": round(statistics.median(taken), 4),
            "mean_ms": round(statistics.fmean(taken), 4),
            **{name: round(1000 * seconds / len(taken), 4) for name, seconds in once.items()},
            "first_ms": round(taken[0], 1),  # part of the mean; it makes room for all of them
        }
    slots, _ = memory._layers["cut"]
    memory.forget()
    return {**found, "bytes_a_row_and_scalar": sum(sums.nbytes for sums in slots) / rows / width}


def of_a_step(large: dict[str, Any], milliseconds: float) -> float:
    """Return the larger share of a step of both epochs, with the work that is done once an epoch."""
    parts = ("mean_ms", "places_ms", "write_back_ms", "reading_ms")
    return max(sum(large[f"epoch_{epoch}"][part] for part in parts) for epoch in (1, 2)) / milliseconds


def main() -> None:
    """Measure and report."""
    quick = arguments(__doc__).quick
    names = ["norm", "remembered_norm", "remembered_direction"]
    epochs = {"epochs": 60}  # the numbers are of another precision where there are many more
    longitudinal, single = (preset(quick, attack={"names": some}, training=epochs) for some in (names, names[:1]))
    lanes = (("remembering", split, longitudinal, True), ("looking", split, single, True))
    size = {"starts": 1, "blocks": 2, "steps": 2} if quick else {"starts": 6, "blocks": 40, "steps": 20}
    measured = compare(lanes, **size)
    with_memory, single_steps = measured.times
    ratio = with_memory.over(single_steps)
    rows = 20_000 if quick else ROWS
    with tempfile.TemporaryDirectory(prefix="flower-vfl-benchmark-") as temporary:
        folder = Path(temporary) / "memory"
        large = {"resumable": of_a_batch(rows, WIDTH, folder), "not_resumable": of_a_batch(rows, WIDTH, None)}
        first = of_a_batch(rows if quick else CENSUS_ROWS, FIRST, folder)
    for kind in (*large.values(), first):
        kind["of_a_step"] = round(of_a_step(kind, single_steps.milliseconds), 4)
    report(
        "memory",
        target=f"<= {TARGET} x a step without, <= 4 bytes a row and scalar",
        met={
            "time": ratio.median <= TARGET,
            "large": all(kind["of_a_step"] <= TARGET - 1 for kind in large.values()),
            "bytes": all(kind["bytes_a_row_and_scalar"] <= 4 for kind in large.values()),
        },
        quick=quick,
        ratio=ratio.describe(),
        ratio_of_cpu=with_memory.cpu_over(single_steps).describe(),
        remembering_ms=with_memory.milliseconds,
        looking_ms=single_steps.milliseconds,
        rows=rows,
        width=WIDTH,
        large=large,
        first_layer_of_the_census=first,
        equal_losses=measured.equal_values(0, 1),
    )


if __name__ == "__main__":
    main()
