"""`flower-vfl doctor`: the usable and the missing parts of this machine, with advice."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterable, Iterator
from importlib.util import find_spec
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from flower_vfl import machine
from flower_vfl.data.sources.catalog import available
from flower_vfl.version import package_version

_NEEDED = ("flwr", "torch", "ray", "grpcio", "pydantic", "pyarrow", "safetensors", "numpy", "scipy", "scikit-learn")
_OPTIONAL = {"tensorboard": "tensorboard", "wandb": "wandb", "mlflow": "mlflow-skinny"}
_MEMORY_GIB = 4.0

MachineFinding = tuple[str, str, str]
"""The checked item, "ok" | "missing" | "wrong" | "optional", and the result or the advice."""


def findings() -> Iterator[MachineFinding]:
    """Yield the findings on this machine, one at a time."""
    yield "python", "ok", sys.version.split()[0]
    for name in _NEEDED:
        found = package_version(name)
        yield name, "ok" if found else "missing", found or f"pip install {name}"
    for module, package in _OPTIONAL.items():
        installed = find_spec(module) is not None
        yield (
            module,
            "ok" if installed else "optional",
            package_version(package) if installed else (f"live tracking; pip install 'flower-vfl[{module}]'"),
        )
    yield from _machine()
    for tool in ("flwr", "flower-superlink", "flower-supernode"):
        beside = Path(sys.executable).parent / tool
        path = str(beside) if beside.exists() else shutil.which(tool)
        yield tool, "ok" if path else "missing", path or "pip install 'flwr[simulation]'"
    for entry in available():
        yield f"data: {entry.name}", "ok" if entry.usable else "optional", "usable" if entry.usable else entry.advice


def _machine() -> Iterator[MachineFinding]:
    import torch

    yield "processors", "ok", str(machine.cores())
    memory = machine.memory() / 2**30
    enough = memory >= _MEMORY_GIB
    yield "memory", "ok" if enough else "optional", f"{memory:.0f} GiB" + ("" if enough else "; 4 are comfortable")
    if torch.cuda.is_available():
        names = ", ".join(torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count()))
        yield "GPU", "ok", names
    else:
        yield "GPU", "optional", "none; everything runs on the processor"
    free = shutil.disk_usage(Path.cwd()).free / 2**30
    yield "disk here", "ok" if free > 1 else "missing", f"{free:.0f} GiB free"


def show(found: Iterable[MachineFinding]) -> list[MachineFinding]:
    """Print findings and return those that must be mended."""
    table = Table(title="flower-vfl doctor")
    for column in ("what", "state"):
        table.add_column(column)
    table.add_column("found, or what to do", overflow="fold")
    problems = []
    for finding in found:
        table.add_row(*map(escape, finding))
        if finding[1] in ("missing", "wrong"):
            problems.append(finding)
    console = Console()
    console.print(table)
    console.print("everything that is needed is here" if not problems else f"{len(problems)} to mend")
    return problems
