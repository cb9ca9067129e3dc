"""From the runs' files to the numbers and tables of `gradients.md`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray
from scipy import stats

LAYERS = ("cut", "first")
SHOWN = ("norm", "cosine", "inner_product", "direction_count", "hint")
UTILITY = ("test_auc", "test_loss", "test_ace", "train_loss", "validation_auc")

Summary = dict[str, Any]
Values = NDArray[np.float64]


def collect(folder: Path, settings: Iterable[str]) -> Summary:
    """Read the finished runs of a study: values by setting, one a seed."""
    found: Summary = {"dataset": {}, "settings": {}, "probe": {}}
    for setting in settings:
        runs = sorted((folder / setting).glob("seed-*/result.json"))
        results = [json.loads(path.read_text(encoding="utf8")) for path in runs]
        if setting == "probe":
            found["probe"] = _probe([path.parent / "steps.parquet" for path in runs])
        elif results:
            found["dataset"] = results[0]["dataset"]
            found["settings"][setting] = {
                "seeds": [result["environment"]["seed"] for result in results],
                "steps": results[0]["cost"]["steps"],
                "seconds": [round(result["cost"]["seconds"], 1) for result in results],
                **{name: [result["utility"]["last"][name] for result in results] for name in UTILITY},
                "leak": _leaks(results),
            }
    return found


def _leaks(results: list[Summary]) -> Summary:
    """Return q95, mean and the null's q95 of each attack and layer, one value a seed."""
    leaks: Summary = {}
    for result in results:
        for entry in result["leakage"]:
            place = leaks.setdefault(f"{entry['label']} {entry['layer']}", {})
            for key in ("q95", "mean", "q95_null", "one_class_steps"):
                place.setdefault(key, []).append(entry[key])
    return leaks


def _probe(paths: list[Path]) -> Summary:
    """Return what the probe logged: the steps, and for each metric one list a seed."""
    found: Summary = {}
    for path in paths:
        table = pq.read_table(path, columns=["step", "metric", "value"])
        table = table.filter(pc.starts_with(table["metric"].cast("string"), "probe."))
        for metric in pc.unique(table["metric"]).to_pylist():
            rows = table.filter(pc.equal(table["metric"], metric)).sort_by("step")
            found.setdefault("steps", rows["step"].to_pylist())
            found.setdefault(metric.removeprefix("probe."), []).append([round(v, 5) for v in rows["value"].to_pylist()])
    return found


def interval(values: Sequence[float] | Values) -> tuple[float, float]:
    """Return the mean over seeds and half the width of its 95 % interval (Student's t); infinite for one seed."""
    array = np.asarray(values, dtype=np.float64)
    if array.size < 2:
        return float(array.mean()), float("inf")
    half = stats.t.ppf(0.975, array.size - 1) * array.std(ddof=1) / np.sqrt(array.size)
    return float(array.mean()), float(half)


def shown(values: Sequence[float] | Values, digits: int = 3) -> str:
    """Write mean ± half-width; the mean alone where there is one seed."""
    mean, half = interval(values)
    return f"{mean:.{digits}f}" + (f" ± {half:.{digits}f}" if np.isfinite(half) else "")


def leak(summary: Summary, setting: str, attack: str, layer: str = "cut", key: str = "q95") -> Values:
    """Return a leak, one value a seed."""
    return np.asarray(summary["settings"][setting]["leak"][f"{attack} {layer}"][key], dtype=np.float64)


def utility(summary: Summary, setting: str, name: str = "test_auc") -> Values:
    """Return a utility, one value a seed."""
    return np.asarray(summary["settings"][setting][name], dtype=np.float64)


def family(summary: Summary, name: str) -> list[str]:
    """Return the settings of a defense that were run, weakest first."""
    return [setting for setting in summary["settings"] if setting.startswith(f"{name}-")]


def places(summary: Summary, settings: Sequence[str]) -> dict[str, list[int]]:
    """Return, for each setting, where the seeds that all of them have are found."""
    seeds = {setting: summary["settings"][setting]["seeds"] for setting in settings}
    shared = sorted(set.intersection(*(set(of) for of in seeds.values())))
    return {setting: [of.index(seed) for seed in shared] for setting, of in seeds.items()}


def share_below(ours: Values, theirs: Values, points: int = 500) -> float:
    """Return the share of the utilities that both curves reach at which `ours` leaks less.

    Parameters
    ----------
    ours, theirs : (N, 2) and (M, 2)
        Points (utility, leak) of one method each; between neighbours in utility, leak is interpolated.
    points : int
        Utilities that are looked at, evenly spaced.
    """
    ours, theirs = ours[ours[:, 0].argsort()], theirs[theirs[:, 0].argsort()]
    low, high = max(ours[0, 0], theirs[0, 0]), min(ours[-1, 0], theirs[-1, 0])
    if not low < high:
        return float("nan")
    # Without the ends: at the right one both curves may be the same undefended run.
    at = np.linspace(low, high, points + 2)[1:-1]
    return float((np.interp(at, *ours.T) < np.interp(at, *theirs.T)).mean())


def trade_off(summary: Summary, attack: str, layer: str, draws: int = 2000) -> dict[str, float]:
    """Return the share of Marvell's curve that lies below iso's, with its 95 % bootstrap interval over seeds."""
    curves = [["none", *family(summary, name)] for name in ("marvell", "iso")]
    at = places(summary, [setting for curve in curves for setting in curve])
    stacks = [
        np.array([[utility(summary, s)[at[s]], leak(summary, s, attack, layer)[at[s]]] for s in curve])
        for curve in curves
    ]
    seeds = stacks[0].shape[2]
    share = share_below(*(stack.mean(axis=2) for stack in stacks))
    if seeds < 2:  # one seed says nothing about others
        return {"share": share, "low": 0.0, "high": 1.0}
    drawn = [
        share_below(*(stack[:, :, rows].mean(axis=2) for stack in stacks))
        for rows in np.random.default_rng(0).integers(0, seeds, (draws, seeds))
    ]
    low, high = np.nanquantile(drawn, (0.025, 0.975))
    return {"share": share, "low": float(low), "high": float(high)}


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Write a Markdown table."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def leak_table(summary: Summary) -> str:
    """Write the q95 of every attack and layer, behind each in brackets what a score that knows nothing reaches."""
    rows = []
    for setting, values in summary["settings"].items():
        for layer in LAYERS:
            leaks = [
                f"{shown(leak(summary, setting, attack, layer))} "
                f"({np.mean(leak(summary, setting, attack, layer, 'q95_null')):.3f})"
                for attack in SHOWN
            ]
            rows.append([setting, layer, str(len(values["seeds"])), *leaks])
    return table(["defense", "layer", "seeds", *SHOWN], rows)


def utility_table(summary: Summary) -> str:
    """Write utility, and its change against the undefended run of the same seed."""
    rows = []
    for setting, values in summary["settings"].items():
        at = places(summary, [setting, "none"])
        change = utility(summary, setting)[at[setting]] - utility(summary, "none")[at["none"]]
        rows.append(
            [
                setting,
                str(len(values["seeds"])),
                *(shown(values[name], 4) for name in ("test_auc", "test_loss", "test_ace")),
                "" if setting == "none" else shown(change, 4),
            ]
        )
    return table(["defense", "seeds", "test AUC", "test loss", "test ACE", "AUC against none"], rows)


def fill(page: str, blocks: Mapping[str, str]) -> str:
    """Put generated blocks between their marks, `<!-- begin NAME -->` and `<!-- end NAME -->`."""
    for name, block in blocks.items():
        marks = re.compile(rf"(<!-- begin {re.escape(name)} -->\n).*?(<!-- end {re.escape(name)} -->)", re.DOTALL)
        page = marks.sub(lambda match, block=block: f"{match[1]}{block}\n{match[2]}", page)  # type: ignore[misc]
    return page
