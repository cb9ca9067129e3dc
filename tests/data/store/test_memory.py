"""Own data in memory: valid and invalid tables and labels."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from flower_vfl.data import FeatureSpec, Labels, MemoryData, array_table
from flower_vfl.errors import DataError

Y = np.array([0, 1, 1, 0])


def test_a_matrix_is_a_numeric_table_and_more_dimensions_are_images():
    assert array_table("a", np.zeros((4, 3)), np.zeros((2, 3))).spec == FeatureSpec(3, ())
    assert array_table("a", np.zeros((4, 1, 5, 6)), np.zeros((2, 1, 5, 6))).spec == FeatureSpec(0, (), (1, 5, 6))


def test_rows_are_returned_as_they_were_given():
    train = np.arange(12.0).reshape(4, 3)
    (rows,) = array_table("a", train, train[:1]).train.gather(np.array([3, 1]))
    assert rows.tolist() == train[[3, 1]].tolist()


@pytest.mark.parametrize(("train", "test"), [(np.zeros(4), np.zeros(2)), (np.zeros((4, 3)), np.zeros((2, 4)))])
def test_features_that_do_not_fit_are_refused(train, test):
    with pytest.raises(DataError, match="features must be"):
        array_table("a", train, test)


def test_tables_and_labels_must_have_equally_many_rows():
    table = array_table("a", np.zeros((4, 3)), np.zeros((2, 3)))
    with pytest.raises(DataError, match=r"4 \+ 2 rows, the labels have 4 \+ 1"):
        MemoryData("x", {"a": table}, "label", Labels(Y, Y[:1], 2))


def test_an_unknown_party_is_refused_with_the_known_ones():
    table = array_table("a", np.zeros((4, 3)), np.zeros((2, 3)))
    data = MemoryData("x", {"a": table}, "label", Labels(Y, Y[:2], 2))
    with pytest.raises(DataError, match="no party 'b'; it has a"):
        data.party("b")


@pytest.mark.parametrize("wrong", [2, -1])
def test_labels_that_are_none_of_the_classes_are_refused(wrong):
    with pytest.raises(DataError, match="labels of 2 classes are 0 to 1, given"):
        Labels(np.array([0, 1, wrong]), np.array([1]), 2)


LABELS = np.arange(10) % 2


@pytest.mark.parametrize(
    "given",
    [
        *(LABELS.astype(bool), LABELS.astype(">i8"), LABELS.astype("u8"), LABELS[::-1][::-1][::-1], LABELS.tolist()),
        *(LABELS, LABELS.astype(float), LABELS.astype(np.float16)),
    ],
    ids=["bool", "big-endian", "uint64", "reversed", "list", "int64", "float64", "float16"],
)
def test_labels_of_any_whole_numbers_become_an_array_that_tensors_can_share(given):
    labels = Labels(given, np.asarray(given)[:0], 2).train
    assert torch.equal(torch.from_numpy(labels), torch.tensor(np.asarray(given).astype(np.int64)))


def test_labels_that_tensors_can_share_are_not_copied():
    given = LABELS.astype(np.uint8)
    assert np.shares_memory(Labels(given, given, 2).train, given)


@pytest.mark.parametrize(
    "given",
    [
        *(np.linspace(0, 0.99, 10), LABELS - 0.9, np.full(10, np.nan), np.full(10, np.inf), LABELS[:, None]),
        *(np.array(["no", "yes"])[LABELS], LABELS.astype(object), LABELS + 0j, np.zeros((10, 2), int), None),
    ],
    ids=lambda given: getattr(getattr(given, "dtype", None), "name", "none"),
)
def test_labels_that_are_no_whole_numbers_one_a_row_are_refused(given):
    for train, test in ((given, LABELS), (LABELS, given)):
        with pytest.raises(DataError, match=r"labels are whole numbers \(N,\), the class of each row, given"):
            Labels(train, test, 2)


def test_a_number_of_classes_that_is_none_is_refused():
    with pytest.raises(DataError, match=r"number of classes is a whole number, given 2\.0"):
        Labels(LABELS, LABELS, 2.0)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (np.nan, "1 values that are no finite float32, the first in row 3, column 1: nan"),
        (-np.inf, "the first in row 3, column 1: -inf"),
        (1e300, r"the first in row 3, column 1: 1e\+300"),
        (1j, "are complex128; real numbers are needed"),
        ("x", "are <U32; real numbers are needed"),
        (np.datetime64("2020-01-01"), "are object; real numbers are needed"),
    ],
)
def test_features_that_are_no_finite_numbers_are_refused_at_once(value, words):
    good = np.zeros((5, 2))
    bad = good.astype(np.result_type(np.float64, type(value)) if not isinstance(value, np.datetime64) else object)
    bad[3, 1] = value
    for part, train, test in (("training", bad, good), ("test", good, bad)):
        with pytest.raises(DataError, match=f"party 'a': {part} features .*{words}"):
            array_table("a", train, test)


def test_features_may_be_lists_and_tensors():
    rows = [[1.0, 2.0], [3.0, 4.0]]
    table = array_table("a", rows, torch.tensor(rows))
    assert table.train.gather(np.arange(2))[0].tolist() == table.test.gather(np.arange(2))[0].tolist() == rows


@pytest.mark.parametrize("names", [("p+q", "label"), ("label", "a"), ("a", "x/y")])
def test_names_that_no_party_can_have_are_refused(names):
    table = array_table("a", np.zeros((4, 3)), np.zeros((2, 3)))
    with pytest.raises(DataError, match=r"is no party name|cannot be called 'label'"):
        MemoryData("x", {names[0]: table}, names[1], Labels(Y, Y[:2], 2))
