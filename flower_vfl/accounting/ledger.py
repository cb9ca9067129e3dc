"""A ledger of the epsilon that trainings on the same labels have spent, and the limit that their owner has set.

It is a JSON file of the label party, beside a key of its own. It names labels, rows and secrets by digests under that
key, which cannot be guessed without the key, and ends with an authentication code over its content (HMAC-SHA256), which
cannot be forged without the key.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import hmac
import json
import math
import os
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from flower_vfl.accounting.composition import Release, compose_epsilon
from flower_vfl.accounting.mechanisms import check_delta, check_epsilon, from_facts
from flower_vfl.errors import ArgumentError, DataError, OutputExistsError, PermissionDeniedError
from flower_vfl.files import write_json_atomic, write_private, writing_to

_SCHEMA = 1
_TOLERANCE = 1.0 + 1e-9
"""Factor on the limit that allows for rounding errors of the sum of epsilons."""


@dataclass(frozen=True)
class Limit:
    """The largest epsilon of each label, at a delta, that all trainings together may reach."""

    epsilon: float
    delta: float = 0.0

    def __post_init__(self) -> None:
        check_epsilon(self.epsilon)
        check_delta(self.delta)
        compose_epsilon([], self.delta)


@dataclass(frozen=True, eq=False)
class Training:
    """One training that is to be put on the account.

    Attributes
    ----------
    rows : str
        Digest of the people and their order.
    labels : NDArray
        (N,) true labels.
    secret : int
        A number derived from the label party's secret; noise cannot be derived from it.
    name : str
        The label party's name of the training, the same when it is resumed; empty for one that cannot be resumed.
    defense : str
        The defense with a proven guarantee, and its parameters.
    release : Release
        The mechanism and the number of times that it is applied to each label.
    canaries : bytes
        Rows whose labels are replaced before the mechanism is applied, and their labels; empty without any. The noise
        of a mechanism that follows from labels is another one for all rows where a single label is another one.
    """

    rows: str
    labels: NDArray[Any]
    secret: int
    name: str
    defense: str
    release: Release
    canaries: bytes = b""


@dataclass(frozen=True)
class LedgerEntry:
    """One training on the account; `rows`, `labels`, `secret` and canaries are digests under the ledger's key."""

    time: str
    rows: str
    labels: str
    secret: str
    training: str
    defense: str
    release: Release

    def facts(self) -> dict[str, Any]:
        """Return the entry as a JSON object of the ledger's file."""
        kept = {"draws": self.release.draws, "kept": self.release.kept}
        return {**asdict(self), "release": {**self.release.mechanism.facts(), **kept}}

    @classmethod
    def of(cls, facts: Mapping[str, Any]) -> Self:
        """Return the entry that `facts` describes."""
        release = dict(facts["release"])
        draws, kept = release.pop("draws"), release.pop("kept")
        return cls(**{**facts, "release": Release(from_facts(release), draws, kept)})


@dataclass(frozen=True)
class Account:
    """The content of a ledger.

    Attributes
    ----------
    limit : Limit
        The owner's limit.
    entries : tuple of LedgerEntry
        The trainings, in their order.
    """

    limit: Limit
    entries: tuple[LedgerEntry, ...] = ()

    @property
    def spent(self) -> float:
        """The epsilon of all trainings together, at the limit's delta."""
        return self.spent_with(())

    def spent_with(self, more: Sequence[Release]) -> float:
        """Return the epsilon of all trainings and some more together, at the limit's delta."""
        return compose_epsilon([*(entry.release for entry in self.entries), *more], self.limit.delta)

    def allows(self, release: Release) -> bool:
        """Return True if another training with this release keeps within the limit."""
        return self.spent_with([release]) <= self.limit.epsilon * _TOLERANCE


class PrivacyLedger:
    """The file of an account; `check` and `charge` refuse a training that would exceed its limit.

    Parameters
    ----------
    path : Path
        The file. Its key is beside it, in a file with `.key` after the name.
    """

    def __init__(self, path: Path) -> None:
        self.path = path.expanduser().absolute()
        self.key_path = self.path.with_name(self.path.name + ".key")

    @classmethod
    def create(cls, path: Path, limit: Limit) -> Self:
        """Begin a ledger: a file and its key, both readable by their owner alone.

        Raises
        ------
        OutputExistsError
            When one of them exists.
        """
        ledger = cls(path)
        for file in (ledger.path, ledger.key_path):
            if file.exists():
                raise OutputExistsError(f"{file} exists: a ledger is never overwritten; name another file")
        key = secrets.token_bytes(32)
        with writing_to(ledger.path):
            ledger.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_private(ledger.key_path, key)
        ledger._write(Account(limit), key)
        return ledger

    def read(self) -> Account:
        """Return the account in the ledger.

        Raises
        ------
        DataError
            When it is missing, cannot be read, or was changed other than by this class.
        """
        return self._read(self._key())

    def set_limit(self, limit: Limit) -> Account:
        """Change the owner's limit; if it is below the spent epsilon, no further training is allowed."""
        with self._locked() as key:
            account = replace(self._read(key), limit=limit)
            self._write(account, key)
        return account

    def check(self, training: Training) -> None:
        """Refuse a training that would exceed the limit, or whose labels or noise conflict with earlier ones.

        Raises
        ------
        PermissionDeniedError
            When it would exceed the limit, or would use the noise of an earlier training for another one.
        DataError
            When the ledger was changed or cannot be written, or the labels of the same rows differ from earlier ones.
        """
        with self._locked() as key:
            _check_entry(self._read(key), _entry(training, key, ""), self.path)

    def charge(self, training: Training, now: datetime) -> Account:
        """Check a training, add it to the account before anything of it is sent, and return the account.

        A training that repeats the noise of an earlier one costs nothing: a resumed one, and one with the same secret
        and labels whose noise is drawn once. Raises the errors of `check`.
        """
        with self._locked() as key:
            account = self._read(key)
            entry = _entry(training, key, now.isoformat(timespec="seconds"))
            if _check_entry(account, entry, self.path):
                account = replace(account, entries=(*account.entries, entry))
                self._write(account, key)
        return account

    def _key(self) -> bytes:
        for file in (self.path, self.key_path):
            if not file.is_file():
                raise DataError(
                    f"there is no privacy ledger here: {file} is missing. `flower-vfl budget {self.path} --limit "
                    "EPSILON` begins one; a ledger that was there before is to be restored with its key, since without "
                    "it nobody knows what is spent"
                )
        return self.key_path.read_bytes()

    @contextmanager
    def _locked(self) -> Iterator[bytes]:
        """Lock the ledger, and yield its key; the lock is on the key's file, which is never replaced."""
        self._key()
        with writing_to(self.path):
            if not os.access(self.path.parent, os.W_OK):
                raise PermissionError(errno.EACCES, "")
            file = self.key_path.open("rb+")
        with file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield file.read()

    def _read(self, key: bytes) -> Account:
        try:
            found = json.loads(self.path.read_text(encoding="utf-8"))
            code = found.pop("code")
            if hmac.compare_digest(str(code), _code(found, key)):
                return Account(Limit(**found["limit"]), tuple(map(LedgerEntry.of, found["entries"])))
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, ArgumentError):
            pass  # this class writes no such content
        raise DataError(
            f"the privacy ledger {self.path} failed its integrity check: the file was modified or truncated, or the "
            "key is wrong. Restore both files from a copy; nothing else records what is spent of these labels"
        )

    def _write(self, account: Account, key: bytes) -> None:
        content = {
            "schema": _SCHEMA,
            "limit": asdict(account.limit),
            "entries": [entry.facts() for entry in account.entries],
        }
        write_json_atomic(self.path, {**content, "code": _code(content, key)})
        folder = os.open(self.path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)  # the entries must survive a crash of the machine, too
        finally:
            os.close(folder)


def _code(content: Mapping[str, Any], key: bytes) -> str:
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hmac.new(key, b"content\x1f" + text.encode(), hashlib.sha256).hexdigest()


def _digest(key: bytes, purpose: str, *parts: bytes) -> str:
    code = hmac.new(key, purpose.encode(), hashlib.sha256)
    for part in parts:
        code.update(len(part).to_bytes(8, "big") + part)
    return code.hexdigest()[:32]


def _entry(training: Training, key: bytes, time: str) -> LedgerEntry:
    labels = np.ascontiguousarray(training.labels, dtype="<i8").tobytes()
    canaries = f" with canaries {_digest(key, 'canaries', training.canaries)}" if training.canaries else ""
    return LedgerEntry(
        time,
        _digest(key, "rows", training.rows.encode(), str(len(training.labels)).encode()),
        _digest(key, "labels", labels),
        _digest(key, "secret", str(training.secret).encode()),
        training.name,
        training.defense + canaries,
        training.release,
    )


def _check_entry(account: Account, entry: LedgerEntry, path: Path) -> bool:
    """Check an entry against the account; return True if it is new, False if it repeats an earlier one.

    Raises
    ------
    DataError, PermissionDeniedError
        When the entry is refused.
    """
    for earlier in account.entries:
        if earlier.rows == entry.rows and earlier.labels != entry.labels:
            raise DataError(
                f"the labels have changed since {earlier.time}, when these rows were trained on: the account {path} is "
                "about other labels. Train on the labels of then, or begin a ledger of their own for the new ones"
            )
    repeated = [earlier for earlier in account.entries if earlier.secret == entry.secret]
    for earlier in repeated:
        same = replace(entry, time=earlier.time, training=earlier.training) == earlier
        resumed = bool(entry.training) and entry.training == earlier.training
        if same and (resumed or entry.release.kept):
            return False
    if repeated:
        raise PermissionDeniedError(
            f"this secret already generated noise for an earlier training, of {repeated[0].time}; reused noise can be "
            "subtracted. Use a new secret (in a simulation another `seed`); the same secret is allowed only for the "
            "same rows, labels and settings with noise that is drawn once"
        )
    if not account.allows(entry.release):
        _raise_limit_exceeded(account, entry, path)
    return True


def _raise_limit_exceeded(account: Account, entry: LedgerEntry, path: Path) -> None:
    limit, spent = account.limit, account.spent
    total = account.spent_with([entry.release])
    at = f" at delta {limit.delta:g}" if limit.delta else ""
    cure = ""
    if total == math.inf:
        cure = "; give the limit a delta above that of this training, such as 1e-6, without which it has no epsilon"
    count = len(account.entries)
    raise PermissionDeniedError(
        f"this training would bring epsilon of each label to {total:.4g}{at}, and the limit of {path} is "
        f"{limit.epsilon:.4g}: {count} training{'' if count == 1 else 's'} spent {spent:.4g}, "
        f"{max(0.0, limit.epsilon - spent):.4g} is left. Take a smaller epsilon{cure}, go on with a training that is "
        "on the account, or raise the limit: "
        f"`flower-vfl budget {path} --limit EPSILON`"
    )
