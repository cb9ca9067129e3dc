"""Fixtures and settings for the tests of all folders."""

from __future__ import annotations

import html
import logging
import os
import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings

# Tests have no time limit for a single example: a busy machine takes longer than a quiet one.
settings.register_profile("unhurried", deadline=None)
settings.load_profile("unhurried")

if TYPE_CHECKING:
    from collections.abc import Callable

    from matplotlib.axes import Axes

# pytest-xdist starts a worker for each core. Each of them computes with one thread: with a thread for each core the
# workers wait for each other, and tests take many times as long. Processes that tests start inherit the setting.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")


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


@pytest.fixture
def _really_drawn():
    """Keep the figures of reports as they are in a test of a module that uses `_sketched`."""


@pytest.fixture
def _sketched(request, monkeypatch):
    """Draw no figure of a report, which takes most of a page's time: a figure has its texts, without their layout."""
    if "_really_drawn" in request.fixturenames or request.node.get_closest_marker("slow"):
        return
    for name in ("embeddings", "periods", "snapshots", "trade_off", "training"):
        monkeypatch.setattr(import_module(f"flower_vfl.reports.figures.{name}"), "draw", sketch)


def sketch(title: str, paint: Callable[[Axes], None], **_: Any) -> str:
    """Return what `flower_vfl.reports.figures.canvas.draw` writes, but only the texts, and without those of ticks."""
    from matplotlib.figure import Figure

    from flower_vfl.reports.figures.canvas import short

    axes = Figure().subplots()
    paint(axes)
    legend = axes.get_legend_handles_labels()[1]
    texts = [short(title), axes.get_xlabel(), axes.get_ylabel(), *legend, *(text.get_text() for text in axes.texts)]
    inside = "".join(f"<text>{html.escape(text)}</text>" for text in texts)
    return f'<svg xmlns="http://www.w3.org/2000/svg">{inside}</svg>'


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
