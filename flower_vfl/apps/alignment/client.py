"""The ClientApp's handler of an alignment: this node's party, its permissions, and its answers to errors."""

from __future__ import annotations

import json
import logging
import re
from pathlib import Path
from traceback import extract_tb

from flwr.app import Context, Message

from flower_vfl.apps.alignment.feature import FeatureSide, Terms, discard_session
from flower_vfl.apps.alignment.owner import METHODS, Owner
from flower_vfl.apps.alignment.wire import SESSION, SPARE_FIELD, AlignmentStage, frame, stage_of
from flower_vfl.apps.node import Node
from flower_vfl.config import Config
from flower_vfl.data.sources.id_sources import id_sources
from flower_vfl.data.store.party_names import check_party_name
from flower_vfl.errors import ConfigError, DataError, FlowerVflError, ProtocolError
from flower_vfl.protocol.frame import Frame, from_records, to_records
from flower_vfl.protocol.printable import printable
from flower_vfl.version import refusal

_log = logging.getLogger(__name__)

ALIGNMENT_RESULT = "alignment.parquet"


def answer_alignment(message: Message, context: Context, config: Config) -> Message:
    """Answer one message of an alignment; `error_redaction` selects the part of an error that leaves the host."""
    session = _session_of(message)
    request = from_records(message.content, session)
    stage = stage_of(request)
    deployed = Node.of(context.node_config).deployed
    target = None
    try:
        party = _party(request, context)
        if not party:
            return Message(to_records(frame(stage, request.step, {SPARE_FIELD: True}), session), reply_to=message)
        owner = Owner.of_node(context.node_config) if deployed else _simulated(request, config, party)
        target = owner.target
        if stage is AlignmentStage.ABORT:
            _log.warning("the label party ended the alignment: %s", printable(request.text("reason"), 500))
            discard_session(target, session)
            reply = frame(stage)
        elif stage is AlignmentStage.HELLO:
            terms = _terms(request, session, party, owner)
            _, reply = FeatureSide.begin(owner.source, target, terms, processes=config.align.processes)
        else:
            side = FeatureSide.resume(target, session, processes=config.align.processes)
            reply = side.answer(stage, request)
    except Exception as error:
        if target is not None:
            discard_session(target, session)
        if not deployed or isinstance(error, FlowerVflError):
            raise
        # The text of an unknown error may hold IDs, which must not be logged; its places in the code hold none.
        raise FlowerVflError(type(error).__name__ + _code_places(error)) from None
    return Message(to_records(reply, session), reply_to=message)


def _session_of(message: Message) -> str:
    header = message.content.config_records.get("header")
    session = str(header.get("session")) if header is not None else ""
    if not re.fullmatch(SESSION, session):
        raise ProtocolError("the message belongs to no alignment; is the ServerApp flower-vfl's, of this version?")
    return session


def _party(request: Frame, context: Context) -> str:
    """Return the party of this node, "" for a spare one; a node whose owner named its party is deployed."""
    names, node = _names(request), Node.of(context.node_config)
    if node.deployed:
        return node.party if node.party in names else ""
    return node.simulated_as(names, offered=request.fields.get("simulation") is True)


def _names(request: Frame) -> tuple[str, ...]:
    try:
        names = json.loads(request.text("parties"))
        return tuple(check_party_name(name) for name in names)
    except (ValueError, TypeError, RecursionError, DataError):
        raise ProtocolError("the parties of an alignment are a list of names") from None


def _simulated(request: Frame, config: Config, party: str) -> Owner:
    """Return the IDs and limits of a simulated party: the run config names the files of all parties."""
    _, sources = id_sources(Path(config.data.path) if config.data.path else None, config.data.options)
    if party not in sources:
        raise ConfigError(f"data.options.files names no file of party {party!r}")
    return Owner(sources[party], Path(request.text("out")) / party / ALIGNMENT_RESULT, config.align.method)


def _terms(request: Frame, session: str, party: str, owner: Owner) -> Terms:
    """Return the terms that the label party proposes; refuse terms that this host's owner does not allow."""
    words = refusal(request.fields, "the label party's host", asking=f"the host of party {party!r}")
    if words:
        raise ProtocolError(f"{words}, then start its SuperNode or SuperLink again")
    method, label_ids, piece = request.text("method"), request.integer("ids"), request.integer("piece")
    names = _names(request)
    if method not in METHODS or label_ids < 1 or piece < 1 or len(set(names)) != len(names):
        raise ProtocolError("the label party proposes an alignment that cannot be")
    if method != owner.method:
        raise ProtocolError(
            f"this host agrees to an alignment by {owner.method!r} only (align-method), not by {method!r}"
        )
    if label_ids > owner.max_ids:
        raise ProtocolError(
            f"the label party wants to compare {label_ids} IDs; this host allows {owner.max_ids} (align-max-ids)"
        )
    label_party = check_party_name(request.text("label_party"))
    return Terms(session, party, label_party, names, method, label_ids, piece)


def _code_places(error: Exception) -> str:
    return "".join(f"\n  {entry.filename}:{entry.lineno} {entry.name}" for entry in extract_tb(error.__traceback__))
