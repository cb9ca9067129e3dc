"""Adds commit and date to the version of what is built, 0.1.0+202611250901.gc7d0e37; pyproject.toml has the rest.

setuptools-scm would need a dynamic version, and `flwr run .` needs the one that stands in pyproject.toml. A source
distribution keeps the commit, because setuptools writes the tag into its setup.cfg.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from setuptools import setup

ROOT = Path(__file__).resolve().parent


def git(*words: str) -> str:
    """Return what git answers about this folder, an empty text where it does not."""
    command = ["git", "-C", str(ROOT), *words]
    try:
        done = subprocess.run(command, env={**os.environ, "TZ": "UTC"}, capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def commit() -> str:
    """Return the tag of the built commit; empty without a repository, and for a release, which is tagged."""
    if not (ROOT / ".git").exists():
        return ""
    changed = git("status", "--porcelain", "--untracked-files=no")
    if git("tag", "--points-at", "HEAD", "v*") and not changed:
        return ""
    built = git("log", "-1", "--date=format-local:%Y%m%d%H%M", "--abbrev=7", "--format=%cd.g%h")
    return f"+{built}{'.dirty' if changed else ''}" if built else ""


setup(options={"egg_info": {"tag_build": tag}} if (tag := commit()) else {})
