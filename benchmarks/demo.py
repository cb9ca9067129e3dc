"""(y) `flower-vfl demo` from start to end: time of the first comparison, time of the end, and memory.

Targets on two cores: the first comparison within 60 s, the end within 180 s. The memory is that of each process alone,
so pages that several share count in each. With `--readme` the table of the tutorial, its first rows in README.md and
the picture there become those of this demo, with the seed, the epochs and the date; the picture needs Chromium.
"""

from __future__ import annotations

import json
import os
import re
import resource
import subprocess
import sys
import tempfile
import threading
import time
from datetime import date
from pathlib import Path
from typing import Any

from harness import parser, report

from flower_vfl.machine import cores
from flower_vfl.simulations.demo.table import markdown

ROOT = Path(__file__).parent.parent
PAGES = {"README.md": 4, "docs/tutorials/first-run.md": None}
"""Pages with the table, and the number of runs in it: the first ones, or None for all."""
TABLE = re.compile(r"(?<=<!-- demo-table -->\n).*?(?=<!-- /demo-table -->)", re.DOTALL)
PICTURED = "marvell-full-s4"
FIRST_SECONDS, ALL_SECONDS = 60.0, 180.0
QUICK = ["--set", "data.name=breast-cancer", "--set", "training.epochs=1"]
_SAMPLE_SECONDS = 0.5


class Memory:
    """The peak of resident memory of a process and of its children, each for itself and all together."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.parent = self.worker = self.together = 0
        threading.Thread(target=self._sample, daemon=True).start()

    def _sample(self) -> None:
        while self._process.poll() is None:
            parent, workers = _resident(self._process.pid), [_resident(pid) for pid in _children(self._process.pid)]
            self.parent, self.worker = max(self.parent, parent), max(self.worker, *workers, 0)
            self.together = max(self.together, parent + sum(workers))
            time.sleep(_SAMPLE_SECONDS)


def _resident(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError):
        return 0


def _children(pid: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def demo(out: Path, options: list[str]) -> dict[str, Any]:
    """Run the demo and return its times and its memory."""
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    command = [sys.executable, "-m", "flower_vfl", "demo", "--out", str(out), *options]
    environment |= {"PYTHONUNBUFFERED": "1", "COLUMNS": "80"}
    started, first = time.perf_counter(), None
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        memory = Memory(process)
        for line in process.stdout or ():
            print(line, end="", file=sys.stderr, flush=True)
            if first is None and "The first comparison" in line:
                first = time.perf_counter() - started
    if process.returncode:
        raise SystemExit(f"the demo ended with exit code {process.returncode}")
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    found = {"first_s": first, "all_s": time.perf_counter() - started, "cpu_s": used.ru_utime + used.ru_stime}
    sizes = {"parent": memory.parent, "worker": memory.worker, "together": memory.together}
    return found | {f"{name}_mib": round(size / 2**20) for name, size in sizes.items()}


def write_readme(out: Path) -> None:
    """Put the table of a demo into the pages, and the picture of a report beside it."""
    summaries = json.loads((out / "summary.json").read_text(encoding="utf8"))
    seed, epochs = summaries[0]["environment"]["seed"], summaries[0]["utility"]["last"]["epoch"]
    words = f"Seed {seed}, {epochs} epochs, {date.today().isoformat()} (`python benchmarks/demo.py --readme`)."
    for page, runs in PAGES.items():
        block = f"{markdown(summaries[:runs])}\n\n{words}\n"
        text = (ROOT / page).read_text(encoding="utf8")
        (ROOT / page).write_text(TABLE.sub(lambda _, block=block: block, text), encoding="utf8")
    subprocess.run([sys.executable, ROOT / "docs" / "images" / "pages.py", "report", out / PICTURED], check=True)


def main() -> None:
    """Measure and report."""
    options = parser(__doc__)
    options.add_argument("--readme", action="store_true", help="put the table and the picture into the pages")
    options.add_argument("--out", type=Path, help="keep the demo's results in this folder")
    given = options.parse_args()
    with tempfile.TemporaryDirectory(prefix="flower-vfl-benchmark-") as folder:
        out = given.out or Path(folder) / "demo"
        load = os.getloadavg()[0]
        measured = demo(out, QUICK if given.quick else [])
        if given.readme:
            write_readme(out)
    report(
        "demo",
        target=f"first comparison <= {FIRST_SECONDS:g} s, all <= {ALL_SECONDS:g} s, on two cores",
        met={"first": measured["first_s"] <= FIRST_SECONDS, "all": measured["all_s"] <= ALL_SECONDS},
        quick=given.quick,
        cores=cores(),
        load_before=round(load, 2),
        **{name: round(value, 1) for name, value in measured.items()},
    )


if __name__ == "__main__":
    main()
