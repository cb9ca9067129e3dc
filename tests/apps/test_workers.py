"""The label party waits for Ray and its workers before it opens sessions in Flower's simulation."""

import os
import sys
import threading
import time
from concurrent.futures import Future
from types import SimpleNamespace

import pytest

from flower_vfl.apps import workers
from flower_vfl.apps.workers import handlers, wait_for_ray, wait_for_workers
from flower_vfl.errors import SetupError


@pytest.fixture
def started(monkeypatch):
    future = Future()
    monkeypatch.setattr(workers, "STARTED", future)
    return future


@pytest.fixture
def ray_is_up(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(is_initialized=lambda: True))


def test_training_waits_until_ray_has_started(monkeypatch):
    answers = iter([False, False, True])
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(is_initialized=lambda: next(answers)))
    monkeypatch.setattr(time, "sleep", lambda _: None)
    wait_for_ray()
    assert next(answers, "asked no more") == "asked no more"


def test_training_waits_while_ray_is_being_imported(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace())

    def imported(_):
        sys.modules["ray"].is_initialized = lambda: True

    monkeypatch.setattr(time, "sleep", imported)
    wait_for_ray()


def test_a_simulation_that_needs_no_ray_goes_on_after_a_while(monkeypatch):
    monkeypatch.delitem(sys.modules, "ray", raising=False)
    monkeypatch.setattr(workers, "_RAY_SECONDS", 0.05)
    wait_for_ray()


def test_flower_by_itself_answers_so_many_messages_at_once_and_no_more(monkeypatch, started, ray_is_up):
    """A machine with two processors answers six, as was measured: two of eight parties never connected."""
    for processors, at_once in ((2, 6), (16, 20), (64, 32), (None, 5)):
        monkeypatch.setattr(os, "cpu_count", lambda processors=processors: processors)
        assert handlers() == at_once
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    wait_for_workers(6, at_once=True)
    wait_for_workers(7, at_once=False)  # frames in messages take turns
    with pytest.raises(SetupError, match=r"runs 6 ClientApps at once.*has 7 feature parties.*--engine flower"):
        wait_for_workers(7, at_once=True)


def test_the_number_of_messages_is_that_of_flowers_own_pool_of_threads():
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor() as pool:
        assert pool._max_workers == handlers()


def test_where_processes_are_announced_the_label_party_waits_for_all_of_them(started, ray_is_up):
    started.set_running_or_notify_cancel()
    waiting = threading.Thread(target=wait_for_workers, args=(32,), kwargs={"at_once": True})
    waiting.start()
    waiting.join(0.1)
    assert waiting.is_alive()
    started.set_result(None)
    waiting.join(5)
    assert not waiting.is_alive()


def test_the_label_party_gets_the_reason_why_no_workers_start(started):
    started.set_running_or_notify_cancel()
    started.set_exception(SetupError("no room"))
    with pytest.raises(SetupError, match="no room"):
        wait_for_workers(2, at_once=True)
