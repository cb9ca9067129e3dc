"""Steps that are done again after a break: where a party sends other embeddings, it does not get the same noise."""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from flower_vfl.files import replacing, writing_to
from flower_vfl.strategies.base import Defense

_log = logging.getLogger(__name__)

_DIGEST = 32
_ENTRY = re.compile(rf"^(\d+) ([0-9a-f]{{{2 * _DIGEST}}})$", re.MULTILINE)


class Repeats:
    """Sees to it that no noise comes twice with different gradients.

    After a break all go back to the last checkpoint, the defenses' generators too, so that a run with a break is the
    same as one without. That is right for parties that send again what they sent. One that sends something else would
    get another gradient with the same noise, and whoever has two of those subtracts it. So noise follows from all that
    was received since training began: where a step is done again and that is not what it was the first time, defenses
    begin anew, with a generator of its own for this step and what led to it. Other ways to the same step give
    independent noise, which can be averaged like that of several epochs; a run goes back to a checkpoint a few times.

    Parameters
    ----------
    defenses : Sequence[Defense]
        Which draw noise.
    path : Path
        The label party's own file; it says what was received, also to a label party that was killed.
    known : bool
        Whether what the file says counts, since a training goes on; otherwise it is written anew.
    """

    def __init__(self, defenses: Sequence[Defense], path: Path, *, known: bool) -> None:
        self._defenses, self._path = defenses, path
        self._first = _read(path) if known else {}
        self._chain, self._next, self._floor = bytes(_DIGEST), 0, 0
        self._told = False
        self._write()

    def note(self, step: int, embeddings: Mapping[str, Tensor]) -> None:
        """Take in the embeddings (B, ...) of a step of which no gradient has gone out yet, in the parties' order."""
        digest = hashlib.blake2b(self._chain, digest_size=_DIGEST)
        for z in embeddings.values():
            digest.update(z.detach().cpu().contiguous().view(torch.uint8).numpy().data)
        self._chain, self._next = digest.digest(), step + 1
        if step not in self._first:
            self._first[step] = self._chain
            with writing_to(self._path), self._path.open("a", encoding="ascii") as file:
                file.write(_line(step, self._chain))
        elif self._first[step] != self._chain:
            for defense in self._defenses:
                defense.draw_anew("step", step, self._chain.hex())
            if not self._told:
                _log.warning(
                    "step %d is done again with other embeddings than the first time: the noise of this step and of "
                    "those after it is drawn anew, so that it cannot be subtracted",
                    step,
                )
                self._told = True

    def state(self) -> dict[str, Any]:
        """Return plain values; what was received before the state before this one is forgotten."""
        self._first = {step: chain for step, chain in self._first.items() if step >= self._floor}
        self._floor = self._next
        self._write()
        return {"chain": self._chain.hex(), "steps": self._next}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state` returned."""
        self._chain, self._next = bytes.fromhex(state["chain"]), state["steps"]
        self._floor, self._told = self._next, False

    def _write(self) -> None:
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with replacing(self._path) as temporary:
            temporary.write_text("".join(_line(*entry) for entry in self._first.items()), encoding="ascii")


def _line(step: int, chain: bytes) -> str:
    return f"{step} {chain.hex()}\n"


def _read(path: Path) -> dict[int, bytes]:
    """Return what was written; a line that a kill has cut off says nothing."""
    text = path.read_text(encoding="ascii", errors="replace") if path.is_file() else ""
    return {int(step): bytes.fromhex(chain) for step, chain in _ENTRY.findall(text)}
