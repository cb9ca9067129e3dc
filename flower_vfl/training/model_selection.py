"""The choice of the model that a run keeps: the last, the best with patience, or one from before a limit was passed."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from flower_vfl.parties.label import LabelParty
from flower_vfl.protocol.frame import Frame, Kind
from flower_vfl.protocol.schedule import Schedule
from flower_vfl.training.checkpointing import Checkpointing, send_to
from flower_vfl.training.loop import TrainingLoop
from flower_vfl.transport.base import Link, expect

_log = logging.getLogger(__name__)


class ModelSelection:
    """The training loop, followed by the choice of the model that all parties keep.

    With `training.patience` that is the model after the best epoch, of which every party has a copy. If a limit of the
    leak, or of its bound, was passed, it is the best earlier model, or without patience the model from the start of the
    epoch that passed the limit. If that was the first epoch, or there are no checkpoints, no party keeps weights. The
    measurements stay in each case.

    Parameters
    ----------
    training : TrainingLoop
        The training loop.
    label : LabelParty
        The label party.
    schedule : Schedule
        Gives the step at which an epoch began.
    links : Mapping[str, Link]
        Link to each feature party.
    checkpointing : Checkpointing, optional
        The coordinator of checkpoints.
    timeout : float
        Seconds to wait for one answer.
    """

    def __init__(
        self,
        training: TrainingLoop,
        label: LabelParty,
        schedule: Schedule,
        links: Mapping[str, Link],
        checkpointing: Checkpointing | None,
        *,
        timeout: float,
    ) -> None:
        self._training, self._label, self._schedule, self._links = training, label, schedule, links
        self._checkpointing, self._timeout = checkpointing, timeout

    def train(self, after_epoch: Callable[[int], None], save: Callable[[int], None] | None) -> None:
        """Train, as `TrainingLoop.run` does, and then restore an earlier model if the run keeps that one."""
        self._training.run(after_epoch, save)
        self._go_back()

    def _go_back(self) -> None:
        outcome, best = self._training.outcome, self._label.best
        if best is None and not outcome.limited:
            return
        if best is not None and best.step == outcome.steps:
            outcome.chosen_by = outcome.best_by or ""
            return
        begun = self._schedule.epoch_start(outcome.steps)
        if best is not None:
            best.load_into(self._label.module)
            self._keep(best.step, "the best by validation")
            outcome.chosen_by = outcome.best_by or ""
        elif self._checkpointing is not None and begun:
            self._checkpointing.take_model(begun)
            self._keep(begun, f"the last one before the {outcome.stopped} was passed")
        else:
            self.announce(self._links)
            self._training.discard_model()
            _log.warning("no model is kept: there is no checkpoint from before the %s was passed", outcome.stopped)

    def _keep(self, step: int, why: str) -> None:
        """Record the step of the model that the label party has restored, and let all parties keep theirs of it."""
        outcome = self._training.outcome
        outcome.kept, outcome.kept_epoch = step, self._schedule.epoch_of(step - 1)
        self.announce(self._links)
        self._training.evaluate_again()
        level = logging.WARNING if outcome.limited else logging.INFO
        _log.log(level, "the model of step %d, epoch %d, is kept: %s", step, outcome.kept_epoch, why)

    def announce(self, parties: Mapping[str, Link]) -> None:
        """Send the step of the kept model to the parties, unless it is the last one."""
        outcome = self._training.outcome
        if outcome.model_step == outcome.steps:
            return
        step = -1 if outcome.model_step is None else outcome.model_step
        for party, link in send_to(parties, Frame(Kind.KEEP, step)).items():
            expect(link.receive(self._timeout), Kind.KEPT, step, party)
