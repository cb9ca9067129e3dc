"""Two roots of randomness that must never mix: the shared schedule seed and each party's own secret.

The run configuration reaches every party, so whatever derives from a seed in it is known to an attacker. The order of
the batches derives from such a seed (all parties need it). Noise, label flips, initial weights and dropout derive from
a `Secret`, which comes from the operating system or from the party's own host, and only in a simulation from the seed.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
from pathlib import Path
from typing import TYPE_CHECKING

from flower_vfl.errors import ConfigError

if TYPE_CHECKING:
    import torch

SECRET_FILE_VARIABLE = "FLOWER_VFL_SECRET_FILE"
_SECRET_BYTES = 32


def derive_seed(root: bytes, *purpose: str | int) -> int:
    """Derive a seed of 63 bits from `root` for one purpose (HMAC-SHA256); different purposes are independent."""
    digest = hmac.new(root, "\x1f".join(map(str, purpose)).encode(), hashlib.sha256).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def schedule_root(schedule_seed: int) -> bytes:
    """Return the root from which both sides derive the order of batches and nothing else."""
    return f"flower-vfl schedule {schedule_seed}".encode()


def simulation_secret(seed: int, party: str) -> bytes:
    """Return the 32 bytes from which a simulation derives what is secret at `party`.

    Written to the file that FLOWER_VFL_SECRET_FILE names, on each host its party's (the label party is "label"), they
    make a deployment end with the weights of the simulation. Whoever knows the seed then knows every noise: for a
    check of the set-up, never for data that matters.
    """
    return hmac.new(f"flower-vfl simulation {seed}".encode(), party.encode(), hashlib.sha256).digest()


class Secret:
    """A party's own root of randomness; it never shows itself in a log, a message or a configuration.

    Parameters
    ----------
    value : bytes
        At least 16 bytes.
    origin : str
        Where it came from, for the log: "simulation seed", "file" or "operating system".
    """

    __slots__ = ("_value", "origin")

    def __init__(self, value: bytes, origin: str) -> None:
        if len(value) < 16:
            raise ConfigError(f"a secret needs at least 16 bytes, this one has {len(value)}")
        self._value = value
        self.origin = origin

    @classmethod
    def for_simulation(cls, seed: int, party: str) -> Secret:
        """Derive the secret of `party` from the run's seed: reproducible, and therefore for simulations only."""
        return cls(simulation_secret(seed, party), "simulation seed")

    @classmethod
    def of_this_host(cls) -> Secret:
        """Read the secret from the file named by FLOWER_VFL_SECRET_FILE, or draw a fresh one.

        Raises
        ------
        ConfigError
            When the file is missing or too short.
        """
        path = os.environ.get(SECRET_FILE_VARIABLE)
        if not path:
            return cls(secrets.token_bytes(_SECRET_BYTES), "operating system")
        try:
            value = Path(path).read_bytes()
        except OSError as error:
            raise ConfigError(
                f"{SECRET_FILE_VARIABLE} names {path!r}, which cannot be read: {error.strerror}"
            ) from None
        if len(value) < _SECRET_BYTES // 2:
            raise ConfigError(
                f"{SECRET_FILE_VARIABLE} names {path!r}, which has {len(value)} bytes; a secret needs at least 16, "
                "from /dev/urandom for instance"
            )
        return cls(value, "file")

    def seed(self, *purpose: str | int) -> int:
        """Return the seed of 63 bits for one purpose."""
        return derive_seed(self._value, *purpose)

    def generator(self, *purpose: str | int, device: str = "cpu") -> torch.Generator:
        """Return a fresh torch generator for one purpose on `device`."""
        import torch

        return torch.Generator(device=device).manual_seed(self.seed(*purpose))

    def __repr__(self) -> str:
        return f"Secret(<hidden>, origin={self.origin!r})"

    def __reduce__(self) -> str:
        raise TypeError("a Secret is not serialised: it never leaves its party")
