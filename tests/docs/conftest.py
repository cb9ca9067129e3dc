"""The studies' files import each other as scripts do."""

import sys
from pathlib import Path

import pytest

STUDY = Path(__file__).resolve().parents[2] / "docs" / "results"


@pytest.fixture
def beside_the_studies(monkeypatch):
    """Import from the folder of the studies, and forget what was imported."""
    monkeypatch.syspath_prepend(str(STUDY.parents[1]))  # processes of a pool import the tests' functions
    monkeypatch.syspath_prepend(str(STUDY))
    yield
    files = {path.stem for path in STUDY.glob("*.py")}
    for name in files & sys.modules.keys():
        del sys.modules[name]
