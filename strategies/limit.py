"""Which model stays where a limit has been passed: the last one from before, or none."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from flower_vfl.protocol.frame import Frame, Kind
from flower_vfl.protocol.schedule import Schedule
from flower_vfl.strategies.checkpointing import Checkpointing, send_to
from flower_vfl.strategies.training import Training
from flower_vfl.transport.base import Link, expect

_log = logging.getLogger(__name__)


class LeakLimit:
    """Trains, and brings everybody back to the model from before the leak, or its bound, passed its limit, if it did.

    That is the model with which the epoch began that went too far; what was measured since stays. There is none
    where that was the first epoch, or where no states are kept: then no party keeps weights.

    Parameters
    ----------
    training : Training
        What it trains with.
    schedule : Schedule
        Says where an epoch began.
    links : Mapping[str, Link]
        One a feature party.
    checkpointing : Checkpointing, optional
        Has everybody's states.
    timeout : float
        Seconds to wait for one answer.
    """

    def __init__(
        self,
        training: Training,
        schedule: Schedule,
        links: Mapping[str, Link],
        checkpointing: Checkpointing | None,
        *,
        timeout: float,
    ) -> None:
        self._training, self._schedule, self._links = training, schedule, links
        self._checkpointing, self._timeout = checkpointing, timeout

    def train(self, after_epoch: Callable[[int], None], save: Callable[[int], None] | None) -> None:
        """Train, as `Training.run` does, and then go back where that is needed."""
        self._training.run(after_epoch, save)
        self._go_back()

    def _go_back(self) -> None:
        outcome = self._training.outcome
        if not outcome.limited:
            return
        step = self._schedule.epoch_start(outcome.steps)
        if self._checkpointing is not None and step:
            self._checkpointing.take_model(step)
            outcome.kept = step
            self.tell(self._links)
            self._training.look_again()
            _log.warning("the model of step %d is kept, the last one before the %s was passed", step, outcome.stopped)
        else:
            self.tell(self._links)
            self._training.discard_model()
            _log.warning("no model is kept: there is no checkpoint from before the %s was passed", outcome.stopped)

    def tell(self, parties: Mapping[str, Link]) -> None:
        """Tell parties of which step the model is that stays, where it is not the last one."""
        outcome = self._training.outcome
        if not outcome.limited:
            return
        step = -1 if outcome.kept is None else outcome.kept
        for party, link in send_to(parties, Frame(Kind.KEEP, step)).items():
            expect(link.receive(self._timeout), Kind.KEPT, step, party)
