"""Writing a file so that nobody ever sees half of it."""

from __future__ import annotations

import json
import math
import os
import tempfile
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def replacing(path: Path | str, *, private: bool = False) -> Iterator[Path]:
    """Yield a temporary path beside ``path`` that takes its place once the block has ended well.

    A block that raises leaves ``path`` as it was and no temporary file behind. A ``private`` file is only its owner's.

    Examples
    --------
    >>> import tempfile
    >>> target = Path(tempfile.mkdtemp()) / "note.txt"
    >>> with replacing(target) as temporary:
    ...     _ = temporary.write_text("whole")
    >>> target.read_text()
    'whole'
    """
    target = Path(path)
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.", suffix=".tmp")
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        if not private:
            temporary.chmod(0o666 & ~_umask())  # mkstemp's 0600 would hide results from colleagues
        _sync(temporary)
        os.replace(temporary, target)
    except BaseException:
        with suppress(FileNotFoundError):
            temporary.unlink()
        raise


def write_text_atomic(path: Path | str, text: str) -> None:
    """Write a text file in UTF-8, whole or not at all."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json_atomic(path: Path | str, value: Any) -> None:
    """Write a JSON file, whole or not at all; NaN and infinities, which JSON does not have, become null."""
    write_text_atomic(path, json.dumps(_finite(value), indent=2, allow_nan=False, ensure_ascii=False) + "\n")


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value


def _sync(path: Path) -> None:
    with path.open("rb+") as file:
        os.fsync(file.fileno())


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
