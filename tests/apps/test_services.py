"""The systemd units and what they start: a program with a log of JSON lines, and a check of its health service."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import grpc
import pytest
from flwr.supercore.grpc_health import run_health_server_grpc_no_tls

from flower_vfl.apps.health import main as ask_health
from flower_vfl.simulations.flower_engine import free_port

ROOT = Path(__file__).parents[2]
UNITS = ROOT / "docs" / "deployment" / "systemd"
TALK = """
import logging, sys
from flwr.common.logger import log
log(logging.INFO, "Starting Flower SuperLink")
log(logging.WARNING, 'a "quoted"\\nsecond line')
print("\\x1b[92mcoloured\\x1b[0m \\udcff".encode("utf8", "surrogateescape").decode("latin1"))
sys.stderr.write("E1125 09:09:00.901992    1251 ssl.cc:2563] Handshake failed\\n")
sys.stdout.write("x" * 100_000)
sys.stdout.flush()
sys.exit(7)
"""


def started(*command, form="json"):
    return subprocess.Popen(
        [sys.executable, "-m", "flower_vfl.apps.json_log", *command],
        env={**os.environ, "FLOWER_VFL_LOG": form},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


def test_each_line_of_flowers_and_of_others_is_one_json_object_with_time_and_level():
    done = started(sys.executable, "-c", TALK)
    lines = done.communicate(timeout=60)[0].splitlines()
    assert done.returncode == 7
    found = [json.loads(line) for line in lines]
    assert {tuple(record) for record in found} == {("time", "level", "message")}
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\+00:00", record["time"]) for record in found)
    assert not any("\x1b" in record["message"] for record in found)
    levels = {record["message"][:40].strip(): record["level"] for record in found}
    assert levels["Starting Flower SuperLink"] == "INFO"
    assert levels['a "quoted"'] == levels["second line"] == "WARNING"
    assert {level for words, level in levels.items() if words.startswith("E1125")} == {"ERROR"}
    assert sum(record["message"].count("x") for record in found) >= 100_000  # one line, cut where it is too long


def test_the_program_itself_gets_the_signals_and_its_reader_ends_with_it():
    process = started(
        "sh", "-c", "trap 'echo ERROR: terminated; exit 5' TERM; echo ready; while :; do sleep 0.05; done"
    )
    assert json.loads(process.stdout.readline())["message"] == "ready"
    process.send_signal(signal.SIGTERM)
    assert (
        b'"level": "ERROR", "message": "terminated"' in process.communicate(timeout=20)[0]
    )  # until the last writer ends
    assert process.returncode == 5


@pytest.mark.parametrize(
    ("command", "form", "words"),
    [
        ([], "json", b"name a program and its arguments"),
        (["no-such-program"], "json", b"no-such-program cannot be started"),
        (["true"], "xml", b"FLOWER_VFL_LOG is 'xml'; allowed are text, json"),
    ],
)
def test_a_program_that_cannot_be_started_is_an_error(command, form, words):
    process = started(*command, form=form)
    assert words in process.communicate(timeout=20)[0]
    assert process.returncode == 1


def test_without_the_option_nothing_is_changed():
    process = started("printf", "\x1b[92mINFO\x1b[0m", form="")
    assert process.communicate(timeout=20)[0] == b"\x1b[92mINFO\x1b[0m"


def test_flowers_health_service_is_asked_until_it_answers():
    port = free_port()
    address = f"127.0.0.1:{port}"
    began = time.monotonic()
    assert ask_health([address]) == f"{address} does not answer that it serves"
    assert time.monotonic() - began < 10
    server: grpc.Server = run_health_server_grpc_no_tls(address)
    try:
        assert ask_health([address, "30"]) == 0
    finally:
        server.stop(0)
    for wrong in ([], [address, "soon"], [address, "1", "2"]):
        assert str(ask_health(wrong)).startswith("usage:")


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
@pytest.mark.parametrize("unit", sorted(path.name for path in UNITS.glob("*.service")))
def test_a_unit_is_exposed_to_three_at_most(unit):
    """The scale of systemd goes from 0 to 10."""
    command = ["systemd-analyze", "security", "--offline=true", "--threshold=30", str(UNITS / unit)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    found = re.search(r"exposure level for \S+: ([\d.]+)", done.stdout)
    assert found, done.stdout
    assert float(found[1]) <= 3.0


@pytest.mark.parametrize("unit", sorted(path.name for path in UNITS.glob("*.service")))
def test_a_unit_writes_private_files_and_starts_only_when_it_serves(unit):
    text = (UNITS / unit).read_text()
    assert "\nUMask=0077\n" in text
    if "flower-super" in unit:
        (address,) = re.findall(r"--health-server-address (127\.0\.0\.1:\d+)", text)
        assert f"ExecStartPost=/opt/flower-vfl/bin/python -m flower_vfl.apps.health {address} 60\n" in text
        assert "MemoryDenyWriteExecute" not in text  # oneDNN's convolutions are compiled as they are first used
