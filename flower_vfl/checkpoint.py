"""A party's states on its own disk: tensors as safetensors, the rest as JSON, replaced in one step. No pickle.

A state holds the states of generators, and so it is as secret as the noise that comes from them: folders of
checkpoints can be read by their owner alone.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError, safe_open

from flower_vfl.errors import DataError, StorageError
from flower_vfl.files import remove_leftovers, replacing, write_json_atomic, writing_to

if TYPE_CHECKING:
    from torch import Tensor

SETTINGS = "config"
"""Name of the fact that is a digest of a run's settings, as they hold at a party."""
DATA = "data"
"""Name of the fact that is a digest of a party's data, which never leaves its host."""
SECRET = "secret"
"""Name of the fact that is the fingerprint of a party's secret, which never leaves its host."""

_TREE = "tree"
_TENSOR = "__tensor__"


def save_state(path: Path, state: Any) -> None:
    """Write a tree of dictionaries, lists, plain values and tensors to one private file, atomically.

    Raises
    ------
    TypeError
        When something in the tree is of another kind.
    """
    tensors: dict[str, Tensor] = {}
    tree = json.dumps(_to_tree(state, tensors))
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    save_tensors(path, tensors, {_TREE: tree})


def save_tensors(path: Path, tensors: dict[str, Tensor], metadata: dict[str, str]) -> None:
    """Write a safetensors file, atomically, for its owner alone to read.

    Raises
    ------
    StorageError
        When it could not be written.
    """
    from safetensors.torch import save_file  # it imports torch

    with replacing(path) as temporary:
        try:
            save_file(tensors, temporary, metadata=metadata)
        except SafetensorError as error:  # it has the number of the operating system's error in its text only
            raise StorageError(f"{path} could not be written: {error}; make space and go on") from None


def load_state(path: Path) -> Any:
    """Return the state that `save_state` wrote.

    Raises
    ------
    DataError
        When the file is missing or is no such file.
    """
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dictionary
        return _from_tree(json.loads(metadata[_TREE]), tensors)
    except (OSError, SafetensorError, LookupError, TypeError, ValueError, RecursionError) as error:
        raise DataError(f"{path} is no state that can be read: {error}") from None


def _to_tree(value: Any, tensors: dict[str, Tensor]) -> Any:
    import torch

    if isinstance(value, torch.Tensor):
        name = str(len(tensors))
        # Cloned: safetensors refuses tensors that share memory.
        tensors[name] = value.detach().to("cpu").clone(memory_format=torch.contiguous_format)
        return {_TENSOR: name}
    if isinstance(value, dict):
        if not all(isinstance(key, str | int) for key in value):
            raise TypeError("the keys of a state are text and whole numbers")
        # As pairs: JSON would turn whole numbers that are keys into text.
        return {"__dict__": [[key, _to_tree(entry, tensors)] for key, entry in value.items()]}
    if isinstance(value, list | tuple):
        return [_to_tree(entry, tensors) for entry in value]
    if value is None or isinstance(value, str | int | float | bool):
        return value
    raise TypeError(f"a state holds plain values and tensors, given {type(value).__name__}")


def _from_tree(value: Any, tensors: dict[str, Tensor]) -> Any:
    if isinstance(value, list):
        return [_from_tree(entry, tensors) for entry in value]
    if isinstance(value, dict):
        if _TENSOR in value:
            return tensors[value[_TENSOR]]
        return {key: _from_tree(entry, tensors) for key, entry in value["__dict__"]}
    return value


class Checkpoints:
    """The last few states of one party in one training run.

    Parameters
    ----------
    folder : Path
        Folder that this party alone uses.
    facts : Mapping[str, str]
        Identity of the training run: party, configuration, data, versions. A state with other facts, or one that
        lacks some of these (an earlier version wrote it), is refused.
    keep : int
        Number of states that are kept, at least 2: other parties may lack the newest. `save` may hold one more.
    """

    COMMITTED = "committed.json"

    def __init__(self, folder: Path, facts: Mapping[str, str], *, keep: int = 2) -> None:
        self._folder, self._facts, self._keep = folder, dict(facts), max(2, keep)

    def save(self, step: int, state: Any, *, hold: int | None = None) -> None:
        """Save the state after `step` steps and remove those of later steps, which a resumed run has abandoned.

        The state after `hold` steps is not removed, however many were saved since.
        """
        with writing_to(self._folder):
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._folder.chmod(0o700)
        save_state(self._path(step), {"facts": self._facts, "step": step, "state": state})
        earlier = sorted(known for known in self.steps if known < step)
        for known in set(self.steps) - {step, hold, *earlier[1 - self._keep :]}:
            self._path(known).unlink(missing_ok=True)
        remove_leftovers(self._folder)

    def load(self, step: int) -> Any:
        """Return the state after `step` steps.

        Raises
        ------
        DataError
            When it is missing, cannot be read, or belongs to another training run.
        """
        path = self._path(step)
        if not path.is_file():
            available = ", ".join(map(str, self.steps)) or "none"
            raise DataError(f"{self._folder} has no checkpoint of step {step}; it has: {available}")
        kept = load_state(path)
        if not isinstance(kept, dict) or kept.keys() != {"facts", "step", "state"} or kept["step"] != step:
            raise DataError(f"{path} is no checkpoint of step {step}")
        self._check_facts(path, kept["facts"] if isinstance(kept["facts"], dict) else {})
        return kept["state"]

    def _check_facts(self, path: Path, facts: Mapping[str, Any]) -> None:
        for name, value in self._facts.items():
            if name not in facts:
                raise DataError(
                    f"{path} does not hold its {name}: another version wrote it; start a new run in another folder"
                )
            if facts[name] == value:
                continue
            if name == SECRET:
                raise DataError(
                    f"{path} belongs to a training with another secret, and with this one labels and noise would be "
                    "drawn a second time. Set FLOWER_VFL_SECRET_FILE as it was when the training began, unset if it "
                    "was, and restore the file secret-* beside the states if it is missing; or start a new run in "
                    "another folder"
                )
            if name == DATA:  # the message may leave this host, its digest must not
                raise DataError(
                    f"{path} belongs to something else: its {name} is other than here. Go on with what the training "
                    "was begun with, or start a new run in another folder"
                )
            if name == SETTINGS:
                raise DataError(
                    f"{path} belongs to a training with other settings: the run config, or what --node-config says of "
                    "this node's part in it, has changed. Go on with the former ones, or start a new run elsewhere"
                )
            raise DataError(f"{path} belongs to something else: its {name} is {facts[name]!r}, here it is {value!r}")

    @property
    def received(self) -> Path:
        """The file in which a label party records the digests of the frames received since its previous state."""
        return self._folder / "received"

    @property
    def steps(self) -> list[int]:
        """The steps that have a saved state, ascending."""
        names = (re.fullmatch(r"step-(\d{9,})\.safetensors", path.name) for path in self._folder.glob("step-*"))
        return sorted(int(name[1]) for name in names if name)

    def commit(self, step: int) -> None:
        """Record that every party has its state of this step."""
        write_json_atomic(self._folder / self.COMMITTED, {"step": step, "facts": self._facts})

    @property
    def committed(self) -> int | None:
        """The last step whose state every party has; None before the first."""
        found = read_committed(self._folder)
        return None if found is None else found[0]

    def _path(self, step: int) -> Path:
        return self._folder / f"step-{step:09d}.safetensors"


def read_committed(folder: Path) -> tuple[int, dict[str, str]] | None:
    """Return the last step whose state all parties have, and the facts of the training run; None before the first.

    Raises
    ------
    DataError
        When the file is there and cannot be read.
    """
    path = folder / Checkpoints.COMMITTED
    try:
        if not path.is_file():
            return None
        found = json.loads(path.read_text(encoding="utf8"))
        step, facts = found["step"], found["facts"]
    except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
        raise DataError(f"{path} cannot be read: {error}") from None
    if type(step) is not int or step < 0 or not isinstance(facts, dict):
        raise DataError(f"{path} names no step: {step!r}")
    return step, facts
