"""Thirty epochs: persistent noise against stronger fresh noise. The study behind `longer.md`.

Usage::

    python -m studies longer run --jobs 2                 # all runs; a finished one is not made again
    python -m studies longer run --quick --runs runs/quick
    python -m studies longer page                         # numbers, tables and the figure from the runs

Runs lie in `--runs` (default runs/longer) as `<study>/<setting>/seed-<n>`; `page` writes `longer.json`, the figure and
the marked blocks of `longer.md`, in `docs/results`.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from studies.beyond import numbers as n
from studies.beyond.study import ATTACKS, SETTINGS
from studies.common import (
    Job,
    Study,
    Summary,
    Values,
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

CENSUS = "census"
EPOCHS = 30
AFTER = (1, 5, 10, 20, 30)
"""Epochs after which the page gives the leak."""

CHOSEN = (
    "none",
    "full-rho-0",
    "full-rho-0.25",
    "full-rho-0.5",
    "s16-full-rho-0",
    "s16-full-rho-0.25",
    "s64-full-rho-0",
)
"""Settings of this study, of those of `studies.beyond`."""

PAIRS = (
    ("s16-full-rho-0", "full-rho-0.25"),
    ("s16-full-rho-0", "full-rho-0.5"),
    ("s16-full-rho-0", "s16-full-rho-0.25"),
    ("s64-full-rho-0", "full-rho-0.5"),
    ("s64-full-rho-0", "s16-full-rho-0.25"),
)
"""Fresh noise, and noise of at most its strength with a persistent share."""

SEEDS = range(3)
QUICK = ("none", "full-rho-0.25", "s16-full-rho-0")


def run_one(job: Job) -> float:
    """Do one run and return its seconds; a quick one has two epochs."""
    from flower_vfl import load_config

    # Only the attackers measure, as in `studies.beyond`, and only at the cut, where they have just the sent gradients.
    changed = {
        "seed": job.seed,
        "attack.names": ATTACKS,
        "attack.layers": ["cut"],
        "attack.monitor": False,
        "attack.every": 1,
        "attack.snapshots": [],
        "training.epochs": 2 if job.options["quick"] else EPOCHS,
        "defenses": SETTINGS[job.setting],
    }
    return do(job, load_config(CENSUS, changed))


def read_table(summary: Summary) -> str:
    """Write the leak AUC of the strongest attack on each setting after some epochs, and its name after the last."""
    rows = []
    for setting, entry in summary["settings"].items():
        has = [shown(read(summary, setting, epoch)) for epoch in _after(summary)]
        rows.append(
            [setting, str(len(entry["seeds"])), shown(entry["test_auc"], 4), *has, _strongest_attacks(summary, setting)]
        )
    heads = [f"leak AUC, epoch {epoch}" for epoch in _after(summary)]
    return table(["setting", "seeds", "test AUC", *heads, "strongest attack"], rows)


def read(summary: Summary, setting: str, epoch: int) -> Values:
    """Return the strongest attack's leak AUC after an epoch, one value a seed; differences exist from the second on."""
    back = epoch - epochs_of(summary, setting) - 1
    readers = [n.leak(summary, setting, attack) for attack in n.readers(summary)]
    return np.asarray(np.max([values[:, back] for values in readers if values.shape[1] >= -back], axis=0))


def epochs_of(summary: Summary, setting: str) -> int:
    """Return the number of epochs of a setting's runs."""
    return int(n.leak(summary, setting, n.STEPS[0]).shape[1])


def _after(summary: Summary) -> list[int]:
    """Return those of the epochs `AFTER` that all runs have; quick ones have two."""
    last = min(epochs_of(summary, setting) for setting in summary["settings"])
    return [epoch for epoch in AFTER if epoch <= last]


def _strongest_attacks(summary: Summary, setting: str) -> str:
    """Return the names of the attacks that are the strongest after the last epoch, with one seed or another."""
    last = {attack: n.leak(summary, setting, attack)[:, -1] for attack in n.readers(summary)}
    best = np.argmax(list(last.values()), axis=0)
    return " or ".join(sorted({list(last)[place] for place in best}))


def pairs_table(summary: Summary) -> str:
    """Write differences of two settings, seed by seed: of the leak after ten epochs and after all, and of the AUC."""
    after = [epoch for epoch in (10, EPOCHS) if epoch in _after(summary)]
    rows = []
    for one, other in _pairs(summary):
        auc = paired(summary, one, other, lambda setting: summary["settings"][setting]["test_auc"])
        more = [_signed(*_more(summary, one, other, epoch), 3) for epoch in after]
        rows.append([one, other, str(len(auc)), *more, _signed(*interval(auc), 4)])
    heads = [f"leak AUC, difference after {epoch} epochs" for epoch in after]
    return table(["setting", "compared with", "seeds", *heads, "test AUC, difference"], rows)


def _signed(mean: float, half: float, digits: int) -> str:
    return f"{mean:+.{digits}f} ± {half:.{digits}f}"


def _pairs(summary: Summary) -> list[tuple[str, str]]:
    return [pair for pair in PAIRS if set(pair) <= set(summary["settings"])]


def _more(summary: Summary, one: str, other: str, epoch: int) -> tuple[float, float]:
    """Return the difference of the strongest attack's leak AUC between two settings after an epoch."""
    return interval(paired(summary, one, other, lambda setting: read(summary, setting, epoch)))


def verdicts(summary: Summary) -> list[Verdict]:
    """Judge for each pair if the second leaks less after the last epoch."""
    found, last = [], _after(summary)[-1]
    for one, other in _pairs(summary):
        mean, half = _more(summary, one, other, last)
        claim = f"after {last} epochs, the strongest attack has a lower leak AUC behind {other} than behind {one}"
        found.append(verdict(claim, above(mean, half), _signed(mean, half, 3)))
    return found


def figure(summary: Summary, path: Path) -> None:
    """Draw the strongest attack's leak AUC after each epoch, and after the last over the test AUC."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    from studies.beyond.figures import COLOURS

    drawn, (over_time, frontier) = plt.subplots(1, 2, figsize=(11, 4.4))
    for colour, (setting, entry) in zip(COLOURS, summary["settings"].items(), strict=False):
        x = np.arange(1, epochs_of(summary, setting) + 1)
        values = np.stack([read(summary, setting, epoch) for epoch in x], axis=1)
        over_time.plot(x, values.mean(axis=0), color=colour, lw=1.4, label=setting)
        over_time.fill_between(x, values.min(axis=0), values.max(axis=0), color=colour, alpha=0.15, lw=0)
        if setting == "none":
            frontier.axvline(np.mean(entry["test_auc"]), color=colour, ls=":")
        else:
            frontier.plot(entry["test_auc"], values[:, -1], "o", color=colour, ms=4)
    over_time.set_xlabel("epoch")
    over_time.set_ylabel("leak AUC at the cut, strongest attack on sums")
    drawn.legend(*over_time.get_legend_handles_labels(), fontsize=8, loc="lower center", ncol=len(CHOSEN))
    frontier.set_xlabel("test AUC")
    frontier.set_title("after the last epoch, one point per seed; dotted: no defense", fontsize=10)
    for axis in (over_time, frontier):
        axis.grid(alpha=0.25)
    save(drawn, path, (0, 0.06, 1, 1), dpi=130)


def make_page(runs: Path, out: Path) -> None:
    """Compute everything that the page shows from the runs' files."""
    studies = undefended([CENSUS], lambda study: n.collect(runs / study, CHOSEN))
    blocks = {}
    for study, summary in studies.items():
        summary["claims"] = verdicts(summary)
        figure(summary, out / "longer.png")
        blocks |= {
            f"{study} leaks": read_table(summary),
            f"{study} pairs": pairs_table(summary),
            f"{study} claims": claim_table(summary["claims"]),
        }
    write_page(out / "longer.md", studies, blocks)


STUDY = Study(
    __doc__,
    "longer",
    studies=[CENSUS],
    settings=CHOSEN,
    seeds=SEEDS,
    quick=QUICK,
    run_one=run_one,
    make_page=make_page,
)
