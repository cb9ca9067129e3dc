import re

import pytest

from flower_vfl.data.sources import catalog
from flower_vfl.errors import ConfigError
from flower_vfl.simulations import listing, tables


def test_an_install_command_is_shown_with_its_extra(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "200")
    entry = catalog.CatalogEntry("digits", "", "", None, False, "pip install 'flower-vfl[mnist]'")
    monkeypatch.setattr(catalog, "available", lambda: [entry])
    listing.print_data_set("digits")
    assert "pip install 'flower-vfl[mnist]'" in capsys.readouterr().out


def test_a_data_set_is_listed_with_its_options_and_show_of_its_name_refers_to_them(monkeypatch, capsys, tmp_path):
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.chdir(tmp_path)
    listing.print_data_set("files")
    assert re.search(r"\n *labels_file  +file of the labels; empty: ", capsys.readouterr().out)
    with pytest.raises(ConfigError, match="`flower-vfl data list files` shows its options"):
        tables.data_of("files")


def test_a_folder_is_named_with_its_brackets(monkeypatch, capsys, tmp_path):
    monkeypatch.setenv("COLUMNS", "400")
    tables.prepare_data("toy-gap", None, tmp_path / "own[v2]", {})
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith(f"-> {tmp_path}/own[v2]")
    assert lines[-1] == f"next: flower-vfl run '{tmp_path}/own[v2]'"


@pytest.mark.parametrize(
    ("settings", "party"),
    [
        ({"files.a": "a.csv", "label": ""}, "a"),
        ({"files.label": "b.csv"}, "label"),
        ({"labels_file": "b.csv"}, "label"),
    ],
)
def test_after_the_part_of_one_host_of_a_deployment_doctor_comes_next(settings, party, monkeypatch, capsys, tmp_path):
    monkeypatch.setenv("COLUMNS", "400")
    rows = [f"p{n},{n},{n % 2}" for n in range(60)]
    (tmp_path / "b.csv").write_text("\n".join(["id,x,label", *rows]))
    (tmp_path / "a.csv").write_text("\n".join(["id,x", *(row[:-2] for row in rows)]))
    tables.prepare_data("files", tmp_path, tmp_path / "own", settings)
    shown = capsys.readouterr().out.splitlines()
    assert shown[-1] == f"next: flower-vfl doctor --party {party} --data {tmp_path}/own"


@pytest.mark.parametrize(("kept", "title", "cell"), [({"test_auc": 0.9}, "AUC", "0.9000"), ({}, "accuracy", "0.8000")])
def test_runs_of_more_than_two_classes_have_a_column_of_accuracies(kept, title, cell):
    summary = {"utility": {"last": {"test_accuracy": 0.8, **kept}}, "defenses": [], "leakage": []}
    table = tables.results_table([summary])
    assert table.columns[1].header == f"test\n{title}"
    assert list(table.columns[1].cells) == [cell]
