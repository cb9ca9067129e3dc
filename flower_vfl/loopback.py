"""An HTTP server for programs of this host, which no slow client keeps from answering others or from ending."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

LOOPBACK = "127.0.0.1"
NAMES = (LOOPBACK, "localhost")
"""Names of this host in the address of a page."""

REQUEST_SECONDS = 20.0
"""Seconds from the arrival of a request to the end of its answer; then its connection is closed."""

MOST_REQUESTS = 16
"""Number of requests that are answered at once; another one closes the oldest of them."""


class LoopbackServer(ThreadingHTTPServer):
    """An HTTP server at `LOOPBACK` whose requests have a deadline.

    A timeout of the socket would not do: it begins again with each byte that a client sends.

    Parameters
    ----------
    port : int
        Port; 0 for a free one.
    handler : type
        Class that answers a request.

    Raises
    ------
    OSError
        When the port is in use, or not this user's.
    """

    daemon_threads = True
    request_queue_size = MOST_REQUESTS

    def __init__(self, port: int, handler: type[BaseHTTPRequestHandler]) -> None:
        self._open: dict[socket.socket, None] = {}
        self._lock = threading.Lock()
        super().__init__((LOOPBACK, port), handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer a request in a thread of its own; of too many, end the oldest."""
        with self._lock:
            oldest = next(iter(self._open)) if len(self._open) >= MOST_REQUESTS else None
            self._open.pop(oldest, None) if oldest else None
            self._open[request] = None
        if oldest is not None:
            _end(oldest)
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer a request until its deadline."""
        deadline = threading.Timer(REQUEST_SECONDS, _end, [request])
        deadline.daemon = True
        try:
            deadline.start()
            super().process_request_thread(request, client_address)
        finally:
            deadline.cancel()
            with self._lock:
                self._open.pop(request, None)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore the error of a client that has disconnected, or was."""


def _end(connection: socket.socket) -> None:
    """Let the thread that reads or writes the connection end."""
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
