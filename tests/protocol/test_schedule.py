"""Both sides derive the same order of rows from the shared seed, and from nothing else."""

import dataclasses
import inspect
import json
import math
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

from flower_vfl.errors import ConfigError
from flower_vfl.protocol.schedule import Schedule, is_scored

SCHEDULES = st.builds(
    Schedule,
    seed=st.integers(0, 2**63 - 1),
    rows=st.integers(1, 300),
    test_rows=st.integers(0, 100),
    batch_size=st.integers(1, 400),
    eval_batch_size=st.integers(1, 120),
    epochs=st.integers(1, 3),
    validation=st.floats(0, 0.99),
)
IN_TIME = st.builds(
    lambda periods, **more: Schedule(rows=sum(periods), epochs=len(periods), periods=tuple(periods), **more),
    periods=st.lists(st.integers(1, 60), min_size=1, max_size=8),
    seed=st.integers(0, 2**63 - 1),
    test_rows=st.integers(0, 100),
    batch_size=st.integers(1, 80),
    eval_batch_size=st.integers(1, 80),
    validation=st.just(0.0),
)
BASE = Schedule(seed=7, rows=1000, test_rows=50, batch_size=64, eval_batch_size=32, epochs=3, validation=0.1)

PINNED = [[1, 2, 0, 9, 11, 6, 3, 7, 5], [7, 6, 2, 0, 3, 11, 1, 5, 9], [4, 8, 10]]


def order(schedule, epoch):
    return np.concatenate([schedule.train_batch(step) for step in schedule.steps_of(epoch)])


def evaluated(schedule, part):
    parts = [schedule.eval_batch(part, index) for index in range(schedule.batches(part))]
    return np.concatenate([np.empty(0, np.int64), *parts])


@given(st.one_of(SCHEDULES, IN_TIME))
@settings(max_examples=100)
def test_places_of_a_step_are_the_positions_of_its_rows_among_the_trained_rows(schedule):
    for epoch in range(1, schedule.epochs + 1):
        trained = schedule.trained_rows(epoch)
        last = {row: None for day in range(1, epoch + 1) for row in order(schedule, day)}
        assert sorted(trained.tolist()) == sorted(last)
        for step in schedule.steps_of(epoch):
            np.testing.assert_array_equal(trained[schedule.places(step)], schedule.train_batch(step))
        if not schedule.periods:
            assert not trained.flags.writeable  # every party of the process reads it


@given(SCHEDULES)
@settings(max_examples=100)
def test_an_epoch_visits_each_training_row_once_and_no_validation_row(schedule):
    validation = evaluated(schedule, "validation")
    assert schedule.held_out.tolist() == sorted(validation)
    for epoch in range(1, schedule.epochs + 1):
        visited = order(schedule, epoch)
        assert len(visited) == schedule.train_rows
        assert sorted([*visited, *validation]) == list(range(schedule.rows))


@given(SCHEDULES)
@settings(max_examples=100)
def test_all_batches_but_the_last_are_full_and_none_is_empty(schedule):
    sizes = [len(schedule.train_batch(step)) for step in schedule.steps_of(1)]
    assert all(size == schedule.batch_size for size in sizes[:-1])
    assert 1 <= sizes[-1] <= schedule.batch_size
    for part in ("validation", "test"):
        sizes = [len(schedule.eval_batch(part, index)) for index in range(schedule.batches(part))]
        assert all(size == schedule.eval_batch_size for size in sizes[:-1])
        assert all(sizes)


@given(IN_TIME)
@settings(max_examples=100)
def test_with_periods_an_epoch_visits_the_rows_of_its_period_once_and_no_other(schedule):
    ends = np.cumsum(schedule.periods)
    for epoch, (end, rows) in enumerate(zip(ends, schedule.periods, strict=True), start=1):
        assert sorted(order(schedule, epoch)) == list(range(end - rows, end))
        assert [len(schedule.train_batch(step)) for step in schedule.steps_of(epoch)] == [
            schedule.batch_rows(step) for step in schedule.steps_of(epoch)
        ]


@given(IN_TIME)
@settings(max_examples=100)
def test_after_a_period_the_next_one_is_evaluated_in_its_own_order_and_after_the_last_none(schedule):
    ends, seen = np.cumsum(schedule.periods), []
    for epoch in range(1, schedule.epochs + 1):
        due = schedule.batches_after("next", epoch)
        seen += due
        rows = [schedule.eval_batch("next", index) for index in due]
        expected = np.arange(ends[epoch - 1], ends[epoch]) if epoch < schedule.epochs else []
        assert np.array_equal(np.concatenate([np.empty(0, np.int64), *rows]), expected)
        assert all(0 < len(batch) <= schedule.eval_batch_size for batch in rows)
        assert schedule.batches_after("test", epoch) == range(schedule.batches("test"))
    assert seen == list(range(schedule.batches("next")))


def test_without_periods_nothing_is_next():
    assert BASE.batches("next") == 0
    assert not BASE.batches_after("next", 1)


def test_the_rows_of_a_period_are_shuffled():
    schedule = dataclasses.replace(BASE, validation=0.0, epochs=2, periods=(400, 600))
    assert order(schedule, 1).tolist() != sorted(order(schedule, 1))
    assert order(schedule, 2).tolist() != sorted(order(schedule, 2))


@pytest.mark.parametrize(
    "changes",
    [
        {"periods": (400, 599)},
        {"periods": (400, 601)},
        {"periods": (1000, 0)},
        {"periods": (1001, -1)},
        {"epochs": 3},
        {"validation": 0.1},
    ],
)
def test_periods_that_are_not_the_table_or_other_epochs_are_refused(changes):
    fitting = {"validation": 0.0, "epochs": 2, "periods": (400, 600)}
    with pytest.raises(ConfigError, match="must be the 1000 rows of the table"):
        dataclasses.replace(BASE, **{**fitting, **changes})


@given(st.one_of(SCHEDULES, IN_TIME))
@settings(max_examples=50)
def test_the_steps_of_the_epochs_follow_each_other_without_a_gap(schedule):
    steps = [(step, epoch) for epoch in range(1, schedule.epochs + 1) for step in schedule.steps_of(epoch)]
    assert [step for step, _ in steps] == list(range(schedule.steps))
    assert all(schedule.epoch_of(step) == epoch for step, epoch in steps)
    assert all(schedule.epoch_start(step + 1) == schedule.steps_of(epoch).start for step, epoch in steps)
    assert schedule.epoch_start(0) == 0


@given(SCHEDULES)
@settings(max_examples=50)
def test_the_test_table_is_evaluated_in_its_own_order(schedule):
    assert evaluated(schedule, "test").tolist() == list(range(schedule.test_rows))


@given(SCHEDULES)
@settings(max_examples=30)
def test_both_sides_derive_the_same_batches_whatever_else_they_draw(schedule):
    torch.manual_seed(1)
    first = [schedule.train_batch(step) for step in range(schedule.steps)]
    torch.manual_seed(2)
    dataclasses.replace(schedule, seed=(schedule.seed + 1) % 2**63).train_batch(0)  # replaces the cached order
    second = [dataclasses.replace(schedule).train_batch(step) for step in range(schedule.steps)]
    assert all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))


def test_the_order_differs_between_epochs_and_between_seeds():
    other = dataclasses.replace(BASE, seed=8)
    orders = [order(schedule, epoch) for schedule in (BASE, other) for epoch in (1, 2, 3)]
    for index, one in enumerate(orders):
        for two in orders[index + 1 :]:
            # Two independent orders agree at one position on average.
            assert (one == two).sum() < 10
    assert evaluated(BASE, "validation").tolist() != evaluated(other, "validation").tolist()


def test_the_order_is_pinned_so_that_another_version_cannot_silently_change_it():
    schedule = Schedule(seed=42, rows=12, test_rows=0, batch_size=12, eval_batch_size=4, epochs=2, validation=0.25)
    assert schedule.train_batch(0).tolist() == PINNED[0]
    assert schedule.train_batch(1).tolist() == PINNED[1]
    assert schedule.eval_batch("validation", 0).tolist() == PINNED[2]


def test_the_validation_rows_are_the_same_in_every_epoch_sorted_and_spread():
    validation = evaluated(BASE, "validation")
    assert len(validation) == 100
    assert (np.diff(validation) > 0).all()
    assert 300 < validation.mean() < 700


def test_validation_rows_dropped_in_chunks_are_those_dropped_at_once(monkeypatch):
    whole = order(BASE, 1)
    monkeypatch.setattr("flower_vfl.protocol.schedule._CHUNK", 7)
    dataclasses.replace(BASE, seed=0).train_batch(0)  # replaces the cached order
    assert np.array_equal(order(BASE, 1), whole)


@pytest.mark.parametrize("change", [{"validation": 0.25}, {"validation": 0.5}, {"seed": 2}, {"rows": 39}])
def test_schedules_that_differ_in_one_thing_do_not_share_an_order(change):
    plain = Schedule(seed=1, rows=40, test_rows=1, batch_size=40, eval_batch_size=8, epochs=2, validation=0.0)
    other = dataclasses.replace(plain, **change)
    first = plain.train_batch(0).tolist()  # and it is cached
    rows = other.train_batch(0)
    assert len(rows) == other.train_rows
    assert not np.isin(evaluated(other, "validation"), rows).any()
    assert rows.tolist() != first


def test_a_batch_that_is_written_to_does_not_change_the_schedule():
    first = BASE.train_batch(0).copy()
    BASE.train_batch(0)[:] = 0
    BASE.eval_batch("validation", 0)[:] = 0
    assert np.array_equal(BASE.train_batch(0), first)
    assert evaluated(BASE, "validation").max() > 0


def test_parties_in_threads_of_one_process_get_the_same_batches_at_different_epochs():
    expected = {step: BASE.train_batch(step) for step in range(BASE.steps)}
    wrong = []

    def party(offset):
        for step in range(BASE.steps):
            shifted = (step + offset) % BASE.steps
            if not np.array_equal(BASE.train_batch(shifted), expected[shifted]):
                wrong.append(shifted)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(party, range(0, 64, 16)))
    assert wrong == []


CHANGES = {
    "seed": 8,
    "rows": 1001,
    "test_rows": 51,
    "batch_size": 65,
    "eval_batch_size": 33,
    "epochs": 4,
    "validation": math.nextafter(0.1, 1),
}


def test_the_digest_differs_when_the_periods_do():
    one, two = (
        dataclasses.replace(BASE, validation=0.0, epochs=2, periods=periods) for periods in ((400, 600), (500, 500))
    )
    assert len({one.digest, two.digest, dataclasses.replace(one, periods=()).digest}) == 3


@pytest.mark.parametrize("name", CHANGES)
def test_the_digest_differs_when_any_field_differs(name):
    assert CHANGES.keys() == {field.name for field in dataclasses.fields(Schedule)} - {"periods"}
    assert BASE.digest != dataclasses.replace(BASE, **{name: CHANGES[name]}).digest
    assert BASE.digest == dataclasses.replace(BASE).digest


def test_no_label_and_no_secret_can_enter_the_schedule():
    allowed = {"self", "step", "epoch", "part", "index", "periods", *CHANGES}
    functions = [Schedule.__init__, Schedule.train_batch, Schedule.eval_batch, Schedule.batches, Schedule.steps_of]
    functions.append(Schedule.batches_after)
    assert {name for function in functions for name in inspect.signature(function).parameters} <= allowed


@pytest.mark.parametrize(("rows", "validation"), [(0, 0.0), (0, 0.5), (-3, 0.0)])
def test_a_table_that_leaves_nothing_to_train_on_is_refused(rows, validation):
    with pytest.raises(ConfigError, match=f"no row is left to train on: {rows} rows"):
        dataclasses.replace(BASE, rows=rows, validation=validation)


MEMORY = """
import json, sys
from pathlib import Path
from flower_vfl.protocol.schedule import Schedule
def status(name):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))
def schedule(rows):
    return Schedule(seed=1, rows=rows, test_rows=0, batch_size=1024, eval_batch_size=1024, epochs=2)
schedule(1000).train_batch(0)
Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here
before, peak_before = status("RssAnon"), status("VmHWM")
big = schedule(10_000_000)
for step in (0, 1, big.steps_of(2).start):
    big.train_batch(step)
print(json.dumps({"held": status("RssAnon") - before, "peak": status("VmHWM") - peak_before}))
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_ten_million_rows_cost_four_bytes_each_and_never_seven():
    done = subprocess.run([sys.executable, "-c", MEMORY], capture_output=True, text=True, timeout=120, check=True)
    used = json.loads(done.stdout)
    # Four bytes for the order, 0.4 for the validation rows, and up to two that malloc keeps for later.
    assert 4 * 10**7 < used["held"] < 6.5 * 10**7
    assert used["peak"] < 7 * 10**7


@given(st.integers(1, 40))
def test_of_each_so_many_steps_one_is_scored_and_the_first_of_all(every):
    scored = [step for step in range(12 * every) if is_scored(step, every)]
    assert [step // every for step in scored] == list(range(12))
    assert scored[0] == 0


@pytest.mark.parametrize("every", [2, 3, 12, 16])
def test_scored_steps_lie_on_no_side_of_anything_that_repeats(every):
    """Chi-squared over the places, 2,000 steps; a false alarm in 10,000 would be one in the choice of the hash."""
    places = [step % every for step in range(1, 2000 * every) if is_scored(step, every)]
    assert chisquare(np.bincount(places, minlength=every)).pvalue > 1e-4
