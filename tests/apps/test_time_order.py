"""Training in time order: each day is scored before it is trained on, whatever carries the messages."""

from __future__ import annotations

import dataclasses
import json
import math

import numpy as np
import pyarrow.parquet as pq
import pytest

from flower_vfl import run
from flower_vfl.apps.local_grid import LocalGrid
from flower_vfl.apps.periods import read_periods
from flower_vfl.config import to_run_config
from flower_vfl.data.store.dataset import Labels
from flower_vfl.data.store.memory import MemoryData, array_table
from flower_vfl.data.store.periods import Period, Periods
from flower_vfl.errors import ConfigError, PartyError
from flower_vfl.metrics import null_quantile
from flower_vfl.tracking import read_steps
from flower_vfl.training.factories import schedule_of
from tests.faults.common import Interrupt, assert_same
from tests.toys import toy_config, toy_data

DAYS = (150, 70, 130, 100)
TRANSPORTS = {
    "inproc": {},
    "inproc, in flight": {"in_flight": 3},
    "stream": {"kind": "stream", "in_flight": 3},
    "messages": {"kind": "messages"},
}


def days(*rows, test=(150,)):
    names = [f"day {number}" for number in range(1, len(rows) + len(test) + 1)]
    periods = [Period(name, count) for name, count in zip(names, (*rows, *test), strict=True)]
    return Periods(tuple(periods[: len(rows)]), tuple(periods[len(rows) :]))


def timed(*rows, **more):
    """Return data whose training has a day for each number of rows, and whose test has all other rows."""
    whole = toy_data(rows=600, test_rows=0, **more)
    end = sum(rows)
    tables = {}
    for name, table in whole.tables.items():
        (values,) = table.train.gather(np.arange(600))
        tables[name] = array_table(name, values[:end].numpy(), values[end:].numpy())
    y = whole.target.train
    labels = Labels(y[:end], y[end:], whole.target.classes)
    return MemoryData("toy", tables, "label", labels, periods=days(*rows, test=(600 - end,)))


def in_time(**sections):
    training = {"order": "time", "epochs": 1, "validation": 0.0, **sections.pop("training", {})}
    return toy_config(training=training, checkpoint={"every": 2}, **sections)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole") / "run"
    return run(in_time(), out=folder, data=lambda _: timed(*DAYS))


def test_a_day_is_scored_with_the_model_that_has_seen_the_days_before_and_nothing_of_it(whole):
    """A run that ends the day before gets the same metrics on that day as its test."""
    for known in range(1, len(DAYS)):
        shorter, day = timed(*DAYS[:known]), slice(0, DAYS[known])
        tables = {
            name: array_table(name, table.train.gather(np.arange(sum(DAYS[:known])))[0].numpy(), test.numpy()[day])
            for name, table in shorter.tables.items()
            for (test,) in [table.test.gather(np.arange(600 - sum(DAYS[:known])))]
        }
        labels = Labels(shorter.target.train, shorter.target.test[day], 2)
        data = MemoryData("toy", tables, "label", labels, periods=days(*DAYS[:known], test=(DAYS[known],)))
        last = run(in_time(), data=lambda _, data=data: data).outcome.epochs[-1]
        scored = whole.outcome.epochs[known - 1]
        assert "next_auc" not in last
        for metric in ("auc", "loss", "accuracy", "ace", "balanced_accuracy"):
            assert scored[f"next_{metric}"] == last[f"test_{metric}"]


def test_each_row_is_trained_on_once_and_no_day_before_the_one_before_it(whole):
    steps = [math.ceil(rows / 64) for rows in DAYS]
    assert whole.summary["cost"]["steps"] == sum(steps)
    table = read_steps(whole.folder)
    rows = {(row["epoch"], row["step"]): row["value"] for row in table.to_pylist() if row["metric"] == "batch_rows"}
    assert [epoch for epoch, _ in sorted(rows)] == np.repeat([1, 2, 3, 4], steps).tolist()
    assert [sum(value for (day, _), value in rows.items() if day == epoch) for epoch in (1, 2, 3, 4)] == list(DAYS)


@pytest.mark.parametrize("transport", [name for name in TRANSPORTS if "flight" not in name and name != "stream"])
def test_every_transport_gives_the_same(whole, transport):
    result = run(in_time(transport=TRANSPORTS[transport]), data=lambda _: timed(*DAYS))
    assert result.summary["weights"] == whole.summary["weights"]
    assert result.outcome.epochs == whole.outcome.epochs


@pytest.mark.slow
def test_steps_in_flight_give_the_same_on_every_transport_and_never_cross_the_end_of_a_day():
    config = {"in_flight": 3}
    results = [
        run(in_time(transport={**config, "kind": kind}), data=lambda _: timed(*DAYS))
        for kind in ("inproc", "stream", "messages")
    ]
    assert len({json.dumps(result.summary["weights"]) for result in results}) == 1
    # In days of one step no two steps can be in flight: the number changes nothing.
    one, three = (
        run(in_time(training={"batch_size": 300}, transport={"in_flight": count}), data=lambda _: timed(*DAYS))
        for count in (1, 3)
    )
    assert one.summary["weights"] == three.summary["weights"]


@pytest.mark.slow
@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("steps", [(4,), (2, 3, 5)])
def test_a_run_that_was_interrupted_goes_on_to_the_same_bit_for_bit(tmp_path, transport, steps, monkeypatch):
    monkeypatch.setenv("FLOWER_VFL_STATE", str(tmp_path / "state"))
    sections = {
        "transport": TRANSPORTS[transport],
        "model": {"dropout": 0.1},
        "attack": {"names": ["norm", "hint(k=2)"], "snapshots": [1, 4]},
        "defenses": [{"name": "marvell", "s": 1.0}],
    }

    def data(_):
        return timed(*DAYS)

    for step in steps:
        with pytest.raises(KeyboardInterrupt):
            run(in_time(**sections), out=tmp_path / "run", resume=True, data=data, observers=(Interrupt(step),))
    run(in_time(**sections), out=tmp_path / "run", resume=True, data=data)
    run(in_time(**sections), out=tmp_path / "alone", data=data)
    assert_same(tmp_path / "run", tmp_path / "alone")
    assert read_periods(tmp_path / "run").equals(read_periods(tmp_path / "alone"))


def test_leakage_and_utility_are_written_by_day(whole):
    table = pq.read_table(whole.folder / "periods.parquet").to_pylist()
    steps = read_steps(whole.folder).to_pylist()
    leak = {
        (r["period"], r["party"], r["metric"]): r["value"]
        for r in table
        if (r["attack"], r["layer"]) == ("norm", "cut")
    }
    for day in (1, 2, 3, 4):
        for party in ("a", "b"):
            values = sorted(
                row["value"]
                for row in steps
                if (row["epoch"], row["party"], row["layer"], row["metric"]) == (day, party, "cut", "auc")
                and row["attack"] == "norm"
                and np.isfinite(row["value"])  # a batch of one class has no AUC
            )
            assert leak[day, party, "auc_mean"] == pytest.approx(np.mean(values))
            assert leak[day, party, "auc_q95"] == values[math.ceil(0.95 * len(values)) - 1]
            assert leak[day, party, "monitor_auc_q95"] == leak[day, party, "auc_q95"]
    utility = {(row["period"], row["metric"]): row["value"] for row in table if not row["attack"]}
    assert [utility[day, "auc"] for day in (2, 3, 4)] == [epoch["next_auc"] for epoch in whole.outcome.epochs[:3]]
    assert utility[5, "auc"] == whole.outcome.epochs[-1]["test_auc"]
    assert {day for day, metric in utility if metric == "null_q95"} == {1, 2, 3, 4}
    y = timed(*DAYS).target.train
    schedule = schedule_of(in_time(), 450, 150, periods=timed(*DAYS).periods)
    for day in (1, 2, 3, 4):
        batches = [y[schedule.train_batch(step)] for step in schedule.steps_of(day)]
        counts = [(int((batch == 0).sum()), int(batch.sum())) for batch in batches]
        assert utility[day, "null_q95"] == null_quantile(counts)
    assert {row["period"]: row["name"] for row in table} == {day: f"day {day}" for day in (1, 2, 3, 4, 5)}


def test_an_attack_that_knows_positives_has_a_null_of_its_own_without_them(tmp_path):
    attack = {"names": ["norm", "hint(k=5)", "cosine"]}
    result = run(in_time(attack=attack, training={"batch_size": 32}), out=tmp_path / "run", data=lambda _: timed(*DAYS))
    table = pq.read_table(result.folder / "periods.parquet").to_pylist()
    found = {(r["period"], r["attack"]): r["value"] for r in table if r["metric"] == "null_q95"}
    entries = {e["attack"]: e for e in result.summary["leakage"] if (e["party"], e["layer"]) == ("a", "cut")}
    y, overall = timed(*DAYS).target.train, []
    schedule = schedule_of(in_time(training={"batch_size": 32}), 450, 150, periods=timed(*DAYS).periods)
    for day in (1, 2, 3, 4):
        batches = [y[schedule.train_batch(step)] for step in schedule.steps_of(day)]
        for attack, known in (("", 0), (entries["hint"]["label"], 5), ("cosine", 1)):
            counts = [(int((batch == 0).sum()), max(int(batch.sum()) - known, 0)) for batch in batches]
            assert found[day, attack] == null_quantile(counts)
            overall += counts if known == 5 else []
    assert {attack for _, attack in found} == {"", entries["hint"]["label"], "cosine"}
    assert entries["hint"]["q95_null"] == null_quantile(overall)  # as over the whole run


def test_the_result_says_which_days_were_trained_and_what_the_next_ones_gave_on_average(whole):
    found = json.loads((whole.folder / "result.json").read_text())["periods"]
    assert (found["trained"], found["first"], found["last"]) == (4, "day 1", "day 4")
    aucs = [epoch.get("next_auc", epoch["test_auc"]) for epoch in whole.outcome.epochs]
    assert found["mean"]["auc"] == pytest.approx(np.mean(aucs))
    assert {"loss", "accuracy", "ace", "balanced_accuracy"} < set(found["mean"])


def test_a_run_that_is_interrupted_has_the_days_until_then(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        run(in_time(), out=tmp_path / "run", data=lambda _: timed(*DAYS), observers=(Interrupt(4),))
    found = json.loads((tmp_path / "run" / "result.json").read_text())["periods"]
    assert (found["trained"], found["last"]) == (1, "day 1")
    table = read_periods(tmp_path / "run").to_pylist()
    assert {row["period"] for row in table if row["metric"] == "auc"} == {2}


def test_a_day_with_one_class_has_no_auc_and_the_mean_says_so(tmp_path):
    data = timed(*DAYS)
    y = data.target.train.copy()
    y[150:220] = 0
    data = dataclasses.replace(data, target=Labels(y, data.target.test, 2))
    result = run(in_time(), out=tmp_path / "run", data=lambda _: data)
    assert math.isnan(result.outcome.epochs[0]["next_auc"])
    assert result.summary["periods"]["mean"]["auc"] is None
    assert result.summary["periods"]["mean"]["loss"] > 0
    table = read_periods(tmp_path / "run").to_pylist()
    assert 2 not in {row["period"] for row in table if row["attack"]}


def test_a_random_order_writes_nothing_by_day(tmp_path):
    result = run(toy_config(), out=tmp_path / "run", data=lambda _: timed(*DAYS))
    assert "periods" not in result.summary
    assert not (tmp_path / "run" / "periods.parquet").exists()
    assert read_periods(tmp_path / "run").num_rows == 0


def test_data_without_days_is_refused_with_what_to_do(tmp_path):
    with pytest.raises(
        ConfigError, match=r"does not give the days of its rows.*test_days = 1.*MemoryData with `periods`"
    ):
        run(in_time(), out=tmp_path / "run", data=lambda _: toy_data())


def test_a_party_whose_rows_are_of_other_days_is_refused():
    from torch import nn

    from flower_vfl.apps.client_app import make_client_app
    from flower_vfl.strategies import VerticalStrategy

    data, config = timed(*DAYS), in_time()
    other = dataclasses.replace(data, periods=days(150, 71, 129, 100))
    grid = LocalGrid(make_client_app(data=lambda _: other, config=config), 2, to_run_config(config))

    def start(periods, **more):
        labels, top = data.target, lambda shape: nn.Linear(shape[0], 1)
        VerticalStrategy(top, labels, parties=("a", "b"), config=config, periods=periods).start(grid, **more)

    with pytest.raises(PartyError, match=r"schedule is .* or its rows are of other days"):
        start(data.periods)
    with pytest.raises(ConfigError, match="one pass; 2 epochs were asked for"):
        start(data.periods, num_rounds=2)


def test_the_leak_limit_goes_back_to_the_model_from_before_the_day(tmp_path):
    limit = {"names": ["norm"], "max_leak": 0.51}
    result = run(in_time(attack=limit), out=tmp_path / "run", data=lambda _: timed(*DAYS))
    assert result.status == "leak limit"
    assert result.summary["periods"]["trained"] == len(result.outcome.epochs)
