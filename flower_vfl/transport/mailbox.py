"""Flower messages in flight: they are pushed without waiting, and replies are collected as they arrive."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator

from flwr.app import Message, RecordDict
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid

from flower_vfl.errors import FolderInUseError, OutputExistsError, PartyError, SessionError, UnreachableError
from flower_vfl.protocol.printable import printable

_log = logging.getLogger(__name__)

TTL = 30 * 24 * 3600.0
"""Lifetime of a message in seconds: a long training must not outlast it (Flower's default is 12 hours)."""

LONGEST_PAUSE = 0.25
"""Longest pause in seconds between two polls for replies."""

_FLOWER_PREFIX = "Exception ClientAppException occurred. Message: "
_QUOTED = re.compile(r"<class '(?:\w+\.)*(?P<kind>\w+)'>:<'(?P<words>.*)'>", re.DOTALL)
_TEMPORARY = {kind.__name__ for kind in (FolderInUseError, OutputExistsError, SessionError, UnreachableError)}


class Mailbox:
    """The messages in flight, at most one for each node: in a simulation a second one could overwrite its state."""

    def __init__(self, grid: Grid) -> None:
        self._grid = grid
        self._pending: dict[str, int] = {}
        self._replies: dict[int, Message] = {}

    def nodes(self) -> dict[int, str]:
        """Return the nodes that are connected, and the name under which each is registered; empty for none."""
        return {node.node_id: node.name for node in sorted(self._grid.get_nodes(), key=lambda node: node.node_id)}

    def push(self, node: int, content: RecordDict, message_type: str) -> None:
        """Send a message to a node; SessionError when Flower does not take it."""
        message = Message(content, node, message_type, ttl=TTL)
        identifiers = list(self._grid.push_messages([message]))
        if len(identifiers) != 1:
            raise SessionError(f"Flower took no message for node {node}: has its SuperNode gone?")
        self._pending[identifiers[0]] = node

    def take(self, node: int) -> Message | None:
        """Return the reply of `node`; None if it has not arrived."""
        if self._pending:
            for reply in self._grid.pull_messages(list(self._pending)):
                sender = self._pending.pop(reply.metadata.reply_to_message_id, None)
                if sender is not None:
                    self._replies[sender] = reply
        return self._replies.pop(node, None)

    @property
    def busy(self) -> set[int]:
        """Nodes with a reply that has not arrived yet, or was not taken."""
        return set(self._pending.values()) | set(self._replies)


def poll_pauses() -> Iterator[float]:
    """Yield the pauses in seconds between polls for replies: from 1 ms they double, up to `LONGEST_PAUSE`."""
    pause = 0.001
    while True:
        yield pause
        pause = min(2 * pause, LONGEST_PAUSE)


def check_registered(node: int | str, name: str, party: str, *, simulation: bool) -> None:
    """Refuse a node that claims to be a party and is registered under another name; a missing name is logged.

    Raises
    ------
    PartyError
        When the names differ.
    """
    if name and name != party:
        raise PartyError(
            f"the node that is registered as {name!r} says that it is party {party!r}: either its --node-config is "
            "wrong or its key was registered under a wrong --name"
        )
    if not name and not simulation:
        _log.warning(
            "node %s claims to be party %r without proof: flwr supernode register KEY --name %s proves it",
            *(node, party, party),
        )


def raised(reply: Message) -> bool:
    """Return True if a node's handler ended with an error of its own; else the node or its process is gone."""
    return reply.error.code in (ErrorCode.LOAD_CLIENT_APP_EXCEPTION, ErrorCode.CLIENT_APP_RAISED_EXCEPTION)


def passes(reply: Message) -> bool:
    """Return True if a node that failed may take part after a new offer.

    It may when it has disappeared, when its connection is down, and while an earlier process uses its folder.
    """
    kind = re.match(r"(?:<class ')?(?:\w+\.)*(\w+)", reply.error.reason or "")
    return not raised(reply) or (kind is not None and kind[1] in _TEMPORARY)


def reason(reply: Message) -> str:
    """Return in one line the reason why a node failed, without the text that Flower adds."""
    text = (reply.error.reason or f"error code {reply.error.code}").strip()
    quoted = _QUOTED.fullmatch(text)
    if quoted:  # a SuperNode's form of an exception, and the simulation runtime's
        text = quoted["words"] if _FLOWER_PREFIX in quoted["words"] else f"{quoted['kind']}: {quoted['words']}"
    _, prefixed, own = text.partition(_FLOWER_PREFIX)
    lines = [line.strip() for line in (own if prefixed else text).splitlines() if line.strip()]
    if not prefixed and lines and lines[0].startswith("Traceback"):
        lines = lines[-1:]
    return printable(" ".join(lines)) if lines else "no reason given"
