"""Training at the label party, and writing of the run's results."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from flwr.serverapp import Grid
from torch import nn

from flower_vfl.apps.factories import computing
from flower_vfl.apps.folder import RunFolder
from flower_vfl.apps.journal import Journal
from flower_vfl.apps.model import ModelCard, class_names, make_card, model_path, save_model
from flower_vfl.apps.result import ResultCallback, RunResult, describe_data, summarise
from flower_vfl.apps.run_state import LABEL, PartyStorage
from flower_vfl.data.store.memory import VerticalData
from flower_vfl.errors import InputError, StorageError
from flower_vfl.protocol.printable import words_of
from flower_vfl.strategies.base import HookedStrategy
from flower_vfl.training.context import TrainingContext
from flower_vfl.training.factories import schedule_of
from flower_vfl.training.grids import is_simulation
from flower_vfl.training.probe import answer, fixed_rows, warn_of_learning
from flower_vfl.training.run import TrainingRun

_log = logging.getLogger(__name__)


def train_and_write(
    grid: Grid,
    strategy: HookedStrategy,
    context: TrainingContext,
    dataset: VerticalData,
    folder: RunFolder | None,
    storage: PartyStorage | None,
    journal: Journal,
    on_result: ResultCallback | None,
    factories: Mapping[str, Callable[..., nn.Module]],
) -> None:
    """Train and write the result, however the training ends; bad input leaves no files behind."""
    base = strategy.base
    own = base.table.name if base.table is not None else ""
    if storage is not None:
        ledger, memory = storage.store(base.config, dataset, own, labels=True), storage.memory(base.config)
        context = replace(context, ledger=ledger, resume=storage.begun, memory=memory)
    context = replace(context, columns=dataset.party if is_simulation(grid) else None)
    with computing(base.config):
        card = make_card(
            LABEL,
            "",
            base.config,
            dataset,
            factories,
            table=own,
            classes=class_names(dataset, base.labels.classes),
            features=base.parties,
        )
        resume_storage = None if is_simulation(grid) else storage
        rows, test_rows, periods = len(base.labels.train), len(base.labels.test), dataset.alignment.periods
        schedule = schedule_of(base.config, rows, test_rows, periods=periods)
        described = describe_data(dataset, base.labels, validation_rows=schedule.validation_rows)
        _train(grid, strategy, context, described, folder, resume_storage, journal, on_result, card)


def _train(
    grid: Grid,
    strategy: HookedStrategy,
    context: TrainingContext,
    data: dict[str, Any],
    folder: RunFolder | None,
    storage: PartyStorage | None,
    journal: Journal,
    on_result: ResultCallback | None,
    card: ModelCard,
) -> None:
    """Train and write the results; those of a finished run while every party can still resume from its last state.

    The files of `storage`, which only a resumed run needs, are removed then.
    """
    base = strategy.base
    outcome, status = base.outcome, "failed"
    failure: BaseException | None = None
    results: list[RunResult] = []

    def write() -> None:
        results.append(_write_results(strategy, run, data, folder, journal, card, status, failure))

    def finished() -> None:
        nonlocal status
        status = outcome.stopped
        if folder is not None:
            folder.remove_leftovers()
        write()
        if storage is not None:
            storage.end()

    run = TrainingRun(strategy, grid, replace(context, on_finished=finished))
    try:
        run.execute()
        status = outcome.stopped
    except (KeyboardInterrupt, SystemExit) as error:  # Flower ends its processes with the latter
        status, failure = "interrupted", error
        raise
    except Exception as error:
        failure = error
        raise
    finally:
        try:
            if not results:
                write()
            if on_result is not None:
                on_result(results[-1])
        except StorageError as error:
            if failure is None:
                raise
            _log.error("%s", error)  # the first failure is raised; measurements since the last checkpoint are lost


def _write_results(
    strategy: HookedStrategy,
    run: TrainingRun,
    data: dict[str, Any],
    folder: RunFolder | None,
    journal: Journal,
    card: ModelCard,
    status: str,
    failure: BaseException | None,
) -> RunResult:
    """Write the results of a run: the weights first, before any report or callback, `result.json` last."""
    base = strategy.base
    outcome, words = base.outcome, "" if failure is None else words_of(failure)
    journal.close()
    if folder is not None and isinstance(failure, InputError) and outcome.steps == 0:
        folder.discard()
        folder = None
    if folder is not None:
        _write_model(strategy, run, folder, card)
    summary = summarise(outcome, strategy, base.config, data, classes=card.classes, status=status, error=words)
    if folder is not None:
        folder.write_result(summary, base.periods_in_order)
    return RunResult(status, summary, outcome, None if folder is None else folder.path)


def _write_model(strategy: HookedStrategy, run: TrainingRun, folder: RunFolder, card: ModelCard) -> None:
    """Write the label party's model if the run keeps one; else remove that of an earlier part of the run."""
    base = strategy.base
    if base.outcome.model_step is None:
        path = model_path(folder.path, LABEL)
        path.unlink(missing_ok=True)
        with suppress(OSError):
            path.parent.rmdir()
    elif run.label_party is not None:
        noted = answer(run.label_party, strategy, run.cut, None if base.table is None else fixed_rows(base.table))
        warn_of_learning(strategy)
        save_model(folder.path, replace(card, session=run.session, answer=noted), run.label_party.module)
