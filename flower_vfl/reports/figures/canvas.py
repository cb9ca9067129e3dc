"""Common parts of all figures: inline SVG in which text stays text and every colour is the page's, light or dark."""

from __future__ import annotations

import io
import re
from itertools import cycle
from typing import TYPE_CHECKING, Any, Literal

import matplotlib as mpl
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.text import Annotation

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from matplotlib.axes import Axes
    from matplotlib.text import Text
    from matplotlib.transforms import Bbox

# Placeholders that matplotlib carries into the SVG, where they become the page's variables.
INK, FAINT, BAND, PAPER = "#010101", "#020202", "#030303", "#080808"
LINES = ("#040404", "#050505", "#060606", "#070707")
CLASSES = ("#090909", "#0a0a0a", "#0b0b0b", "#0c0c0c", "#0d0d0d", "#0e0e0e", "#0f0f0f")
DASHES: tuple[tuple[Any, str], ...] = (
    ("-", "o"),
    ((0, (5, 1.5)), "s"),
    ((0, (1, 1.2)), "^"),
    ((0, (5, 1.5, 1, 1.5)), "D"),
)
VARIABLES = {
    INK: "var(--ink)",
    FAINT: "var(--line)",
    BAND: "var(--muted)",
    PAPER: "var(--paper)",
    **{line: f"var(--c{i})" for i, line in enumerate(LINES, 1)},
    **{colour: f"var(--k{i})" for i, colour in enumerate(CLASSES, 1)},
}
LEGEND = 0.35
"""Share of a figure's height that its legend has at most before the figure grows."""

Side = tuple[Literal["left", "center", "right"], Literal["bottom", "top"], float, float]

SIDES: tuple[Side, ...] = (
    ("left", "top", 4.0, -4.0),
    ("right", "bottom", -4.0, 4.0),
    ("right", "top", -4.0, -4.0),
    ("center", "bottom", 0.0, 14.0),
    ("center", "top", 0.0, -14.0),
)
"""Places for a name beside a point, after the usual one above to the right: alignments, and points of offset."""

STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "flower-vfl",
    "text.parse_math": False,  # a party may be called "$x"
    "axes.formatter.use_mathtext": False,
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


def draw(
    title: str,
    paint: Callable[[Axes], None],
    *,
    columns: int = 3,
    size: tuple[float, float] = (4.6, 3.2),
    thin: bool = False,
) -> str:
    """Return one panel as an ``<svg>`` element, the same for the same content; ``paint`` fills its axes.

    Its legend has so many columns at most; its size is in inches. With ``thin`` texts that would lie over an earlier
    one stand on another side of their point, or are left out.
    """
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=size, dpi=72, layout="constrained")  # SVG's own resolution
        FigureCanvasSVG(figure)  # texts are measured as they are written
        axes = figure.subplots()
        axes.set_title(short(title))
        paint(axes)
        if axes.get_legend_handles_labels()[1]:
            _legend(figure, columns)
        _lay_out(figure)
        if thin:
            _thin_out(axes)
        return _svg(figure)


def strokes() -> Iterator[dict[str, Any]]:
    """Return colour, dash and marker of one line after the other; they differ for sixteen."""
    return cycle({"color": colour, "linestyle": dash, "marker": marker} for dash, marker in DASHES for colour in LINES)


def spots() -> Iterator[dict[str, Any]]:
    """Return colour and marker of one class after the other; they differ for 28, and the colours for the colour-blind.

    References
    ----------
    Okabe and Ito, *Color universal design*, 2008.
    """
    return cycle({"color": colour, "marker": marker} for _, marker in DASHES for colour in CLASSES)


def short(name: str) -> str:
    """Return a name that fits above a figure and into its legend, with its end, where the strength stands."""
    return name if len(name) <= 40 else f"{name[:23]}…{name[-16:]}"


def chance_band(axes: Axes, null: float | None) -> None:
    """Shade the band in which a random score stays in nine of ten steps."""
    if null is not None:
        axes.axhspan(1 - null, null, color=BAND, alpha=0.22, linewidth=0, label="guessing")
    axes.axhline(0.5, color=BAND, linewidth=1)


def _legend(figure: Figure, most: int) -> None:
    """Put the legend below, in as many columns as its names leave room for; with many names the figure is taller."""
    for columns in range(most, 0, -1):
        legend = figure.legend(loc="outside lower left", ncols=columns, fontsize=9, handlelength=1.9, columnspacing=1.2)
        box = legend.get_window_extent()
        if columns == 1 or box.width <= figure.bbox.width:
            more = box.height - LEGEND * figure.bbox.height
            figure.set_figheight(figure.get_figheight() + max(0.0, more) / figure.dpi)
            return
        legend.remove()


def _lay_out(figure: Figure) -> None:
    """Give everything its place, once: left to itself, every drawing of the figure would do so again."""
    engine = figure.get_layout_engine()
    if engine is not None:
        engine.execute(figure)
    figure.set_layout_engine(None)


def _thin_out(axes: Axes) -> None:
    """Move texts that would lie over an earlier one to another side of their point; leave out what fits nowhere."""
    kept: list[Bbox] = []
    for text in axes.texts:
        for place in (None, *SIDES):
            if place is not None and not _beside(text, place):
                continue
            box = text.get_window_extent()
            if not any(box.overlaps(other) for other in kept):
                kept.append(box)
                break
        else:
            text.set_visible(False)


def _beside(text: Text, place: Side) -> bool:
    """Put an annotation on a side of its point; a text without a point stays where it is."""
    if not isinstance(text, Annotation):
        return False
    horizontal, vertical, *offset = place
    text.set_horizontalalignment(horizontal)
    text.set_verticalalignment(vertical)
    text.xyann = (offset[0], offset[1])
    return True


def _svg(figure: Figure) -> str:
    stream = io.StringIO()
    nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    figure.savefig(stream, format="svg", transparent=True, metadata=nothing)
    text = stream.getvalue()
    text = re.sub(r' (?:width|height)="[\d.]+pt"', "", text[text.index("<svg") :])
    for placeholder, variable in VARIABLES.items():
        text = text.replace(placeholder, variable)
    return text
