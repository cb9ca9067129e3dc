"""Export of a sweep's table: CSV for a program, LaTeX for a paper."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from typing import Any

from flower_vfl.reports.words import METRICS

SettingRows = Sequence[Mapping[str, Any]]
LeakPlaces = Sequence[tuple[str, str]]

_SPECIAL = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "·": r"$\cdot$",
    **{character: rf"\{character}" for character in "&%$#_{}"},
}


def to_csv(rows: SettingRows, places: LeakPlaces, measure: str, chosen_by: str) -> str:
    """Return one row per setting: its values, then mean, ends of the 95 % interval and number of runs of each result.

    Parameters
    ----------
    rows
        Rows of the page: each with a ``setting``, its ``validation``, a ``utility``, a ``loss``, the ``worst`` leak and
        the ``leaks``.
    places
        (attack, layer) of the leaks.
    measure
        Name of the utility.
    chosen_by
        Name of the validation measure by which settings beat each other.
    """
    keys = list(dict.fromkeys(key for row in rows for key in row["setting"].values))
    names = [chosen_by, measure, "test_loss", "worst_leak", *(f"leak_q95 {attack} {layer}" for attack, layer in places)]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    ends = ("", " low95", " high95", " runs")
    writer.writerow([*keys, "not_beaten", *(name + end for name in names for end in ends)])
    for row in rows:
        values = row["setting"].values
        found = [row["validation"], row["utility"], row["loss"], row["worst"], *row["leaks"]]
        numbers = [cell for one in found for cell in _cells(one)]
        writer.writerow([*(values.get(key, "") for key in keys), int(row["front"]), *numbers])
    return text.getvalue()


def _cells(found: Any) -> list[str]:
    if found is None:
        return ["", "", "", "0"]
    ends = [f"{found.low:.6g}", f"{found.high:.6g}"] if found.count > 1 else ["", ""]
    return [f"{found.mean:.6g}", *ends, str(found.count)]


def to_latex(rows: SettingRows, places: LeakPlaces, measure: str, chosen_by: str) -> str:
    r"""Return a ``tabular`` with one row per setting, as mean and half the 95 % interval; needs the package booktabs.

    Settings that are not beaten by validation are bold.
    """
    leaks = (f"{attack}, {layer}" for attack, layer in places)
    head = ["Setting", METRICS[chosen_by], METRICS[measure], "Test loss", "Worst leak", *leaks]
    lines = [rf"\begin{{tabular}}{{l{'r' * (len(head) - 1)}}}", r"\toprule"]
    lines += [" & ".join(map(_escaped, head)) + r" \\", r"\midrule"]
    for row in rows:
        title = _escaped(row["title"])
        title = rf"\textbf{{{title}}}" if row["front"] else title
        values = [
            _latex(row["validation"], 4),
            _latex(row["utility"], 4),
            _latex(row["loss"], 4),
            *(_latex(v, 3) for v in (row["worst"], *row["leaks"])),
        ]
        lines.append(" & ".join([title, *values]) + r" \\")
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", ""])


def _latex(found: Any, digits: int) -> str:
    if found is None:
        return "--"
    half = "" if found.half is None else rf" \pm {found.half:.{digits}f}"
    return f"${found.mean:.{digits}f}{half}$"


def _escaped(text: str) -> str:
    return "".join(_SPECIAL.get(character, character) for character in text)
