import errno
import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from flower_vfl.data.sources.catalog import CACHE_VARIABLE, DATASETS_VARIABLE

# A loaded machine is no reason to fail; the fixture below may be shared by all examples of a property.
settings.register_profile("unhurried", suppress_health_check=[HealthCheck.function_scoped_fixture])
settings.load_profile("unhurried")


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """Keep every test out of the user's own cache and data."""
    folder = tmp_path / "cache"
    monkeypatch.setenv(CACHE_VARIABLE, str(folder))
    monkeypatch.delenv(DATASETS_VARIABLE, raising=False)
    return folder


@pytest.fixture
def deny_listing(monkeypatch):
    """Refuse to list a folder in this process, because permissions do not stop the root user."""
    scandir = os.scandir

    def deny(folder):
        def refused(path):
            if Path(path) == folder:
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
            return scandir(path)

        monkeypatch.setattr(os, "scandir", refused)

    return deny
