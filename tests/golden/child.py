"""Run commands of the package, each in a fork of a process that has loaded the libraries but nothing of the package.

A line of JSON on stdin is a command; a line on stdout is its exit code. Loading the libraries takes longer than a small
run: here it is done once. PYTHONPATH names the package, which is entered as ``python -m flower_vfl`` does.
"""

import importlib
import json
import os
import re
import runpy
import signal
import sys
import time
from pathlib import Path

LIBRARIES = (
    *(
        "torch",
        "numpy",
        "scipy.stats",
        "sklearn.linear_model",
        "sklearn.cluster",
        "pyarrow.parquet",
        "safetensors.torch",
    ),
    *("pydantic", "typer", "rich.console", "rich.progress", "grpc", "cryptography.x509", "matplotlib.figure", "jinja2"),
    *("flwr.app", "flwr.clientapp", "flwr.serverapp"),
)


def enter(command):
    """Turn this process into `python -m flower_vfl`, with its output in a file."""
    os.chdir(command["folder"])
    log = os.open(command["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for descriptor, file in ((0, nothing), (1, log), (2, log)):
        os.dup2(file, descriptor)
    sys.argv = ["flower_vfl", *command["arguments"]]
    sys.path[0] = command["folder"]
    runpy.run_module("flower_vfl", run_name="__main__", alter_sys=True)


def outcome(child, command):
    """Wait for a command and return its exit code; kill it after its limit, or when its log matches the pattern."""
    log, pattern = Path(command["log"]), command["kill_at"]
    deadline = time.monotonic() + command["seconds"]
    while True:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        shown = pattern and log.exists() and re.search(pattern, log.read_text(errors="replace"))
        if shown or time.monotonic() > deadline:
            os.kill(child, signal.SIGKILL)
        time.sleep(0.01)


def main():
    for library in LIBRARIES:
        importlib.import_module(library)
    for line in sys.stdin:
        command = json.loads(line)
        child = os.fork()
        if child == 0:
            enter(command)
            return
        sys.stdout.write(f"{outcome(child, command)}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
