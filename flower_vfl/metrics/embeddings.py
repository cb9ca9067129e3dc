"""A sample of embeddings with their labels, from which the label party alone draws figures."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from flower_vfl.errors import ArgumentError
from flower_vfl.metrics.arrays import as_numpy, polar

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from flower_vfl.metrics.arrays import Array

RECEIVED, READ = "received", "read"
"""Views of embeddings: as a party sent them, and as the top model reads them where a defense changes them before."""


@dataclass(frozen=True, slots=True, eq=False)
class Embeddings:
    """Embeddings of some test rows with their true labels; they reveal labels and never leave the label party.

    Attributes
    ----------
    party
        The party's name.
    view
        "received", or "read": as the top model reads them.
    rows, labels
        (n,) positions in the test table and true class numbers.
    z
        (n, d) embeddings of float32; rows of more than n numbers are rotated into n, see `compact`.
    """

    party: str
    view: str
    rows: NDArray[np.int64]
    labels: NDArray[np.int64]
    z: NDArray[np.float32]


def sample_rows(labels: Array, count: int, *, generator: np.random.Generator) -> NDArray[np.int64]:
    """Draw a sample of rows with equal shares of the classes, as far as rows suffice, so that it has rare classes.

    Parameters
    ----------
    labels
        (N,) class numbers.
    count
        Largest number of rows, except that each class has at least one.
    generator
        Random generator of the sample.

    Returns
    -------
    NDArray
        (n,) sorted positions; all of a class that has fewer than its share.

    Examples
    --------
    >>> rows = sample_rows([0] * 90 + [1] * 10, 8, generator=np.random.default_rng(0))
    >>> int((rows < 90).sum()), int((rows >= 90).sum())
    (4, 4)
    """
    y = as_numpy(labels)
    present = np.unique(y)
    if not count or not present.size:
        return np.zeros(0, dtype=np.int64)
    share = max(1, count // present.size)
    drawn = []
    for number in present:
        members = np.flatnonzero(y == number)
        drawn.append(generator.choice(members, share, replace=False) if members.size > share else members)
    return np.sort(np.concatenate(drawn))


def compact(z: Array) -> NDArray[np.float32]:
    """Return embeddings (n, ...) as rows of at most n numbers with the same inner products: rotated, not cut off.

    So a sample of feature maps has at most n^2 numbers, and the same lengths, distances and angles.

    Examples
    --------
    >>> compact([[3.0, 0.0, 4.0]]).round(5).tolist()
    [[5.0]]
    """
    values = as_numpy(z)
    rows = values.reshape(len(values), -1).astype(np.float64)
    if rows.shape[1] > len(rows):
        upper = np.asarray(np.linalg.qr(rows.T, mode="r"))
        rows = upper.T * np.where(np.diag(upper) < 0, -1.0, 1.0)
    return rows.astype(np.float32)


def pair_angles(z: Array, labels: Array) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    r"""Return the angles between embeddings: of pairs of one class, and of two classes.

    .. math:: \arccos \cos(z, z')

    Parameters
    ----------
    z
        (n, d) embeddings; a row of zeros is at right angles to every other.
    labels
        (n,) class numbers.

    Returns
    -------
    tuple[NDArray, NDArray]
        Angles in radians, 0 to pi, of each unordered pair.

    Raises
    ------
    ArgumentError
        For shapes that do not fit.

    References
    ----------
    Zheng et al., *Protecting Split Learning by Potential Energy Loss*, Figure 5.

    Examples
    --------
    >>> same, different = pair_angles([[1.0, 0.0], [2.0, 0.0], [0.0, 3.0]], [0, 0, 1])
    >>> same.round(4).tolist(), different.round(4).tolist()
    ([0.0], [1.5708, 1.5708])
    """
    rows, y = as_numpy(z), as_numpy(labels)
    if rows.ndim != 2 or y.shape != rows.shape[:1]:
        raise ArgumentError(f"Embeddings {rows.shape} and labels {y.shape}: give (n, d) and (n,).")
    _, units = polar(rows.astype(np.float64))
    first, second = np.triu_indices(len(rows), k=1)
    angles = np.arccos((units @ units.T)[first, second].clip(-1, 1))
    same = y[first] == y[second]
    return angles[same], angles[~same]
