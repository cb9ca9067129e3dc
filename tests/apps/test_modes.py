"""Files of runs and of data are closed to other users."""

import os
import stat
import subprocess
import sys

import pytest

from flower_vfl.apps import run
from tests.toys import toy_config, toy_data


def open_to_others(folder):
    """Return the paths of a folder and its content that other users may read, write or enter."""
    found = [folder, *folder.rglob("*")]
    return [str(path) for path in found if stat.S_IMODE(path.stat().st_mode) & 0o077]


@pytest.fixture
def usual_umask():
    """The umask that most systems have."""
    before = os.umask(0o022)
    yield
    os.umask(before)


def test_the_folder_of_a_run_is_closed_to_others_whoever_starts_it(usual_umask, tmp_path):
    run(toy_config(checkpoint={"every": 3}), out=tmp_path / "run", data=lambda _: toy_data())
    assert {path.name for path in (tmp_path / "run").iterdir()} >= {"result.json", "steps.parquet", "weights"}
    assert open_to_others(tmp_path / "run") == [str(tmp_path / "run" / "checkpoints")]  # within a closed folder


@pytest.mark.slow
def test_what_the_command_line_writes_is_closed_to_others(usual_umask, tmp_path):
    settings = 'data = {name = "synthetic", path = "data"}\ntraining = {epochs = 1}\nattack = {names = ["norm"]}\n'
    (tmp_path / "run.toml").write_text(settings)
    commands = [
        ["data", "prepare", "synthetic", "--set", "rows=200", "--set", "test_rows=50", "--out", "data"],
        ["run", "run.toml", "--out", "run"],
    ]
    for command in commands:
        done = subprocess.run(
            [sys.executable, "-m", "flower_vfl", *command], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
    assert (tmp_path / "run" / "report.html").is_file()
    assert [found for name in ("data", "run") for found in open_to_others(tmp_path / name)] == []
