import errno
import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from flower_vfl.data.sources.catalog import CACHE_VARIABLE, DATASETS_VARIABLE

# A loaded machine is no reason to fail; the fixture below is the same for all examples of a property.
settings.register_profile("unhurried", deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
settings.load_profile("unhurried")


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """Keep every test out of the user's own cache and data."""
    folder = tmp_path / "cache"
    monkeypatch.setenv(CACHE_VARIABLE, str(folder))
    monkeypatch.delenv(DATASETS_VARIABLE, raising=False)
    return folder


@pytest.fixture
def closed(monkeypatch):
    """Let nobody list a folder, as far as this process goes: to root the system shows all of them."""
    scandir = os.scandir

    def close(folder):
        def refused(path):
            if Path(path) == folder:
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
            return scandir(path)

        monkeypatch.setattr(os, "scandir", refused)

    return close
