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
LINE_COLOURS = ("#040404", "#050505", "#060606", "#070707")
CLASS_COLOURS = ("#090909", "#0a0a0a", "#0b0b0b", "#0c0c0c", "#0d0d0d", "#0e0e0e", "#0f0f0f")
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
    **{line: f"var(--c{i})" for i, line in enumerate(LINE_COLOURS, 1)},
    **{colour: f"var(--k{i})" for i, colour in enumerate(CLASS_COLOURS, 1)},
}
LEGEND = 0.35
"""Largest share of a figure's height that its legend may have before the figure is made taller."""

Side = tuple[Literal["left", "center", "right"], Literal["bottom", "top"], float, float]

SIDES: tuple[Side, ...] = (
    ("left", "top", 4.0, -4.0),
    ("right", "bottom", -4.0, 4.0),
    ("right", "top", -4.0, -4.0),
    ("center", "bottom", 0.0, 14.0),
    ("center", "top", 0.0, -14.0),
)
"""Alternatives to the usual place of a label, right above its point: alignments, and offset in typographic points."""

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

    The legend has at most ``columns`` columns; ``size`` is in inches. With ``thin``, texts that would overlap an
    earlier one are moved to another side of their point, or left out.
    """
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=size, dpi=72, layout="constrained")  # SVG's own resolution
        FigureCanvasSVG(figure)  # measures texts as the SVG writes them
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
    """Return an endless iterator of colour, dash and marker, one set per line; the first 16 differ."""
    return cycle(
        {"color": colour, "linestyle": dash, "marker": marker} for dash, marker in DASHES for colour in LINE_COLOURS
    )


def spots() -> Iterator[dict[str, Any]]:
    """Return an endless iterator of colour and marker, one pair per class; the first 28 differ.

    The colours differ for the colour-blind too.

    References
    ----------
    Okabe and Ito, *Color universal design*, 2008.
    """
    return cycle({"color": colour, "marker": marker} for _, marker in DASHES for colour in CLASS_COLOURS)


def short(name: str) -> str:
    """Return a name of at most 40 characters: of a longer one the start, and the end with the strength."""
    return name if len(name) <= 40 else f"{name[:23]}…{name[-16:]}"


def chance_band(axes: Axes, null: float | None) -> None:
    """Shade the band in which a random score stays in nine of ten steps."""
    if null is not None:
        axes.axhspan(1 - null, null, color=BAND, alpha=0.22, linewidth=0, label="guessing")
    axes.axhline(0.5, color=BAND, linewidth=1)


def _legend(figure: Figure, most_columns: int) -> None:
    """Add the legend below the axes, in as many columns as fit; a figure with many names is made taller."""
    for columns in range(most_columns, 0, -1):
        legend = figure.legend(loc="outside lower left", ncols=columns, fontsize=9, handlelength=1.9, columnspacing=1.2)
        box = legend.get_window_extent()
        if columns == 1 or box.width <= figure.bbox.width:
            more = box.height - LEGEND * figure.bbox.height
            figure.set_figheight(figure.get_figheight() + max(0.0, more) / figure.dpi)
            return
        legend.remove()


def _lay_out(figure: Figure) -> None:
    """Compute the layout once; by default each drawing of the figure would compute it again."""
    engine = figure.get_layout_engine()
    if engine is not None:
        engine.execute(figure)
    figure.set_layout_engine(None)


def _thin_out(axes: Axes) -> None:
    """Move texts that overlap an earlier one to another side of their point; hide those that fit nowhere."""
    kept: list[Bbox] = []
    for text in axes.texts:
        for place in (None, *SIDES):
            if place is not None and not _move(text, place):
                continue
            box = text.get_window_extent()
            if not any(box.overlaps(other) for other in kept):
                kept.append(box)
                break
        else:
            text.set_visible(False)


def _move(text: Text, place: Side) -> bool:
    """Move an annotation to a side of its point and return True; return False for a text without a point."""
    if not isinstance(text, Annotation):
        return False
    horizontal, vertical, *offset = place
    text.set_horizontalalignment(horizontal)
    text.set_verticalalignment(vertical)
    text.xyann = (offset[0], offset[1])
    return True


def _svg(figure: Figure) -> str:
    stream = io.StringIO()
    no_metadata = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    figure.savefig(stream, format="svg", transparent=True, metadata=no_metadata)
    text = stream.getvalue()
    text = re.sub(r' (?:width|height)="[\d.]+pt"', "", text[text.index("<svg") :])
    for placeholder, variable in VARIABLES.items():
        text = text.replace(placeholder, variable)
    return text
