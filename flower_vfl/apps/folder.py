"""The folder that a run leaves behind."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flower_vfl.config import Config, to_toml
from flower_vfl.errors import OutputExistsError
from flower_vfl.files import write_json_atomic, write_text_atomic
from flower_vfl.tracking import merge_steps


class RunFolder:
    """`config.toml`, the step journals, `result.json`, weights.

    Parameters
    ----------
    path : Path
        Must not exist, or be empty.

    Raises
    ------
    OutputExistsError
        When something is there already; nothing is overwritten.
    """

    def __init__(self, path: Path, config: Config) -> None:
        self.path = path.expanduser().absolute()
        check_free(self.path)
        self.path.mkdir(parents=True, exist_ok=True)
        write_text_atomic(self.path / "config.toml", to_toml(config))

    def discard(self) -> None:
        """Remove the folder: bad input leaves nothing behind."""
        shutil.rmtree(self.path, ignore_errors=True)

    def write_result(self, summary: Mapping[str, Any]) -> None:
        """Merge the journals into `steps.parquet` and write `result.json`."""
        merge_steps(self.path)
        write_json_atomic(self.path / "result.json", dict(summary))


def check_free(path: Path) -> None:
    """Refuse a path where something is already.

    Raises
    ------
    OutputExistsError
        When `path` is a file or a folder that is not empty.
    """
    if path.is_file() or (path.is_dir() and any(path.iterdir())):
        raise OutputExistsError(f"{path} exists and is not empty; name another folder with --out, or remove it")
