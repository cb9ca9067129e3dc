"""(l) A run in which every party keeps its state each 100 steps against the same run that keeps none.

Census preset, `inproc`, all parties' files on one disk, one torch thread, journals on disk in both, evaluation
excluded. A block of 100 steps holds one checkpoint. The losses are compared, bit for bit. Beside the ratio of blocks,
which differ by more than a checkpoint takes: the time that the label party waits for one. Target: at most 2 %.
"""

from __future__ import annotations

import contextlib
import statistics
import time
from typing import Any

from harness import Enough, Gate, arguments, compare, report
from lanes import preset, split

from flower_vfl.config import Config
from flower_vfl.training.checkpointing import Checkpointing

TARGET = 1.02
EVERY = 100


def storage(gate: Gate, config: Config) -> dict[str, Any]:
    """Train with checkpoints; return the seconds of each."""
    seconds: list[float] = []
    save = Checkpointing.save

    def timed(self: Checkpointing, step: int) -> None:
        started = time.perf_counter()
        save(self, step)
        seconds.append(time.perf_counter() - started)

    Checkpointing.save = timed  # type: ignore[method-assign]
    with contextlib.suppress(Enough):
        split(gate, config, True)
    return {"seconds": seconds}


def main() -> None:
    """Measure and report."""
    quick = arguments(__doc__).quick
    every = 2 if quick else EVERY
    kept, none = (preset(quick, checkpoint={"every": steps}) for steps in (every, -1))
    size = {"starts": 1, "blocks": 2, "steps": every} if quick else {"starts": 4, "blocks": 12, "steps": every}
    measured = compare((("kept", storage, kept), ("none", split, none, True)), **size)
    with_them, plain = measured.times
    ratio = with_them.over(plain)
    saves = [seconds for results in measured.results for seconds in results[0]["more"]["seconds"]]
    share = statistics.median(saves) / (every * plain.milliseconds / 1000)
    report(
        "checkpoints",
        target=f"<= {TARGET} x a step without",
        met=max(ratio.median, 1 + share) <= TARGET,
        quick=quick,
        ratio=ratio.describe(),
        ratio_of_totals=round(sum(with_them.wall) / sum(plain.wall), 4),
        ratio_of_cpu=with_them.cpu_over(plain).describe(),
        checkpoint_ms={"median": round(1000 * statistics.median(saves), 1), "worst": round(1000 * max(saves), 1)},
        checkpoints=len(saves),
        share_by_the_clock=round(share, 4),
        step_ms=plain.milliseconds,
        equal_losses=measured.equal_values(0, 1),
    )


if __name__ == "__main__":
    main()
