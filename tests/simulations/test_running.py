"""What the command line runs."""

from functools import partial

import pytest

from flower_vfl.apps import run
from flower_vfl.simulations import running
from flower_vfl.simulations.tables import print_results
from tests.toys import toy_config, toy_data


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
