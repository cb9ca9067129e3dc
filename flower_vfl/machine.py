"""The resources of this machine that this process may use."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path


def cores() -> int:
    """Return the number of processors that this process may use; a container may have fewer than the machine."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def memory() -> int:
    """Return the size of main memory in bytes."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def free_memory(root: Path = Path("/")) -> int:
    """Return the bytes of main memory that are free to this process, also by its control groups; 0 if unknown.

    Parameters
    ----------
    root : Path
        Root of the system's files.
    """
    try:
        lines = (root / "proc/meminfo").read_text(encoding="ascii").splitlines()
        groups = (root / "proc/self/cgroup").read_text(encoding="utf-8").splitlines()
        free = [1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")]
    except (OSError, ValueError):
        return 0
    for group in groups:
        free += _left_in_group(root / "sys/fs/cgroup", *group.split(":", 2)[1:])
    return max(min(free, default=0), 0)


def _left_in_group(top: Path, controllers: str, path: str) -> Iterator[int]:
    """Yield the bytes left by each limit of a control group and its parents, of either version of control groups."""
    names = ("memory.max", "memory.current")
    if controllers:
        top, names = top / "memory", ("memory.limit_in_bytes", "memory.usage_in_bytes")
    if controllers and "memory" not in controllers.split(","):
        return
    folder = top / path.lstrip("/")
    for place in (folder, *folder.parents):
        if place.is_relative_to(top):
            try:
                limit, used = (int((place / name).read_text(encoding="ascii")) for name in names)
            except (OSError, ValueError):  # "max", or a group that this container does not see
                continue
            yield limit - used
