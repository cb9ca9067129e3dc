"""Ten classes: protection and cost of noise on cut gradients, by its shape. The study behind `classes.md`.

Usage::

    python -m studies classes run                 # all runs; a finished one is not made again
    python -m studies classes run --quick --runs runs/quick
    python -m studies classes page                # numbers, tables and the figure from the runs

Runs lie in `--runs` (default runs/classes) as `<study>/<setting>/seed-<n>`; `page` writes `classes.json`, the figure
and the marked blocks of `classes.md`, in `docs/results`.
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
    Verdict,
    all_of,
    by_setting,
    claim_table,
    do,
    family,
    interval,
    paired,
    save,
    shown,
    table,
    undefended,
    verdict,
    write_page,
)

STUDIES = {"mnist": "mnist", "fashion": "fashion-mnist"}
"""Studies by name, and the data of each; the network is the perceptron of preset mnist-small, 784-128-32 | 10."""

ATTACKS = ["norm", "cosine", "hint(k=3,measure=cosine)", "residual(r=9)", "gradient_clustering"]
"""Attacks; `residual` removes as many directions as the means of ten classes span."""

STRENGTHS = (1, 4, 16)
SHAPES = {
    "marvell": "marvell",
    **{shape.lower(): f"studies.classes.defenses:{shape}" for shape in ("Span", "Rest", "Even")},
}
"""Defenses by the name of their noise's shape."""

SETTINGS: dict[str, list[dict[str, Any]]] = {
    "none": [],
    **{f"{shape}-{s}": [{"name": name, "s": float(s)}] for s in STRENGTHS for shape, name in SHAPES.items()},
}
SEEDS = range(3)
EPOCHS, EVERY = 5, 4
QUICK = ("none", "marvell-4", "rest-4", "even-4")
OF_ONE_CLASS = ("norm", "cosine", "hint", "residual")
"""Attacks that detect one class in a step."""

WORST, MACRO = "worst_class", "macro_q95"
MARGIN = 0.01


def run_one(job: Job) -> float:
    """Do one run and return its seconds; a quick one has one epoch, of which each tenth step is attacked."""
    from flower_vfl import load_config

    quick = job.options["quick"]
    changed = {
        "seed": job.seed,
        "data.name": STUDIES[job.study],
        "attack.names": ATTACKS,
        "attack.monitor": False,
        "attack.every": 10 if quick else EVERY,
        "training.epochs": 1 if quick else EPOCHS,
        "defenses": SETTINGS[job.setting],
    }
    return do(job, load_config("mnist-small", changed))


def numbers(result: dict[str, Any]) -> Iterator[tuple[str, float]]:
    """Yield the numbers of one run, by name."""
    yield "test_accuracy", result["utility"]["last"]["test_accuracy"]
    for entry in result["leakage"]:
        attack = entry["attack"]
        if attack == "gradient_clustering":
            yield attack, entry["mean"]
            yield f"{attack} null", entry["q95_null"]
        else:
            yield f"{attack} {WORST}", entry[WORST]["q95"]
            yield f"{attack} {MACRO}", entry[MACRO]
            yield f"{attack} null", entry["q95_null"]
    for name in ("noise_power", "auc_bound", "accuracy_bound", "sum_kl_after"):
        values = [value for key, value in result["log"].items() if key.endswith(f".{name}")]
        if values:
            yield name, values[0]


def leak_table(summary: Summary) -> str:
    """Write the leaks of every setting, beside the test accuracy."""
    rows = []
    for setting, entry in summary["settings"].items():
        attacks = [
            f"{shown(entry[f'{attack} {MACRO}'])}, {shown(entry[f'{attack} {WORST}'])}" for attack in OF_ONE_CLASS
        ]
        rows.append(
            [
                setting,
                str(len(entry["seeds"])),
                shown(entry["test_accuracy"], 4),
                *attacks,
                shown(entry["gradient_clustering"]),
            ]
        )
    first = next(iter(summary["settings"].values()))
    chance = [shown(first[f"{attack} null"]) for attack in (*OF_ONE_CLASS, "gradient_clustering")]
    heads = [
        "noise-s",
        "seeds",
        "test accuracy",
        "norm: mean, worst class",
        "cosine (oracle)",
        "hint",
        "residual",
        "clustering accuracy",
    ]
    return table(heads, [*rows, ["*chance, q95*", "", "", *chance]])


def promise_table(summary: Summary) -> str:
    """Write the bounds of Marvell's noise, as means over the steps."""
    rows = [
        [
            setting,
            *(shown(summary["settings"][setting][name]) for name in ("sum_kl_after", "auc_bound", "accuracy_bound")),
        ]
        for setting in family(summary, "marvell")
    ]
    return table(
        [
            "noise-s",
            "largest divergence of two classes",
            "bound on the AUC of a class against the rest",
            "bound on the accuracy",
        ],
        rows,
    )


def verdicts(summary: Summary) -> list[Verdict]:
    """Compare Marvell's noise with the other shapes at the same power, seed by seed."""
    found = []
    for other in ("even", "rest", "span"):
        for what, words in (
            (f"cosine {WORST}", "the oracle's leak AUC for the worst class is lower behind Marvell"),
            (f"hint {WORST}", "the leak AUC of hints for the worst class is lower behind Marvell"),
            ("gradient_clustering", "the clustering accuracy is lower behind Marvell"),
        ):
            found.append(_compared(summary, other, what, f"{words} than behind *{other}*", below=0.0))
        found.append(
            _compared(
                summary,
                other,
                "test_accuracy",
                f"Marvell costs at most {MARGIN} more accuracy than *{other}*",
                below=MARGIN,
            )
        )
    return found


def _compared(summary: Summary, other: str, what: str, claim: str, *, below: float) -> Verdict:
    """Judge a claim at every strength: it holds where the interval of the difference lies below, at all of them."""
    judged, words = [], []
    for s in STRENGTHS:
        names = [f"marvell-{s}", f"{other}-{s}"]
        if not all(name in summary["settings"] for name in names):
            continue
        ours, theirs = reversed(names) if what == "test_accuracy" else names
        mean, half = interval(paired(summary, ours, theirs, lambda name: summary["settings"][name][what]))
        judged.append(True if mean + half < below else False if mean - half > below else None)
        words.append(f"s = {s}: {mean:+.3f} ± {half:.3f}")
    return verdict(claim, all_of(judged), "; ".join(words))


def figure(studies: dict[str, Summary], path: Path) -> None:
    """Draw leak against test accuracy, a line a shape."""
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = "classes"
    from matplotlib import pyplot as plt

    shown_here = (
        (f"cosine {WORST}", "cosine, worst class (q95)"),
        (f"hint {WORST}", "hint, worst class (q95)"),
        ("gradient_clustering", "clustering accuracy"),
    )
    drawn, axes = plt.subplots(len(studies), 3, figsize=(11, 3.2 * len(studies)), squeeze=False)
    for row, (study, summary) in zip(axes, studies.items(), strict=True):
        for axis, (what, title) in zip(row, shown_here, strict=True):
            for shape, colour in zip(SHAPES, ("#1f5fa8", "#3a8a3a", "#8a4fa8", "#c05020"), strict=True):
                points = [summary["settings"][name] for name in ["none", *family(summary, shape)]]
                x, y = (np.array([interval(point[name]) for point in points]) for name in ("test_accuracy", what))
                errors = [np.where(np.isfinite(values[:, 1]), values[:, 1], 0) for values in (x, y)]
                axis.errorbar(
                    x[:, 0],
                    y[:, 0],
                    xerr=errors[0],
                    yerr=errors[1],
                    color=colour,
                    marker="o",
                    ms=4,
                    lw=1.2,
                    label=shape,
                )
            axis.set_title(f"{study}: {title}", fontsize=10)
            axis.set_xlabel("test accuracy")
            axis.grid(alpha=0.25)
    axes[0][0].legend(fontsize=8)
    save(drawn, path, metadata={"Date": None})


def make_page(runs: Path, out: Path) -> None:
    """Compute everything that the page shows from the runs' files."""
    studies = undefended(STUDIES, lambda study: by_setting(runs / study, SETTINGS, numbers))
    blocks = {}
    for study, summary in studies.items():
        summary["claims"] = verdicts(summary)
        blocks[f"{study} leaks"] = leak_table(summary)
        blocks[f"{study} promises"] = promise_table(summary)
        blocks[f"{study} claims"] = claim_table(summary["claims"])
    if studies:
        figure(studies, out / "classes-trade-off.svg")
    write_page(out / "classes.md", studies, blocks)


STUDY = Study(
    __doc__,
    "classes",
    studies=STUDIES,
    settings=SETTINGS,
    seeds=SEEDS,
    quick=QUICK,
    run_one=run_one,
    make_page=make_page,
)
