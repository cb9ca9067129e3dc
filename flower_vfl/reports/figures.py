"""Figures as inline SVG: text stays text, and every colour is the page's own, so light and dark come from its style."""

from __future__ import annotations

import io
import re
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from flower_vfl.metrics import nearest_rank

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from matplotlib.axes import Axes
    from numpy.typing import NDArray

    Curve = tuple[NDArray[Any], NDArray[Any]]

# Placeholders that matplotlib carries into the SVG, where they become the page's variables.
INK, FAINT, BAND = "#010101", "#020202", "#030303"
LINES = ("#040404", "#050505", "#060606", "#070707")
VARIABLES = {
    INK: "var(--ink)",
    FAINT: "var(--line)",
    BAND: "var(--muted)",
    **{line: f"var(--c{i})" for i, line in enumerate(LINES, 1)},
}
STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "text.parse_math": False,  # a party may be called "$x"
    "font.size": 10,
    "axes.edgecolor": FAINT,
    "axes.labelcolor": INK,
    "axes.titlesize": 11,
    "axes.titlecolor": INK,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": FAINT,
    "grid.linewidth": 0.6,
    "text.color": INK,
    "xtick.color": FAINT,
    "ytick.color": FAINT,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "legend.frameon": False,
    "legend.labelcolor": INK,
    "lines.linewidth": 1.6,
}
BINS = 200


def leak_figure(title: str, curves: Mapping[str, Curve], null: float | None) -> str:
    """Draw leak AUC along training: for each layer the 95 % quantile of stretches of steps, over their whole range.

    Parameters
    ----------
    title
        Whose leak.
    curves
        Steps and AUCs by layer.
    null
        The 95 % quantile that chance reaches; the band around 0.5 goes that far.

    Returns
    -------
    str
        An ``<svg>`` element.
    """
    with mpl.rc_context(STYLE):
        figure, axes = _canvas(title)
        if null is not None:
            axes.axhspan(1 - null, null, color=BAND, alpha=0.22, linewidth=0, label="guessing")
        axes.axhline(0.5, color=BAND, linewidth=1)
        lowest = 0.45
        for colour, (label, (steps, values)) in zip(_cycle(), curves.items(), strict=False):
            at, low, high, top = _stretches(steps, values)
            axes.fill_between(at, low, top, color=colour, alpha=0.16, linewidth=0)
            axes.plot(at, high, color=colour, label=_short(label), marker="o" if at.size == 1 else None)
            lowest = min([lowest, *low])
        axes.set(xlabel="training step", ylabel="leak AUC", ylim=(max(lowest - 0.02, -0.02), 1.02))
        _legend(figure, axes)
        return _svg(figure)


def epoch_figure(title: str, ylabel: str, curves: Mapping[str, Curve]) -> str:
    """Draw one value for each epoch, a line a name."""
    with mpl.rc_context(STYLE):
        figure, axes = _canvas(title)
        for colour, (label, (epochs, values)) in zip(_cycle(), curves.items(), strict=False):
            axes.plot(epochs, values, color=colour, label=_short(label), marker="o", markersize=3.5)
        axes.set(xlabel="epoch", ylabel=ylabel)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=8))
        _legend(figure, axes)
        return _svg(figure)


def trade_off_figure(points: Sequence[tuple[int, float, float, bool]], null: float | None) -> str:
    """Draw each run's leak against its utility: (number in the table, test AUC, leak AUC, defended)."""
    with mpl.rc_context(STYLE):
        figure, axes = _canvas("Privacy against utility")
        if null is not None:
            axes.axhspan(1 - null, null, color=BAND, alpha=0.22, linewidth=0, label="guessing")
        for defended, label, colour in ((False, "no defense", LINES[0]), (True, "with a defense", LINES[1])):
            chosen = [point for point in points if point[3] == defended]
            if chosen:
                axes.scatter([p[1] for p in chosen], [p[2] for p in chosen], color=colour, s=36, label=label)
        for index, utility, leak, _ in points:
            axes.annotate(str(index), (utility, leak), xytext=(5, 5), textcoords="offset points")
        axes.margins(0.12)
        low = min([0.5, *(point[2] for point in points)])
        axes.set(xlabel="test AUC (right is better)", ylabel="leak AUC, q95 (low is better)", ylim=(low - 0.05, 1.05))
        axes.xaxis.set_major_locator(MaxNLocator(nbins=5))
        _legend(figure, axes)
        return _svg(figure)


def _canvas(title: str) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(4.6, 3.2), layout="constrained")
    axes = figure.subplots()
    axes.set_title(_short(title))
    return figure, axes


def _short(name: str) -> str:
    return name if len(name) <= 40 else f"{name[:39]}…"


def _cycle() -> list[str]:
    return [LINES[i % len(LINES)] for i in range(64)]


def _legend(figure: Figure, axes: Axes) -> None:
    if axes.get_legend_handles_labels()[1]:
        figure.legend(loc="outside lower left", ncols=3, fontsize=9, handlelength=1.4, columnspacing=1.2)


def _stretches(steps: NDArray[Any], values: NDArray[Any]) -> tuple[NDArray[np.float64], ...]:
    """Cut a curve into at most 200 stretches; return where each is, its minimum, 95 % quantile and maximum.

    A stretch has 20 steps or more where that leaves 25 of them; a short run is shown step by step.
    """
    known = np.isfinite(values)
    steps, values = steps[known], values[known]
    parts = (
        np.array_split(np.arange(values.size), min(BINS, max(values.size // 20, min(values.size, 25))))
        if values.size
        else []
    )
    rows = [(steps[part].mean(), values[part].min(), nearest_rank(values[part]), values[part].max()) for part in parts]
    return tuple(np.array(rows, dtype=np.float64).reshape(-1, 4).T)


def _svg(figure: Figure) -> str:
    """Return the figure as an element of the page, the same for the same figure."""
    stream = io.StringIO()
    with mpl.rc_context({"svg.hashsalt": "flower-vfl"}):
        nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        figure.savefig(stream, format="svg", transparent=True, metadata=nothing)
    text = stream.getvalue()
    text = re.sub(r' (?:width|height)="[\d.]+pt"', "", text[text.index("<svg") :])
    for placeholder, variable in VARIABLES.items():
        text = text.replace(placeholder, variable)
    return text
