"""Guard for steps that are repeated after an interruption: other embeddings do not get the same noise."""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from flower_vfl.errors import TrainingError
from flower_vfl.files import replacing, writing_to
from flower_vfl.training.protocols import TrainedDefense

_log = logging.getLogger(__name__)

_DIGEST = 32
_ENTRY = re.compile(rf"^(\d+) ([0-9a-f]{{{2 * _DIGEST}}})$", re.MULTILINE)


class ReplayGuard:
    """A guard against the same noise on different gradients.

    After an interruption all parties are restored to the last checkpoint, the defenses' generators too, so that the run
    equals one without an interruption. That is right for parties that repeat their embeddings. A party that sends
    others would receive another gradient with the same noise, and could subtract it. So a digest of all embeddings
    received since training began is recorded at each step: where a repeated step has another digest than the first
    time, the defenses are reseeded for this step and digest, and their bounds end: it has sent two gradients. Different
    histories of a step give independent noise, which can be averaged like that of several epochs; a run is restored to
    a checkpoint a few times only.

    A proof that counts draws (`counts_steps` of a defense) counts each step once. There a repeated step with other
    embeddings ends the run.

    Parameters
    ----------
    defenses : Sequence[TrainedDefense]
        The defenses, which draw noise.
    path : Path
        The label party's own file of the digests of received embeddings, which survives a kill.
    known : bool
        True if the file is read, for a resumed run; otherwise it is overwritten.
    """

    def __init__(self, defenses: Sequence[TrainedDefense], path: Path, *, known: bool) -> None:
        self._defenses, self._path = defenses, path
        self._seen = _read(path) if known else {}  # digests of each step, that of the first time first
        self._chain, self._next, self._floor = bytes(_DIGEST), 0, 0
        self._warned = False
        self._write()

    def note(self, step: int, embeddings: Mapping[str, Tensor]) -> None:
        """Record the embeddings (B, ...) of a step, in the parties' order, before any gradient of it is sent.

        Raises
        ------
        TrainingError
            When they are others than the first time, and a proof counts each step once.
        """
        digest = hashlib.blake2b(self._chain, digest_size=_DIGEST)
        for party, z in embeddings.items():
            digest.update(f"{party!r} {z.dtype} {tuple(z.shape)} ".encode())  # bytes in another format are others
            digest.update(z.detach().cpu().contiguous().view(torch.uint8).numpy().data)
        self._chain, self._next = digest.digest(), step + 1
        seen = self._seen.setdefault(step, [])
        if not seen:
            self._append(step)
        elif seen[0] != self._chain:
            counted = [defense.name for defense in self._defenses if defense.counts_steps]
            if counted:
                raise TrainingError(
                    f"step {step} is done again with other embeddings than the first time, and would draw its noise "
                    f"again: the proof of {counted[0]} counts each step once. A party did not return to its "
                    "checkpoint, has another processor, or trains on a GPU, which need not give the same bits; begin a "
                    "new run"
                )
            if self._chain not in seen:
                self._append(step)
            for defense in self._defenses:
                defense.reseed("step", step, self._chain.hex())
            if not self._warned:
                _log.warning(
                    "step %d is done again with other embeddings than the first time: the noise of this step and of "
                    "those after it is drawn from a new seed, so that it cannot be subtracted",
                    step,
                )
                self._warned = True
        if len(self._seen[step]) > 1:
            for defense in self._defenses:
                defense.void_bound()

    def state(self) -> dict[str, Any]:
        """Return the state as plain values, and drop digests from before the previous state."""
        self._seen = {step: chains for step, chains in self._seen.items() if step >= self._floor}
        self._floor = self._next
        self._write()
        return {"chain": self._chain.hex(), "steps": self._next}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore a state that `state` returned."""
        self._chain, self._next = bytes.fromhex(state["chain"]), state["steps"]
        self._floor, self._warned = self._next, False

    def _append(self, step: int) -> None:
        self._seen[step].append(self._chain)
        with writing_to(self._path), self._path.open("a", encoding="ascii") as file:
            file.write(_line(step, self._chain))

    def _write(self) -> None:
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        lines = (_line(step, chain) for step, chains in self._seen.items() for chain in chains)
        with replacing(self._path) as temporary:
            temporary.write_text("".join(lines), encoding="ascii")


def _line(step: int, chain: bytes) -> str:
    return f"{step} {chain.hex()}\n"


def _read(path: Path) -> dict[int, list[bytes]]:
    """Return the digests by step, in their order; a line that a kill has cut off is skipped."""
    text = path.read_text(encoding="ascii", errors="replace") if path.is_file() else ""
    found: dict[int, list[bytes]] = {}
    for step, chain in _ENTRY.findall(text):
        found.setdefault(int(step), []).append(bytes.fromhex(chain))
    return found
