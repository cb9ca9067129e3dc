"""A stream carries large frames without blocking, notices a dead party, and shows no secret."""

import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager

import pytest
import torch
from flwr.app import ConfigRecord

from flower_vfl.errors import PartyError, ProtocolError, SessionError, SetupError, UnreachableError
from flower_vfl.protocol.frame import Frame, Kind
from flower_vfl.transport.dialling import attend
from flower_vfl.transport.stream import StreamEndpoint
from tests.transport.fakes import FakeParty, converse, fit

SESSION = "5e55"


@contextmanager
def listening(**changes):
    settings = {"host": "127.0.0.1", "port": 0, "advertise": "", "parties": 1, "wire_dtype": "exact", "limit": 2**23}
    endpoint = StreamEndpoint(SESSION, **{**settings, **changes})
    try:
        yield endpoint
    finally:
        endpoint.close()


def arrived(endpoint, timeout=10.0):
    deadline = time.monotonic() + timeout
    while (link := endpoint.accept()) is None:
        assert time.monotonic() < deadline, "nobody arrived"
        time.sleep(0.005)
    return link


@contextmanager
def attending(endpoint, party, *, timeout=10.0, **changes):
    """Let a party dial in a thread; yield the list of its errors."""
    errors = []
    offer = ConfigRecord({**endpoint.offer("2"), **changes})

    def run():
        try:
            attend(offer, SESSION, party, timeout=timeout)
        except Exception as error:  # noqa: BLE001 - the test checks every error
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield errors
    finally:
        endpoint.close()
        thread.join(10)
        assert not thread.is_alive()


@pytest.mark.parametrize("ahead", [1, 8])
def test_eight_frames_of_two_mebibytes_are_under_way_each_way_without_a_deadlock(ahead):
    rows, width = 512, 1024
    with listening() as endpoint, attending(endpoint, FakeParty(rows=rows, width=width)) as errors:
        link = arrived(endpoint)
        fit(link, rows=rows, width=width)
        answers = converse({"a": link}, 12, ahead=ahead, timeout=30)
        link.send(Frame(Kind.FINISH))
        assert link.receive(10).kind is Kind.REPORT
    assert len(answers) == 12
    assert link.bytes_up > 12 * 2**21
    assert errors == []


def test_a_label_party_that_sends_everything_before_it_reads_anything_does_not_block():
    rows, width = 512, 1024
    gradient = torch.ones(rows, width)
    with listening() as endpoint, attending(endpoint, FakeParty(rows=rows, width=width)):
        link = arrived(endpoint)
        fit(link, rows=rows, width=width)
        for step in range(8):
            link.send(Frame(Kind.STEP, step, {"gradient_of": step}, {"gradient": gradient}))
        time.sleep(0.3)
        assert [link.receive(10).step for _ in range(8)] == list(range(8))


DIALLER = """
import json, sys
from flwr.app import ConfigRecord
from flower_vfl.transport.dialling import attend
from tests.transport.fakes import FakeParty
offer = {key: bytes.fromhex(value[4:]) if str(value).startswith("hex:") else value
         for key, value in json.loads(sys.stdin.readline()).items()}
attend(ConfigRecord(offer), sys.argv[1], FakeParty(), timeout=20)
"""


def test_a_party_whose_process_is_killed_is_named_within_seconds(request):
    with listening() as endpoint:
        offer = endpoint.offer("2")
        text = json.dumps({k: f"hex:{v.hex()}" if isinstance(v, bytes) else v for k, v in offer.items()})
        process = subprocess.Popen(
            [sys.executable, "-c", DIALLER, SESSION], stdin=subprocess.PIPE, text=True, cwd=request.config.rootpath
        )
        try:
            process.stdin.write(text + "\n")
            process.stdin.flush()
            link = arrived(endpoint, 60)
            fit(link)
            converse({"a": link}, 3)
            os.kill(process.pid, signal.SIGKILL)
            started = time.monotonic()
            with pytest.raises(PartyError, match="the session with party 'a' broke: it died or lost its connection"):
                link.receive(60)
            assert time.monotonic() - started < 5
            with pytest.raises(PartyError, match="broke"):  # and at every later call
                link.receive(60)
        finally:
            process.kill()
            process.communicate()


def test_a_party_sees_within_seconds_that_the_label_party_has_gone():
    with listening() as endpoint, attending(endpoint, FakeParty()) as errors:
        arrived(endpoint)
        started = time.monotonic()
        endpoint.close()
        while not errors and time.monotonic() - started < 5:
            time.sleep(0.01)
        assert type(errors[0]) is SessionError


def test_a_party_whose_clock_is_days_off_fails_before_it_dials(monkeypatch):
    def wrong(certificate):
        raise SessionError("the clocks of the two hosts differ")

    monkeypatch.setattr("flower_vfl.transport.dialling.check_clock", wrong)
    with listening() as endpoint, attending(endpoint, FakeParty(), timeout=0.5) as errors:
        while not errors:
            time.sleep(0.01)
        assert endpoint.accept() is None
    assert "clocks" in str(errors[0])


def test_a_party_that_cannot_reach_the_endpoint_names_the_address():
    with listening() as endpoint, attending(endpoint, FakeParty(), timeout=0.5, address="127.0.0.1:1") as errors:
        while not errors:
            time.sleep(0.01)
    assert type(errors[0]) is UnreachableError
    assert "127.0.0.1:1 could not be reached within 0.5 s" in str(errors[0])
    assert "may have ended the run before: its log has the reason, such as a privacy ledger" in str(errors[0])


def test_an_endpoint_that_closes_while_a_party_greets_does_not_wait_for_it(monkeypatch):
    greeted, closed = threading.Event(), threading.Event()
    with listening() as endpoint, attending(endpoint, FakeParty()) as errors:
        read_greeting, stop = endpoint._read_greeting, endpoint._server.stop

        def late(*arguments):
            greeting = read_greeting(*arguments)
            greeted.set()
            closed.wait(10)
            return greeting

        monkeypatch.setattr(endpoint, "_read_greeting", late)
        monkeypatch.setattr(endpoint._server, "stop", lambda grace: closed.set() or stop(grace))
        assert greeted.wait(10)
        began = time.monotonic()
        endpoint.close()
        assert time.monotonic() < began + 8
    assert [str(error) for error in errors] == ["the label party ended the session before it was finished"]


def test_a_port_in_use_is_refused_by_its_setting():
    with listening() as endpoint:
        port = int(endpoint.address.rpartition(":")[2])
        with pytest.raises(SetupError, match=rf"127\.0\.0\.1:{port}: the port is in use, .* set transport\.port to 0"):
            StreamEndpoint(
                SESSION, host="127.0.0.1", port=port, advertise="", parties=1, wire_dtype="exact", limit=2**20
            )


@pytest.mark.parametrize("host", ["192.0.2.1", "no such host.invalid"])
def test_an_address_that_is_not_of_this_host_is_refused_by_its_setting(host):
    with pytest.raises(SetupError, match=rf"cannot listen on {host}.*transport\.host to an address of this host"):
        StreamEndpoint(SESSION, host=host, port=0, advertise="", parties=1, wire_dtype="exact", limit=2**20)


def test_a_free_port_is_found_and_freed_again():
    with listening() as endpoint:
        port = int(endpoint.address.rpartition(":")[2])
        assert port > 0
    with listening(port=port) as again:
        assert again.address == f"127.0.0.1:{port}"


def test_parties_dial_the_advertised_address():
    with listening(advertise="localhost") as endpoint, attending(endpoint, FakeParty()):
        assert endpoint.address.startswith("localhost:")
        assert endpoint.offer("3")["address"] == endpoint.address
        assert arrived(endpoint).party == "a"


def test_a_frame_that_grpc_itself_refuses_ends_the_session_and_not_the_process():
    with listening(limit=2**20) as endpoint, attending(endpoint, FakeParty(rows=4096, width=128)) as errors:
        link = arrived(endpoint)
        link.frame_limit = 2**30
        link.send(Frame(Kind.STEP, 0, {"gradient_of": -1}))
        with pytest.raises(PartyError, match="party 'a' broke"):
            link.receive(10)
    assert type(errors[0]) is SessionError


def test_a_party_takes_no_message_far_above_its_own_frames_whatever_it_is_offered():
    with listening(limit=2**26) as endpoint, attending(endpoint, FakeParty()) as errors:
        link = arrived(endpoint)
        link.send(Frame(Kind.STEP, 0, {"gradient_of": -1}, {"gradient": torch.zeros(2**23)}))
        with pytest.raises(PartyError, match="party 'a' broke"):
            link.receive(10)
    assert "RESOURCE_EXHAUSTED" in str(errors[0])


def test_garbage_from_an_admitted_party_is_an_error_that_names_it():
    with listening() as endpoint, attending(endpoint, FakeParty()):
        link = arrived(endpoint)
        link.incoming.put(b"garbage")
        with pytest.raises(ProtocolError, match="party 'a': a frame of 7 bytes is too short"):
            link.receive(10)


def test_a_party_that_gets_garbage_reports_it_and_gives_up():
    with listening() as endpoint, attending(endpoint, FakeParty()) as errors:
        link = arrived(endpoint)
        link._connection.outgoing.put(link._traffic.pack(b"garbage" * 10))
        with pytest.raises(PartyError, match="party 'a' reported: ProtocolError: these bytes are no frame"):
            link.receive(10)
    assert type(errors[0]) is ProtocolError


def test_no_token_and_no_key_is_in_a_log_or_a_text(caplog):
    caplog.set_level(logging.DEBUG)
    with listening() as endpoint, attending(endpoint, FakeParty()):
        link = arrived(endpoint)
        fit(link)
        converse({"a": link}, 2)
        offer = endpoint.offer("9")
        texts = [caplog.text, repr(endpoint), repr(link), repr(link.hello), str(link.hello), repr(endpoint._authority)]
        secrets = [*endpoint._tokens.values(), offer["token"], offer["key"].decode(), "PRIVATE KEY"]
    assert link.hello.fields == {"party": "a", "width": 4}
    texts.append(caplog.text)
    for text in texts:
        assert not any(secret in text for secret in secrets)
