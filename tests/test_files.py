"""Files are written whole or stay as they were, and are private to their owner."""

import errno
import json
import math
import os
import stat

import pytest

from flower_vfl.errors import DataError, StorageError
from flower_vfl.files import (
    append_private,
    replacing,
    reserve,
    write_json_atomic,
    write_private,
    write_text_atomic,
    writing_to,
)


def test_the_space_of_a_file_is_reserved_with_and_without_posix_fallocate(tmp_path, monkeypatch):
    for fallocate in (True, False):
        if not fallocate:
            monkeypatch.delattr("os.posix_fallocate")
        with (tmp_path / f"f{fallocate}").open("wb+") as file:
            reserve(file, 10_000)
        assert (tmp_path / f"f{fallocate}").stat().st_size == 10_000


def test_text_is_written_in_utf8(tmp_path):
    write_text_atomic(tmp_path / "a.txt", "naïve ✓\n")
    assert (tmp_path / "a.txt").read_bytes() == "naïve ✓\n".encode()


def test_a_block_that_fails_leaves_the_old_file_and_nothing_else(tmp_path):
    target = tmp_path / "a.txt"
    target.write_text("old")

    def fail():
        with replacing(target) as temporary:
            temporary.write_text("half of the n")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert target.read_text() == "old"
    assert os.listdir(tmp_path) == ["a.txt"]


def test_until_the_block_ends_readers_see_the_old_file(tmp_path):
    target = tmp_path / "a.txt"
    target.write_text("old")
    with replacing(target) as temporary:
        temporary.write_text("new")
        assert target.read_text() == "old"
    assert target.read_text() == "new"
    assert os.listdir(tmp_path) == ["a.txt"]


def test_what_is_written_and_appended_is_its_owners_alone_whatever_the_umask(tmp_path):
    before = os.umask(0)
    try:
        write_text_atomic(tmp_path / "a.txt", "")
        with append_private(tmp_path / "b.txt") as log:
            log.write("b")
    finally:
        os.umask(before)
    assert {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()} == {0o600}


def test_a_private_file_is_its_owners_alone_and_replaces_no_file(tmp_path):
    before = os.umask(0)
    try:
        write_private(tmp_path / "key", b"secret")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "key").stat().st_mode) == 0o600
    with pytest.raises(FileExistsError):
        write_private(tmp_path / "key", b"other")
    assert (tmp_path / "key").read_bytes() == b"secret"


def test_json_has_null_where_a_number_is_not_finite(tmp_path):
    write_json_atomic(tmp_path / "a.json", {"x": math.nan, "y": [math.inf, 0.0, {"z": (-math.inf, 1)}], "s": "é"})
    text = (tmp_path / "a.json").read_text(encoding="utf-8")
    assert json.loads(text) == {"x": None, "y": [None, 0.0, {"z": [None, 1]}], "s": "é"}
    assert text.endswith("}\n")


@pytest.mark.parametrize(
    ("number", "kind", "words"),
    [
        (errno.ENOSPC, StorageError, "could not be written: No space left on device. .* make space"),
        (errno.EROFS, StorageError, "could not be written: Read-only file system"),
        (errno.EACCES, DataError, "cannot be written: Permission denied; name another place"),
        (errno.EPERM, DataError, "cannot be written: Operation not permitted"),
        (errno.ENOENT, DataError, "cannot be written: No such file or directory; name another place"),
        (errno.EPIPE, BrokenPipeError, "Broken pipe"),
    ],
)
def test_errors_of_the_disk_and_of_the_path_are_distinguished(tmp_path, number, kind, words):
    with pytest.raises(kind, match=words) as caught, writing_to(tmp_path / "a.txt"):
        raise OSError(number, os.strerror(number))
    assert (str(tmp_path / "a.txt") in str(caught.value)) == (kind is not BrokenPipeError)


@pytest.mark.parametrize("name", ["a.txt/b.txt", "x" * 300, "folder"])
def test_a_path_that_cannot_be_written_is_named(tmp_path, name):
    (tmp_path / "a.txt").touch()
    (tmp_path / "folder").mkdir()
    with pytest.raises(DataError, match=r"cannot be written: .* name another place"):
        write_text_atomic(tmp_path / name, "")
    assert sorted(os.listdir(tmp_path)) == ["a.txt", "folder"]


def test_what_json_cannot_hold_leaves_no_file(tmp_path):
    with pytest.raises(TypeError):
        write_json_atomic(tmp_path / "a.json", {"x": object()})
    assert os.listdir(tmp_path) == []
