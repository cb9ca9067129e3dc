"""The documented proxy in front of a SuperLink: strangers cannot fill its memory or keep parties out."""

from __future__ import annotations

import contextlib
import http.client
import os
import shutil
import socket
import ssl
import time
from pathlib import Path

import pytest

from tests.deployment.hosts import Hosts
from tests.faults.flooding import flooding

NGINX = shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin:/sbin")
PUSH = "/v1/fleet/push-object"
MIB = 2**20

pytestmark = [
    pytest.mark.flower,
    pytest.mark.nginx,
    pytest.mark.skipif(NGINX is None, reason="nginx is not installed"),
    pytest.mark.timeout(300),
]


@pytest.fixture(scope="module")
def proxied(tmp_path_factory):
    """Yield the hosts of a SuperLink behind the proxy, and a function that opens a connection."""
    folder = tmp_path_factory.mktemp("proxy")
    with Hosts(folder, folder, {"a": folder}) as hosts:
        hosts.start_superlink()
        hosts.start_proxy(NGINX)
        trusted = ssl.create_default_context(cafile=str(hosts.keys / "superlink" / "ca.crt"))

        def connect():
            return http.client.HTTPSConnection("127.0.0.1", hosts.dialled, context=trusted, timeout=60)

        deadline = time.monotonic() + 30
        while True:
            with contextlib.suppress(OSError), contextlib.closing(connect()) as line:
                line.request("GET", "/health")
                if line.getresponse().status == 200:
                    break
            assert time.monotonic() < deadline, hosts.log("proxy")
            time.sleep(0.2)
        time.sleep(3)  # until the SuperLink has imported everything
        yield hosts, connect


def memory(hosts):
    """Return the memory of the SuperLink and its children in MiB."""
    own, total = hosts.process("superlink").pid, 0
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, StopIteration):
            parent = int((process / "stat").read_text().rpartition(")")[2].split()[1])
            if own in (parent, int(process.name)):
                lines = (process / "status").read_text().splitlines()
                total += int(next(line for line in lines if line.startswith("VmRSS")).split()[1]) // 1024
    return total


def post(line, body, **headers):
    """Send a request without a signature; return its status, None if the proxy closed the connection."""
    with contextlib.suppress(OSError):  # it may have answered before it hung up
        line.request("POST", PUSH, body, {"Content-Type": "application/protobuf", **headers})
    try:
        return line.getresponse().status
    except (OSError, http.client.HTTPException):
        return None


@pytest.mark.parametrize("known", [True, False], ids=["of a size that is given", "in pieces"])
def test_a_large_body_of_a_stranger_never_reaches_the_superlink(proxied, known):
    hosts, connect = proxied
    before = memory(hosts)
    pieces = (bytes(MIB) for _ in range(300))
    with contextlib.closing(connect()) as line:
        assert post(line, bytes(300 * MIB) if known else pieces) in ((413, None) if not known else (413,))
    assert memory(hosts) - before < 60
    with contextlib.closing(connect()) as line:
        assert post(line, bytes(7 * MIB)) in (400, 401)  # what a party may send is passed on, and Flower refuses it


def test_slow_bodies_of_one_address_are_few_and_others_are_served(proxied):
    _, connect = proxied
    lines = [connect() for _ in range(20)]
    try:
        for line in lines:
            line.putrequest("POST", PUSH)
            line.putheader("Content-Type", "application/protobuf")
            line.putheader("Content-Length", str(7 * MIB))
            line.endheaders(bytes(1000))  # and nothing more
        time.sleep(1)
        with contextlib.closing(connect()) as line:
            assert post(line, b"x") == 503  # Flower's SuperNodes try again after this one
        with contextlib.closing(connect()) as line:
            line.request("GET", "/health")
            assert line.getresponse().status == 200
    finally:
        for line in lines:
            line.close()


def test_silent_connections_do_not_keep_a_supernode_out(proxied):
    hosts, connect = proxied
    with flooding(f"127.0.0.1:{hosts.dialled}", 9000, rate=3000) as (flood, counts):
        flood.stdout.readline()
        for _ in range(5):
            with contextlib.closing(connect()) as line:
                line.request("GET", "/health")
                assert line.getresponse().status == 200
    assert counts["dialled"] >= 9000


def test_only_the_fleet_api_is_passed_on(proxied):
    _, connect = proxied
    for path in ("/v1/control/list-runs", "/v1/runtime/acquire-task", "/", "/docs", "/v1/fleet/../control/list-runs"):
        with contextlib.closing(connect()) as line:
            line.request("POST", path, b"")
            assert line.getresponse().status == 403
    with socket.create_connection(("127.0.0.1", proxied[0].dialled)) as plain:
        plain.sendall(b"GET /health HTTP/1.0\r\n\r\n")
        assert b"400" in plain.recv(100)
