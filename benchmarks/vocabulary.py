"""(f) A step with 10 million values in the vocabulary against the same step with 10 thousand.

Generated data with 16 categorical columns a party, values by Zipf's law as in click logs; uniform draws, where every
value of a batch is another one, are reported beside. Census preset otherwise, attacks off. Target: at most 1.3.
"""

from __future__ import annotations

import os
import tempfile
from typing import Any

from harness import Lane, arguments, report, take_turns
from lanes import preset, split

TARGET = 1.3


def measure(frequencies: str, quick: bool) -> dict[str, Any]:
    """Measure one law of frequencies."""
    sizes = (1_000, 10_000) if quick else (10_000, 10_000_000)
    lanes = []
    for vocabulary in sizes:
        options = {"rows": 4_096 if quick else 150_000, "test_rows": 256, "frequencies": frequencies}
        data = {"name": "synthetic", "options": {**options, "vocabulary": vocabulary}}
        lanes.append(Lane(f"{vocabulary} values", split, preset(quick, attack={"names": []}, data=data)))
    with lanes[0], lanes[1]:
        few, many = take_turns(lanes, blocks=4 if quick else 80, steps=5 if quick else 20)
        for lane in lanes:
            lane.finish(120.0)
    return {
        "vocabulary": sizes,
        "ratio": many.over(few).describe(),
        "ratio_of_cpu": many.cpu_over(few).describe(),
        "few_ms": few.milliseconds,
        "many_ms": many.milliseconds,
    }


def main() -> None:
    """Measure and report."""
    quick = arguments(__doc__).quick
    with tempfile.TemporaryDirectory(prefix="flower-vfl-benchmark-") as cache:
        os.environ["FLOWER_VFL_CACHE"] = cache
        zipf, uniform = measure("zipf", quick), measure("uniform", quick)
    met = zipf["ratio"]["median"] <= TARGET
    report("vocabulary", target=f"<= {TARGET}", met=met, quick=quick, zipf=zipf, uniform=uniform)


if __name__ == "__main__":
    main()
