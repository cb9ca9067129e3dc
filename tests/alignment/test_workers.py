import os
import subprocess
import sys

import pytest

from flower_vfl.alignment import workers
from flower_vfl.alignment.group import Key, id_blocks
from flower_vfl.alignment.workers import multiply_all
from flower_vfl.errors import ProtocolError, SessionError
from tests.cases import parametrize


@pytest.fixture
def small(monkeypatch):
    """Use worker processes from ten points on, as on three cores."""
    monkeypatch.setattr(workers, "_WORTHWHILE", 10)
    monkeypatch.setattr(workers, "cores", lambda: 3)


@parametrize("processes", [1, 2, 3], quick=1)
def test_processes_change_nothing_but_the_time(small, processes):
    key, blocks = Key(12345), id_blocks(map(str, range(101)))
    hashed = multiply_all(key, blocks, hashed=True, processes=processes)
    assert hashed == b"".join(key.multiply_hashed(blocks[at : at + 32]) for at in range(0, len(blocks), 32))
    again = multiply_all(key.inverse(), hashed, hashed=False, processes=processes)
    assert again == multiply_all(Key(1), blocks, hashed=True, processes=1)


@pytest.mark.parametrize("processes", [1, 2])
def test_progress_adds_up_to_all_points(small, processes):
    done = []
    multiply_all(Key(3), id_blocks(map(str, range(2100))), hashed=True, processes=processes, progress=done.append)
    assert sum(done) == 2100
    assert len(done) > 1


def test_another_host_cannot_ask_for_more_processes_than_there_are_cores(small, monkeypatch):
    started, genuine = [], subprocess.Popen
    monkeypatch.setattr(
        workers.subprocess, "Popen", lambda *words, **more: started.append(1) or genuine(*words, **more)
    )
    multiply_all(Key(3), id_blocks(map(str, range(40))), hashed=True, processes=10**6)
    assert len(started) == 3


@pytest.mark.parametrize("processes", [1, 2])
def test_bytes_that_are_no_point_are_refused_in_whatever_process(small, processes):
    good = multiply_all(Key(3), id_blocks(map(str, range(40))), hashed=True, processes=1)
    with pytest.raises(ProtocolError, match="no point of the curve"):
        multiply_all(Key(3), good + b"\xff" * 32, hashed=False, processes=processes)


def test_bytes_that_are_cut_are_refused():
    with pytest.raises(ProtocolError, match="32 bytes each, given 33"):
        multiply_all(Key(3), bytes(33), hashed=True)


def test_no_points_give_none():
    assert multiply_all(Key(3), b"", hashed=False) == b""


@pytest.mark.slow
def test_a_worker_that_dies_is_an_error_and_the_others_end(small, monkeypatch):
    started, genuine = [], subprocess.Popen

    def killed(command, **more):
        worker = genuine(command, **more)
        started.append(worker)
        if len(started) == 1:
            worker.kill()
        return worker

    monkeypatch.setattr(workers.subprocess, "Popen", killed)
    with pytest.raises(SessionError, match="worker of the alignment died"):
        multiply_all(Key(3), id_blocks(map(str, range(100_000))), hashed=True, processes=2)
    assert [worker.poll() is not None for worker in started] == [True, True]


def test_the_key_is_neither_in_the_arguments_nor_in_the_environment_of_a_worker(small, monkeypatch):
    seen, genuine = [], subprocess.Popen

    def noted(command, **more):
        seen.append(repr((command, more)))
        return genuine(command, **more)

    monkeypatch.setattr(workers.subprocess, "Popen", noted)
    key = Key.fresh()
    multiply_all(key, id_blocks(map(str, range(20))), hashed=True, processes=2)
    assert len(seen) == 2
    for words in seen:
        assert key.to_bytes().hex() not in words
        assert repr(key.to_bytes()) not in words
        assert str(int.from_bytes(key.to_bytes(), "big")) not in words


def test_workers_start_from_any_folder_and_without_a_guarded_main_module(tmp_path):
    script = tmp_path / "unguarded.py"
    script.write_text(
        "from flower_vfl.alignment import workers\n"
        "from flower_vfl.alignment.group import Key, id_blocks\n"
        "workers._WORTHWHILE = 1\n"
        "print(len(workers.multiply_all(Key(3), id_blocks(map(str, range(50))), hashed=True, processes=2)))\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(entry or os.getcwd() for entry in sys.path)}
    done = subprocess.run(
        [sys.executable, str(script)], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.stdout == "1600\n", done.stderr
