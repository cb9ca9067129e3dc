"""Label privacy with a proof: the cost of each mechanism, and the remaining leak. The study behind `proof.md`.

Usage::

    python -m studies proof run                          # all runs; a finished one is not made again
    python -m studies proof run --seeds 0 1 2 --study census --settings none laplace-1
    python -m studies proof page                         # numbers and tables from the runs

Runs lie in `--runs` (default runs/proof) as `<study>/<setting>/seed-<n>`; `page` writes `proof.json` and the marked
blocks of `proof.md`, in `docs/results`. A seed whose run is not there keeps the numbers that `proof.json` has of it.

The study "credit" reads `default_credit_hetero_guest.csv` and `default_credit_hetero_host.csv` of FATE's public
examples (FederatedAI/FATE, examples/data), in `<runs>/fate`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
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
    earlier,
    interval,
    paired,
    places,
    save,
    shown,
    table,
    undefended,
    verdict,
    write_page,
)

CREDIT = "credit"
STUDIES = {
    "census": "census",
    CREDIT: str(Path(__file__).with_name("credit.toml")),
    "criteo": "criteo-small",
    "flights": "flights",
    "shirt": "fashion-shirt",
}
"""Studies by name, and the preset or file of each."""

FATE = {"a": "default_credit_hetero_host.csv", "b": "default_credit_hetero_guest.csv"}

PASSES = 6
"""Number of passes of pre-training, and of a refit."""
EPSILONS = (0.5, 1.0, 2.0)
ALMOST = 8.0
"""Epsilon at which one label in three thousand is flipped: a loss of utility is then not due to the proof."""
SEEDS = range(5)
"""A claim has a verdict when all of them were run."""

MECHANISMS = ("randomised_response", "posterior", "laplace", "alibi", "prior")
BASELINE = "randomised_response"
PRETRAINED = "pretrained"
REFITTED = "refitted"
REFITTED_NONE = "refitted_none"
ZERO = "no_gradients"
NOISE = "marvell_full"


def _local_head(mechanism: str, epsilon: float) -> dict[str, Any]:
    return {"defenses": [{"name": "local_head", "epsilon": epsilon, "mechanism": mechanism}]}


SETTINGS: dict[str, dict[str, Any]] = {
    "none": {},
    ZERO: {"training.gradients": False, "training.pretrain": PASSES},
    **{
        f"{PRETRAINED}-{epsilon:g}": {**_local_head(BASELINE, epsilon), "training.pretrain": PASSES}
        for epsilon in EPSILONS
    },
    **{
        f"{REFITTED}-{epsilon:g}": {
            **_local_head(BASELINE, epsilon),
            "training.pretrain": PASSES,
            "training.refit": PASSES,
        }
        for epsilon in EPSILONS
    },
    REFITTED_NONE: {"training.refit": PASSES},
    f"{PRETRAINED}-{ALMOST:g}": {**_local_head(BASELINE, ALMOST), "training.pretrain": PASSES},
    f"{PRETRAINED}_posterior-1": {**_local_head("posterior", 1.0), "training.pretrain": PASSES},
    **{f"{name}-{epsilon:g}": _local_head(name, epsilon) for name in MECHANISMS for epsilon in EPSILONS},
    **{f"{NOISE}-{s:g}": {"defenses": [{"name": NOISE, "s": s}]} for s in (1.0, 4.0)},
}
"""Changes to the study's configuration, by setting.

`pretrained` is randomised response after pre-training, `refitted` the same with a network that predicts which learns on
for as many passes when bottom models are finished, `refitted_none` these passes after a training without a defense.
`pretrained_posterior` has the flips of `pretrained` with posteriors as targets, `no_gradients` is pre-training alone;
`marvell_full`, noise on gradients without a proof, is for comparison.
"""

COLUMNS = {
    "test AUC": "test_auc",
    "informed": "informed",
    "without gradients": "embeddings",
    "gain": "gain",
    "with gradients": "both",
    "norm": "norm",
}
"""The measured columns of the table, and the number that each shows; another study's column is one more."""

COMPARED = {name: COLUMNS[name] for name in ("test AUC", "informed", "gain", "with gradients")}
"""Columns in which settings are compared seed by seed."""


def run_one(job: Job) -> float:
    """Do one run and return its seconds; a quick one has two epochs. Only the label party measures."""
    from flower_vfl import load_config

    changed = {
        "seed": job.seed,
        "training.patience": 0,
        "attack.names": ["norm"],
        "attack.audit": False,
        **SETTINGS[job.setting],
        **({"training.epochs": 2} if job.options["quick"] else {}),
    }
    if job.study == CREDIT:
        fate = job.folder.parents[2] / "fate"
        changed |= {f"data.options.files.{party}": str(fate / name) for party, name in FATE.items()}
    return do(job, load_config(STUDIES[job.study], changed))


def numbers(result: Summary) -> Iterator[tuple[str, float]]:
    """Yield the numbers of a run: its utility, the leaks over all its epochs, and the proven bounds."""
    yield "test_auc", result["utility"]["last"]["test_auc"]
    if result.get("baseline") == ZERO:
        return
    party = result["verdict"]["parties"][0]
    yield "informed", party["leak"]["informed"]["reached"]
    yield "norm", party["leak"]["practical"]["reached"]
    yield "embeddings", party["gain"]["baseline"]
    yield "gain", party["gain"]["value"]
    for defense in result["defenses"]:
        if defense.get("proven"):
            yield "epsilon", defense["proven"]["epsilon"]
            yield "proven_auc", defense["proven"]["auc"]


def change(summary: Summary, one: str, other: str, number: str) -> tuple[float, float]:
    """Return the difference of a number between two settings, seed by seed."""
    return interval(paired(summary, one, other, lambda setting: _values(summary, setting, number)))


def _values(summary: Summary, setting: str, number: str) -> Values:
    if number == "both":
        return _values(summary, setting, "embeddings") + _values(summary, setting, "gain")
    return np.asarray(summary["settings"][setting].get(number, []), dtype=np.float64)


def trade_off(summary: Summary) -> str:
    """Write the proven epsilon, the cost and the leak of each setting."""
    rows = []
    for setting, entry in summary["settings"].items():
        proven = [f"{entry[name][0]:.{digits}g}" if name in entry else "" for name, digits in _PROVEN]
        cost = "" if setting == "none" else _signed(*change(summary, setting, "none", "test_auc"), 4)
        values = [_values(summary, setting, name).tolist() for name in COLUMNS.values()]
        measured = [shown(found, 3 if place else 4) if found else "" for place, found in enumerate(values)]
        rows.append([f"`{setting}`", *proven, str(len(entry["seeds"])), measured[0], cost, *measured[1:]])
    first, *others = COLUMNS
    return table(["setting", "epsilon", "proven AUC", "seeds", first, "test AUC minus `none`", *others], rows)


_PROVEN = (("epsilon", 2), ("proven_auc", 3))


def against_baseline(summary: Summary) -> str:
    """Write the differences of settings, seed by seed, to one that has the same epsilon, or none."""
    rows = [
        [
            f"`{one}`",
            f"`{other}`",
            *(_signed(*change(summary, one, other, name), 4) for name in COMPARED.values()),
        ]
        for one, other in _pairs(summary)
    ]
    return table(["setting", "compared with", *(f"{name}, difference" for name in COMPARED)], rows)


def _pairs(summary: Summary) -> list[tuple[str, str]]:
    there = summary["settings"]
    others = (PRETRAINED, *MECHANISMS[1:])
    found = [(f"{other}-{e:g}", f"{BASELINE}-{e:g}") for other in others for e in EPSILONS]
    found += [(f"{REFITTED}-{e:g}", f"{PRETRAINED}-{e:g}") for e in EPSILONS]
    found += [(REFITTED_NONE, "none"), (f"{REFITTED}-1", REFITTED_NONE), (f"{REFITTED}-1", f"{NOISE}-4")]
    found += [(f"{PRETRAINED}_posterior-1", f"{PRETRAINED}-1"), (f"{PRETRAINED}-1", f"{NOISE}-4")]
    return [pair for pair in found if set(pair) <= set(there)]


def verdicts(summary: Summary) -> list[Verdict]:
    """Judge the claims of the page."""
    there = summary["settings"]
    found = [
        _judged(summary, f"`{local}` costs at most .003 of test AUC", local, "none", -0.003)
        for local in (
            f"{BASELINE}-1",
            *(f"{name}-{epsilon:g}" for name in (PRETRAINED, REFITTED) for epsilon in EPSILONS),
            f"{PRETRAINED}_posterior-1",
            f"{PRETRAINED}-{ALMOST:g}",
        )
        if local in there
    ]
    if {f"{REFITTED}-1", REFITTED_NONE} <= set(there):
        claim = f"`{REFITTED}-1` costs at most .003 of test AUC compared with `{REFITTED_NONE}`"
        found.append(_judged(summary, claim, f"{REFITTED}-1", REFITTED_NONE, -0.003))
    above = [f"{name}-{epsilon:g}" for name in (BASELINE, PRETRAINED, REFITTED) for epsilon in EPSILONS]
    pairs = [(local, ZERO) for local in above if {local, ZERO} <= set(there)]
    pairs += [(one, other) for one, other in _pairs(summary) if other != REFITTED_NONE]
    return [
        *found,
        *(_judged(summary, f"`{one}` has a higher test AUC than `{other}`", one, other, 0.0) for one, other in pairs),
        *(
            _judged(summary, f"`{one}` gives less to a reader with embeddings than `{other}`", other, one, 0.0, "both")
            for one, other in pairs
            if other == f"{NOISE}-4"
        ),
    ]


def _judged(summary: Summary, claim: str, one: str, other: str, least: float, number: str = "test_auc") -> Verdict:
    """Judge if a number of one setting minus another's is at least `least`; undecided without all seeds."""
    mean, half = change(summary, one, other, number)
    seeds = len(places(summary, [one, other])[one])
    numbers = f"{_signed(mean, half, 4)}, {seeds} seed{'' if seeds == 1 else 's'}"
    if seeds < len(SEEDS):
        return verdict(claim, None, numbers)
    holds = True if mean - half >= least else False if mean + half < least else None
    return verdict(claim, holds, numbers)


def _signed(mean: float, half: float, digits: int) -> str:
    return f"{mean:+.{digits}f}" + (f" ± {half:.{digits}f}" if np.isfinite(half) else "")


def _cost(summary: Summary, setting: str) -> tuple[float, float]:
    """Return a setting's test AUC minus that without a defense, and the half width; 0 of fewer than three seeds."""
    mean, half = change(summary, setting, "none", "test_auc")
    return mean, half if len(places(summary, [setting, "none"])[setting]) > 2 else 0.0


def draw(studies: Mapping[str, Summary], path: Path) -> None:
    """Draw the cost in test AUC against the proven epsilon, a panel a study; a setting without a proof is a band."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    columns = min(3, len(studies))
    rows = -(-len(studies) // columns)
    figure, panels = plt.subplots(rows, columns, figsize=(3.5 * columns, 2.9 * rows), squeeze=False)
    for panel, (study, summary) in zip(panels.flat, studies.items(), strict=False):
        panel.axhline(0.0, color="#555555", lw=1, ls=":", label="none")
        for name, colour in ((PRETRAINED, "#1f5fa8"), (REFITTED, "#d02030")):
            known = [(e, f"{name}-{e:g}") for e in EPSILONS if f"{name}-{e:g}" in summary["settings"]]
            if ZERO in summary["settings"] and name == PRETRAINED:
                known = [(0.0, ZERO), *known]
            points = [(e, *_cost(summary, setting)) for e, setting in known]
            if points:
                at, means, halves = zip(*points, strict=True)
                panel.errorbar(at, means, halves, color=colour, marker="o", ms=4, lw=1.3, capsize=2, label=name)
        if f"{NOISE}-4" in summary["settings"]:
            mean, half = _cost(summary, f"{NOISE}-4")
            panel.axhline(mean, color="#888888", lw=1, label=f"{NOISE}-4, no proof")
            panel.axhspan(mean - half, mean + half, color="#888888", alpha=0.15, lw=0)
        panel.set_title(study, fontsize=10)
        panel.set_xticks([0.0, *EPSILONS], ["0", *(f"{e:g}" for e in EPSILONS)])
        panel.set_xlabel("proven epsilon (0: no gradients)", fontsize=9)
        panel.grid(alpha=0.25)
    for row in panels:
        row[0].set_ylabel("test AUC minus none")
    for panel in panels.flat[len(studies) :]:
        panel.axis("off")
    figure.legend(*panels[0][0].get_legend_handles_labels(), fontsize=9, loc="lower center", ncol=4)
    save(figure, path, (0, 0.06, 1, 1), dpi=130)


def make_page(runs: Path, out: Path) -> None:
    """Compute everything that the page shows from the runs' files."""
    there = earlier(out / "proof.md")
    studies = undefended(STUDIES, lambda study: joined(there.get(study), by_setting(runs / study, SETTINGS, numbers)))
    blocks: dict[str, str] = {}
    for study, summary in studies.items():
        summary["claims"] = verdicts(summary)
        blocks |= {
            f"{study} trade-off": trade_off(summary),
            f"{study} mechanisms": against_baseline(summary),
            f"{study} claims": claim_table(summary["claims"]),
        }
    draw(write_page(out / "proof.md", studies, blocks), out / "proof.png")


def joined(there: Summary | None, found: Summary) -> Summary:
    """Return the numbers of each setting; seeds whose runs are gone keep their earlier numbers."""
    both: Summary = {"settings": {}}
    for setting in SETTINGS:
        entries = [one["settings"][setting] for one in (there, found) if one and setting in one["settings"]]
        seeds: dict[int, dict[str, float]] = {}
        for entry in entries:
            for at, seed in enumerate(entry["seeds"]):
                seeds[seed] = {name: values[at] for name, values in entry.items() if name != "seeds"}
        if seeds:
            names = seeds[min(seeds)]
            values = {name: [seeds[seed][name] for seed in sorted(seeds)] for name in names}
            both["settings"][setting] = {"seeds": sorted(seeds), **values}
    return both


QUICK: Sequence[str] = ("none", "randomised_response-1", "prior-1")

STUDY = Study(
    __doc__,
    "proof",
    studies=STUDIES,
    settings=SETTINGS,
    seeds=SEEDS,
    quick=QUICK,
    run_one=run_one,
    make_page=make_page,
)
