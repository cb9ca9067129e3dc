import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flower_vfl.data.encoding.labels import encode_labels, known_labels
from flower_vfl.data.encoding.values import Place
from flower_vfl.errors import DataError


def encode(train, test=None, positive=""):
    test = train if test is None else test
    return encode_labels(pa.chunked_array([train]), pa.chunked_array([test]), Place("l.csv", "y"), positive)


@pytest.mark.parametrize(
    ("values", "ones"),
    [
        ([0, 1, 1], [0, 1, 1]),
        (["0", "1"], [0, 1]),
        ([0.0, 1.0], [0, 1]),
        (["1.0", "0"], [1, 0]),
        (["1.0", "x"], [0, 1]),
        ([-1, 1, -1], [0, 1, 0]),
        ([True, False], [1, 0]),
        (["yes", "no"], [1, 0]),
        (["Yes", "No"], [1, 0]),
        (["False", "True"], [0, 1]),
        (["ja", "nein"], [1, 0]),
        (["Oui", "Non"], [1, 0]),
        (["-", "+", "-"], [0, 1, 0]),
        (["bad", "good"], [0, 1]),
        ([1, 2], [0, 1]),
        ([10, 9], [1, 0]),
    ],
)
def test_two_values_become_zero_and_one(values, ones):
    labels = encode(values)
    assert len(labels.names) == 2
    assert labels.train.tolist() == ones
    assert labels.train.dtype == np.int64


def test_training_and_test_labels_are_written_in_one_way():
    """The test rows alone are whole numbers; what they are called is that of the training rows."""
    labels = encode(["1.0", "other", "1.0"], ["1.0", "1.0"])
    assert labels.names == ("1.0", "other")
    assert labels.test.tolist() == [0, 0]
    assert encode(["1", "2"], ["1.0", "2.0"]).test.tolist() == [0, 1]


@pytest.mark.parametrize(
    ("names", "positive", "given", "classes"),
    [
        (("1", "2"), "", ["1.0", "2", ""], [0, 1]),
        (("1.0", "other"), "", ["1.0", "other", "new"], [0, 1]),
        (("1.0", "other"), "", ["1.0", "1.0", ""], [0, 0]),
        (("not 1", "1"), "1", ["1.0", "2.0", ""], [1, 0]),
    ],
)
def test_labels_of_other_rows_are_written_as_in_training(names, positive, given, classes):
    mask, found = known_labels(pa.chunked_array([given]), names, Place("l.csv", "y"), positive)
    assert mask.to_pylist() == [True, True, False]
    assert found.tolist() == classes


def test_the_positive_value_can_be_chosen():
    labels = encode(["good", "bad"], positive="bad")
    assert labels.train.tolist() == [0, 1]
    assert labels.names == ("good", "bad")
    assert encode(["no", "yes"], positive="no").train.tolist() == [1, 0]


def test_more_values_become_classes_in_sorted_order_or_one_against_the_rest():
    assert encode(["b", "c", "a"]).train.tolist() == [1, 2, 0]
    assert encode([10, 9, 100]).names == ("9", "10", "100")
    against_rest = encode(["b", "c", "a", "b"], positive="b")
    assert against_rest.train.tolist() == [1, 0, 0, 1]
    assert against_rest.names == ("not b", "b")


def test_labels_that_differ_in_case_alone_are_warned_of(caplog):
    assert encode(["Yes", "no", "yes"]).names == ("Yes", "no", "yes")
    assert "the labels 'Yes' and 'yes' in column" in caplog.text
    assert "are different classes; write them in one way" in caplog.text
    caplog.clear()
    encode(["Yes", "no", "maybe"])
    assert not caplog.text


@given(st.lists(st.sampled_from("abcdef"), min_size=2, max_size=40).filter(lambda v: len(set(v)) > 2))
def test_classes_can_be_mapped_back_to_the_values(values):
    labels = encode(values)
    assert [labels.names[number] for number in labels.train] == values
    assert sorted(set(labels.train)) == list(range(len(labels.names)))


def test_a_thousand_classes_are_accepted_and_more_are_not():
    assert len(encode(list(range(1000)) * 2).names) == 1000
    with pytest.raises(DataError, match="1001 different labels"):
        encode(list(range(1001)) * 3)


@pytest.mark.parametrize(
    ("train", "test", "positive", "text"),
    [
        ([0.5, 1.25, 2.0], None, "", r"regression target .*0\.5"),
        (["3.7", "1", "2"], None, "", "regression target"),
        (list(range(100)), None, "", "100 different labels in 100 training rows"),
        ([1, 1, 1], None, "", "'1' in every training row"),
        ([1, None, 0], None, "", "1 missing label, the first in row 2 below the header"),
        ([1.0, float("nan"), 0.0], None, "", "1 missing label, the first in row 2 below the header"),
        (["a", "", "b"], None, "", "1 missing label"),
        (["yes", "no", "NULL", "N/A"], None, "", "2 missing labels, the first in row 3"),
        (["1", "N/A", "1"], None, "", "1 missing label, the first in row 2 below the header"),
        ([0, 1], [0, 2], "", "test rows of class '2'"),
        (
            ["a", "b"],
            ["a", "c"],
            "",
            r'class .c.*have a, b: .*missing_values = \["c"\] and unlabelled = "drop" .* merge .* another split_seed$',
        ),
        (["a", "b"], list("cdefg"), "", "have a, b: merge rare classes into one, or choose other test rows"),
        (
            [*map(str, list(range(30)) * 3), "?!"],
            ["1", "95", "96", "97"],
            "",
            "class '95'.*: 33 of its 34 different labels are numbers, .* a regression target; .* threshold",
        ),
        (list(range(100)), None, "", "with several rows: 100 of its 100 .* looks like a regression target"),
        (
            [f"t{row}" for row in range(100)],
            None,
            "",
            "several rows: merge labels, or name another column in the .*label",
        ),
        ([[0], [1]], None, "", "is of type list.*; make it numbers or texts"),
        ([b"\xff", b"a"], None, "", "is of type binary, which does not read as texts"),
        (["good", "bad"], None, "badd", "did you mean 'bad'"),
    ],
)
def test_labels_that_cannot_be_learned_are_refused_with_file_and_column(train, test, positive, text):
    with pytest.raises(DataError, match=rf"l\.csv.*{text}"):
        encode(train, test, positive)


def test_two_fractions_are_two_classes():
    assert encode([0.5, 1.5, 0.5]).train.tolist() == [0, 1, 0]


def test_digits_with_an_underscore_are_texts():
    labels = encode(["1_2", "12", "1_0", "2_1", "12"])
    assert labels.names == ("12", "1_0", "1_2", "2_1")
    assert labels.train.tolist() == [2, 0, 1, 3, 0]
