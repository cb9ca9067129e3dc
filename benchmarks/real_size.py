"""(r) A step on a prepared Criteo folder of the real size against the same step on a thousand of its rows.

Make the folder with `criteo_like.py` and `flower-vfl data prepare criteo --set min_count=1 --set label_columns=all`; a
smoke run makes a small one.
The preset `criteo`, both parties in one process, attacks off; both sides have all values of the vocabularies. The
thousand rows are repeated within an epoch, so that no evaluation falls into a block. The work that is done once an
epoch is reported beside: drawing the order of all rows, and waiting for the first window of them. Targets: time ratio
at most 1.1; at most 6 GB resident, the pages of mapped files among them.
"""

from __future__ import annotations

import logging
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from criteo_like import ROWS, write
from harness import Gate, compare, parser, report
from lanes import Ticks
from numpy.typing import NDArray

from flower_vfl import load_config, run
from flower_vfl.config import Config, build_config
from flower_vfl.data import open_dataset
from flower_vfl.data.sources.catalog import prepare
from flower_vfl.data.store.dataset import Labels, PartyTable
from flower_vfl.data.store.memory import MemoryData
from flower_vfl.data.store.source import ArraySource
from flower_vfl.nn.placement import IN_MEMORY
from flower_vfl.parties.loading import WINDOW_BYTES, Loader
from flower_vfl.protocol.schedule import Schedule

TIME, MEMORY = 1.1, 6.0
FEW, ROUND = 1_000, 1_000_000


class _Repeated(ArraySource):
    """A thousand rows repeated to a million; each batch has all of them, as each batch of a thousand rows would."""

    def __len__(self) -> int:
        return ROUND

    def gather(self, rows: NDArray[np.integer]) -> tuple[torch.Tensor, ...]:
        return super().gather(rows.argsort() % FEW)


def beginning(folder: Path) -> MemoryData:
    """Return the first thousand rows of a prepared folder, with all its values."""
    whole = open_dataset(folder)
    rows = np.arange(FEW)
    tables = {}
    for name in dict.fromkeys((*whole.parties, whole.label_party)):
        table = whole.party(name)
        train, test = ([part.numpy() for part in source.gather(rows)] for source in (table.train, table.test))
        tables[name] = PartyTable(name, table.spec, _Repeated(*train), ArraySource(*test), table.columns)
    labels = whole.labels()
    target = Labels(np.tile(labels.train[:FEW], ROUND // FEW), labels.test[:FEW], labels.classes)
    return MemoryData(whole.name, tables, whole.label_party, target)


def train(gate: Gate, folder: str, few: bool) -> None:
    """Train the preset until the benchmark is over."""
    logging.disable(logging.WARNING)
    config = settings(folder)
    run(config, data=lambda _: beginning(Path(folder)) if few else open_dataset(Path(folder)), observers=(Ticks(gate),))


def settings(folder: str) -> Config:
    """Return the preset on that folder."""
    values = load_config("criteo").model_dump()
    values["data"] |= {"path": folder}
    values["training"] |= {"validation": 0.0}
    values["attack"] |= {"names": [], "informed": 0, "snapshots": []}
    return build_config(values)


def main() -> None:
    """Find the folder and measure."""
    options = parser(__doc__)
    options.add_argument("--data", type=Path, help="the prepared folder")
    given = options.parse_args()
    with tempfile.TemporaryDirectory(prefix="flower-vfl-benchmark-") as temporary:
        if given.data is None:
            if not given.quick:
                options.error("name the prepared folder as --data; how it is made stands at the beginning of this file")
            given.data = small(Path(temporary))
        measure(given.data, given.quick)


def small(folder: Path) -> Path:
    """Make a folder of few rows."""
    write(folder / "train.txt", 20_000, scale=20_000 / ROWS)
    options = {"min_count": 1, "label_columns": "all"}
    prepare("criteo", source=folder / "train.txt", out=folder / "criteo", options=options)
    return folder / "criteo"


def measure(data: Path, quick: bool) -> None:
    """Measure and report."""
    lanes = [(name, train, str(data), few) for name, few in (("thousand", True), ("all", False))]
    size = {"starts": 1, "blocks": 2, "steps": 4} if quick else {"starts": 2, "blocks": 40, "steps": 20}
    measured = compare(lanes, **size)
    few, many = measured.times
    resident, anonymous = (measured.memory(1, kind) / 2**30 for kind in ("rss", "rss_anon"))
    whole = open_dataset(data)
    schedule = Schedule(1, whole.alignment.rows, 256, 1024, 8192, 1)
    started = time.perf_counter()
    schedule.train_batch(0)
    ordered = time.perf_counter()
    Loader(whole.party("a").train, schedule, IN_MEMORY).batch(0)
    loaded = time.perf_counter()
    ratio = many.over(few)
    report(
        "real_size",
        target=f"time ratio <= {TIME}, <= {MEMORY} GB resident",
        met={"time": ratio.median <= TIME, "memory": resident * 2**30 / 1e9 <= MEMORY},
        quick=quick,
        rows=whole.alignment.rows,
        values=sum(whole.party("a").spec.cardinalities),
        ratio=ratio.describe(),
        ratio_of_cpu=many.cpu_over(few).describe(),
        few_ms=few.milliseconds,
        many_ms=many.milliseconds,
        resident_gib=round(resident, 2),
        anonymous_gib=round(anonymous, 2),
        order_of_an_epoch_s=round(ordered - started, 2),
        first_window_s=round(loaded - ordered, 2),
        window_steps=WINDOW_BYTES // (whole.party("a").train.row_bytes * schedule.batch_size),
    )


if __name__ == "__main__":
    main()
