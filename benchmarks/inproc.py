"""(a) A split run in one process against a plain PyTorch loop over the joined network.

Same modules, optimizers, batches and initial weights (the losses are compared, bit for bit), census preset, attacks
off, one torch thread, evaluation excluded. Target: steps per second of `inproc` at least 0.95 of the plain loop's.
"""

from __future__ import annotations

from harness import arguments, compare, report
from lanes import joined, preset, split

TARGET = 0.95


def main() -> None:
    """Measure and report."""
    quick = arguments(__doc__).quick
    config = preset(quick, attack={"names": []})
    size = {"starts": 1, "blocks": 4, "steps": 5} if quick else {"starts": 8, "blocks": 24, "steps": 20}
    measured = compare((("inproc", split, config), ("plain", joined, config)), **size)
    mine, plain = measured.times
    ratio = plain.over(mine)
    report(
        "inproc",
        target=f">= {TARGET} of the plain loop's steps per second",
        met=ratio.median >= TARGET,
        quick=quick,
        ratio=ratio.describe(),
        ratio_of_totals=round(sum(plain.wall) / sum(mine.wall), 4),
        ratio_of_cpu=plain.cpu_over(mine).describe(),
        inproc_ms=mine.milliseconds,
        plain_ms=plain.milliseconds,
        equal_losses=measured.equal_values(0, 1),
    )


if __name__ == "__main__":
    main()
