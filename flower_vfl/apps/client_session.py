"""Shared parts of the handlers of a ClientApp: the offer of a session, the consent of the owner, and the answers."""

from __future__ import annotations

import os
from pathlib import Path

from flwr.app import ConfigRecord, Context, Message, RecordDict

from flower_vfl.apps.consent import Consent
from flower_vfl.apps.node import Node
from flower_vfl.errors import ProtocolError
from flower_vfl.transport.base import Machine
from flower_vfl.transport.messages import bundle
from flower_vfl.transport.sessions import OFFER, OPEN, REPLY

STATE_FOLDER_VARIABLE = "FLOWER_VFL_STATE"


def state_folder() -> Path:
    """Return the folder of this host for the parties' files, where their owner names no other."""
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


def greeting(message: Message, offer: ConfigRecord, machine: Machine, party: str, why: str) -> Message:
    """Return the answer to an offer with the party's greeting; all other frames follow in Flower messages."""
    content = bundle([machine.hello()], str(offer["session"]), str(offer["wire-dtype"]))
    content[REPLY] = ConfigRecord({"status": OPEN, "party": party, "reason": why})
    return Message(content, reply_to=message)


def reply(message: Message, status: str, why: str = "") -> Message:
    """Return the answer to an offer with a status, and the reason for it."""
    return Message(RecordDict({REPLY: ConfigRecord({"status": status, "reason": why})}), reply_to=message)


def lost_session() -> ProtocolError:
    """Return the error of frames of a session that this node does not know."""
    return ProtocolError(
        "frames came before an offer, or this SuperNode was started again and has lost its session: start the run again"
    )
