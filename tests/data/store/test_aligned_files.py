"""Own files, prepared at each party alone from an alignment."""

from __future__ import annotations

import pytest

from flower_vfl.data.formats.tables import read_header, read_table
from flower_vfl.data.sources.catalog import prepare
from flower_vfl.data.sources.id_sources import IdSource, id_sources
from flower_vfl.data.store.alignment import AlignmentFile
from flower_vfl.errors import ConfigError, DataError

COMMON = tuple(f"p{number:02d}" for number in range(10, 40))


def write(path, first, last, column, label=False):
    """Write people `first` to `last` - 1 in falling order, with one feature or a label."""
    lines = [f"id,{column}"] + [
        f"p{number:02d},{number % 2 if label else number * 1.5}" for number in range(last - 1, first - 1, -1)
    ]
    path.write_text("\n".join(lines) + "\n", encoding="utf8")
    return str(path)


@pytest.fixture
def files(tmp_path):
    """Write the files of three parties, of 40 people each, and one alignment."""
    AlignmentFile(COMMON, ("a", "b"), "label").write(tmp_path / "alignment.parquet")
    return {
        "a": write(tmp_path / "a.csv", 0, 40, "x"),
        "b": write(tmp_path / "b.csv", 10, 50, "y"),
        "label": write(tmp_path / "label.csv", 5, 45, "label", label=True),
        "alignment": str(tmp_path / "alignment.parquet"),
    }


def prepare_each(files, tmp_path):
    own = {"alignment": files["alignment"]}
    return {
        "a": prepare("files", out=tmp_path / "pa", options={**own, "files.a": files["a"], "label": ""}),
        "b": prepare("files", out=tmp_path / "pb", options={**own, "files.b": files["b"], "label": ""}),
        "label": prepare("files", out=tmp_path / "pl", options={**own, "labels_file": files["label"]}),
    }


def test_parties_that_prepare_alone_agree_on_rows_digest_and_parties(files, tmp_path):
    found = prepare_each(files, tmp_path)
    assert len({dataset.alignment for dataset in found.values()}) == 1
    for dataset in found.values():
        assert (dataset.parties, dataset.label_party) == (("a", "b"), "label")
        assert dataset.alignment.rows + dataset.alignment.test_rows == len(COMMON)
        assert sorted(dataset.ids("train") + dataset.ids("test")) == list(COMMON)
    with pytest.raises(DataError, match="this host does not hold the features of party 'b'"):
        found["a"].party("b")
    with pytest.raises(DataError, match="does not hold the labels"):
        found["b"].labels()


def test_each_partys_folder_equals_the_one_of_a_join_in_the_clear(files, tmp_path):
    options = {"files.a": files["a"], "files.b": files["b"], "labels_file": files["label"], "join": "inner"}
    clear = prepare("files", out=tmp_path / "clear", options=options)
    found = prepare_each(files, tmp_path)
    assert clear.alignment == found["a"].alignment
    for party in ("a", "b"):
        for part in ("train", "test"):
            name = f"{party}/{part}/numeric.npy"
            assert (clear.folder / name).read_bytes() == (found[party].folder / name).read_bytes()
    for name in ("labels/train.npy", "labels/test.npy"):
        assert (clear.folder / name).read_bytes() == (found["label"].folder / name).read_bytes()


def test_a_file_that_lacks_aligned_people_is_refused(files, tmp_path):
    write(tmp_path / "a.csv", 0, 38, "x")
    with pytest.raises(DataError, match=r"2 of the 30 aligned IDs are not in .*a\.csv, .*align again"):
        prepare_each(files, tmp_path)
    assert not (tmp_path / "pa").exists()


@pytest.mark.parametrize("unlabelled", ["error", "drop"])
def test_aligned_people_without_a_label_must_be_removed_before_the_alignment(files, tmp_path, unlabelled):
    path = tmp_path / "unknown.csv"
    path.write_text("id,label\n" + "".join(f"p{n:02d},{n % 2 if n > 20 else ''}\n" for n in range(50)), encoding="utf8")
    options = {"alignment": files["alignment"], "labels_file": str(path), "unlabelled": unlabelled}
    with pytest.raises(DataError, match=r"remove .*people.* from .*align again") as failed:
        prepare("files", out=tmp_path / "p", options=options)
    assert "--set unlabelled=drop" not in str(failed.value)


def test_a_party_that_took_no_part_is_refused(files, tmp_path):
    options = {"alignment": files["alignment"], "files.c": files["a"], "label": ""}
    with pytest.raises(
        DataError, match=r"'c' took no part in the alignment of a, b, label: .*--set files.a=.*align again"
    ):
        prepare("files", out=tmp_path / "p", options=options)


def test_another_label_party_than_the_aligned_one_is_refused(files, tmp_path):
    options = {"alignment": files["alignment"], "labels_file": files["label"], "label_party": "bank"}
    with pytest.raises(DataError, match=r"'bank' here and 'label' in the alignment; .*: --set label_party=label$"):
        prepare("files", out=tmp_path / "p", options=options)


def test_a_label_party_of_another_name_gets_the_option_in_the_message(files, tmp_path):
    path = tmp_path / "own.csv"
    path.write_text("id,label,z\n" + "".join(f"p{n:02d},{n % 2},{n}\n" for n in range(50)), encoding="utf8")
    options = {"alignment": files["alignment"], "files.b": str(path)}
    with pytest.raises(DataError) as failed:
        prepare("files", out=tmp_path / "p", options=options)
    name, _, value = str(failed.value).partition("--set ")[2].partition("=")
    dataset = prepare("files", out=tmp_path / "p", options={"alignment": files["alignment"], name: value})
    assert (dataset.label_party, dataset.parties) == ("label", ("a", "b", "label"))


def test_the_label_party_may_have_features_of_its_own(files, tmp_path):
    options = {"alignment": files["alignment"], "labels_file": files["label"], "files.label": files["a"]}
    dataset = prepare("files", out=tmp_path / "p", options=options)
    assert dataset.parties == ("a", "b", "label")
    assert len(dataset.party("label").train) == dataset.alignment.rows


def test_test_files_have_an_alignment_of_their_own(files, tmp_path):
    AlignmentFile(("q1", "q2"), ("a", "b"), "label").write(tmp_path / "test-alignment.parquet")
    (tmp_path / "at.csv").write_text("id,x\nq2,1\nq1,2\nq3,3\n", encoding="utf8")
    options = {
        "alignment": files["alignment"],
        "files.a": files["a"],
        "test_files.a": str(tmp_path / "at.csv"),
        "label": "",
    }
    with pytest.raises(ConfigError, match="need a test_alignment too"):
        prepare("files", out=tmp_path / "p", options=options)
    options["test_alignment"] = str(tmp_path / "test-alignment.parquet")
    dataset = prepare("files", out=tmp_path / "p", options=options)
    assert (dataset.ids("train"), dataset.ids("test")) == (list(COMMON), ["q1", "q2"])


def test_the_options_of_a_run_give_the_id_source_of_each_party(files, tmp_path):
    label, sources = id_sources(tmp_path, {"files": {"a": "a.csv", "b": "b.csv"}, "labels_file": "label.csv"})
    assert label == "label"
    assert {party: source.files[0].name for party, source in sources.items()} == {
        "a": "a.csv",
        "b": "b.csv",
        "label": "label.csv",
    }
    assert sources["a"].read() == [f"p{number:02d}" for number in range(40)]
    label, sources = id_sources(tmp_path, {"files": {"a": "a.csv", "b": "label.csv"}})
    assert (label, set(sources)) == ("b", {"a", "b"})


def test_a_label_party_with_two_files_brings_the_ids_that_both_have(files, tmp_path):
    options = {"files": {"a": "a.csv", "bank": "b.csv"}, "labels_file": "label.csv", "label_party": "bank"}
    label, sources = id_sources(tmp_path, options)
    assert (label, set(sources)) == ("bank", {"a", "bank"})
    assert sources["bank"].read() == [f"p{number:02d}" for number in range(10, 45)]


def test_without_labels_an_alignment_cannot_be_started(files, tmp_path):
    with pytest.raises(DataError, match="no file has the labels"):
        id_sources(tmp_path, {"files": {"a": "a.csv"}, "label": ""})


@pytest.mark.parametrize("name", ["t.csv", "t.tsv", "t.csv.gz", "t.parquet"])
def test_one_column_is_read_alone_and_a_missing_one_is_suggested(tmp_path, name):
    import gzip

    import pyarrow as pa
    import pyarrow.parquet as pq

    content = "person,x\nann,1\nbob,2\n".replace(",", "\t" if name.endswith("tsv") else ",").encode()
    if name.endswith("parquet"):
        pq.write_table(pa.table({"person": ["ann", "bob"], "x": [1, 2]}), tmp_path / name)
    else:
        (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith("gz") else content)
    assert read_table(tmp_path / name, "person").to_pydict() == {"person": ["ann", "bob"]}
    assert read_header(tmp_path / name).column_names == ["person", "x"]
    with pytest.raises(DataError, match="has no column 'persn'; did you mean 'person'"):
        IdSource((tmp_path / name,), "persn").read()


def test_a_broken_row_is_not_quoted(tmp_path):
    (tmp_path / "t.csv").write_text("id,x\nann,1\nsecret-person,2,3\n", encoding="utf8")
    with pytest.raises(DataError, match="cannot be read") as caught:
        read_table(tmp_path / "t.csv")
    assert "secret-person" not in str(caught.value)


def test_a_source_without_a_file_is_refused(tmp_path):
    with pytest.raises(DataError, match="there is no file"):
        IdSource((tmp_path / "absent.csv",), "id").read()
