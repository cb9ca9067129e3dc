"""The figures of `gradients.md`."""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib import pyplot as plt
from matplotlib.axes import Axes

from studies.common import Summary, family, interval, save
from studies.gradients import numbers as n

mpl.use("Agg")

COLOURS = {"iso": "#c05020", "marvell": "#1f5fa8", "max_norm": "#3a8a3a", "none": "#444444"}


def trade_off(summary: Summary, path: Path) -> None:
    """Draw leak against test AUC, a point a setting with its 95 % intervals (L22 Figure 4, with hints added)."""
    attacks = ("norm", "cosine", "hint")
    figure, axes = plt.subplots(len(n.LAYERS), len(attacks), figsize=(11, 6), sharex=True, sharey=True)
    for row, layer in zip(axes, n.LAYERS, strict=True):
        for axis, attack in zip(row, attacks, strict=True):
            for name, colour in COLOURS.items():
                _curve(axis, summary, name, attack, layer, colour)
            axis.axhline(
                np.nanmean(n.leak(summary, "none", attack, layer, "q95_null")),
                color="grey",
                ls=":",
                label="chance (q95)",
            )
            axis.set_title(f"{attack}, {layer} layer", fontsize=10)
            axis.grid(alpha=0.25)
        row[0].set_ylabel("leak AUC (q95)")
    for axis in axes[-1]:
        axis.set_xlabel("test AUC")
    axes[0][0].legend(fontsize=8)
    save(figure, path, dpi=110, metadata={"Software": None})


def _curve(axis: Axes, summary: Summary, name: str, attack: str, layer: str, colour: str) -> None:
    settings = family(summary, name) or [name] * (name in summary["settings"])
    if not settings:
        return
    x = np.array([interval(n.utility(summary, setting)) for setting in settings])
    y = np.array([interval(n.leak(summary, setting, attack, layer)) for setting in settings])
    axis.errorbar(
        x[:, 0],
        y[:, 0],
        xerr=np.where(np.isfinite(x[:, 1]), x[:, 1], 0),
        yerr=np.where(np.isfinite(y[:, 1]), y[:, 1], 0),
        color=colour,
        marker="o" if len(settings) > 1 else "s",
        ms=4,
        lw=1.2,
        elinewidth=0.7,
        label=name,
    )
    for setting, at, height in zip(settings, x[:, 0], y[:, 0], strict=True):
        if "-" in setting:
            axis.annotate(
                setting.split("-")[1], (at, height), fontsize=6, color=colour, xytext=(3, 3), textcoords="offset points"
            )


def observations(probe: Summary, path: Path) -> None:
    """Draw the observations of L22 section 3.3 along training: mean over seeds, and the range that they span."""
    figure, axes = plt.subplots(1, 4, figsize=(14, 3.2))
    both = ("positive", "negative")
    panels = (
        ("mean of |p1 - y|", "error", both),
        ("median norm of dh/dz", "slope", both),
        ("median cosine of dh/dz", "slope_cosine", (*both, "across")),
        ("median cosine of g", "gradient_cosine", (*both, "across")),
    )
    colours = {"positive": "#c05020", "negative": "#1f5fa8", "across": "#3a8a3a"}
    for axis, (title, metric, kinds) in zip(axes, panels, strict=True):
        for kind in kinds:
            values = np.asarray(probe[f"{metric}.{kind}"])
            axis.plot(probe["steps"], values.mean(axis=0), color=colours[kind], label=kind)
            axis.fill_between(
                probe["steps"], values.min(axis=0), values.max(axis=0), color=colours[kind], alpha=0.2, lw=0
            )
        axis.set_title(title, fontsize=10)
        axis.set_xlabel("step")
        axis.grid(alpha=0.25)
        axis.legend(fontsize=8)
        if "cosine" in metric:
            axis.set_ylim(-1.05, 1.05)
    save(figure, path, dpi=110, metadata={"Software": None})
