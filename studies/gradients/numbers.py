"""From the runs' files to the numbers and tables of `gradients.md`."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq

from flower_vfl.auditing.verdict import with_own_data
from studies.common import Summary, Values, family, finished, paired, places, share_with_interval, shown, table

LAYERS = ("cut", "first")
SHOWN = ("norm", "cosine", "inner_product", "direction_count", "hint", "residual")
INFORMED = "informed"
READER_HEADS = ("setting", "seeds", "strongest practical attack", "informed reader", "with embeddings or columns")
"""Columns of the attacks and readers that the papers did not have."""

UTILITY = ("test_auc", "test_loss", "test_ace", "train_loss", "validation_auc")


def collect(folder: Path, settings: Iterable[str]) -> Summary:
    """Read the finished runs of a study: values by setting, one a seed."""
    found: Summary = {"dataset": {}, "settings": {}, "probe": {}}
    for setting in settings:
        runs = finished(folder / setting)
        results = [result for _, result in runs]
        if setting == "probe":
            found["probe"] = _probe([run / "steps.parquet" for run, _ in runs])
        elif results:
            found["dataset"] = results[0]["dataset"]
            found["settings"][setting] = {
                "seeds": [result["environment"]["seed"] for result in results],
                "steps": results[0]["cost"]["steps"],
                "seconds": [round(result["cost"]["seconds"], 1) for result in results],
                **{name: [result["utility"]["last"][name] for result in results] for name in UTILITY},
                "leak": _leaks(results),
                INFORMED: [read for result in results for read in _informed(result)],
            }
    return found


def _leaks(results: list[Summary]) -> Summary:
    """Return q95, mean and the null's q95 of each attack and layer, one value a seed."""
    leaks: Summary = {}
    for result in results:
        defended = any(entry["defended"] for entry in result["leakage"])
        for entry in result["leakage"]:
            if entry["phase"] != "train" or entry["defended"] is not defended:
                continue  # read after training, or of what would have left without a defense
            place = leaks.setdefault(f"{entry['label']} {entry['layer']}", {})
            for key in ("q95", "mean", "q95_null", "one_class_steps"):
                place.setdefault(key, []).append(entry[key])
    return leaks


def _informed(result: Summary) -> list[float]:
    """Return the leak AUC of the informed reader of one run on gradients alone; nothing where there was none."""
    return [float(entry["mean"]) for entry in result["leakage"] if entry.get("sees") == ["gradients"]]


def _probe(paths: list[Path]) -> Summary:
    """Return the log of the probe: the steps, and for each metric one list a seed."""
    found: Summary = {}
    for path in paths:
        table = pq.read_table(path, columns=["step", "metric", "value"])
        table = table.filter(pc.starts_with(table["metric"].cast("string"), "probe."))
        for metric in pc.unique(table["metric"]).to_pylist():
            rows = table.filter(pc.equal(table["metric"], metric)).sort_by("step")
            found.setdefault("steps", rows["step"].to_pylist())
            found.setdefault(metric.removeprefix("probe."), []).append([round(v, 5) for v in rows["value"].to_pylist()])
    return found


def leak(summary: Summary, setting: str, attack: str, layer: str = "cut", key: str = "q95") -> Values:
    """Return a leak, one value a seed."""
    return np.asarray(summary["settings"][setting]["leak"][f"{attack} {layer}"][key], dtype=np.float64)


def utility(summary: Summary, setting: str, name: str = "test_auc") -> Values:
    """Return a utility, one value a seed."""
    return np.asarray(summary["settings"][setting][name], dtype=np.float64)


def trade_off(summary: Summary, attack: str, layer: str) -> dict[str, float]:
    """Return the share of Marvell's curve that lies below iso's, with its 95 % bootstrap interval over seeds."""
    curves = [["none", *family(summary, name)] for name in ("marvell", "iso")]
    at = places(summary, [setting for curve in curves for setting in curve])
    marvell, iso = (
        np.array([[utility(summary, s)[at[s]], leak(summary, s, attack, layer)[at[s]]] for s in curve])
        for curve in curves
    )
    return share_with_interval(marvell, iso)


def leak_table(summary: Summary) -> str:
    """Write the q95 of every attack and layer, in brackets that of a random score."""
    rows = []
    first = next(iter(summary["settings"].values()))
    attacks, informed = [attack for attack in SHOWN if f"{attack} cut" in first["leak"]], bool(first.get(INFORMED))
    for setting, values in summary["settings"].items():
        for layer in LAYERS:
            leaks = [
                f"{shown(leak(summary, setting, attack, layer))} "
                f"({np.mean(leak(summary, setting, attack, layer, 'q95_null')):.3f})"
                for attack in attacks
            ]
            if informed:
                leaks.append(shown(values[INFORMED]) if layer == "cut" else "")
            rows.append([setting, layer, str(len(values["seeds"])), *leaks])
    return table(["defense", "layer", "seeds", *attacks, *[INFORMED] * informed], rows)


def utility_table(summary: Summary) -> str:
    """Write utility, and its difference to the undefended run of the same seed."""
    rows = []
    for setting, values in summary["settings"].items():
        change = paired(summary, setting, "none", partial(utility, summary))
        rows.append(
            [
                setting,
                str(len(values["seeds"])),
                *(shown(values[name], 4) for name in ("test_auc", "test_loss", "test_ace")),
                "" if setting == "none" else shown(change, 4),
            ]
        )
    return table(["defense", "seeds", "test AUC", "test loss", "test ACE", "test AUC minus none"], rows)


def reader_table(runs: Path, settings: Iterable[str]) -> str:
    """Return a table of the strongest practical attack, the informed reader, and that with embeddings, by setting."""
    rows = []
    for setting in settings:
        results = [result for _, result in finished(runs / setting)]
        leaks = [result["verdict"]["parties"][0]["leak"] for result in results]
        both = [entry["mean"] for result in results if (entry := with_own_data(result["leakage"])) is not None]
        names = " or ".join(sorted({f"`{leak['practical']['label']}`" for leak in leaks}))
        practical = shown([leak["practical"]["reached"] for leak in leaks])
        informed = shown([leak["informed"]["reached"] for leak in leaks])
        rows.append([f"`{setting}`", str(len(results)), f"{practical} ({names})", informed, shown(both)])
    return table(READER_HEADS, rows)
