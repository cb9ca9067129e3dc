"""Figures of the leak of a trained model: attacks against utility, leaked labels, angles and maps of embeddings."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

from flower_vfl.reports.figures.canvas import BAND, INK, LINE_COLOURS, PAPER, draw, short, spots, strokes
from flower_vfl.reports.figures.trade_off import draw_families

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from matplotlib.axes import Axes
    from numpy.typing import NDArray

    from flower_vfl.reports.figures.trade_off import Point

HISTOGRAM_BINS = 60
SCRATCH = {"color": BAND, "linestyle": (0, (4, 2)), "marker": "x"}


@dataclass(frozen=True, slots=True)
class Reached:
    """Accuracy of an attacker with a number of leaked labels.

    Attributes
    ----------
    k
        Labelled examples of each class.
    value
        Mean of the attacker's test utility.
    low, high
        Ends of its interval; the mean itself where there is none.
    """

    k: int
    value: float
    low: float
    high: float


def protection_figure(
    title: str, labels: tuple[str, str], families: Mapping[str, Sequence[Point]], baseline: float | None
) -> str:
    """Draw an attack on the trained model against utility, with the area of perfect protection (Z23's Figures 3 and 4).

    Parameters
    ----------
    title
        Title of the figure: the attack and its layer.
    labels
        Labels of the horizontal axis, the utility, and of the vertical one, the attack.
    families
        Settings by family, each ordered by strength; whiskers are the points' own.
    baseline
        Value of the attack's measure without the trained model; below it is perfect protection.

    Returns
    -------
    str
        An ``<svg>`` element.
    """

    def paint(axes: Axes) -> None:
        values = [edge for points in families.values() for p in points for edge in (p.leak, *p.leaks)]
        known = [*values, *([] if baseline is None else [baseline])]
        low, high = min(known), max(known)
        room = max(high - low, 0.05)
        low, high = max(low - 0.15 * room, 0.0), high + 0.1 * room
        if baseline is not None:
            axes.axhspan(low, baseline, color=BAND, alpha=0.22, linewidth=0, label="perfect protection")
            axes.axhline(baseline, color=BAND, linewidth=1)
        draw_families(axes, families)
        axes.set(xlabel=labels[0], ylabel=labels[1], ylim=(low, high))
        axes.margins(x=0.12)
        axes.xaxis.set_major_locator(MaxNLocator(nbins=5))

    return draw(title, paint, thin=True)


def rebuild_figure(
    title: str,
    ylabel: str,
    lines: Mapping[str, Sequence[Reached]],
    alone: Sequence[Reached],
    levels: tuple[float, float, float],
) -> str:
    """Draw the accuracy of an attacker's completed model against the number of leaked labels.

    Parameters
    ----------
    title, ylabel
        Title of the figure, and label of the vertical axis: the measure.
    lines
        Accuracy by number of leaked labels, one line for each setting.
    alone
        Accuracy of training from scratch on the same labels.
    levels
        Accuracy by chance, accuracy that counts as rebuilt, and that of the federation's own model.

    Returns
    -------
    str
        An ``<svg>`` element.
    """

    def paint(axes: Axes) -> None:
        chance, target, own = levels
        axes.axhline(own, color=INK, linewidth=1.4, label="the federation’s own model")
        axes.axhline(target, color=INK, linewidth=1, linestyle=(0, (1, 2)), label="counts as rebuilt")
        drawn = [*zip(strokes(), lines.items(), strict=False), (SCRATCH, ("from scratch", alone))]
        for number, (stroke, (name, points)) in enumerate(drawn):
            # Whiskers side by side: shades of many lines would hide each other.
            shift = 1 + 0.05 * (number - len(lines) / 2) if many else None
            _curve(axes, points, stroke, short(name), shift)
        counts = sorted({p.k for points in (*lines.values(), alone) for p in points})
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_locator(FixedLocator(counts))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        lowest = min([chance, *(p.value for points in (*lines.values(), alone) for p in points)])
        axes.set(xlabel="leaked labels of each class", ylabel=ylabel, ylim=(lowest - 0.03, min(own + 0.04, 1.02)))

    many = len(lines) > 1
    return draw(title, paint, columns=2, size=(7.0, 3.0 + 0.12 * len(lines)) if many else (4.6, 3.2))


def _curve(axes: Axes, points: Sequence[Reached], stroke: Mapping[str, Any], label: str, shift: float | None) -> None:
    """Draw a line with a shaded interval; with `shift`, whiskers instead, and all moved sideways by that factor."""
    if not points:
        return
    k, value, low, high = (np.array([getattr(p, name) for p in points]) for name in ("k", "value", "low", "high"))
    if shift is None:
        axes.fill_between(k, low, high, color=stroke["color"], alpha=0.13, linewidth=0)
    else:
        k = k * shift
        axes.vlines(k, low, high, color=stroke["color"], alpha=0.6, linewidth=0.8)
    axes.plot(k, value, **stroke, linewidth=1.4, markersize=4.5, label=label)


def angle_figure(title: str, same: NDArray[np.float64], different: NDArray[np.float64]) -> str:
    """Draw the distribution of angles between embeddings, for pairs of one class and of two (Z23's Figure 5).

    Parameters
    ----------
    title
        Title of the figure, which names the embeddings.
    same, different
        Angles in radians, as `flower_vfl.metrics.pair_angles` returns them.

    Returns
    -------
    str
        An ``<svg>`` element.
    """

    def paint(axes: Axes) -> None:
        edges = np.linspace(0, 180, HISTOGRAM_BINS + 1)
        for angles, colour, dash, label in (
            (same, LINE_COLOURS[0], "-", "two of one class"),
            (different, LINE_COLOURS[1], (0, (5, 1.5)), "one of each of two classes"),
        ):
            if angles.size:
                shares = np.histogram(np.degrees(angles), edges)[0] / angles.size
                axes.stairs(shares, edges, color=colour, fill=True, alpha=0.18, linewidth=0)
                axes.stairs(shares, edges, color=colour, linestyle=dash, linewidth=1.4, label=label)
        axes.axvline(90, color=INK, linewidth=1, linestyle=(0, (1, 2)))
        axes.set(xlim=(0, 180), xlabel="angle between two embeddings", ylabel="share of pairs")
        axes.set_xticks(range(0, 181, 45), ["0°", "45°", "90° = π/2", "135°", "180°"])
        axes.set_ylim(bottom=0)
        axes.yaxis.set_major_locator(MaxNLocator(nbins=4))

    return draw(title, paint)


def map_figure(title: str, places: NDArray[np.floating[Any]], labels: NDArray[np.int64], names: Sequence[str]) -> str:
    """Draw embeddings on a plane, coloured by class; the names of more than two classes stand at their medians too.

    Parameters
    ----------
    title
        Title of the figure, which names the embeddings.
    places
        (n, 2) coordinates of the embeddings.
    labels
        (n,) class numbers.
    names
        (C,) names of the classes.

    Returns
    -------
    str
        An ``<svg>`` element.
    """

    def paint(axes: Axes) -> None:
        middles = {}
        for spot, (number, name) in zip(spots(), enumerate(names), strict=False):
            x, y = places[labels == number].T
            if x.size:
                axes.plot(x, y, **spot, linestyle="", markersize=4.2, markeredgewidth=0, alpha=0.8, label=short(name))
                middles[name] = (float(np.median(x)), float(np.median(y)))
        if len(middles) > 2:
            box = {"boxstyle": "round,pad=0.15", "facecolor": PAPER, "edgecolor": "none", "alpha": 0.75}
            for name, middle in middles.items():
                axes.annotate(short(name), middle, ha="center", va="center", fontsize=9, fontweight="bold", bbox=box)
        axes.set(xticks=[], yticks=[])
        axes.grid(visible=False)
        axes.margins(0.04)

    return draw(title, paint, columns=max(3, min(7, math.ceil(len(names) / 2))))
