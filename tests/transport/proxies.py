"""A TCP proxy between a party and the label party that a test can cut, hold and slow."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time


class Line:
    """A TCP proxy in front of `address` that can cut all its connections at once.

    While `held` is set, data is dropped and neither end is notified, as when a cable is pulled. `delay` is the number
    of seconds that it adds in each direction.
    """

    def __init__(self, address, *, delay=0.0):
        host, _, port = address.rpartition(":")
        self._target, self.delay, self.held = (host, int(port)), delay, threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._pairs, self._lock = [], threading.Lock()
        self.connections = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                inner, _ = self._listener.accept()
                try:
                    outer = socket.create_connection(self._target)
                except OSError:
                    inner.close()
                    continue
                dead = threading.Event()
                with self._lock:
                    self._pairs.append((inner, outer, dead))
                    self.connections += 1
                for source, target in ((inner, outer), (outer, inner)):
                    threading.Thread(target=self._copy, args=(source, target, dead), daemon=True).start()

    def _copy(self, source, target, dead):
        held = False
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                held = held or self.held.is_set()
                if held or dead.is_set():
                    continue  # a connection that was held once stays silent
                time.sleep(self.delay)
                target.sendall(data)
        if not held:
            for end in (source, target):
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)  # the other direction still reads it, and would keep it open
                end.close()

    def cut(self):
        """Reset every connection; data in flight is lost."""
        with self._lock:
            pairs, self._pairs = self._pairs, []
        for inner, outer, dead in pairs:
            dead.set()
            for end in (inner, outer):
                with contextlib.suppress(OSError):
                    end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    end.shutdown(socket.SHUT_RDWR)
                with contextlib.suppress(OSError):
                    end.close()

    def close(self):
        """Stop listening, and reset every connection."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()
