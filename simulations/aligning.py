"""`flower-vfl align`: all roles on this machine, with a progress bar."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

from flower_vfl.apps.local import align
from flower_vfl.config import Config
from flower_vfl.data.store.alignment import AlignmentFile
from flower_vfl.simulations.flower_engine import align_flower


def align_here(config: Config, out: Path) -> None:
    """Align the IDs of all parties in this process, with a progress bar."""
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("aligning", total=1.0)
        found = align(config, out=out, progress=lambda what, done: bar.update(task, description=what, completed=done))
    _show(found)


def align_in_flower(config: Config, out: Path, *, resources: Sequence[str], address: str) -> None:
    """Align the IDs of all parties in Flower's simulation runtime, whose log shows the progress."""
    _show(align_flower(config, out, resources=resources, address=address))


def _show(found: Mapping[str, Path]) -> None:
    console = Console()
    for party, path in found.items():
        file = AlignmentFile.read(path)
        console.print(f"{party}: {len(file.ids):,} common IDs, digest {file.digest[:12]} -> {path}", soft_wrap=True)
    console.print("next, at each party: flower-vfl data prepare files --set alignment=FILE ...", highlight=False)
