from __future__ import annotations

import logging

import pytest

from flower_vfl.apps.alignment import progress
from flower_vfl.apps.alignment.progress import LoggedProgress, counting


@pytest.fixture
def clock(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    return now


def test_a_stage_is_logged_when_it_begins_and_every_ten_seconds(clock, caplog):
    caplog.set_level(logging.INFO)
    log = LoggedProgress("a")
    for seconds, what, done in [
        (0, "hashing", 0.0),
        (9, "hashing", 0.2),
        (10, "hashing", 0.3),
        (11, "hashing", 0.4),
        (12, "reading", 0.0),
    ]:
        clock[0] = 100.0 + seconds
        log(what, done)
    assert [record.getMessage() for record in caplog.records] == [
        "alignment, party a: hashing, 0 %",
        "alignment, party a: hashing, 30 %",
        "alignment, party a: reading, 0 %",
    ]


def test_counting_adds_up_to_the_whole():
    reported = []
    advance = counting(lambda what, done: reported.append((what, done)), "hashing", 8, done=2)
    advance(2)
    advance(4)
    assert reported == [("hashing", 0.5), ("hashing", 1.0)]
