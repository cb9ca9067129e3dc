"""The figures of `beyond.md`."""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib import pyplot as plt

from studies.beyond import numbers as n
from studies.common import Summary, Values, interval, save

mpl.use("Agg")

SHOWN = ("none", "marvell-rho-0", "marvell-rho-0.9", "full-rho-0", "full-rho-0.9", "max_norm-rho-0", "iso-rho-0")
COLOURS = ("#444444", "#d02030", "#1f5fa8", "#c05020", "#3a8a3a", "#8a3a8a", "#b08a20", "#2a9a9a", "#e080b0")


def epochs(summary: Summary, path: Path) -> None:
    """Draw the leak AUC at the cut after each epoch: of attacks on single steps, and of those with a history."""
    settings = [name for name in SHOWN if name in summary["settings"]]
    figure, axes = plt.subplots(1, len(settings), figsize=(2.7 * len(settings), 3.6), sharey=True, squeeze=False)
    for axis, setting in zip(axes[0], settings, strict=True):
        for colour, attack in zip(COLOURS, (*n.STEPS, *n.readers(summary)), strict=False):
            values = n.leak(summary, setting, attack)
            last = len(n.leak(summary, setting, n.STEPS[0])[0])
            label = f"{attack}, single steps" if attack in n.STEPS else attack
            _line(axis, np.arange(last - values.shape[1] + 1, last + 1), values, colour, label)
        axis.set_title(setting, fontsize=9)
        axis.set_xlabel("epoch")
        axis.axhline(0.5, color="grey", ls=":", lw=0.8)
        axis.grid(alpha=0.25)
    axes[0][0].set_ylabel("leak AUC at the cut")
    figure.legend(*axes[0][0].get_legend_handles_labels(), fontsize=7, loc="lower center", ncol=4)
    save(figure, path, (0, 0.2, 1, 1), dpi=130)


def shares(summary: Summary, path: Path) -> None:
    """Draw the leak AUC after the last epoch over the persistent share of `marvell_full`'s noise, and the test AUC."""
    settings = [name for name in n.defended(summary) if name.startswith("full-")]
    layers = n.layers(summary)
    figure, axes = plt.subplots(1, len(layers) + 1, figsize=(4 * len(layers) + 4, 3.8))
    for axis, layer in zip(axes, layers, strict=False):
        for colour, attack in zip(COLOURS[2:], n.readers(summary), strict=False):
            values = np.stack([interval(n.leak(summary, setting, attack, layer)[:, -1]) for setting in settings])
            _bars(axis, settings, values, colour, attack)
        if summary["columns"]:
            alone = float(np.mean(summary["columns"]))
            axis.axhline(alone, color="#444444", ls="--", lw=0.9, label="own columns, k = 256, no gradient")
        axis.set_title(f"after the last epoch, {layer}", fontsize=9)
        axis.set_ylabel("leak AUC")
    utility = np.stack([interval(summary["settings"][setting]["test_auc"]) for setting in settings])
    _bars(axes[-1], settings, utility, "#1f5fa8", "marvell_full")
    undefended = float(np.mean(summary["settings"]["none"]["test_auc"]))
    axes[-1].axhline(undefended, color="#444444", ls=":", label="no defense")
    axes[-1].set_ylabel("test AUC")
    axes[-1].legend(fontsize=7)
    for axis in axes:
        axis.set_xlabel("rho, the persistent share of the noise")
        axis.grid(alpha=0.25)
    figure.legend(*axes[0].get_legend_handles_labels(), fontsize=7, loc="lower center", ncol=len(layers) + 2)
    save(figure, path, (0, 0.16, 1, 1), dpi=130)


def frontier(summary: Summary, path: Path) -> None:
    """Draw the leak AUC of the strongest attack on sums at the cut after the last epoch over the test AUC."""
    kinds = sorted({n.kind_of(setting) for setting in n.defended(summary)})
    figure, axis = plt.subplots(figsize=(7.5, 4.6))
    for colour, kind in zip(COLOURS, kinds, strict=False):
        settings = [setting for setting in n.defended(summary) if n.kind_of(setting) == kind]
        auc, read = zip(*(_seeds(summary, setting) for setting in settings), strict=True)
        x, y = ([values.mean() for values in of] for of in (auc, read))
        ranges = {"xerr": _around(auc), "yerr": _around(read)}
        axis.errorbar(x, y, **ranges, color=colour, marker="o", ms=4, lw=1, elinewidth=0.6, label=kind)
        for setting, *place in zip(settings, x, y, strict=True):
            axis.annotate(f"{n.share_of(setting):g}", place, xytext=(4, 4), textcoords="offset points", fontsize=8)
    undefended = float(np.mean(summary["settings"]["none"]["test_auc"]))
    axis.axvline(undefended, color="#444444", ls=":", label="no defense")
    axis.set_xlabel("test AUC")
    axis.set_ylabel("leak AUC, strongest attack on sums")
    axis.set_title(
        "cut, last epoch; beside each point: the persistent share of the noise; bars: range over the seeds",
        fontsize=9,
    )
    axis.grid(alpha=0.25)
    axis.legend(fontsize=8)
    save(figure, path, dpi=130)


def _seeds(summary: Summary, setting: str) -> tuple[Values, Values]:
    """Return the test AUC and the strongest attack's leak AUC at the cut after the last epoch, one value a seed."""
    return np.asarray(summary["settings"][setting]["test_auc"]), n.strongest(summary, setting, "cut", -1)


def _around(settings: tuple[Values, ...]) -> Values:
    """Return the distances of each setting's smallest and largest seed from the mean."""
    return np.array([[v.mean() - v.min() for v in settings], [v.max() - v.mean() for v in settings]])


def _line(axis: plt.Axes, x: Values, values: Values, colour: str, label: str) -> None:
    axis.plot(x, values.mean(axis=0), color=colour, marker="o", ms=2.5, lw=1.2, label=label)
    axis.fill_between(x, values.min(axis=0), values.max(axis=0), color=colour, alpha=0.12, lw=0)


def _bars(axis: plt.Axes, settings: list[str], values: Values, colour: str, label: str) -> None:
    x = [n.share_of(setting) for setting in settings]
    half = np.where(np.isfinite(values[:, 1]), values[:, 1], 0.0)
    inside = np.minimum(half, [values[:, 0], 1.0 - values[:, 0]])  # an AUC lies between 0 and 1
    axis.errorbar(x, values[:, 0], yerr=inside, color=colour, marker="o", ms=3, lw=1.2, elinewidth=0.7, label=label)
