"""Leak and utility by day, where rows were trained on in time order (L21's Figure 4)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.ticker import MaxNLocator

from flower_vfl.reports.figures.canvas import BAND, draw, short, strokes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from matplotlib.axes import Axes
    from numpy.typing import NDArray

MOST_MARKERS = 40
"""Largest number of periods with a marker each; more are drawn faintly, below their running mean."""

WINDOW_PERIODS = 7
"""Periods of a running mean: with days, a week."""


def period_figure(
    title: str,
    ylabel: str,
    curves: Mapping[str, tuple[NDArray[Any], NDArray[Any]]],
    names: Mapping[int, str],
    null: tuple[NDArray[Any], NDArray[Any]] | None = None,
) -> str:
    """Draw one value for each period, one line per name, with the periods' names below.

    Parameters
    ----------
    title, ylabel
        Title of the figure, and label of the vertical axis.
    curves
        Periods (from 1) and values, by name.
    names
        Name of each period, by its number.
    null
        Periods and the 95 % quantiles that chance reaches in them; the band around 0.5 goes that far.

    Returns
    -------
    str
        An ``<svg>`` element.
    """

    def paint(axes: Axes) -> None:
        if null is not None:
            axes.fill_between(null[0], 1 - null[1], null[1], color=BAND, alpha=0.22, linewidth=0, label="guessing")
            axes.axhline(0.5, color=BAND, linewidth=1)
        for stroke, (label, (at, values)) in zip(strokes(), curves.items(), strict=False):
            if at.size <= MOST_MARKERS:
                axes.plot(at, values, **stroke, markersize=3, label=short(label))
                continue
            axes.plot(at, values, color=stroke["color"], alpha=0.25, linewidth=0.8)
            axes.plot(at, running_mean(values), **stroke | {"marker": None}, label=short(label))
        axes.set(ylabel=ylabel)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=6))
        axes.xaxis.set_major_formatter(lambda at, _: short(names.get(round(at), "")))
        axes.tick_params(axis="x", labelrotation=30)

    return draw(title, paint, size=(6.4, 3.4))


def running_mean(values: NDArray[Any]) -> NDArray[np.float64]:
    """Return the running mean of values (N,) over `WINDOW_PERIODS` of them, fewer at the ends; N >= `WINDOW_PERIODS`.

    Examples
    --------
    >>> running_mean(np.arange(8.0))
    array([1.5, 2. , 2.5, 3. , 4. , 4.5, 5. , 5.5])
    """
    kernel = np.ones(WINDOW_PERIODS)
    count: NDArray[np.float64] = np.convolve(np.ones(values.size), kernel, "same")
    return np.asarray(np.convolve(values, kernel, "same") / count)
