"""The presets of runs and of sweeps, as they are."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import takewhile

from flower_vfl.config import preset_names, preset_text, sweep_names


def _shown(names: Iterable[str]) -> str:
    lines = []
    for name in names:
        text = preset_text(name)
        head = list(takewhile(lambda line: line.startswith("#"), text.splitlines()))
        about = " ".join(line.removeprefix("#").strip() for line in head)
        body = "\n".join(text.splitlines()[len(head) :]).strip()
        lines += [f"### {name}", "", about, "", f"```toml\n{body}\n```", ""]
    return "\n".join(lines)


def runs() -> str:
    """Return the presets of single runs."""
    return _shown(preset_names())


def sweeps() -> str:
    """Return the presets of sweeps."""
    return _shown(sweep_names())
