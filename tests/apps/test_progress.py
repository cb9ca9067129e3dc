"""The live display, drawn into a text buffer."""

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
    for words in ("loss 0.", "leak AUC ", "3/3 census: loss 0.", "validation AUC 0.", "test AUC 0."):
        assert words in shown


def test_without_a_terminal_each_epoch_is_a_line_with_the_time_that_is_left():
    now, screen = iter((100.0, 110.0, 130.0)), io.StringIO()
    with LiveProgress("census", Console(file=screen, width=140), lambda: next(now)) as progress:
        progress.on_start(90, 3, ("a",))
        progress.on_step(0, 1, 0.5, math.nan)
        progress.on_epoch(30, 1, {"train_loss": 0.5, "test_auc": 0.75})
        progress.on_epoch(89, 3, {"train_loss": 0.25})
    assert screen.getvalue().splitlines() == [
        "1/3 census: loss 0.5000, test AUC 0.7500 ... at most 20 s left",  # 30 of 89 steps took 10 s
        "3/3 census: loss 0.2500",
    ]


def test_steps_without_a_measured_leak_show_the_loss_alone():
    screen = io.StringIO()
    with LiveProgress("x", Console(file=screen, force_terminal=True, width=120)) as progress:
        progress.on_start(10, 1, ("a",))
        progress.on_step(0, 1, 0.5, math.nan)
    assert "leak" not in screen.getvalue()
    assert "loss 0.5" in screen.getvalue()
