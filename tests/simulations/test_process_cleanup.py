"""Child processes and temporary folders of a process end with it, however it ends, and not before."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from flower_vfl.simulations.process_cleanup import ending_with_this, passing_folder

FOLDER = """
import sys, time
from flower_vfl.simulations.process_cleanup import passing_folder
with passing_folder() as folder:
    (folder / "file").touch()
    print(folder, flush=True)
    time.sleep(60)
"""
PROCESS = """
import subprocess, time
from flower_vfl.simulations.process_cleanup import ending_with_this
child = subprocess.Popen(["sleep", "60"], start_new_session=True)
with ending_with_this(child):
    print(child.pid, flush=True)
    time.sleep(60)
"""


def killed(script):
    """Run a script, kill its process group after its first line of output, and return that line."""
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, start_new_session=True) as process:
        line = process.stdout.readline().decode().strip()
        os.killpg(process.pid, signal.SIGKILL)
    return line


def eventually(condition):
    end = time.monotonic() + 10.0
    while not condition() and time.monotonic() < end:
        time.sleep(0.02)
    return condition()


def is_running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def test_a_folder_goes_with_a_process_that_is_killed():
    folder = Path(killed(FOLDER))
    assert folder.name.startswith("fvfl-")
    assert eventually(lambda: not folder.exists())


def test_a_folder_is_there_within_the_block_and_gone_after_it(tmp_path):
    with passing_folder(tmp_path) as folder:
        assert folder.parent == tmp_path
        (folder / "-rf").mkdir()
    assert not list(tmp_path.iterdir())
    with pytest.raises(KeyboardInterrupt), passing_folder(tmp_path):
        raise KeyboardInterrupt
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="whether a process runs is looked up in /proc")
def test_a_process_ends_with_one_that_is_killed():
    pid = int(killed(PROCESS))
    assert eventually(lambda: not is_running(pid))


def test_a_process_goes_on_where_the_block_ends():
    with subprocess.Popen(["sleep", "60"]) as child:
        with ending_with_this(child):
            pass
        with pytest.raises(subprocess.TimeoutExpired):
            child.wait(timeout=0.3)
        child.terminate()
