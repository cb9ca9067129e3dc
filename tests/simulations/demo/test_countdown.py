"""The time that is left, against schedules that can be worked out by hand."""

import io

import pytest
from rich.console import Console

from flower_vfl.apps.progress import progress_line
from flower_vfl.simulations.demo.countdown import Countdown
from flower_vfl.simulations.demo.display import Display
from flower_vfl.simulations.demo.pool import Ended, Failed, Progressed, Started


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


def test_of_tasks_that_all_take_ten_seconds_the_time_left_is_that_of_the_rounds(clock):
    left = Countdown(2, clock)
    for name in ("a", "b"):
        left.take(Started(name))
    assert left.seconds_left(7) is None  # nothing is known yet
    clock.now = 10.0
    for name in ("a", "b"):
        left.take(Ended(name, None))
    assert left.seconds_left(7) == 40.0  # rounds of 2, 2, 2 and 1
    for name in ("c", "d"):
        left.take(Started(name))
    clock.now = 16.0
    assert left.seconds_left(5) == 4.0 + 30.0
    assert progress_line(2, 9, "b", left.seconds_left(5)) == "2/9 b ... 34 s left"
    for name in ("c", "d"):
        left.take(Ended(name, None))
    assert left.seconds_left(0) == 0.0


def test_before_the_first_has_ended_its_steps_say_how_long_it_takes(clock):
    left = Countdown(1, clock)
    left.take(Started("a"))
    clock.now = 10.0
    left.take(Progressed("a", 0.5))  # of the steps, which are four fifths of a run
    assert left.seconds_left(0) == pytest.approx(15.0)
    assert left.seconds_left(2) == pytest.approx(15.0 + 2 * 25.0)


def test_a_task_that_takes_longer_than_expected_and_one_that_failed_make_no_negative_time(clock):
    left = Countdown(2, clock)
    left.take(Started("a"))
    clock.now = 5.0
    left.take(Ended("a", None))
    left.take(Started("slow"))
    clock.now = 50.0
    assert left.seconds_left(0) == 0.0
    left.take(Failed("slow", "no"))
    assert left.running == {}
    assert left.seconds_left(2) == 5.0


def test_without_a_terminal_each_run_has_a_line_when_it_begins_and_one_when_it_ends(clock):
    left, shown = Countdown(2, clock), io.StringIO()
    with Display(2, left, Console(file=shown, width=80)) as display:
        left.take(Started("none"))
        display.refresh(0, 1)
        display.refresh(0, 1)
        left.take(Ended("none", None))
        display.line(1, 1, "none")
    assert shown.getvalue().splitlines() == ["0/2 none begins", "1/2 none ... 1 s left"]
