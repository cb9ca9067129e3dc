"""Trials on Ray Tune: each an in-process federation in a worker of its own."""

from __future__ import annotations

import logging
import math
import os
import shutil
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from ray import tune
from ray.tune.schedulers import AsyncHyperBandScheduler

from flower_vfl.config import build_config
from flower_vfl.errors import FlowerVflError, InputError, TrainingError
from flower_vfl.protocol.printable import printable, words_of
from flower_vfl.simulations.running import run_observed
from flower_vfl.simulations.stacked.running import train_stack
from flower_vfl.simulations.sweep.board import Board
from flower_vfl.simulations.sweep.checking import quiet_log
from flower_vfl.simulations.sweep.definition import Budget
from flower_vfl.simulations.sweep.folder import SweepFolder
from flower_vfl.simulations.sweep.trials import Trial
from flower_vfl.strategies import Observer

STORAGE = ".tune"
_RUN, _FAILED = "run", "failed"
_ERROR_HEAD = "Failure # "
"""The beginning of each entry in Tune's file of a trial's errors."""

_REPORT_SECONDS = 1.0
_LOCKED_SECONDS = 20.0
_ENDING_SECONDS = 60
"""Seconds that a trial which Tune ended has to leave its worker to the next one."""
_GRACE_EPOCHS, _MOST_EPOCHS = 8, 1000
"""Epochs of a trial of a search before it is compared with others, and after which it no longer is."""
_MOST_TRACED = 10_000
"""Most characters of a traceback that are kept."""

Plan = tuple[dict[str, Any], str, str]
"""A trial's configuration, its folder, and the folder that relative paths of data begin at."""


def run_trials(
    folder: SweepFolder, board: Board, *, cpus: float, gpus: float, retries: int, budget: Budget | None = None
) -> None:
    """Run the trials that wait on the cluster that this process has joined; their folders hold the results.

    Parameters
    ----------
    folder : SweepFolder
        Folder of the sweep, with the trials that wait.
    board : Board
        Has the number of trials that run at once, and receives the progress.
    cpus, gpus : float
        Processors and GPUs of each trial.
    retries : int
        Number of times that a failed trial is tried again. One whose input is wrong, or whose training diverges, would
        fail again: it is not.
    budget : Budget, optional
        Ends trials that are behind, and all of them when its time is over.
    """
    plans = {trial.run: (trial.config.model_dump(), str(folder.of(trial)), os.getcwd()) for trial in folder.waiting}
    _tune(
        folder,
        board,
        tune.with_parameters(_train, plans=plans),
        list(plans),
        {"cpu": cpus, "gpu": gpus},
        retries,
        budget,
    )


def run_stacks(
    folder: SweepFolder, board: Board, stacks: Sequence[Sequence[Trial]], *, cpus: float, gpus: float
) -> None:
    """Train stacks of trials on the cluster; `run_trials` then finishes each trial, or does all of it.

    Parameters
    ----------
    folder : SweepFolder
        Folder of the sweep, with the trials.
    board : Board
        As for `run_trials`.
    stacks : Sequence
        Trials that are trained together.
    cpus, gpus : float
        Processors and GPUs of each stack: as many as of a trial.
    """
    plans: dict[str, tuple[list[Plan], int]] = {}
    for stack in stacks:
        entries = [(trial.config.model_dump(), str(folder.of(trial)), os.getcwd()) for trial in stack]
        plans[f"{len(stack)} together: {stack[0].run} …"] = (entries, len(stack))
    board.stacks = {name: count for name, (_, count) in plans.items()}
    entries_of = {name: entries for name, (entries, _) in plans.items()}
    trainable = tune.with_parameters(_train_stack, plans=entries_of)
    _tune(folder, board, trainable, list(plans), {"cpu": cpus, "gpu": gpus}, 0)
    board.stacks = {}


def _tune(
    folder: SweepFolder,
    board: Board,
    trainable: Any,
    names: list[str],
    resources: dict[str, float],
    retries: int,
    budget: Budget | None = None,
) -> None:
    """Run a trainable for each name, as many at once as there are places."""
    storage, reporter = folder.path / STORAGE, TrialReporter(folder, board)
    shutil.rmtree(storage, ignore_errors=True)
    tuner = tune.Tuner(
        tune.with_resources(trainable, resources),
        param_space={_RUN: tune.grid_search(names)},
        tune_config=_search(board.places, budget),
        run_config=tune.RunConfig(
            name="trials",
            storage_path=str(storage),
            callbacks=[reporter],
            failure_config=tune.FailureConfig(max_failures=retries),
            verbose=0,
            stop=None if budget is None else Deadline(budget, board),
        ),
    )
    try:
        tuner.fit()
    except tune.TuneError:
        if reporter.lost is None:
            raise
        raise reporter.lost from None  # Tune's error has only its text
    finally:
        shutil.rmtree(storage, ignore_errors=True)


def _search(places: int, budget: Budget | None) -> tune.TuneConfig:
    """Return Tune's configuration of the search; workers, which take seconds to start, are used again."""
    if budget is None:
        return tune.TuneConfig(reuse_actors=True, max_concurrent_trials=places)
    os.environ.setdefault("TUNE_DISABLE_STRICT_METRIC_CHECKING", "1")  # reports of steps have no validation in them
    return tune.TuneConfig(
        reuse_actors=True,
        max_concurrent_trials=places,
        scheduler=Halving(budget.measure, budget.given) if budget.given else None,
    )


class Deadline(tune.Stopper):
    """End of all trials of a search: when its time is over, or later if no trial has a result by then.

    Parameters
    ----------
    budget : Budget
        Limits of the search.
    board : Board
        Its progress, which tells the number of trials that ended.
    clock : Callable
        The clock of the budget.
    """

    def __init__(self, budget: Budget, board: Board, clock: Callable[[], float] = time.monotonic) -> None:
        self._budget, self._board, self._clock = budget, board, clock

    def __getstate__(self) -> dict[str, Any]:
        """Return nothing: Tune saves a copy to restore a sweep, which this package does in its own way."""
        return {}

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        """Return False: no trial ends for its own results."""
        return False

    def stop_all(self) -> bool:
        """Return True when all trials end."""
        found = self._board.before + self._board.finished
        return self._clock() >= (self._budget.ends if found else max(self._budget.ends, self._budget.latest))


class Halving(AsyncHyperBandScheduler):
    """Asynchronous successive halving that never ends one trial: that of the settings that were given.

    Parameters
    ----------
    measure : str
        Metric that is compared after each epoch; larger is better.
    given : str
        Name of this trial.
    """

    def __init__(self, measure: str, given: str) -> None:
        super().__init__(
            time_attr="epoch",
            metric=measure,
            mode="max",
            grace_period=_GRACE_EPOCHS,
            reduction_factor=3,
            max_t=_MOST_EPOCHS,
            stop_last_trials=False,
        )
        self._given = given

    def on_trial_result(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> str:
        """Compare a trial with those that were at its epoch before; return Tune's word for its continuation or end."""
        action: str = super().on_trial_result(tune_controller, trial, result)
        return self.CONTINUE if trial.config[_RUN] == self._given else action


class TrialReporter(tune.Callback):
    """Callback that passes Tune's events of trials on to the board and to the sweep's folder.

    Attributes
    ----------
    lost
        Error of writing to the sweep's folder, such as a full disk, which ends the sweep; None without one.
    """

    def __init__(self, folder: SweepFolder, board: Board) -> None:
        self._folder, self._board = folder, board
        self.lost: OSError | FlowerVflError | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Return nothing: Tune saves a copy to restore a sweep, which this package does in its own way."""
        return {}

    def on_step_end(self, iteration: int, trials: list[Any], **info: Any) -> None:
        """Redraw the board."""
        self._board.refresh()

    def on_trial_start(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """Note that a trial has begun."""
        run = trial.config[_RUN]
        if run not in self._board.stacks:
            self._note(self._folder.begun, run)
        self._board.started(run)

    def on_trial_result(
        self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **info: Any
    ) -> None:
        """Show the progress of a trial, or note the reason of its failure."""
        if _FAILED in result:
            self._failed(trial, str(result[_FAILED]), self._board.failed)
        elif "step" in result:
            self._board.stepped(trial.config[_RUN], result["step"], result["steps"], result["loss"], result["leak"])

    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """Show that a trial has ended."""
        self._board.completed(trial.config[_RUN])

    def on_trial_recover(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """Note the reason why a trial is tried again."""
        self._failed(trial, _last_error(trial), self._board.retried)

    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """Note the reason why a trial failed for good."""
        self._failed(trial, _last_error(trial), self._board.failed)

    def _failed(self, trial: Any, text: str, show: Callable[[str, str], None]) -> None:
        """Show the last line of an attempt's error on the board, and note all of it in the folder."""
        show(trial.config[_RUN], _line(text.splitlines()[-1]))
        self._note(self._folder.failed, trial.config[_RUN], text)

    def _note(self, write: Callable[..., None], *words: str) -> None:
        try:
            write(*words)
        except (OSError, FlowerVflError) as error:
            self.lost = error
            raise


def _last_error(trial: Any) -> str:
    """Return the last error of a worker, from its file on this machine: the storage gets a copy later, or never."""
    text = ""
    with suppress(OSError):
        text = Path(trial.error_file).read_text(encoding="utf8", errors="replace") if trial.error_file else ""
    return text[max(0, text.rfind(_ERROR_HEAD)) :].strip() or "the worker ended without a word"


def _line(text: str) -> str:
    """Return a text on one line, without control characters."""
    line = " ".join(text.split())
    return printable(line, len(line))


def _words(error: BaseException) -> str:
    """Return an error on one line."""
    return _line(words_of(error))


def _sendable(error: BaseException) -> RuntimeError:
    """Return an error that Tune can send and takes for no exit: the traceback and last the message of another."""
    traced = "".join(traceback.format_exception(error))[-_MOST_TRACED:]
    return RuntimeError(f"{traced}\n{_words(error)}")


class _Steps(Observer):
    """Observer that reports the progress of a trial once a second, and its validation after each epoch.

    Attributes
    ----------
    ended
        True if Tune has ended the trial, by a SystemExit from a report; it accepts no report after that.
    """

    def __init__(self) -> None:
        self._steps, self._due, self.ended = 0, 0.0, False

    def on_start(self, steps: int, epochs: int, parties: tuple[str, ...]) -> None:
        self._steps = steps

    def on_epoch(self, step: int, epoch: int, metrics: Mapping[str, float]) -> None:
        values = {name: value for name, value in metrics.items() if name.startswith("validation_")}
        self._report({"epoch": epoch, **{name: value for name, value in values.items() if math.isfinite(value)}})

    def on_step(self, step: int, epoch: int, loss: float, leak: float) -> None:
        if time.monotonic() >= self._due:
            self._due = time.monotonic() + _REPORT_SECONDS
            self._report({"step": step + 1, "steps": self._steps, "loss": loss, "leak": leak})

    def _report(self, values: dict[str, Any]) -> None:
        if self.ended:
            return
        try:
            tune.report(values)
        except SystemExit:
            self.ended = True
            raise


def _report(step: int, steps: int, loss: float) -> None:
    tune.report({"step": step, "steps": steps, "loss": loss, "leak": math.nan})


def _train_stack(params: Mapping[str, str], *, plans: Mapping[str, list[Plan]]) -> None:
    """Train trials together in a worker; trials that it cannot train are run by themselves later."""
    entries = plans[params[_RUN]]
    with suppress(OSError):
        os.chdir(entries[0][2])
    configs, folders = [build_config(values) for values, _, _ in entries], [Path(folder) for _, folder, _ in entries]
    try:
        with quiet_log(logging.ERROR):
            lost = train_stack(configs, folders, progress=_report)
    except (FlowerVflError, RuntimeError) as error:  # out of GPU memory, for instance
        tune.report({_FAILED: _words(error)})
    except BaseException as error:  # noqa: BLE001 - see `_sendable`
        raise _sendable(error) from None
    else:
        names = ", ".join(folders[run].name for run in lost)
        tune.report({_FAILED: f"{len(lost)} of them diverged: {names}"} if lost else {"finished": True})


def _train(params: Mapping[str, str], *, plans: Mapping[str, Plan]) -> None:
    """Run one trial in a worker; it goes on from the checkpoint of an earlier attempt, if any."""
    values, folder, place = plans[params[_RUN]]
    with suppress(OSError):  # on another node the place may not be there; data is then found by absolute paths
        os.chdir(place)
    os.environ["TUNE_FUNCTION_THREAD_TIMEOUT_S"] = str(_ENDING_SECONDS)
    steps = _Steps()
    try:
        with quiet_log(logging.ERROR):
            run_observed(build_config(values), Path(folder), observers=(steps,), patience=_LOCKED_SECONDS)
    except (InputError, TrainingError) as error:  # it would fail again
        tune.report({_FAILED: _words(error)})
    except BaseException as error:  # noqa: BLE001 - see `_sendable`
        if steps.ended:  # the exit that Tune expects: the worker is then used for the next trial
            raise SystemExit(0) from None
        raise _sendable(error) from None
    else:
        tune.report({"finished": True})
