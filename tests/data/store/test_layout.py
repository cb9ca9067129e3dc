"""Folders that are complete or absent, and arrays: how the files of a prepared data set are written and read."""

import ast
import errno
import gc
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from flower_vfl.data.store import layout
from flower_vfl.errors import DataError, FolderInUseError, OutputExistsError, StorageError
from flower_vfl.files import FolderLock


def lasting_folder(out):
    return layout.lasting_folder(out, "plan")


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


def test_files_of_a_killed_preparation_are_removed_by_the_next_one(tmp_path):
    out = tmp_path / "out"
    code = (
        "import os, signal, sys; from pathlib import Path; from flower_vfl.data.store import layout\n"
        "with layout.new_folder(Path(sys.argv[1])) as folder:\n"
        "    (folder / 'half').write_text('x'); os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    assert subprocess.run([sys.executable, "-c", code, str(out)], check=False).returncode == -signal.SIGKILL
    assert [path.name for path in tmp_path.iterdir()] == [".out.partial"]
    with layout.new_folder(out) as folder:
        assert list(folder.iterdir()) == []
        (folder / "whole").touch()
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert [path.name for path in out.iterdir()] == ["whole"]


@pytest.mark.parametrize("kind", ["new", "lasting"])
def test_a_folder_that_another_process_is_still_preparing_is_not_changed(tmp_path, kind):
    out = tmp_path / "out"
    with layout.new_folder(out) as folder:
        (folder / "mine").touch()
        with pytest.raises(FolderInUseError, match=r"\.out\.partial is in use by process"):
            (layout.new_folder if kind == "new" else lasting_folder)(out).__enter__()
        assert (folder / "mine").is_file()
    assert [path.name for path in out.iterdir()] == ["mine"]


def test_a_preparation_retries_where_the_one_before_removes_its_folder_at_that_moment(tmp_path, monkeypatch):
    out, place, removals = tmp_path / "out", tmp_path / ".out.partial", []

    class RacingLock(FolderLock):
        def __init__(self, folder):
            if not removals:  # before the file could be opened
                removals.append(shutil.rmtree(folder))
            super().__init__(folder)
            if len(removals) == 1:  # between opening and locking
                removals.append(shutil.rmtree(folder))

    monkeypatch.setattr(layout, "FolderLock", RacingLock)
    with layout.new_folder(out) as folder:
        assert folder.parent == place
        (folder / "whole").touch()
    assert len(removals) == 2
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_folder_with_contents_is_never_overwritten(tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    with layout.new_folder(out) as folder:
        (folder / "new").touch()
    with pytest.raises(OutputExistsError, match="exists"), layout.new_folder(out):
        pytest.fail("not reached")
    other = tmp_path / "other"

    def write_beside_another():
        with layout.new_folder(other) as folder:
            (folder / "mine").touch()
            other.mkdir()
            (other / "theirs").touch()

    with pytest.raises(OutputExistsError, match="someone else"):
        write_beside_another()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["other", "out"]
    assert [path.name for path in other.iterdir()] == ["theirs"]


@pytest.mark.parametrize("kind", [layout.new_folder, lasting_folder])
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


@pytest.mark.parametrize("kind", [layout.new_folder, lasting_folder])
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


@pytest.mark.parametrize("times", [1, 3])
def test_an_array_is_opened_although_another_parser_of_python_runs_in_between(tmp_path, times):
    """numpy parses headers as Python, and a thread that prints a traceback parses too: in CPython 3.11 one fails.

    Here the garbage collector runs the other parser during numpy's.
    """
    np.save(tmp_path / "a.npy", np.zeros((3, 4)))
    remaining = times

    def parse(*_):
        nonlocal remaining
        if remaining and sys._getframe(1).f_code is ast.parse.__code__:
            remaining -= 1
            ast.parse("at * which")

    thresholds = gc.get_threshold()
    gc.set_threshold(1)
    gc.callbacks.append(parse)
    try:
        layout.open_array(tmp_path / "a.npy", (3, 4), "float64")
    finally:
        gc.callbacks.remove(parse)
        gc.set_threshold(*thresholds)
    assert not remaining or sys.version_info >= (3, 12)  # no garbage collection within a parser


def test_an_array_is_written_in_any_order_and_its_rows_outlast_the_writer(tmp_path):
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
    assert (tmp_path / "a.npy").stat().st_size == _file_size(tmp_path, values)


def _file_size(folder, values):
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


def test_a_lasting_folder_survives_an_interruption_but_no_wrong_input(tmp_path):
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
