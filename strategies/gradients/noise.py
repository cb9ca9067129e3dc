"""Normal noise of a batch: fresh in every step, or in part persistent, the same whenever a row recurs.

Fresh noise averages out: a party that adds up the gradients of one row over the epochs is left with the
gradient. The persistent share of a row's noise does not; it follows from a key and the row's ID, and is stored nowhere.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

import numpy as np
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray
from torch import Tensor

from flower_vfl.auditing.noise import NoiseModel
from flower_vfl.errors import ConfigError, DataError
from flower_vfl.parties.hooks import Log, StepView
from flower_vfl.rng import NOISE_KEY_FILE_VARIABLE, SECRET_FILE_VARIABLE
from flower_vfl.strategies.base import HookedStrategy
from flower_vfl.strategies.gradients.base import GradientDefense, Scope
from flower_vfl.strategies.gradients.checks import is_real
from flower_vfl.strategies.gradients.units import each_run

_WORDS = 4
"""Number of random 32-bit words in a block of AES; two of them make two normal numbers."""


def keyed_words(key: bytes, rows: NDArray[np.integer], count: int, *, stream: int = 0) -> NDArray[np.uint32]:
    """Return uniform numbers of 32 bits, (B, `count`), that follow from a key, the rows and the stream.

    See `keyed_normals`.
    """
    blocks = -(-count // _WORDS)
    counters = np.empty((len(rows), blocks, 2), "<u8")
    counters[..., 0] = rows[:, None]
    counters[..., 1] = np.arange(blocks, dtype=np.uint64) | np.uint64(stream << 48)
    # Counter mode with a counter of our own: single blocks, none of which recurs.
    encryptor = Cipher(algorithms.AES(key), modes.ECB()).encryptor()
    words = np.frombuffer(encryptor.update(counters.tobytes()), "<u4")
    return words.reshape(len(rows), blocks * _WORDS)[:, :count]


def keyed_normals(
    key: bytes, rows: NDArray[np.integer], width: int, *, stream: int = 0, dtype: torch.dtype = torch.float32
) -> Tensor:
    r"""Return standard normal numbers (B, `width`) that follow from a key, the rows and the stream, and nothing else.

    Every block of AES-128 in counter mode, :math:`E_k(\text{row} \,\|\, \text{stream} \,\|\, \text{block})`, gives four
    uniform numbers, and two of these give two normal ones [Box and Muller, 1958]. Without the key they cannot be
    distinguished from fresh ones. No number is farther from 0 than 6.8.

    Parameters
    ----------
    key : bytes
        16 bytes.
    rows : ndarray of integers, (B,)
        The number that identifies each row, from 0 to 2^64 - 1.
    width : int
        Numbers a row; the first ones do not depend on it.
    stream : int
        From 0 to 65,535: other numbers for the same row.
    dtype : torch.dtype
        float32 or float64.

    Examples
    --------
    >>> first = keyed_normals(b"0123456789abcdef", np.array([7, 8]), 3)
    >>> again = keyed_normals(b"0123456789abcdef", np.array([8]), 5)
    >>> torch.equal(first[1], again[0, :3])
    True
    """
    pairs = -(-width // _WORDS) * _WORDS // 2
    words = keyed_words(key, rows, 2 * pairs, stream=stream).reshape(len(rows), pairs, 2)
    uniform = (torch.from_numpy(words.astype(np.int64)).to(dtype) + 0.5) / 2**32
    radius, angle = uniform[..., 0].log().mul_(-2.0).sqrt_(), uniform[..., 1] * (2.0 * math.pi)
    return torch.stack([radius * angle.cos(), radius * angle.sin()], dim=2).flatten(1)[:, :width]


class Noise:
    r"""Standard normal numbers for the rows of one batch, :math:`\sqrt\rho \, p_j + \sqrt{1 - \rho} \, e_j`.

    Parameters
    ----------
    generator : torch.Generator
        Generator of the fresh numbers, on the device of the batch.
    rho : float
        Share of the variance that is persistent, 0 to 1.
    key : bytes
        Key of the persistent share.
    rows : ndarray of integers, (B,), optional
        The number that identifies each row of the batch; needed for a persistent share.
    part : int
        Number of the party's part, if several parties have noise of their own.
    """

    def __init__(
        self,
        generator: torch.Generator,
        *,
        rho: float = 0.0,
        key: bytes = b"",
        rows: NDArray[np.integer] | None = None,
        part: int = 0,
    ) -> None:
        self._generator, self._rho, self._key, self._rows, self._part = generator, rho, key, rows, part

    def draw(
        self, g: Tensor, width: int, *, chosen: Tensor | None = None, stream: int = 0, out: Tensor | None = None
    ) -> Tensor:
        """Return numbers (B, `width`) for the batch `g`, or for its rows `chosen`, in its number format and place.

        Calls of one batch with different streams are independent; `stream` is from 0 to 255. The numbers are written
        to `out` if it is given.
        """
        if self._rho == 0.0 and out is not None:
            return torch.randn(out.shape, generator=self._generator, out=out)
        numbers = self._mixed(g, width, chosen, stream)
        return numbers if out is None else out.copy_(numbers)

    def _mixed(self, g: Tensor, width: int, chosen: Tensor | None, stream: int) -> Tensor:
        """Return fresh and persistent numbers in their shares."""
        if self._rho < 1.0:
            fresh = self.fresh(g, width, count=len(g if chosen is None else chosen))
            if self._rho == 0.0:
                return fresh
        if self._rows is None or len(self._rows) != len(g):
            raise ConfigError("persistent noise follows the rows of a batch: call `begin_batch` before `protect`")
        rows = self._rows if chosen is None else self._rows[chosen.cpu().numpy()]
        stream |= self._part << 8
        kept = keyed_normals(self._key, rows, width, stream=stream, dtype=g.dtype).to(g.device, non_blocking=True)
        return kept if self._rho == 1.0 else math.sqrt(self._rho) * kept + math.sqrt(1.0 - self._rho) * fresh

    def fresh(self, g: Tensor, width: int, *, count: int | None = None) -> Tensor:
        """Return numbers for the batch `g`, or for `count` rows, none of them persistent."""
        size = (len(g) if count is None else count, width)
        return torch.randn(size, generator=self._generator, device=g.device, dtype=g.dtype)


def draw_each(noises: Sequence[Noise | None], g: Tensor, width: int) -> Tensor:
    """Return the numbers (..., B, `width`) that each run's own source draws for gradients (..., B, D); else zeros."""
    if g.dim() == 2 and noises[0] is not None:
        return noises[0].draw(g, width)
    numbers = g.new_zeros((*g.shape[:-1], width))
    for noise, own, part in zip(noises, each_run(g), each_run(numbers), strict=True):
        if noise is not None:
            noise.draw(own, width, out=part)
    return numbers


class NoiseDefense(GradientDefense):
    """A gradient defense that adds normal noise, of which a share may be persistent.

    Parameters
    ----------
    strategy : HookedStrategy
        The wrapped strategy.
    scope : {"joint", "per-party"}
        See `GradientDefense`.
    rho : float
        Persistent share of the noise's variance, the same whenever a row recurs, 0 to 1. The noise of one step has the
        same distribution for every share. At 0 all noise is fresh, and a party can average it away over the epochs; at
        1 two gradients of one row have the same noise, which cancels in their difference. The persistent noise of a row
        follows from the label party's secret and from the row's ID; where rows have none, from the number of the row in
        the table.
    """

    def __init__(self, strategy: HookedStrategy, *, scope: Scope = "joint", rho: float = 0.0) -> None:
        super().__init__(strategy, scope=scope)
        if not is_real(rho) or not 0.0 <= rho <= 1.0:
            raise ConfigError(f"{self.name}: rho must be a number from 0 to 1, given {rho!r}")
        self.rho = float(rho)
        self._noise_models: dict[int, Callable[[], NoiseModel]] = {}

    @property
    def params(self) -> dict[str, Any]:
        """The persistent share and the scope; a subclass with parameters adds its own."""
        return {"rho": self.rho, "scope": self.scope}

    @classmethod
    def _perturb_or_withhold(
        cls, defenses: Sequence[Self], g: Tensor, y: Tensor, steps: Sequence[StepView]
    ) -> tuple[Tensor, list[Log]]:
        for defense, step in zip(defenses, steps, strict=True):
            defense._noise_models.pop(step.part, None)  # that of the last batch
        return super()._perturb_or_withhold(defenses, g, y, steps)

    def noise_model(self, part: int = 0) -> NoiseModel | None:
        """Return the distribution of the noise in the last batch, if `perturb` called `describe_noise`."""
        made = self._noise_models.get(part)
        return None if made is None else made()

    def describe_noise(self, step: StepView, make: Callable[[], NoiseModel]) -> None:
        """Store the function that makes the model of this batch's noise; it is called on demand."""
        self._noise_models[step.part] = make

    @property
    def follows_rows(self) -> bool:
        """True if part of a row's noise, or its source, is the same whenever the row recurs."""
        return self.rho > 0.0

    def begin(self) -> None:
        """Read the IDs that persistent noise follows."""
        if self.follows_rows:
            self.base.identities(np.empty(0, np.int64))

    def noise(self, g: Tensor, step: StepView) -> Noise:
        """Return the source of this batch's noise."""
        generator = self.generator(g.device)
        if not self.rho or step.rows is None:
            return Noise(generator, rho=self.rho)
        key, rows = self._key("persistent"), self.base.identities(step.rows)
        return Noise(generator, rho=self.rho, key=key, rows=rows, part=step.part)

    def _key(self, purpose: str) -> bytes:
        return self.base.secret.key("defense", self.name, len(self.strategy.chain()), purpose)

    def state(self) -> dict[str, Any]:
        """Add the identifiers that persistent noise follows: a resumed run must go on with the same."""
        return {**super().state(), **({"persistent": self._followed()} if self.follows_rows else {})}

    def _followed(self) -> dict[str, str]:
        return {"follows": "IDs" if self.base.follows_ids else "numbers", "key": self._key("check").hex()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore a state that `state` returned.

        Raises
        ------
        DataError
            When persistent noise would not be the same as before.
        """
        super().restore(state)
        if not self.follows_rows:
            return
        was, now = state["persistent"], self._followed()
        if was["follows"] != now["follows"]:
            raise DataError(
                f"the training began with persistent noise that follows the {was['follows']} of rows and would go on "
                f"with noise that follows their {now['follows']}; start a new run"
            )
        if was["key"] != now["key"]:
            raise DataError(
                "the training began with persistent noise of another key; let "
                f"{NOISE_KEY_FILE_VARIABLE} and {SECRET_FILE_VARIABLE} name what they named then"
            )
