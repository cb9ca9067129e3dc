"""Reports of a worker on its trials, and messages about a worker that ended."""

import copy
import sys
from types import SimpleNamespace

import pytest

from flower_vfl.apps.run_state import is_begun
from flower_vfl.config import Config
from flower_vfl.errors import TrainingError
from flower_vfl.simulations.stacked import running
from flower_vfl.simulations.sweep import ray_tune
from flower_vfl.simulations.sweep.definition import Budget
from tests.toys import toy_config, toy_data


@pytest.fixture
def reported(monkeypatch):
    found = []
    monkeypatch.setattr(ray_tune.tune, "report", found.append)
    return found


def plans(folder, **sections):
    config: Config = toy_config(**sections)
    configs = [config.model_copy(update={"seed": seed}) for seed in (0, 1)]
    return {"two": [(config.model_dump(), str(folder / str(config.seed)), str(folder)) for config in configs]}


def use(data, monkeypatch):
    def train(configs, folders, **more):
        return running.train_stack(configs, folders, data=lambda _: data, **more)

    monkeypatch.setattr(ray_tune, "train_stack", train)


def test_a_stack_reports_its_steps_and_its_end(tmp_path, monkeypatch, reported):
    monkeypatch.chdir(tmp_path)
    use(toy_data(), monkeypatch)
    ray_tune._train_stack({"run": "two"}, plans=plans(tmp_path))
    assert reported[0]["steps"] == reported[-2]["step"] > 0
    assert reported[-1] == {"finished": True}
    assert all(is_begun(tmp_path / seed) for seed in "01")


def test_a_stack_that_cannot_be_trained_says_why_and_begins_nothing(tmp_path, monkeypatch, reported):
    monkeypatch.chdir(tmp_path)
    use(toy_data(classes=3), monkeypatch)
    ray_tune._train_stack({"run": "two"}, plans=plans(tmp_path, attack={"names": []}))
    assert "two classes" in reported[-1]["failed"]
    assert not any(is_begun(tmp_path / seed) for seed in "01")


def test_runs_that_diverge_are_named(tmp_path, monkeypatch, reported):
    monkeypatch.chdir(tmp_path)
    use(toy_data(), monkeypatch)
    ray_tune._train_stack({"run": "two"}, plans=plans(tmp_path, training={"optimizer": "sgd", "learning_rate": 1e30}))
    assert reported[-1]["failed"] == "2 of them diverged: 0, 1"


@pytest.mark.parametrize(
    ("before", "finished", "latest", "end"),
    [(0, 0, 58.0, 58.0), (0, 1, 58.0, 36.0), (1, 0, 58.0, 36.0), (0, 0, 0.0, 36.0)],
)
def test_trials_go_on_beyond_the_search_where_none_has_a_result(before, finished, latest, end):
    board, now = SimpleNamespace(before=before, finished=finished), [0.0]
    deadline = ray_tune.Deadline(Budget(36.0, "validation_auc", latest=latest), board, lambda: now[0])
    assert not deadline("a", {})
    for seconds in (0.0, 35.9, 36.0, 57.9, 58.0):
        now[0] = seconds
        assert deadline.stop_all() == (seconds >= end)


def test_the_first_trial_that_ends_late_ends_the_search():
    board = SimpleNamespace(before=0, finished=0)
    deadline = ray_tune.Deadline(Budget(36.0, "validation_auc", latest=58.0), board, lambda: 40.0)
    assert not deadline.stop_all()
    board.finished = 1
    assert deadline.stop_all()


class Odd(Exception):
    """An exception that cannot be pickled: its arguments are not those of its constructor."""

    def __init__(self, first, second):
        super().__init__(first)


class Mute(Exception):
    def __str__(self):
        raise KeyError("absent")


def alone(folder):
    return {"one": (toy_config().model_dump(), str(folder / "one"), str(folder))}


@pytest.mark.parametrize("error", [StopIteration("gone"), SystemExit("gone"), Odd("gone", 2)], ids=repr)
@pytest.mark.parametrize("stacked", [False, True], ids=["alone", "in a stack"])
def test_what_a_users_method_raises_reaches_the_driver_whatever_it_is(tmp_path, monkeypatch, reported, error, stacked):
    """Tune replaces the message of the first two, and cannot send the third."""

    def failing(*_, **__):
        raise error

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(ray_tune, "run_observed", failing)
    monkeypatch.setattr(ray_tune, "train_stack", failing)
    train, given = (ray_tune._train_stack, plans(tmp_path)) if stacked else (ray_tune._train, alone(tmp_path))
    with pytest.raises(RuntimeError) as ended:
        train({"run": next(iter(given))}, plans=given)
    text = str(copy.copy(ended.value))
    assert text.splitlines()[-1] == f"{type(error).__name__}: gone"
    assert "in failing" in text
    assert reported == []


def test_an_error_whose_text_cannot_be_had_is_reported_by_its_name(tmp_path, monkeypatch, reported):
    def failing(*_, **__):
        raise Mute

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(ray_tune, "run_observed", failing)
    with pytest.raises(RuntimeError, match=r"\nMute: its text cannot be had \(KeyError\)$"):
        ray_tune._train({"run": "one"}, plans=alone(tmp_path))


def test_a_final_failure_is_reported_on_one_line_without_terminal_codes(tmp_path, monkeypatch, reported):
    def failing(*_, **__):
        raise TrainingError("first\nsecond\x1b[2J" + "x" * 10_000)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(ray_tune, "run_observed", failing)
    ray_tune._train({"run": "one"}, plans=alone(tmp_path))
    (text,) = (message["failed"] for message in reported)
    assert text.startswith(r"TrainingError: first second\x1b[2Jxxx")
    assert "characters left out" in text
    assert len(text) < 10_100


class Noting:
    """A stand-in for the folder and the board of a sweep, which records failures."""

    def __init__(self):
        self.noted, self.stacks = [], {}

    def failed(self, run, text):
        self.noted.append((run, text))

    retried = failed


FIRST = b"Failure # 1 (occurred at noon)\nTraceback\n  somewhere\nOdd: \xff gone\x1b[2J\n\n"
SECOND = b"Failure # 2 (occurred at one)\nTraceback\n  elsewhere\nOdd: again\n"


def test_an_ended_worker_is_reported_by_the_last_line_of_its_file_and_all_new_lines_are_noted(tmp_path):
    file, folder, board = tmp_path / "error.txt", Noting(), Noting()
    reporter = ray_tune.TrialReporter(folder, board)
    trial = SimpleNamespace(config={"run": "one"}, error_file=str(file))
    file.write_bytes(FIRST)
    reporter.on_trial_recover(1, [], trial)
    file.write_bytes(FIRST + SECOND)
    reporter.on_trial_error(1, [], trial)
    for missing in (None, str(tmp_path / "none")):
        trial.error_file = missing
        reporter.on_trial_error(1, [], trial)
    reporter.on_trial_result(1, [], trial, {"failed": "TrainingError: diverged"})
    silent = "the worker ended without a word"
    assert board.noted == [
        *(("one", r) for r in ("Odd: \ufffd gone\\x1b[2J", "Odd: again", silent, silent, "TrainingError: diverged"))
    ]
    assert [text for _, text in folder.noted] == [
        *(FIRST.decode(errors="replace").strip(), SECOND.decode().strip(), silent, silent, "TrainingError: diverged")
    ]


@pytest.mark.parametrize("name", ["on_epoch", "on_step"])
def test_a_trial_that_tune_ends_leaves_its_worker_and_reports_nothing_more(tmp_path, monkeypatch, name):
    """Tune ends a trial by a SystemExit in a report; any other exception would end the worker too."""
    reports = []

    def report(values):
        reports.append(values)
        sys.exit(0)

    def run(*_, observers, **__):
        (steps,) = observers
        values = {"on_epoch": (3, 1, {"validation_auc": 0.7}), "on_step": (3, 1, 0.5, 0.5)}
        try:
            getattr(steps, name)(*values[name])
        finally:
            steps.on_epoch(3, 1, {})
            raise ConnectionError("the other party has ended")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(ray_tune.tune, "report", report)
    monkeypatch.setattr(ray_tune, "run_observed", run)
    with pytest.raises(SystemExit) as ended:
        ray_tune._train({"run": "one"}, plans=alone(tmp_path))
    assert ended.value.code == 0
    assert len(reports) == 1


def test_halving_ends_what_is_behind_but_never_the_settings_that_were_given():
    halving = ray_tune.Halving("validation_auc", "given")
    trials = [SimpleNamespace(trial_id=run, config={"run": run}) for run in ("a", "b", "c", "d", "behind", "given")]
    ended = []
    for trial, auc in zip(trials, (0.95, 0.94, 0.93, 0.92, 0.6, 0.5), strict=True):
        halving.on_trial_add(None, trial)
        action = halving.on_trial_result(None, trial, {"epoch": 8, "validation_auc": auc, "training_iteration": 8})
        ended += [trial.trial_id] if action == halving.STOP else []
    assert "behind" in ended
    assert "given" not in ended
