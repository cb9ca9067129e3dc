"""The strongest attacker on a trained model's embeddings, behind each defense: the study behind `readers.md`.

Usage::

    python -m studies readers run --jobs 2                # all runs; a finished one is not made again
    python -m studies readers run --study census --quick --runs runs/quick
    python -m studies readers page                        # numbers, tables and the figures from the runs

Runs lie in `--runs` (default runs/readers) as `<study>/<setting>/seed-<n>`; `page` writes `readers.json`, the figures
and the marked blocks of `readers.md`, in `docs/results`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from studies.beyond.study import SETTINGS as OF_GRADIENTS
from studies.common import (
    Job,
    Study,
    Summary,
    Values,
    Verdict,
    above,
    by_setting,
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
from studies.embeddings.settings import energy

KNOWN = 64
"""Labelled examples of each class that the attackers know."""

PAPER = "model_completion"
READERS = ("linear", "quadratic", "network")

STUDIES: dict[str, dict[str, Any]] = {
    "census": {"preset": "census", "layers": ["cut", "first"]},
    "shirt": {"preset": "fashion-shirt", "layers": ["cut"]},
}
"""Studies by name: the preset of each, and the layers that are attacked."""

SETTINGS: dict[str, Any] = {
    **{name: OF_GRADIENTS[name] for name in ("none", "full-rho-0", "full-rho-0.25", "max_norm-rho-0", "iso-rho-0")},
    **{name: sections["defenses"] for name, sections in energy(4).items()},
}
"""Defenses by name: of gradients as in `studies.beyond`, of embeddings as in `studies.embeddings`."""

SEEDS = range(5)
QUICK = ("none", "full-rho-0.25")


def attacks() -> list[str]:
    """Return the attackers of a run: the paper's, and the readers that are fitted."""
    return [f"{PAPER}(k={KNOWN})", *(f"embedding_reader(reader={reader}, k={KNOWN})" for reader in READERS)]


def run_one(job: Job) -> float:
    """Do one run and return its seconds; a quick one has one epoch."""
    from flower_vfl import load_config

    study = STUDIES[job.study]
    changed: dict[str, Any] = {
        "seed": job.seed,
        "attack.names": attacks(),
        "attack.layers": study["layers"],
        "attack.monitor": False,
        "defenses": SETTINGS[job.setting],
        **({"training.epochs": 1} if job.options["quick"] else {}),
    }
    return do(job, load_config(study["preset"], changed))


def numbers(result: Summary) -> Iterable[tuple[str, float]]:
    """Yield the numbers of one run: the test AUC, and each attacker's AUC with the trained model and without it."""
    yield "test_auc", result["utility"]["last"]["test_auc"]
    for entry in result["leakage"]:
        if entry["phase"] == "inference":
            measure, name = entry["measures"]["auc"], attacker(entry)
            yield f"{name} {entry['layer']}", measure["mean"]
            yield f"{name} {entry['layer']} alone", measure["baseline"]


def attacker(entry: Mapping[str, Any]) -> str:
    """Return the short name of an entry's attacker: the reader, or the paper's completion."""
    return str(entry["params"].get("reader", PAPER))


def reads(summary: Summary, setting: str, layer: str, *, alone: bool = False) -> dict[str, Values]:
    """Return the AUC of each attacker at a layer, one value a seed; `alone`: without the trained model."""
    entry = summary["settings"][setting]
    names = {name: f"{name} {layer}{' alone' if alone else ''}" for name in (PAPER, *READERS)}
    return {name: np.asarray(entry[key]) for name, key in names.items() if key in entry}


def layers_of(summary: Summary) -> list[str]:
    """Return the layers that the runs attacked."""
    return [layer for layer in ("cut", "first") if reads(summary, "none", layer)]


def read_table(summary: Summary) -> str:
    """Write the AUC of each attacker behind each defense, in brackets the same without the trained model."""
    rows = []
    for setting, entry in summary["settings"].items():
        for layer in layers_of(summary):
            found, alone = reads(summary, setting, layer), reads(summary, setting, layer, alone=True)
            best = max(found, key=lambda name, found=found: found[name].mean())  # type: ignore[misc]
            cells = [
                f"{'**' * (name == best)}{shown(values)}{'**' * (name == best)} ({alone[name].mean():.3f})"
                for name, values in found.items()
            ]
            rows.append([setting, layer, str(len(entry["seeds"])), shown(entry["test_auc"], 4), *cells])
    return table(["defense", "layer", "seeds", "test AUC", PAPER, *READERS], rows)


def more(summary: Summary, setting: str, layer: str) -> tuple[str, float, float]:
    """Return the best reader on average, its mean difference to the completion, seed by seed, and the half width."""
    found = reads(summary, setting, layer)
    best = max(READERS, key=lambda name: found[name].mean())
    return best, *interval(found[best] - found[PAPER])


def verdicts(summary: Summary) -> list[Verdict]:
    """Judge for each defense and layer if the best fitted reader exceeds the paper's completion."""
    judged = []
    for setting in summary["settings"]:
        for layer in layers_of(summary):
            best, mean, half = more(summary, setting, layer)
            claim = f"{setting}, {layer}: the best fitted reader has a higher AUC than model completion"
            judged.append(verdict(claim, above(mean, half), f"{mean:+.3f} ± {half:.3f} ({best})"))
    for setting in summary["settings"]:
        judged += [_beyond_inputs(summary, setting), *(_held(summary, setting) if setting != "none" else [])]
    return judged


HELD = 0.02
"""A defense that lowers the strongest attacker's AUC by less does not protect the labels in embeddings."""


def strongest(summary: Summary, setting: str, layers: Iterable[str], *, alone: bool = False) -> Values:
    """Return the AUC of the strongest attacker at these layers, one value a seed; `alone`: without the model."""
    found = [reads(summary, setting, layer, alone=alone).values() for layer in layers]
    return np.asarray(np.max([values for of_layer in found for values in of_layer], axis=0))


def _beyond_inputs(summary: Summary, setting: str) -> Verdict:
    """Judge if the strongest attacker gains from the trained model, beside its columns and the same labels."""
    layers = layers_of(summary)
    mean, half = interval(strongest(summary, setting, layers) - strongest(summary, setting, layers, alone=True))
    claim = f"{setting}: the strongest attacker has a higher AUC with the trained model than with raw inputs alone"
    return verdict(claim, above(mean, half), f"{mean:+.3f} ± {half:.3f}")


def _held(summary: Summary, setting: str) -> list[Verdict]:
    """Judge if a defense hardly lowers the strongest attacker's AUC: at the cut, and at all layers."""
    judged = []
    layers = layers_of(summary)
    for name, chosen in {"cut": ["cut"], " and ".join(layers): layers}.items():
        lowered = paired(summary, "none", setting, partial(strongest, summary, layers=chosen))
        mean, half = interval(lowered)
        holds = True if mean + half < HELD else False if mean - half > HELD else None
        claim = f"{setting}, {name}: the defense lowers the AUC of the strongest attacker by less than {HELD}"
        judged.append(verdict(claim, holds, f"{mean:+.3f} ± {half:.3f}"))
    return judged


def figure(summary: Summary, path: Path) -> None:
    """Draw the AUC of each attacker behind each defense, a panel a layer; hollow: without the trained model."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    from studies.beyond.figures import COLOURS

    layers, settings = layers_of(summary), list(summary["settings"])
    drawn, panels = plt.subplots(1, len(layers), figsize=(5.5 * len(layers) + 1, 4.2), sharey=True, squeeze=False)
    for panel, layer in zip(panels[0], layers, strict=True):
        for number, (colour, name) in enumerate(zip(COLOURS, (PAPER, *READERS), strict=False)):
            at = np.arange(len(settings)) + 0.16 * (number - 1.5)
            means, halves = np.array([interval(reads(summary, of, layer)[name]) for of in settings]).T
            alone = [reads(summary, of, layer, alone=True)[name].mean() for of in settings]
            known = np.where(np.isfinite(halves), halves, 0.0)
            panel.errorbar(at, means, known, fmt="o", color=colour, ms=5, lw=1.2, capsize=2, label=name)
            panel.plot(at, alone, "o", color=colour, ms=5, mfc="white")
        panel.set_xticks(range(len(settings)), settings, rotation=25, ha="right")
        panel.set_title(f"layer {layer!r}; hollow: raw inputs alone", fontsize=10)
        panel.grid(alpha=0.25)
    panels[0][0].set_ylabel(f"AUC on test rows, {KNOWN} labels per class")
    drawn.legend(*panels[0][0].get_legend_handles_labels(), fontsize=9, loc="lower center", ncol=4)
    save(drawn, path, (0, 0.06, 1, 1), dpi=130)


def make_page(runs: Path, out: Path) -> None:
    """Compute everything that the page shows from the runs' files."""
    studies = undefended(STUDIES, lambda study: by_setting(runs / study, SETTINGS, numbers))
    blocks = {}
    for study, summary in studies.items():
        summary["claims"] = verdicts(summary)
        figure(summary, out / f"readers-{study}.png")
        blocks |= {f"{study} reads": read_table(summary), f"{study} claims": claim_table(summary["claims"])}
    write_page(out / "readers.md", studies, blocks)


STUDY = Study(
    __doc__,
    "readers",
    studies=STUDIES,
    settings=SETTINGS,
    seeds=SEEDS,
    quick=QUICK,
    run_one=run_one,
    make_page=make_page,
)
