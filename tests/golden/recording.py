"""Execute the runs with one version of the package, through its command line, and record their values."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Self

import tomli_w

from tests.golden.inputs import write_inputs
from tests.golden.runs import RUNS, SMALL, Run
from tests.golden.values import values_of

FACTS = "environment.json"
PATIENCE = 240.0
"""Limit of one command in seconds."""

FIRST_EPOCH = r"\bepoch 1\b|\b1/\d+ run:"
"""Pattern of the log of a run whose first epoch is complete."""


class GoldenError(Exception):
    """Results cannot be recorded or compared."""


class Commands:
    """A process that runs commands of one version of the package, one after the other, each in a fork of its own."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment, self._count = dict(environment), 0

    def __enter__(self) -> Self:
        """Start the process."""
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("child.py"))],
            env=self._environment, text=True, bufsize=1, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip
        return self

    def __exit__(self, *_: object) -> None:
        """End the process."""
        self._process.communicate()

    def run(self, arguments: list[str], folder: Path, *, kill_at: str = "") -> None:
        """Run a command in a folder; kill it as soon as its log matches `kill_at`, if that is given.

        Raises
        ------
        GoldenError
            When the command fails, takes too long, or ends before it could be killed.
        """
        self._count += 1
        log = folder / f"{self._count}.log"
        command = {
            "arguments": arguments,
            "folder": str(folder),
            "log": str(log),
            "kill_at": kill_at,
            "seconds": PATIENCE,
        }
        self._process.stdin.write(json.dumps(command) + "\n")
        answer = self._process.stdout.readline()
        if not answer:
            raise GoldenError("the process that runs the commands has died")
        expected = -signal.SIGKILL if kill_at else 0
        shown = log.read_text(encoding="utf8", errors="replace") if log.is_file() else ""
        if int(answer) != expected or (kill_at and not re.search(kill_at, shown)):
            raise GoldenError(f"{arguments[0]} ended with {int(answer)}, not {expected}:\n{shown[-3000:]}")


def record(root: Path, out: Path, names: Iterable[str] = RUNS, *, jobs: int = 0) -> list[str]:
    """Record the runs of the version in `root` into the new folder `out`, a file a run.

    Parameters
    ----------
    root
        Clone or work tree; the package is imported from its `src`, or from itself.
    out
        Folder that does not exist, or is empty.
    names
        Names of the runs.
    jobs
        Number of runs at once; 0: one for each core.

    Returns
    -------
    list of str
        Names of the runs that failed; their files have the errors.

    Raises
    ------
    GoldenError
        When the folder is not empty, or another package than that in `root` would be recorded.
    """
    root, out = root.resolve(), out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    if any(out.iterdir()):
        raise GoldenError(f"{out} is not empty: recordings are never mixed, name a new folder")
    count = jobs or os.cpu_count() or 1
    with tempfile.TemporaryDirectory(prefix="golden-") as scratch, ExitStack() as stack:
        work = Path(scratch)
        environment = _environment(root, work)
        (out / FACTS).write_text(json.dumps(_facts(root, work, environment), indent=1) + "\n", encoding="utf8")
        write_inputs(work / "inputs")
        idle = SimpleQueue[Commands]()
        for _ in range(count):
            idle.put(stack.enter_context(Commands(environment)))
        with ThreadPoolExecutor(count) as pool:
            return [name for name in pool.map(lambda name: _record_run(name, work, out, idle), names) if name]


def _environment(root: Path, work: Path) -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("FLOWER_VFL_", "FLWR_"))}
    return kept | {
        "PYTHONPATH": f"{root / 'src'}{os.pathsep}{root}",
        "OMP_NUM_THREADS": "1",
        "COLUMNS": "200",
        "FLOWER_VFL_CACHE": str(work / "cache"),
        "FLWR_HOME": str(work / "flwr"),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    }


def _facts(root: Path, work: Path, environment: Mapping[str, str]) -> dict[str, Any]:
    """Return the facts that two recordings must share, after a check of the imported package."""
    code = "import flower_vfl; print(flower_vfl.__file__)"
    done = subprocess.run(
        [sys.executable, "-c", code], env=dict(environment), cwd=work, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise GoldenError(f"{root} holds no package that can be imported:\n{done.stderr}")
    if not Path(done.stdout.strip()).resolve().is_relative_to(root):
        raise GoldenError(f"{root} holds no flower_vfl, in src/ or beside it: {done.stdout.strip()} would be recorded")
    versions = {name: version(name) for name in ("torch", "numpy", "scipy", "scikit-learn")}
    return {"processor": _processor(), "python": platform.python_version(), **versions}


def _processor() -> str:
    try:
        found = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text(encoding="utf8"))
    except OSError:
        found = None
    return found[1] if found else platform.processor() or platform.machine()


def _record_run(name: str, work: Path, out: Path, idle: SimpleQueue[Commands]) -> str:
    """Execute one run and write its file; return its name if it failed."""
    run, folder = RUNS[name], work / name
    folder.mkdir()
    values, failure = dict[str, Any](), ""
    commands = idle.get()
    try:
        _execute(run, folder, work / "inputs", commands)
        values = values_of(folder / "out")
    except (GoldenError, OSError, ValueError) as error:
        failure = f"{error}"
    finally:
        idle.put(commands)
    record = {"run": name, "definition": _digest(run), "failure": failure, "values": values}
    (out / f"{name}.json").write_text(json.dumps(record, indent=0, sort_keys=True) + "\n", encoding="utf8")
    return name if failure else ""


def _digest(run: Run) -> str:
    """Return a digest of a run's definition: runs with different definitions must not be compared."""
    return hashlib.sha256(json.dumps([SMALL, asdict(run)], sort_keys=True).encode()).hexdigest()[:16]


def _execute(run: Run, folder: Path, inputs: Path, commands: Commands) -> None:
    """Write the configuration and run the commands; the results are in `folder`/out."""
    settings = _nested({**SMALL, **run.settings}, inputs)
    file, out = folder / "run.toml", folder / "out"
    if run.kind == "sweep":
        (folder / "base.toml").write_text(tomli_w.dumps(settings), encoding="utf8")
        cases = [_nested(case, inputs) for case in run.cases]
        settings = {"base": "base.toml", "sweep": {"stacking": "on"}, "cases": cases}
    file.write_text(tomli_w.dumps(settings), encoding="utf8")
    arguments = ["run" if run.kind == "resumed" else run.kind, str(file), "--out", str(out)]
    if run.kind == "resumed":
        commands.run(arguments, folder, kill_at=FIRST_EPOCH)
        arguments.append("--resume")
    commands.run(arguments, folder)
    if run.predict:
        commands.run(["predict", str(out), "--out", str(out / "scores.parquet")], folder)


def _nested(flat: Mapping[str, Any], inputs: Path) -> dict[str, Any]:
    """Return nested tables from dotted keys; a key with the value None is left out."""
    result: dict[str, Any] = {}
    for key, value in flat.items():
        *sections, leaf = key.split(".")
        table = result
        for section in sections:
            table = table.setdefault(section, {})
        if value is not None:
            table[leaf] = value.replace("{inputs}", str(inputs)) if isinstance(value, str) else value
    return result
