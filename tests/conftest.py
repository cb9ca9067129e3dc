"""Fixtures and settings for the tests of all folders."""

from __future__ import annotations

import logging
import os
import sys
from functools import cache
from pathlib import Path

import pytest

# pytest-xdist starts a worker for each core. Each of them computes with one thread: with a thread for each core the
# workers wait for each other, and tests take many times as long. Processes that tests start inherit the setting.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")


@pytest.hookimpl(tryfirst=True)  # before tests are deselected
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Refuse a slow test in a file without the marker's name, by which `.ci/run` finds the files of such tests."""
    for item in items:
        for marker in item.iter_markers():
            if marker.name in ("slow", "flower") and f"mark.{marker.name}" not in _text(item.path):
                raise pytest.UsageError(f"{item.path} has a test with the marker {marker.name}: name it there")


@cache
def _text(path: Path) -> str:
    return path.read_text(encoding="utf8")


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Return a function that installs a package until the test ends: modules and a dist-info folder on the path."""
    known = set(sys.modules)

    def installed(name: str, modules: dict[str, str], entry_points: str = "", version: str = "1.0") -> Path:
        site = tmp_path / f"site-{name}"
        info = site / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        (info / "entry_points.txt").write_text(entry_points)
        for module, code in modules.items():
            (site / f"{module}.py").write_text(code)
        monkeypatch.syspath_prepend(str(site))
        return site

    yield installed
    for name in set(sys.modules) - known:
        if str(getattr(sys.modules[name], "__file__", None) or "").startswith(str(tmp_path)):
            del sys.modules[name]


@pytest.fixture(autouse=True)
def _restore_process():
    """Restore the umask, which a deployed run makes private, and the logger, which a command sets up.

    Also check that a worker of pytest-xdist still computes with one thread.
    """
    umask = os.umask(0o022)
    os.umask(umask)
    log = logging.getLogger("flower_vfl")
    handlers, level, propagate = log.handlers, log.level, log.propagate
    yield
    os.umask(umask)
    log.handlers, log.level, log.propagate = handlers, level, propagate
    torch = sys.modules.get("torch")
    if torch is not None and os.environ.get("OMP_NUM_THREADS") == "1":
        assert torch.get_num_threads() == 1, "the test or an import set the number of threads, and later tests are slow"
