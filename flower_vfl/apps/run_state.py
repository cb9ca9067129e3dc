"""The store of one party's states of one training run, from which the run is resumed after an interruption."""

from __future__ import annotations

import hashlib
import json
import re
import secrets
import shutil
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Self

from flower_vfl.checkpoint import DATA, SECRET, SETTINGS, Checkpoints, read_committed
from flower_vfl.config import FITTED, Config, leaf_paths
from flower_vfl.data.store.memory import VerticalData, content_digest
from flower_vfl.errors import ProtocolError, SetupError
from flower_vfl.files import writing_to
from flower_vfl.rng import Secret
from flower_vfl.version import VERSION, package_version

LABEL = "label"
"""Name of the label party's states and weights; a feature party's have the party's name."""

CHECKPOINTS = "checkpoints"
_RESUME_FILES = ("secret-*", "step-*", "received*", "memory-*")
_CONNECTION = ("host", "advertise", "port", "connect_timeout", "step_timeout", "reconnect_timeout", "rejoin_timeout")
MAY_CHANGE = ("sinks", "metrics_port", "baselines", "checkpoint.keep", *(f"transport.{name}" for name in _CONNECTION))
"""Settings that may change when an interrupted run goes on: none of them changes the computation."""


@dataclass(frozen=True)
class PartyStorage:
    """The folder on a party's own disk for its states of one training.

    Attributes
    ----------
    folder : Path
        The party's folder; made when the first state is saved.
    party : str
        The party's name.
    training : str
        The label party's name of the training run: 32 hexadecimal digits, drawn at its beginning, known to every party.
    begun : bool
        At the label party, True if there is a state to resume from.
    """

    folder: Path
    party: str
    training: str
    begun: bool = False

    @classmethod
    def of_label_party(cls, out: Path, *, resume: bool) -> Self:
        """Return the storage of the training in a run's folder, or of a new training.

        Raises
        ------
        DataError
            When the state cannot be read.
        SetupError
            When the training has ended: see `check_open`.
        """
        folder = out.expanduser().absolute() / CHECKPOINTS / LABEL
        committed = read_committed(folder) if resume else None
        if committed is None:
            return cls(folder, LABEL, secrets.token_hex(16))
        found = cls(folder, LABEL, checked_training(committed[1].get("training")), begun=True)
        found.check_open()
        return found

    @classmethod
    def of_feature_party(cls, out: Path, party: str, training: object) -> Self:
        """Return the storage of the training that an offer names.

        Raises
        ------
        ProtocolError
            When the name is invalid.
        """
        return cls(out / CHECKPOINTS / party, party, checked_training(training))

    @property
    def secret(self) -> Path:
        """The file of a secret that the party drew for this training run."""
        return self.folder / f"secret-{self.training}"

    @property
    def _ended(self) -> Path:
        return self.folder / f"ended-{self.training}"

    def check_open(self) -> None:
        """Refuse to resume a training that has ended here; files of other trainings are removed.

        Raises
        ------
        SetupError
            When it has; the message names the removed files and the next step.
        """
        for other in (*self.folder.glob("secret-*"), *self.folder.glob("ended-*")):
            if other not in (self.secret, self._ended):
                other.unlink(missing_ok=True)
        if self._ended.is_file():
            raise ended_error(f"training {self.training} of party {self.party!r}")

    def end(self) -> None:
        """Remove the files that only a resumed run needs, once the results at the label party and here are written.

        From a secret, or from the generators in a state, noise can be computed and subtracted.
        """
        with writing_to(self.folder):
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._ended.touch(mode=0o600)  # first: a run killed here must not resume with half of it
        for path in (path for name in _RESUME_FILES for path in self.folder.glob(name)):
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)

    def memory(self, config: Config) -> Path | None:
        """Return the folder of the party's row memory; None where no states are saved to resume from.

        The memory of another training run is removed: it may be large, and no run resumes from it.
        """
        if config.checkpoint.every < 0:
            return None
        own = self.folder / f"memory-{self.training}"
        for other in self.folder.glob("memory-*"):
            if other != own:
                shutil.rmtree(other, ignore_errors=True)
        return own

    def store(
        self, config: Config, dataset: VerticalData, columns: str, secret: Secret, *, labels: bool = False
    ) -> Checkpoints:
        """Return the party's checkpoints of this training, and of no other.

        `columns` names the data's party with its columns, empty for none; `labels` is true if it has the labels. With
        another secret a resumed run would draw labels and noise a second time, so its fingerprint must be the same.
        """
        alignment = dataset.alignment
        anywhere = config.data.model_copy(update={"path": ""})  # a digest of the content is compared instead
        facts = {
            "party": self.party,
            "training": self.training,
            SETTINGS: config_digest(config.model_copy(update={"data": anywhere})),
            "alignment": f"{alignment.rows} + {alignment.test_rows} rows {alignment.digest}",
            DATA: content_digest(dataset, columns, labels=labels),
            SECRET: secret.fingerprint,
            "flower_vfl": VERSION,
            "torch": package_version("torch"),
        }
        return Checkpoints(self.folder, facts, keep=config.checkpoint.keep)


def ended_error(what: str) -> SetupError:
    """Return the error for resuming a training that has ended and left no state."""
    return SetupError(
        f"{what} has finished and its results are written, so that its secret and its states were removed: nothing is "
        "left to go on with. Begin a new run in another folder; to go on with another run, give its folder, as with "
        "out=... in --run-config beside resume=true"
    )


def is_begun(out: Path) -> bool:
    """Return True if a run's folder holds a state to resume from."""
    return (out / CHECKPOINTS / LABEL / Checkpoints.COMMITTED).is_file()


def checked_training(training: object) -> str:
    """Return the checked name of a training run, 32 hexadecimal digits: it becomes part of a path.

    Raises
    ------
    ProtocolError
        When it is something else.
    """
    if not isinstance(training, str) or not re.fullmatch(r"[0-9a-f]{32}", training):
        raise ProtocolError(f"a training ID must have 32 hexadecimal digits, given {training!r:.60}")
    return training


def differences(config: Config, other: Config) -> list[str]:
    """Return the keys whose values make two configurations compute something else; "auto" equals any value.

    Examples
    --------
    >>> differences(Config(seed=1, sinks=["wandb"]), Config(seed=2))
    ['seed']
    """
    pairs = [(path, *(attrgetter(path)(side) for side in (config, other))) for path in leaf_paths()]
    automatic = {path: attrgetter(path)(Config()) for path in FITTED}
    return [
        path
        for path, *both in pairs
        if path not in MAY_CHANGE and both[0] != both[1] and not (path in automatic and automatic[path] in both)
    ]


def config_digest(config: Config) -> str:
    """Return the SHA-256 of all settings of a configuration that change the computation."""
    facts = {path: attrgetter(path)(config) for path in leaf_paths() if path not in MAY_CHANGE}
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
