from datetime import date

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flower_vfl.data.clicks.fields import Click, Code, Hex, Hour, NamedRow, Number, NumberedRow, key_texts

keys = st.lists(st.none() | st.integers(0, 2**32 - 1), max_size=20)
codes = st.lists(st.none() | st.integers(-(2**31), 2**31 - 1), max_size=20)


@given(keys)
def test_hexadecimal_digits_become_their_number_and_are_restored(values):
    texts = [None if value is None else f"{value:08x}" for value in values]
    read = Hex("C1").read(pa.array([text and text.encode() for text in texts], pa.binary(8)))
    assert read.columns["C1"].to_pylist() == values
    assert not read.wrong.any()
    known = np.array([value for value in values if value is not None], np.uint32)
    assert key_texts("hex", known).to_pylist() == [text for text in texts if text]


@pytest.mark.parametrize("value", [b"0000000g", b"ABCDEF01", b"       1", b"-1234567", b"\xff2345678"[:8], b"12345678"])
def test_a_value_with_a_character_that_is_no_digit_is_wrong(value):
    read = Hex("C1").read(pa.array([b"00000000", value, None], pa.binary(8)))
    assert read.wrong.tolist() == [False, value != b"12345678", False]


def test_a_part_of_an_array_is_read_as_that_part():
    values = pa.array([b"00000001", b"00000002", b"00000003"], pa.binary(8)).slice(1, 1)
    assert Hex("C1").read(values).columns["C1"].to_pylist() == [2]


@given(codes)
def test_codes_keep_their_order_and_are_restored(values):
    read = Code("C14").read(pa.array(values, pa.int64()))
    assert not read.wrong.any()
    known = [value for value in values if value is not None]
    found = read.columns["C14"].drop_null().to_numpy(zero_copy_only=False)
    assert np.argsort(found, kind="stable").tolist() == np.argsort(known, kind="stable").tolist()
    assert key_texts("code", found).to_pylist() == [str(value) for value in known]


@pytest.mark.parametrize("kind", [Number, Code])
def test_numbers_of_more_than_32_bits_are_wrong(kind):
    read = kind("I1").read(pa.array([2**31 - 1, 2**31, -(2**31), -(2**31) - 1, None], pa.int64()))
    assert read.wrong.tolist() == [False, True, False, True, False]


def test_numbers_are_not_changed():
    read = Number("I1").read(pa.array([5, None, -2], pa.int64()))
    assert read.columns["I1"].to_pylist() == [5, None, -2]


@given(st.dates(date(2000, 1, 1), date(2099, 12, 31)), st.integers(0, 23))
def test_an_hour_becomes_hour_of_day_weekday_and_day(day, hour):
    read = Hour("hour").read(pa.array([int(f"{day:%y%m%d}{hour:02}")], pa.int64()))
    assert not read.wrong.any()
    assert key_texts("code", read.columns["hour_of_day"].to_numpy()).to_pylist() == [str(hour)]
    assert key_texts("code", read.columns["weekday"].to_numpy()).to_pylist() == [str(day.weekday())]
    assert read.columns["day"].to_pylist() == [(day - date(1970, 1, 1)).days]


@pytest.mark.parametrize("value", [None, 14102124, 14130100, 14023000, 14022900, 14040031, 14043100, -1, 141021001])
def test_an_hour_that_is_none_is_wrong(value):
    assert Hour("hour").read(pa.array([14102100, value], pa.int64())).wrong.tolist() == [False, True]


def test_a_leap_day_is_a_day():
    assert not Hour("hour").read(pa.array([16022900], pa.int64())).wrong.any()


def test_a_label_is_0_or_1():
    read = Click("label").read(pa.array([0, 1, 2, -1, None], pa.int64()))
    assert read.wrong.tolist() == [False, False, True, True, True]
    assert read.columns["label"].to_pylist() == [0, 1, 0, 0, 0]


def test_an_id_is_present_and_made_of_digits():
    assert NumberedRow("Id").read(pa.array([7, None], pa.int64())).wrong.tolist() == [False, True]
    read = NamedRow("id").read(pa.array(["1" * 24, "1" * 25, "x", "", None]))
    assert read.wrong.tolist() == [False, True, True, True, True]
