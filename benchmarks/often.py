"""(w) Frequent operations, and one that users wait for: the leak AUC of a batch, a row of the journal, `--help`.

The leak AUC of 1,024 scores against scikit-learn's, a row that a run writes down against a row of Python's csv writer,
and `flower-vfl --help` against a Python that does nothing, by turns. Targets: at most 60 microseconds a batch, 6
microseconds a row, one second for `--help`.
"""

from __future__ import annotations

import csv
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from harness import Sample, arguments, report
from sklearn.metrics import roc_auc_score

from flower_vfl.metrics import leak_auc
from flower_vfl.tracking import StepLog

BATCH, ROWS = 1024, 20_000
TARGETS = {"leak_auc": 60e-6, "row": 6e-6, "help": 1.0}


def seconds(work: Callable[[], object], times: int) -> float:
    """Return the mean seconds of a call, over `times` calls."""
    started = time.perf_counter()
    for _ in range(times):
        work()
    return (time.perf_counter() - started) / times


def by_turns(ours: Callable[[], object], theirs: Callable[[], object], pairs: int, times: int) -> tuple[Sample, Sample]:
    """Return the seconds of ours and the ratio to theirs, pair by pair."""
    found = [(seconds(ours, times), seconds(theirs, times)) for _ in range(pairs)]
    return Sample([own for own, _ in found]), Sample([own / other for own, other in found])


def write_down(folder: Path) -> None:
    """Write rows as a run does."""
    log = StepLog(folder)
    for step in range(ROWS):
        log.add(step=step, epoch=0, party="a", layer="cut", attack="norm", metric="auc", value=0.5)
    log.flush()


def write_csv(folder: Path) -> None:
    """Write the same rows as text."""
    with (folder / "rows.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        for step in range(ROWS):
            writer.writerow((step, 0, "a", "cut", "norm", "auc", 0.5))


def main() -> None:
    """Measure and report."""
    quick = arguments(__doc__).quick
    torch.manual_seed(0)
    scores, labels = torch.rand(BATCH), (torch.rand(BATCH) < 0.08).float()
    arrays = np.asarray(labels), np.asarray(scores)
    pairs = 2 if quick else 15
    help_of, nothing = [sys.executable, "-m", "flower_vfl", "--help"], [sys.executable, "-c", ""]
    with tempfile.TemporaryDirectory(prefix="flower-vfl-benchmark-") as folder:
        found = {
            "leak_auc": by_turns(
                lambda: leak_auc(scores, labels), lambda: roc_auc_score(*arrays), pairs, 20 if quick else 500
            ),
            "row": by_turns(lambda: write_down(Path(folder)), lambda: write_csv(Path(folder)), pairs, 1),
            "help": by_turns(
                lambda: subprocess.run(help_of, stdout=subprocess.DEVNULL, check=True),
                lambda: subprocess.run(nothing, check=True),
                *(pairs, 1),
            ),
        }
    took = {name: own.median / (ROWS if name == "row" else 1) for name, (own, _) in found.items()}
    report(
        "often",
        target=", ".join(f"{name} <= {limit:g} s" for name, limit in TARGETS.items()),
        met={name: took[name] <= limit for name, limit in TARGETS.items()},
        quick=quick,
        seconds={name: float(f"{value:.3g}") for name, value in took.items()},
        ratios={name: ratio.describe() for name, (_, ratio) in found.items()},
    )


if __name__ == "__main__":
    main()
