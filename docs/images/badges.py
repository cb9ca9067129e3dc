"""Badges of the README, from what pyproject.toml says: `python docs/images/badges.py`."""

from __future__ import annotations

import tomllib
from pathlib import Path

HERE = Path(__file__).resolve().parent
PROJECT = HERE.parents[1] / "pyproject.toml"
_CHARACTER, _SPACE, _HEIGHT = 6.6, 14, 20  # pixels; of the font below, in the middle of its widths
_PYTHON = "Programming Language :: Python :: "

BADGE = """<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height}"
 role="img" aria-label="{left}: {right}">
<rect width="{width:.0f}" height="{height}" rx="3" fill="#3b3f46"/>
<path d="M{cut:.0f} 0h{rest:.0f}a3 3 0 0 1 3 3v14a3 3 0 0 1-3 3h-{rest:.0f}z" fill="#2563a8"/>
<g fill="#fff" font-family="Verdana,DejaVu Sans,sans-serif" font-size="11" text-anchor="middle">
<text x="{first:.1f}" y="14">{left}</text><text x="{second:.1f}" y="14">{right}</text></g></svg>
"""


def badge(left: str, right: str) -> str:
    """Return a picture of two words side by side."""
    cut, width = (_CHARACTER * len(left) + _SPACE, _CHARACTER * len(left + right) + 2 * _SPACE)
    places = {"cut": cut, "rest": width - cut - 3, "first": cut / 2, "second": (cut + width) / 2}
    return BADGE.format(left=left, right=right, width=width, height=_HEIGHT, **places)


def badges() -> dict[str, str]:
    """Return the pictures by the names of their files."""
    project = tomllib.loads(PROJECT.read_text(encoding="utf8"))["project"]
    versions = [entry.removeprefix(_PYTHON) for entry in project["classifiers"] if entry.startswith(_PYTHON)]
    words = {"license": project["license"], "python": f"{versions[0]} to {versions[-1]}"}
    return {f"{left}.svg": badge(left, right) for left, right in {**words, "tests": "workflow", "docs": "read"}.items()}


if __name__ == "__main__":
    for name, picture in badges().items():
        (HERE / name).write_text(picture, encoding="utf8")
