"""Data of a user's own in memory: what fits together and what does not."""

from __future__ import annotations

import numpy as np
import pytest

from flower_vfl.data import FeatureSpec, Labels, MemoryData, array_table
from flower_vfl.errors import DataError

Y = np.array([0, 1, 1, 0])


def test_a_matrix_is_a_numeric_table_and_more_dimensions_are_images():
    assert array_table("a", np.zeros((4, 3)), np.zeros((2, 3))).spec == FeatureSpec(3, ())
    assert array_table("a", np.zeros((4, 1, 5, 6)), np.zeros((2, 1, 5, 6))).spec == FeatureSpec(0, (), (1, 5, 6))


def test_rows_come_back_as_they_were_given():
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


def test_an_unknown_party_is_named_with_those_there_are():
    table = array_table("a", np.zeros((4, 3)), np.zeros((2, 3)))
    data = MemoryData("x", {"a": table}, "label", Labels(Y, Y[:2], 2))
    with pytest.raises(DataError, match="no party 'b'; it has a"):
        data.party("b")


@pytest.mark.parametrize("wrong", [2, -1])
def test_labels_that_are_none_of_the_classes_are_refused(wrong):
    with pytest.raises(DataError, match="labels of 2 classes are 0 to 1, given"):
        Labels(np.array([0, 1, wrong]), np.array([1]), 2)
