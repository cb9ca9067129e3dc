import errno
import json
import os
import pickle
import resource
import shutil
from pathlib import Path

import numpy as np
import pytest

from flower_vfl.data.sources.catalog import prepare
from flower_vfl.data.store import layout
from flower_vfl.data.store.builder import ids_digest
from flower_vfl.data.store.dataset import FeatureSpec, open_dataset
from flower_vfl.errors import DataError, StorageError


@pytest.fixture
def folder(tmp_path):
    out = tmp_path / "data"
    options = {"rows": 50, "test_rows": 20, "numeric": 2, "categorical": 3, "vocabulary": 12}
    prepare("synthetic", out=out, options=options)
    return out


def edit(path, **changes):
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_a_party_reads_its_own_files_only(folder):
    shutil.rmtree(folder / "b")
    shutil.rmtree(folder / "labels")
    dataset = open_dataset(folder)
    table = dataset.party("a")
    assert (len(table.train), len(table.test)) == (50, 20)
    assert table.spec == FeatureSpec(2, (5, 5, 5))
    assert dataset.spec("a") == table.spec
    numeric, categorical = table.train.gather(np.array([3, 4]))
    assert numeric.shape == (2, 2)
    assert categorical.shape == (2, 3)
    dataset.verify()
    with pytest.raises(DataError, match="does not hold the features of party 'b'"):
        dataset.party("b")
    with pytest.raises(DataError, match=r"does not hold the labels of synthetic.*label party 'b'"):
        dataset.labels()
    with pytest.raises(DataError, match=r"no party 'c'.*it has a, b"):
        dataset.party("c")


def test_the_shared_manifest_has_nothing_about_columns_or_labels(folder):
    assert set(json.loads((folder / "manifest.json").read_text())) == {
        "schema", "name", "parties", "label_party", "alignment", "licence", "source", "options", "facts",
    }  # fmt: skip


def test_labels_are_classes_that_can_become_a_tensor(folder):
    labels = open_dataset(folder).labels()
    assert labels.classes == 2
    assert labels.train.dtype == np.int64
    assert labels.train.flags.writeable
    assert set(labels.train.tolist()) == {0, 1}


def test_rows_without_ids_are_numbered(folder):
    assert open_dataset(folder).ids("test") == [str(row) for row in range(20)]
    assert open_dataset(folder).train_ids() is None


def test_ids_are_read_one_by_one_in_their_order_and_other_files_are_refused(folder, monkeypatch):
    monkeypatch.setattr(layout, "_IDS", 7)
    known = [f"person {row}" for row in range(50)]
    ids = {"train": known, "test": [f"other {row}" for row in range(20)]}
    for part, names in ids.items():
        layout.write_ids(folder / "ids" / f"{part}.parquet", names)
    edit(folder / "manifest.json", alignment={"rows": 50, "test_rows": 20, "digest": ids_digest(ids)})
    assert list(open_dataset(folder).train_ids()) == known == open_dataset(folder).ids("train")
    (folder / "ids" / "train.parquet").write_bytes(b"no table")
    with pytest.raises(DataError, match=r"train.parquet cannot be read"):
        list(open_dataset(folder).train_ids())
    (folder / "ids" / "train.parquet").unlink()
    with pytest.raises(DataError, match=r"train.parquet cannot be read"):
        list(open_dataset(folder).train_ids())


def overwrite(path, array):
    np.save(path, array)


@pytest.mark.parametrize(
    ("file", "array", "text"),
    [
        (
            "a/train/numeric.npy",
            np.zeros((49, 2), np.float32),
            r"float32 of shape \(49, 2\); needed: float32 of shape \(50, 2\)",
        ),
        ("a/train/numeric.npy", np.zeros((50, 2)), "holds float64"),
        ("a/test/categorical.npy", np.zeros((20, 3), np.int64), "needed: int32"),
        ("a/train/numeric.npy", np.asfortranarray(np.zeros((50, 2), np.float32)), "by rows"),
        ("labels/train.npy", np.full(50, 2, np.int64), "holds 2, allowed are 0 to 1"),
        ("labels/train.npy", np.full(50, -1, np.int64), "holds -1, allowed are 0 to 1"),
    ],
)
def test_a_file_that_does_not_fit_the_manifest_is_refused_at_open(folder, file, array, text):
    overwrite(folder / file, array)
    dataset = open_dataset(folder)
    with pytest.raises(DataError, match=text):
        dataset.party("a") if file.startswith("a") else dataset.labels()


class PrintOnUnpickling:
    def __reduce__(self):
        return print, ("run",)


def test_a_file_of_objects_is_never_unpickled(folder, capsys):
    np.save(folder / "a/train/numeric.npy", np.array([PrintOnUnpickling()] * 50, dtype=object), allow_pickle=True)
    with pytest.raises(DataError, match="no array that can be read"):
        open_dataset(folder).party("a")
    (folder / "a/train/numeric.npy").write_bytes(pickle.dumps(PrintOnUnpickling()))
    with pytest.raises(DataError, match="no array that can be read"):
        open_dataset(folder).party("a")
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("size", [0, 5, 100, 300])
def test_a_file_that_was_cut_short_is_refused(folder, size):
    path = folder / "a/train/numeric.npy"
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(DataError, match=r"numeric\.npy is no array"):
        open_dataset(folder).party("a")


def test_a_missing_file_and_an_archive_are_refused(folder):
    path = folder / "a/train/numeric.npy"
    with path.open("wb") as file:
        np.savez(file, x=np.zeros(3))
    with pytest.raises(DataError, match=r"archive|no array"):
        open_dataset(folder).party("a")
    path.unlink()
    with pytest.raises(DataError, match="there is no file"):
        open_dataset(folder).party("a")


def test_verify_finds_changed_contents_that_opening_does_not(folder):
    path = folder / "a/train/categorical.npy"
    array = np.load(path)
    array[7, 1] = 5
    overwrite(path, array)
    dataset = open_dataset(folder)
    dataset.party("a")
    with pytest.raises(DataError, match="not as it was prepared"):
        dataset.verify()
    facts = json.loads((folder / "a/party.json").read_text())
    edit(folder / "a/party.json", files=facts["files"] | {"train/categorical.npy": layout.digest(path)})
    with pytest.raises(DataError, match="row 7, column 1 holds 5, allowed are 0 to 4"):
        dataset.verify()


@pytest.fixture
def with_ids(tmp_path):
    """Prepare two parties' files with IDs and categories."""
    (tmp_path / "a.csv").write_text("id,x,color\n" + "".join(f"p{n},{n},{'rgb'[n % 3]}\n" for n in range(40)))
    (tmp_path / "b.csv").write_text("id,label\n" + "".join(f"p{n},{['no', 'yes'][n % 2]}\n" for n in range(40)))
    files = {"a": str(tmp_path / "a.csv")}
    options = {"files": files, "labels_file": str(tmp_path / "b.csv")}
    prepare("files", out=tmp_path / "named", options=options)
    return tmp_path / "named"


def reorder_ids(folder, part="train"):
    path = folder / "ids" / f"{part}.parquet"
    layout.write_ids(path, layout.read_id_column(path, open_dataset(folder).rows(part)).to_pylist()[::-1])


CHANGES = {
    "IDs in another order": (reorder_ids, "are not those of the rows, or not in their order"),
    "test IDs in another order": (lambda folder: reorder_ids(folder, "test"), "not in their order"),
    "fewer IDs": (lambda folder: layout.write_ids(folder / "ids/train.parquet", ["p1"]), "not those of the rows"),
    "an empty ID": (lambda folder: layout.write_ids(folder / "ids/train.parquet", ["p1", None]), "one column of IDs"),
    "no IDs": (lambda folder: (folder / "ids/train.parquet").unlink(), r"train\.parquet cannot be read"),
    "another digest": (
        lambda folder: edit(folder / "manifest.json", alignment={"rows": 32, "test_rows": 8, "digest": "0" * 64}),
        "that of the rows is 0000000000000000; copy the folder again",
    ),
    "another encoding": (
        lambda folder: edit(folder / "a/encoding.json", numeric=[]),
        r"encoding\.json is not as it was prepared",
    ),
    "no encoding": (lambda folder: (folder / "a/encoding.json").unlink(), r"there is no file .*encoding\.json"),
    "no vocabulary": (lambda folder: (folder / "a/vocabulary.parquet").unlink(), "there is no file .*vocabulary"),
    "another vocabulary": (
        lambda folder: shutil.copy(folder / "ids/train.parquet", folder / "a/vocabulary.parquet"),
        r"vocabulary\.parquet is not as it was prepared",
    ),
    "classes called otherwise": (
        lambda folder: edit(folder / "labels/labels.json", class_names=["yes", "no"]),
        "the names of the classes in .* are not those that were prepared",
    ),
    "a class without a name": (
        lambda folder: edit(
            folder / "labels/labels.json", class_names=["no"], class_names_sha256=layout.names_digest(["no"])
        ),
        "does not name 2 classes",
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_verify_covers_ids_encodings_and_names_of_classes(with_ids, change):
    open_dataset(with_ids).verify()
    apply, words = CHANGES[change]
    apply(with_ids)
    with pytest.raises(DataError, match=words):
        open_dataset(with_ids).verify()


def test_reading_ids_of_other_rows_is_refused(with_ids):
    dataset = open_dataset(with_ids)
    assert [*dataset.ids("train"), *dataset.ids("test")] == dataset.all_ids().to_pylist()
    reorder_ids(with_ids, "test")
    for read in (dataset.all_ids, lambda: next(dataset.train_ids())):
        with pytest.raises(DataError, match="are not those of the rows, or not in their order"):
            read()


@pytest.mark.parametrize("file", ["encoding.json", "vocabulary.parquet", "train/numeric.npy"])
def test_a_folder_whose_digest_of_a_file_was_taken_out_is_refused(with_ids, file):
    files = json.loads((with_ids / "a/party.json").read_text())["files"]
    assert files.pop(file)
    edit(with_ids / "a/party.json", files=files)
    with pytest.raises(DataError, match=rf"party\.json notes no digest of {file}; prepare the data again"):
        open_dataset(with_ids).verify()


def test_names_of_classes_whose_digest_was_taken_out_are_refused(with_ids):
    names = json.loads((with_ids / "labels/labels.json").read_text())
    (with_ids / "labels/labels.json").write_text(json.dumps({k: v for k, v in names.items() if "sha256" not in k}))
    with pytest.raises(DataError, match=r"labels\.json: 'class_names_sha256' must be str, given None"):
        open_dataset(with_ids).verify()


@pytest.mark.parametrize(
    "changes",
    [
        {"schema": 2},
        {"schema": 4},
        {"schema": None},
        {"name": 3},
        {"parties": "ab"},
        {"parties": ["../../etc"]},
        {"parties": [1]},
        {"parties": ["labels"]},
        {"parties": ["label"], "label_party": "b"},
        {"label_party": ".."},
        {"alignment": {}},
        {"alignment": {"rows": -1, "test_rows": 1, "digest": ""}},
        {"alignment": {"rows": True, "test_rows": 1, "digest": ""}},
        {"alignment": {"rows": 1e3, "test_rows": 1, "digest": ""}},
    ],
)
def test_a_hostile_manifest_is_refused(folder, changes):
    edit(folder / "manifest.json", **changes)
    with pytest.raises(DataError):
        open_dataset(folder)


@pytest.mark.parametrize("content", ["", "[]", "{", "[" * 100_000, '"x"'])
def test_a_manifest_that_is_no_object_is_refused(folder, content):
    (folder / "manifest.json").write_text(content)
    with pytest.raises(DataError, match=r"manifest\.json"):
        open_dataset(folder)


@pytest.mark.parametrize(
    "spec",
    [
        {"numeric": 2, "cardinalities": [5, 5, -1], "shape": []},
        {"numeric": 2, "cardinalities": [5, 5, "5"], "shape": []},
        {"numeric": 2, "cardinalities": [5, 5, 5], "shape": [1]},
        {"numeric": 0, "cardinalities": [], "shape": []},
        {"numeric": 10**9, "cardinalities": [5, 5, 5], "shape": []},
        {"numeric": 2, "cardinalities": [5, 5, 5], "shape": [], "pixels": True},
        {"numeric": 2, "cardinalities": [5, 5, 5], "shape": [], "pixels": "no"},
        {"numeric": 2, "cardinalities": [5, 5, 5], "shape": [], "vectors": None},
        {},
    ],
)
def test_a_hostile_description_of_a_party_is_refused(folder, spec):
    whole = {"pixels": False, "vocabulary": 0, "vectors": 0, **spec} if spec else {}
    edit(folder / "a/party.json", spec=whole)
    with pytest.raises(DataError):
        open_dataset(folder).party("a")


def test_a_folder_that_was_not_prepared_is_refused(tmp_path):
    with pytest.raises(DataError, match="no prepared data set"):
        open_dataset(tmp_path)


def test_a_folder_of_another_user_alone_is_refused(folder, monkeypatch):
    def denied(path):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    monkeypatch.setattr(Path, "is_file", denied)
    with pytest.raises(DataError, match=r"data cannot be read: Permission denied; prepare the data as this user"):
        open_dataset(folder)


@pytest.fixture
def limit_file_size():
    """Return a function that limits the size of files in bytes, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield lambda size: resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_disk_that_gets_full_while_data_is_prepared_is_reported_and_nothing_is_left(tmp_path, limit_file_size):
    rows = [f"p{row},{row % 7},{row % 5},{row % 4},{row % 3},{'uvw'[row % 3]},{row % 2}\n" for row in range(400)]
    (tmp_path / "a.csv").write_text("id,x,y,z,w,kind,label\n" + "".join(rows))
    refused = set()
    for size in range(128, 9000, 256):
        limit_file_size(size)
        try:
            prepare("files", source=tmp_path, out=tmp_path / "out", options={"files.a": "a.csv"})
        except StorageError as error:
            refused.add(Path(str(error).split(" could not")[0]).name)
            assert [path.name for path in tmp_path.iterdir()] == ["a.csv"]
        else:
            break
    assert (tmp_path / "out").is_dir()
    assert refused == {"train.parquet", "numeric.npy"}


def test_a_disk_without_room_for_an_array_is_reported_before_it_is_filled(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(StorageError, match=r"\.npy could not be written: No space left on device"):
        prepare("synthetic", out=tmp_path / "out", options={"rows": 50, "test_rows": 20})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"shape": (3, 4), "vocabulary": 5}, "texts have a shape of one number"),
        ({"shape": (), "vocabulary": 5}, "features are a table"),
        ({"shape": (8,), "vocabulary": -1}, "at least 0"),
        ({"shape": (8,), "vocabulary": 5, "pixels": True}, "no pixels"),
        ({"shape": (8,), "vocabulary": 5, "vectors": np.zeros((4, 2), np.float32)}, r"must be \(5, W\)"),
        ({"shape": (8,), "vectors": np.zeros((4, 2), np.float32)}, r"must be \(0, W\)"),
    ],
)
def test_impossible_descriptions_of_texts_are_refused(arguments, text):
    with pytest.raises(DataError, match=text):
        FeatureSpec(0, (), **arguments)
