"""Changed bytes are refused quickly, and have no other effect."""

import os
import time
from functools import cache

import pytest

from flower_vfl.errors import InputError
from tests.faults import fuzzing


@pytest.mark.slow
def test_changed_frames_and_files_are_refused_without_a_crash_a_hang_or_growing_memory():
    seed = int(os.environ.get("FLOWER_VFL_FUZZ_SEED", "0"))
    found = fuzzing.check(frames=4_000, files=600, seed=seed)
    assert found["broken"] == []
    assert found["grown_mib"] < 64
    assert 0 < found["taken"] < 1_000  # nearly all changes are noticed


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Return a function that returns the readers of files, which train a run where they are first asked for."""
    return cache(lambda: fuzzing.Files(tmp_path_factory.mktemp("files")))


@pytest.mark.parametrize("path", sorted(fuzzing.CORPUS.glob("*")), ids=lambda path: path.name)
def test_an_input_that_once_broke_a_rule_is_refused(path, files):
    data = path.read_bytes()
    if path.name.endswith("-frame"):
        fuzzing.Frames().feed(data, data)
        return
    name = path.name.partition("-")[2]
    files().feed(next(known for known in files().known if known.name == name), data)


@pytest.mark.slow
def test_a_reader_that_raises_an_error_of_its_own_is_found(monkeypatch, tmp_path):
    def careless(path):
        if len(path.read_bytes()) % 2:
            raise ValueError
        raise InputError

    monkeypatch.setattr(fuzzing, "load_config", lambda path: careless(fuzzing.Path(path)))
    monkeypatch.setattr(fuzzing, "CORPUS", tmp_path / "corpus")
    assert any("config.toml" in line for line in fuzzing.check(frames=0, files=500, seed=0)["broken"])
    assert list((tmp_path / "corpus").iterdir())


@pytest.mark.slow
def test_an_input_that_takes_long_is_found(monkeypatch):
    def slow(path):
        time.sleep(0.06)
        raise InputError

    monkeypatch.setattr(fuzzing, "load_config", slow)
    monkeypatch.setattr(fuzzing, "SECONDS", 0.05)
    broken = fuzzing.check(frames=0, files=500, seed=0)["broken"]
    assert any(line.startswith("config.toml") and line.endswith(" s") for line in broken)
