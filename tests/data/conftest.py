import pytest

from flower_vfl.data.catalog import CACHE_VARIABLE


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """Keep every test out of the user's own cache."""
    folder = tmp_path / "cache"
    monkeypatch.setenv(CACHE_VARIABLE, str(folder))
    return folder
