"""Content of the page of a run under way, from its folder."""

from __future__ import annotations

import math
import threading
import time
from typing import Any

import numpy as np
from markupsafe import Markup

from flower_vfl.apps.live import read_live
from flower_vfl.auditing.entries import ORACLES
from flower_vfl.metrics import null_quantile
from flower_vfl.protocol.printable import printable
from flower_vfl.reports.figures import leak_figure, loss_figure
from flower_vfl.reports.page import fill
from flower_vfl.reports.run import PAGE
from flower_vfl.reports.watching.follower import Curve, Follower
from flower_vfl.tracking import Series

QUIET_SECONDS = 30.0
"""Seconds without a step, after which the page names them."""

GONE_SECONDS = 20.0
"""Seconds without a new state, which a process writes every two, after which the process counts as gone."""

REDRAW_SECONDS = 3.0
"""Smallest number of seconds between two drawings of the figures: each takes a part of a second of a processor."""

_LOSS: Series = ("label", "", "", "train_loss")
_INFORMED = "informed"
_BATCHES = 200
"""Number of latest batches whose class counts give the chance level."""

_LEVEL = 0.975
"""Level of a quantile that random scores, as they are or turned around, stay below in 19 of 20 steps."""

_MOST_FIGURES = 12


class RunPage:
    """The page of one run; a request refreshes its content, at most once in `REDRAW_SECONDS`.

    Parameters
    ----------
    follower : Follower
        Reader of the run's folder.
    """

    def __init__(self, follower: Follower) -> None:
        self.follower = follower
        self._lock = threading.Lock()
        self._due = -math.inf
        self._figures: list[Markup] = []

    def page(self) -> str:
        """Return the whole page, HTML."""
        return fill("watch.html.j2", title=f"Watching {self._name}", **self._values())

    def part(self) -> str:
        """Return the part of the page that changes, HTML."""
        return fill("watching.html.j2", **self._values())

    @property
    def _name(self) -> str:
        return self.follower.folder.resolve().name

    def _values(self) -> dict[str, Any]:
        with self._lock:
            follower = self.follower
            now = time.monotonic()
            if now >= self._due:
                if follower.read() or not self._figures:
                    self._figures = self._draw()
                self._due = time.monotonic() + REDRAW_SECONDS
            ending = follower.ending
            state = read_live(follower.folder) or {}
            steps, done, speed = (state.get(name) for name in ("steps", "step", "speed"))
            gone = silence if ending is None and (silence := follower.silent) > GONE_SECONDS else None
            quiet = silence if ending is None and (silence := follower.quiet) > QUIET_SECONDS else None
            under_way = ending is None and gone is None and quiet is None
            left = (steps - done) / speed if under_way and steps and done and speed else None
            parties = {} if ending else state.get("parties", {})  # a process that was killed leaves its state
            loss = follower.curves.get(_LOSS, Curve()).values
            return {
                "name": self._name,
                "ending": ending,
                "report": (follower.folder / PAGE).is_file(),
                "state": state,
                "left": left,
                "quiet": quiet,
                "gone": gone,
                "folder": printable(follower.folder, 300),
                "loss": float(loss[-1]) if loss.size else None,
                "leak": self._leak(),
                "chance": self._chance(),
                "figures": self._figures,
                "parties": {printable(party, 80): facts for party, facts in parties.items()},
                "log": follower.log(),
                "problem": follower.problem,
            }

    def _leaks(self) -> dict[tuple[str, str], dict[str, Curve]]:
        """Return the leak AUCs of single steps by party and layer, then attack: an attacker's before the monitor's."""
        curves = self.follower.curves
        found: dict[tuple[str, str], dict[str, Curve]] = {}
        for (party, layer, attack, metric), curve in sorted(curves.items()):
            doubled = metric == "monitor_auc" and (party, layer, attack, "auc") in curves
            if metric in ("auc", "monitor_auc") and attack not in ("", _INFORMED) and not doubled:
                found.setdefault((party, layer), {})[attack] = curve
        return found

    def _leak(self) -> tuple[float, str] | None:
        """Return the largest leak AUC of all attacks' latest steps, with attack, party and layer; None without any.

        Scores may be turned around. Oracles do not count: no party has what they are given.
        """
        latest = [
            (max(float(curve.values[-1]), 1.0 - float(curve.values[-1])), f"{attack}, party {party}, {layer} layer")
            for (party, layer), curves in self._leaks().items()
            for attack, curve in curves.items()
            if math.isfinite(curve.values[-1]) and attack.partition("(")[0] not in ORACLES
        ]
        return max(latest, default=None)

    def _chance(self) -> float | None:
        """Return what guessing reaches on the latest batches; None where no batch has two classes."""
        rows, positives = (
            self.follower.curves.get(("label", "", "", name), Curve()).values[-_BATCHES:]
            for name in ("batch_rows", "batch_positives")
        )
        counts = [
            (int(of - ones), int(ones)) for of, ones in zip(rows, positives, strict=False) if 0 <= ones <= of < 2**31
        ]
        found = null_quantile(counts, _LEVEL)
        return found if math.isfinite(found) else None

    def _draw(self) -> list[Markup]:
        figures = []
        loss = self.follower.curves.get(_LOSS)
        if loss is not None and np.isfinite(loss.values).any():
            figures.append(Markup(loss_figure(loss.steps, loss.values)))
        chance = self._chance()
        for (party, layer), curves in list(self._leaks().items())[:_MOST_FIGURES]:
            shown = {printable(attack, 60): (curve.steps, curve.values) for attack, curve in curves.items()}
            figures.append(Markup(leak_figure(_title(party, layer), shown, chance, ranges=False)))
        return figures


def _title(party: str, layer: str) -> str:
    return f"Leak AUC: party {printable(party, 60)}, {printable(layer, 20)} layer"
