"""Figures of the trade-off of leak against utility, one point per run or setting (L22's Figure 4)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from matplotlib.ticker import MaxNLocator

from flower_vfl.reports.figures.canvas import INK, LINE_COLOURS, chance_band, draw, short, strokes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from matplotlib.axes import Axes


@dataclass(frozen=True, slots=True)
class Point:
    """One setting of a defense: the mean over its runs, and their spread.

    Attributes
    ----------
    name
        The strength, written beside the point.
    leak, utility
        Mean leak AUC (q95), or mean accuracy of an attack on the trained model, and mean utility.
    leaks, utilities
        Ends of the whiskers: the lowest and the highest run, or an interval.
    """

    name: str
    leak: float
    utility: float
    leaks: tuple[float, float]
    utilities: tuple[float, float]


def trade_off_figure(
    points: Sequence[tuple[int, float, float, bool]],
    null: float | None,
    *,
    utility: str = "test AUC (right is better)",
    no_gradients: float | None = None,
) -> str:
    """Draw each run's leak against its utility: (number in the table, utility, leak AUC, defended).

    `utility` labels the horizontal axis. A line is drawn at the utility of runs that sent no gradient, where there are
    some.
    """

    def paint(axes: Axes) -> None:
        chance_band(axes, null)
        _baseline(axes, no_gradients)
        for defended, label, colour in (
            (False, "no defense", LINE_COLOURS[0]),
            (True, "with a defense", LINE_COLOURS[1]),
        ):
            chosen = [point for point in points if point[3] == defended]
            if chosen:
                axes.scatter([p[1] for p in chosen], [p[2] for p in chosen], color=colour, s=36, label=label)
        for index, useful, leak, _ in points:
            axes.annotate(str(index), (useful, leak), xytext=(5, 5), textcoords="offset points")
        axes.margins(0.12)
        low = min([0.5, *(point[2] for point in points)])
        axes.set(xlabel=utility, ylabel="leak AUC, q95 (low is better)", ylim=(low - 0.05, 1.05))
        axes.xaxis.set_major_locator(MaxNLocator(nbins=5))

    return draw("Privacy against utility", paint, thin=True)


def setting_figure(
    title: str,
    utility: str,
    families: Mapping[str, Sequence[Point]],
    null: float | None,
    *,
    edge: Sequence[tuple[float, float]] = (),
    joined: bool = True,
    no_gradients: float | None = None,
) -> str:
    """Draw one panel of L22's Figure 4: one point per setting, one line per family of settings ordered by strength.

    Parameters
    ----------
    title
        Title of the figure: the attack and its layer.
    utility
        Label of the horizontal axis.
    families
        Settings by family, each ordered by strength; whiskers go from the lowest to the highest run.
    null
        The 95 % quantile that chance reaches.
    edge
        (utility, leak) of the settings that no other beats, drawn as a dotted line.
    joined
        True if the points of a family are joined; False where they differ in more than their strength.
    no_gradients
        Utility of runs that sent no gradient, drawn as a line: settings with a worse utility should not be used.

    Returns
    -------
    str
        An ``<svg>`` element.
    """

    def paint(axes: Axes) -> None:
        chance_band(axes, null)
        _baseline(axes, no_gradients)
        if edge:
            axes.plot(*zip(*edge, strict=True), color=INK, linewidth=1, linestyle=(0, (1, 2)), label="not beaten")
        draw_families(axes, families, joined=joined)
        low = min([0.5, *(p.leaks[0] for points in families.values() for p in points)])
        axes.set(xlabel=utility, ylabel="leak AUC, q95", ylim=(low - 0.05, 1.05))
        axes.margins(x=0.12)
        axes.xaxis.set_major_locator(MaxNLocator(nbins=5))

    return draw(title, paint, thin=True)


def _baseline(axes: Axes, utility: float | None) -> None:
    if utility is not None:
        axes.axvline(utility, color=INK, linewidth=1, linestyle=(0, (5, 3)), label="without any gradient")


def draw_families(axes: Axes, families: Mapping[str, Sequence[Point]], *, joined: bool = True) -> None:
    """Draw one line per family, with whiskers at its points and their strengths beside them, the strongest first."""
    for stroke, (family, points) in zip(strokes(), families.items(), strict=False):
        x, y = [p.utility for p in points], [p.leak for p in points]
        axes.plot(x, y, **stroke, linewidth=1.2 if joined else 0.0, markersize=4.5, label=short(family))
        for p in points:
            axes.plot([p.utility, p.utility], p.leaks, color=stroke["color"], linewidth=1)
            axes.plot(p.utilities, [p.leak, p.leak], color=stroke["color"], linewidth=1)
        for p in reversed(points):
            axes.annotate(p.name, (p.utility, p.leak), xytext=(4, 4), textcoords="offset points", fontsize=8)
