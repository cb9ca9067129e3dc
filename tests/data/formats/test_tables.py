"""Tables of a user: their delimiters, quotes and long values."""

import csv
import gzip

import pytest

from flower_vfl.data.formats import tables
from flower_vfl.data.formats.tables import Dialect, read_header, read_table
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


@pytest.mark.parametrize("first", ["sep=;\n", "sep=;\r\n", '"sep=;"\r\n', "SEP=;\r\n\r\n"])
@pytest.mark.parametrize(
    ("name", "encoding", "given"),
    [
        ("a.csv", "utf-8", ""),
        ("a.csv", "utf-8-sig", ""),
        ("a.csv.gz", "cp1252", "cp1252"),
        ("a.tsv", "utf-16", "utf-16"),
    ],
)
def test_a_first_line_that_names_the_delimiter_is_no_row(tmp_path, first, name, encoding, given):
    path, dialect = tmp_path / name, Dialect(encoding=given)
    content = f'{first}id;town\np1;Köln\np2;"a\nb"\n'.encode(encoding)
    path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    assert read_header(path, dialect).column_names == ["id", "town"]
    assert read_table(path, dialect=dialect).to_pydict() == {"id": ["p1", "p2"], "town": ["Köln", "a\nb"]}
    assert read_table(path, "town", dialect).column_names == ["town"]


@pytest.mark.parametrize(
    ("name", "delimiter"), [("a.csv", ";"), ("a.txt", "\t"), ("a.tsv", ","), ("a.csv.gz", "|"), ("a.tsv", "\t")]
)
@pytest.mark.parametrize("quote", ["", '"'])
def test_a_delimiter_that_is_not_given_is_found_in_the_header(tmp_path, name, delimiter, quote):
    content = f'{quote}id{quote}{delimiter}"a{delimiter}b"\np1{delimiter}"2,5"\n'.encode()
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    assert read_table(tmp_path / name).to_pydict() == {"id": ["p1"], f"a{delimiter}b": ["2,5"]}


@pytest.mark.parametrize("header", ["id", '"a;b"', "id of a person"])
def test_a_header_of_a_single_column_stays_one(tmp_path, header):
    (tmp_path / "a.csv").write_text(f"{header}\np1\n")
    assert read_table(tmp_path / "a.csv").to_pydict() == {header.strip('"'): ["p1"]}


@pytest.mark.parametrize(
    ("name", "content", "given", "words"),
    [
        ("a.csv", "id;x\n1;2\n", ",", "separated by semicolons; commas are needed or .*'delimiter=;'"),
        ("a.txt", "id\tx\n1\t2\n", ";", "separated by tabs; semicolons are needed"),
        ("a.tsv", "id,x\n1,2\n", "tab", "separated by commas; tabs are needed"),
    ],
)
def test_a_delimiter_that_is_given_is_not_replaced(tmp_path, name, content, given, words):
    (tmp_path / name).write_text(content)
    with pytest.raises(DataError, match=words):
        read_table(tmp_path / name, dialect=Dialect(given))


@pytest.mark.parametrize("row", ["p2;3;4", 'p2;"3'])
def test_rows_below_a_line_that_names_the_delimiter_are_counted_below_the_header(tmp_path, row):
    (tmp_path / "a.csv").write_text(f"sep=;\nid;x\np1;1\n{row}\np3;3\n")
    with pytest.raises(DataError, match="row 2 below the header"):
        read_table(tmp_path / "a.csv")


@pytest.mark.parametrize(("text", "words"), [("sep=;\n", "is empty"), ("sep=;\nid;x\n", "has no rows")])
def test_a_line_that_names_the_delimiter_alone_is_no_table(tmp_path, text, words):
    (tmp_path / "a.csv").write_text(text)
    with pytest.raises(DataError, match=words):
        read_table(tmp_path / "a.csv")
