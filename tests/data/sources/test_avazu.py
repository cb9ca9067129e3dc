import os
from datetime import date
from pathlib import Path

import numpy as np
import pytest

from flower_vfl import run
from flower_vfl.config import load_config
from flower_vfl.data.clicks import blocks
from flower_vfl.data.sources.catalog import load, prepare
from flower_vfl.data.store.dataset import open_dataset
from flower_vfl.errors import DataError
from tests.cases import parametrize
from tests.data.clicks.click_files import AVAZU, avazu_rows, read_back, write_avazu, write_lines

REAL = Path(os.environ.get("FLOWER_VFL_TEST_DATA", "nowhere")) / "avazu_train_499rows.csv"
ROWS = avazu_rows(300)


@pytest.fixture
def raw(tmp_path):
    return write_avazu(tmp_path / "raw" / "train.csv", ROWS)


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    """Read about 4 blocks for 300 rows."""
    monkeypatch.setattr(blocks, "BLOCK_BYTES", 12_000)


def values(dataset, name):
    """Return the rows of a part as texts, by column; "?" where a value is not in the vocabulary."""
    source = getattr(dataset.party("a"), name)
    (ids,) = source.gather(np.arange(len(source)))
    found = {}
    for place, encoding in enumerate(dataset.encoding("a").categorical):
        known = ["?", *encoding.values.to_pylist()]
        found[encoding.name] = [known[value] for value in ids[:, place].tolist()]
    return found


def check(dataset, rows):
    """Compare a set that was prepared with min_count = 1 with the rows of its file, and return their IDs."""
    by_id = {row[0]: row for row in rows}
    for name in ("train", "test"):
        own = [by_id[key] for key in dataset.ids(name)]
        assert getattr(dataset.labels(), name).tolist() == [int(row[1]) for row in own]
        found = values(dataset, name)
        days = [date(2000 + int(row[2][:2]), int(row[2][2:4]), int(row[2][4:6])) for row in own]
        expected = {column: [row[place] for row in own] for place, column in enumerate(AVAZU) if place > 2}
        expected |= {
            "hour_of_day": [str(int(row[2][6:])) for row in own],
            "weekday": [str(day.weekday()) for day in days],
        }
        assert set(found) == set(expected)
        for column, texts in expected.items():
            known = set(values(dataset, "train")[column])
            assert found[column] == [text if text in known else "?" for text in texts]
    return [row[0] for row in rows]


def test_every_row_is_in_one_part_with_its_label_and_its_values_and_the_id_is_no_feature(raw):
    dataset = load("avazu", path=raw, options={"min_count": 1})
    order = check(dataset, ROWS)
    for name in ("train", "test"):
        assert dataset.ids(name) == sorted(dataset.ids(name), key=order.index)
    assert sorted(dataset.ids("train") + dataset.ids("test")) == sorted(order)
    assert not {"id", "hour", "click", "day"} & set(dataset.party("a").columns)
    assert dataset.spec("a").numeric == 0
    dataset.verify()


@parametrize("name", ["train.csv", "train.csv.gz", "train", "train.gz"], quick=1)
def test_every_layout_gives_the_same_numbers(tmp_path, raw, name):
    write_avazu(tmp_path / "other" / name, ROWS)
    one, other = load("avazu", path=raw), load("avazu", path=tmp_path / "other")
    assert one.alignment == other.alignment
    assert one.encoding("a") == other.encoding("a")
    assert values(one, "train") == values(other, "train")


@pytest.mark.slow
def test_the_last_days_can_be_the_test_part(raw):
    for days, expected in ((1, {"141023"}), (2, {"141022", "141023"})):
        dataset = load("avazu", path=raw, options={"test_days": days})
        dates = {name: {row[2][:6] for row in ROWS if row[0] in set(dataset.ids(name))} for name in ("train", "test")}
        assert dates["test"] == expected
        assert dates["train"] == {"141021", "141022", "141023"} - expected
    with pytest.raises(DataError, match=r"no row is left for the train part"):
        load("avazu", path=raw, options={"test_days": 3})


def test_as_published_makes_every_value_a_category_of_all_rows(raw, tmp_path):
    dataset = prepare("avazu", source=raw, out=tmp_path / "out", published=True)
    for place, column in enumerate(AVAZU[3:], start=3):
        encoding = next(found for found in dataset.encoding("a").categorical if found.name == column)
        assert set(encoding.values.to_pylist()) == {row[place] for row in ROWS}


@pytest.mark.parametrize("text", ["14102124", "2014102100", "", "x"])
def test_an_invalid_hour_makes_a_bad_line(tmp_path, text):
    rows = [list(row) for row in ROWS]
    rows[100][2] = text
    with pytest.raises(DataError, match="line 102: hour is not an hour as YYMMDDHH"):
        load("avazu", path=write_avazu(tmp_path / "train.csv", rows), options={"bad_lines": 0})


def test_ids_beyond_64_bits_are_kept_and_those_that_repeat_refused(tmp_path):
    rows = [list(row) for row in ROWS]
    rows[5][0], rows[6][0], rows[7][0] = str(2**64 + 7), "7", "007"  # One number modulo 2^64, three IDs.
    dataset = load("avazu", path=write_avazu(tmp_path / "train.csv", rows))
    assert {str(2**64 + 7), "7", "007"} <= set(dataset.ids("train") + dataset.ids("test"))
    rows[250][0] = rows[5][0]
    with pytest.raises(DataError, match="rows 6 and 251 have the same ID; up to 1 IDs occur more than once"):
        load("avazu", path=write_avazu(tmp_path / "again.csv", rows))


@pytest.mark.parametrize(
    ("delimiter", "header", "words"),
    [
        ("\t", AVAZU, "must be separated by commas"),
        (";", AVAZU, "must be separated by commas"),
        (",", [name for name in AVAZU if name != "click"], "no column 'click'.*published test file has no clicks"),
        (",", [name for name in AVAZU if name != "device_ip"], "no column 'device_ip'"),
        (",", ["a", "b"], "no column 'id'"),
    ],
)
def test_another_file_is_refused(tmp_path, delimiter, header, words):
    path = write_lines(tmp_path / "train.csv", ROWS, delimiter=delimiter, header=header)
    with pytest.raises(DataError, match=words):
        load("avazu", path=path)


def test_a_prepared_folder_trains_with_its_preset(raw, tmp_path):
    prepare("avazu", source=raw, out=tmp_path / "out", options={"label_columns": "all"})
    settings = {"data.path": str(tmp_path / "out"), "training.epochs": "1", "training.batch_size": "64"}
    result = run(load_config("avazu", settings), out=tmp_path / "run")
    assert result.summary["dataset"]["rows"] == open_dataset(tmp_path / "out").rows("train")


def test_a_folder_prepared_by_day_trains_with_its_preset(raw, tmp_path):
    prepare("avazu", source=raw, out=tmp_path / "out", options={"label_columns": "all", "test_days": 1})
    result = run(load_config("avazu-days", {"data.path": str(tmp_path / "out")}), out=tmp_path / "run")
    assert (result.summary["periods"]["first"], result.summary["periods"]["trained"]) == ("2014-10-21", 2)
    assert result.summary["model"]["epoch"] == 2
    prepare("avazu", source=raw, out=tmp_path / "other", options={"label_columns": "all"})
    with pytest.raises(DataError, match="prepared with test_days = 0, asked for is 1"):
        run(load_config("avazu-days", {"data.path": str(tmp_path / "other")}), out=tmp_path / "again")


@pytest.mark.skipif(not REAL.is_file(), reason="needs the sample rows in the folder that FLOWER_VFL_TEST_DATA names")
def test_real_rows_keep_their_labels_and_values():
    dataset = load("avazu", path=REAL, options={"bad_lines": 0, "min_count": 1})
    rows = read_back(REAL, ",")[1:]
    assert len(check(dataset, rows)) == dataset.rows("train") + dataset.rows("test") == 499
