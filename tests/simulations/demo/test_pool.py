"""Worker processes: order of tasks, number at once, failures, and termination."""

import importlib
import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest

from flower_vfl.simulations.demo.pool import Ended, Failed, Progressed, Started, WorkerPool

MODULE = """
import os, signal, time
from pathlib import Path
from flower_vfl.errors import ConfigError, TrainingError

ERRORS = {"config": ConfigError, "training": TrainingError, "value": ValueError}

def work(argument, report):
    kind, _, value = argument.partition(":")
    if kind == "kill":
        os.kill(os.getpid(), int(value))
        time.sleep(20)
    if kind == "exit":
        os._exit(int(value))
    if kind in ERRORS:
        raise ERRORS[kind](value)
    if kind == "memory":
        raise MemoryError
    if kind == "wait":
        try:
            Path(value + ".pid").write_text(str(os.getpid()))
            for step in range(400):
                time.sleep(0.05)
                report(step / 400)
        except KeyboardInterrupt:
            Path(value).write_text("kept")
            raise
    report(1.0)
    return os.getpid(), value
"""


@pytest.fixture
def work(tmp_path, monkeypatch):
    """Yield a function that worker processes can import: they inherit the import path of this process."""
    (tmp_path / "pool_work.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield importlib.import_module("pool_work").work
    del sys.modules["pool_work"]


def events_of(pool, **tasks):
    for name, argument in tasks.items():
        pool.submit(name, partial(str, argument))
    return list(pool.events())


def until(condition):
    deadline = time.monotonic() + 10.0
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def is_alive(pid):
    """Return True if a process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_tasks_begin_in_order_and_no_more_at_once_than_there_are_places(work):
    with WorkerPool(work, 2) as pool:
        events = events_of(pool, **{f"task{index}": f"give:{index}" for index in range(7)})
    assert [event.name for event in events if isinstance(event, Started)] == [f"task{index}" for index in range(7)]
    values = {event.name: event.value for event in events if isinstance(event, Ended)}
    assert {name: value for name, (_, value) in values.items()} == {f"task{index}": str(index) for index in range(7)}
    assert 1 <= len({pid for pid, _ in values.values()} - {os.getpid()}) <= 2
    assert Progressed("task0", 1.0) in events
    under_way = 0
    for event in events:
        under_way += isinstance(event, Started) - isinstance(event, Ended)
        assert under_way <= 2


def test_a_worker_that_is_killed_fails_its_task_and_no_other(work):
    with WorkerPool(work, 1) as pool:
        events = events_of(pool, before="give:1", killed="kill:9", gone="exit:3", after="give:2")
    failed = {event.name: event for event in events if isinstance(event, Failed)}
    assert failed.keys() == {"killed", "gone"}
    assert failed["killed"].reason == "its process was killed (SIGKILL); the system does that when memory runs out"
    assert failed["gone"].reason == "its process ended by itself, with exit code 3"
    assert [event.name for event in events if isinstance(event, Ended)] == ["before", "after"]


def test_an_error_of_a_task_comes_with_its_reason_and_whether_the_input_was_wrong(work):
    with WorkerPool(work, 1) as pool:
        events = events_of(pool, a="config:no such key", b="training:diverged", c="value:odd", d="memory:", e="give:1")
    found = {event.name: event for event in events if isinstance(event, Failed)}
    assert found["a"] == Failed("a", "no such key", by_input=True)
    assert found["b"] == Failed("b", "diverged")
    assert found["c"].reason == "ValueError: odd"
    assert not found["c"].by_input
    assert "pool_work.py" in found["c"].trace
    assert found["d"].reason == "out of memory"
    assert [event.name for event in events if isinstance(event, Ended)] == ["e"]


def interrupt_when_all_places_are_busy(pool):
    begun = set()
    for event in pool.events():
        begun |= {event.name} if isinstance(event, Progressed) else set()
        if len(begun) == pool.places:
            raise KeyboardInterrupt


def test_running_tasks_are_interrupted_and_save_their_work(work, tmp_path):
    kept = [tmp_path / "one", tmp_path / "two"]
    with WorkerPool(work, 2) as pool:
        for path in kept:
            pool.submit(path.name, partial("wait:{}".format, path))
        with pytest.raises(KeyboardInterrupt):
            interrupt_when_all_places_are_busy(pool)
    assert [path.read_text() for path in kept] == ["kept", "kept"]
    assert not any(is_alive(int(Path(f"{path}.pid").read_text())) for path in kept)


def test_ctrl_c_at_the_terminal_does_not_reach_the_workers(work):
    with WorkerPool(work, 1) as pool:
        events = events_of(pool, interrupted=f"signal:{signal.SIGINT}")
        pid = next(event.value[0] for event in events if isinstance(event, Ended))
        os.kill(pid, signal.SIGINT)
        assert [event.value[0] for event in events_of(pool, again="give:1") if isinstance(event, Ended)] == [pid]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ())


def test_workers_end_by_themselves_where_the_process_that_started_them_is_killed(work, tmp_path):
    script = (
        "from pool_work import work\n"
        "from flower_vfl.simulations.demo.pool import WorkerPool\n"
        "if __name__ == '__main__':\n"
        "    with WorkerPool(work, 1) as pool:\n"
        f"        pool.submit('long', lambda: 'wait:{tmp_path / 'kept'}')\n"
        "        list(pool.events())\n"
    )
    (tmp_path / "parent.py").write_text(script)
    started = tmp_path / "kept.pid"
    with subprocess.Popen([sys.executable, str(tmp_path / "parent.py")]) as parent:
        until(started.is_file)
        until(started.read_text)
        parent.kill()
    worker = int(started.read_text())
    until(lambda: not is_alive(worker))
    assert (tmp_path / "kept").read_text() == "kept"


def test_variables_of_the_workers_environment_are_theirs_alone(tmp_path, monkeypatch):
    (tmp_path / "pool_environment.py").write_text(
        "import os\ndef work(argument, report):\n    return os.environ[argument]\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    module = importlib.import_module("pool_environment")
    with WorkerPool(module.work, 1, {"DEMO_POOL_TEST": "7"}) as pool:
        events = events_of(pool, one="DEMO_POOL_TEST")
    assert events[-1] == Ended("one", "7")
    assert "DEMO_POOL_TEST" not in os.environ
