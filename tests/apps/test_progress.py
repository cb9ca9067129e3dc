"""The live display, drawn into a terminal that is not there."""

from __future__ import annotations

import io
import math

from rich.console import Console

from flower_vfl.apps import run
from flower_vfl.apps.progress import LiveProgress
from tests.toys import toy_config, toy_data


def drawn(terminal):
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=terminal, width=140)
    with LiveProgress("census", console) as progress:
        run(toy_config(training={"epochs": 3}), data=lambda _: toy_data(), observers=(progress,))
    return screen.getvalue()


def test_a_terminal_shows_steps_loss_leak_and_each_epoch():
    shown = drawn(terminal=True)
    assert "27/27" in shown or "26/27" in shown
    for words in ("loss 0.", "leak AUC ", "epoch 3: ", "validation AUC 0.", "test AUC 0."):
        assert words in shown


def test_without_a_terminal_nothing_is_drawn():
    assert drawn(terminal=False) == ""


def test_steps_without_a_measured_leak_show_the_loss_alone():
    screen = io.StringIO()
    with LiveProgress("x", Console(file=screen, force_terminal=True, width=120)) as progress:
        progress.on_start(10, 1, ("a",))
        progress.on_step(0, 1, 0.5, math.nan)
    assert "leak" not in screen.getvalue()
    assert "loss 0.5" in screen.getvalue()
