"""A party's state on its own disk: tensors as safetensors, the rest as JSON, replaced in one step. No pickle."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from flower_vfl.errors import DataError
from flower_vfl.files import replacing

_TREE = "tree"
_TENSOR = "__tensor__"


def save_state(path: Path, state: Any) -> None:
    """Write a tree of dictionaries, lists, plain values and tensors to one file, atomically.

    Raises
    ------
    TypeError
        When something in the tree is of another kind.
    """
    tensors: dict[str, Tensor] = {}
    tree = json.dumps(_strip(state, tensors))
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as temporary:
        save_file(tensors, temporary, metadata={_TREE: tree})


def load_state(path: Path) -> Any:
    """Read what `save_state` wrote.

    Raises
    ------
    DataError
        When the file is missing or is no such file.
    """
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dictionary
        return _fill(json.loads(metadata[_TREE]), tensors)
    except (OSError, SafetensorError, LookupError, TypeError, ValueError, RecursionError) as error:
        raise DataError(f"{path} is no state that can be read: {error}") from None


def _strip(value: Any, tensors: dict[str, Tensor]) -> Any:
    if isinstance(value, Tensor):
        name = str(len(tensors))
        # Cloned: safetensors refuses tensors that share memory.
        tensors[name] = value.detach().to("cpu").clone(memory_format=torch.contiguous_format)
        return {_TENSOR: name}
    if isinstance(value, dict):
        if not all(isinstance(key, str | int) for key in value):
            raise TypeError("the keys of a state are text and whole numbers")
        # As pairs: JSON would turn whole numbers that are keys into text.
        return {"__dict__": [[key, _strip(entry, tensors)] for key, entry in value.items()]}
    if isinstance(value, list | tuple):
        return [_strip(entry, tensors) for entry in value]
    if value is None or isinstance(value, str | int | float | bool):
        return value
    raise TypeError(f"a state holds plain values and tensors, given {type(value).__name__}")


def _fill(value: Any, tensors: dict[str, Tensor]) -> Any:
    if isinstance(value, list):
        return [_fill(entry, tensors) for entry in value]
    if isinstance(value, dict):
        if _TENSOR in value:
            return tensors[value[_TENSOR]]
        return {key: _fill(entry, tensors) for key, entry in value["__dict__"]}
    return value
