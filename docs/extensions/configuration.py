"""Every key of a configuration, as the command line explains it."""

from __future__ import annotations

from flower_vfl.config.reference import ConfigKey, all_keys, sections


def entry(key: ConfigKey) -> str:
    """Return the entry of a key."""
    lines = [f"````{{confval}} {key.name}", f":type: {key.kind}", f":default: '`{key.default}`'", ""]
    lines += [f"{key.what[:1].upper()}{key.what[1:]}.", ""]
    lines += [f"Allowed: {key.allowed}.", ""] if key.allowed else []
    return "\n".join([*lines, "````", ""])


def keys() -> str:
    """Return all keys, a section of the configuration each."""
    lines: list[str] = ["## Top level", ""]
    section, about = "", sections()
    for key in all_keys():
        if key.section != section:
            section = key.section
            lines += [f"## `[{section}]`", "", about[section], ""]
        lines.append(entry(key))
    return "\n".join(lines)
