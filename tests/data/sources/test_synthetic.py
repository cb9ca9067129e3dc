import subprocess
import sys

import numpy as np
import pytest

from flower_vfl.data.sources.catalog import load


def everything(dataset, party):
    table = dataset.party(party)
    return [tensor.numpy() for tensor in table.train.gather(np.arange(len(table.train)))]


def test_rows_columns_and_vocabulary_have_the_requested_sizes():
    options = {"rows": 5000, "test_rows": 300, "parties": 3, "numeric": 2, "categorical": 3, "vocabulary": 100}
    dataset = load("synthetic", options=options)
    assert dataset.parties == ("a", "b", "c")
    assert dataset.label_party == "c"
    assert dataset.party("b").spec.cardinalities == (35, 34, 34)
    numeric, categorical = everything(dataset, "a")
    assert numeric.shape == (5000, 2)
    assert categorical.min() == 1
    assert categorical.max(0).tolist() == [34, 33, 33]
    assert dataset.labels().train.mean() == pytest.approx(0.1, abs=0.04)


def test_the_label_can_be_learned_from_every_party():
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import roc_auc_score

    dataset = load("synthetic", options={"rows": 4000, "test_rows": 100, "categorical": 0})
    columns = {party: everything(dataset, party)[0] for party in "ab"}
    labels = dataset.labels().train

    def auc(features):
        return roc_auc_score(labels, LogisticRegression().fit(features, labels).decision_function(features))

    joined = auc(np.concatenate([columns["a"], columns["b"]], axis=1))
    assert min(auc(columns["a"]), auc(columns["b"])) > 0.6
    assert joined > max(auc(columns["a"]), auc(columns["b"])) + 0.03


def test_values_follow_zipf_or_are_uniform():
    common = {"rows": 20_000, "numeric": 0, "categorical": 1, "vocabulary": 1000, "parties": 1}
    zipf = everything(load("synthetic", options=common), "a")[0]
    uniform = everything(load("synthetic", options=common | {"frequencies": "uniform"}), "a")[0]
    assert np.mean(zipf == 1) == pytest.approx(np.log(2) / np.log(1001), abs=0.01)
    assert np.mean(zipf <= 31) == pytest.approx(np.log(32) / np.log(1001), abs=0.02)
    assert np.mean(uniform <= 100) == pytest.approx(0.1, abs=0.01)


def test_the_same_seed_gives_the_same_data_in_another_folder(tmp_path):
    options = {"rows": 200, "test_rows": 20}
    one, two = (load("synthetic", options=options, cache=tmp_path / name) for name in ("x", "y"))
    for mine, theirs in zip(everything(one, "b"), everything(two, "b"), strict=True):
        assert np.array_equal(mine, theirs)
    assert np.array_equal(one.labels().train, two.labels().train)


@pytest.mark.slow
def test_memory_does_not_grow_with_the_rows(tmp_path):
    code = """
import sys
from pathlib import Path
from flower_vfl.data import prepare
prepare("synthetic", out=Path(sys.argv[1]), options={"rows": int(sys.argv[2]), "parties": 1, "categorical": 4})
print(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("RssAnon")))
"""

    def kilobytes(rows):
        command = [sys.executable, "-c", code, str(tmp_path / str(rows)), str(rows)]
        return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()[-1])

    # Only scores and labels, 12 bytes a row, are kept in memory.
    assert kilobytes(2_000_000) - kilobytes(100_000) < 2_000_000 * 24 / 1024
