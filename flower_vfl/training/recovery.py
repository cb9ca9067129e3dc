"""Recovery of lost parties: they reconnect, and all parties resume from the last committed step."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from flower_vfl.errors import PartyLostError
from flower_vfl.training.checkpointing import Checkpointing
from flower_vfl.transport.base import Link
from flower_vfl.transport.sessions import Sessions

_log = logging.getLogger(__name__)

TRIES = 3
"""Number of times that a run is restored to the same checkpoint: a failure that recurs there is permanent."""


class PartyRecovery:
    """The recovery of lost parties.

    Parameters
    ----------
    sessions : Sessions
        Sessions of the run, which invite the nodes of lost parties again.
    checkpointing : Checkpointing, optional
        Restores all parties to one step; without it the loss of a party in the middle of training ends the run.
    replaced : bool
        True if a lost party can reconnect at all.
    """

    def __init__(self, sessions: Sessions, checkpointing: Checkpointing | None, *, replaced: bool) -> None:
        self._sessions, self._checkpointing, self._replaced = sessions, checkpointing, replaced
        self._step, self._tries = -1, 0

    def begin(self, work: Callable[[], None]) -> None:
        """Do `work` before the first step; when a party is lost, all parties restart and it is done once more.

        No step is lost, and each party's initial state derives from the configuration and its own secret.

        Raises
        ------
        PartyLostError
            When parties cannot reconnect, or are lost repeatedly.
        PartyError
            When a party does not reconnect in time.
        """

        def drop_lost(party: str) -> None:
            self._sessions.drop(party)
            self._sessions.drop_all(f"party {party!r} was lost before the first step; all parties restart")

        self._retry(work, lambda: None, drop_lost, before_first_step=True)

    def train(self, work: Callable[[], None], again: Callable[[], None]) -> None:
        """Do `work`; when a party is lost, reconnect it, restore all parties, call `again` and do it once more.

        Raises
        ------
        PartyLostError
            When there is no checkpoint to restore, or parties are lost at the same one repeatedly.
        PartyError
            When a party does not reconnect in time.
        """

        def recover() -> None:
            if self._checkpointing is not None:
                self._checkpointing.resume()
            again()

        self._retry(work, recover, self._sessions.drop)

    def finish(self, timeout: float, again: Callable[[Mapping[str, Link]], None]) -> None:
        """Let every party finish; only a party that is lost meanwhile is restored to its last state.

        `again` is called with the restored parties.
        """

        def recover() -> None:
            unfinished = {party: self._sessions.links[party] for party in self._sessions.unfinished}
            if self._checkpointing is not None:
                self._checkpointing.restore(unfinished)
            again(unfinished)

        self._retry(lambda: self._sessions.finish(timeout), recover, self._sessions.drop)

    def _retry(
        self,
        work: Callable[[], object],
        recover: Callable[[], None],
        drop_lost: Callable[[str], None],
        *,
        before_first_step: bool = False,
    ) -> None:
        complete = True
        while True:
            try:
                if not complete:
                    self._sessions.rejoin()
                    recover()
                work()
            except PartyLostError as error:
                self._check_retry(error, before_first_step=before_first_step)
                drop_lost(error.party)
                complete = False
            else:
                return

    def _check_retry(self, error: PartyLostError, *, before_first_step: bool) -> None:
        """Raise the error where a restored checkpoint would not help."""
        step = None if self._checkpointing is None else self._checkpointing.committed
        if step is None and before_first_step:
            step = 0
        if step is None or not self._replaced or not error.party:
            raise error
        self._tries = self._tries + 1 if step == self._step else 1
        self._step = step
        if self._tries > TRIES:
            raise error
        _log.warning("%s; it is asked again, and all go on after step %d", error, step)
