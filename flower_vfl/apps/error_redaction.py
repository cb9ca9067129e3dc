"""What a feature party on a host of its own says when it fails: the one place that decides what of it leaves the host.

Whatever a handler raises becomes Flower's error reply, and a frame of a session may say it too. Both reach the label
party, and its log everybody who reads that at the SuperLink. An error may quote a path, a value of a row or what a
library says of one. So its own words leave the host only where they are about what the label party did, what the owner
does not allow, how the node is set up, or the line between both hosts. Of anything else no more leaves than that it
went wrong. The host's own log has all of it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from flwr.app import Context, Message
from flwr.clientapp.typing import ClientAppCallable

from flower_vfl.apps.flower_log import log_as_flower_does
from flower_vfl.apps.node import in_simulation
from flower_vfl.errors import OutputExistsError, PermissionDeniedError, ProtocolError, SessionError, WithheldError
from flower_vfl.files import keep_private
from flower_vfl.protocol.printable import words_of

_log = logging.getLogger(__name__)

Outward = Callable[[Exception], Exception]
"""Returns what of an error may leave this host."""

_TOLD = (ProtocolError, PermissionDeniedError, SessionError, WithheldError)


def discreet(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
    """Answer a message, and fail with no other words than may leave this host (a mod of Flower's ClientApp)."""
    if not in_simulation():
        keep_private()
    outward = outward_of(message, context)
    try:
        return call_next(message, context)
    except Exception as error:
        told = outward(error)
        if told is error:
            raise
        raise told from None


def outward_of(message: Message, context: Context) -> Outward:
    """Return what decides which errors of a handler leave this host; in a simulation there is no host to leave."""
    party = str(context.node_config.get("party", ""))
    if not party and in_simulation():
        return lambda error: error
    log_as_flower_does()  # its owner must see what is not told
    who = f"party {party!r}" if party else "a node that names no party"
    what = f"{who} could not take part in the {_job(message)}"

    def outward(error: Exception) -> Exception:
        if isinstance(error, _TOLD):
            return error
        _log.error("%s: %s", what, words_of(error), exc_info=error)
        kind = OutputExistsError if isinstance(error, OutputExistsError) else WithheldError  # it may come back
        return kind(f"{what}; the log of its host says why")

    return outward


def _job(message: Message) -> str:
    kind, _, action = message.metadata.message_type.partition(".")
    return "alignment" if action == "align" else {"query": "prediction"}.get(kind, "training")
