import json
import os

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flower_vfl.data.store.alignment import AlignmentFile
from flower_vfl.errors import DataError

FILE = AlignmentFile(("ann", "bob", "zoë"), ("a", "b"), "label")


def rewrite(path, ids=None, **metadata):
    """Change the IDs or the metadata of a file, and keep its checksum."""
    table = pq.read_table(path)
    known = json.loads(table.schema.metadata[b"flower-vfl alignment"]) | metadata
    table = pa.table({"id": table.column("id") if ids is None else ids})
    pq.write_table(table.replace_schema_metadata({"flower-vfl alignment": json.dumps(known)}), path)


def test_a_file_is_read_as_it_was_written_and_only_its_owner_has_access(tmp_path):
    FILE.write(tmp_path / "new" / "alignment.parquet")
    assert AlignmentFile.read(tmp_path / "new" / "alignment.parquet") == FILE
    assert os.stat(tmp_path / "new" / "alignment.parquet").st_mode & 0o777 == 0o600
    assert [entry.name for entry in (tmp_path / "new").iterdir()] == ["alignment.parquet"]


@given(st.lists(st.text(min_size=1, max_size=4), max_size=6), st.lists(st.text(min_size=1, max_size=4), max_size=6))
def test_digests_are_equal_exactly_when_the_ordered_ids_are(one, other):
    digests = [AlignmentFile(tuple(ids), ("a", "b"), "label").digest for ids in (one, other)]
    assert (digests[0] == digests[1]) == (one == other)


def test_the_message_for_a_missing_file_says_how_to_make_one(tmp_path):
    with pytest.raises(DataError, match=r"no alignment .*align --help"):
        AlignmentFile.read(tmp_path / "alignment.parquet")


@pytest.mark.parametrize("content", [b"", b"PAR1", b"not parquet at all"])
def test_another_file_is_refused(tmp_path, content):
    (tmp_path / "f").write_bytes(content)
    with pytest.raises(DataError, match="is no alignment"):
        AlignmentFile.read(tmp_path / "f")


def test_a_table_that_is_no_alignment_is_refused(tmp_path):
    pq.write_table(pa.table({"id": ["a"]}), tmp_path / "f")
    with pytest.raises(DataError, match="is no alignment"):
        AlignmentFile.read(tmp_path / "f")


@pytest.mark.parametrize("ids", [["ann", "bob"], ["bob", "ann", "zoë"], ["ann", "ann", "zoë"], ["ann", "bob", "zoe"]])
def test_ids_that_were_changed_are_noticed(tmp_path, ids):
    FILE.write(tmp_path / "f")
    rewrite(tmp_path / "f", ids)
    with pytest.raises(DataError, match="not as it was written"):
        AlignmentFile.read(tmp_path / "f")


@pytest.mark.parametrize("ids", [("bob", "ann"), ("ann", "ann")])
def test_ids_that_repeat_or_are_in_another_order_are_refused_although_their_digest_fits(tmp_path, ids):
    AlignmentFile(ids, ("a", "b"), "label").write(tmp_path / "f")
    with pytest.raises(DataError, match="not as it was written"):
        AlignmentFile.read(tmp_path / "f")


@pytest.mark.parametrize("ids", [pa.array([1, 2]), pa.array(["ann", None]), pa.array([b"ann", b"bob"])])
def test_ids_that_are_no_texts_are_refused(tmp_path, ids):
    FILE.write(tmp_path / "f")
    rewrite(tmp_path / "f", ids)
    with pytest.raises(DataError, match="is no alignment that"):
        AlignmentFile.read(tmp_path / "f")


@pytest.mark.parametrize(
    ("metadata", "text"),
    [
        ({"schema": 1}, "this version"),
        ({"schema": 3}, "this version"),
        ({"parties": "a"}, "'parties' must be list"),
        ({"parties": ["../a"]}, "no party name"),
        ({"parties": ["label"], "label_party": "b"}, "a feature party cannot be called 'label'"),
        ({"label_party": None}, "'label_party' must be str"),
        ({"digest": "0" * 64}, "not as it was written"),
        ({"parties": ["a", "zzz"]}, "not as it was written"),
        ({"parties": ["b", "a"]}, "not as it was written"),
        ({"label_party": "c"}, "not as it was written"),
    ],
)
def test_invalid_metadata_is_refused(tmp_path, metadata, text):
    FILE.write(tmp_path / "f")
    rewrite(tmp_path / "f", **metadata)
    with pytest.raises(DataError, match=text):
        AlignmentFile.read(tmp_path / "f")


def test_a_file_that_names_nobody_is_refused(tmp_path):
    AlignmentFile((), ("a",), "label").write(tmp_path / "f")
    with pytest.raises(DataError, match="not as it was written"):
        AlignmentFile.read(tmp_path / "f")


@pytest.mark.parametrize("taken", ["checksum", "digest"])
def test_a_file_whose_checksum_or_digest_was_taken_out_is_refused(tmp_path, taken):
    FILE.write(tmp_path / "f")
    table = pq.read_table(tmp_path / "f")
    known = json.loads(table.schema.metadata[b"flower-vfl alignment"])
    assert known.pop(taken)
    pq.write_table(table.replace_schema_metadata({"flower-vfl alignment": json.dumps(known)}), tmp_path / "f")
    with pytest.raises(DataError, match="not as it was written"):
        AlignmentFile.read(tmp_path / "f")


def test_a_path_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="cannot be written"):
        FILE.write(tmp_path / "file" / "alignment.parquet")
