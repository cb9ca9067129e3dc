import gzip
import hashlib
import io
import tarfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flower_vfl.data.clicks.blocks import BlockReader
from flower_vfl.errors import DataError

lines = st.lists(st.text("ab,\t", min_size=1, max_size=12), min_size=1, max_size=30)


def read(path, size=64):
    reader = BlockReader(path, size)
    return list(reader.blocks()), reader.digest.hexdigest()


@given(lines, st.integers(13, 80), st.sampled_from(["\n", "\r\n"]), st.booleans(), st.booleans())
def test_blocks_are_whole_lines_in_order_and_numbered(tmp_path_factory, texts, size, ending, packed, last_ended):
    path = tmp_path_factory.mktemp("text") / "x"
    data = (ending.join(texts) + ending * last_ended).encode()
    path.write_bytes(gzip.compress(data) if packed else data)
    blocks, digest = read(path, size + 1)
    assert b"".join(block.data for block in blocks).decode().split("\n") == [*texts, ""]
    assert digest == hashlib.sha256(data).hexdigest()
    first = 1
    for number, block in enumerate(blocks):
        assert (block.number, block.first, block.lines) == (number, first, block.data.count(b"\n"))
        assert block.data.endswith(b"\n")
        first += block.lines
    assert blocks[-1].done == 1.0


def test_a_byte_order_mark_and_empty_lines_at_the_end_are_left_out(tmp_path):
    (tmp_path / "x").write_bytes(b"\xef\xbb\xbfone\ntwo\n\n\r\n")
    assert b"".join(block.data for block in read(tmp_path / "x")[0]) == b"one\ntwo\n"


def test_a_lone_carriage_return_ends_no_line(tmp_path):
    (tmp_path / "x").write_bytes(b"one\rstill one\r\ntwo\n")
    (block,), _ = read(tmp_path / "x")
    assert (block.data, block.lines) == (b"one still one\ntwo\n", 2)


def test_a_gzip_file_that_is_cut_short_names_the_line_behind_which_it_broke(tmp_path):
    data = b"".join(b"line %d\n" % number for number in range(40_000))
    (tmp_path / "x.gz").write_bytes(gzip.compress(data)[:-2000])
    with pytest.raises(DataError, match=r"no whole gzip file: .*after line 3\d,\d{3}\. Fetch it again"):
        read(tmp_path / "x.gz", 2**25)


def test_a_gzip_file_with_a_wrong_byte_is_refused(tmp_path):
    packed = bytearray(gzip.compress(b"line\n" * 1000))
    packed[-6] ^= 1
    (tmp_path / "x.gz").write_bytes(packed)
    with pytest.raises(DataError, match="no whole gzip file"):
        read(tmp_path / "x.gz")


def tar(data):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        entry = tarfile.TarInfo("train.txt")
        entry.size = len(data)
        archive.addfile(entry, io.BytesIO(data))
    return out.getvalue()


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ("a\tb\n".encode("utf-16"), "UTF-16; convert it"),
        ("a\tb\n".encode("utf-16-le"), "no text"),
        (b"PK\x03\x04rest", "ZIP archive"),
        (b"PAR1rest", "Parquet"),
        (tar(b"a\n"), "tar archive; unpack it"),
        (gzip.compress(tar(b"a\n")), "tar archive; unpack it"),
        (b"x" * 40_000, "line 1 is longer than 20,000 characters"),
        (b"a\nb\n" + b"x" * 40_000, "line 3 is longer than 20,000 characters"),
    ],
    ids=[
        "UTF-16",
        "UTF-16 without a mark",
        "zip",
        "Parquet",
        "tar",
        "gzipped tar",
        "long first line",
        "long third line",
    ],
)
def test_a_file_that_is_no_text_in_lines_is_refused(tmp_path, data, words):
    (tmp_path / "x").write_bytes(data)
    with pytest.raises(DataError, match=words):
        read(tmp_path / "x", 20_000)


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    with pytest.raises(DataError, match="cannot be read: Is a directory"):
        read(tmp_path)
