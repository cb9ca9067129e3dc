"""`flower-vfl sweep`: check all trials, run those that are not finished, and show the whole trade-off at the end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from rich.status import Status
from rich.text import Text

from flower_vfl.apps.run_state import is_begun
from flower_vfl.apps.sweeps import ERRORS, runs_of
from flower_vfl.errors import InputError, TrainingError
from flower_vfl.protocol.printable import shortened
from flower_vfl.reports import render_sweep, renew
from flower_vfl.simulations.process_cleanup import last_words
from flower_vfl.simulations.sweep.board import REASON_CHARACTERS, Board
from flower_vfl.simulations.sweep.checking import check_trials
from flower_vfl.simulations.sweep.choosing import choose
from flower_vfl.simulations.sweep.definition import Budget, Definition, Running
from flower_vfl.simulations.sweep.folder import SweepFolder
from flower_vfl.simulations.sweep.planning import check_gpus, shapes_of
from flower_vfl.simulations.sweep.results import write_results
from flower_vfl.simulations.sweep.trials import Trial, setting_of, trials_of
from flower_vfl.terminal import console

_SILENT = "a kill has ended the sweep, or Ray, as it does when one of its own processes was killed"


def run_sweep(
    definition: Definition,
    out: Path,
    overrides: Mapping[str, Any] | None = None,
    *,
    address: str = "",
    resume: bool = False,
    workers: int = 0,
    stacking: bool = True,
    budget: Budget | None = None,
) -> list[dict[str, Any]]:
    """Run a sweep on Ray and return the results of its runs, which are also in `summary.json`.

    Parameters
    ----------
    definition : Definition
        Content of the sweep's file.
    out : Path
        Folder of the results.
    overrides : Mapping, optional
        Values of the command line's `--set`.
    address : str
        Address of a running Ray cluster; empty for one of this machine's own.
    resume : bool
        True if a sweep that was interrupted in that folder goes on.
    workers : int
        Largest number of trials that run at once; 0: as many as the cluster has room for.
    stacking : bool
        True if trials may be trained together, as the sweep's file says.
    budget : Budget, optional
        Limits of a search: trials that it ends leave no result, and `resume` goes on with them.

    Raises
    ------
    FlowerVflError
        When something is wrong with the input, before the first trial starts.
    TrainingError
        When trials failed, in a search when all did; the results of the others are written.
    """
    trials, running = trials_of(definition, overrides), definition.running.with_stacking(stacking)
    with SweepFolder(out, definition.text, trials, origin=definition.folder, resume=resume) as folder:
        done = len(trials) - len(folder.waiting)
        board = Board(len(trials), done, folder.named_result, console())
        if budget is None:
            board.settings = {trial.run: setting_of(trial) for trial in trials}
        else:
            board.shows_test, board.ends, board.words = False, budget.ends, budget.words
        try:
            if folder.waiting:
                _carry_out(folder, running, board, address=address, workers=workers, budget=budget)
        except InputError:
            folder.discard()
            raise
        finally:  # even after an error, finished trials are shown
            summaries = _finish(folder, board, page=budget is None)
    if board.failures and (budget is None or len(board.failures) == len(trials)):
        run, reason = next(iter(board.failures.items()))
        raise TrainingError(
            f"{len(board.failures)} of {len(trials)} trials failed, {run} for instance: "
            f"{shortened(reason, REASON_CHARACTERS)}. {folder.path / ERRORS} has all of each and where it came from. "
            f"The others have left their results in {folder.path}; --resume tries the failed ones again"
        )
    return summaries


def _carry_out(
    folder: SweepFolder, running: Running, board: Board, *, address: str, workers: int, budget: Budget | None
) -> None:
    """Check and run the trials that are not finished."""
    from flower_vfl.simulations.cluster import check_reachable, ray_cluster

    if address:
        check_reachable(address)
    with Status("checking the trials", console=board.console) as status:
        check_trials(
            folder.waiting, running, lambda done, total: status.update(f"checking the trials: {done} of {total}")
        )
    check_memory(folder.waiting, running, workers)
    cpus = processors(folder.waiting, running)
    with ExitStack() as ending:
        ending.enter_context(
            last_words(f"flower-vfl: {_SILENT}; what has finished is in {folder.path}, --resume goes on")
        )
        with Status(f"joining {address}" if address else "starting Ray", console=board.console):
            cluster = ending.enter_context(ray_cluster(address, folder.path))
            from flower_vfl.simulations.sweep.ray_tune import run_stacks, run_trials  # Ray is imported by now

        places = cluster.places(cpus, running.gpus)
        board.places = min(places, workers) if workers else places
        stacks = _stacks(folder, running, board)
        with board:
            if stacks:
                run_stacks(folder, board, stacks, cpus=cpus, gpus=running.gpus)
            run_trials(folder, board, cpus=cpus, gpus=running.gpus, retries=running.retries, budget=budget)


def check_memory(trials: Sequence[Trial], running: Running, workers: int) -> None:
    """Refuse more trials on a GPU than it holds, by a few dozen steps of each shape; without a GPU, check nothing.

    Raises
    ------
    SetupError
        When they do not fit, or not even one does; the message has the number that would.
    """
    trials = [trial for trial in trials if trial.config.device != "cpu"]
    if not trials or not torch.cuda.is_available():
        return
    with Status("measuring how much memory of a GPU a trial needs", console=console()):
        shapes = shapes_of(trials)
    check_gpus(shapes, running.gpus, workers)


def _stacks(folder: SweepFolder, running: Running, board: Board) -> list[tuple[Trial, ...]]:
    """Return the trials that are trained together, of those not begun yet, and print the reason of each choice."""
    if running.stacking == "off":
        return []
    fresh = [trial for trial in folder.waiting if not is_begun(folder.of(trial))]
    with Status("measuring whether trials are faster together", console=board.console):
        choices = choose(fresh, running, board.places)
    for choice in choices:
        if choice.stacks or not choice.group.reason:
            count = len(choice.stacks)
            how = f"in {count} {'stack' if count == 1 else 'stacks'}" if count else "each by itself"
            words = f"{len(choice.group.trials)} trials are trained {how}: {choice.why}"
            board.console.print(Text(words), soft_wrap=True)
    return [stack for choice in choices for stack in choice.stacks]


def processors(trials: Sequence[Trial], running: Running) -> float:
    """Return the number of processors of each trial: by default the largest number of threads of a trial."""
    return float(running.cpus or max(1, *(trial.config.threads for trial in trials)))


def _finish(folder: SweepFolder, board: Board, *, page: bool) -> list[dict[str, Any]]:
    """Write the table, the summary, and the reports of each run with a result and, with `page`, of the sweep."""
    if not folder.path.is_dir():
        return []
    summaries = write_results(folder, board.failures)
    for run in runs_of(folder.path):
        renew(run)  # it has no report after a kill between its result and its report
    if page and runs_of(folder.path):
        render_sweep(folder.path)
    return summaries
