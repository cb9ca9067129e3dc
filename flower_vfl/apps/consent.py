"""The consent of a node's owner: no training is allowed until `--node-config` allows some.

The run configuration is the label party's. With these keys an owner limits the epochs of a training, its last
day, its rows and its label party. An app that the label party ships could skip these checks, so consent binds only
where the SuperNode runs no other app than those that its owner trusts: docs/decisions/0028-consent.md.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Self, TypeVar

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from flower_vfl.config import Config
from flower_vfl.errors import ConfigError, PermissionDeniedError
from flower_vfl.transport.signing import LABEL_KEY_VARIABLE, is_signed, read_public_key

EPOCHS_KEY, UNTIL_KEY, ATTACKERS_KEY, ALIGNMENT_KEY = (
    "train-epochs",
    "train-until",
    "train-attackers",
    "train-alignment",
)
LABEL_KEY = "label-key"
"""Keys of `--node-config`."""

T = TypeVar("T")

_WHERE = "in the --node-config of its SuperNode"


def _today() -> date:
    return datetime.now(UTC).date()


@dataclass(frozen=True)
class Consent:
    """Limits that the owner of a deployed node sets for trainings.

    Attributes
    ----------
    party : str
        The node's party.
    epochs : int or None
        Largest number of epochs of a training, those of pre-training included; None where the owner allows no training.
    until : date or None
        The last day, in UTC, on which a training may begin.
    attackers : bool
        True if a training may name attackers.
    alignment : str
        Beginning of the digest of the only rows that may be trained on; empty for any.
    label_key : Ed25519PublicKey or None
        The key that must have signed an offer.
    """

    party: str
    epochs: int | None = None
    until: date | None = None
    attackers: bool = True
    alignment: str = ""
    label_key: Ed25519PublicKey | None = None

    @classmethod
    def of(cls, node_config: Mapping[str, object], party: str) -> Self:
        """Return the limits in a deployed node's `--node-config`.

        Raises
        ------
        ConfigError
            When a value is not allowed.
        """
        return cls(
            party,
            _read(node_config, EPOCHS_KEY, "a whole number of at least 0", _whole),
            _read(node_config, UNTIL_KEY, "a day, such as '2027-01-31' with its quotation marks", _day),
            _read(node_config, ATTACKERS_KEY, "true or false", _switch) is not False,
            _read(node_config, ALIGNMENT_KEY, "at least the 16 hexadecimal digits that `flower-vfl doctor` shows", _hex)
            or "",
            _read(node_config, LABEL_KEY, "the label party's public key, which begins with ssh-ed25519", _key),
        )

    def check(self, config: Config) -> None:
        """Refuse a training that asks for more than the owner allows.

        Raises
        ------
        PermissionDeniedError
            When it does; the message names the key to change, here or in the run's configuration.
        """
        if self.epochs is None:
            raise PermissionDeniedError(
                f"party {self.party!r} allows no training; its owner can: {EPOCHS_KEY}=N {_WHERE} allows trainings of "
                "at most N epochs"
            )
        self._check_epochs(self.epochs, config)
        if config.parties.attackers and not self.attackers:
            names = ", ".join(config.parties.attackers)
            raise self._denied(
                f"no training with attackers ({ATTACKERS_KEY}), this one names {names}",
                f"{ATTACKERS_KEY}=true",
                "parties.attackers to []",
            )

    def _check_epochs(self, most: int, config: Config) -> None:
        """Refuse more than `most` passes over this party's rows; kept embeddings are one pass for all epochs."""
        training = config.training
        passes = training.pretrain + (training.epochs + (training.refit > 0) if training.gradients else 1)
        if passes <= most:
            return
        before = f" and {training.pretrain} of pre-training" if training.pretrain else ""
        keys = "training.epochs and training.pretrain together" if training.pretrain else "training.epochs"
        raise self._denied(
            f"trainings of at most {most} epochs ({EPOCHS_KEY}), this one has {passes - training.pretrain}{before}",
            f"{EPOCHS_KEY}={passes}",
            f"{keys} to {most} or less",
        )

    def check_rows(self, digest: str) -> None:
        """Refuse other rows than those that the owner named.

        Raises
        ------
        PermissionDeniedError
            When the digest of the alignment is another one.
        """
        if not digest.startswith(self.alignment):
            found = digest[:16] or "no digest"
            words = f"trainings on the rows {self.alignment[:16]} alone ({ALIGNMENT_KEY}), its data has {found}"
            raise self._denied(words, f"{ALIGNMENT_KEY}='{found}'", "")

    def check_offer(
        self, offer: Mapping[str, object], run_config: Mapping[str, object], today: Callable[[], date] = _today
    ) -> None:
        """Refuse an offer after the last day, or one that the owner's label party has not signed.

        Raises
        ------
        PermissionDeniedError
            When the last day has passed, or the offer has no signature of that label party.
        """
        if self.until is not None and today() > self.until:
            raise self._denied(
                f"trainings until {self.until} ({UNTIL_KEY}), today is {today()} in UTC", f"a later {UNTIL_KEY}", ""
            )
        self.check_signature(offer, run_config)

    def check_signature(self, offer: Mapping[str, object], run_config: Mapping[str, object]) -> None:
        """Refuse an offer that the owner's label party has not signed.

        Raises
        ------
        PermissionDeniedError
            When there is no signature, or one of another key, offer or run configuration.
        """
        if self.label_key is not None and not is_signed(offer, run_config, self.label_key):
            raise PermissionDeniedError(
                f"party {self.party!r} takes part only in what its label party has signed ({LABEL_KEY}), and this "
                f"offer is not: name the private key in {LABEL_KEY_VARIABLE}, in the environment of the SuperLink (or "
                "of its SuperExec), or give the party the public key that belongs to it"
            )

    def _denied(self, words: str, here: str, there: str) -> PermissionDeniedError:
        instead = f", or set {there} in the run's configuration" if there else ""
        return PermissionDeniedError(
            f"party {self.party!r} allows {words}; its owner can change it: {here} {_WHERE}{instead}"
        )


def _read(node_config: Mapping[str, object], key: str, needed: str, read: Callable[[object], T | None]) -> T | None:
    """Return the value of a key, None where it is not there."""
    value = node_config.get(key)
    if value is None:
        return None
    found = read(value)
    if found is None:
        raise ConfigError(f"{key} in --node-config is {value!r:.100}; it must be {needed}")
    return found


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _day(value: object) -> date | None:
    try:
        return date.fromisoformat(value) if isinstance(value, str) else None
    except ValueError:
        return None


def _switch(value: object) -> bool | None:
    return value if isinstance(value, bool) else None


def _hex(value: object) -> str | None:
    return value if isinstance(value, str) and re.fullmatch(r"[0-9a-f]{16,64}", value) else None


def _key(value: object) -> Ed25519PublicKey | None:
    return read_public_key(str(value))
