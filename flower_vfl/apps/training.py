"""The label party trains and writes what a run leaves."""

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
from flower_vfl.apps.run_state import LABEL, Keeping
from flower_vfl.data.store.memory import VerticalData
from flower_vfl.errors import InputError, StorageError
from flower_vfl.protocol.printable import words_of
from flower_vfl.strategies.base import HookedStrategy
from flower_vfl.training.grids import is_simulation
from flower_vfl.training.probe import answer, fixed_rows, warn_of_learning

_log = logging.getLogger(__name__)


def train_and_write(
    grid: Grid,
    strategy: HookedStrategy,
    dataset: VerticalData,
    folder: RunFolder | None,
    keeping: Keeping | None,
    journal: Journal,
    on_result: ResultCallback | None,
    factories: Mapping[str, Callable[..., nn.Module]],
) -> None:
    """Train and write the result, whatever ends the training; bad input leaves nothing behind."""
    base = strategy.base
    if folder is not None:
        _log.info("results go to %s", folder.path)
    own = base.table.name if base.table is not None else ""
    if keeping is not None:
        base.ledger, base.resume = keeping.store(base.config, dataset, own, labels=True), keeping.begun
        base.memory = keeping.memory(base.config)
    base.columns = dataset.party if is_simulation(grid) else None
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
        of_resume = None if is_simulation(grid) else keeping
        _train(grid, strategy, describe_data(dataset, base.labels), folder, of_resume, journal, on_result, card)


def _train(
    grid: Grid,
    strategy: HookedStrategy,
    data: dict[str, Any],
    folder: RunFolder | None,
    keeping: Keeping | None,
    journal: Journal,
    on_result: ResultCallback | None,
    card: ModelCard,
) -> None:
    """Train and leave the results: of a finished training while every party can still go back to its last state.

    What only a resumed run needs is removed at once, where `keeping` says what that is.
    """
    base = strategy.base
    outcome, status = base.outcome, "failed"
    failure: BaseException | None = None
    results: list[RunResult] = []

    def leave() -> None:
        results.append(_leave(strategy, data, folder, journal, card, status, failure))

    def finished() -> None:
        nonlocal status
        status = outcome.stopped
        if folder is not None:
            folder.remove_leftovers()
        leave()
        if keeping is not None:
            keeping.end()

    base.on_finished = finished
    try:
        strategy.start(grid)
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
                leave()
            if on_result is not None:
                on_result(results[-1])
        except StorageError as error:
            if failure is None:
                raise
            _log.error("%s", error)  # what ended the run is told; what was measured since the last checkpoint is lost


def _leave(
    strategy: HookedStrategy,
    data: dict[str, Any],
    folder: RunFolder | None,
    journal: Journal,
    card: ModelCard,
    status: str,
    failure: BaseException | None,
) -> RunResult:
    """Write what a run leaves: the weights before anything is made of what was measured or told, `result.json` last."""
    base = strategy.base
    outcome, words = base.outcome, "" if failure is None else words_of(failure)
    journal.close()
    if folder is not None and isinstance(failure, InputError) and outcome.steps == 0:
        folder.discard()
        folder = None
    if folder is not None:
        _write_model(strategy, folder, card)
    summary = summarise(outcome, strategy, base.config, data, status=status, error=words)
    if folder is not None:
        folder.write_result(summary, base.periods_in_order)
    return RunResult(status, summary, outcome, None if folder is None else folder.path)


def _write_model(strategy: HookedStrategy, folder: RunFolder, card: ModelCard) -> None:
    """Write the label party's model if one stays; one of an earlier part of the run is none where none does."""
    base = strategy.base
    if base.outcome.model_step is None:
        path = model_path(folder.path, LABEL)
        path.unlink(missing_ok=True)
        with suppress(OSError):
            path.parent.rmdir()
    elif base.label_party is not None:
        noted = answer(base.label_party, strategy, base.cut, None if base.table is None else fixed_rows(base.table))
        warn_of_learning(strategy)
        save_model(folder.path, replace(card, session=base.session, answer=noted), base.label_party.module)
