"""The public side of a session endpoint: a listening port whose connections a process of its own accepts and screens.

Unknown clients use handles, memory and computing time of that process alone (`relay`). It is replaced when it dies; the
listening sockets stay here, and the parties dial again.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path

from flower_vfl.errors import SetupError
from flower_vfl.transport import relay

_log = logging.getLogger(__name__)

_START_SECONDS = 30.0
_END_SECONDS = 10.0
_PAUSE = 0.2
_LONGEST_PATH = 80  # of the folder; a Unix socket's name holds 104 bytes on macOS, 108 on Linux
_BACKLOG = 4096


def address_text(host: str, port: int) -> str:
    """Return an address as "host:port", with an IPv6 host in brackets."""
    return f"[{host}]:{port}" if ":" in host and not host.startswith("[") else f"{host}:{port}"


class Acceptor:
    """A listening port in front of an endpoint on a private Unix socket.

    Parameters
    ----------
    host, port : str, int
        Address on which it listens; port 0 takes a free one.

    Attributes
    ----------
    port : int
        The port on which it listens.
    target : str
        Address on which the endpoint must listen, in gRPC's notation.

    Raises
    ------
    SetupError
        When the port is in use or the address is not of this host.
    """

    def __init__(self, host: str, port: int) -> None:
        relay.raise_handles()  # the run's own files and the parties' connections
        self._listeners = _listen(host, port)
        self.port: int = self._listeners[0].getsockname()[1]
        self._folder = tempfile.mkdtemp(prefix="fvfl-")
        if len(os.fsencode(self._folder)) > _LONGEST_PATH:
            shutil.rmtree(self._folder)
            self._folder = tempfile.mkdtemp(prefix="fvfl-", dir="/tmp")
        self.target = f"unix:{self._folder}/endpoint"
        self._marks: set[str] = set()
        self._lock = threading.Lock()
        self._ready, self._closed = threading.Event(), False
        self._start()
        self._watcher = threading.Thread(target=self._supervise, name="acceptor", daemon=True)
        self._watcher.start()

    def _start(self) -> None:
        """Start the process, and send it all marks."""
        handles = [listener.fileno() for listener in self._listeners]
        command = [sys.executable, "-I", "-S", str(Path(relay.__file__)), self._folder, ",".join(map(str, handles))]
        with self._lock:
            if self._closed:
                return
            self._control, theirs = socket.socketpair()
            with theirs:
                # A session of its own: Ctrl-C is for the run, which ends the relay once its own last bytes are sent.
                self._process = subprocess.Popen(
                    command, stdin=theirs.fileno(), stdout=subprocess.DEVNULL, pass_fds=handles, start_new_session=True
                )
        for mark in sorted(self._marks):
            self._send_command("let", mark)

    def wait_ready(self) -> None:
        """Wait until the process serves.

        Raises
        ------
        SetupError
            When it does not start within 30 s.
        """
        if not self._ready.wait(_START_SECONDS):
            raise SetupError(
                f"the process that accepts connections for the session endpoint did not start: {sys.executable} must "
                "be a Python that this process may start"
            )

    def let(self, mark: str) -> None:
        """Forward connections that show this mark."""
        self._marks.add(mark)
        self._send_command("let", mark)

    def admit(self, peer: str) -> None:
        """Keep the connection that gRPC names by ``peer``, and close the earlier one with the same mark."""
        self._send_command("admit", peer.rpartition("/")[2])

    def _send_command(self, word: str, value: str) -> None:
        """Send a command to the process."""
        with self._lock, suppress(OSError):  # a process that died gets all marks when it is replaced
            self._control.sendall(f"{word} {value}\n".encode())

    def _supervise(self) -> None:
        """Read the reports of the process, and replace it when it dies."""
        while True:
            with self._control.makefile("r", encoding="utf-8") as lines, suppress(OSError):
                for line in lines:
                    self._read_status(json.loads(line))
            self._process.wait()
            if self._closed:
                return
            _log.error(
                "the process that accepts connections for the session endpoint ended with %d; another one takes its "
                "place, and the parties dial again",
                self._process.returncode,
            )
            time.sleep(_PAUSE)
            self._control.close()
            try:
                self._start()
            except OSError:
                _log.exception("it could not be started")

    def _read_status(self, status: dict[str, dict[str, int]]) -> None:
        """Log the closed connections that the process reports; its first status says that it serves."""
        self._ready.set()
        closed = status.get("closed")
        if closed:
            _log.warning(
                "connections to the session port that are no party's were closed: %s",
                ", ".join(f"{count} {why}" for why, count in sorted(closed.items())),
            )

    def close(self) -> None:
        """Free the port once all bytes for the parties are sent."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            with suppress(OSError):
                self._control.shutdown(socket.SHUT_WR)
        try:
            self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._watcher.join(_END_SECONDS)
        self._control.close()
        for listener in self._listeners:
            listener.close()
        shutil.rmtree(self._folder, ignore_errors=True)


def _listen(host: str, port: int) -> list[socket.socket]:
    """Listen on every address of a name, all at the same port."""
    listeners: list[socket.socket] = []
    try:
        found = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, _, _, _, address in found:
            at = (address[0], listeners[0].getsockname()[1] if listeners else address[1])
            with suppress(OSError):
                dual = family == socket.AF_INET6 and address[0] == "::" and socket.has_dualstack_ipv6()
                listeners.append(socket.create_server(at, family=family, backlog=_BACKLOG, dualstack_ipv6=dual))
    except (OSError, UnicodeError):
        pass
    if not listeners:
        raise SetupError(
            f"the session endpoint cannot listen on {address_text(host, port)}: the port is in use, perhaps by a run "
            "in progress (`flwr list`), or the address is not of this host; set transport.port to 0 or to a free one, "
            "transport.host to an address of this host"
        )
    return listeners
