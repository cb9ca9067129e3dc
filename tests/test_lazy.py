"""Packages load their names at first use, without garbage collection meanwhile."""

import gc
import sys

import pytest

from flower_vfl.lazy import lazy_names, nothing_collected

MODULE = "import gc\n\ncollecting = gc.isenabled()\n"


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Return the name of a package whose module `part` records whether garbage collection is enabled."""
    (tmp_path / "lazily").mkdir()
    (tmp_path / "lazily" / "__init__.py").touch()
    (tmp_path / "lazily" / "part.py").write_text(MODULE)
    (tmp_path / "lazily" / "broken.py").write_text("raise RuntimeError\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield "lazily"
    for name in [name for name in sys.modules if name.split(".")[0] == "lazily"]:
        del sys.modules[name]


@pytest.mark.parametrize("name", ["part", "collecting"])
def test_garbage_collection_is_off_during_an_import_and_on_afterwards(package, name):
    find, _ = lazy_names(package, {"collecting": "lazily.part"})
    found = find(name)
    assert (found if name == "collecting" else found.collecting) is False
    assert gc.isenabled()


def test_garbage_collection_is_on_after_an_import_that_fails(package):
    find, _ = lazy_names(package, {})
    with pytest.raises(RuntimeError):
        find("broken")
    assert gc.isenabled()


def test_disabled_garbage_collection_stays_disabled():
    gc.disable()
    try:
        with nothing_collected():
            assert not gc.isenabled()
        assert not gc.isenabled()
    finally:
        gc.enable()
