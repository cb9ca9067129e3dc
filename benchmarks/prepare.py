"""(p) Preparing a Criteo-shaped text: rows a second and the peak of resident memory.

The text is generated with the published vocabulary sizes (`criteo_like.py`) and prepared by the command line with
its defaults but min_count = 1, so that no value is dropped. There is no other program to compare with. Targets: 150,000
rows a second on two cores, 4 GB resident. `--rows 45840617` is the real size: 12 GB of text, and 16 GB of prepared
data.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from criteo_like import ROWS, write
from harness import parser, report

RATE, MEMORY = 150_000, 4.0


def main() -> None:
    """Generate, prepare and report."""
    options = parser(__doc__)
    options.add_argument("--rows", type=int, default=2_000_000)
    options.add_argument("--folder", type=Path, help="where the text and the prepared data lie meanwhile")
    given = options.parse_args()
    rows = 20_000 if given.quick else given.rows
    with tempfile.TemporaryDirectory(prefix="flower-vfl-benchmark-", dir=given.folder) as folder:
        text, out = Path(folder) / "train.txt", Path(folder) / "out"
        # Fewer rows cannot have all values: the vocabularies shrink with the table.
        write(text, rows, scale=min(1.0, rows / ROWS))
        command = [sys.executable, "-m", "flower_vfl", "data", "prepare", "criteo", "--set", "min_count=1"]
        started = time.perf_counter()
        subprocess.run([*command, "--from", str(text), "--out", str(out)], check=True, capture_output=True)
        seconds = time.perf_counter() - started
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        vocabulary = (out / "a" / "vocabulary.parquet").stat().st_size
    cpu, memory = used.ru_utime + used.ru_stime, used.ru_maxrss / 2**20
    report(
        "prepare",
        target=f">= {RATE} rows a second on two cores, <= {MEMORY} GB",
        met={"rate": rows / seconds >= RATE, "memory": memory <= MEMORY},
        quick=given.quick,
        rows=rows,
        seconds=round(seconds, 2),
        cpu_seconds=round(cpu, 2),
        rows_a_second=round(rows / seconds),
        rows_a_second_of_cpu=round(rows / cpu),
        peak_gib=round(memory, 3),
        vocabulary_mib=round(vocabulary / 2**20, 1),
        load=os.getloadavg()[0],
    )


if __name__ == "__main__":
    main()
