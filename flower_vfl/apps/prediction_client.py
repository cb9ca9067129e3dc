"""A feature party's side of a prediction; a deployed party answers only as far as its owner allows."""

from __future__ import annotations

import fcntl
import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

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
from flower_vfl.apps.factories import BottomFactory, DataFactory, check_device, computing, open_data
from flower_vfl.apps.model import (
    check_data,
    check_factories,
    check_features,
    folders_of_models,
    load_card,
    load_model,
    model_path,
)
from flower_vfl.apps.node import Node
from flower_vfl.config import Config, of_this_host
from flower_vfl.data.store.scoring import new_rows, rows_of
from flower_vfl.errors import ConfigError, DataError, PermissionDeniedError, ProtocolError, SetupError
from flower_vfl.files import write_json_atomic
from flower_vfl.nn.initialise import new_model
from flower_vfl.nn.placement import Placement
from flower_vfl.parties.predictor import Predictor
from flower_vfl.transport.dialling import take_part
from flower_vfl.transport.messages import answer
from flower_vfl.transport.sessions import FINISHED, SPARE

_log = logging.getLogger(__name__)

ROWS_PER_DAY, NEW_DATA = "predict-rows-per-day", "predict-data"
"""Keys of `--node-config`: number of rows a day that the owner allows, and path of new rows on that host."""

_STATE = "flower-vfl-predict"
_KEPT = ("kind", "session", "simulation", "wire-dtype", "training", "parties", "asked", "data", "run")


class Quota:
    """A counter of the rows that a party answered, day by day (UTC), over all runs of its host.

    Parameters
    ----------
    path : Path
        File of the counts.
    party : str
        The party's name.
    per_day : int
        Largest number of rows a day.
    today : Callable[[], str]
        Returns the present day, as YYYY-MM-DD.
    """

    def __init__(
        self, path: Path, party: str, per_day: int, today: Callable[[], str] = lambda: f"{datetime.now(UTC):%Y-%m-%d}"
    ) -> None:
        self._path, self._party, self._per_day, self._today = path, party, per_day, today

    @classmethod
    def of(cls, node_config: Mapping[str, object], party: str) -> Quota:
        """Return the quota that a node's owner allows.

        Raises
        ------
        PermissionDeniedError
            When the owner allows no predictions.
        ConfigError
            When the value is no number of rows.
        """
        given = node_config.get(ROWS_PER_DAY)
        if given is None:
            raise PermissionDeniedError(
                f"party {party!r} allows no predictions; its owner can: {ROWS_PER_DAY}=N in the --node-config of its "
                "SuperNode allows N rows a day"
            )
        if not isinstance(given, int) or isinstance(given, bool) or given < 0:
            raise ConfigError(f"{ROWS_PER_DAY} in --node-config must be a whole number of at least 0, given {given!r}")
        return cls(state_folder() / f"predictions-{party}.json", party, given)

    def check(self, rows: int) -> None:
        """Refuse more rows than today's quota has left; nothing is counted."""
        self._check_left(self._read(), rows)

    def take(self, rows: int) -> None:
        """Count rows before they are answered.

        Raises
        ------
        PermissionDeniedError
            When they are more than today's quota has left; nothing is counted then.
        """
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with self._path.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # another run of this host may answer too
            counts = self._read()
            self._check_left(counts, rows)
            write_json_atomic(self._path, {**counts, self._today(): counts.get(self._today(), 0) + rows})

    def _check_left(self, counts: Mapping[str, int], rows: int) -> None:
        left = self._per_day - counts.get(self._today(), 0)
        if rows > left:
            raise PermissionDeniedError(
                f"party {self._party!r} allows {self._per_day} rows a day ({ROWS_PER_DAY}), {max(0, left)} of them are "
                f"left today; {rows} were asked for"
            )

    def _read(self) -> dict[str, int]:
        if not self._path.exists():
            return {}
        try:
            return {str(day): int(count) for day, count in json.loads(self._path.read_text(encoding="utf8")).items()}
        except (OSError, ValueError, TypeError, AttributeError) as error:
            raise DataError(f"{self._path} holds no counts of answered rows: {error}") from None


@dataclass(frozen=True)
class _Request:
    """A prediction that a party is asked for: the offer, and the folder of its training run on this host."""

    party: str
    offer: ConfigRecord
    run: Path
    data: str
    quota: Quota | None = None

    def permit(self, rows: int) -> None:
        """Count rows before they are answered; in a simulation there is no quota."""
        if self.quota is not None:
            self.quota.take(rows)


class PredictionClient:
    """The handlers of one ClientApp for predictions.

    With the transport `messages` a new process may handle each Flower message; it then loads the weights again.

    Parameters
    ----------
    bottom, data
        As for `make_client_app`.
    """

    def __init__(self, bottom: BottomFactory, data: DataFactory) -> None:
        self._bottom, self._data = bottom, data
        self._live: dict[tuple[str, str], tuple[Predictor, Config]] = {}

    def query(self, message: Message, context: Context) -> Message:
        """Answer the offer of a session by taking part in it."""
        offer = offer_of(message.content)
        consent, asked = consent_of(context), _request_of(offer, context)
        if consent is not None:
            consent.check_signature(offer, context.run_config)
        if asked is None:
            return reply(message, SPARE, f"it is none of the run's parties: {offer.get('parties')!s}")
        if asked.quota is not None:  # at the beginning: a part of the scores would be of no use
            asked.quota.check(_whole_number(offer, "asked"))
        machine, config = self._build(asked, context)
        with computing(config):
            why = take_part(offer, machine, config.transport, outward_of(message, context))
        if why is None:
            return reply(message, FINISHED)
        context.state[_STATE] = ConfigRecord({key: value for key, value in offer.items() if key in _KEPT})
        self._live[str(offer["session"]), asked.party] = machine, config
        return greeting(message, offer, machine, asked.party, why)

    def frames(self, message: Message, context: Context) -> Message:
        """Answer the frames of one Flower message (transport `messages`)."""
        offer = context.state.config_records.get(_STATE)
        asked = None if offer is None else _request_of(offer, context)
        if offer is None or asked is None:
            raise lost_session()
        session = str(offer["session"])
        machine, config = self._live.get((session, asked.party)) or self._build(asked, context)
        with computing(config):
            content = answer(message.content, session, str(offer["wire-dtype"]), machine)
        if machine.finished:
            self._live.pop((session, asked.party), None)
        return Message(content, reply_to=message)

    def _build(self, asked: _Request, context: Context) -> tuple[Predictor, Config]:
        """Return the predictor of the party's trained model and of its rows, and its configuration."""
        kept = load_model(model_path(asked.run, asked.party))
        if (kept.card.session, kept.card.party) != (asked.offer.get("training"), asked.party):
            raise DataError(f"the weights of party {asked.party!r} in {asked.run} are of another training")
        node = Node.of(context.node_config)
        if self._data is open_data:
            node.require_data()
        config = node.view(of_this_host(kept.card.config, context.run_config))
        check_device(config)
        check_factories(kept.card, {"bottom": self._bottom})
        dataset = self._data(config)
        check_data(kept.card, dataset)
        rows = new_rows(Path(asked.data).expanduser(), dataset) if asked.data else rows_of(dataset)
        features = check_features(kept.card, rows.features(asked.party))
        placement = Placement.of(config)
        make = partial(self._bottom, dataset.party(asked.party).spec, config)
        model = placement.place(new_model(make, 0, f"the bottom model of party {asked.party!r}"))
        kept.load_into(model)  # so the seed has no effect
        machine = Predictor(
            asked.party,
            model,
            features.source,
            rows=rows.digest,
            weights=kept.digest,
            batch_size=config.training.eval_batch_size,
            permit=asked.permit,
            placement=placement,
        )
        _log.info(
            "party %r answers for %s rows of %s", asked.party, asked.offer.get("asked"), asked.data or dataset.name
        )
        return machine, config


def _request_of(offer: ConfigRecord, context: Context) -> _Request | None:
    """Return the prediction that this node's party is asked for; None for a spare node.

    A node that its owner gave a `party` in --node-config is deployed, whatever the offer claims: it answers only what
    the owner allows, from the owner's folders.
    """
    node, names = Node.of(context.node_config), str(offer.get("parties")).split(",")
    if not node.deployed:
        party = node.simulated_as(names, offered=bool(offer.get("simulation")))
        return _Request(party, offer, Path(str(offer.get("run"))), str(offer.get("data"))) if party else None
    if node.party not in names:
        return None
    quota = Quota.of(context.node_config, node.party)
    data = str(context.node_config.get(NEW_DATA) or "") if offer.get("data") else ""
    if offer.get("data") and not data:
        raise PermissionDeniedError(
            f"new data is to be scored, and party {node.party!r} names none: {NEW_DATA}='PATH' in the --node-config of "
            "its SuperNode does"
        )
    return _Request(node.party, offer, _run_folder(node, str(offer.get("training"))), data, quota)


def _whole_number(offer: ConfigRecord, name: str) -> int:
    value = offer.get(name)
    if not isinstance(value, str) or not value.isdecimal():
        raise ProtocolError(f"an offer of a prediction needs the number of rows that are {name}, given {value!r}")
    return int(value)


def _run_folder(node: Node, training: str) -> Path:
    """Return the folder in which a deployed party keeps its files of a training run."""
    places = folders_of_models(Path(node.out)) if node.out else sorted(state_folder().glob(f"*-{node.party}"))
    for place in places:
        path = model_path(place, node.party)
        try:
            if path.is_file() and load_card(path).session == training:
                return place
        except DataError as error:  # of another training, perhaps
            _log.warning("%s", error)
    _log.error("there are no weights of the training %s in %s", training, node.out or state_folder())
    raise SetupError(
        f"party {node.party!r} has no weights of this training (session {training[:8]}): they were removed, or are "
        "in another folder; the log of its host lists the searched ones"
    )
