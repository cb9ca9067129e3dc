"""Clones, wheels and virtual environments in which an installation is tried.

Nothing is downloaded and torch is not installed again: each trial environment holds only our package, and sees
everything else in the site-packages of the running interpreter.
"""

import importlib.metadata
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
NOT_CLONED = ("build", "dist", "runs", "*.egg-info", "__pycache__", "*.fab")
OURS = ("PYTHON", "PYTEST", "VIRTUAL_ENV", "FLWR_", "RAY_")
"""Prefixes of the test session's environment variables that a trial must not inherit."""

STUBS = {"flower-vfl"}
"""Commands that come with the package itself; all others are written by `new_environment`."""


def clone_to(target):
    """Copy the tree as a clone has it, with links as links; return the copy."""

    def left_out(folder, names):
        here = Path(folder)
        hidden = {name for name in names if name.startswith(".") and name != ".gitignore"}
        environments = {name for name in names if (here / name / "pyvenv.cfg").exists()}
        return hidden | environments | shutil.ignore_patterns(*NOT_CLONED)(folder, names)

    return Path(shutil.copytree(ROOT, target, symlinks=True, ignore=left_out))


def build(tree, kind, target):
    """Build "wheel", "editable" or "sdist" of a tree, as pip does by setuptools; return the file."""
    target.mkdir(parents=True, exist_ok=True)
    code = f"from setuptools import build_meta; build_meta.build_{kind}({str(target)!r})"
    subprocess.run([sys.executable, "-c", code], cwd=tree, check=True, capture_output=True, timeout=120)
    (built,) = target.iterdir()
    return built


def new_environment(folder, wheel):
    """Make a virtual environment with this wheel, and return its Python."""
    venv.create(folder, symlinks=True)
    python = folder / "bin" / "python"
    install = [sys.executable, "-m", "pip", "--python", python, "install", "-q", "--no-deps", "--no-index", wheel]
    subprocess.run(install, check=True, capture_output=True, timeout=120)
    (own,) = folder.glob("lib/python*/site-packages")
    (own / "zz_everything_else.pth").write_text(sysconfig.get_path("purelib") + "\n")
    for command in importlib.metadata.entry_points(group="console_scripts"):
        if command.name not in STUBS:
            script = folder / "bin" / command.name
            script.write_text(
                f"#!{python}\nimport sys\nfrom {command.module} import {command.attr.partition('.')[0]}\n"
                f"sys.exit({command.attr}())\n"
            )
            script.chmod(0o755)
    return python


@dataclass(frozen=True)
class Installed:
    """A trial environment, the clone beside it, and a folder that has nothing to do with either."""

    kind: str
    python: Path
    clone: Path
    elsewhere: Path

    @property
    def home(self):
        """Folder of the `flower_vfl` that is imported from elsewhere."""
        if self.kind == "editable":
            return self.clone / "src"
        (packages,) = self.python.parent.parent.glob("lib/python*/site-packages")
        return packages

    def run(self, *command, cwd, timeout=240, **variables):
        """Run a command of the environment; return the completed process."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(OURS)}
        path = f"{self.python.parent}{os.pathsep}{os.environ['PATH']}"
        environment = {
            **kept,
            "PATH": path,
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            **variables,
        }
        return subprocess.run(
            [str(self.python.parent / command[0]), *map(str, command[1:])],
            cwd=cwd,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=timeout,
            check=False,
        )


@pytest.fixture(scope="session")
def built_wheel(tmp_path_factory):
    """The wheel of this tree."""
    folder = tmp_path_factory.mktemp("wheel")
    return build(clone_to(folder / "clone"), "wheel", folder / "dist")


@pytest.fixture(scope="session")
def built_sdist(tmp_path_factory):
    """The source distribution of this tree."""
    folder = tmp_path_factory.mktemp("sdist")
    return build(clone_to(folder / "clone"), "sdist", folder / "dist")


@pytest.fixture(scope="session", params=["wheel", "editable"])
def installed(request, tmp_path_factory):
    """The package installed, as a wheel or editable."""
    folder = tmp_path_factory.mktemp(request.param)
    clone = clone_to(folder / "clone")
    if request.param == "wheel":
        wheel = request.getfixturevalue("built_wheel")
    else:
        wheel = build(clone, "editable", folder / "dist")
    python = new_environment(folder / "env", wheel)
    elsewhere = folder / "elsewhere"
    elsewhere.mkdir()
    return Installed(request.param, python, clone, elsewhere)


@pytest.fixture
def place(installed):
    """Working folder of slow commands: the clone of an editable installation, elsewhere for a wheel."""
    return installed.clone if installed.kind == "editable" else installed.elsewhere


@pytest.fixture(params=["root", "elsewhere"])
def cwd(request, installed):
    """Working folder of a command: the root of the clone, or elsewhere."""
    return installed.clone if request.param == "root" else installed.elsewhere
