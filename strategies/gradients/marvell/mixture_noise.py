"""Residual mixture noise: random mixtures of sampled rows' deviations from their class, which change as these change.

Noise that equalises two classes within an epoch does not equalise them over several: a row's own deviation changes from
epoch to epoch as the network learns, and neither fresh nor persistent noise changes in the same way. Mixtures of the
other class's deviations correlate across epochs as these do, direction by direction, without an estimate of how much.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from flower_vfl.protocol.schedule import Rows
from flower_vfl.strategies.gradients.noise import keyed_normals, keyed_words

MOST_MIXED_ROWS = 1024
"""Largest number of rows of a class whose deviations are mixed: the first ones that occur."""

MIXED = 32
"""Number of rows of one mixture: enough to make all mixtures different and their sums nearly normal."""

WIDEST_MIXTURE = 256
"""Largest width of a gradient: the rows must show how deviations correlate in all directions."""

_FLOOR = 1e-3
"""Variance of the normal noise in directions without deviations, as a share of the mean variance of a direction."""

_ROW_STREAM, _SHARE_STREAM = 2, 3
"""Streams of the keyed numbers for rows and for shares of a mixture; 0 and 1 are those of the defenses' noise."""


class ResidualMixture:
    """A store of the last deviations of two classes' rows from their means, which gives mixtures of them.

    A row of one class gets a mixture of rows of the other: always the same rows in the same proportions, which derive
    from a key and the row's ID and are not stored.

    Parameters
    ----------
    kept : Sequence[Tensor]
        (P, D) of negatives and of positives: deviations, or their substitutes until a row has occurred.
    places : Sequence[dict[int, int]], optional
        Position in `kept` of the deviations of a row of the table, for each class.
    """

    def __init__(self, kept: Sequence[Tensor], places: Sequence[dict[int, int]] = ({}, {})) -> None:
        self._deviations, self._places = list(kept), [dict(known) for known in places]

    @classmethod
    def begin(cls, counts: tuple[int, int], deviations: Tensor, y: Tensor, generator: torch.Generator) -> Self:
        """Return a store of normal numbers as large as the deviations (B, D) of the first batch, by its labels (B,).

        Parameters
        ----------
        counts : tuple of int
            Numbers of negatives and positives that will occur.
        deviations, y : Tensor
            Deviations and labels of the first batch.
        generator : torch.Generator
            Draws the substitutes for rows that have not occurred yet.
        """
        kept = []
        for label, count in enumerate(counts):
            size, shape = (
                deviations[y == label].square().mean().sqrt(),
                (min(MOST_MIXED_ROWS, max(1, count)), deviations.shape[1]),
            )
            kept.append((size * torch.randn(shape, generator=generator, device=generator.device)).float().cpu())
        return cls(kept)

    @property
    def width(self) -> int:
        """Width of a gradient, D."""
        return int(self._deviations[0].shape[1])

    def add(self, deviations: Tensor, y: Tensor, rows: Rows) -> None:
        """Store the deviations (B, D) of rows (B,) with labels (B,) from their class means, in units of their batch."""
        labels, values = y.cpu().numpy(), deviations.float().cpu()
        for label, (places, kept) in enumerate(zip(self._places, self._deviations, strict=True)):
            mine = np.flatnonzero(labels == label)
            found: dict[int, int] = {}
            for at, row in zip(mine.tolist(), rows[mine].tolist(), strict=True):
                if row in places or len(places) < len(kept):
                    found[places.setdefault(row, len(places))] = at
            kept[list(found)] = values[list(found.values())]

    def mixtures(self, y: Tensor, numbers: NDArray[np.uint64], normals: Tensor, *, key: bytes, part: int) -> Tensor:
        r"""Return a mixture for each row, (B, D), with covariance 1 in each direction over all keys.

        .. math:: z_j = (S + \delta I)^{-1/2} \Big( \sum_{k=1}^{32} a_{jk} \, d_{\pi_{jk}} + \sqrt{\delta} \, e_j \Big)

        with deviations :math:`d` of the other class's rows and S their second moments, chosen rows :math:`\pi_{jk}` and
        proportions :math:`a_j` of length 1 that follow from the key, and normal :math:`e_j`.

        Parameters
        ----------
        y : Tensor
            (B,) labels 0 or 1.
        numbers : ndarray
            (B,) the number that identifies each row.
        normals : Tensor
            (B, D) standard normal numbers.
        key : bytes
            16 bytes.
        part : int
            Number of the party's part, if several parties have noise of their own.
        """
        found, labels = torch.empty_like(normals), y.cpu().numpy()
        for label in (0, 1):
            mine = np.flatnonzero(labels == label)
            if mine.size:
                other = self._deviations[1 - label].to(normals)
                words = keyed_words(key, numbers[mine], MIXED, stream=_ROW_STREAM | part << 8)
                which = torch.from_numpy((words % len(other)).astype(np.int64)).to(normals.device)
                shares = keyed_normals(key, numbers[mine], MIXED, stream=_SHARE_STREAM | part << 8).to(normals)
                shares = shares / torch.linalg.vector_norm(shares, dim=1, keepdim=True)
                mixed = nn.functional.embedding_bag(which, other, per_sample_weights=shares, mode="sum")
                at = torch.from_numpy(mine).to(normals.device)
                found[at] = _standardised(mixed, other, normals[at])
        return found

    def state(self) -> dict[str, Any]:
        """Return the state as plain values and tensors."""
        rows = [np.fromiter(places, dtype=np.int64, count=len(places)) for places in self._places]
        return {"rows": [torch.from_numpy(one) for one in rows], "deviations": [d.clone() for d in self._deviations]}

    @classmethod
    def of(cls, state: Mapping[str, Any]) -> Self:
        """Return the store with a state that `state` returned."""
        kept = [deviations.clone() for deviations in state["deviations"]]
        places = [{row: place for place, row in enumerate(rows.tolist())} for rows in state["rows"]]
        return cls(kept, places)


def _standardised(mixed: Tensor, deviations: Tensor, normals: Tensor) -> Tensor:
    """Return mixtures (n, D) of deviations (P, D) as numbers of variance 1 in each direction."""
    moments = (deviations.T @ deviations).double() / len(deviations)
    # A class whose rows have never deviated (one row a batch) leaves only the normal numbers.
    floor = max(_FLOOR * float(moments.diagonal().mean()), torch.finfo(mixed.dtype).tiny)
    values, vectors = torch.linalg.eigh(moments)
    root = (vectors / (values.clamp(min=0.0) + floor).sqrt()) @ vectors.T
    whole: Tensor = (mixed + floor**0.5 * normals) @ root.to(mixed)
    return whole
