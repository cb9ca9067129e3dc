"""The surroundings of one training run: its store of states, and the objects prepared for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from flower_vfl.data.store.dataset import PartyTable
from flower_vfl.training.checkpointing import Ledger
from flower_vfl.transport.sessions import Sessions


def _nothing() -> None:
    """Do nothing."""


@dataclass(frozen=True, kw_only=True)
class TrainingContext:
    """The surroundings of one training run; a strategy by itself has none of it.

    Attributes
    ----------
    sessions : Sessions, optional
        Sessions that are offered already; otherwise the run opens its own.
    offer : Mapping[str, str]
        Fields of the offer beside those for reaching the label party.
    ledger : Ledger, optional
        The label party's store of states; without one nobody keeps any.
    resume : bool
        True if the run goes on from the last state that all parties have.
    memory : Path, optional
        Folder of the monitor's row memory; a run with a ledger has one that survives it.
    columns : Callable[[str], PartyTable], optional
        Opens the columns of a feature party, which only a simulation has.
    on_finished : Callable[[], None]
        Called before the parties of a finished run may go.
    """

    sessions: Sessions | None = None
    offer: Mapping[str, str] = field(default_factory=dict)
    ledger: Ledger | None = None
    resume: bool = False
    memory: Path | None = None
    columns: Callable[[str], PartyTable] | None = None
    on_finished: Callable[[], None] = _nothing
