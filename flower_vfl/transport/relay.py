"""The process in front of the session port: it forwards connections that show a mark of this run, and no others.

It is started as a script (``python -I -S relay.py``) and imports the standard library alone. Each connection of
an unknown client takes one file handle of this process and none of the run's. A party shows its mark in the first
message of the TLS handshake, as the server name that it asks for. Bytes are forwarded unchanged: TLS ends at the
endpoint.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import resource
import selectors
import shutil
import signal
import socket
import ssl
import sys
import threading
import time

STRANGERS = 512
"""Connections that may wait at a time without having shown a mark."""

MARKED = 8
"""Connections with the same mark that may wait at a time for their admission."""

_MARK_SECONDS = 5.0  # a party sends at once; so long a first message that was lost may be on its way again
_ADMISSION_SECONDS = 20.0  # the endpoint allows 3 s for a handshake and 10 s for a greeting
_CLOSING_SECONDS = 5.0
_DEAD_MILLISECONDS = 60_000  # of bytes without acknowledgement; gRPC's own pings detect a dead line before
_SWEEP_SECONDS = 0.5
_REPORT_SECONDS = 10.0
_HELLO_BYTES = 16_384 + 5  # a TLS record
_BUFFER_BYTES = 2**18
_ACCEPTED_AT_ONCE = 64  # then bytes of the parties come first again
_MOST_HANDLES = 65_536
_OWN_HANDLES = 64
_DIRECTIONS = 2
_ENDING = threading.Lock()


def raise_handles() -> int:
    """Raise this process's soft limit of file handles as far as its hard limit allows, and return it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _MOST_HANDLES if hard == resource.RLIM_INFINITY else min(hard, _MOST_HANDLES)
    if soft != resource.RLIM_INFINITY and soft < most:
        with contextlib.suppress(OSError, ValueError):  # a sandbox may forbid it; then the limit stays
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return _MOST_HANDLES if soft == resource.RLIM_INFINITY else soft


class Connection:
    """One TCP connection; `backend` is its socket to the endpoint, once it has shown a mark."""

    def __init__(self, client: socket.socket, address: str) -> None:
        self.client, self.address = client, address
        self.backend: socket.socket | None = None
        self.mark, self.name = "", ""
        self.head = bytearray()
        self.greeting: Greeting | None = None
        self.places: WaitingConnections | None = None
        self.until = time.monotonic() + _MARK_SECONDS
        self.ended = 0
        """Number of its two directions that have ended."""

    def halves(self) -> list[socket.socket]:
        """Return its sockets."""
        return [self.client] if self.backend is None else [self.client, self.backend]

    def shut(self) -> None:
        """End it in both directions, also while a thread waits for its bytes."""
        for half in self.halves():
            with contextlib.suppress(OSError):
                half.shutdown(socket.SHUT_RDWR)


class _Hello(ssl.SSLObject):
    """A handshake that ends as soon as the client's first message has been read."""

    asked_for: str | None = None


def _keep_server_name(hello: ssl.SSLObject, name: str | None, _: ssl.SSLContext) -> int:
    """Keep the server name that a client asks for, and end the handshake before anything is computed."""
    hello.asked_for = name  # type: ignore[attr-defined]
    return ssl.AlertDescription.ALERT_DESCRIPTION_UNRECOGNIZED_NAME


def _context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.sslobject_class = _Hello
    context.sni_callback = _keep_server_name
    return context


_CONTEXT = _context()


class Greeting:
    """The first message of a TLS client, parsed by OpenSSL; no answer is sent."""

    def __init__(self) -> None:
        self._incoming = ssl.MemoryBIO()
        self._hello = _CONTEXT.wrap_bio(self._incoming, ssl.MemoryBIO(), server_side=True)

    def read(self, data: bytes) -> str | None:
        """Take more bytes; return the server name that is asked for, None while the message is not complete.

        Raises
        ------
        ValueError
            When it is no such message, or asks for no name.
        """
        self._incoming.write(data)
        try:
            self._hello.do_handshake()
        except ssl.SSLWantReadError:
            return None
        except ssl.SSLError:
            name: str | None = self._hello.asked_for  # type: ignore[attr-defined]
            if name:
                return name
        raise ValueError("no greeting with a server name")


class WaitingConnections:
    """A bounded set of waiting connections; above the bound, the oldest one of the busiest address is to be closed."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._waiting: dict[Connection, None] = {}
        self._by_address: dict[str, dict[Connection, None]] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, connection: Connection) -> Connection | None:
        """Add a connection; return the one to close for it, if there are too many."""
        connection.places = self
        self._waiting[connection] = None
        self._by_address.setdefault(connection.address, {})[connection] = None
        return self.worst() if len(self._waiting) > self._most else None

    def worst(self) -> Connection | None:
        """Return the oldest connection of the address with the most connections."""
        if not self._waiting:
            return None
        busiest = max(self._by_address.values(), key=len)
        return next(iter(busiest))

    def remove(self, connection: Connection) -> None:
        """Remove a connection that waits no longer."""
        connection.places = None
        del self._waiting[connection]
        same = self._by_address[connection.address]
        del same[connection]
        if not same:
            del self._by_address[connection.address]


class Relay:
    """Accepts connections, and forwards bytes between the endpoint and those that have shown a mark.

    Parameters
    ----------
    control : socket.socket
        Commands from the run's process: ``let MARK``, ``admit NAME``, one a line. When it ends, so does the relay.
    listeners : list[socket.socket]
        Listening sockets of the session port.
    folder : str
        Folder of the endpoint's socket; the socket of each connection to it is bound to a name there, under which the
        connection is admitted.
    """

    def __init__(self, control: socket.socket, listeners: list[socket.socket], folder: str) -> None:
        self._control, self._listeners, self._folder = control, listeners, folder
        self._selector = selectors.DefaultSelector()
        for sock in (control, *listeners):
            sock.setblocking(False)
            self._selector.register(sock, selectors.EVENT_READ, sock)
        self._strangers = WaitingConnections(max(16, min(STRANGERS, (raise_handles() - _OWN_HANDLES) // 2)))
        self._marked: dict[str, WaitingConnections] = {}
        self._named: dict[str, Connection] = {}
        self._admitted: dict[str, Connection] = {}
        self._connections: set[Connection] = set()
        self._lines = b""
        self._count = 0
        self._parent = os.getppid()
        self._closed: dict[str, int] = {}
        self._swept = self._reported = time.monotonic()
        self._ending = 0.0

    def run(self) -> None:
        """Serve until the run's process closes the control line or dies."""
        self._send_status({"ready": True})
        while not self._has_ended():
            events = self._selector.select(_SWEEP_SECONDS / 10 if self._ending else _SWEEP_SECONDS)
            newcomers: list[socket.socket] = []
            for key, _ in events:
                if key.fileobj is self._control:
                    self._read_control()
                elif isinstance(key.data, socket.socket):
                    newcomers.append(key.data)
                elif key.data in self._connections:
                    self._read_greeting(key.data)
            for listener in newcomers:
                self._accept(listener)
            if time.monotonic() >= self._swept + _SWEEP_SECONDS:
                self._close_expired()

    def _has_ended(self) -> bool:
        """Return whether no more bytes are to be forwarded, or the time for them is over."""
        if not self._ending:
            return False
        return not any(one.ended < _DIRECTIONS for one in self._connections) or time.monotonic() > self._ending

    def _stop_accepting(self) -> None:
        """Stop accepting connections; bytes that the endpoint has sent are still forwarded."""
        if self._ending:
            return
        self._report()
        self._ending = time.monotonic() + _CLOSING_SECONDS
        for sock in (self._control, *self._listeners):
            self._selector.unregister(sock)
            sock.close()
        for connection in [one for one in self._connections if one.backend is None]:
            self._close(connection)

    def _read_control(self) -> None:
        """Read and run the commands of the run's process."""
        while not self._ending:
            try:
                data = self._control.recv(65_536)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data:
                self._stop_accepting()
                return
            *lines, self._lines = (self._lines + data).split(b"\n")
            for line in lines:
                word, _, value = line.decode().partition(" ")
                self._run_command(word, value)

    def _run_command(self, word: str, value: str) -> None:
        """Run one command: "let" through connections with a mark, or "admit" a connection and close the one before."""
        if word == "let":
            self._marked[value] = WaitingConnections(MARKED)
        elif word == "admit" and value in self._named:
            connection = self._named[value]
            connection.until = math.inf
            if connection.places is not None:
                connection.places.remove(connection)
            before, self._admitted[connection.mark] = self._admitted.get(connection.mark), connection
            if before is not None and before is not connection:
                self._close(before)

    def _accept(self, listener: socket.socket) -> None:
        for _ in range(_ACCEPTED_AT_ONCE):
            try:
                client, peer = listener.accept()
            except BlockingIOError:
                return
            except OSError:  # no handle is left; a waiting connection is closed for it
                worst = self._strangers.worst()
                if worst is None:
                    time.sleep(0.01)
                    return
                self._close(worst, "crowded out")
                continue
            client.setblocking(False)
            with contextlib.suppress(OSError, AttributeError):  # the second option is Linux's
                client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                client.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _DEAD_MILLISECONDS)
            connection = Connection(client, address_of(peer[0]))
            self._connections.add(connection)
            self._selector.register(client, selectors.EVENT_READ, connection)
            worst = self._strangers.add(connection)
            if worst is not None:
                self._close(worst, "crowded out")

    def _read_greeting(self, connection: Connection) -> None:
        """Read bytes of an unknown client, and connect it to the endpoint when it has shown a mark."""
        try:
            mark = self._mark_of(connection)
            if mark is not None:
                self._connect(connection, mark)
        except BlockingIOError:
            return
        except (OSError, ValueError):
            self._close(connection, "without a mark")

    def _mark_of(self, connection: Connection) -> str | None:
        """Return the mark that an unknown client shows, None while its first message is not complete."""
        data = connection.client.recv(_HELLO_BYTES)
        connection.head += data
        if not data or len(connection.head) > _HELLO_BYTES:
            raise ValueError("no greeting")
        connection.greeting = connection.greeting or Greeting()
        name = connection.greeting.read(data)
        if name is None:
            return None
        mark = name.partition(".")[0]
        if mark not in self._marked:
            self._read_control()  # the command for it may have just arrived
        if mark not in self._marked:
            raise ValueError("no mark of this run")
        return mark

    def _connect(self, connection: Connection, mark: str) -> None:
        """Open the socket of a connection to the endpoint, and start two threads that forward bytes."""
        self._count += 1
        name = f"{self._count}"
        own = f"{self._folder}/{name}"
        backend = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            backend.bind(own)
            os.unlink(own)
            backend.setblocking(False)
            backend.connect(f"{self._folder}/endpoint")
        except OSError:
            backend.close()
            raise
        self._selector.unregister(connection.client)
        if connection.places is not None:
            connection.places.remove(connection)
        connection.backend, connection.mark, connection.name, connection.greeting = backend, mark, name, None
        connection.until = time.monotonic() + _ADMISSION_SECONDS
        self._named[name] = connection
        worst = self._marked[mark].add(connection)
        if worst is not None:
            self._close(worst, "too many with one mark")
        for half in connection.halves():
            half.setblocking(True)
        head, connection.head = bytes(connection.head), bytearray()
        for way in ((connection.client, backend, head), (backend, connection.client, b"")):
            try:
                threading.Thread(target=_forward, args=(connection, *way), daemon=True).start()
            except RuntimeError:  # no thread can be started; the party dials again
                connection.ended += 1
                connection.shut()

    def _close(self, connection: Connection, why: str = "") -> None:
        """Close a connection; if threads forward its bytes, `_close_expired` frees it once they have ended."""
        if connection.places is not None:
            connection.places.remove(connection)
            if why:
                self._closed[why] = self._closed.get(why, 0) + 1
        if connection.backend is not None:
            connection.shut()
        elif connection in self._connections:
            self._connections.remove(connection)
            self._selector.unregister(connection.client)
            connection.client.close()

    def _free(self, connection: Connection) -> None:
        """Free the sockets and the entries of an ended connection."""
        self._close(connection)
        self._connections.remove(connection)
        del self._named[connection.name]
        if self._admitted.get(connection.mark) is connection:
            del self._admitted[connection.mark]
        for half in connection.halves():
            half.close()

    def _close_expired(self) -> None:
        """Close connections that wait for too long, and report closed connections at intervals."""
        self._swept = now = time.monotonic()
        if os.getppid() != self._parent:
            self._stop_accepting()
        for connection in list(self._connections):
            if connection.ended == _DIRECTIONS:
                self._free(connection)
            elif connection.until < now:
                self._close(connection, "not admitted" if connection.backend else "silent")
        if now >= self._reported + _REPORT_SECONDS:
            self._reported = now
            self._report()

    def _report(self) -> None:
        """Send the number of connections of unknown clients that were closed since the last report."""
        if self._closed:
            self._send_status({"closed": self._closed})
            self._closed = {}

    def _send_status(self, status: dict[str, object]) -> None:
        """Send a status to the run's process, one line of JSON."""
        if not self._ending:
            with contextlib.suppress(OSError):  # a run that does not read it misses it
                self._control.send(json.dumps(status).encode() + b"\n")


def _forward(connection: Connection, source: socket.socket, target: socket.socket, head: bytes) -> None:
    """Forward the bytes of one direction until its source ends or its target accepts no more.

    The other direction goes on until its own end: the last bytes of an endpoint that has closed must not be lost
    because the party was still sending.
    """
    buffer = memoryview(bytearray(_BUFFER_BYTES))
    with contextlib.suppress(OSError):
        target.sendall(head)
        while count := source.recv_into(buffer):
            target.sendall(buffer[:count])
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_WR)
    with contextlib.suppress(OSError):  # bytes that nobody read would reset the connection when it is closed
        while source.recv_into(buffer):
            continue
    with _ENDING:
        connection.ended += 1


def address_of(host: str) -> str:
    """Return the part of a host that counts as one address: all of IPv4, the network of 64 bits of IPv6."""
    host = host.partition("%")[0]
    if host.startswith("::ffff:") and "." in host:
        return host[len("::ffff:") :]
    if ":" not in host:
        return host
    return socket.inet_pton(socket.AF_INET6, host)[:8].hex()


def main() -> None:
    """Serve with the folder and the listening sockets' handles of the command line."""
    folder = sys.argv[1]
    listeners = [socket.socket(fileno=int(handle)) for handle in sys.argv[2].split(",")]
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # it ends with the run, whose last bytes it forwards
    sys.unraisablehook = lambda _: None  # a client's name that is no text must not fill the log
    sys.setswitchinterval(0.0005)  # a flood must not keep the threads that forward bytes from running
    Relay(socket.socket(fileno=0), listeners, folder).run()
    shutil.rmtree(folder, ignore_errors=True)  # not after an error: then another relay takes this one's place


if __name__ == "__main__":
    main()
