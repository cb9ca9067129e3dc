"""What every handler of a ClientApp shares: the offer of a session, the exchange of frames, and the answers."""

from __future__ import annotations

import logging
import os
from pathlib import Path

from flwr.app import ConfigRecord, Context, Message, RecordDict

from flower_vfl.apps.consent import Consent
from flower_vfl.apps.error_redaction import outward_of
from flower_vfl.apps.node import Node
from flower_vfl.config import Config
from flower_vfl.errors import ProtocolError, UnreachableError
from flower_vfl.transport.base import Machine
from flower_vfl.transport.dialling import attend
from flower_vfl.transport.inproc import InprocEndpoint
from flower_vfl.transport.messages import bundle
from flower_vfl.transport.sessions import OFFER, OPEN, REPLY

_log = logging.getLogger(__name__)

STATE_FOLDER_VARIABLE = "FLOWER_VFL_STATE"


def state_folder() -> Path:
    """Return the folder of this host in which parties keep what belongs to them, where their owner names no other."""
    root = os.environ.get(STATE_FOLDER_VARIABLE) or os.environ.get("XDG_STATE_HOME")
    return (Path(root) if root else Path.home() / ".local" / "state") / "flower-vfl"


def consent_of(context: Context) -> Consent | None:
    """Return the limits that the owner of a deployed node sets; None for a simulated node, which has no owner."""
    node = Node.of(context.node_config)
    return Consent.of(context.node_config, node.party) if node.deployed else None


def offer_of(content: RecordDict) -> ConfigRecord:
    """Return the offer of a session that a Flower message carries.

    Raises
    ------
    ProtocolError
        When it carries none.
    """
    offer = content.config_records.get(OFFER)
    if offer is None or offer.get("kind") not in ("inproc", "stream", "messages") or "session" not in offer:
        raise ProtocolError("the message offers no session; is the ServerApp flower-vfl's, of this version?")
    return offer


def attend_session(
    message: Message, context: Context, offer: ConfigRecord, machine: Machine, config: Config
) -> str | None:
    """Exchange the frames of a session until it ends.

    Returns
    -------
    str or None
        None when the session has ended. Otherwise its frames have to ride in Flower's own messages; the string says
        why, and is empty where the offer asks for them.

    Raises
    ------
    UnreachableError
        When the label party cannot be reached, and the offer allows no other way.
    """
    session = str(offer["session"])
    if offer["kind"] == "messages":
        return ""
    if offer["kind"] == "inproc":
        InprocEndpoint.attend(session, machine)
        return None
    wait = config.transport.connect_timeout / 2  # half the time, so that the label party still hears why it failed
    reconnect, outward = config.transport.reconnect_timeout, outward_of(message, context)
    try:
        attend(offer, session, machine, timeout=wait, reconnect=reconnect, outward=outward)
    except UnreachableError as error:
        if offer.get("fallback") != "messages":
            raise
        _log.warning("%s. Frames ride in Flower's own messages instead, which is slow", error)
        return str(error)
    return None


def greeting(message: Message, offer: ConfigRecord, machine: Machine, party: str, why: str) -> Message:
    """Greet in the answer to the offer: all frames follow in Flower messages."""
    content = bundle([machine.hello()], str(offer["session"]), str(offer["wire-dtype"]))
    content[REPLY] = ConfigRecord({"status": OPEN, "party": party, "reason": why})
    return Message(content, reply_to=message)


def reply(message: Message, status: str, why: str = "") -> Message:
    """Answer an offer with a status, and the reason for it."""
    return Message(RecordDict({REPLY: ConfigRecord({"status": status, "reason": why})}), reply_to=message)


def lost_session() -> ProtocolError:
    """Return the error of frames whose session this node does not know."""
    return ProtocolError(
        "frames came before an offer, or this SuperNode was started again and has lost its session: start the run again"
    )
