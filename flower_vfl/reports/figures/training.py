"""Figures along training: the leak of one run or of several (L22's Figure 3), and values by epoch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.ticker import MaxNLocator

from flower_vfl.metrics import nearest_rank
from flower_vfl.reports.figures.canvas import BAND, INK, chance_band, draw, short, strokes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from matplotlib.axes import Axes
    from numpy.typing import NDArray

    CurvePoints = tuple[NDArray[Any], NDArray[Any]]

CURVE_BINS = 200
CURVE_BINS_OF_SEVERAL = 60


def leak_figure(title: str, curves: Mapping[str, CurvePoints], null: float | None, *, ranges: bool = True) -> str:
    """Draw leak AUC along training: the 95 % quantile of stretches of steps, one line per name (L22's Figure 3).

    Parameters
    ----------
    title
        Title of the figure: of the attack, the party and the layer, those that its lines share.
    curves
        Steps and AUCs by layer or run.
    null
        The 95 % quantile that chance reaches; the band around 0.5 goes that far.
    ranges
        True to draw the whole range of each stretch too, for few lines.

    Returns
    -------
    str
        An ``<svg>`` element.
    """

    def paint(axes: Axes) -> None:
        chance_band(axes, null)
        lowest = 0.45
        for stroke, (label, (steps, values)) in zip(strokes(), curves.items(), strict=False):
            at, low, high, top = stretches(steps, values, CURVE_BINS if ranges else CURVE_BINS_OF_SEVERAL)
            if ranges:
                axes.fill_between(at, low, top, color=stroke["color"], alpha=0.16, linewidth=0)
            axes.plot(at, high, **stroke | _marker(at), label=short(label))
            lowest = min([lowest, *(low if ranges else high)])
        axes.set(xlabel="training step", ylabel="leak AUC", ylim=(max(lowest - 0.02, -0.02), 1.02))

    return draw(title, paint)


def remembered_figure(
    title: str,
    curves: Mapping[str, CurvePoints],
    null: float | None,
    name: str,
    alone: CurvePoints | None,
    bound: CurvePoints | None,
) -> str:
    """Draw the leak AUC of longitudinal attacks over the epochs, beside that of an attack on single steps.

    Parameters
    ----------
    title
        Title of the figure: the party and the layer.
    curves
        Epochs and leak AUCs by attack.
    null
        The 95 % quantile that chance reaches over all rows.
    name, alone
        An attack on single steps, with its epochs and 95 % quantiles; None for none.
    bound
        Epochs, and the defense's bound on the leak AUC over all epochs up to each of them; None for none.

    Returns
    -------
    str
        An ``<svg>`` element.
    """

    def paint(axes: Axes) -> None:
        chance_band(axes, null)
        lowest = 0.45
        if bound is not None:
            axes.plot(*bound, color=INK, linestyle=(0, (1, 2)), linewidth=1.2, label="bound over the epochs")
        for stroke, (label, (epochs, values)) in zip(strokes(), curves.items(), strict=False):
            axes.plot(epochs, values, **stroke | {"linestyle": "-"}, markersize=3.5, label=short(label))
            lowest = min([lowest, *values])
        if alone is not None:
            axes.plot(*alone, color=INK, linestyle=(0, (4, 2)), linewidth=1.2, label=short(name))
            lowest = min([lowest, *alone[1]])
        axes.set(xlabel="epoch", ylabel="leak AUC", ylim=(max(lowest - 0.02, -0.02), 1.02))
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=8))

    return draw(title, paint, columns=2)


def budget_figure(title: str, curves: Mapping[str, tuple[NDArray[Any], NDArray[Any], float]]) -> str:
    """Draw the value after each epoch, one line per name, with its limit in the same colour.

    Parameters
    ----------
    title
        Title of the figure: the limited quantity.
    curves
        Epochs, leak AUCs (NaN for unknown) and the limit, by name.

    Returns
    -------
    str
        An ``<svg>`` element.
    """

    def paint(axes: Axes) -> None:
        axes.axhline(0.5, color=BAND, linewidth=1)
        for stroke, (label, (epochs, values, limit)) in zip(strokes(), curves.items(), strict=False):
            axes.plot(epochs, values, **stroke | {"linestyle": "-"}, markersize=3.5, label=short(label))
            axes.axhline(
                limit, color=stroke["color"], linestyle=(0, (4, 2)), linewidth=1.2, label=f"limit of the {label}"
            )
        axes.set(xlabel="epoch", ylabel="leak AUC", ylim=(0.43, 1.02))
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=8))

    return draw(title, paint, columns=2)


def epoch_figure(title: str, ylabel: str, curves: Mapping[str, CurvePoints]) -> str:
    """Draw one value for each epoch, one line per name."""

    def paint(axes: Axes) -> None:
        for stroke, (label, (epochs, values)) in zip(strokes(), curves.items(), strict=False):
            axes.plot(epochs, values, **stroke, markersize=3.5, label=short(label))
        axes.set(xlabel="epoch", ylabel=ylabel)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=8))

    return draw(title, paint)


def loss_figure(steps: NDArray[Any], values: NDArray[Any]) -> str:
    """Draw the loss along training: the mean of stretches of steps, over their whole range.

    Parameters
    ----------
    steps, values
        Steps and losses, (T,) each.

    Returns
    -------
    str
        An ``<svg>`` element.
    """

    def paint(axes: Axes) -> None:
        stroke = next(strokes())
        parts = _parts(np.isfinite(values).nonzero()[0], CURVE_BINS)
        at, mean, low, high = (
            np.array([find(of[part]) for part in parts], dtype=np.float64)
            for of, find in ((steps, np.mean), (values, np.mean), (values, np.min), (values, np.max))
        )
        axes.fill_between(at, low, high, color=stroke["color"], alpha=0.16, linewidth=0)
        axes.plot(at, mean, **stroke | _marker(at))
        axes.set(xlabel="training step", ylabel="loss")

    return draw("Training loss", paint)


def _marker(at: NDArray[Any]) -> dict[str, Any]:
    """Return the marker setting of a curve: a marker only for a single value, which is invisible without one."""
    return {} if at.size == 1 else {"marker": None}


def stretches(steps: NDArray[Any], values: NDArray[Any], bins: int) -> tuple[NDArray[np.float64], ...]:
    """Return the mean step, minimum, 95 % quantile and maximum of each stretch of a curve, at most `bins` of them.

    A stretch has at least 20 steps where that leaves 25 stretches; a short run is shown step by step.
    """
    parts = _parts(np.isfinite(values).nonzero()[0], bins)
    rows = [(steps[part].mean(), values[part].min(), nearest_rank(values[part]), values[part].max()) for part in parts]
    return tuple(np.array(rows, dtype=np.float64).reshape(-1, 4).T)


def _parts(positions: NDArray[np.int64], bins: int) -> list[NDArray[np.int64]]:
    """Return positions (T,) in at most `bins` parts, of at least 20 where that leaves 25 parts; no part for T = 0."""
    count = positions.size
    return np.array_split(positions, min(bins, max(count // 20, min(count, 25)))) if count else []
