"""Every party in a process of its own, so that one of them can be killed: SuperNodes without Flower.

A nursery is a process without threads in which everything is imported. It forks a process for each message that a node
gets, as a SuperNode starts one; who dies without an answer is reported as Flower does it.
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
from tests.faults.striking import arm

SECONDS = 900
"""A process that takes longer hangs: it writes where it stands and ends."""

_LENGTH = struct.Struct(">Q")


@dataclass(frozen=True)
class Case:
    """A run of the campaign."""

    config: Config
    plan: Path
    out: Path
    parties: tuple[str, ...] = ("a", "b")


def fork(log: Path, work: Callable[[], None]) -> int:
    """Do something in a process of its own whose words go to a file; return its id."""
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
    except BaseException:  # noqa: BLE001 - whatever it is, the process ends here
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
        """Be a party's process: take one Flower message and answer it."""
        case, node, message, context = _take(self.request)
        with (case.plan / f"{node}.log").open("ab", buffering=0) as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        faulthandler.dump_traceback_later(SECONDS, exit=True)
        os.environ["FLOWER_VFL_STATE"] = str(case.plan / "state")
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 0
        STEPPED.set(True)  # all of it is a simulation
        arm(case.plan, (node,), [])
        try:
            app = make_client_app(config=case.config, data=lambda _: self.server.data)
            answer = app(message, context), context
        except Exception as error:  # noqa: BLE001 - it becomes an answer, as in Flower
            traceback.print_exc()
            words = Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, f"{type(error).__name__}: {error}")
            answer = Message(words, reply_to=message), context
        _give(self.request, answer)


def start_nursery(path: str, data: VerticalData, log: Path) -> int:
    """Start the process that forks parties; return its id."""

    def serve() -> None:
        faulthandler.cancel_dump_traceback_later()
        with _Server(path, _Handler) as server:
            server.data = data
            server.serve_forever()

    return fork(log, serve)


class ProcessGrid(LocalGrid):
    """A grid whose nodes are the nursery's; it runs in the label party's process."""

    def __init__(self, case: Case, nursery: str, run_config: dict[str, str | int | float | bool]) -> None:
        super().__init__(lambda *_: None, len(case.parties), run_config)
        self._case, self._nursery = case, nursery

    def _handle(self, message: Message) -> None:
        node = message.metadata.dst_node_id
        party = self._case.parties[list(self._contexts).index(node)]
        with socket(AF_UNIX, SOCK_STREAM) as line:
            line.connect(self._nursery)
            _give(line, (self._case, party, message, self._contexts[node]))
            try:
                reply, self._contexts[node] = _take(line)
            except (EOFError, OSError):
                reply = Message(Error(ErrorCode.CLIENT_APP_CRASHED, "its process died"), reply_to=message)
        self._replies[message.metadata.message_id] = reply


def _give(line: socket, value: object) -> None:
    data = pickle.dumps(value)
    line.sendall(_LENGTH.pack(len(data)) + data)


def _take(line: socket) -> tuple[Case, str, Message, Context]:
    file = line.makefile("rb")
    length = file.read(_LENGTH.size)
    if len(length) < _LENGTH.size:
        raise EOFError
    return pickle.loads(file.read(_LENGTH.unpack(length)[0]))
