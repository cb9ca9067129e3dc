"""Noise for isotropic classes on gradients whose classes are not isotropic: the study behind `shapes.md`.

Usage::

    python -m studies shapes run --jobs 2                 # all runs; a finished one is not made again
    python -m studies shapes run --study census --quick --runs runs/quick
    python -m studies shapes page                         # numbers, tables and figure from the runs

Runs lie in `--runs` (default runs/shapes) as `<study>/<setting>/seed-<n>`; `page` writes `shapes.json`, the figure and
the marked blocks of `shapes.md`, in `docs/results`.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from studies.common import (
    Job,
    Study,
    Summary,
    Verdict,
    above,
    claim_table,
    do,
    interval,
    paired,
    save,
    shown,
    table,
    undefended,
    verdict,
    write_page,
)

STUDIES = {"census": "census", "criteo": "criteo-small", "shirt": "fashion-shirt"}
"""Studies by name, and the preset of each."""

ATTACKS = ["norm", "cosine", "residual(r=1)", "residual", "residual(r=8)"]
EVERY = 5
"""Number of steps from one attacked step to the next."""

SETTINGS: dict[str, list[dict[str, Any]]] = {
    "none": [],
    **{f"marvell-{s}": [{"name": "marvell", "s": float(s)}] for s in (1, 4, 25)},
    **{f"full-{s}": [{"name": "marvell_full", "s": float(s)}] for s in (1, 4, 25)},
    "full-4-thin": [{"name": "marvell_full", "s": 4.0, "spread": 1e-4}],
    "full-4-shuffled": [{"name": "studies.shapes.probe:Shuffled", "every": EVERY}, {"name": "marvell_full", "s": 4.0}],
    "iso-5": [{"name": "iso", "t": 25.0}],
}
"""Settings by name: the strength s of Marvell and of its full form; "thin" is that without noise in all directions.

"shuffled" is a control: in the steps that are attacked each row gets the gradient of another.
"""

SEEDS = range(3)
QUICK = ("none", "marvell-4", "full-4")
LAYERS = ("cut", "first")
HIDDEN, READ, COST = 0.03, 0.95, 0.002
"""Thresholds: the distance of a mean from chance level, a leak AUC, a cost in test AUC."""


def run_one(job: Job) -> float:
    """Do one run, of which each fifth step is attacked, and return its seconds; a quick one has one epoch."""
    from flower_vfl import load_config

    # Only the attackers measure: at the cut they have the gradients that the label party's monitor would have.
    changed = {
        "seed": job.seed,
        "attack.names": ATTACKS,
        "attack.monitor": False,
        "attack.every": EVERY,
        "attack.snapshots": [],
        "defenses": [{"name": "studies.shapes.probe:Spectra", "every": 50}, *SETTINGS[job.setting]],
        **({"training.epochs": 1} if job.options["quick"] else {}),
    }
    return do(job, load_config(STUDIES[job.study], changed))


def verdicts(summary: Summary) -> list[Verdict]:
    """Judge at each strength if published Marvell and its full form protect labels, and what the latter costs."""
    from studies.gradients import numbers

    found = []
    for s in (1, 4, 25):
        one, full = f"marvell-{s}", f"full-{s}"
        if one not in summary["settings"] or full not in summary["settings"]:
            continue
        read, half = interval(numbers.leak(summary, one, "residual", key="mean"))
        norm = shown(numbers.leak(summary, one, "norm", key="mean"))
        words = f"residual {read:.3f} ± {half:.3f}, norm {norm}"
        claim = f"{one}: the leak AUC of residual at the cut is above {READ} (mean over steps)"
        found.append(verdict(claim, above(read - READ, half), words))
        apart = [
            interval(np.abs(numbers.leak(summary, full, attack, key="mean") - 0.5))
            for attack in ("residual(r=1)", "residual", "residual(r=8)")
        ]
        worst, half = max(apart)
        claim = f"{full}: the leak AUC of residual at the cut is within {HIDDEN} of 0.5 for each r (mean over steps)"
        found.append(verdict(claim, above(HIDDEN - worst, half), f"at most {worst:.3f} ± {half:.3f} from 0.5"))
        mean, half = interval(paired(summary, one, full, partial(numbers.utility, summary)))
        claim = f"{full} costs at most {COST} more test AUC than {one}"
        found.append(verdict(claim, above(COST - mean, half), f"costs {mean:+.4f} ± {half:.4f} more"))
    return found


def leak_table(summary: Summary) -> str:
    """Write utility, and the mean leak AUC of each attack over all steps; in brackets q95 and that of chance."""
    from studies.gradients import numbers

    rows = []
    for setting, values in summary["settings"].items():
        for layer in LAYERS:
            leaks = []
            for attack in ATTACKS:
                mean, q95, null = (
                    numbers.leak(summary, setting, attack, layer, key) for key in ("mean", "q95", "q95_null")
                )
                leaks.append(f"{shown(mean)} ({q95.mean():.3f}; {null.mean():.3f})")
            rows.append([setting, layer, str(len(values["seeds"])), shown(values["test_auc"], 4), *leaks])
    return table(["defense", "layer", "seeds", "test AUC", *ATTACKS], rows)


def spectra_of(folder: Path) -> Summary:
    """Return the variances that were logged in the middle of a study's first run of each setting."""
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    found: Summary = {}
    for path in sorted(folder.glob("*/seed-0/steps.parquet")):
        rows = pq.read_table(path, columns=["step", "metric", "value"])
        rows = rows.filter(pc.starts_with(rows["metric"].cast("string"), "spectra."))
        steps = sorted(set(rows["step"].to_pylist()))
        if steps:
            rows = rows.filter(pc.equal(rows["step"], steps[len(steps) // 2]))
            values: dict[str, dict[int, float]] = {}
            for metric, value in zip(rows["metric"].to_pylist(), rows["value"].to_pylist(), strict=True):
                _, name, place = metric.split(".")
                values.setdefault(name, {})[int(place)] = float(f"{value:.4g}")
            found[path.parent.parent.name] = {
                "step": steps[len(steps) // 2],
                **{name: [of[place] for place in sorted(of)] for name, of in values.items()},
            }
    return found


def draw(found: Iterable[tuple[str, Summary]], path: Path) -> None:
    """Draw the spectra of both classes as they are sent: without a defense, by Marvell and by its full form."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    settings = ("none", "marvell-4", "full-4")
    studies = list(found)
    figure, axes = plt.subplots(len(studies), 3, figsize=(10, 2.6 * len(studies)), squeeze=False, sharey="row")
    for row, (study, spectra) in zip(axes, studies, strict=True):
        for axis, setting in zip(row, settings, strict=True):
            for name, colour in (("negative", "#1f5fa8"), ("positive", "#d02030")):
                variances = np.asarray(spectra.get(setting, {}).get(name, []))
                axis.plot(1 + np.arange(len(variances)), variances, color=colour, marker="o", ms=2.5, lw=1, label=name)
            axis.set_yscale("log")
            axis.set_ylim(bottom=1e-7)
            axis.set_title(f"{study}, {setting}", fontsize=9)
            axis.grid(alpha=0.25)
        row[0].set_ylabel("variance")
    for axis in axes[-1]:
        axis.set_xlabel("principal direction of the class")
    axes[0][0].legend(fontsize=8)
    save(figure, path, dpi=130)


def make_page(runs: Path, out: Path) -> None:
    """Compute everything that the page shows from the runs' files."""
    from studies.gradients import numbers

    studies = undefended(STUDIES, lambda study: numbers.collect(runs / study, SETTINGS))
    blocks = {}
    for study, summary in studies.items():
        summary["claims"] = verdicts(summary)
        summary["spectra"] = spectra_of(runs / study)
        blocks[f"{study} leaks"] = leak_table(summary)
        blocks[f"{study} claims"] = claim_table(summary["claims"])
    found = write_page(out / "shapes.md", studies, blocks)
    draw([(study, found[study]["spectra"]) for study in STUDIES if study in found], out / "shapes-spectra.png")


STUDY = Study(
    __doc__,
    "shapes",
    studies=STUDIES,
    settings=SETTINGS,
    seeds=SEEDS,
    quick=QUICK,
    run_one=run_one,
    make_page=make_page,
)
