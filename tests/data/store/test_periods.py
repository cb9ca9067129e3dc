"""Periods of rows: valid and invalid ones in a manifest."""

import json
import logging
import random

import numpy as np
import pytest

from flower_vfl.data.clicks import blocks
from flower_vfl.data.sources.catalog import load
from flower_vfl.data.store.dataset import Alignment, open_dataset
from flower_vfl.data.store.memory import MemoryData
from flower_vfl.data.store.periods import Period, Periods, runs_of
from flower_vfl.errors import DataError
from tests.cases import parametrize
from tests.data.clicks.click_files import avazu_rows, write_avazu
from tests.toys import toy_data

ROWS = avazu_rows(300)
DAYS = ["2014-10-21", "2014-10-22", "2014-10-23"]


def counts(rows):
    return {day: sum(f"20{row[2][:2]}-{row[2][2:4]}-{row[2][4:6]}" == day for row in rows) for day in DAYS}


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    """Read about 12 blocks for 300 rows, so that a day is in several of them."""
    monkeypatch.setattr(blocks, "BLOCK_BYTES", 4_000)


@pytest.mark.parametrize("test_days", [1, 2])
def test_avazu_has_the_days_of_its_rows_with_the_last_ones_in_the_test(tmp_path, test_days):
    dataset = load("avazu", path=write_avazu(tmp_path / "train.csv", ROWS), options={"test_days": test_days})
    expected = [Period(day, rows) for day, rows in counts(ROWS).items()]
    assert dataset.alignment.periods == Periods(tuple(expected[:-test_days]), tuple(expected[-test_days:]))


def test_a_day_counts_the_sampled_rows_only(tmp_path):
    options = {"test_days": 1, "sample": 0.5}
    dataset = load("avazu", path=write_avazu(tmp_path / "train.csv", ROWS), options=options)
    kept = set(dataset.ids("train") + dataset.ids("test"))
    found = {period.name: period.rows for period in (*dataset.alignment.periods.train, *dataset.alignment.periods.test)}
    assert found == counts([row for row in ROWS if row[0] in kept])


def test_a_random_test_part_has_no_days(tmp_path):
    assert load("avazu", path=write_avazu(tmp_path / "train.csv", ROWS)).alignment.periods is None


def test_rows_out_of_time_order_have_no_days_and_a_warning_says_so(tmp_path, caplog):
    mixed = random.Random(1).sample(ROWS, len(ROWS))
    with caplog.at_level(logging.WARNING):
        dataset = load("avazu", path=write_avazu(tmp_path / "train.csv", mixed), options={"test_days": 1})
    assert dataset.alignment.periods is None
    assert "not in time order" in caplog.text


def test_the_period_of_an_epoch_is_the_one_that_it_trains_and_test_periods_follow():
    periods = Periods((Period("Mon", 2), Period("Tue", 1)), (Period("Wed", 4),))
    assert [periods.name(epoch) for epoch in (1, 2, 3)] == ["Mon", "Tue", "Wed"]
    assert periods.rows == (2, 1)


def test_days_of_rows_are_counted_in_runs_and_none_where_a_day_recurs():
    assert runs_of(np.array([4, 4, 9])) == [(4, 2), (9, 1)]
    assert runs_of(np.array([4, 9, 4])) is None
    assert runs_of(np.array([], dtype=np.int64)) == []


def test_alignments_with_and_without_days_are_equal():
    periods = Periods((Period("Mon", 3),), (Period("Tue", 2),))
    assert Alignment(3, 2, "x", periods) == Alignment(3, 2, "x")


def test_periods_that_do_not_have_the_tables_rows_are_refused():
    data = toy_data(rows=30, test_rows=10)
    for train, test in ((29, 10), (30, 11)):
        periods = Periods((Period("Mon", train),), (Period("Tue", test),))
        with pytest.raises(DataError, match=r"the periods of the (training|test) table have \d+ rows"):
            MemoryData("toy", data.tables, "label", data.target, periods=periods)


@parametrize(
    ("periods", "words"),
    [
        ([], "'periods' must be dict"),
        ({"train": [["x", 30]]}, "the test periods must be a list of pairs"),
        ({"train": [["x", 30, 1]], "test": []}, "the train periods must be a list of pairs"),
        ({"train": [["x", "30"]], "test": []}, "1 row or more"),
        ({"train": [["x", True]], "test": []}, "1 row or more"),
        ({"train": [["x", 0]], "test": []}, "1 row or more"),
        ({"train": [["x" * 65, 1]], "test": []}, "a name of 1 to 64 characters"),
        ({"train": [[7, 1]], "test": []}, "a name of 1 to 64 characters"),
        ({"train": [["x", 10**9]], "test": [["y", 1]]}, r"have 1000000000 rows, the table has \d+"),
    ],
    quick=2,
)
def test_a_manifest_with_other_periods_is_refused(tmp_path, periods, words):
    folder = load("avazu", path=write_avazu(tmp_path / "train.csv", ROWS), options={"test_days": 1}).folder
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["alignment"]["periods"] = periods
    (folder / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(DataError, match=words):
        open_dataset(folder)
