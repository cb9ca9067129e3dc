"""Hosts with different code are refused, with the host that must be updated."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import flower_vfl
from flower_vfl.version import VERSION, build_digest, installed_version, refusal, software, unequal
from tests.commands import flower_vfl as command

HOME = Path(flower_vfl.__file__).parent


def digest_of(folder):
    """Return the digest of a copy of the package, as a host that has it computes it."""
    code = "import sys; sys.path.insert(0, sys.argv[1]); from flower_vfl import version; print(version.build_digest())"
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    done = subprocess.run(
        [sys.executable, "-c", code, str(folder)], capture_output=True, text=True, check=True, env=environment
    )
    return done.stdout.strip()


def test_the_digest_is_of_the_code_and_of_nothing_else(tmp_path):
    copy = tmp_path / "flower_vfl"
    shutil.copytree(HOME, copy, ignore=shutil.ignore_patterns("__pycache__"))  # links become ordinary files
    (copy / "rng.py").write_bytes((copy / "rng.py").read_bytes().replace(b"\n", b"\r\n"))
    (copy / "rng.py.orig").write_text("x")
    (copy / "reports" / "templates" / "more.j2").write_text("x")
    assert digest_of(tmp_path) == build_digest()
    assert list(copy.rglob("*.pyc"))  # written by the import, and no part of it
    seen = {build_digest()}
    for name in ("rng.py", "strategies/gradients/iso.py", "simulations/presets/census.toml"):
        path = copy / name
        path.write_bytes(path.read_bytes() + b"\n")
        seen.add(digest_of(tmp_path))
    (copy / "rng.py").rename(copy / "rnz.py")  # the order of the files stays
    seen.add(digest_of(tmp_path))
    assert len(seen) == 5


def dated(date, release=VERSION, build="f00"):
    return {"version": f"{release}+{date}.gabc1234", "build": build}


@pytest.mark.parametrize(
    ("theirs", "own", "words"),
    [
        (dated("202601010000"), dated("202601020000"), "theirs has the older one"),
        (dated("202601030000"), dated("202601020000"), "ours has the older one"),
        (dated("202601030000", "0.0.9"), dated("202601020000"), "theirs has the older one"),
        ({"version": "0.10.0", "build": "f00"}, {"version": "0.9.0+source", "build": "ba5"}, "ours has the older one"),
        (dated("202601020000"), {"version": f"{VERSION}+source", "build": "ba5"}, "install one build on both hosts"),
        ({"version": VERSION}, dated("202601020000"), "theirs has flower-vfl 0.1.0 (build unknown)"),
        ({"version": "\x1b[2Jrun this", "build": 7}, dated("202601020000"), "theirs has flower-vfl unknown"),
        ({}, dated("202601020000"), "install one build on both hosts"),
    ],
)
def test_other_code_is_refused_with_the_host_to_change(theirs, own, words, monkeypatch):
    own = {**software(), **own, "build": "ba5"}
    monkeypatch.setattr("flower_vfl.version.software", lambda: own)
    assert words in refusal(theirs, "theirs", asking="ours")
    assert refusal({**theirs, "build": "ba5"}, "theirs", asking="ours") == ""


def test_libraries_are_compared_by_their_release():
    own = software()
    torch = own["torch"].partition("+")[0]
    assert unequal({**own, "torch": f"{torch}+cu130"}, "theirs", asking="ours") == ""
    assert (
        unequal({**own, "torch": "1.0.0"}, "theirs", asking="ours")
        == f"theirs has torch 1.0.0, ours has {own['torch']}"
    )
    assert unequal({}, "theirs", asking="ours").count("unknown") == 2


def test_a_folder_of_sources_does_not_claim_the_commit_that_an_installation_had(monkeypatch, tmp_path):
    (tmp_path / "flower_vfl-0.0.9.dist-info").mkdir()
    (tmp_path / "flower_vfl-0.0.9.dist-info" / "METADATA").write_text("Name: flower-vfl\nVersion: 0.0.9+1.gabc\n")
    monkeypatch.syspath_prepend(tmp_path)
    installed_version.cache_clear()
    assert installed_version() == f"{VERSION}+source"


def test_the_version_is_shown_with_all_that_two_hosts_compare():
    done = command("--version")
    assert done.returncode == 0
    for line in (f"flower-vfl {installed_version()}", f"build {build_digest()}", "protocol ", "torch ", "flwr "):
        assert line in done.stdout
