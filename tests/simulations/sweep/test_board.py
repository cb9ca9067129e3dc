"""Progress and results of a sweep on the console."""

import io
import re

import pytest
from rich.console import Console

from flower_vfl.simulations.sweep.board import Board, UtilityAndLeak, best_of, point_of, print_sweep


def result(auc, leak, validation=None, **more):
    entry = {"attack": "norm", "party": "a", "metric": "auc", "layer": "cut", "source": "attacker", "q95": leak}
    entry |= {"defended": False, "q95_null": 0.55, "steps": 100}
    utility = {"last": {"test_auc": auc, "test_accuracy": 0.1, "validation_auc": validation}}
    return {"status": "finished", "defenses": [], "utility": utility, "leakage": [entry | more]}


@pytest.fixture
def board():
    now = [0.0]
    results = {"a": result(0.9, 0.8, 0.85), "b": result(0.8, 0.6, 0.75)}
    screen = Console(file=io.StringIO(), width=120)
    made = Board(6, 1, results.get, screen, places=2, clock=lambda: now[0])
    made.now = now
    return made


def text(board):
    return board.console.file.getvalue()


def test_without_a_terminal_each_ended_trial_is_a_line(board):
    with board:
        board.started("a")
        board.now[0] = 10.0
        board.completed("a")
        assert board.finished == 1
        board.started("c")
        board.retried("c", "killed")
        board.started("c")
        board.failed("c", "ValueError: no")
    lines = text(board).splitlines()
    assert lines[0] == "2/6 finished: a (validation 0.8500, test 0.9000, worst leak 0.8000) · about 20.0 s left"
    assert lines[1].startswith("2/6 failed, is tried again: c: killed")
    assert lines[2].startswith("3/6 failed: c: ValueError: no")


def test_a_trial_of_a_search_without_a_result_is_not_called_finished(board):
    board.shows_test = False
    with board:
        board.started("c")
        board.completed("c")
    assert text(board).startswith("2/6 ended early, for its validation or for the time: c")
    assert board.finished == 0


def test_an_interruption_is_answered_before_the_work_that_follows(board):
    with pytest.raises(KeyboardInterrupt), board:
        raise KeyboardInterrupt
    assert text(board) == "stopping; what was measured is being written …\n"


def test_a_trial_that_reported_a_failure_is_not_finished_when_its_worker_ends(board):
    board.started("a")
    board.failed("a", "diverged")
    board.completed("a")
    assert board.failures == {"a": "diverged"}
    assert board.ended == {}
    assert board.done == 2


def test_of_a_long_reason_the_beginning_and_the_end_are_shown_and_all_of_it_is_kept(board):
    reason = "RuntimeError: " + "x" * 1000 + " the end"
    with board:
        board.retried("c", reason)
        board.failed("c", reason)
    for line in text(board).splitlines():
        assert "c: RuntimeError: xxx" in line
        assert "[522 characters left out]" in line
        assert "the end" in line
    assert board.failures == {"c": reason}


def test_the_time_left_of_a_search_is_not_longer_than_its_limit(board):
    board.ends = 30.0
    board.started("a")
    board.now[0] = 10.0
    board.started("b")
    board.stepped("a", 1, 100, 0.5, 0.7)  # a thousand seconds each
    assert board.seconds_left() == pytest.approx(20.0)
    board.now[0] = 40.0
    assert board.seconds_left() == 0.0


def test_the_time_left_spreads_the_waiting_trials_over_the_places(board):
    assert board.seconds_left() is None
    board.started("a")
    board.now[0] = 10.0
    board.stepped("a", 50, 200, 0.5, 0.7)  # a quarter in ten seconds: forty each
    assert board.seconds_left() == (30.0 + 4 * 40.0) / 2
    board.now[0] = 20.0
    board.completed("a")
    assert board.seconds_left() == 4 * 20.0 / 2


def test_the_table_shows_what_runs_and_the_best_so_far(board):
    for run in ("a", "b"):
        board.started(run)
        board.completed(run)
    board.started("[bold]c")
    board.stepped("[bold]c", 5, 10, 0.25, 0.75)
    board.console.print(board.table())
    shown = text(board)
    for words in ("3 of 6 trials", "[bold]c", "5 / 10", "0.2500", "0.750", "Best by validation", "0.8500"):
        assert words in shown


def test_trials_that_have_words_are_shown_by_them(board):
    board.words = {"a": "ensemble 4", "b": "cut 16", "c": "cut 8"}
    for run in ("a", "b", "c"):
        board.started(run)
    board.retried("b", "killed")
    board.started("b")
    board.failed("b", "killed")
    board.completed("a")
    board.console.print(board.table())
    shown = text(board)
    assert "again: cut 16: killed" in shown
    assert "failed: cut 16: killed" in shown
    assert "finished: ensemble 4 (" in shown
    assert re.search(r"│ cut 8 +│ opening", shown)
    assert re.search(r"│ ensemble 4 +│ +0\.8500", shown)


def test_the_best_are_those_that_no_other_beats_by_validation_whatever_the_test_says():
    points = {
        "a": UtilityAndLeak(0.9, 0.5, 0.8),
        "b": UtilityAndLeak(0.8, 0.6, 0.6),
        "beaten": UtilityAndLeak(0.7, 0.99, 0.7),
        "unknown leak": UtilityAndLeak(0.95, 0.99, None),
        "no validation": UtilityAndLeak(None, 0.99, 0.5),
    }
    table = best_of(points, {})
    assert [str(cell) for cell in table.columns[0].cells] == ["b", "a"]
    assert [list(column.cells) for column in table.columns[1:3]] == [["0.8000", "0.9000"], ["0.6000", "0.5000"]]


def test_without_a_validation_part_nothing_is_ranked_and_the_reason_is_shown(capsys):
    summaries = [{"run": "a", **result(0.9, 0.5)}, {"run": "b", **result(0.8, 0.4)}]
    print_sweep(summaries, {})
    shown = " ".join(capsys.readouterr().out.split())
    assert "nothing may be chosen by the test rows" in shown
    assert "training.validation" in shown
    assert "0.9" not in shown
    print_sweep([*summaries, {"run": "c", **result(0.7, 0.6, 0.7)}], {})
    assert "Best by validation" in capsys.readouterr().out


def test_settings_are_compared_by_the_means_of_their_seeds(capsys):
    """The better seed of the worse setting is no choice."""
    runs = {"a-0": (0.9, 0.8, 0.80), "a-1": (0.9, 0.8, 0.90), "b-0": (0.9, 0.9, 0.88), "b-1": (0.9, 0.9, 0.70)}
    summaries = [{"run": run, **result(*values)} for run, values in runs.items()]
    print_sweep(summaries, {run: f"defenses = {run[0]}" for run in runs})
    shown = capsys.readouterr().out
    assert "no other setting validates better and leaks less" in shown
    assert re.search(r"│ defenses = a \(mean of 2 seeds\) +│ +0\.8500", shown)
    assert "defenses = b" not in shown


def test_the_display_of_a_running_sweep_compares_settings_too(board):
    board.settings = {"a": "cut = 8", "b": "cut = 8", "c": "cut = 16"}
    for run in ("a", "b"):
        board.started(run)
        board.completed(run)
    board.console.print(board.table())
    assert re.search(r"│ cut = 8 \(mean of 2 seeds\) +│ +0\.8000", text(board))


def test_a_run_is_compared_by_what_its_kept_model_reached_without_oracles():
    assert point_of(result(0.9, 0.8, 0.85)) == (0.85, 0.9, 0.8)
    assert point_of(result(None, 0.8)) == (None, 0.1, 0.8)
    assert point_of(result(0.9, 0.8, attack="cosine")) == (None, 0.9, None)
    assert point_of({"status": "finished", "defenses": [], "leakage": []}) == (None, None, None)
    stopped = result(0.9, 0.8, 0.85)
    stopped["utility"]["best"] = {"test_auc": 0.7, "validation_auc": 0.95}
    assert point_of(stopped) == (0.85, 0.9, 0.8)
    assert point_of(stopped | {"model": {"step": 3, "epoch": 1, "chosen_by": "validation_auc"}}) == (0.95, 0.7, 0.8)
    many = {"validation_macro_auc": 0.9, "validation_accuracy": 0.6, "test_accuracy": 0.5}
    assert point_of(result(0.9, 0.8) | {"utility": {"last": many}})[:2] == (0.6, 0.5)


@pytest.mark.parametrize("status", ["failed", "interrupted", None])
def test_a_run_that_did_not_end_by_itself_is_never_among_the_best(status):
    assert point_of(result(0.9, 0.5, 0.85) | {"status": status}) == (None, None, None)
    assert point_of(result(0.9, 0.5, 0.85) | {"status": "leak limit"}) == (0.85, 0.9, 0.5)


def test_a_stack_is_no_trial_and_trials_of_a_failed_stack_are_trained_one_by_one(board):
    board.stacks = {"4 together: a …": 4, "2 together: b …": 2}
    with board:
        board.started("4 together: a …")
        board.stepped("4 together: a …", 25, 100, 0.5, float("nan"))
        board.now[0] = 10.0
        assert board.seconds_left() == pytest.approx(30.0)
        board.completed("4 together: a …")
        board.started("2 together: b …")
        board.failed("2 together: b …", "RuntimeError: out of memory")
        board.completed("2 together: b …")
    assert board.done == 1
    assert board.failures == board.ended == {}
    assert text(board) == "1/6 not trained as a stack but one by one: 2 together: b …: RuntimeError: out of memory\n"
