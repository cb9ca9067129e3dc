"""The file of scores: its content, and that it is whole or absent."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest
import torch
from scipy.special import expit, softmax

from flower_vfl.apps.scores import writing


def read(path):
    return pq.read_table(path) if path.suffix == ".parquet" else pa_csv.read_csv(path)


@pytest.mark.parametrize("ending", [".csv", ".parquet", ".CSV"])
def test_two_classes_give_the_probability_of_the_positive_one_to_the_last_bit(tmp_path, ending):
    logits = torch.randn(40, generator=torch.Generator().manual_seed(0)) * 10
    ids = pa.array([f"p{row}" for row in range(40)])
    with writing(tmp_path / f"s{ending}", ("no", "yes")) as writer:
        writer.write(ids[:25], logits[:25])
        writer.write(ids[25:], logits[25:])
    found = read(tmp_path / f"s{ending}")
    assert found.column_names == ["id", "score"]
    assert found["id"].to_pylist() == ids.to_pylist()
    np.testing.assert_allclose(found["score"].to_numpy(), expit(logits.double().numpy()), rtol=1e-14)
    order = np.argsort(logits.numpy())
    assert (np.diff(found["score"].to_numpy()[order]) >= 0).all()


@pytest.mark.parametrize("ending", [".csv", ".parquet"])
def test_more_classes_give_one_probability_each_and_the_likeliest_by_its_name(tmp_path, ending):
    logits = torch.randn(30, 3, generator=torch.Generator().manual_seed(1))
    with writing(tmp_path / f"s{ending}", ("red", "green", "id")) as writer:
        writer.write(pa.array([str(row) for row in range(30)]), logits)
    found = read(tmp_path / f"s{ending}")
    assert found.column_names == ["id", "predicted", "score_red", "score_green", "score_id"]
    scores = np.array([found[name].to_numpy() for name in found.column_names[2:]]).T
    np.testing.assert_allclose(scores, softmax(logits.double().numpy(), axis=1), rtol=1e-13)
    names = np.array(["red", "green", "id"])
    assert found["predicted"].to_pylist() == names[scores.argmax(axis=1)].tolist()


@pytest.mark.parametrize("class_rows", [(900, 100), (700, 200, 100), (700, 0, 100)])
def test_scores_of_a_weighted_model_are_bayes_rule_with_the_frequencies_of_training(tmp_path, class_rows):
    classes = len(class_rows)
    logits = torch.randn(30, *((classes,) if classes > 2 else ()), generator=torch.Generator().manual_seed(2))
    with writing(tmp_path / "s.csv", ("a", "b", "c")[:classes], class_rows) as writer:
        writer.write(pa.array([str(row) for row in range(30)]), logits)
    found = read(tmp_path / "s.csv")
    equal = logits.double().numpy()  # probabilities where all classes are equally frequent
    equal = np.stack([1 - expit(equal), expit(equal)], axis=1) if classes == 2 else softmax(equal, axis=1)
    expected = equal * np.maximum(class_rows, 1)
    expected /= expected.sum(axis=1, keepdims=True)
    scores = np.stack([found[name].to_numpy() for name in found.column_names if name.startswith("score")], axis=1)
    np.testing.assert_allclose(scores, expected[:, 1:] if classes == 2 else expected, rtol=1e-12)
    if classes > 2:
        assert found["predicted"].to_pylist() == [("a", "b", "c")[place] for place in equal.argmax(axis=1)]


def test_ids_with_commas_quotes_and_lines_come_back_as_they_were(tmp_path):
    ids = ["a,b", 'say "x"', "two\nlines", "ü"]
    with writing(tmp_path / "s.csv", ("0", "1")) as writer:
        writer.write(pa.array(ids), torch.zeros(4))
    found = pa_csv.read_csv(tmp_path / "s.csv", parse_options=pa_csv.ParseOptions(newlines_in_values=True))
    assert found["id"].to_pylist() == ids


@pytest.mark.parametrize("ending", [".csv", ".parquet"])
def test_after_an_error_there_is_nothing_and_what_was_there_stays(tmp_path, ending):
    (tmp_path / f"old{ending}").write_text("old")

    def half(name):
        with writing(tmp_path / f"{name}{ending}", ("0", "1")) as writer:
            writer.write(pa.array(["a"]), torch.zeros(1))
            raise RuntimeError("party died")

    for name in ("new", "old"):
        with pytest.raises(RuntimeError):
            half(name)
    assert [path.name for path in tmp_path.iterdir()] == [f"old{ending}"]
    assert (tmp_path / f"old{ending}").read_text() == "old"
