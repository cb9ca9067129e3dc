"""Adds to pyproject.toml what a clone alone does not know: its commit, and the address of its repository.

Commit and date are added to the version of what is built, 0.1.0+202611250901.gc7d0e37.

setuptools-scm would need a dynamic version, and `flwr run .` needs the one that stands in pyproject.toml. A source
distribution keeps the commit, because setuptools writes the tag into its setup.cfg. GitHub's workflows name the
repository; built there, the package has links to it, and the links of its README are whole.

A clone that lost its symbolic links is refused: what was built from it would install, and lack code.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from setuptools import setup

ROOT = Path(__file__).resolve().parent
LINKS = ("src/flower_vfl", "flower_vfl/strategies", "flower_vfl/simulations")
LOST = f"""This clone has lost its links, {", ".join(LINKS)}: nothing can be built from it.
In a clone made by git: git config core.symlinks true, then git checkout -- {" ".join(LINKS)}
(on Windows: in developer mode). Otherwise clone again, or unpack with a program that keeps links."""


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


def links(page: str) -> dict[str, str]:
    """Return the links that a package index shows, of a repository at this address; none without an address."""
    if not page:
        return {}
    names = {"Documentation": "docs/README.md", "Changelog": "CHANGELOG.md", "Security": "SECURITY.md"}
    return {
        "Source": page,
        "Issues": f"{page}/issues",
        **{name: f"{page}/blob/main/{to}" for name, to in names.items()},
    }


def with_whole_links(text: str, page: str) -> str:
    """Return Markdown whose links and pictures, relative to the repository's root, name this address."""
    if not page:
        return text
    pictures = re.sub(r"!\[([^]]*)]\((?!\w+:)([^)]+)\)", rf"![\1]({page}/raw/main/\2)", text)
    return re.sub(r"]\((?!\w+:|#)([^)]+)\)", rf"]({page}/blob/main/\1)", pictures)


# In a source distribution `src/flower_vfl` is a folder, with the two others inside.
if not all(
    (ROOT / "src" / "flower_vfl" / inside / "__init__.py").is_file() for inside in ("", "strategies", "simulations")
):
    sys.exit(LOST)

REPOSITORY = os.environ.get("GITHUB_REPOSITORY", "")  # owner/name
PAGE = f"https://github.com/{REPOSITORY}" if REPOSITORY else ""

setup(
    options={"egg_info": {"tag_build": tag}} if (tag := commit()) else {},
    project_urls=links(PAGE),
    long_description=with_whole_links((ROOT / "README.md").read_text(encoding="utf8"), PAGE),
    long_description_content_type="text/markdown",
)
