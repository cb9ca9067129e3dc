"""Results of a sweep: one table with a row a trial, and the results of all runs in one file."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from flower_vfl.apps.sweeps import SUMMARY, TABLE
from flower_vfl.files import replacing, write_json_atomic
from flower_vfl.simulations.sweep.folder import SweepFolder
from flower_vfl.simulations.sweep.trials import Trial

WAITING, FAILED = "not run", "failed"
_COSTS = ("steps", "seconds", "seconds_compute", "seconds_wait", "bytes_up", "bytes_down", "together")
_LEAKS = (
    "q95",
    "q95_null",
    "mean",
    "max",
    "steps",
    "one_class_steps",
    "baseline",
    "advantage",
    "detection_error_mean",
    "detection_error_q05",
)


def write_results(folder: SweepFolder, failures: Mapping[str, str] | None = None) -> list[dict[str, Any]]:
    """Write `trials.parquet` and `summary.json`, and return the latter: the result of each run that has left one.

    Parameters
    ----------
    folder : SweepFolder
        The sweep's folder.
    failures : Mapping, optional
        Reason why a trial failed in this start, by the trial's name.
    """
    failures = failures or {}
    results = [(trial, folder.result(trial)) for trial in folder.trials]
    rows = [
        {**row(trial, result, failures.get(trial.run, "")), "attempts": folder.attempts.get(trial.run, 0)}
        for trial, result in results
    ]
    with replacing(folder.path / TABLE) as temporary:
        pq.write_table(_table(rows), temporary, compression="zstd")
    summaries = [{"run": trial.run, **result} for trial, result in results if result is not None]
    write_json_atomic(folder.path / SUMMARY, summaries)
    return summaries


def row(trial: Trial, result: Mapping[str, Any] | None, failure: str = "") -> dict[str, Any]:
    """Return one trial as a row: what varies, seeds, utility, every leak measure, cost and status.

    A leak's column is named as ``leak/train/attacker/a/cut/norm/auc/q95``: phase, source, party, layer, attack, metric
    and which number of it; ``clean`` before the phase marks gradients before the defense, which no party received.
    """
    status = str(result.get("status", "finished")) if result else (FAILED if failure else WAITING)
    found: dict[str, Any] = {"run": trial.run, "status": FAILED if failure else status}
    found["error"] = failure or str((result or {}).get("error", ""))
    found |= trial.values
    found |= {"seed": trial.config.seed, "schedule_seed": trial.config.shared_seed}
    if not result:
        return found
    for which in ("last", "best"):
        values = result["utility"].get(which) or {}
        found |= {f"{which}/{name}": value for name, value in values.items()}
    found |= {f"model/{name}": value for name, value in (result.get("model") or {}).items()}
    defended = bool(result["defenses"])
    for entry in result["leakage"]:
        place = "/".join(str(entry.get(key, "")) for key in ("phase", "source", "party", "layer"))
        label = f"{entry.get('label', entry.get('attack'))}/{entry.get('metric')}"
        kind = "leak" if bool(entry.get("defended", defended)) == defended else "leak/clean"
        found |= {f"{kind}/{place}/{label}/{name}": entry[name] for name in _LEAKS if name in entry}
    found |= {f"cost/{name}": result["cost"].get(name) for name in _COSTS}
    return found


def _table(rows: Sequence[Mapping[str, Any]]) -> pa.Table:
    """Return rows as columns; a key whose values are of several kinds becomes text."""
    names = list(dict.fromkeys(name for found in rows for name in found))
    return pa.table({name: _column([found.get(name) for found in rows]) for name in names})


def _column(values: Sequence[Any]) -> pa.Array:
    kinds = {type(value) for value in values if value is not None}
    if kinds <= {int, float} and float in kinds:
        return pa.array([None if v is None or not math.isfinite(v) else float(v) for v in values], pa.float64())
    if len(kinds) > 1 or not kinds <= {int, float, bool, str}:
        return pa.array([None if value is None else str(value) for value in values], pa.string())
    return pa.array(list(values), None if kinds else pa.float64())
