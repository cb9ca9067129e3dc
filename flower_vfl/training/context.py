"""The context of one training run: its store of states, and the objects prepared for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from flower_vfl.data.store.dataset import PartyTable
from flower_vfl.training.checkpointing import CommittedStore
from flower_vfl.transport.sessions import Sessions


@dataclass(frozen=True, kw_only=True)
class TrainingContext:
    """The context of one training run: the objects that it uses beside its strategy.

    Attributes
    ----------
    sessions : Sessions, optional
        Sessions that are offered already; otherwise the run opens its own.
    offer : Mapping[str, str]
        Fields of the offer beside those for reaching the label party.
    store : CommittedStore, optional
        The label party's store of states; without one no party saves its state.
    resume : bool
        True if the run resumes from the last committed step.
    memory : Path, optional
        Folder of the monitor's row memory, which survives the process; by default its files do not.
    columns : Callable[[str], PartyTable], optional
        Function that opens the columns of a feature party, in a simulation only.
    on_finished : Callable[[], None]
        Called when all parties have finished, before they are released.
    """

    sessions: Sessions | None = None
    offer: Mapping[str, str] = field(default_factory=dict)
    store: CommittedStore | None = None
    resume: bool = False
    memory: Path | None = None
    columns: Callable[[str], PartyTable] | None = None
    on_finished: Callable[[], None] = lambda: None
