"""(e) A step on a table of 10 million rows against the same step on one of 150 thousand, and the memory that it costs.

Generated data, equal columns and vocabulary, warm page cache, census preset otherwise, attacks off. Per-step figures
exclude work once an epoch (drawing the order of all rows), which grows with the table; it is reported beside.
Targets: time ratio at most 1.1; anonymous resident memory (RssAnon) grows by at most 8 bytes a row.
"""

from __future__ import annotations

import os
import tempfile
import time

from harness import arguments, compare, report
from lanes import preset, split

from flower_vfl.protocol.schedule import Schedule

TIME, MEMORY = 1.1, 8.0


def main() -> None:
    """Measure and report."""
    quick = arguments(__doc__).quick
    small, large = (4_096, 40_960) if quick else (150_000, 10_000_000)
    with tempfile.TemporaryDirectory(prefix="flower-vfl-benchmark-") as cache:
        os.environ["FLOWER_VFL_CACHE"] = cache
        lanes = []
        for rows in (small, large):
            options = {"rows": rows, "test_rows": 256, "vocabulary": 1_000}
            config = preset(quick, attack={"names": []}, data={"name": "synthetic", "options": options})
            lanes.append((f"{rows} rows", split, config))
        size = {"starts": 1, "blocks": 4, "steps": 5} if quick else {"starts": 2, "blocks": 40, "steps": 20}
        measured = compare(lanes, **size)
        few, many = measured.times
        memory = [measured.memory(lane, "rss_anon") for lane in range(2)]
        started = time.perf_counter()
        Schedule(1, large, 256, 1024, 8192, 1).train_batch(0)
        epoch = time.perf_counter() - started
    ratio, bytes_a_row = many.over(few), (memory[1] - memory[0]) / (large - small)
    report(
        "table_size",
        target=f"time ratio <= {TIME}, at most {MEMORY} bytes a row",
        met=ratio.median <= TIME and bytes_a_row <= MEMORY,
        quick=quick,
        rows=[small, large],
        ratio=ratio.describe(),
        ratio_of_cpu=many.cpu_over(few).describe(),
        few_ms=few.milliseconds,
        many_ms=many.milliseconds,
        rss_anon_mib=[round(value / 2**20, 1) for value in memory],
        bytes_a_row=round(bytes_a_row, 2),
        order_of_an_epoch_s=round(epoch, 2),
    )


if __name__ == "__main__":
    main()
