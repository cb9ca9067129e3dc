"""Training at the label party, and writing of the run's results."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
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
from flower_vfl.transport.sessions import Sessions

_log = logging.getLogger(__name__)


@dataclass(kw_only=True)
class WrittenTraining:
    """One training at the label party, whose result is written however it ends."""

    grid: Grid
    strategy: HookedStrategy
    dataset: VerticalData
    folder: RunFolder | None
    storage: PartyStorage | None
    journal: Journal
    on_result: ResultCallback | None
    factories: Mapping[str, Callable[..., nn.Module]]
    _context: TrainingContext = field(init=False)
    _run: TrainingRun = field(init=False)
    _card: ModelCard = field(init=False)
    _data: dict[str, Any] = field(init=False)
    _status: str = field(init=False, default="failed")
    _failure: BaseException | None = field(init=False, default=None)
    _result: RunResult | None = field(init=False, default=None)

    def execute(self, sessions: Sessions | None, offer: Mapping[str, str]) -> None:
        """Train and write the result; bad input leaves no files behind."""
        base, dataset, storage = self.strategy.base, self.dataset, self.storage
        own = base.table.name if base.table is not None else ""
        self._context = TrainingContext(
            sessions=sessions,
            offer=offer,
            store=None if storage is None else storage.store(base.config, dataset, own, base.secret, labels=True),
            resume=storage is not None and storage.begun,
            memory=None if storage is None else storage.memory(base.config),
            columns=dataset.party if is_simulation(self.grid) else None,
            on_finished=self._finish,
        )
        with computing(base.config):
            self._card = make_card(
                LABEL,
                "",
                base.config,
                dataset,
                self.factories,
                table=own,
                classes=class_names(dataset, base.labels.classes),
                features=base.parties,
            )
            rows, test_rows, periods = len(base.labels.train), len(base.labels.test), dataset.alignment.periods
            schedule = schedule_of(base.config, rows, test_rows, periods=periods)
            self._data = describe_data(dataset, base.labels, validation_rows=schedule.validation_rows)
            self._run = TrainingRun(self.strategy, self.grid, self._context)
            self._train()

    def _train(self) -> None:
        try:
            self._run.execute()
            self._status = self.strategy.base.outcome.stopped
        except (KeyboardInterrupt, SystemExit) as error:  # Flower ends its processes with the latter
            self._status, self._failure = "interrupted", error
            raise
        except Exception as error:
            self._failure = error
            raise
        finally:
            try:
                result = self._write() if self._result is None else self._result
                if self.on_result is not None and not self._is_still_interrupted:
                    self.on_result(result)
            except StorageError as error:
                if self._failure is None:
                    raise
                _log.error("%s", error)  # the first failure is raised; measurements since the last checkpoint are lost

    def _finish(self) -> None:
        """Write the results of a finished run while every party can still resume from its last state.

        At the end, a deployed label party's files that only a resumed run needs are removed.
        """
        self._status = self.strategy.base.outcome.stopped
        if self.folder is not None:
            self.folder.remove_leftovers()
        self._result = self._write()
        if self.storage is not None and not is_simulation(self.grid):
            self.storage.end()

    def _write(self) -> RunResult:
        """Write the results: the weights first, before any report or callback, `result.json` last."""
        base, folder, failure, classes = self.strategy.base, self.folder, self._failure, self._card.classes
        outcome, words = base.outcome, "" if failure is None else words_of(failure)
        self.journal.close()
        if folder is not None and isinstance(failure, InputError) and outcome.steps == 0:
            folder.discard()
            folder = None
        if folder is not None and self._is_still_interrupted:
            _log.warning("what the earlier part of the run has measured stays in %s", folder.path)
            folder = None
        if folder is not None:
            self._write_model(folder)
        summary = summarise(
            outcome, self.strategy, base.config, self._data, classes=classes, status=self._status, error=words
        )
        if folder is not None:
            folder.write_result(summary, base.periods_in_order)
        return RunResult(self._status, summary, outcome, None if folder is None else folder.path)

    @property
    def _is_still_interrupted(self) -> bool:
        """True if a run that has a checkpoint ends again before all parties have restored it: nothing new is known."""
        store = self._context.store
        return self._context.resume and store is not None and store.committed is not None and not self._run.begun

    def _write_model(self, folder: RunFolder) -> None:
        """Write the label party's model if the run keeps one; else remove that of an earlier part of the run."""
        base, run = self.strategy.base, self._run
        if base.outcome.model_step is None:
            path = model_path(folder.path, LABEL)
            path.unlink(missing_ok=True)
            with suppress(OSError):
                path.parent.rmdir()
        elif run.label_party is not None:
            fixed = None if base.table is None else fixed_rows(base.table)
            noted = answer(run.label_party, self.strategy, run.cut, fixed)
            warn_of_learning(self.strategy)
            save_model(folder.path, replace(self._card, session=run.session, answer=noted), run.label_party.module)
