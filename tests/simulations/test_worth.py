"""The comparison of a federation with scikit-learn on the same rows, in simulations alone."""

from dataclasses import replace

import numpy as np
import pytest
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.metrics import roc_auc_score

from flower_vfl.apps import run
from flower_vfl.apps.folder import read_result
from flower_vfl.apps.training_server import TrainingServer
from flower_vfl.cli import main
from flower_vfl.config import build_config
from flower_vfl.data import MemoryData, array_table
from flower_vfl.data.store.dataset import Labels
from flower_vfl.errors import ConfigError, DataError
from flower_vfl.reports.worth import worth_in
from flower_vfl.simulations import running
from flower_vfl.simulations.worth import compare_run, wants_baselines, worth_of
from tests.cases import parametrize
from tests.toys import toy_config, toy_data

ROWS, TEST = 600, 300


def data(classes=2):
    """Return data of two parties, a with random columns and b with an informative one, that column, and the labels."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, classes, ROWS + TEST)
    a = rng.normal(size=(ROWS + TEST, 2))
    b = labels[:, None] + rng.normal(size=(ROWS + TEST, 1))
    tables = {name: array_table(name, part[:ROWS], part[ROWS:]) for name, part in {"a": a, "b": b}.items()}
    target = Labels(labels[:ROWS], labels[ROWS:], classes)
    return MemoryData("files", tables, "b", target), b, labels


def result(value, name="test_auc"):
    return {"utility": {"last": {name: value}}, "defenses": []}


def values(found):
    return {(entry["model"], entry["columns"]): entry["value"] for entry in found["baselines"]}


def test_the_numbers_are_those_of_scikit_learn_on_each_partys_columns_and_on_all():
    table, b, labels = data()
    found = worth_of(build_config({}), table, result(0.8))
    model = HistGradientBoostingClassifier(random_state=0).fit(b[:ROWS].astype(np.float32), labels[:ROWS])
    expected = roc_auc_score(labels[ROWS:], model.predict_proba(b[ROWS:].astype(np.float32))[:, 1])
    reached = values(found)
    assert reached["gradient boosting", "b"] == pytest.approx(expected)
    assert {columns for _, columns in reached} == {"a", "b", "all"}
    assert abs(reached["logistic regression", "a"] - 0.5) < 0.1
    assert reached["logistic regression", "all"] > 0.7
    assert (found["measure"], found["together"], found["test_rows"]) == ("test_auc", 0.8, TEST)
    assert 0.03 < found["margin"] < 0.08


@pytest.mark.slow
def test_of_more_than_two_classes_it_is_the_accuracy():
    table, _, labels = data(classes=4)
    found = worth_of(build_config({}), table, result(0.5, "test_accuracy"))
    assert found["measure"] == "test_accuracy"
    share = np.bincount(labels[ROWS:]).max() / TEST
    assert values(found)["gradient boosting", "b"] > share
    assert found["margin"] == pytest.approx(1.96 * np.sqrt(0.25 / TEST))
    perfect = worth_of(build_config({}), table, result(1.0, "test_accuracy"))
    assert 1 / TEST < perfect["margin"] < 6 / TEST  # without a wrong row the error may still be above 0


def test_a_class_without_a_training_row_moves_no_other_class():
    table, b, labels = data(classes=3)
    known = np.where(labels[:ROWS] == 1, 0, labels[:ROWS])
    table = replace(table, target=Labels(known, labels[ROWS:], 3))
    found = values(worth_of(build_config({}), table, result(0.5, "test_accuracy")))
    model = HistGradientBoostingClassifier(random_state=0).fit(b[:ROWS].astype(np.float32), known)
    expected = (model.predict(b[ROWS:].astype(np.float32)) == labels[ROWS:]).mean()
    assert found["gradient boosting", "b"] == pytest.approx(expected)


def test_labels_of_one_class_are_compared_with_nothing():
    table, _, labels = data()
    table = replace(table, target=Labels(np.zeros(ROWS, dtype=np.int64), labels[ROWS:], 2))
    found = worth_of(build_config({}), table, result(0.5))
    assert found["baselines"] == []
    assert worth_in({"worth": found}) is None


@parametrize(
    ("together", "words"),
    [(0.99, "above the best party alone (b"), (0.55, "below the best party alone (b"), (None, "")],
    quick=1,
)
def test_the_sentence_says_which_is_better_and_what_test_rows_can_tell(together, words):
    table, *_ = data()
    found = worth_in(result(0.5) | {"worth": worth_of(build_config({}), table, result(together))})
    assert (found is None) == (together is None)
    if found is not None:
        assert words in found.sentence
        assert found.worse is (together == 0.55)
        assert ("flower-vfl tune FILE" in found.advice) is found.worse
        near = worth_in({"worth": worth_of(build_config({}), table, result(found.rows[1].best + 0.01))})
        assert "which 300 test rows cannot distinguish from the best party alone" in near.sentence
        assert not near.worse


@pytest.mark.parametrize(("given", "compared"), [("auto", True), ("on", True), ("off", False)])
def test_tables_of_ones_own_are_compared_unless_that_is_off(given, compared):
    table, *_ = data()
    assert wants_baselines(build_config({"baselines": given}), table) == compared
    other = MemoryData("census", table.tables, "b", table.target)
    assert wants_baselines(build_config({"baselines": given}), other) == (given == "on")


def test_a_deployment_refuses_to_join_the_columns(tmp_path):
    server = TrainingServer(top=None, bottom=None, data=None, optimizer=None, observers=(), on_result=None)
    config = build_config({"baselines": "on"})
    with pytest.raises(ConfigError, match='baselines = "on" trains scikit-learn on the joined columns'):
        server.train(object(), None, config, tmp_path / "out", resume=False)


def test_on_the_label_partys_host_a_deployed_run_is_not_compared(tmp_path, monkeypatch):
    table, *_ = data()
    own = replace(table, tables={"b": table.tables["b"]})

    def opened(config):
        if config.data.path != "/srv/data":
            raise DataError("name a file for at least one party")
        return own

    monkeypatch.setattr(running, "open_data", opened)
    monkeypatch.setenv("FLOWER_VFL_DATA", "/srv/data")
    ended = run(toy_config(), out=tmp_path, data=lambda _: toy_data()).summary
    config = build_config({"data": {"name": "files"}, "parties": {"features": ["a"], "label_features": True}})
    assert compare_run(config, tmp_path)["utility"] == ended["utility"]
    assert "worth" not in read_result(tmp_path)
    assert running.alone_parties(config, own) == ["b"]


@pytest.mark.slow
def test_a_run_of_ones_own_tables_ends_with_the_comparison_on_the_console_and_in_the_report(tmp_path, capsys):
    rng = np.random.default_rng(0)
    lines = {"bank": ["id,x,label"], "shop": ["id,town"]}
    for row in range(300):
        label = int(rng.integers(0, 2))
        lines["bank"].append(f"p{row},{rng.normal() + label:.3f},{label}")
        lines["shop"].append(f"p{row},{'Ulm' if rng.random() < 0.3 + 0.4 * label else 'Bonn'}")
    words = []
    for party, text in lines.items():
        (tmp_path / f"{party}.csv").write_text("\n".join(text) + "\n")
        words += ["--set", f"files.{party}={tmp_path}/{party}.csv"]
    training = ["run", str(tmp_path / "own"), "--out", str(tmp_path / "run"), "--set", "training.epochs=2"]
    for command in (["data", "prepare", "files", "--out", str(tmp_path / "own"), *words], training):
        with pytest.raises(SystemExit) as done:
            main(command)
        assert done.value.code == 0
    assert "Was it worth it?" in capsys.readouterr().out
    found = read_result(tmp_path / "run")["worth"]
    assert {entry["columns"] for entry in found["baselines"]} == {"bank", "shop", "all"}
    page = (tmp_path / "run" / "report.html").read_text()
    assert "Was it worth it?" in page
    assert "shop alone" in page


def test_an_auc_of_1_has_an_interval_and_one_of_few_rows_of_a_class_has_none():
    table, _, labels = data()
    perfect = worth_of(build_config({}), table, result(1.0))
    rarer = np.bincount(labels[ROWS:]).min()
    assert 0.5 / rarer < perfect["margin"] < 6 / rarer
    few = np.where(np.cumsum(labels[ROWS:]) <= 9, labels[ROWS:], 0)
    found = worth_of(build_config({}), replace(table, target=Labels(labels[:ROWS], few, 2)), result(0.1))
    assert found["margin"] is None
    worth = worth_in({"worth": found})
    assert not worth.worse
    assert "cannot distinguish from the best party alone" in worth.sentence
    assert worth.sentence.endswith("The test rows have too few of a class for an interval.")
