"""Measurements period by period (day by day), for training in time order.

The values of a period are those of a model trained on the periods before it: the utility before any step on it, and
the leak of its own steps, each attacked by gradients of a model that was not yet trained on that batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from flower_vfl.data.store.periods import Periods
from flower_vfl.files import replacing
from flower_vfl.metrics import nearest_rank, null_quantile
from flower_vfl.tracking import read_steps, read_table

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

PERIODS = "periods.parquet"
PERIODS_SCHEMA = pa.schema(
    [
        ("period", pa.int32()),
        ("name", pa.string()),
        ("party", pa.string()),
        ("layer", pa.string()),
        ("attack", pa.string()),
        ("metric", pa.string()),
        ("value", pa.float64()),
    ]
)
_LEAKS = ("auc", "monitor_auc")
_NEXT, _TEST = "next_", "test_"

PeriodRow = tuple[int, str, str, str, str, float]  # period, party, layer, attack, metric, value


def utility_after(metrics: Mapping[str, float]) -> dict[str, float]:
    """Return the utility of one period's model in the next period; after the last one, that on the test set.

    Examples
    --------
    >>> utility_after({"epoch": 1, "next_auc": 0.7, "test_auc": 0.6}), utility_after({"epoch": 2, "test_auc": 0.65})
    ({'auc': 0.7}, {'auc': 0.65})
    """
    source = _NEXT if any(name.startswith(_NEXT) for name in metrics) else _TEST
    return {name.removeprefix(source): metrics[name] for name in metrics if name.startswith(source)}


def describe_periods(epochs: Sequence[Mapping[str, float]], periods: Periods) -> dict[str, Any]:
    """Return the `periods` entry of `result.json`: the trained periods, and the mean utility in the next ones."""
    found = [utility_after(metrics) for metrics in epochs]
    values = {name: [metrics[name] for metrics in found] for name in (found[0] if found else ())}
    means = {name: float(np.mean(known)) if np.isfinite(known).all() else None for name, known in values.items()}
    return {
        "trained": len(found),
        "first": periods.name(1) if found else None,
        "last": periods.name(len(found)) if found else None,
        "mean": means,
    }


def write_periods(folder: Path, periods: Periods, known_positives: Mapping[str, int] | None = None) -> None:
    """Write `periods.parquet`: the steps of a run summarised by period, a row a value.

    Periods are counted from 1; the one after the last is the test. With an attack, `auc_q95` and `auc_mean` (of the
    monitor: `monitor_auc_q95` ...) are over the period's steps. Without one, `auc`, `loss` and so on are the values in
    this period of the model that had seen the periods before, and `null_q95` is the value of chance in its steps.
    Attacks that know positives of each batch, which are not scored, have a `null_q95` of their own.

    Parameters
    ----------
    folder
        Folder of the run, with its `steps.parquet`.
    periods
        Periods of its data.
    known_positives
        Number of positives of a batch that an attack knows, by its label; 0 for an attack that is not named.
    """
    steps = read_steps(folder)
    rows = sorted([*_leaks(steps, known_positives or {}), *_utility(steps)])
    columns = list(zip(*rows, strict=True)) or [()] * 6
    names = [periods.name(period) for period in columns[0]]
    table = pa.table([pa.array(column) for column in (columns[0], names, *columns[1:])], names=PERIODS_SCHEMA.names)
    with replacing(folder / PERIODS) as temporary:
        pq.write_table(table.cast(PERIODS_SCHEMA), temporary, compression="zstd")


def read_periods(folder: Path) -> pa.Table:
    """Return the table that `write_periods` wrote; without rows where a run has no such file.

    Raises
    ------
    InputError
        When the file cannot be read.
    """
    return read_table(folder / PERIODS, PERIODS_SCHEMA)


def _leaks(steps: pa.Table, known_positives: Mapping[str, int]) -> Iterator[PeriodRow]:
    """Yield the quantile and the mean of each attack's AUC in each period, and the null quantile there."""
    table = steps.filter(pc.is_in(steps["metric"], pa.array(_LEAKS)))
    groups = table.group_by(["epoch", "party", "layer", "attack", "metric"]).aggregate(
        [("value", "list"), ("step", "list")]
    )
    scored: dict[tuple[int, str], set[int]] = {}
    for entry in groups.to_pylist():
        values = np.array(entry["value_list"])
        for attack in {"", entry["attack"] if known_positives.get(entry["attack"]) else ""}:
            scored.setdefault((entry["epoch"], attack), set()).update(entry["step_list"])
        keys = (entry["epoch"], entry["party"], entry["layer"], entry["attack"])
        known = values[np.isfinite(values)]
        if known.size:
            yield *keys, f"{entry['metric']}_q95", nearest_rank(known)
            yield *keys, f"{entry['metric']}_mean", float(known.mean())
    counts = {metric: _by_step(steps, metric) for metric in ("batch_rows", "batch_positives")}
    for (epoch, attack), scored_steps in scored.items():
        pairs = [(counts["batch_rows"][step], counts["batch_positives"][step]) for step in scored_steps]
        left_out = known_positives.get(attack, 0)
        null = null_quantile((int(rows - found), max(int(found) - left_out, 0)) for rows, found in pairs)
        yield epoch, "label", "", attack, "null_q95", null


def _utility(steps: pa.Table) -> Iterator[PeriodRow]:
    """Yield the utility in the period after each one that was trained on."""
    own = steps.filter(pc.and_(pc.equal(steps["party"], "label"), pc.equal(steps["attack"], "")))
    own = own.filter(pc.or_(pc.starts_with(own["metric"], _NEXT), pc.starts_with(own["metric"], _TEST)))
    found: dict[int, dict[str, float]] = {}
    for row in own.to_pylist():
        found.setdefault(row["epoch"], {})[row["metric"]] = row["value"]
    for epoch, metrics in found.items():
        for name, value in utility_after(metrics).items():
            yield epoch + 1, "label", "", "", name, value


def _by_step(steps: pa.Table, metric: str) -> dict[int, float]:
    table = steps.filter(pc.equal(steps["metric"], metric))
    columns: list[NDArray[Any]] = [table[name].to_numpy() for name in ("step", "value")]
    return dict(zip(*(column.tolist() for column in columns), strict=True))
