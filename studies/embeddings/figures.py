"""The figures of `embeddings.md`: those of the reports, each a file of its own."""

from __future__ import annotations

import re
from collections.abc import Iterable
from importlib.resources import files
from pathlib import Path

import numpy as np

from flower_vfl.metrics import pair_angles
from flower_vfl.reports.figures import Point, angle_figure, protection_figure
from studies.common import Summary, Values, family, interval
from studies.embeddings import numbers as n

FAMILIES = {
    "pe": "PELoss, alpha",
    "pe_sum": "PELoss summed, alpha",
    "dcor": "DcorLoss, alpha",
    "dcor_plain": "DcorLoss, default",
    "label_dp": "LabelDP, q",
    "iso": "iso, ratio",
    "max_norm": "max_norm",
    "marvell": "Marvell, s",
    "none": "no defense",
}
SHOWN = {
    "mnist": ("clustering", "completion 1", "completion 4", "completion 32"),
    "width": ("clustering", "completion 1", "completion 5", "completion 40"),
    "census": ("spectral", "completion 4", "completion 32"),
    "fashion": ("clustering", "completion 1", "completion 16"),
    "cifar": ("clustering", "completion 1", "completion 4"),
}
ANGLES = ("none", "pe-4", "pe-32", "dcor-8", "label_dp-0.04")


def draw(study: str, summary: Summary, runs: Path, out: Path) -> None:
    """Draw each attack of a study against utility, and angles between embeddings of the first seed."""
    for attack in (attack for attack in SHOWN[study] if attack in n.attacks_of(summary)):
        path = out / f"embeddings-{study}-{attack.replace(' ', '-')}.svg"
        write(path, of_widths(summary, attack) if study == "width" else against_utility(summary, attack))
    for setting in () if study in ("census", "width") else ANGLES:
        sample = n.kept_of(runs / setting / "seed-0")
        if sample is not None:
            figure = angle_figure(f"Angles, {setting}", *pair_angles(sample.z, sample.labels))
            write(out / f"embeddings-{study}-angles-{setting}.svg", figure)


def against_utility(summary: Summary, attack: str) -> str:
    """Return a panel of Z23's Figures 3 and 4: an attack's accuracy or AUC, a point a setting with 95 % intervals."""
    families = {
        words: [_point(summary, setting, attack) for setting in _members(summary, name)]
        for name, words in FAMILIES.items()
        if _members(summary, name)
    }
    two = summary["dataset"]["classes"] == 2
    labels = ("test AUC" if two else "test accuracy", f"attack, {n.measure_of(summary, attack).replace('_', ' ')}")
    alone = np.mean([n.baseline(summary, setting, attack).mean() for setting in summary["settings"]])
    return protection_figure(attack, labels, families, float(alone))


def of_widths(summary: Summary, attack: str) -> str:
    """Return a figure of an attack's accuracy by the width of the cut."""
    names = {"none": "no defense", "pe": "PELoss, alpha 1"}
    families = {
        words: [
            _placed(setting, np.log2([float(setting.split("-")[1])]), n.reached(summary, setting, attack))
            for setting in family(summary, name)
        ]
        for name, words in names.items()
        if family(summary, name)
    }
    labels = ("log2 of the width of the cut", f"attack, {n.measure_of(summary, attack).replace('_', ' ')}")
    alone = np.mean([n.baseline(summary, setting, attack).mean() for setting in summary["settings"]])
    return protection_figure(attack, labels, families, float(alone))


def _members(summary: Summary, name: str) -> list[str]:
    """Return the settings of a defense; those that are no longer usable would only stretch the axis."""
    return n.usable(summary, name) or [name] * (name in summary["settings"])


def _point(summary: Summary, setting: str, attack: str) -> Point:
    return _placed(setting, n.utility(summary, setting), n.reached(summary, setting, attack))


def _placed(setting: str, utility: Values, reached: Values) -> Point:
    """Return the point of a setting with the 95 % intervals over seeds; without intervals where there is one seed.

    The interval of the attack lies between 0 and 1.
    """
    name = setting.split("-")[1] if "-" in setting else ""
    (x, across), (y, up) = interval(utility), interval(reached)
    across, up = (half if np.isfinite(half) else 0.0 for half in (across, up))
    return Point(name, y, x, (max(y - up, 0.0), min(y + up, 1.0)), (x - across, x + across))


def write(path: Path, figure: str) -> None:
    """Write an inline figure as a file, in the colours of the reports' pages, light or dark."""
    css = (files("flower_vfl") / "reports" / "templates" / "style.css").read_text(encoding="utf8")
    dark = re.search(r"@media \(prefers-color-scheme: dark\) \{.*?\n\}", css, re.DOTALL)
    colours: Iterable[str] = (css[: css.index("}") + 1], dark[0] if dark else "", "svg { background: var(--paper); }")
    end = figure.index(">") + 1
    path.write_text(f"{figure[:end]}\n<style>{' '.join(colours)}</style>{figure[end:]}\n", encoding="utf8")
