"""Results by class in `result.json`, which are those of the kept model."""

from __future__ import annotations

import numpy as np
import pyarrow.csv as pa_csv
import pytest
from sklearn.metrics import confusion_matrix, precision_score, recall_score

from flower_vfl.apps import run
from flower_vfl.apps.factories import open_data
from flower_vfl.apps.prediction import predict
from flower_vfl.apps.result_schema import kept_utility
from tests.cases import parametrize
from tests.toys import toy_config, toy_data
from tests.training.test_early_stopping import DATA, patient

KEYS = ["names", "rows", "recall", "precision", "confusion"]


def assert_of_kept(summary):
    """Assert that the counts of a result agree with the utility of the kept model."""
    found, kept = summary["classes"], kept_utility(summary)
    assert list(found) == KEYS
    counts = np.array(found["confusion"])
    assert counts.sum(axis=1).tolist() == found["rows"]
    assert counts.trace() / counts.sum() == pytest.approx(kept["test_accuracy"], abs=1e-12)
    assert np.mean(found["recall"]) == pytest.approx(kept["test_balanced_accuracy"], abs=1e-12)


@pytest.mark.slow
def test_results_by_class_follow_from_the_scores_that_predict_writes(tmp_path):
    config = patient(
        attack={"names": []}, data={**DATA, "options": {**DATA["options"], "categorical": 0, "positives": 0.5}}
    )
    result = run(config, out=tmp_path / "run").summary
    assert result["model"]["epoch"] < result["utility"]["last"]["epoch"]
    assert_of_kept(result)
    predict(tmp_path / "run", tmp_path / "scores.csv")
    predicted = pa_csv.read_csv(tmp_path / "scores.csv")["score"].to_numpy() > 0.5
    labels = open_data(config).labels().test
    assert result["classes"] == {
        "names": ["0", "1"],
        "rows": np.bincount(labels).tolist(),
        "recall": recall_score(labels, predicted, average=None).tolist(),
        "precision": precision_score(labels, predicted, average=None).tolist(),
        "confusion": confusion_matrix(labels, predicted).tolist(),
    }


@pytest.mark.parametrize("classes", [2, 4])
@parametrize("training", [{"epochs": 2}, {"epochs": 9, "patience": 1}, {"epochs": 2, "refit": 3}], quick=1)
def test_results_by_class_are_those_of_the_kept_model(classes, training):
    data = toy_data(rows=300, classes=classes)
    found = run(toy_config(training={**training, "learning_rate": 0.05}), data=lambda _: data).summary
    assert found["classes"]["names"] == [str(number) for number in range(classes)]
    assert_of_kept(found)


def test_a_run_that_keeps_no_model_has_the_names_of_its_classes_alone():
    limited = toy_config(attack={"names": ["norm"], "max_leak": 0.51}, checkpoint={"every": -1})
    found = run(limited, data=lambda _: toy_data()).summary
    assert (found["status"], found["model"]["step"]) == ("leak limit", None)
    assert found["classes"] == {"names": ["0", "1"]}


def test_nothing_that_is_sent_depends_on_the_labels_of_the_test_rows(frames):
    training = {"epochs": 6, "patience": 1, "learning_rate": 0.05}
    config, sent, found = toy_config(training=training, attack={"names": []}), [], []
    for reversed_labels in (False, True):
        data = toy_data(rows=300, classes=3)
        if reversed_labels:
            data.target.test[:] = 2 - data.target.test
        found.append(run(config, data=lambda _, data=data: data).summary["classes"]["confusion"])
        sent.append(list(frames))
        frames.clear()
    assert found[0] != found[1]
    assert sent[0] == sent[1] != []
