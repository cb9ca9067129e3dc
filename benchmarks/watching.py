"""(d) A run with attacks and the monitor against the same run without them.

The norm attack at the cut and at the first layer of every feature party, the label party's monitor, scoring over the
audit channel, and the journals on disk; census preset, `inproc`, one torch thread, evaluation excluded. The weights
are the same with and without (the losses are compared, bit for bit). Target: at most 5 % of a step.
"""

from __future__ import annotations

from harness import arguments, compare, report
from lanes import preset, split

TARGET = 1.05


def main() -> None:
    """Measure and report."""
    quick = arguments(__doc__).quick
    watched, blind = preset(quick, attack={"names": ["norm"]}), preset(quick, attack={"names": []})
    lanes = (("watched", split, watched, True), ("blind", split, blind))
    size = {"starts": 1, "blocks": 4, "steps": 5} if quick else {"starts": 8, "blocks": 24, "steps": 20}
    measured = compare(lanes, **size)
    seen, unseen = measured.times
    ratio = seen.over(unseen)
    report(
        "watching",
        target=f"<= {TARGET} x a step without",
        met=ratio.median <= TARGET,
        quick=quick,
        ratio=ratio.describe(),
        ratio_of_totals=round(sum(seen.wall) / sum(unseen.wall), 4),
        ratio_of_cpu=seen.cpu_over(unseen).describe(),
        watched_ms=seen.milliseconds,
        blind_ms=unseen.milliseconds,
        equal_losses=measured.equal_values(0, 1),
    )


if __name__ == "__main__":
    main()
