"""What is promised of all epochs, and what the strongest readers reach: the study behind `all_epochs.md`.

Usage::

    python docs/results/all_epochs.py run             # all runs; a finished one is not made again
    python docs/results/all_epochs.py page            # numbers and tables from the runs

Runs lie in `--runs` (default runs/all_epochs) as `<study>/<setting>/seed-<n>`; `page` writes `all_epochs.json` and the
marked block of `all_epochs.md`, both beside this file.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq
from beyond import ATTACKS
from studies import Job, Summary, do, finished, main, table, write_page

STUDIES = {"census": "census"}
"""Studies by name, and the preset of each."""

EPOCHS = 10
SETTINGS = {f"full-rho-{rho}": float(rho) for rho in (0, 0.25, 0.5, 0.9)}
"""The persistent share of the noise of `marvell_full`, s = 4."""

SHOWN = (1, 2, 3, 5, 10)


def run_one(job: Job) -> float:
    """Do one run and return its seconds; a quick one has two epochs."""
    from all_epochs_probe import SideBySide

    from flower_vfl import build_config, load_config
    from flower_vfl.strategies import DEFENSES

    DEFENSES.setdefault(SideBySide.name, SideBySide)
    attack = {"names": ATTACKS, "monitor": False, "every": 1, "snapshots": []}
    preset = load_config(STUDIES[job.study], {"seed": job.seed}).model_dump()
    training = {**preset["training"], "epochs": 2 if job.options["quick"] else EPOCHS}
    defense = {"name": "marvell_full", "s": 4.0, "rho": SETTINGS[job.setting]}
    changed = {"attack": {**preset["attack"], **attack}, "training": training}
    return do(job, build_config({**preset, **changed, "defenses": [{"name": SideBySide.name}, defense]}))


def collect(folder: Path, settings: Iterable[str]) -> Summary:
    """Read the finished runs of a study, by setting and seed: values after each epoch."""
    found: Summary = {}
    for setting in settings:
        for path, result in finished(folder / setting):
            steps = pq.read_table(path / "steps.parquet")
            entry = {
                name: _curve(steps, f"marvell_full.{name}") for name in ("sum_kl_remembered", "auc_bound_remembered")
            }
            entry |= {name: _curve(steps, f"side_by_side.{name}") for name in ("linear", "quadratic", "few")}
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


def reached(entry: Summary, epoch: str) -> tuple[str, float]:
    """Return the strongest of those that remember after an epoch and its AUC, turned around where it is wrong."""
    values = {label: values[epoch] for label, values in entry["remembered"].items() if epoch in values}
    label = max(values, key=lambda one: max(values[one], 1.0 - values[one]))
    return label, max(values[label], 1.0 - values[label])


def promises(summary: Summary) -> str:
    """Write what was promised beside what was read."""
    rows = []
    for setting, seeds in summary.items():
        for seed, entry in seeds.items():
            for epoch in map(str, SHOWN):
                if epoch not in entry["auc_bound_remembered"]:
                    continue
                label, auc = reached(entry, epoch)
                bound = entry["auc_bound_remembered"][epoch]
                both = [entry[name][epoch] for name in ("linear", "quadratic")]
                numbers = [f"{value:.3f}" for value in (bound, auc, *both, bound - max(auc, *both))]
                numbers[1] += f" ({label})"
                numbers.insert(4, f"{entry['few'][epoch]:.3f}" if entry["few"] else "")
                rows.append([setting, seed, epoch, f"{entry['sum_kl_remembered'][epoch]:.2f}", *numbers])
    heads = ["setting", "seed", "epochs", "divergence", "bound", "strongest that remembers", "linear, side by side"]
    return table(
        [*heads, "quadratic, side by side", "quadratic, 256 rows of each class known", "bound above the strongest by"],
        rows,
    )


def make_page(runs: Path, out: Path) -> None:
    """Compute everything that the page shows from the runs' files."""
    studies = {study: collect(runs / study, SETTINGS) for study in STUDIES}
    write_page(out / "all_epochs.md", studies, {f"{study} promises": promises(one) for study, one in studies.items()})


if __name__ == "__main__":
    main(
        __doc__,
        "all_epochs",
        studies=STUDIES,
        settings=SETTINGS,
        seeds=(0,),
        quick=("full-rho-0.5",),
        run_one=run_one,
        make_page=make_page,
    )
