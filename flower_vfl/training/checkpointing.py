"""Checkpoints of all parties: each saves its state after the same step, and all restore it together."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol

from flower_vfl.auditing.recorder import Recorder
from flower_vfl.parties.feature import Store
from flower_vfl.protocol.frame import Frame, Kind
from flower_vfl.protocol.schedule import Schedule
from flower_vfl.transport.base import Link, expect

_log = logging.getLogger(__name__)

MODEL = "label"
"""Name of the label party's model among its parts."""

_MOST_FRAMES = 128
"""Largest number of frames that a party may send until it confirms that it has restored its state."""


class CommittedStore(Store, Protocol):
    """The label party's own store, which also records the last step that all parties have saved."""

    def commit(self, step: int) -> None:
        """Record that every party has saved its state after `step` steps."""

    @property
    def committed(self) -> int | None:
        """The last step after which every party has saved its state; None before the first."""

    @property
    def received(self) -> Path:
        """The file with the digests of the frames received since that step."""


class Stateful(Protocol):
    """A part of the label party that changes while training goes on."""

    def state(self) -> Any:
        """Return the state that a resumed run needs, as plain values and tensors."""

    def restore(self, state: Any) -> None:
        """Restore a state that `state` returned."""


class Checkpointing:
    """The coordinator of checkpoints: all parties save their states, and restore them.

    A step is committed once every party has written its own state to its own disk; only then is the number of the step
    recorded. A kill at any earlier moment leaves the previous step committed, and every party still has its state.

    Parameters
    ----------
    store : CommittedStore
        The label party's store.
    links : Mapping[str, Link]
        Link to each feature party.
    parts : Mapping[str, Stateful]
        The label party's parts with a state, by name; its model is called "label".
    schedule : Schedule
        Gives the step at which an epoch began; the state of that step is held until the next one has ended.
    recorder : Recorder
        The label party's recorder; its values are flushed first, because no step before the checkpoint is repeated.
    timeout : float
        Seconds to wait for one answer.
    frozen : bool
        True if the feature parties do not change in training: then their states are saved once, before it.
    """

    def __init__(
        self,
        store: CommittedStore,
        links: Mapping[str, Link],
        parts: Mapping[str, Stateful],
        *,
        schedule: Schedule,
        recorder: Recorder,
        timeout: float,
        frozen: bool,
    ) -> None:
        self._frozen = frozen
        self._store, self._links, self._parts, self._schedule = store, links, dict(parts), schedule
        self._recorder, self._timeout = recorder, timeout
        self._restores = 0

    def save(self, step: int) -> None:
        """Save the states of all parties after `step` steps; no step may be under way."""
        asked = {} if self._frozen and step else self._links
        for party, link in send_to(asked, Frame(Kind.SAVE, step)).items():
            expect(link.receive(self._timeout), Kind.SAVED, step, party)
        state = {name: part.state() for name, part in self._parts.items()}
        self._recorder.flush()
        self._store.save(step, state, hold=self._schedule.epoch_start(step))
        self._store.commit(step)

    @property
    def committed(self) -> int | None:
        """The last step after which all parties have saved their states; None before the first."""
        return self._store.committed

    def resume(self) -> bool:
        """Restore all parties to the last committed step; return True if there is one."""
        step = self.committed
        if step is None:
            return False
        state = self._store.load(step)
        for name, part in self._parts.items():
            part.restore(state[name])
        self.restore(self._links)
        _log.info("all parties go on after step %d", step)
        return True

    def restore(self, parties: Iterable[str]) -> None:
        """Restore some parties to the last committed step, and discard their answers to earlier requests."""
        step = self.committed
        if step is None:
            return
        step = 0 if self._frozen else step
        self._restores += 1
        lost = {party: self._links[party] for party in parties}
        links = send_to(lost, Frame(Kind.RESTORE, step, {"count": self._restores}))
        for party, link in links.items():
            for _ in range(_MOST_FRAMES):
                frame = link.receive(self._timeout)
                if frame.kind is Kind.RESTORED and frame.integer("count") == self._restores:
                    break
            expect(frame, Kind.RESTORED, step, party)

    def take_model(self, step: int) -> None:
        """Load the label party's model of an earlier step; all other state stays as it is."""
        self._parts[MODEL].restore(self._store.load(step)[MODEL])


def send_to(links: Mapping[str, Link], frame: Frame) -> Mapping[str, Link]:
    """Send a frame to some parties, and return their links."""
    for link in links.values():
        link.send(frame)
    for link in links.values():
        link.flush()
    return links
