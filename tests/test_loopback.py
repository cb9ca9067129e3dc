"""Servers of this host answer others, and end, while clients send their requests byte by byte."""

import socket
import threading
import time
import urllib.request
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler

import pytest

from flower_vfl import loopback
from flower_vfl.loopback import LOOPBACK, MOST_REQUESTS, LoopbackServer


class Greeting(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"hello")

    def log_message(self, *_):
        """Discard the message."""


@contextmanager
def served():
    server = LoopbackServer(0, Greeting)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextmanager
def slow_clients(server, number):
    """Connect clients that send the beginning of a request and no end; yield their sockets."""
    clients = [socket.create_connection((LOOPBACK, server.server_port), timeout=30) for _ in range(number)]
    for client in clients:
        client.sendall(b"GET / HTTP/1.1\r\nHost: ")
    try:
        yield clients
    finally:
        for client in clients:
            client.close()


def test_a_request_that_does_not_end_is_closed_at_its_deadline(monkeypatch):
    monkeypatch.setattr(loopback, "REQUEST_SECONDS", 1.0)
    with served() as server, slow_clients(server, 1) as (client,):
        client.settimeout(0.05)
        ended, began = False, time.monotonic()
        while not ended and time.monotonic() < began + 60:  # each byte would begin a timeout of the socket again
            try:
                client.sendall(b"x")
                ended = client.recv(1) == b""
            except TimeoutError:
                time.sleep(0.05)
            except ConnectionError:
                ended = True
        assert ended


@pytest.mark.parametrize("number", [1, MOST_REQUESTS, 3 * MOST_REQUESTS])
def test_slow_clients_keep_no_other_from_an_answer_and_no_server_from_its_end(number):
    with (
        served() as server,
        slow_clients(server, number),
        urllib.request.urlopen(f"http://{LOOPBACK}:{server.server_port}/", timeout=30) as answer,
    ):
        assert answer.read() == b"hello"


def test_of_too_many_requests_the_oldest_is_closed(monkeypatch):
    monkeypatch.setattr(loopback, "REQUEST_SECONDS", 600.0)
    with served() as server, slow_clients(server, MOST_REQUESTS + 1) as (oldest, *others):
        with suppress(ConnectionError):
            assert oldest.recv(1) == b""
        for client in others:
            client.settimeout(0.0)
            with pytest.raises(BlockingIOError):
                client.recv(1)
