"""The ClientApp's handlers of a training: a feature party for as long as its session lasts."""

from __future__ import annotations

import logging
import shutil
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from flwr.app import ConfigRecord, Context, Message

from flower_vfl.apps.client_session import (
    consent_of,
    greeting,
    lost_session,
    offer_of,
    reply,
    state_folder,
)
from flower_vfl.apps.error_redaction import outward_of
from flower_vfl.apps.factories import (
    BottomFactory,
    DataFactory,
    TopFactory,
    check_device,
    computing,
    open_data,
    party_names,
)
from flower_vfl.apps.feature_party import build_feature_party
from flower_vfl.apps.folder import WEIGHTS
from flower_vfl.apps.model import ModelCard, keep_earlier, make_card, save_model
from flower_vfl.apps.node import Node
from flower_vfl.apps.run_state import CHECKPOINTS, PartyStorage, checked_training
from flower_vfl.checkpoint import load_state, save_state
from flower_vfl.config import Config, from_run_config
from flower_vfl.data.store.memory import VerticalData
from flower_vfl.errors import OutputExistsError, ProtocolError, SetupError
from flower_vfl.files import FolderLock, remove_leftovers, writing_to
from flower_vfl.parties.feature import FeatureParty
from flower_vfl.rng import Secret
from flower_vfl.tracking import StepLog
from flower_vfl.training.factories import OptimizerFactory
from flower_vfl.transport.dialling import take_part
from flower_vfl.transport.messages import answer
from flower_vfl.transport.sessions import FINISHED, SPARE, TRAINING

_log = logging.getLogger(__name__)

_STATE = "flower-vfl"
_KEPT = ("session", "simulation", "wire-dtype", "out", TRAINING)

Version = tuple[int, int] | None
"""Inode and time of a file that is replaced whenever it is written; None where there is none."""


@dataclass(frozen=True)
class TrainingSession:
    """The session that a handler takes part in."""

    offer: ConfigRecord
    party: str
    simulation: bool
    folder: Path

    @property
    def id(self) -> str:
        """The label party's name of the session."""
        return str(self.offer["session"])

    @property
    def storage(self) -> PartyStorage | None:
        """The party's store of states; None for a simulation that leaves nothing on disk."""
        if TRAINING not in self.offer:
            return None
        return PartyStorage.of_feature_party(self.folder, self.party, self.offer[TRAINING])

    @property
    def state_path(self) -> Path:
        """The file of the party's state between two Flower messages: in its own folder; the next session replaces it.

        So a label party that disappears leaves one such file there at most.
        """
        if self.simulation and not self.offer.get("out"):
            return state_folder() / f"session-{self.id}-{self.party}.safetensors"
        return self.folder / CHECKPOINTS / self.party / "session.safetensors"

    def memory(self, config: Config) -> Path | None:
        """Return the folder of the party's row memory; None where it is kept in this process alone."""
        folder = None if self.storage is None else self.storage.memory(config)
        other_processes = "messages" in (self.offer.get("kind", "messages"), self.offer.get("fallback"))
        return self._memory_between if folder is None and other_processes else folder

    @property
    def _memory_between(self) -> Path:
        return self.state_path.with_suffix(".memory")

    @property
    def version(self) -> Version:
        """The version of the state between two messages, another after each that is written; None without a state."""
        try:
            found = self.state_path.stat()
        except OSError:
            return None
        return found.st_ino, found.st_mtime_ns

    def discard(self) -> None:
        """Remove the state and the row memory that were kept between two Flower messages."""
        self.state_path.unlink(missing_ok=True)
        shutil.rmtree(self._memory_between, ignore_errors=True)

    def hold(self) -> AbstractContextManager[object]:
        """Lock a deployed party's folder, and return the lock; in a simulation the label party holds one.

        Raises
        ------
        OutputExistsError
            When another process works there.
        """
        if self.simulation:
            return nullcontext()
        with writing_to(self.folder):
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            lock = FolderLock(self.folder)
        except OutputExistsError as error:
            raise OutputExistsError(f"party {self.party!r}: {error} as `out` in --node-config") from None
        for folder in (self.folder, self.folder / WEIGHTS):
            remove_leftovers(folder)
        return lock

    def load(self) -> Any:
        """Return the party's state that the previous message left.

        Raises
        ------
        ProtocolError
            When the state of another session has replaced it.
        """
        kept = load_state(self.state_path)
        if kept["session"] != self.id:
            raise ProtocolError(f"another session of party {self.party!r} has begun; this one is over")
        return kept["state"]


class TrainingClient:
    """The handlers of one ClientApp for trainings.

    With the transport `messages` a new process may handle each Flower message, so the party's state is on its own
    disk; a party that is still in memory with exactly this state is used as it is.
    """

    def __init__(
        self,
        bottom: BottomFactory,
        top: TopFactory,
        data: DataFactory,
        optimizer: OptimizerFactory | None,
        config: Config | None,
    ) -> None:
        self._bottom, self._top, self._data, self._optimizer, self._config = bottom, top, data, optimizer, config
        self._live: dict[tuple[str, str], tuple[int, Version, FeatureParty, StepLog | None]] = {}

    def train(self, message: Message, context: Context) -> Message:
        """Answer the offer of a session by taking part in it."""
        offer, consent = offer_of(message.content), consent_of(context)
        if consent is not None:
            consent.check_offer(offer, context.run_config)
        config, dataset = self._open_data(context)
        if consent is not None:
            consent.check_rows(dataset.alignment.digest)
        session = _session_of(context, offer, config, dataset)
        if not session.party:
            return reply(message, SPARE, "this run has fewer feature parties than nodes")
        with computing(config), session.hold():
            machine, journal = self._build(session, config, dataset)
            with ExitStack() as cleanup:
                cleanup.callback(session.discard)
                cleanup.callback(_close_measurements, machine, journal)
                why = take_part(offer, machine, config.transport, outward_of(message, context))
                if why is None:
                    return reply(message, FINISHED)
                cleanup.pop_all()
            self._store(context, session, machine, journal, 0)
            return greeting(message, session.offer, machine, session.party, why)

    def frames(self, message: Message, context: Context) -> Message:
        """Answer the frames of one Flower message (transport `messages`)."""
        offer, count = _stored(context)
        config, dataset = self._open_data(context)
        session = _session_of(context, offer, config, dataset)
        with computing(config), session.hold(), ExitStack() as cleanup:
            live = self._live.pop((session.id, session.party), None)
            if live is not None and live[:2] == (count, session.version):
                _, _, machine, journal = live
            else:
                state = session.load()  # first: a late message of a session that is over must change nothing
                machine, journal = self._build(session, config, dataset)
                machine.restore(state)
            cleanup.callback(session.discard)  # an error ends the session
            content = answer(message.content, session.id, str(offer["wire-dtype"]), machine)
            if not machine.finished or machine.awaits_export:
                self._store(context, session, machine, journal, count + 1)
                cleanup.pop_all()
        return Message(content, reply_to=message)

    def _open_data(self, context: Context) -> tuple[Config, VerticalData]:
        """Return the run's configuration, with a number that fits the rows for each "auto", and this node's data."""
        node, consent = Node.of(context.node_config), consent_of(context)
        requested = self._config or from_run_config(context.run_config)
        if consent is not None:
            consent.check(requested)
        if self._data is open_data:
            node.require_data()
        config = node.view(requested)
        check_device(config)
        dataset = self._data(config)
        fitted = config.fitted(dataset.alignment.rows)
        if consent is not None:
            consent.check(fitted)  # the number of epochs of "auto" is known only now
        return fitted, dataset

    def _build(
        self, session: TrainingSession, config: Config, dataset: VerticalData
    ) -> tuple[FeatureParty, StepLog | None]:
        storage = session.storage
        if session.simulation:
            secret = Secret.for_simulation(config.seed, session.party)
        else:
            secret = Secret.of_this_host(None if storage is None else storage.secret)
        if storage is not None:
            storage.check_open()
            secret.keep(storage.secret)
        journal = StepLog(session.folder, name=session.party) if session.offer.get("out") else None
        machine = build_feature_party(
            session.party,
            config,
            dataset,
            secret,
            bottom=self._bottom,
            top=self._top,
            optimizer=self._optimizer,
            simulation=session.simulation,
            recorder=journal,
            store=None if storage is None else storage.store(config, dataset, session.party, secret),
            memory=session.memory(config),
        )
        card = make_card(session.party, session.id, config, dataset, {"bottom": self._bottom}, table=session.party)
        machine.awaits_export = storage is not None
        machine.on_finish = partial(_write_results, session, journal, card)
        if storage is not None and not session.simulation:
            machine.on_exported = lambda _: storage.end()
        _log.info("party %r takes part; its secret comes from: %s", session.party, secret.origin)
        return machine, journal

    def _store(
        self,
        context: Context,
        session: TrainingSession,
        machine: FeatureParty,
        journal: StepLog | None,
        count: int,
    ) -> None:
        machine.settle()
        if journal is not None:
            journal.flush()
        save_state(session.state_path, {"session": session.id, "state": machine.state()})
        kept = {key: value for key, value in session.offer.items() if key in _KEPT}
        context.state[_STATE] = ConfigRecord({**kept, "count": count})
        self._live[session.id, session.party] = (count, session.version, machine, journal)


def _close_measurements(machine: FeatureParty, journal: StepLog | None) -> None:
    """Settle the party's pending measurements, and close its journal."""
    machine.settle()
    if journal is not None:
        journal.close()


def _write_results(session: TrainingSession, journal: StepLog | None, card: ModelCard, machine: FeatureParty) -> None:
    """Write the party's results of a finished training: its journal and the weights that are kept."""
    _close_measurements(machine, journal)
    if not machine.discarded and (session.offer.get("out") or not session.simulation):
        earlier = None if session.simulation else keep_earlier(session.folder, card)
        if earlier is not None:
            _log.info("the weights of an earlier training are in %s; delete them when nobody asks for them", earlier)
        save_model(session.folder, card, machine.bottom)


def _stored(context: Context) -> tuple[ConfigRecord, int]:
    stored = context.state.config_records.get(_STATE)
    if stored is None:
        raise lost_session()
    return stored, int(str(stored["count"]))


def _session_of(context: Context, offer: ConfigRecord, config: Config, dataset: VerticalData) -> TrainingSession:
    """Return this node's session by an offer; its party is "" where the node is spare and takes no part.

    A node that its owner gave a `party` in --node-config is deployed, whatever the offer claims: its secrets never come
    from the run's seed, and it opens no audit channel. Its folder is its own, a simulated one's that of the run.
    """
    names, node = party_names(config, dataset), Node.of(context.node_config)
    if not node.deployed:
        party = node.simulated_as(names, offered=bool(offer.get("simulation")))
    elif node.party in names:
        party = node.party
    else:
        raise SetupError(
            f"this node says it is party {node.party!r}; the run has {', '.join(names)}. Correct `party` in "
            "--node-config here or parties.features of the run, or stop this SuperNode while others train"
        )
    if not node.deployed and offer.get("out"):
        folder = Path(str(offer["out"]))
    else:
        training = checked_training(offer[TRAINING]) if TRAINING in offer else f"run-{context.run_id}"
        folder = Path(node.out) if node.out else state_folder() / f"{training}-{party}"
    return TrainingSession(offer, party, not node.deployed, folder)
