"""Two roots of randomness that must never mix: the shared schedule seed and each party's own secret.

The run configuration reaches every party, so whatever derives from a seed in it is known to an attacker. The order of
the batches derives from such a seed (all parties need it). Noise, label flips, initial weights and dropout derive from
a `Secret`, which comes from the operating system or from the party's own host, and only in a simulation from the seed.
"""

from __future__ import annotations

import hashlib
import hmac
import math
import os
import secrets
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from flower_vfl.errors import ConfigError
from flower_vfl.files import replacing

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray

SECRET_FILE_VARIABLE = "FLOWER_VFL_SECRET_FILE"
NOISE_KEY_FILE_VARIABLE = "FLOWER_VFL_NOISE_KEY_FILE"
FILE = "file"
"""Origin of a secret that is the same in each training run."""

_SECRET_BYTES = 32
_MT19937_WORDS = slice(3, 627)
"""Position of the 624 words of MT19937 in the state of torch's CPU generator."""


def derive_seed(root: bytes, *purpose: str | int) -> int:
    """Derive a seed of 63 bits from `root` for one purpose (HMAC-SHA256); different purposes are independent."""
    digest = hmac.new(root, "\x1f".join(map(str, purpose)).encode(), hashlib.sha256).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def schedule_root(schedule_seed: int) -> bytes:
    """Return the root from which both sides derive the order of batches and nothing else."""
    return f"flower-vfl schedule {schedule_seed}".encode()


def simulation_secret(seed: int, party: str) -> bytes:
    """Return the 32 bytes of the secret of `party` in a simulation.

    In the file that FLOWER_VFL_SECRET_FILE names on the host of each party ("label" for the label party), they make a
    deployment end with the weights of the simulation. The seed then reveals all noise: use it to check a set-up, never
    for data that matters.
    """
    return hmac.new(f"flower-vfl simulation {seed}".encode(), party.encode(), hashlib.sha256).digest()


def scattered(numbers: NDArray[np.uint64], *, start: int = 0) -> NDArray[np.uint64]:
    """Return the 64-bit outputs of the generator SplitMix64 at these positions, from the state `start`.

    It is ten times as fast as a generator for each number, and needs no state; its outputs can be guessed.

    References
    ----------
    Steele, Lea, Flood, *Fast splittable pseudorandom number generators*, 2014.

    Examples
    --------
    >>> import numpy as np
    >>> scattered(np.arange(1, 3, dtype=np.uint64)).tolist()  # its first two numbers
    [16294208416658607535, 7960286522194355700]
    """
    mixed = numbers * np.uint64(0x9E3779B97F4A7C15) + np.uint64(start)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


class Keystream:
    """Random numbers that cannot be predicted or searched without the key, however many of them are known.

    They come from AES-256 in counter mode. Noise on which a proof rests is drawn with them: torch's generators have a
    small or a linear state, from which one who knows some numbers can compute the others.

    Parameters
    ----------
    key : bytes
        32 bytes. Each key is for one stream.

    Examples
    --------
    >>> first = Keystream(bytes(32)).uniform(2, 3)
    >>> first.shape, bool((Keystream(bytes(32)).uniform(6) == first.ravel()).all())
    ((2, 3), True)
    """

    __slots__ = ("_encryptor", "_key")

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._encryptor = Cipher(algorithms.AES256(key), modes.CTR(bytes(16))).encryptor()

    def words(self, count: int) -> NDArray[np.uint64]:
        """Return the next `count` numbers of 64 bits."""
        return np.frombuffer(self._encryptor.update(bytes(8 * count)), "<u8")

    def uniform(self, *shape: int) -> NDArray[np.float64]:
        """Return the next numbers in [0, 1), multiples of 2^-53, in this shape."""
        return ((self.words(math.prod(shape)) >> np.uint64(11)) * np.float64(2.0**-53)).reshape(shape)

    def of(self, data: bytes) -> Keystream:
        """Return a stream of its own for this data, whatever has been drawn from this one.

        Noise for other data must be other noise: two results with the same noise show where the data differ.
        """
        return Keystream(hmac.new(self._key, data, hashlib.sha256).digest())

    def __reduce__(self) -> str:
        raise TypeError("a Keystream is not serialised: its key never leaves its party")


class Secret:
    """A party's own root of randomness; it never appears in a log, a message or a configuration.

    Parameters
    ----------
    value : bytes
        The secret itself, at least 16 bytes.
    origin : str
        Origin of the value, for the log: "simulation seed", "file" or "operating system".
    noise_key : bytes, optional
        At least 16 bytes from which `key` derives its keys instead, so that they are the same in several training runs,
        while those of `seed`, `generator` and `keystream` differ in each.
    """

    __slots__ = ("_noise_key", "_value", "origin")

    def __init__(self, value: bytes, origin: str, *, noise_key: bytes | None = None) -> None:
        for given in (value, value if noise_key is None else noise_key):
            if len(given) < 16:
                raise ConfigError(f"a secret needs at least 16 bytes, this one has {len(given)}")
        self._value = value
        self._noise_key = value if noise_key is None else noise_key
        self.origin = origin

    @property
    def keeps_noise_key(self) -> bool:
        """True if the key of persistent noise is a separate one, the same in several training runs."""
        return self._noise_key is not self._value

    @property
    def fingerprint(self) -> str:
        """A value by which the same secret is recognised, 32 hexadecimal digits; the secret does not follow from it."""
        return hmac.new(self._value, b"fingerprint", hashlib.sha256).hexdigest()[:32]

    @classmethod
    def for_simulation(cls, seed: int, party: str) -> Secret:
        """Derive the secret of `party` from the run's seed: reproducible, and therefore for simulations only."""
        return cls(simulation_secret(seed, party), "simulation seed")

    @classmethod
    def of_this_host(cls, kept: Path | None = None) -> Secret:
        """Read the secret from the file named by FLOWER_VFL_SECRET_FILE, else from `kept`, or draw a fresh one.

        The file named by FLOWER_VFL_NOISE_KEY_FILE, if any, holds the key of persistent noise, whatever the secret is.

        Parameters
        ----------
        kept : Path, optional
            File to which `keep` wrote the secret when the training run that is now resumed began.

        Raises
        ------
        ConfigError
            When a file cannot be read or is too short.
        """
        named, noise_key = read_secret(SECRET_FILE_VARIABLE), read_secret(NOISE_KEY_FILE_VARIABLE)
        if named is not None:
            return cls(named, FILE, noise_key=noise_key)
        if kept is not None and kept.is_file():
            value = _read_secret(kept, "the training that goes on")
            return cls(value, "kept since the training began", noise_key=noise_key)
        return cls(secrets.token_bytes(_SECRET_BYTES), "operating system", noise_key=noise_key)

    def keep(self, path: Path) -> None:
        """Write a secret that was drawn for this training to this party's own disk, for its owner alone to read."""
        if self.origin != "operating system":
            return
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with replacing(path) as temporary:
            temporary.write_bytes(self._value)

    def seed(self, *purpose: str | int) -> int:
        """Return the seed of 63 bits for one purpose."""
        return derive_seed(self._value, *purpose)

    def key(self, *purpose: str | int) -> bytes:
        """Return a key of 16 bytes for one purpose; it follows from the noise key, or from the secret without one."""
        return hmac.new(self._noise_key, "\x1f".join(map(str, purpose)).encode(), hashlib.sha256).digest()[16:]

    def keystream(self, *purpose: str | int) -> Keystream:
        """Return the stream of random numbers for one purpose, from its beginning."""
        message = "\x1f".join(map(str, (*purpose, "keystream")))
        return Keystream(hmac.new(self._value, message.encode(), hashlib.sha256).digest())

    def generator(self, *purpose: str | int, device: str = "cpu") -> torch.Generator:
        """Return a fresh torch generator for one purpose on `device`.

        On the CPU its whole state is random: `manual_seed` keeps 32 bits of a seed, few enough to try them all. On
        CUDA the seed has 63 bits.
        """
        import torch

        generator = torch.Generator(device=device).manual_seed(self.seed(*purpose))
        state = generator.get_state().numpy()
        if len(state) >= 8 * _MT19937_WORDS.stop:  # else that of CUDA
            words = state.view("<u8")[_MT19937_WORDS]
            if words[0] != self.seed(*purpose) % 2**32:
                raise RuntimeError("this version of torch stores the state of its CPU generator in another way")
            words[:] = self.keystream(*purpose, "mt19937").words(len(words)) >> np.uint64(32)
            generator.set_state(torch.from_numpy(state))
        return generator

    def __repr__(self) -> str:
        return f"Secret(<hidden>, origin={self.origin!r})"

    def __reduce__(self) -> str:
        raise TypeError("a Secret is not serialised: it never leaves its party")


def read_secret(variable: str) -> bytes | None:
    """Return the content of the file that an environment variable names; None where it names none.

    Raises
    ------
    ConfigError
        When it cannot be read or is too short.
    """
    named = os.environ.get(variable)
    return _read_secret(Path(named), variable) if named else None


def _read_secret(path: Path, source: str) -> bytes:
    try:
        value = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{source} names {str(path)!r}, which cannot be read: {error.strerror}") from None
    if len(value) < _SECRET_BYTES // 2:
        raise ConfigError(
            f"{source} names {str(path)!r}, which has {len(value)} bytes; a secret needs at least 16, from "
            "/dev/urandom for instance"
        )
    return value
