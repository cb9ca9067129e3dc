"""The gain in test AUC by unaligned rows, where parties share few people: the study behind `overlap.md`.

Usage::

    python -m studies overlap run                       # all runs; a finished one is not made again
    python -m studies overlap run --settings off-5 on-5 off-100 --seeds 0
    python -m studies overlap page                      # the table and the verdict of the page from the runs

Runs lie in `--runs` (default runs/overlap) as `census/<setting>/seed-<n>`, a setting being `off-` or `on-` and the
overlap in percent, or `on18-5` for 18 passes of pre-training at an overlap of 5 %; `page` writes `overlap.json` and
the marked blocks of `overlap.md`, in `docs/results`. Models are those of the preset; length, batches and learning rate
fit the number of aligned rows, and the best epoch by validation is kept. The test people are the same, whatever the
overlap. These runs are not attacked.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from studies.common import (
    Job,
    Study,
    Summary,
    Values,
    Verdict,
    by_setting,
    claim_table,
    do,
    interval,
    paired,
    places,
    shown,
    table,
    verdict,
    write_page,
)

CENSUS = "census"
OVERLAPS = (1, 5, 20, 100)
"""Percent of the training people that both parties have; of the others each has one half."""

PRETRAIN = 6
"""Passes over a party's rows before the first step: as many as the preset trains for."""

PASSES_AT = 5
"""The overlap, in percent, at which more passes were tried."""

MORE_PASSES = (18, 36)
TARGET = 0.5
SETTINGS = [f"{mode}-{overlap}" for overlap in OVERLAPS for mode in ("off", "on")]
PASSES = {PRETRAIN: f"on-{PASSES_AT}"} | {passes: f"on{passes}-{PASSES_AT}" for passes in MORE_PASSES}
SETTINGS += [PASSES[passes] for passes in MORE_PASSES]
SEEDS = range(3)
PLAIN = {"attack.names": [], "attack.informed": 0, "attack.snapshots": [], "attack.embeddings": 0, "threads": 1}
FITTED = {
    **{f"training.{name}": "auto" for name in ("epochs", "batch_size", "learning_rate")},
    "training.schedule": "constant",
}


def settings_of(setting: str, seed: int, *, quick: bool) -> dict[str, Any]:
    """Return the changes of a run to the preset."""
    mode, _, percent = setting.partition("-")
    pretrain = int(mode.removeprefix("on") or PRETRAIN) if mode != "off" else 0
    pretrain = min(pretrain, 1) if quick else pretrain
    short = {"training.epochs": 1} if quick else {}
    overlap = {"data.options.overlap": int(percent) / 100, "training.pretrain": pretrain}
    return {**PLAIN, **FITTED, **overlap, **short, "seed": seed}


def run_one(job: Job) -> float:
    """Do one run and return its seconds."""
    from flower_vfl import load_config

    return do(job, load_config(CENSUS, settings_of(job.setting, job.seed, quick=job.options["quick"])))


def _numbers(result: Summary) -> Iterator[tuple[str, float]]:
    utility = result["utility"]
    kept = utility.get("best") or utility["last"]
    yield from ((name, kept[name]) for name in ("validation_auc", "test_auc"))


def utility_table(summary: Summary) -> str:
    """Write a row an overlap: test AUC without unaligned rows and with them, and the gain."""
    found, rows = summary["settings"], []
    for overlap in OVERLAPS:
        pair = [f"off-{overlap}", f"on-{overlap}"]
        shows = [shown(found[name]["test_auc"], 4) if name in found else "not run" for name in pair]
        gains = ""
        if found.keys() >= set(pair):
            gain = paired(summary, pair[1], pair[0], lambda name: found[name]["test_auc"])
            gains = f"{shown(gain, 4)}; {gain.min():+.4f} to {gain.max():+.4f}"
        if found.keys() & set(pair):
            rows.append([f"{overlap} %", *shows, gains])
    return table(
        ["overlap", "aligned rows only", "with `training.pretrain`", "gain; least and largest of a seed"], rows
    )


def passes_table(summary: Summary) -> str:
    """Write a row a number of passes: validation AUC of the seeds that all have, and test AUC of the best by it alone.

    Empty where no seed has more than one number of passes.
    """
    found = {passes: name for passes, name in PASSES.items() if name in summary["settings"]}
    at = places(summary, list(found.values())) if len(found) > 1 else {}
    if not any(at.values()):
        return ""
    aucs = {
        measure: {n: np.asarray(summary["settings"][name][measure])[at[name]] for n, name in found.items()}
        for measure in ("validation_auc", "test_auc")
    }
    chosen = max(found, key=lambda passes: float(aucs["validation_auc"][passes].mean()))
    rows = [
        [
            str(passes),
            str(len(values)),
            shown(values, 4),
            ", ".join(f"{value:.4f}" for value in values),
            shown(aucs["test_auc"][passes], 4) if passes == chosen else "",
        ]
        for passes, values in aucs["validation_auc"].items()
    ]
    heads = ["passes", "seeds", "validation AUC", "each seed", "test AUC of the best by validation"]
    return table(heads, rows)


def recovered(summary: Summary, overlap: int) -> Values:
    """Return the share of the distance to all rows that unaligned ones recover, (S,), of the seeds that have all runs.

    Raises
    ------
    KeyError
        When one of the three settings has no run.
    """
    settings = [f"off-{overlap}", f"on-{overlap}", "off-100"]
    at = places(summary, settings)
    off, on, whole = (np.asarray(summary["settings"][name]["test_auc"])[at[name]] for name in settings)
    return np.asarray((on - off) / (whole - off), dtype=np.float64)


def claims(summary: Summary) -> list[Verdict]:
    """Return the verdicts on the recovery of half of the distance, at each overlap that was run."""
    found = []
    for overlap in OVERLAPS[:-1]:
        if {f"off-{overlap}", f"on-{overlap}", "off-100"} <= summary["settings"].keys():
            parts = recovered(summary, overlap)
            mean, half = interval(parts)
            holds = None if abs(mean - TARGET) < half else mean > TARGET
            each = ", ".join(f"{part:.2f}" for part in parts)
            claim = f"at {overlap} %, at least half of the distance to all rows is recovered"
            found.append(verdict(claim, holds, f"{shown(parts, 2)}; each seed: {each}"))
    return found


def make_page(runs: Path, out: Path) -> None:
    """Compute everything that the page shows from the runs' files."""
    summary = by_setting(runs / CENSUS, SETTINGS, _numbers)
    if summary["settings"]:
        summary["claims"] = claims(summary)
        blocks = {
            "census": utility_table(summary),
            "passes": passes_table(summary),
            "claims": claim_table(summary["claims"]),
        }
        write_page(out / "overlap.md", {CENSUS: summary}, blocks)


STUDY = Study(
    __doc__,
    "overlap",
    studies=[CENSUS],
    settings=SETTINGS,
    seeds=SEEDS,
    quick=["off-1", "on-1"],
    run_one=run_one,
    make_page=make_page,
)
