"""(j) Aligning a million IDs a side, privately and by salted hashes, both roles on this machine.

One label party and one feature party that share half of their IDs, through Flower messages in this process; the curve
arithmetic in worker processes. Memory is the peak of the sum over all processes, so it is that of both roles together.
Target: ten minutes and 2 GB for the private method, on two cores.
"""

from __future__ import annotations

import os
import resource
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from harness import arguments, report

from flower_vfl import align, build_config

SECONDS, BYTES = 600.0, 2e9
_PAGE = resource.getpagesize()


def tree_bytes() -> int:
    """Return the resident memory of this process and its children, in bytes."""
    own, total = os.getpid(), 0
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and (
                int(entry.name) == own or int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1]) == own
            ):
                resident, shared = map(int, (entry / "statm").read_text().split()[1:3])
                total += (resident - shared) * _PAGE
        except (OSError, ValueError):
            continue  # it ended meanwhile
    return total


def write_ids(path: Path, first: int, count: int) -> str:
    """Write a file with a label column and IDs like order numbers, in a scattered order."""
    numbers = [(number * 7_368_787) % count + first for number in range(count)]  # a prime: every number once
    ids = pa.array([f"customer-{number:012d}" for number in numbers])
    pq.write_table(pa.table({"id": ids, "label": pa.array([number % 2 for number in numbers])}), path)
    return str(path)


def measure(method: str, count: int, folder: Path) -> dict[str, Any]:
    """Align once, and return the time and the memory."""
    label, feature = (
        write_ids(folder / "label.parquet", 0, count),
        write_ids(folder / "a.parquet", count // 2, count),
    )
    options = {"files": {"a": feature}, "labels_file": label, "ignore": "label"}
    config = build_config({"data": {"name": "files", "options": options}, "align": {"method": method}})
    peak, done = [0], threading.Event()

    def watch() -> None:
        while not done.wait(0.25):
            peak[0] = max(peak[0], tree_bytes())

    before = tree_bytes()
    watcher = threading.Thread(target=watch)
    watcher.start()
    started, cpu = time.perf_counter(), os.times()
    try:
        found = align(config, out=folder / method)
    finally:
        done.set()
        watcher.join()
    seconds, after = time.perf_counter() - started, os.times()
    common = pq.read_metadata(found["a"]).num_rows
    if common != count - count // 2:
        raise SystemExit(f"{common} common IDs were found")
    return {
        "seconds": round(seconds, 1),
        "cpu_seconds": round(sum(after[:4]) - sum(cpu[:4]), 1),
        "peak_mb": round(peak[0] / 1e6),
        "before_mb": round(before / 1e6),
        "common": common,
    }


def main() -> None:
    """Measure and report."""
    quick = arguments(__doc__).quick
    count = 4_000 if quick else 1_000_000
    with tempfile.TemporaryDirectory(prefix="flower-vfl-benchmark-") as folder:
        private, hashed = (measure(method, count, Path(folder)) for method in ("psi", "hash"))
    met = private["seconds"] <= SECONDS and private["peak_mb"] * 1e6 <= BYTES
    report("alignment", target="<= 600 s and 2 GB", met=met, quick=quick, ids_a_side=count, psi=private, hash=hashed)


if __name__ == "__main__":
    main()
