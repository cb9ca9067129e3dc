"""Packages that load their names when they are first used."""

import gc
import sys

import pytest

from flower_vfl.lazy import lazy_names, nothing_collected

MODULE = "import gc\n\ncollecting = gc.isenabled()\n"


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Return a name by which a package with one module that looks whether garbage is collected can be imported."""
    (tmp_path / "lazily").mkdir()
    (tmp_path / "lazily" / "__init__.py").touch()
    (tmp_path / "lazily" / "part.py").write_text(MODULE)
    (tmp_path / "lazily" / "broken.py").write_text("raise RuntimeError\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield "lazily"
    for name in [name for name in sys.modules if name.split(".")[0] == "lazily"]:
        del sys.modules[name]


@pytest.mark.parametrize("name", ["part", "collecting"])
def test_nothing_is_collected_while_a_name_is_imported_and_then_again(package, name):
    find, _ = lazy_names(package, {"collecting": "lazily.part"})
    found = find(name)
    assert (found if name == "collecting" else found.collecting) is False
    assert gc.isenabled()


def test_collections_go_on_after_an_import_that_fails(package):
    find, _ = lazy_names(package, {})
    with pytest.raises(RuntimeError):
        find("broken")
    assert gc.isenabled()


def test_who_collects_nothing_goes_on_so(package):
    gc.disable()
    try:
        with nothing_collected():
            assert not gc.isenabled()
        assert not gc.isenabled()
    finally:
        gc.enable()
