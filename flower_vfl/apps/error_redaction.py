"""Error redaction of a feature party on a host of its own: the one place that decides which errors leave the host.

An error of a handler becomes Flower's error reply, and a frame of a session may carry it too. Both reach the label
party, whose log can be read at the SuperLink. An error may quote a path, a value of a row or a
library's message about one. So the text of an error leaves the host only where it is about an action of the label
party, a limit of the owner, the setup of the node, or the connection between both hosts. For any other error only the
fact of the failure leaves. The host's own log has all of it.
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
"""A function that returns the part of an error that may leave this host."""

_SENT = (ProtocolError, PermissionDeniedError, SessionError, WithheldError)


def redact_errors(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
    """Answer a message, and redact errors before they leave this host (a mod of Flower's ClientApp)."""
    if not in_simulation():
        keep_private()
    outward = outward_of(message, context)
    try:
        return call_next(message, context)
    except Exception as error:
        redacted = outward(error)
        if redacted is error:
            raise
        raise redacted from None


def outward_of(message: Message, context: Context) -> Outward:
    """Return the function that redacts a handler's errors; in a simulation there is no host to leave."""
    party = str(context.node_config.get("party", ""))
    if not party and in_simulation():
        return lambda error: error
    log_as_flower_does()  # the owner must see the withheld errors
    node = f"party {party!r}" if party else "a node that names no party"
    failure = f"{node} could not take part in the {_job(message)}"

    def outward(error: Exception) -> Exception:
        if isinstance(error, _SENT):
            return error
        _log.error("%s: %s", failure, words_of(error), exc_info=error)
        kind = OutputExistsError if isinstance(error, OutputExistsError) else WithheldError  # it may try again
        return kind(f"{failure}; the log of its host says why")

    return outward


def _job(message: Message) -> str:
    kind, _, action = message.metadata.message_type.partition(".")
    return "alignment" if action == "align" else {"query": "prediction"}.get(kind, "training")
