"""Tables of a user: their delimiters, quotes and long values."""

import csv

import pytest

from flower_vfl.data.formats import tables
from flower_vfl.data.formats.tables import read_header, read_table
from flower_vfl.errors import DataError


@pytest.mark.parametrize("length", [200_000, 3_000_000])
def test_a_long_text_in_quotes_is_read_and_the_limit_of_the_process_stays(tmp_path, length):
    path, limit = tmp_path / "a.csv", csv.field_size_limit()
    path.write_text(f'id,note\np1,"a, b"\np2,"{"x" * length}"\np3,c\n')
    assert [len(text) for text in read_table(path)["note"].to_pylist()] == [4, length, 1]
    assert csv.field_size_limit() == limit


def test_a_value_that_is_too_long_is_named_by_its_row_and_its_length(tmp_path, monkeypatch):
    monkeypatch.setattr(tables, "_LONGEST_VALUE", 1000)
    path, limit = tmp_path / "a.csv", csv.field_size_limit()
    path.write_text(f'id,note\np1,"a, b"\np2,"{"x" * 1001}"\np3,c\n')
    with pytest.raises(DataError, match=r"in row 2 below the header a value has more than 1000 characters, .* shorten"):
        read_table(path)
    path.write_text(f'id,"{"x" * 1001}"\n')
    with pytest.raises(DataError, match="in the header a value has more than 1000 characters"):
        read_header(path)
    assert csv.field_size_limit() == limit


@pytest.mark.parametrize(
    ("row", "words"),
    [
        (
            "p2,3,4,5",
            "Expected 3 columns, got 4 .row 2 below the header.; a value that holds the delimiter needs quotes;",
        ),
        ("p2,3", "Expected 3 columns, got 2 .row 2 below the header.; complete the row with a delimiter for each"),
    ],
)
def test_a_row_with_another_number_of_fields_is_named_with_its_own_cure(tmp_path, row, words):
    path = tmp_path / "a.csv"
    path.write_text(f"id,x,y\np1,1,2\n{row}\n")
    with pytest.raises(DataError, match=words):
        read_table(path)
