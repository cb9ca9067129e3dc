"""Figures of the gradients' distribution by class, as training goes on (L22's Figure 2)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from matplotlib.ticker import FuncFormatter, NullFormatter

from flower_vfl.metrics.snapshot import CROSS, NEGATIVE, POSITIVE
from flower_vfl.reports.figures.canvas import LINE_COLOURS, draw

if TYPE_CHECKING:
    from collections.abc import Mapping

    from matplotlib.axes import Axes

    from flower_vfl.metrics import Values

OF_ROWS = {NEGATIVE: "negatives", POSITIVE: "positives"}
OF_PAIRS = {NEGATIVE: "two negatives", POSITIVE: "two positives", CROSS: "one of each"}
PANELS = {
    "residual": ("How wrong: |p₁ − y|", "|p₁ − y|", OF_ROWS),
    "slope_norm": ("Length of ∂h/∂z", "‖∂h/∂z‖", OF_ROWS),
    "gradient_norm": ("Length of the gradient g", "‖g‖", OF_ROWS),
    "slope_cosine": ("Direction of ∂h/∂z, pairs", "cosine", OF_PAIRS),
    "gradient_cosine": ("Direction of the gradient g, pairs", "cosine", OF_PAIRS),
}
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)


def snapshot_figures(snapshots: Mapping[int, Values]) -> list[str]:
    """Draw the five panels of L22's Figure 2 that have values.

    For each step and group: a dot at the median, a bar over the middle half, a line from the 5 % to the 95 % quantile.

    Parameters
    ----------
    snapshots
        Values by step, as `flower_vfl.metrics.snapshot` returns them.

    Returns
    -------
    list[str]
        ``<svg>`` elements.
    """
    present = {quantity for values in snapshots.values() for quantity, _ in values}
    return [_panel(quantity, snapshots) for quantity in PANELS if quantity in present]


def _panel(quantity: str, snapshots: Mapping[int, Values]) -> str:
    title, ylabel, groups = PANELS[quantity]

    def paint(axes: Axes) -> None:
        lowest, highest = np.inf, 0.0
        for index, (group, label) in enumerate(groups.items()):
            shift = (index - (len(groups) - 1) / 2) * 0.24
            found = [(at + shift, values.get((quantity, group))) for at, values in enumerate(snapshots.values())]
            known = [(at, np.quantile(values, QUANTILES)) for at, values in found if values is not None]
            if not known:
                continue
            at = np.array([place for place, _ in known])
            low, lower, middle, upper, high = np.stack([quantiles for _, quantiles in known], axis=1)
            axes.vlines(at, low, high, color=LINE_COLOURS[index], linewidth=1.2)
            axes.vlines(at, lower, upper, color=LINE_COLOURS[index], linewidth=5, alpha=0.55)
            axes.plot(at, middle, color=LINE_COLOURS[index], linestyle="", marker="o", markersize=5, label=label)
            lowest, highest = min(lowest, float(low.min())), max(highest, float(high.max()))
        if quantity.endswith("_cosine"):
            axes.set_ylim(-1.05, 1.05)
        elif 0 < 100 * lowest < highest:
            axes.set_yscale("log")
            axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))  # the default wants mathtext
            axes.yaxis.set_minor_formatter(NullFormatter())
        axes.set_xticks(range(len(snapshots)), [f"{step:,}" for step in snapshots])
        axes.set(xlabel="after so many steps", ylabel=ylabel)
        axes.grid(visible=False, axis="x")

    return draw(title, paint)
