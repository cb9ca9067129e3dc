"""A link of a chosen delay and rate: a proxy that delays bytes, for benchmarks where the kernel has no `netem`.

It listens on another loopback address with the same port as the session endpoint, so that a run reaches it by
`transport.advertise`. Delay and rate are those of the link; TCP itself runs over loopback on both sides of it, so that
loss and slow start are not shown.
"""

from __future__ import annotations

import contextlib
import queue
import socket
import threading
import time
from collections.abc import Iterator

ADDRESS = "127.0.0.2"
"""Address of the proxy; the endpoint is at 127.0.0.1."""

_CHUNK = 16_384
_BUFFER = 4 * 2**20
_Piece = tuple[float, bytes]


def free_port() -> int:
    """Return a port that is free on both addresses."""
    with socket.create_server((ADDRESS, 0)) as probe:
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def slow_link(port: int, *, round_trip: float = 0.0, megabits: float = 0.0) -> Iterator[None]:
    """Pass connections to `ADDRESS`:`port` on to 127.0.0.1:`port`.

    Parameters
    ----------
    port : int
        Port of both.
    round_trip : float
        Seconds that a byte takes there and back.
    megabits : float
        Mbit/s of each direction; 0 for no limit.
    """
    rate = megabits * 1e6 / 8
    with socket.create_server((ADDRESS, port)) as server:
        threading.Thread(target=_accept, args=(server, port, round_trip / 2, rate), daemon=True).start()
        yield


def _accept(server: socket.socket, port: int, delay: float, rate: float) -> None:
    with contextlib.suppress(OSError):  # closed
        while True:
            near, _ = server.accept()
            far = socket.create_connection(("127.0.0.1", port))
            for source, target in ((near, far), (far, near)):
                source.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                # As much as a link of this length holds, and no more: what is sent faster must wait at the sender.
                pieces: queue.Queue[_Piece] = queue.Queue(max(4, int((rate * 2 * delay or _BUFFER) // _CHUNK) + 4))
                threading.Thread(target=_receive, args=(source, pieces, delay, rate), daemon=True).start()
                threading.Thread(target=_deliver, args=(target, pieces), daemon=True).start()


def _receive(source: socket.socket, pieces: queue.Queue[_Piece], delay: float, rate: float) -> None:
    """Read bytes at the rate of the link, and queue each piece with its time of arrival."""
    free = 0.0
    data = b"-"
    while data:
        try:
            data = source.recv(_CHUNK)
        except OSError:
            data = b""
        now = time.monotonic()
        free = max(free, now) + (len(data) / rate if rate else 0.0)
        pieces.put((free + delay, data))
        if free - now > 0.002:  # shorter sleeps are late by as much
            time.sleep(free - now)


def _deliver(target: socket.socket, pieces: queue.Queue[_Piece]) -> None:
    """Send each piece at its time of arrival."""
    while True:
        arrival, data = pieces.get()
        time.sleep(max(0.0, arrival - time.monotonic()))
        try:
            if not data:
                target.shutdown(socket.SHUT_WR)
                return
            target.sendall(data)
        except OSError:
            return
