"""Import path of the studies: tests and worker processes import them from the clone, not from the library."""

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = ROOT / "docs" / "results"


@pytest.fixture
def beside_the_studies(monkeypatch):
    """Import the studies from the clone."""
    monkeypatch.syspath_prepend(str(ROOT))
