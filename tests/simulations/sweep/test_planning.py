"""Estimates of the time and the memory of a sweep."""

import dataclasses
import math
import os
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from flower_vfl.apps.factories import open_data
from flower_vfl.apps.local import run
from flower_vfl.config import load_config
from flower_vfl.errors import SetupError
from flower_vfl.simulations import cluster
from flower_vfl.simulations.sweep import plan, planning, sweeping
from flower_vfl.simulations.sweep.definition import load_definition
from flower_vfl.simulations.sweep.plan import print_plan
from flower_vfl.simulations.sweep.planning import Probe, check_gpu, fitting, makespan, measure, on_one_gpu, shapes_of
from flower_vfl.simulations.sweep.trials import trials_of
from flower_vfl.tracking import read_steps
from tests.apps.test_time_order import DAYS, in_time, timed

SMALL = """
[set]
data.name = "breast-cancer"
training = { batch_size = 64 }
model.bottom = [8]
[grid]
seed = [0, 1]
"training.epochs" = [2, 4]
defenses = ["none", { name = "marvell", s = [1.0, 4.0] }]
"""
PROBE = Probe(1.0, 0.1, 2.0, 0.001, 500, 0, 400, 100, 100)


@pytest.fixture
def definition(tmp_path):
    path = tmp_path / "sweep.toml"
    path.write_text(SMALL, encoding="utf8")
    return load_definition(str(path))


def test_trials_of_one_shape_are_measured_once_whatever_their_strength_seed_and_length(definition, monkeypatch):
    measured = []

    def probe(config, data):
        measured.append([entry["name"] for entry in config.defenses])
        return PROBE

    monkeypatch.setattr(planning, "measure", probe)
    shapes = shapes_of(trials_of(definition))
    assert measured[1:] == [[], ["marvell"]]  # the first measurement warms up
    assert [len(shape.trials) for shape in shapes] == [4, 8]


def test_the_time_of_a_trial_is_that_of_its_steps_and_its_evaluations():
    config = load_config("census", {"training.epochs": "3", "training.batch_size": "60", "training.validation": "0.1"})
    steps = 3 * math.ceil(360 / 60)
    assert PROBE.seconds(config) == pytest.approx(1.0 + steps * 0.1 + 3 * (40 + 100) * 0.001 + 2.0)


def test_a_plan_counts_the_steps_of_a_run_where_labels_are_randomised():
    """There "auto" makes a shorter run, see `STEPS_ON_NOISE`."""
    config = load_config("census", {"training.epochs": "auto", "training.batch_size": "auto", "defenses": "local_head"})
    plain = load_config("census", {"training.epochs": "auto", "training.batch_size": "auto"})
    probe = Probe(0.0, 1.0, 0.0, 0.0, 0, 0, 2000, 400, 1)
    fitted = config.fitted(2000).training
    assert probe.steps(config) == fitted.epochs * math.ceil(1800 / fitted.batch_size)
    assert probe.seconds(config) < probe.seconds(plain) / 4


@pytest.mark.slow
def test_the_schedule_of_the_computation_is_that_of_the_run():
    config = load_config("toy-gap", {"training.epochs": "2"})
    result = run(config)
    data = result.summary["dataset"]
    probe = Probe(0.0, 1.0, 0.0, 0.0, 0, 0, data["rows"], data["test_rows"], 1)
    assert probe.seconds(config) == result.summary["cost"]["steps"]


def test_a_probe_measures_a_part_of_the_data_on_the_path_of_a_trial(definition, monkeypatch):
    monkeypatch.setattr(planning, "PROBE_STEPS", 3)
    monkeypatch.setattr(planning, "MOST_TEST_ROWS", 50)
    config = trials_of(definition)[0].config
    seen = []

    def watched(small, **more):
        seen.append((small, more["data"](small).alignment))
        return run(small, **more)

    monkeypatch.setattr(planning, "run", watched)
    probe = measure(config, open_data)
    whole = open_data(config).alignment
    ((small, part),) = seen
    assert small.training.epochs == 1
    assert part.rows == math.ceil(3 * 64 / 0.9) + 1 < whole.rows
    assert part.test_rows == probe.measured_test_rows == 50
    assert (probe.rows, probe.test_rows) == (whole.rows, whole.test_rows)
    assert all(math.isfinite(value) and value > 0 for value in (probe.opening, probe.step, probe.ending))
    assert probe.memory > 0


@pytest.mark.slow
def test_days_in_time_order_are_counted_with_the_evaluation_of_each_by_the_model_before_it(tmp_path, monkeypatch):
    monkeypatch.setattr(planning, "PROBE_STEPS", 3)
    config = in_time()
    probe = measure(config, lambda _: timed(*DAYS))
    alone = {"opening": 0.0, "step": 0.0, "row": 0.0, "ending": 0.0}
    result = run(config, out=tmp_path / "run", data=lambda _: timed(*DAYS))
    assert dataclasses.replace(probe, **{**alone, "step": 1.0}).seconds(config) == result.summary["cost"]["steps"]
    tested = read_steps(tmp_path / "run")["metric"].to_pylist().count("test_auc")
    assert dataclasses.replace(probe, **{**alone, "row": 1.0}).seconds(config) == sum(DAYS[1:]) + tested * 150


def test_the_steps_in_time_order_are_those_of_the_days():
    config, dataset = in_time(), timed(*DAYS)
    probe = dataclasses.replace(PROBE, rows=sum(DAYS), periods=dataset.alignment.periods)
    steps = sum(math.ceil(rows / config.training.batch_size) for rows in DAYS)
    assert probe.steps(config) == steps
    assert dataclasses.replace(probe, opening=0.0, step=1.0, ending=0.0, row=0.0).seconds(config) == steps


def test_rows_of_a_part_are_spread_evenly_and_are_those_of_the_whole():
    config = load_config("toy-gap", {"training.batch_size": "8"})
    data = open_data(config)
    part = planning.part_of(data, config)
    count = part.alignment.rows
    rows = np.linspace(0, data.alignment.rows, count, endpoint=False).astype(np.int64)
    assert np.array_equal(part.labels().train, np.asarray(data.labels().train)[rows])
    for party in data.parties:
        ours, theirs = part.party(party).train, data.party(party).train
        for mine, other in zip(ours.gather(np.arange(count)), theirs.gather(rows), strict=True):
            assert torch.equal(mine, other)


@pytest.mark.parametrize(
    ("seconds", "places", "whole"),
    [([1.0, 2.0, 3.0], 1, 6.0), ([3.0, 1.0, 1.0, 1.0], 2, 3.0), ([2.0], 8, 2.0), ([], 2, 0.0)],
)
def test_trials_begin_where_a_place_is_free_first(seconds, places, whole):
    assert makespan(seconds, places) == whole


def test_more_trials_than_a_gpu_holds_are_refused_with_how_many_it_would():
    check_gpu(2 * 2**30, 10 * 2**30, on_one_gpu(0.25))
    check_gpu(3 * 2**30, 10 * 2**30, on_one_gpu(0.25, workers=3))
    with pytest.raises(SetupError, match=r"4 trials on a GPU need 12\.0 GiB.*3 would: gpus = 0\.333"):
        check_gpu(3 * 2**30, 10 * 2**30, on_one_gpu(0.25))
    with pytest.raises(SetupError, match="smaller batches"):
        check_gpu(11 * 2**30, 10 * 2**30, on_one_gpu(1.0))
    assert fitting(100, 0) == 0


@pytest.mark.parametrize(
    ("gpus", "workers", "at_once"), [(0.25, 0, 4), (0.3, 0, 3), (1.0, 0, 1), (2.0, 0, 1), (0.1, 4, 4)]
)
def test_the_number_of_trials_that_share_a_gpu(gpus, workers, at_once):
    assert on_one_gpu(gpus, workers) == at_once


class Gpu:
    """Patches of torch and of `measure` that simulate a GPU of 10 GiB."""

    def __init__(self, monkeypatch, probe):
        self.measured = 0

        def measure(config, data):
            self.measured += 1
            if isinstance(probe, Exception):
                raise probe
            return probe

        monkeypatch.setattr(planning, "measure", measure)
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(total_memory=10 * 2**30))


@pytest.mark.parametrize(
    ("probe", "workers", "words"),
    [
        (3 * 2**30, 0, r"4 trials on a GPU need 14\.3 GiB, and it has 10\.0 GiB; 2 would: gpus = 0\.5"),
        (11 * 2**30, 1, "1 trials on a GPU need .* smaller batches"),
        (
            torch.cuda.OutOfMemoryError("CUDA out of memory. Tried\nmore"),
            0,
            "by itself needs more memory than the GPU",
        ),
    ],
)
def test_a_sweep_refuses_a_gpu_that_is_too_small_before_ray_starts(
    definition, tmp_path, monkeypatch, probe, workers, words
):
    """The check does not need `--plan`, which has the same message."""
    gpu = Gpu(monkeypatch, dataclasses.replace(PROBE, gpu=probe) if isinstance(probe, int) else probe)
    on_gpus = dataclasses.replace(definition, running=definition.running.model_copy(update={"gpus": 0.25}))
    monkeypatch.setattr(sweeping, "check_trials", lambda *_: None)
    monkeypatch.setattr(cluster, "ray_cluster", lambda *_: pytest.fail("Ray was started"))
    with pytest.raises(SetupError, match=words):
        sweeping.run_sweep(on_gpus, tmp_path / "out", {"device": "cuda"}, workers=workers)
    assert not (tmp_path / "out").exists()
    assert gpu.measured <= 3  # strengths, seeds and lengths cost the same: two shapes, and one measurement to warm up


def test_trials_that_fit_or_use_no_gpu_are_let_through(definition, monkeypatch):
    gpu = Gpu(monkeypatch, dataclasses.replace(PROBE, gpu=1 * 2**30))
    running = definition.running.model_copy(update={"gpus": 0.25})
    sweeping.check_memory(trials_of(definition), running, 0)
    assert not gpu.measured
    sweeping.check_memory(trials_of(definition, {"device": "cuda"}), running, 0)
    assert gpu.measured


@pytest.mark.slow
def test_the_plan_says_what_was_measured_and_what_was_computed(definition, monkeypatch, capsys):
    monkeypatch.setattr(planning, "measure", lambda config, data: PROBE)
    monkeypatch.setenv("COLUMNS", "200")
    print_plan(definition, {}, workers=1)
    shown = " ".join(capsys.readouterr().out.split())
    for words in (
        "12 trials on this machine",
        "1 at once",
        "100.0 ms",
        "Measured",
        "Computed",
        "On GPUs: not measured",
    ):
        assert words in shown


@pytest.mark.parametrize(
    ("running", "given", "machine", "words"),
    [
        ({"cpus": 2}, {}, (4, 0), "12 trials on this machine (4 cores), 2 at once"),
        ({"cpus": 1, "gpus": 0.5}, {"device": "cuda"}, (16, 1), "12 trials on this machine (16 cores), 2 at once"),
        ({"cpus": 8}, {}, (4, 0), "not on this machine: a trial needs 8 processors and 0 GPUs, and no machine has"),
        ({"gpus": 1.0}, {"device": "cuda"}, (4, 0), "not on this machine: a trial needs 1 processors and 1 GPUs"),
    ],
)
def test_the_plan_has_as_many_trials_at_once_as_the_sweep_and_says_where_that_is_refused(
    definition, monkeypatch, capsys, running, given, machine, words
):
    monkeypatch.setattr(planning, "measure", lambda config, data: PROBE)
    monkeypatch.setattr(plan, "check_trials", lambda *_: None)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(machine[0])))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: machine[1])
    monkeypatch.setenv("COLUMNS", "200")
    changed = definition.running.model_copy(update={**running, "stacking": "off"})
    print_plan(dataclasses.replace(definition, running=changed), given)
    shown = " ".join(capsys.readouterr().out.split())
    assert words in shown
    assert ("on this machine (" in shown) != ("not on this machine" in shown)
