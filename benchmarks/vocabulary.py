"""(f) A step with 10 million values in the vocabulary against the same step with 10 thousand.

Generated data with 16 categorical columns a party, values by Zipf's law as in click logs; uniform draws, where every
value of a batch is another one, are reported beside. Census preset otherwise, attacks off. Target: at most 1.3.
"""

from __future__ import annotations

import os
import tempfile
from typing import Any

from harness import arguments, compare, report
from lanes import preset, split

TARGET = 1.3


def measure(frequencies: str, quick: bool) -> dict[str, Any]:
    """Measure with one law of frequencies."""
    sizes = (1_000, 10_000) if quick else (10_000, 10_000_000)
    lanes = []
    for vocabulary in sizes:
        options = {"rows": 4_096 if quick else 150_000, "test_rows": 256, "frequencies": frequencies}
        data = {"name": "synthetic", "options": {**options, "vocabulary": vocabulary}}
        lanes.append((f"{vocabulary} values", split, preset(quick, attack={"names": []}, data=data)))
    size = {"starts": 1, "blocks": 4, "steps": 5} if quick else {"starts": 2, "blocks": 40, "steps": 20}
    few, many = compare(lanes, **size).times
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
