"""A party that died comes back, and all go on from the last step that everybody has."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from flower_vfl.errors import PartyLostError
from flower_vfl.training.checkpointing import Checkpointing
from flower_vfl.transport.base import Link
from flower_vfl.transport.sessions import Sessions

_log = logging.getLogger(__name__)

TRIES = 3
"""Number of times that a run goes back to the same checkpoint: a failure that recurs there will not stop."""


class PartyRecovery:
    """The recovery of lost parties.

    Parameters
    ----------
    sessions : Sessions
        The run's; it asks the nodes of lost parties again.
    checkpointing : Checkpointing, optional
        Brings everybody back to one step; without it a party that is lost in the middle of training ends the run.
    replaced : bool
        True if a party that is lost can come back at all.
    """

    def __init__(self, sessions: Sessions, checkpointing: Checkpointing | None, *, replaced: bool) -> None:
        self._sessions, self._checkpointing, self._replaced = sessions, checkpointing, replaced
        self._step, self._tries = -1, 0

    def begin(self, work: Callable[[], None]) -> None:
        """Do `work` before the first step; when a party is lost, all parties restart and it is done once more.

        Nobody has a step to lose, and each party's beginning follows from the configuration and its own secret.

        Raises
        ------
        PartyLostError
            When parties cannot come back, or are lost again and again.
        PartyError
            When a party does not come back in time.
        """

        def let_go(party: str) -> None:
            self._sessions.drop(party)
            self._sessions.drop_all(f"party {party!r} was lost before the first step; all parties restart")

        self._until_done(work, lambda: None, let_go, begins=True)

    def train(self, work: Callable[[], None], again: Callable[[], None]) -> None:
        """Do `work`; when a party is lost, take it back, bring everybody back, call `again` and do it once more.

        Raises
        ------
        PartyLostError
            When there is no checkpoint to go back to, or parties are lost at the same one again and again.
        PartyError
            When a party does not come back in time.
        """

        def come_back() -> None:
            if self._checkpointing is not None:
                self._checkpointing.resume()
            again()

        self._until_done(work, come_back, self._sessions.drop)

    def finish(self, timeout: float, again: Callable[[Mapping[str, Link]], None]) -> None:
        """Let every party finish; one that is lost meanwhile goes back to its last state alone, the others are done.

        `again` is called with the parties that went back.
        """

        def come_back() -> None:
            unfinished = {party: self._sessions.links[party] for party in self._sessions.unfinished}
            if self._checkpointing is not None:
                self._checkpointing.restore(unfinished)
            again(unfinished)

        self._until_done(lambda: self._sessions.finish(timeout), come_back, self._sessions.drop)

    def _until_done(
        self,
        work: Callable[[], object],
        come_back: Callable[[], None],
        let_go: Callable[[str], None],
        *,
        begins: bool = False,
    ) -> None:
        complete = True
        while True:
            try:
                if not complete:
                    self._sessions.rejoin()
                    come_back()
                work()
            except PartyLostError as error:
                self._count(error, begins=begins)
                let_go(error.party)
                complete = False
            else:
                return

    def _count(self, error: PartyLostError, *, begins: bool) -> None:
        """Give up where going back does not help."""
        step = None if self._checkpointing is None else self._checkpointing.committed
        if step is None and begins:
            step = 0
        if step is None or not self._replaced or not error.party:
            raise error
        self._tries = self._tries + 1 if step == self._step else 1
        self._step = step
        if self._tries > TRIES:
            raise error
        _log.warning("%s; it is asked again, and all go on after step %d", error, step)
