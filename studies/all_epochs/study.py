"""The bound on the releases of all epochs, and the strongest attacks on them: the study behind `all_epochs.md`.

Usage::

    python -m studies all_epochs run             # all runs; a finished one is not made again
    python -m studies all_epochs page            # numbers and tables from the runs

Runs lie in `--runs` (default runs/all_epochs) as `<study>/<setting>/seed-<n>`; `page` writes `all_epochs.json` and the
marked block of `all_epochs.md`, in `docs/results`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq

from studies.beyond.study import ATTACKS
from studies.common import Job, Study, Summary, do, finished, shown, table, write_page

STUDIES = {"census": "census"}
"""Studies by name, and the preset of each."""

EPOCHS = 10
SLOW = {"training.learning_rate": 0.002}
"""Smaller learning rate than the preset's 0.005, at which trainings with recurring noise are unsteady."""

SETTINGS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    **{f"full-rho-{rho}": ({"rho": float(rho)}, {}) for rho in (0, 0.25, 0.5, 0.75, 0.9)},
    **{f"slow-full-rho-{rho}": ({"rho": float(rho)}, SLOW) for rho in (0, 0.25, 0.5, 0.9)},
    **{f"slow-imitate-rho-{rho}": ({"rho": float(rho), "imitate": True}, SLOW) for rho in (0.25, 0.5, 0.9)},
    "s16-full-rho-0": ({"s": 16.0}, {}),
}
"""The arguments of `marvell_full`, with s = 4 by default, and the other changes."""

SEEDS = range(3)
KINDS = ("fit", "quadratic", "network")
SIDE_BY_SIDE = [f"remembered_{kind}(k=256, reads=epochs)" for kind in KINDS]
"""Attacks on all epochs side by side that know 256 rows of each class."""

HALF = ("linear", "quadratic")
"""Attacks on all epochs side by side that know half of the labels."""

SHOWN = (1, 2, 3, 5, 10)


def run_one(job: Job) -> float:
    """Do one run and return its seconds; a quick one has two epochs."""
    from flower_vfl import load_config

    defense, more = SETTINGS[job.setting]
    changed = {
        "seed": job.seed,
        "attack.names": [*ATTACKS, *SIDE_BY_SIDE],
        "attack.layers": ["cut"],
        "attack.monitor": False,
        "attack.every": 1,
        "attack.snapshots": [],
        "training.epochs": 2 if job.options["quick"] else EPOCHS,
        "defenses": [{"name": "studies.all_epochs.probe:SideBySide"}, {"name": "marvell_full", "s": 4.0, **defense}],
        **more,
    }
    return do(job, load_config(STUDIES[job.study], changed))


def collect(folder: Path, settings: Iterable[str]) -> Summary:
    """Read the finished runs of a study, by setting and seed: values after each epoch."""
    found: Summary = {}
    for setting in settings:
        for path, result in finished(folder / setting):
            steps = pq.read_table(path / "steps.parquet")
            entry = {
                name: _curve(steps, f"marvell_full.{name}") for name in ("sum_kl_remembered", "auc_bound_remembered")
            }
            entry |= {name: _curve(steps, f"side_by_side.{name}") for name in HALF}
            entry["test_auc"] = round(result["utility"]["last"]["test_auc"], 5)
            cut = [e for e in result["leakage"] if e["layer"] == "cut"]
            entry["remembered"] = {
                e["label"]: dict(zip(map(str, e["epochs"]), np.round(e["values"], 5).tolist(), strict=True))
                for e in cut
                if e.get("phase") == "remembered"
            }
            entry["steps"] = {e["label"]: round(e["q95"], 5) for e in cut if e.get("phase") == "train"}
            found.setdefault(setting, {})[str(result["environment"]["seed"])] = entry
    return found


def _curve(steps: object, metric: str) -> dict[str, float]:
    rows = steps.filter(pc.equal(steps["metric"].cast("string"), metric))  # type: ignore[attr-defined]
    return {str(e): round(v, 5) for e, v in zip(rows["epoch"].to_pylist(), rows["value"].to_pylist(), strict=True)}


def reached(entry: Summary, epoch: str) -> dict[str, float]:
    """Return the AUC of each attack with a history after an epoch; below one half the sign is reversed."""
    values = {label: values[epoch] for label, values in entry["remembered"].items() if epoch in values}
    return {label: max(value, 1.0 - value) for label, value in values.items()}


def promises(summary: Summary) -> str:
    """Write the bound beside the leak AUC of each attack, over the seeds."""
    rows = []
    for setting, seeds in summary.items():
        for epoch in map(str, SHOWN):
            entries = [entry for entry in seeds.values() if epoch in entry["linear"]]
            if entries:
                rows.append([setting, str(len(entries)), epoch, *_row(entries, epoch)])
    heads = ["setting", "seeds", "epochs", "divergence", "bound", "strongest attack on sums and differences"]
    heads += [f"{label}, side by side, k = 256" for label in ("linear", "quadratic", "network")]
    heads += [f"{label}, side by side, half of the labels known" for label in HALF]
    return table([*heads, "least distance of the bound above the strongest attack"], rows)


def _row(entries: Sequence[Summary], epoch: str) -> list[str]:
    """Write a row of the table from the runs' values after an epoch."""
    remembered = [reached(entry, epoch) for entry in entries]
    apart = {label for label in remembered[0] if "reads=epochs" in label}
    summed = [{label: auc for label, auc in one.items() if label not in apart} for one in remembered]
    kinds = [[one[label] for one in remembered] for label in sorted(apart, key=_kind)]
    half = [[entry[name][epoch] for entry in entries] for name in HALF]
    strongest = [max(one.values()) for one in summed]
    which = " or ".join(sorted({max(one, key=lambda label: one[label]).split("(")[0] for one in summed}))
    read = [f"{shown(strongest)} ({which})", *(shown(values) for values in (*kinds, *half))]
    if not all(epoch in entry["auc_bound_remembered"] for entry in entries):
        return ["–", "–", *read, "–"]  # there is no bound
    bounds = [entry["auc_bound_remembered"][epoch] for entry in entries]
    above = [bound - max(values) for bound, *values in zip(bounds, strongest, *kinds, *half, strict=True)]
    return [
        shown([entry["sum_kl_remembered"][epoch] for entry in entries], 2),
        shown(bounds),
        *read,
        f"{min(above):.3f}",
    ]


def frontier(summary: Summary) -> str:
    """Write the strongest of all attacks after the first and after the last epoch, and the test AUC."""
    rows = []
    for setting, seeds in summary.items():
        entries = list(seeds.values())
        last = str(max(map(int, entries[0]["linear"])))
        everyone = [
            [
                {**reached(entry, epoch), **{f"{name}, half of the labels known": entry[name][epoch] for name in HALF}}
                for entry in entries
            ]
            for epoch in ("1", last)
        ]
        which = " or ".join(sorted({max(one, key=lambda label: one[label]) for one in everyone[1]}))
        first, end = ([max(one.values()) for one in of] for of in everyone)
        grown = [later - before for before, later in zip(first, end, strict=True)]
        auc = shown([entry["test_auc"] for entry in entries], 4)
        rows.append([setting, str(len(entries)), auc, shown(first), f"{shown(end)} ({which})", shown(grown)])
    return table(["setting", "seeds", "test AUC", "leak AUC after one epoch", "leak AUC after ten", "increase"], rows)


def _kind(label: str) -> int:
    return next(place for place, kind in enumerate(KINDS) if label.startswith(f"remembered_{kind}("))


def make_page(runs: Path, out: Path) -> None:
    """Compute everything that the page shows from the runs' files."""
    studies = {study: collect(runs / study, SETTINGS) for study in STUDIES}
    blocks = {f"{study} promises": promises(one) for study, one in studies.items()}
    blocks |= {f"{study} frontier": frontier(one) for study, one in studies.items()}
    write_page(out / "all_epochs.md", studies, blocks)


STUDY = Study(
    __doc__,
    "all_epochs",
    studies=STUDIES,
    settings=SETTINGS,
    seeds=SEEDS,
    quick=("full-rho-0.5",),
    run_one=run_one,
    make_page=make_page,
)
