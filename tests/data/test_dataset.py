import ast
import errno
import gc
import json
import os
import pickle
import resource
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from flower_vfl.data import layout
from flower_vfl.data.builder import ids_digest
from flower_vfl.data.catalog import prepare
from flower_vfl.data.dataset import FeatureSpec, open_dataset
from flower_vfl.errors import DataError, FolderInUseError, OutputExistsError, StorageError
from flower_vfl.files import FolderLock


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


def test_the_shared_manifest_says_nothing_about_columns_or_labels(folder):
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


def test_ids_are_read_one_by_one_in_their_order_and_what_is_none_is_refused(folder, monkeypatch):
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


class Bomb:
    def __reduce__(self):
        return print, ("run",)


def test_a_file_of_objects_is_never_unpickled(folder, capsys):
    np.save(folder / "a/train/numeric.npy", np.array([Bomb()] * 50, dtype=object), allow_pickle=True)
    with pytest.raises(DataError, match="no array that can be read"):
        open_dataset(folder).party("a")
    (folder / "a/train/numeric.npy").write_bytes(pickle.dumps(Bomb()))
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
def named(tmp_path):
    """Two parties' files with IDs and categories."""
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
def test_verify_covers_ids_encodings_and_names_of_classes(named, change):
    open_dataset(named).verify()
    spoil, words = CHANGES[change]
    spoil(named)
    with pytest.raises(DataError, match=words):
        open_dataset(named).verify()


def test_whoever_reads_ids_of_other_rows_is_told(named):
    dataset = open_dataset(named)
    assert [*dataset.ids("train"), *dataset.ids("test")] == dataset.all_ids().to_pylist()
    reorder_ids(named, "test")
    for read in (dataset.all_ids, lambda: next(dataset.train_ids())):
        with pytest.raises(DataError, match="are not those of the rows, or not in their order"):
            read()


@pytest.mark.parametrize("file", ["encoding.json", "vocabulary.parquet", "train/numeric.npy"])
def test_a_folder_whose_digest_of_a_file_was_taken_out_is_refused(named, file):
    files = json.loads((named / "a/party.json").read_text())["files"]
    assert files.pop(file)
    edit(named / "a/party.json", files=files)
    with pytest.raises(DataError, match=rf"party\.json notes no digest of {file}; prepare the data again"):
        open_dataset(named).verify()


def test_names_of_classes_whose_digest_was_taken_out_are_refused(named):
    names = json.loads((named / "labels/labels.json").read_text())
    (named / "labels/labels.json").write_text(json.dumps({k: v for k, v in names.items() if "sha256" not in k}))
    with pytest.raises(DataError, match=r"labels\.json: 'class_names_sha256' must be str, given None"):
        open_dataset(named).verify()


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


def test_a_folder_appears_complete_or_not_at_all(tmp_path):
    out = tmp_path / "deep" / "out"

    def interrupted():
        with layout.new_folder(out) as folder:
            (folder / "half").write_text("x")
            assert not out.exists()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert list(out.parent.iterdir()) == []
    with layout.new_folder(out) as folder:
        (folder / "whole").write_text("x")
    assert [path.name for path in out.parent.iterdir()] == ["out"]
    assert (out / "whole").read_text() == "x"


def test_what_a_killed_preparation_left_is_removed_by_the_next_one(tmp_path):
    out = tmp_path / "out"
    words = (
        "import os, signal, sys; from pathlib import Path; from flower_vfl.data import layout\n"
        "with layout.new_folder(Path(sys.argv[1])) as folder:\n"
        "    (folder / 'half').write_text('x'); os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    assert subprocess.run([sys.executable, "-c", words, str(out)], check=False).returncode == -signal.SIGKILL
    assert [path.name for path in tmp_path.iterdir()] == [".out.partial"]
    with layout.new_folder(out) as folder:
        assert list(folder.iterdir()) == []
        (folder / "whole").touch()
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert [path.name for path in out.iterdir()] == ["whole"]


@pytest.mark.parametrize("kind", ["new", "lasting"])
def test_what_another_process_is_still_preparing_is_left_alone(tmp_path, kind):
    out = tmp_path / "out"
    with layout.new_folder(out) as folder:
        (folder / "mine").touch()
        with pytest.raises(FolderInUseError, match=r"\.out\.partial is in use by process"):
            (layout.new_folder if kind == "new" else lasting)(out).__enter__()
        assert (folder / "mine").is_file()
    assert [path.name for path in out.iterdir()] == ["mine"]


def test_a_preparation_begins_anew_where_the_one_before_removes_its_folder_at_that_moment(tmp_path, monkeypatch):
    out, place, left = tmp_path / "out", tmp_path / ".out.partial", []

    class Late(FolderLock):
        def __init__(self, folder):
            if not left:  # before the file could be opened
                left.append(shutil.rmtree(folder))
            super().__init__(folder)
            if len(left) == 1:  # between opening and locking
                left.append(shutil.rmtree(folder))

    monkeypatch.setattr(layout, "FolderLock", Late)
    with layout.new_folder(out) as folder:
        assert folder.parent == place
        (folder / "whole").touch()
    assert len(left) == 2
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_folder_of_another_user_alone_is_refused(folder, monkeypatch):
    def denied(path):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    monkeypatch.setattr(Path, "is_file", denied)
    with pytest.raises(DataError, match=r"data cannot be read: Permission denied; prepare the data as this user"):
        open_dataset(folder)


@pytest.fixture
def files_up_to():
    """Let files grow to so many bytes and no further, as on a disk that is full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield lambda size: resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_disk_that_gets_full_while_data_is_prepared_is_told_as_one_and_nothing_is_left(tmp_path, files_up_to):
    rows = [f"p{row},{row % 7},{row % 5},{row % 4},{row % 3},{'uvw'[row % 3]},{row % 2}\n" for row in range(400)]
    (tmp_path / "a.csv").write_text("id,x,y,z,w,kind,label\n" + "".join(rows))
    refused = set()
    for size in range(128, 9000, 256):
        files_up_to(size)
        try:
            prepare("files", source=tmp_path, out=tmp_path / "out", options={"files.a": "a.csv"})
        except StorageError as error:
            refused.add(Path(str(error).split(" could not")[0]).name)
            assert [path.name for path in tmp_path.iterdir()] == ["a.csv"]
        else:
            break
    assert (tmp_path / "out").is_dir()
    assert refused == {"train.parquet", "numeric.npy"}


def test_a_disk_without_room_for_an_array_is_told_before_it_is_filled(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(StorageError, match=r"\.npy could not be written: No space left on device"):
        prepare("synthetic", out=tmp_path / "out", options={"rows": 50, "test_rows": 20})
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_holds_something_is_never_overwritten(tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    with layout.new_folder(out) as folder:
        (folder / "new").touch()
    with pytest.raises(OutputExistsError, match="exists"), layout.new_folder(out):
        pytest.fail("not reached")
    other = tmp_path / "other"

    def raced():
        with layout.new_folder(other) as folder:
            (folder / "mine").touch()
            other.mkdir()
            (other / "theirs").touch()

    with pytest.raises(OutputExistsError, match="someone else"):
        raced()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["other", "out"]
    assert [path.name for path in other.iterdir()] == ["theirs"]


def lasting(out):
    return layout.lasting_folder(out, "plan")


@pytest.mark.parametrize("kind", [layout.new_folder, lasting])
@pytest.mark.parametrize("there", [True, False])
def test_a_link_is_followed_to_the_folder_that_is_empty_or_missing(tmp_path, kind, there):
    (tmp_path / "other").mkdir()
    real, link = tmp_path / "other" / "real", tmp_path / "link"
    link.symlink_to(real)
    if there:
        real.mkdir()
    with kind(link) as given:
        folder = given if isinstance(given, Path) else given[0]
        (folder / "new").touch()
    assert link.is_symlink()
    assert [path.name for path in real.iterdir()] == ["new"]
    assert [path.name for path in real.parent.iterdir()] == ["real"]


@pytest.mark.parametrize("kind", [layout.new_folder, lasting])
def test_a_folder_that_cannot_be_replaced_is_refused_before_any_work(tmp_path, monkeypatch, kind):
    out = tmp_path / "out"
    out.mkdir()
    with monkeypatch.context() as patch:
        patch.setattr(layout.os.path, "ismount", lambda path: path == out)
        with pytest.raises(DataError, match=r"out is where a disk is mounted.* name a new folder in it"), kind(out):
            pytest.fail("worked")
    monkeypatch.chdir(out)
    with pytest.raises(DataError, match="is the current folder"), kind(Path()):
        pytest.fail("worked")
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert list(out.iterdir()) == []


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
def test_texts_that_cannot_be_are_refused(arguments, text):
    with pytest.raises(DataError, match=text):
        FeatureSpec(0, (), **arguments)


@pytest.mark.parametrize("times", [1, 3])
def test_an_array_is_opened_although_another_parser_of_python_comes_between(tmp_path, times):
    """numpy parses headers as Python, a thread that prints a traceback parses too: CPython 3.11 ends one of the two.

    Here the collector of garbage brings the other one, in the middle of numpy's.
    """
    np.save(tmp_path / "a.npy", np.zeros((3, 4)))
    left = times

    def between(*_):
        nonlocal left
        if left and sys._getframe(1).f_code is ast.parse.__code__:
            left -= 1
            ast.parse("at * which")

    thresholds = gc.get_threshold()
    gc.set_threshold(1)
    gc.callbacks.append(between)
    try:
        layout.open_array(tmp_path / "a.npy", (3, 4), "float64")
    finally:
        gc.callbacks.remove(between)
        gc.set_threshold(*thresholds)
    assert not left or sys.version_info >= (3, 12)  # which collects no garbage within a parser


def test_an_array_is_written_in_any_order_and_what_was_written_outlasts_the_writer(tmp_path):
    values = np.arange(30, dtype=np.int32).reshape(10, 3)
    first = layout.ArrayFile(tmp_path / "a.npy", (10, 3), "int32")
    first.write(7, values[7:])
    first.close()
    second = layout.ArrayFile(tmp_path / "a.npy", (10, 3), "int32")
    second.write(0, values[:7])
    second.write(4, values[:0])
    second.sync()
    second.close()
    assert np.array_equal(np.load(tmp_path / "a.npy"), values)
    assert (tmp_path / "a.npy").stat().st_size == _size(tmp_path, values)


def _size(folder, values):
    np.save(folder / "plain.npy", values)
    return (folder / "plain.npy").stat().st_size


def test_reading_a_large_array_holds_none_of_it(tmp_path):
    def resident():
        lines = Path("/proc/self/status").read_text().splitlines()
        return int(next(line.split()[1] for line in lines if line.startswith("RssFile")))

    layout.save_array(tmp_path / "a.npy", np.zeros((200_000, 256), np.int32), "int32")
    before = resident()
    array = layout.open_array(tmp_path / "a.npy", (200_000, 256), "int32")
    layout.check_range(tmp_path / "a.npy", array, [1] * 256)
    assert resident() - before < 50_000  # of 200,000 KiB


def test_a_lasting_folder_outlasts_an_interruption_but_no_wrong_input(tmp_path):
    out, seen = tmp_path / "out", []

    def attempt(plan, error=None):
        with layout.lasting_folder(out, plan) as (data, notes):
            seen.append(sorted(path.name for folder in (data, notes) for path in folder.iterdir()))
            (data / "x").write_text("x")
            (notes / "note").write_text("x")
            (notes / ".half.tmp").write_text("x")
            if error is not None:
                raise error

    for plan, error in (("a", KeyboardInterrupt()), ("a", OSError()), ("b", KeyboardInterrupt()), ("b", DataError(""))):
        with pytest.raises(type(error)):
            attempt(plan, error)
    attempt("b")
    assert seen == [[], ["note", "x"], [], ["note", "x"], []]
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert [path.name for path in out.iterdir()] == ["x"]


def test_complete_work_that_cannot_become_the_folder_is_kept(tmp_path, monkeypatch, caplog):
    out = tmp_path / "out"

    def attempt(meanwhile):
        with layout.lasting_folder(out, "plan") as (data, _):
            found = sorted(path.name for path in data.iterdir())
            (data / "x").write_text("x")
            meanwhile()
        return found

    def theirs():
        out.mkdir()
        (out / "theirs").touch()

    def busy(source, target):
        raise OSError(errno.EBUSY, "Device or resource busy")

    with pytest.raises(OutputExistsError, match="someone else"):
        attempt(theirs)
    assert [path.name for path in out.iterdir()] == ["theirs"]
    shutil.rmtree(out)
    with monkeypatch.context() as patch:
        patch.setattr(layout.os, "rename", busy)
        with pytest.raises(StorageError, match="Device or resource busy"):
            attempt(lambda: None)
    assert caplog.text.count(f"kept in {tmp_path / '.out.partial'}") == 2
    assert attempt(lambda: None) == ["x"]
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
