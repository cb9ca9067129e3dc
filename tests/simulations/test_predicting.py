"""`flower-vfl predict` with a user's own app, and in Flower's simulation runtime."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pyarrow.csv as pa_csv
import pytest

from flower_vfl.apps import predict, run
from flower_vfl.apps.model import load_card, model_path
from flower_vfl.apps.prediction_server import Request
from flower_vfl.config import build_config
from flower_vfl.errors import ConfigError, DataError, OutputExistsError, SessionError, SetupError
from flower_vfl.metrics import leak_auc
from flower_vfl.simulations import flower_engine, predicting
from flower_vfl.simulations.cluster import Cluster
from flower_vfl.simulations.predicting import load_apps, predict_flower, predict_here

OWN_APP = Path(__file__).parents[2] / "examples" / "own-app"
CONFIG = {
    "data": {"name": "breast-cancer"},
    "training": {"epochs": 1, "batch_size": 64},
    "attack": {"names": [], "informed": 0, "snapshots": [], "embeddings": 0},
}


@pytest.fixture
def own_app(monkeypatch):
    """Yield the example's module `task`; all modules of the example are unloaded afterwards."""
    monkeypatch.setattr(sys, "path", [str(OWN_APP), *sys.path])
    from own_app import task

    yield task
    for name in [name for name in sys.modules if name.partition(".")[0] == "own_app"]:
        del sys.modules[name]


@pytest.fixture
def own_run(own_app, tmp_path):
    """Return the folder and the result of a run of the example's app."""
    config = build_config({"training": {"epochs": 3, "batch_size": 32, "learning_rate": 0.01}})
    factories = {"top": own_app.make_top, "bottom": own_app.make_bottom, "data": own_app.open_data}
    return tmp_path / "run", run(config, out=tmp_path / "run", **factories)


@pytest.mark.slow
def test_a_users_own_app_scores_what_it_trained(own_app, own_run, tmp_path):
    folder, result = own_run
    predict_here(Request(folder, tmp_path / "scores.csv"), OWN_APP)
    labels = own_app.open_data(build_config({})).labels().test
    found = pa_csv.read_csv(tmp_path / "scores.csv")
    assert leak_auc(found["score"].to_numpy(), labels) == result.test_auc


@pytest.mark.slow
def test_without_its_app_such_a_run_is_refused(own_run, tmp_path):
    with pytest.raises(ConfigError, match=r"own_app.task:make_top.*use the app that trained it"):
        predict_here(Request(own_run[0], tmp_path / "scores.csv"), None)


def test_importing_an_app_leaves_the_path_as_it_was(own_app):
    before = list(sys.path)
    load_apps(OWN_APP)
    assert sys.path == before


@pytest.mark.parametrize(
    ("project", "words"),
    [
        ("", "names no components"),
        ("[tool.flwr.app.components]\nserverapp = 'nowhere_at_all:app'\nclientapp = 'x:app'\n", "cannot be imported"),
        ("[tool.flwr.app.components]\nserverapp = 'json:loads'\nclientapp = 'json:dumps'\n", "is no ServerApp"),
        ("[tool.flwr.app.components]\nserverapp = 'json:nothing'\nclientapp = 'json:dumps'\n", "cannot be imported"),
        ("[tool", "names no components"),
    ],
)
def test_a_folder_that_is_no_app_is_refused(tmp_path, project, words):
    (tmp_path / "pyproject.toml").write_text(project)
    with pytest.raises(ConfigError, match=words):
        load_apps(tmp_path)


def test_the_progress_bar_shows_the_number_of_scored_rows(monkeypatch, tmp_path):
    from rich.console import Console

    monkeypatch.setattr(predicting, "console", lambda: Console(force_terminal=True, file=(tmp_path / "out").open("w")))
    with predicting.ScoreProgress() as bar:
        bar.on_scores(30, 120)
        (task,) = bar._progress.tasks
        assert (task.completed, task.total) == (30, 120)


def test_an_existing_file_and_missing_weights_are_refused_before_flower_starts(tmp_path, monkeypatch):
    monkeypatch.setattr(predicting, "flwr_run", lambda *_: pytest.fail("Flower was started"))
    run(build_config(CONFIG), out=tmp_path / "run")
    (tmp_path / "there.csv").write_text("x")
    with pytest.raises(OutputExistsError):
        predict_flower(Request(tmp_path / "run", tmp_path / "there.csv"))
    model_path(tmp_path / "run", "a").unlink()
    with pytest.raises(DataError, match="no weights of a finished training"):
        predict_flower(Request(tmp_path / "run", tmp_path / "scores.csv"))


@pytest.mark.parametrize(
    ("resources", "error", "words"),
    [
        (["c: cpus=2"], ConfigError, "no feature party is called 'c'"),
        (["gpus=1"], ConfigError, "device is 'cpu'"),
        (["node=10.9.9.9"], SetupError, "names node 10.9.9.9"),
    ],
)
def test_resources_of_a_prediction_are_checked_before_flower_starts(tmp_path, monkeypatch, resources, error, words):
    monkeypatch.setattr(predicting, "flwr_run", lambda *_: pytest.fail("Flower was started"))
    run(build_config(CONFIG), out=tmp_path / "run")
    with pytest.raises(error, match=words):
        predict_flower(Request(tmp_path / "run", tmp_path / "scores.csv"), resources=resources)


@pytest.mark.slow
def test_a_prediction_on_a_cluster_listens_where_its_nodes_reach_it(tmp_path, monkeypatch):
    started = []
    cluster = Cluster(((2.0, 0.0), (2.0, 0.0)), ("10.0.0.1", "10.0.0.2"), "10.0.0.1")
    monkeypatch.setattr(flower_engine, "_joined", lambda address, out: cluster)
    monkeypatch.setattr(predicting, "flwr_run", lambda *given: started.append(given) or 1)
    run(build_config({**CONFIG, "parties": {"features": ["a", "b"], "label_features": False}}), out=tmp_path / "run")
    with pytest.raises(SessionError, match="no scores"):
        predict_flower(Request(tmp_path / "run", tmp_path / "scores.csv"), resources=["b: cpus=2"], address="auto")
    ((run_config, given, address),) = started
    assert (run_config["transport-kind"], run_config["transport-host"]) == ("stream", "10.0.0.1")
    assert ([party.cpus for party in given], address) == ([1.0, 2.0], "auto")


@pytest.mark.flower
@pytest.mark.timeout(280)
def test_the_simulation_runtime_writes_the_file_of_the_local_engine(tmp_path):
    config = build_config({**CONFIG, "parties": {"features": ["a", "b"], "label_features": False}})
    result = run(config, out=tmp_path / "run")
    predict(tmp_path / "run", tmp_path / "local.csv")
    predict_flower(Request(tmp_path / "run", tmp_path / "flower.csv"), resources=["cpus=0.5"])
    assert (tmp_path / "flower.csv").read_bytes() == (tmp_path / "local.csv").read_bytes()
    assert np.isfinite(result.test_auc)
    assert load_card(model_path(tmp_path / "run", "b")).party == "b"
    assert json.loads((tmp_path / "run" / "result.json").read_text())["status"] == "finished"


@pytest.mark.flower
@pytest.mark.timeout(280)
def test_an_error_of_a_prediction_in_the_simulation_runtime_keeps_its_message(tmp_path):
    run(build_config(CONFIG), out=tmp_path / "run")
    (tmp_path / "ids.txt").write_text("9\nghost\n")
    with pytest.raises(DataError, match="1 of 2 IDs are not in the data: 'ghost'"):
        predict_flower(Request(tmp_path / "run", tmp_path / "scores.csv", ids=tmp_path / "ids.txt"))
    assert not (tmp_path / "scores.csv").exists()
