"""A Flower `Grid` within one process: the same ServerApp and ClientApp run without a SuperLink."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Self

from flwr.app import Context, Error, Message, Metadata, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid, ServerApp
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity  # `Message(...)` reads it; Flower's runtimes set it the same way

from flower_vfl.apps.node import STEPPED
from flower_vfl.errors import InputError, PartyError
from flower_vfl.protocol.printable import words_of

_RUN_ID = 1
_SERVER_NODE = 1
_JOIN_SECONDS = 10.0


class LocalGrid(Grid):
    """A grid that runs a handler in a thread of its own for each message; node i is the simulation's partition i.

    As a context manager it waits at the end for the handlers that still run. Where a `PartyError` ends it and a handler
    has failed with an `InputError`, the latter is raised: it is the cause, without the name of the reporting party.

    Parameters
    ----------
    client_app : ClientApp
        The app of every node.
    nodes : int
        Number of nodes.
    run_config : Mapping[str, str | int | float | bool]
        Flower's flat run config.
    """

    simulation = True
    """All parties are in this process."""

    def __init__(self, client_app: ClientApp, nodes: int, run_config: Mapping[str, str | int | float | bool]) -> None:
        self._client_app, self._run_config = client_app, dict(run_config)
        self._contexts = {
            _SERVER_NODE + 1 + index: Context(
                run_id=_RUN_ID,
                node_id=_SERVER_NODE + 1 + index,
                node_config={"partition-id": index, "num-partitions": nodes},
                state=RecordDict(),
                run_config=dict(run_config),
            )
            for index in range(nodes)
        }
        self.failures: list[Exception] = []
        self._replies: dict[str, Message] = {}
        self._threads: list[threading.Thread] = []
        self._run = Run.create_empty(_RUN_ID)
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = _RUN_ID, _SERVER_NODE, 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        of_party = isinstance(error, PartyError)
        cause = next((failure for failure in self.failures if of_party and isinstance(failure, InputError)), None)
        self.join(_JOIN_SECONDS)
        if cause is not None:
            raise cause from None
        if error is not None and of_party and self.failures:
            error.__cause__ = self.failures[0]

    def serve(self, server: ServerApp) -> None:
        """Run the label party's app to its end."""
        state, run_config = RecordDict(), dict(self._run_config)
        server(self, Context(_RUN_ID, _SERVER_NODE, node_config={}, state=state, run_config=run_config))

    @property
    def run(self) -> Run:
        """The run."""
        return self._run

    def set_run(self, run: Run) -> None:
        """Set the run."""
        self._run = run

    def create_message(
        self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None
    ) -> Message:
        """Create a message."""
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> Iterable[int]:
        """Return the ids of the nodes."""
        return list(self._contexts)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Start a handler for each message."""
        ids = []
        for message in messages:
            identified = _with_id(message)
            ids.append(identified.metadata.message_id)
            thread = threading.Thread(target=self._handle, args=(identified,), daemon=True)
            self._threads.append(thread)
            thread.start()
        return ids

    def _handle(self, message: Message) -> None:
        STEPPED.set(self.simulation)  # in this thread alone
        try:
            reply = self._client_app(message, self._contexts[message.metadata.dst_node_id])
        except Exception as error:  # noqa: BLE001 - whatever a handler raises becomes its error reply, as in Flower
            self.failures.append(error)
            reply = Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, words_of(error)), reply_to=message)
        self._replies[message.metadata.message_id] = reply

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Return the replies that have arrived."""
        return [self._replies.pop(message_id) for message_id in list(message_ids) if message_id in self._replies]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """Push messages and wait for their replies."""
        pending = set(self.push_messages(messages))
        deadline = None if timeout is None else time.monotonic() + timeout
        replies: list[Message] = []
        while pending and (deadline is None or time.monotonic() < deadline):
            for reply in self.pull_messages(pending):
                pending.discard(reply.metadata.reply_to_message_id)
                replies.append(reply)
            time.sleep(0.001)
        return replies

    def join(self, timeout: float) -> None:
        """Wait until the handlers have returned, for `timeout` seconds at most."""
        deadline = time.monotonic() + timeout
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))


def _with_id(message: Message) -> Message:
    """Return the message with an id, which Flower's SuperLink would give it."""
    old = message.metadata
    metadata = Metadata(
        run_id=old.run_id,
        message_id=uuid.uuid4().hex,
        src_node_id=old.src_node_id,
        dst_node_id=old.dst_node_id,
        reply_to_message_id="",
        group_id=old.group_id,
        created_at=old.created_at,
        ttl=old.ttl,
        message_type=old.message_type,
    )
    identified: Message = Message(content=message.content, metadata=metadata)  # type: ignore[call-overload]
    return identified
