"""Results of the presets' small versions on two cores: the study behind `presets.md`.

Usage::

    export FLOWER_VFL_DATASETS=~/data                         # mnist/, cifar10-jpeg/, dbpedia-5000: see the page
    python -m studies presets run                        # all runs; a finished one is not made again
    python -m studies presets run --study isic-small --seeds 0
    python -m studies presets page                       # the table of the page from the runs

Runs lie in `--runs` (default runs/presets) as `<preset>/undefended/seed-<n>`; `page` writes `presets.json` and the
marked block of `presets.md`, in `docs/results`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from studies.common import Job, Study, Summary, do, finished, shown, table, write_page

UNDEFENDED = "undefended"
STAND_IN, REAL = "stand-in", "the paper's"


class Twin(NamedTuple):
    """A small version of a preset.

    Attributes
    ----------
    paper : str
        The preset of the paper's size.
    data : str
        Relation of its data to the paper's.
    changed : dict[str, str]
        Changes to its configuration for the available copy of the data.
    """

    paper: str
    data: str
    changed: dict[str, str] = {}  # noqa: RUF012 - nobody writes to it


TWINS = {
    "criteo-small": Twin("criteo", STAND_IN),
    "avazu-small": Twin("avazu", STAND_IN),
    "avazu-days-small": Twin("avazu-days", STAND_IN),
    "isic-small": Twin("isic", STAND_IN),
    "mnist-small": Twin("mnist", REAL),
    "fashion-small": Twin("fashion", REAL),
    "cifar10-small": Twin("cifar10", "lossy copies", {"data.name": "cifar10-jpeg"}),
    "dbpedia-small": Twin("dbpedia", "a part of the paper's"),
}

SEEDS = range(3)


def settings_of(preset: str, seed: int, *, quick: bool) -> dict[str, Any]:
    """Return the changes of a run to its preset; a quick one attacks each tenth step only."""
    return {**TWINS[preset].changed, "seed": seed, **({"attack.every": 10} if quick else {})}


def run_one(job: Job) -> float:
    """Do one run and return its seconds."""
    from flower_vfl import load_config

    return do(job, load_config(job.study, settings_of(job.study, job.seed, quick=job.options["quick"])))


def collect(runs: Path) -> dict[str, Summary]:
    """Return the numbers of the runs of each preset, a list over seeds."""
    found = {}
    for preset in TWINS:
        results = [result for _, result in finished(runs / preset / UNDEFENDED)]
        if results:
            found[preset] = numbers(results)
    return found


def numbers(results: Sequence[Mapping[str, Any]]) -> Summary:
    """Return the shown numbers of the runs of one preset, which differ only in their seed."""
    last = [result["utility"]["last"] for result in results]
    measured = [entry for entry in results[0]["leakage"] if entry["source"] == "attacker"]
    return {
        "data": results[0]["dataset"]["name"],
        "rows": [results[0]["dataset"]["rows"], results[0]["dataset"]["test_rows"]],
        "seeds": [result["environment"]["seed"] for result in results],
        "utility": {
            name: [values[name] for values in last]
            for name in ("test_auc", "test_accuracy", "test_loss")
            if last[0].get(name) is not None
        },
        "leaks": {_name(entry): [_value(result, entry) for result in results] for entry in measured},
        "chance": {
            _name(entry): entry["q95_null"] if entry.get("q95_null") is not None else entry.get("baseline")
            for entry in measured
        },
        "days": [result["periods"]["mean"]["auc"] for result in results if "periods" in result],
        "minutes": [result["cost"]["seconds"] / 60 for result in results],
    }


def _name(entry: Mapping[str, Any]) -> str:
    return f"{entry['label']} at {entry['layer']}"


def _value(result: Mapping[str, Any], like: Mapping[str, Any]) -> float:
    """Return the q95 of a leak while training; of an attack on the trained model, its mean over draws."""
    keys = ("label", "layer", "party", "source", "phase")
    entry = next(entry for entry in result["leakage"] if all(entry.get(key) == like.get(key) for key in keys))
    return float(entry["mean" if entry.get("phase") == "inference" else "q95"])


def twin_table(found: Mapping[str, Summary]) -> str:
    """Write a table with a row for each preset."""
    rows = []
    for preset, summary in found.items():
        utility, twin = summary["utility"], TWINS[preset]
        measure = "auc" if "test_auc" in utility else "accuracy"
        reached = f"{measure} {shown(utility[f'test_{measure}'], 4)}, loss {shown(utility['test_loss'], 4)}"
        if summary["days"]:
            reached += f"; AUC of the next day, mean over days {shown(summary['days'], 4)}"
        rows.append(
            [
                f"`{preset}` (small `{twin.paper}`)",
                f"{summary['data']}: {twin.data}",
                f"{summary['rows'][0]:,} + {summary['rows'][1]:,}",
                ", ".join(map(str, summary["seeds"])),
                reached,
                "; ".join(
                    f"{name} {shown(values)} ({_digits(summary['chance'][name])})"
                    for name, values in summary["leaks"].items()
                ),
                f"{min(summary['minutes']):.1f}",
            ]
        )
    return table(["preset", "data", "rows", "seeds", "test", "attacks", "minutes"], rows)


def _digits(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


def make_page(runs: Path, out: Path) -> None:
    """Compute everything that the page shows from the runs' files."""
    found = collect(runs)
    write_page(out / "presets.md", found, {"twins": twin_table(found)})


STUDY = Study(
    __doc__,
    "presets",
    studies=TWINS,
    settings=[UNDEFENDED],
    seeds=SEEDS,
    quick=[UNDEFENDED],
    run_one=run_one,
    make_page=make_page,
)
