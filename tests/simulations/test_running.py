"""Runs of the command line: comparison with parties alone, and tables of results."""

from dataclasses import replace
from functools import partial

import pytest

from flower_vfl.apps import run
from flower_vfl.apps.local import run_alone
from flower_vfl.data.sources.catalog import prepare
from flower_vfl.data.store.alignment import AlignmentFile
from flower_vfl.errors import ConfigError, DataError
from flower_vfl.simulations import running
from flower_vfl.simulations.tables import print_results
from tests.toys import toy_config, toy_data


@pytest.mark.parametrize("classes", [2, 3])
def test_what_parties_reach_alone_is_their_auc_and_of_more_classes_the_mean_over_them(
    classes, monkeypatch, capsys, caplog
):
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
    assert "no defense" not in caplog.text  # nothing is sent
    capsys.readouterr()
    print_results([{**run(config, data=lambda config: data).summary, "alone": alone}])
    assert "no defense" in caplog.text
    name = "test AUC: party a" if classes == 2 else "test AUC, mean over classes: party a"
    assert name in " ".join(capsys.readouterr().out.split())


@pytest.mark.slow
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

    def use_data(here):
        def opened(config):
            if config.data.path != "/srv/data":
                raise DataError("there is no data at ''")
            return here

        monkeypatch.setattr(running, "open_data", opened)
        monkeypatch.setattr(running, "run_alone", partial(run_alone, data=opened))

    use_data(own)
    with pytest.raises(DataError):
        running.alone_aucs(config)
    monkeypatch.setenv("FLOWER_VFL_DATA", "/srv/data")
    alone = running.alone_aucs(config)
    assert alone == {"label": run_alone(config, "label", data=lambda config: whole).test_auc}
    use_data(bare)
    with pytest.raises(ConfigError, match="the data of this host has none"):
        running.alone_aucs(config)


def test_of_aligned_data_the_columns_of_this_host_alone_are_compared(tmp_path):
    AlignmentFile(tuple(f"p{n:02d}" for n in range(30)), ("a",), "label").write(tmp_path / "alignment.parquet")
    rows = "".join(f"p{n:02d},{n % 2},{n}\n" for n in range(30))
    (tmp_path / "own.csv").write_text("id,label,x\n" + rows, encoding="utf8")
    options = {"files.label": str(tmp_path / "own.csv"), "alignment": str(tmp_path / "alignment.parquet")}
    dataset = prepare("files", out=tmp_path / "data", options=options)
    assert (dataset.parties, dataset.held) == (("a", "label"), ("label",))
    assert running.alone_parties(toy_config(parties={"features": ["a"]}), dataset) == ["label"]


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


def test_a_run_on_own_files_names_the_positive_class_and_the_rows_for_validation(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "400")
    for name in ("files", "toy"):
        data = replace(toy_data(), name=name)
        summary = run(toy_config(), data=lambda config, data=data: data).summary
        print_results([summary])
        shown = capsys.readouterr().out
        rows, validated, tested = (summary["dataset"][key] for key in ("rows", "validation_rows", "test_rows"))
        assert validated == rows // 10
        words = f"Trained on {rows - validated} rows and tested on {tested}; {validated} others are for validation"
        assert (words in shown) == (name == "files")
        assert ("Positive class: '1' (the label whose probability is predicted, against '0')" in shown) == (
            name == "files"
        )
