"""The label party trains and writes what a run leaves."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from flwr.serverapp import Grid
from torch import nn

from flower_vfl.apps.build import torch_threads
from flower_vfl.apps.folder import RunFolder
from flower_vfl.apps.journal import Journal
from flower_vfl.apps.keeping import LABEL, Keeping
from flower_vfl.apps.model import ModelCard, class_names, make_card, model_path, save_model
from flower_vfl.apps.result import ResultCallback, RunResult, describe_data, summarise
from flower_vfl.data.memory import VerticalData
from flower_vfl.errors import InputError, StorageError
from flower_vfl.strategies.base import HookedStrategy

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
    if keeping is not None:
        base.ledger, base.resume = keeping.store(base.config, dataset.alignment), keeping.begun
        base.memory = keeping.memory(base.config)
    with torch_threads(base.config.threads):
        card = make_card(
            LABEL,
            "",
            base.config,
            dataset,
            factories,
            table=base.table.name if base.table is not None else "",
            classes=class_names(dataset, base.labels.classes),
            features=base.parties,
        )
        _train(grid, strategy, describe_data(dataset, base.labels), folder, journal, on_result, card)


def _train(
    grid: Grid,
    strategy: HookedStrategy,
    data: dict[str, Any],
    folder: RunFolder | None,
    journal: Journal,
    on_result: ResultCallback | None,
    card: ModelCard,
) -> None:
    base = strategy.base
    outcome, status = base.outcome, "failed"
    failure: BaseException | None = None
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
        words = "" if failure is None else f"{type(failure).__name__}: {failure}"
        summary = summarise(outcome, strategy, base.config, data, status=status, error=words)
        try:
            _write(strategy, summary, folder, journal, card, bad_input=isinstance(failure, InputError))
        except StorageError as error:
            if failure is None:
                raise
            _log.error("%s", error)  # what ended the run is told; what was measured since the last checkpoint is lost
        if on_result is not None:
            on_result(RunResult(status, summary, outcome, folder.path if folder is not None else None))


def _write(
    strategy: HookedStrategy,
    summary: dict[str, Any],
    folder: RunFolder | None,
    journal: Journal,
    card: ModelCard,
    *,
    bad_input: bool,
) -> None:
    """Write what a run leaves, `result.json` last: a run that has one has all."""
    base = strategy.base
    journal.close()
    if folder is None:
        return
    if bad_input and base.outcome.steps == 0:
        folder.discard()
        return
    if base.outcome.model_step is None:
        model_path(folder.path, LABEL).unlink(missing_ok=True)
    elif base.label_party is not None:
        save_model(folder.path, replace(card, session=base.session), base.label_party.module)
    folder.write_result(summary, base.periods_in_order)
