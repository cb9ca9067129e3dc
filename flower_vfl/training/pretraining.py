"""Pre-training of all parties' bottom models, coordinated by the label party."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from dataclasses import replace

from flower_vfl.data.store.source import LabelledRows
from flower_vfl.errors import ProtocolError
from flower_vfl.nn.initialise import seeded_initialisation
from flower_vfl.nn.placement import Placement
from flower_vfl.nn.pretraining import Classification
from flower_vfl.parties.feature import embed
from flower_vfl.parties.label import LabelParty
from flower_vfl.parties.network import adds_to_logits
from flower_vfl.parties.pretraining import Pretraining
from flower_vfl.protocol.frame import Frame, Kind
from flower_vfl.protocol.schedule import Schedule
from flower_vfl.training.checkpointing import send_to
from flower_vfl.training.observer import Observer
from flower_vfl.training.protocols import TrainedStrategy
from flower_vfl.transport.base import Link, expect

_log = logging.getLogger(__name__)


def own_pretraining(strategy: TrainedStrategy, label: LabelParty, schedule: Schedule) -> Pretraining | None:
    """Build the pre-training of the label party's own bottom model on its labelled rows, some of which are unaligned.

    Return None if there is no such model or row, and if a defense prepares or accounts for labels: its guarantee does
    not cover this use of them.
    """
    base, bottom = strategy.base, label.bottom
    table, labels, config = base.table, base.labels, base.config
    if not config.training.pretrain or bottom is None or table is None or table.unaligned is None:
        return None
    if labels.unaligned is None or adds_to_logits(bottom):
        return None
    if names := [one.name for one in strategy.chain() if one.writes("prepare_labels") or one.guarantee() is not None]:
        _log.info(
            "the label party's unaligned rows are not used: %s accounts for each use of a label", ", ".join(names)
        )
        return None
    placement, secret = Placement.of(config), base.secret
    width = math.prod(embed(bottom, table.train, schedule.train_batch(0)[:2], placement).shape[1:])
    with seeded_initialisation(secret.seed("pretrain", "head")):
        objective = Classification(width, labels.classes)
    placement.place(objective)
    _log.info(
        "pre-training: the label party's own bottom model learns from %d unaligned rows too", len(table.unaligned)
    )
    return Pretraining(
        bottom,
        objective,
        LabelledRows(table.train, base.prepared),
        schedule,
        config.training.pretrain,
        generator=secret.generator("pretrain"),
        placement=placement,
        patience=config.transport.step_timeout,
        unaligned=LabelledRows(table.unaligned, labels.unaligned),
    )


def pretrain(
    links: Mapping[str, Link],
    schedule: Schedule,
    epochs: int,
    observer: Observer,
    *,
    timeout: float,
    own: Pretraining | None = None,
) -> None:
    """Let every party train its bottom model on its own rows.

    A party works for some seconds and reports the number of its finished steps; only then is it asked to continue. So
    the time limit is for one such answer, and pre-training may take any time. No frame to a party depends on a label.

    Parameters
    ----------
    links : Mapping[str, Link]
        Link to each feature party, with no frame under way.
    schedule : Schedule
        Schedule of the training.
    epochs : int
        Number of passes over the training rows; 0 for no pre-training.
    observer : Observer
        Receives the number of steps that the slowest party has done.
    timeout : float
        Seconds to wait for one answer.
    own : Pretraining, optional
        Pre-training of the label party itself, which is done while it waits for the others.

    Raises
    ------
    PartyError
        When a party fails or does not answer in time.
    ProtocolError
        When a party reports no further step.
    """
    if not epochs:
        return
    steps = replace(schedule, epochs=epochs).steps
    done = dict.fromkeys(links, 0)
    _log.info("pre-training: epochs: %d, steps: %d, with %s; no label is used", epochs, steps, ", ".join(links))
    epoch = 0
    while waiting := {party: link for party, link in links.items() if done[party] < steps}:
        asked = send_to(waiting, Frame(Kind.PRETRAIN))
        if own is not None:
            own.work()
        for party, link in asked.items():
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
    while own is not None and own.done < own.steps:
        own.work()
