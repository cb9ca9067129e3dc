"""A flood from a stranger's host: thousands of connections to one port, opened again when they are closed.

``python -m tests.faults.flooding 127.0.0.1:9093 --connections 10000`` floods until its standard input ends. It raises
its own limit of handles. A file with an address, as a plan's `endpoint`, is read again before new connections.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import selectors
import socket
import ssl
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

from flower_vfl.transport.relay import raise_handles

KINDS = ("silent", "garbage", "greeting")
_AT_ONCE = 200


def client_hello(name: str) -> bytes:
    """Return the first message of a TLS client that asks for a name."""
    context = ssl.create_default_context()
    outgoing = ssl.MemoryBIO()
    with contextlib.suppress(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname=name).do_handshake()
    return outgoing.read()


class Flood:
    """Connections of one attacker: some are silent, some send garbage, some a greeting with a wrong mark."""

    def __init__(self, connections: int, seed: int, sources: list[str]) -> None:
        self.most = min(connections, raise_handles() - 50)
        self._generator, self._sources = random.Random(seed), sources
        self._hello = client_hello(f"{0:032x}.label-party.flower-vfl")
        self._selector = selectors.DefaultSelector()
        self.counts: Counter[str] = Counter()
        self.open = 0

    def dial(self, target: tuple[str, int]) -> bool:
        """Open one more connection; return True if that worked."""
        sock = socket.socket()
        sock.setblocking(False)
        try:
            if self._sources:
                sock.bind((self._generator.choice(self._sources), 0))
            code = sock.connect_ex(target)
        except OSError:
            code = -1
        if code not in (0, 115):  # EINPROGRESS
            sock.close()
            return False
        self._selector.register(sock, selectors.EVENT_WRITE, self._generator.choice(KINDS))
        self.open += 1
        self.counts["dialled"] += 1
        self.counts["most open"] = max(self.counts["most open"], self.open)
        return True

    def work(self, seconds: float) -> None:
        """Send the data of new connections, and drop those that were closed."""
        for key, _ in self._selector.select(seconds):
            sock = key.fileobj
            assert isinstance(sock, socket.socket)
            try:
                if key.data is None:
                    if not sock.recv(4096):
                        self._drop(sock, "closed")
                    continue
                if key.data != "silent":
                    sock.send(self._hello if key.data == "greeting" else self._generator.randbytes(200))
                elif sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
                    raise ConnectionRefusedError
                self.counts[key.data] += 1
                self._selector.modify(sock, selectors.EVENT_READ, None)
            except BlockingIOError:
                continue
            except OSError:
                self._drop(sock, "closed")

    def _drop(self, sock: socket.socket, reason: str) -> None:
        self._selector.unregister(sock)
        sock.close()
        self.open -= 1
        self.counts[reason] += 1


def _target(address: str) -> tuple[str, int] | None:
    """Return host and port of an address, or of a file that holds one; None while it does not exist."""
    if "/" in address:
        path = Path(address)
        address = path.read_text() if path.exists() else ""
    host, _, port = address.rpartition(":")
    return (host, int(port)) if host else None


def main() -> None:
    """Flood with the options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("address", help="HOST:PORT, or a file that holds one")
    parser.add_argument("--connections", type=int, default=1000)
    parser.add_argument("--rate", type=int, default=2000, help="most connections a second")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--sources", default="", help="source addresses, separated by commas")
    options = parser.parse_args()
    flood = Flood(options.connections, options.seed, [one for one in options.sources.split(",") if one])
    stdin = selectors.DefaultSelector()
    stdin.register(sys.stdin, selectors.EVENT_READ)
    started, full = time.monotonic(), False
    while not stdin.select(0):
        target = _target(options.address)
        allowed = (time.monotonic() - started) * options.rate - flood.counts["dialled"]
        for _ in range(max(0, min(_AT_ONCE, int(allowed), flood.most - flood.open))):
            if target is None or not flood.dial(target):
                break
        flood.work(0.02)
        if not full and flood.counts["dialled"] >= flood.most:
            full = True
            print(json.dumps({"full": flood.most}), flush=True)  # noqa: T201
    took = time.monotonic() - started
    print(json.dumps({**flood.counts, "seconds": round(took, 1)}), flush=True)  # noqa: T201


@contextlib.contextmanager
def flooding(address: str, connections: int, *, seed: int = 0, sources: str = "", rate: int = 2000):
    """Flood from a process of its own; yield it and a dictionary that holds its counts afterwards."""
    command = [sys.executable, "-m", "tests.faults.flooding", address, "--connections", f"{connections}"]
    command += ["--seed", f"{seed}", "--sources", sources, "--rate", f"{rate}"]
    counts: dict[str, float] = {}
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2]
    )
    try:
        yield process, counts
    finally:
        out, _ = process.communicate()
        counts.update(json.loads(out.splitlines()[-1]))


if __name__ == "__main__":
    main()
