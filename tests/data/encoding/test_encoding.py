import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flower_vfl.data.encoding.encoding import (
    CategoricalEncoding,
    NumericEncoding,
    PartyEncoding,
    fit_party,
)
from flower_vfl.data.encoding.values import Place, numbers
from flower_vfl.data.store import layout
from flower_vfl.errors import DataError

finite = st.floats(-1e9, 1e9)
words = st.lists(st.sampled_from(["", "x", "y", "z", "é"]), min_size=1, max_size=30)


@given(st.lists(finite, min_size=1, max_size=50))
def test_training_numbers_become_finite_with_mean_zero_and_spread_at_most_one(values):
    column = np.array(values)
    encoded = NumericEncoding.fit("n", column).apply(column)
    assert encoded.dtype == np.float32
    assert encoded.shape == (len(values), 1)
    assert np.isfinite(encoded).all()
    assert abs(encoded.mean(dtype=np.float64)) < 1e-3
    assert encoded.std(dtype=np.float64) < 1.001


@given(st.lists(finite, min_size=2, max_size=50, unique=True))
def test_the_order_of_numbers_is_kept(values):
    column = np.sort(np.array(values))
    assert (np.diff(NumericEncoding.fit("n", column).apply(column)[:, 0]) >= 0).all()


def test_a_skewed_column_is_compressed_and_a_symmetric_one_is_not():
    gains = np.array([0.0] * 95 + [100.0, 2000.0, 7000.0, 15000.0, 99999.0])
    assert NumericEncoding.fit("gains", gains).transform == "log1p"
    assert NumericEncoding.fit("losses", -gains).transform == "log1p"
    assert NumericEncoding.fit("gains", gains).apply(gains).max() < 10
    assert NumericEncoding.fit("age", np.arange(90.0)).transform == "identity"


@pytest.mark.parametrize("value", [0.0, 1.0, 0.1, -3e8])
def test_a_constant_column_becomes_zeros_even_with_rounding_errors(value):
    column = np.full(7, value)
    encoding = NumericEncoding.fit("c", column)
    assert np.abs(encoding.apply(column)).max() < 1e-6
    assert encoding.apply(np.array([value + 1]))[0, 0] == pytest.approx(1, abs=1e-3)


def test_missing_numbers_become_the_mean_and_an_indicator():
    encoding = NumericEncoding.fit("n", np.array([1.0, np.nan, 3.0]), "mean")
    assert encoding.apply(np.array([1.0, np.nan, 3.0])).tolist() == [[-1, 0], [0, 1], [1, 0]]
    nothing = NumericEncoding.fit("n", np.array([np.nan]), "mean")
    assert nothing.apply(np.array([np.nan])).tolist() == [[0, 1]]


def test_a_missing_number_that_counts_as_zero_is_encoded_as_zero_is():
    encoding = NumericEncoding.from_range("n", 2.0, 4.0)
    assert encoding.apply(np.array([2.0, 4.0, 0.0, np.nan])).tolist() == [[0.0], [1.0], [-1.0], [-1.0]]


@given(words, words)
def test_a_value_keeps_its_id_and_an_unseen_one_is_bucket_zero(train, test):
    encoding = CategoricalEncoding.fit("c", pa.array(train))
    ids = encoding.apply(pa.array(test))
    assert ids.dtype == np.int32
    assert encoding.cardinality == len(set(train)) + 1
    for value, number in zip(test, ids, strict=True):
        assert number == (encoding.values.to_pylist().index(value) + 1 if value in train else 0)


def test_rare_values_share_the_bucket_of_unseen_ones():
    encoding = CategoricalEncoding.fit("c", pa.array(["x", "x", "y", "z", "z"]), min_count=2)
    assert encoding.values.to_pylist() == ["x", "z"]
    assert encoding.apply(pa.array(["y", "x"])).tolist() == [0, 1]


@pytest.mark.parametrize(("known", "new"), [("1", "1.0"), ("1.0", "1"), ("1.00", "1"), ("-1", "-1.000"), ("1", "1.")])
def test_a_whole_number_is_one_category_with_and_without_a_fraction(known, new):
    encoding = CategoricalEncoding.fit("c", pa.array([known, "7", "x"]))
    assert encoding.values.to_pylist() == sorted([known, "7", "x"])
    (one,), (other,) = (encoding.apply(pa.array([value])).tolist() for value in (known, new))
    assert one == other > 0


def test_a_whole_number_that_training_rows_have_in_both_ways_is_counted_once():
    encoding = CategoricalEncoding.fit("c", pa.array(["1", "1.0", "1.0", "2.0", "2.0", "2.0", ""]), min_count=3)
    assert encoding.values.to_pylist() == ["1", "2.0"]
    assert encoding.apply(pa.array(["1", "1.0", "2", "2.0", ""])).tolist() == [1, 1, 2, 2, 0]


def test_values_that_are_no_whole_numbers_stay_as_they_are():
    values = ["01", "1.5", "1.10", "1.0.0", "a.0", "v1", ""]
    encoding = CategoricalEncoding.fit("c", pa.array(values))
    assert encoding.values.to_pylist() == sorted(values)
    assert not encoding.apply(pa.array(["1", "1.50", "1.1", "a", "a.00", "1.0", ".0"])).any()


def party(train, **options):
    return fit_party(train, numeric=["n"], categorical=["c"], file="t.csv", **options)


def test_encoders_see_training_rows_only():
    train = pa.table({"n": [1.0, 2.0], "c": ["x", "y"]})
    encoding = party(train)
    extreme = pa.table({"n": [1e6], "c": ["never seen"]})
    numeric, ids = encoding.encode(extreme)
    assert encoding == party(train)
    assert numeric[0, 0] == pytest.approx((1e6 - 1.5) / 0.5)
    assert ids[0, 0] == 0


def test_a_missing_category_is_a_level_of_its_own():
    encoding = party(pa.table({"n": [1, 2, 3], "c": ["x", None, ""]}))
    assert encoding.categorical[0].values.to_pylist() == ["", "x"]
    assert encoding.encode(pa.table({"n": [1], "c": pa.array([None], pa.string())}))[1].tolist() == [[1]]


def test_new_rows_are_encoded_the_same_after_writing_and_reading(tmp_path):
    train = pa.table({"n": ["1", "", "5"], "c": pa.array(["x", "y", "x"]).dictionary_encode()})
    encoding = party(train, missing="mean")
    encoding.write(tmp_path / "encoding.json")
    again = PartyEncoding.read(tmp_path / "encoding.json")
    assert again == encoding
    assert encoding.columns == ("n", "n is missing", "c")
    for one, other in zip(encoding.encode(train), again.encode(train), strict=True):
        assert np.array_equal(one, other)


TWO_COLUMNS = pa.table({"one": ["a", "b", "a"], "two": ["x", "y", "z"]})


def test_the_values_of_several_columns_are_restored_to_their_columns(tmp_path):
    fit_party(TWO_COLUMNS, numeric=[], categorical=["one", "two"], file="t.csv").write(tmp_path / "encoding.json")
    again = PartyEncoding.read(tmp_path / "encoding.json")
    assert again.encode(TWO_COLUMNS)[1].tolist() == [[1, 1], [2, 2], [1, 3]]


@pytest.mark.parametrize("values", ["abxyw", "baxyz", "abxy"])
def test_values_that_are_not_those_that_were_written_are_refused(tmp_path, values):
    """With other values rows would be encoded as others, and predictions would be meaningless."""
    fit_party(TWO_COLUMNS, numeric=[], categorical=["one", "two"], file="t.csv").write(tmp_path / "encoding.json")
    pq.write_table(pa.table({"value": list(values)}), tmp_path / layout.VOCABULARY)
    with pytest.raises(DataError, match="not as it was written: the values of column"):
        PartyEncoding.read(tmp_path / "encoding.json")


@pytest.mark.parametrize(
    "content",
    [
        "[]",
        "{",
        "{}",
        '{"numeric": [{}], "categorical": []}',
        '{"numeric": [], "categorical": [{"name": "c"}]}',
        '{"numeric": [{"name": "n", "mean": 0, "scale": 1, "missing": "error", "transform": "e"}], "categorical": []}',
    ],
)
def test_an_encoding_that_is_none_is_refused(tmp_path, content):
    (tmp_path / "encoding.json").write_text(content)
    with pytest.raises(DataError, match=r"encoding\.json"):
        PartyEncoding.read(tmp_path / "encoding.json")


@pytest.mark.parametrize(
    ("column", "text"),
    [
        (["1", "2", "x"], "column 'n', row 3 below the header holds 'x'"),
        (["1", "inf"], "column 'n', row 2 below the header holds 'inf'"),
        (["1", "1_000"], "column 'n', row 2 below the header holds '1_000'"),
        ([1.0, float("-inf")], "row 2 below the header holds -inf"),
        ([1.0, float("nan"), None], r"row 2 below the header is missing or NaN \(2 such rows\)"),
        (["1", "", "NA"], r"row 2 below the header is missing or NaN \(2 such rows\)"),
        (pa.array([1], pa.date32()), "row 1 below the header holds"),
        (
            ["7", "-1.7976931348623157e308"],
            r"row 2 .* holds '-1\.797.*'; numbers up to 1e\+150 can be encoded",
        ),
    ],
)
def test_a_value_that_is_no_number_is_refused_with_file_column_and_row(column, text):
    with pytest.raises(DataError, match=rf"t\.csv: .*{text}"):
        numbers(pa.chunked_array([column]), Place("t.csv", "n"))


def test_the_largest_numbers_that_are_taken_become_finite():
    column = numbers(pa.chunked_array([[-1e150, 1e150, 0.0, 1.0] * 9]), Place("t", "n"))
    assert np.abs(NumericEncoding.fit("n", column).apply(column)).max() < 2


@pytest.mark.parametrize("values", [[[1], [2]], [{"a": 1}] * 2, [b"\xff", b"\xfe"]])
def test_a_category_that_does_not_read_as_text_is_refused_by_its_type(values):
    table = pa.table({"n": [1, 2], "c": values})
    with pytest.raises(DataError, match=r"t\.csv: column 'c' is of type .*; make it numbers or texts"):
        party(table)
    with pytest.raises(DataError, match=r"new\.parquet: column 'c' is of type"):
        party(pa.table({"n": [1], "c": ["x"]})).encode(table, "new.parquet")


def test_numbers_come_in_many_types():
    for column in ([1, 2], [1.0, 2.0], ["1", " 2 "], ["1e0", "2."], pa.array(["1", "2"]).dictionary_encode()):
        assert numbers(pa.chunked_array([column]), Place("t", "n")).tolist() == [1, 2]
    assert numbers(pa.chunked_array([[True, False]]), Place("t", "n")).tolist() == [1, 0]


def test_a_missing_or_doubled_column_is_named_with_the_nearest():
    encoding = party(pa.table({"n": [1], "c": ["x"]}))
    with pytest.raises(DataError, match=r"no column 'n'; .*nn"):
        encoding.encode(pa.table({"nn": [1], "c": ["x"]}))
    with pytest.raises(DataError, match="2 columns named 'c'"):
        encoding.encode(pa.Table.from_arrays([pa.array([1])] + [pa.array(["x"])] * 2, names=["n", "c", "c"]))
