"""The process in front of the session port lets parties through, whatever strangers do; it is replaced when it dies."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from flwr.app import ConfigRecord
from hypothesis import given
from hypothesis import strategies as st

from flower_vfl.errors import ProtocolError
from flower_vfl.protocol.frame import Frame, Kind
from flower_vfl.transport import relay
from flower_vfl.transport.acceptor import Acceptor
from flower_vfl.transport.authority import SERVER_NAME
from flower_vfl.transport.dialling import attend
from flower_vfl.transport.relay import Connection, Greeting, WaitingConnections, address_of
from tests.faults.flooding import client_hello
from tests.transport.fakes import FakeParty, converse, fit
from tests.transport.test_stream import SESSION, arrived, attending, listening


def port_of(endpoint):
    return int(endpoint.address.rpartition(":")[2])


def hangs_up(endpoint, data):
    """Send bytes from an unknown host; return True once the connection is closed."""
    with socket.create_connection(("127.0.0.1", port_of(endpoint))) as connection:
        connection.settimeout(10)
        connection.sendall(data)
        with contextlib.suppress(ConnectionResetError):
            return connection.recv(1) == b""
    return True


@pytest.fixture
def served():
    """Yield an endpoint with one open session, the link of that session and the list of its party's errors."""
    errors, party = [], FakeParty()
    with listening(reconnect=20.0) as endpoint:
        offer = ConfigRecord(endpoint.offer("2"))

        def dial():
            try:
                attend(offer, SESSION, party, timeout=10.0, reconnect=20.0)
            except Exception as error:  # noqa: BLE001 - the test checks every error
                errors.append(error)

        thread = threading.Thread(target=dial, daemon=True)
        thread.start()
        link = arrived(endpoint)
        fit(link)
        yield endpoint, link, errors
        link.send(Frame(Kind.FINISH))
        assert link.receive(20).kind is Kind.REPORT
        endpoint.close()
        thread.join(10)
        assert not thread.is_alive()


def test_a_session_goes_on_after_the_relay_was_killed_and_its_frames_are_the_same(served, caplog):
    endpoint, link, errors = served
    before = endpoint._acceptor._process.pid
    answers = converse({"a": link}, 3)
    os.kill(before, signal.SIGKILL)
    answers += converse({"a": link}, 3, timeout=30)
    assert endpoint._acceptor._process.pid != before
    assert "another one takes its place" in caplog.text
    assert errors == []


@pytest.mark.parametrize(
    "data",
    [b"GET / HTTP/1.0\r\n\r\n", b"\x16\x03\x01\xff\xff" + bytes(20_000), client_hello(SERVER_NAME)],
    ids=["another protocol", "a greeting without end", "no mark"],
)
def test_whoever_shows_no_mark_never_reaches_the_endpoint(served, data):
    endpoint, link, errors = served
    assert hangs_up(endpoint, data)
    converse({"a": link}, 2)
    assert errors == []


def test_a_certificate_without_the_mark_of_this_run_opens_nothing():
    with listening() as endpoint:
        offer = endpoint.offer("2")
        with attending(endpoint, FakeParty(), timeout=1.0, **{"server-name": f"{0:032x}.{SERVER_NAME}"}) as errors:
            while not errors:
                time.sleep(0.01)
        assert "could not be reached within 1 s" in str(errors[0])
        assert offer["server-name"] != endpoint.offer("3")["server-name"]


@pytest.mark.parametrize("name", [None, 5, "label-party.flower-vfl", "elsewhere.example"])
def test_an_offer_without_a_name_to_ask_for_is_refused_by_the_party(name):
    with listening() as endpoint:
        offer = {**endpoint.offer("2"), "server-name": name}
        if name is None:
            del offer["server-name"]
        with pytest.raises(ProtocolError, match="the offer has no 'server-name'"):
            attend(ConfigRecord(offer), SESSION, FakeParty(), timeout=1)


def test_strangers_who_fill_every_place_keep_no_party_out(served):
    endpoint, link, errors = served
    crowd = [socket.create_connection(("127.0.0.1", port_of(endpoint))) for _ in range(relay.STRANGERS + 100)]
    try:
        converse({"a": link}, 2)
        link._connection.context.cancel()  # its stream breaks, and it must come back through the crowd
        converse({"a": link}, 2, timeout=30)
    finally:
        for one in crowd:
            one.close()
    assert errors == []


def test_connections_with_one_mark_are_few_and_do_not_end_the_session(served):
    endpoint, link, errors = served
    name = next(iter(endpoint._acceptor._marks)) + f".{SERVER_NAME}"
    replays = [socket.create_connection(("127.0.0.1", port_of(endpoint))) for _ in range(3 * relay.MARKED)]
    try:
        for replay in replays:
            replay.sendall(client_hello(name))  # as an eavesdropper can
        converse({"a": link}, 3)
        link._connection.context.cancel()
        converse({"a": link}, 2, timeout=30)
    finally:
        for replay in replays:
            replay.close()
    assert errors == []


def test_a_connection_that_is_admitted_again_takes_the_place_of_the_one_before(served):
    endpoint, link, _ = served
    peers = []
    endpoint._acceptor.admit, admit = lambda peer: peers.append(peer) or admit(peer), endpoint._acceptor.admit
    for _ in range(3):
        link._connection.context.cancel()
        converse({"a": link}, 1, timeout=30)
    assert len(set(peers)) == 3


def test_the_last_bytes_of_an_endpoint_arrive_while_the_party_still_sends():
    acceptor, mark = Acceptor("127.0.0.1", 0), "5e" * 16
    backend, last = socket.socket(socket.AF_UNIX), os.urandom(2**23)
    backend.bind(acceptor.target.removeprefix("unix:"))
    backend.listen()
    acceptor.wait_ready()
    acceptor.let(mark)
    with socket.create_connection(("127.0.0.1", acceptor.port)) as party, backend:
        party.settimeout(10)
        party.sendall(client_hello(f"{mark}.{SERVER_NAME}"))
        endpoint, _ = backend.accept()
        with endpoint:
            endpoint.recv(2**16)
            ending = threading.Thread(target=lambda: (endpoint.sendall(last), endpoint.close()), daemon=True)
            ending.start()
            received = party.recv(2**16)
            while data := party.recv(2**16):
                received += data
                party.sendall(b"still here")
            ending.join(10)
    acceptor.close()
    assert received == last


RELAY = """
import resource, socket, sys
from flower_vfl.transport.stream import StreamEndpoint
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 200))
endpoint = StreamEndpoint("5e55", host="127.0.0.1", port=0, advertise="", parties=1, wire_dtype="exact", limit=2**20)
print(resource.getrlimit(resource.RLIMIT_NOFILE)[0], endpoint._acceptor._process.pid, endpoint.address, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def endpoint_process():
    """Yield a process that runs an endpoint with at most 200 handles, and the fields that it has printed."""
    process = subprocess.Popen(
        [sys.executable, "-c", RELAY], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        cwd=Path(__file__).parents[2],
    )  # fmt: skip
    try:
        yield process, process.stdout.readline().split()
    finally:
        process.kill()
        process.communicate()


def gone(pid, seconds=20.0):
    deadline = time.monotonic() + seconds
    while Path(f"/proc/{pid}").exists() and Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z":
        assert time.monotonic() < deadline, f"{pid} is still there"
        time.sleep(0.05)
    return True


def test_the_limit_of_handles_is_raised_and_strangers_take_none_of_the_runs(endpoint_process):
    process, (limit, _, address) = endpoint_process
    assert limit == "200"
    handles = Path(f"/proc/{process.pid}/fd")
    before = len(list(handles.iterdir()))
    crowd = [socket.create_connection(("127.0.0.1", int(address.rpartition(":")[2]))) for _ in range(400)]
    try:
        assert len(list(handles.iterdir())) == before
    finally:
        for one in crowd:
            one.close()


def test_the_relay_ends_with_a_run_that_is_killed_and_leaves_no_folder(endpoint_process):
    process, (_, pid, _) = endpoint_process
    folder = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[4].decode()
    assert Path(folder).is_dir()
    assert Path(folder).stat().st_mode & 0o077 == 0
    process.kill()
    assert gone(int(pid))
    assert not Path(folder).exists()


def test_the_relay_ignores_ctrl_c_and_goes_when_the_run_closes():
    with listening() as endpoint:
        pid = endpoint._acceptor._process.pid
        os.kill(pid, signal.SIGINT)
        os.kill(pid, signal.SIGTERM)
        assert hangs_up(endpoint, b"no greeting")
        assert endpoint._acceptor._process.pid == pid
    assert gone(pid)


def test_strangers_of_the_last_seconds_are_counted_in_the_log_when_the_port_closes(caplog):
    with listening() as endpoint:
        assert hangs_up(endpoint, b"no greeting")
    assert "connections to the session port that are no party's were closed: 1 without a mark" in caplog.text


@given(st.lists(st.sampled_from("aaab"), min_size=1, max_size=60))
def test_the_busiest_address_gives_way_and_the_only_one_of_another_stays(addresses):
    places, waiting = WaitingConnections(4), []
    with socket.socket() as sock:
        for address in addresses:
            connection = Connection(sock, address)
            waiting.append(connection)
            if (evicted := places.add(connection)) is not None:
                count = [one.address for one in waiting].count
                assert count(evicted.address) == max(count("a"), count("b"))
                assert evicted is next(one for one in waiting if one.address == evicted.address)
                places.remove(evicted)
                waiting.remove(evicted)
            assert len(places) == len(waiting) <= 4


@pytest.mark.slow
@given(st.binary(max_size=600), st.integers(0, 600), st.integers(0, 600))
def test_arbitrary_bytes_in_a_greeting_give_a_name_nothing_or_a_value_error(data, start, end):
    hello = client_hello("mark.label-party.flower-vfl")
    with contextlib.suppress(ValueError):
        name = Greeting().read(hello[:start] + data + hello[end:])
        assert name is None or isinstance(name, str)


@pytest.mark.parametrize("size", [1, 7, 100, 10_000])
def test_a_greeting_is_read_in_whatever_pieces_it_comes(size):
    hello, greeting = client_hello("mark.label-party.flower-vfl"), Greeting()
    names = [greeting.read(hello[at : at + size]) for at in range(0, len(hello), size)]
    assert names == [None] * (len(names) - 1) + ["mark.label-party.flower-vfl"]


def test_a_mapped_address_and_an_ipv6_network_count_as_one_address():
    assert address_of("192.0.2.7") == address_of("::ffff:192.0.2.7")
    assert address_of("2001:db8::1") == address_of("2001:db8::ffff:1") != address_of("2001:db8:0:1::1")
    assert address_of("fe80::1%eth0") == address_of("fe80::2")
