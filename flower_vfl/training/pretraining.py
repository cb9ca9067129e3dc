"""The label party lets all feature parties pre-train, and waits as long as they show signs of life."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace

from flower_vfl.errors import ProtocolError
from flower_vfl.protocol.frame import Frame, Kind
from flower_vfl.protocol.schedule import Schedule
from flower_vfl.training.checkpointing import send_to
from flower_vfl.training.observer import Observer
from flower_vfl.transport.base import Link, expect

_log = logging.getLogger(__name__)


def pretrain(links: Mapping[str, Link], schedule: Schedule, epochs: int, observer: Observer, *, timeout: float) -> None:
    """Let every party train its bottom model by its own columns.

    A party works for some seconds and says how many of its steps are done; only then it is asked to go on. So the time
    limit is for one such answer, and pre-training may take as long as it needs. What a party is sent depends on no
    label.

    Parameters
    ----------
    links : Mapping[str, Link]
        One a feature party, with no frame under way.
    schedule : Schedule
        That of the training.
    epochs : int
        Passes over the training rows; with 0 nothing happens.
    observer : Observer
        Receives the number of steps that the slowest party has done.
    timeout : float
        Seconds to wait for one answer.

    Raises
    ------
    PartyError
        When a party fails or does not answer in time.
    ProtocolError
        When a party does not go on.
    """
    if not epochs:
        return
    steps = replace(schedule, epochs=epochs).steps
    done = dict.fromkeys(links, 0)
    _log.info("pre-training: epochs: %d, steps: %d, with %s; no label is used", epochs, steps, ", ".join(links))
    epoch = 0
    while waiting := {party: link for party, link in links.items() if done[party] < steps}:
        for party, link in send_to(waiting, Frame(Kind.PRETRAIN)).items():
            answer = expect(link.receive(timeout), Kind.PRETRAINED, -1, party)
            now, total = answer.integer("done"), answer.integer("steps")
            if total != steps or not done[party] < now <= steps:
                raise ProtocolError(
                    f"party {party!r} reports {now} of {total} steps of pre-training after {done[party]}; there are "
                    f"{steps}, and each answer is to be for more of them"
                )
            done[party] = now
        slowest = min(done.values())
        observer.on_pretraining(slowest, steps)
        if epochs * slowest // steps > epoch:
            epoch = epochs * slowest // steps
            _log.info("pre-training: epoch %d of %d is done at all parties", epoch, epochs)
