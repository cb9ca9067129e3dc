"""A grid with each party in a process of its own, so that one can be killed: SuperNodes without Flower.

The fork server is a process without threads that has imported everything. It forks a process for each message that a
node gets, as a SuperNode starts one; a death without an answer is reported as Flower does it.
"""

from __future__ import annotations

import faulthandler
import os
import pickle
import socketserver
import struct
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from socket import AF_UNIX, SOCK_STREAM, socket

from flwr.app import Context, Error, Message
from flwr.common.constant import ErrorCode
from flwr.supercore.task_identity import TaskIdentity

from flower_vfl.apps.client_app import make_client_app
from flower_vfl.apps.local_grid import LocalGrid
from flower_vfl.apps.node import STEPPED
from flower_vfl.config import Config
from flower_vfl.data.store.memory import VerticalData
from tests.faults.injection import inject_faults

SECONDS = 900
"""Limit of a process's time; one that takes longer writes its stack and ends."""

_LENGTH = struct.Struct(">Q")


@dataclass(frozen=True)
class Case:
    """A run of the campaign."""

    config: Config
    plan: Path
    out: Path
    parties: tuple[str, ...] = ("a", "b")


def fork(log: Path, work: Callable[[], None]) -> int:
    """Call `work` in a forked process whose output goes to a file; return its id."""
    child = os.fork()
    if child:
        return child
    with log.open("ab", buffering=0) as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    faulthandler.dump_traceback_later(SECONDS, exit=True)
    code = 1
    try:
        work()
        code = 0
    except BaseException:  # noqa: BLE001 - any error ends the process here
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


class _Server(socketserver.ForkingMixIn, socketserver.UnixStreamServer):
    """Forks a process for each request."""

    request_queue_size = 64
    max_children = 256
    data: VerticalData


class _Handler(socketserver.BaseRequestHandler):
    server: _Server

    def handle(self) -> None:
        """Answer one Flower message as a party's process."""
        case, node, message, context = _receive(self.request)
        with (case.plan / f"{node}.log").open("ab", buffering=0) as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        faulthandler.dump_traceback_later(SECONDS, exit=True)
        os.environ["FLOWER_VFL_STATE"] = str(case.plan / "state")
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 0
        STEPPED.set(True)  # all of it is a simulation
        inject_faults(case.plan, (node,), [])
        try:
            app = make_client_app(config=case.config, data=lambda _: self.server.data)
            answer = app(message, context), context
        except Exception as error:  # noqa: BLE001 - it becomes an answer, as in Flower
            traceback.print_exc()
            failure = Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, f"{type(error).__name__}: {error}")
            answer = Message(failure, reply_to=message), context
        _send(self.request, answer)


def start_fork_server(path: str, data: VerticalData, log: Path) -> int:
    """Start the process that forks parties; return its id."""

    def serve() -> None:
        faulthandler.cancel_dump_traceback_later()
        with _Server(path, _Handler) as server:
            server.data = data
            server.serve_forever()

    return fork(log, serve)


class ProcessGrid(LocalGrid):
    """A grid in the label party's process whose nodes are processes of the fork server."""

    def __init__(self, case: Case, fork_server: str, run_config: dict[str, str | int | float | bool]) -> None:
        super().__init__(lambda *_: None, len(case.parties), run_config)
        self._case, self._fork_server = case, fork_server

    def _handle(self, message: Message) -> None:
        node = message.metadata.dst_node_id
        party = self._case.parties[list(self._contexts).index(node)]
        with socket(AF_UNIX, SOCK_STREAM) as connection:
            connection.connect(self._fork_server)
            _send(connection, (self._case, party, message, self._contexts[node]))
            try:
                reply, self._contexts[node] = _receive(connection)
            except (EOFError, OSError):
                reply = Message(Error(ErrorCode.CLIENT_APP_CRASHED, "its process died"), reply_to=message)
        self._replies[message.metadata.message_id] = reply


def _send(connection: socket, value: object) -> None:
    data = pickle.dumps(value)
    connection.sendall(_LENGTH.pack(len(data)) + data)


def _receive(connection: socket) -> tuple[Case, str, Message, Context]:
    file = connection.makefile("rb")
    length = file.read(_LENGTH.size)
    if len(length) < _LENGTH.size:
        raise EOFError
    return pickle.loads(file.read(_LENGTH.unpack(length)[0]))
