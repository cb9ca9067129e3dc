"""`flower-vfl wait` reports the end of a run by its exit code, the reason and an alert."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time

import pytest

from flower_vfl.apps.run_status import RunState, SuperLinkUnreachableError, follow, read_run_id
from flower_vfl.errors import ConfigError, InputError, RunStoppedError, SessionError
from flower_vfl.simulations.flower_engine import write_deployment
from tests.deployment.conftest import feature_parts
from tests.deployment.hosts import NAME, Hosts
from tests.deployment.test_deployment import config
from tests.deployment.test_recovery import below, command

AWAY = SuperLinkUnreachableError("the SuperLink does not answer.")
RUNNING = RunState("running")


class Scripted:
    """A Control API that returns these answers in turn, and the last one for ever."""

    address = "superlink"

    def __init__(self, *answers):
        self._answers = list(answers)

    def state(self, run_id):
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


def follow_run(*answers, patience=60.0):
    lines = []
    follow(Scripted(*answers), 7, lines.append, poll=0.0, patience=patience)
    return lines


def test_a_run_that_completes_is_waited_for_over_a_restart_of_the_superlink():
    output = follow_run(RunState("pending"), RUNNING, AWAY, RUNNING, RunState("finished", "completed"))
    assert output == ["run 7 is pending", "run 7 is running", "run 7 is finished"]


@pytest.mark.parametrize(
    ("answers", "error", "message"),
    [
        ([RUNNING, RunState("finished", "failed", "the loss is not finite")], SessionError, "the loss is not finite$"),
        ([RUNNING, RunState("finished", "failed", "No heartbeat received")], SessionError, "died without a word"),
        ([RUNNING, RunState("finished", "stopped")], RunStoppedError, "run 7 was stopped"),
        ([RUNNING, None], SessionError, "has lost run 7, which was running"),
        ([None], ConfigError, "knows no run 7"),
        ([AWAY], SuperLinkUnreachableError, "does not answer"),
        ([RUNNING, AWAY], SessionError, "It has been away for 0 s; the run was running"),
    ],
)
def test_any_other_end_of_a_run_is_an_error_with_the_reason(answers, error, message):
    with pytest.raises(error, match=message) as caught:
        follow_run(*answers, patience=0.0)
    assert type(caught.value) is error


@pytest.mark.parametrize("text", ["-3", "0", "1.5", str(2**64), "9" * 5000, "٣", "[]", '{"run-id": null}', "{"])
def test_a_text_that_is_no_run_id_is_refused(text):
    with pytest.raises(ConfigError, match="is no run ID"):
        read_run_id(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"success": false, "error-message": "no such app"}', "started no run: no such app"),
        (" \n", "has printed nothing"),
    ],
    ids=["refused", "killed before it printed anything"],
)
def test_a_run_that_flwr_has_not_started_is_a_failure_with_its_message(text, message):
    with pytest.raises(SessionError, match=message) as caught:
        read_run_id(text)
    assert not isinstance(caught.value, InputError)  # for which no alert is sent


@pytest.fixture(scope="module")
def superlink(parts, tmp_path_factory):
    """A SuperLink to which no party comes: its ServerApps wait."""
    with Hosts(tmp_path_factory.mktemp("waiting"), parts / "bank", feature_parts(parts)) as hosts:
        hosts.start_superlink()
        write_deployment(hosts.folder / "app", config(connect_timeout=300.0), None)
        yield hosts


def started(hosts):
    """Start a run, and return its ID and a process that waits for it and alerts by writing a file."""
    done = hosts.flwr("run", str(hosts.folder / "app"), NAME, "--format", "json")
    assert done.returncode == 0, done.stdout
    found = json.loads(done.stdout[done.stdout.index("{") :])["run-id"]
    code = "import os; open('alert', 'w').write(os.environ['FLOWER_VFL_RUN'] + os.environ['FLOWER_VFL_REASON'])"
    hook = shlex.join([sys.executable, "-c", code])
    (hosts.folder / "alert").unlink(missing_ok=True)
    return found, start_waiting(hosts, "-", NAME, "--on-failure", hook, text=done.stdout[done.stdout.index("{") :])


def start_waiting(hosts, *arguments, text=""):
    process = subprocess.Popen(
        [sys.executable, "-m", "flower_vfl", "wait", *arguments],
        env=hosts.environment("superlink"),
        cwd=hosts.folder,
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    process.stdin.write(text)
    process.stdin.flush()
    process.stdin.close()
    process.stdin = None
    return process


def server_app(hosts):
    """Return the process ID of the one ServerApp that runs."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        found = [pid for pid in below(hosts.process("superlink").pid) if "flwr-serverapp" in command(pid)]
        if found:
            return found[-1]
        time.sleep(0.2)
    raise AssertionError(hosts.all_logs())


@pytest.mark.flower
@pytest.mark.timeout(590)
def test_a_run_that_is_stopped_ends_the_waiting_with_a_code_of_its_own(superlink):
    run_id, process = started(superlink)
    server_app(superlink)
    assert superlink.flwr("stop", run_id, NAME).returncode == 0
    output = process.communicate(timeout=60)[0]
    assert process.returncode == 3, output
    assert f"run {run_id} was stopped" in output
    assert (superlink.folder / "alert").read_text() == f"{run_id}run {run_id} was stopped (flwr stop)"
    unknown = start_waiting(superlink, "12345")
    assert "knows no run 12345; `flwr list`" in unknown.communicate(timeout=60)[0]
    assert unknown.returncode == 2


@pytest.mark.flower
@pytest.mark.release
@pytest.mark.timeout(590)
def test_a_server_app_that_is_killed_fails_the_waiting_and_alerts(superlink):
    run_id, process = started(superlink)
    victim = server_app(superlink)
    time.sleep(5)
    os.kill(victim, signal.SIGKILL)
    output = process.communicate(timeout=200)[0]
    assert process.returncode == 1, output
    assert f"run {run_id} failed: No heartbeat received from the task; its ServerApp died without a word" in output
    assert "died without a word" in (superlink.folder / "alert").read_text()
