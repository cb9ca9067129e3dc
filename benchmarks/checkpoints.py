"""(l) A run in which every party keeps its state each 100 steps against the same run that keeps none.

Census preset, `inproc`, all parties' files on one disk, one torch thread, journals on disk in both, evaluation
excluded. A block of 100 steps holds one checkpoint. The losses are compared, bit for bit. Target: at most 2 %.
"""

from __future__ import annotations

from harness import arguments, compare, report
from lanes import preset, split

TARGET = 1.02
EVERY = 100


def main() -> None:
    """Measure and report."""
    quick = arguments(__doc__).quick
    every = 5 if quick else EVERY
    kept, none = (preset(quick, checkpoint={"every": steps}) for steps in (every, -1))
    size = {"starts": 1, "blocks": 2, "steps": every} if quick else {"starts": 4, "blocks": 12, "steps": every}
    measured = compare((("kept", split, kept, True), ("none", split, none, True)), **size)
    keeping, plain = measured.times
    ratio = keeping.over(plain)
    report(
        "checkpoints",
        target=f"<= {TARGET} x a step without",
        met=ratio.median <= TARGET,
        quick=quick,
        ratio=ratio.describe(),
        ratio_of_totals=round(sum(keeping.wall) / sum(plain.wall), 4),
        ratio_of_cpu=keeping.cpu_over(plain).describe(),
        checkpoint_ms=round(every * (keeping.milliseconds - plain.milliseconds), 1),
        step_ms=plain.milliseconds,
        equal_losses=measured.equal_values(0, 1),
    )


if __name__ == "__main__":
    main()
