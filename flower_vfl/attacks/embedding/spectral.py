"""The spectral attack: the classes differ most along one direction, the first principal one of the embeddings."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

import torch

from flower_vfl.attacks.base import NOTHING, Attack, Reads, SideInformation, truth
from flower_vfl.attacks.embedding.inference import InferenceAttack, TrainedView
from flower_vfl.attacks.rows import as_rows, narrowed, normalised, rarer_side_up, raw_features

if TYPE_CHECKING:
    from torch import Tensor

    from flower_vfl.protocol.transcript import Transcript

MOST_FLOAT64 = 1 << 24
"""Largest count of numbers that are computed with in float64; for more it would take too much memory."""

MOST_DECOMPOSED = 2048
"""Largest number of rows or columns, whichever are fewer, for which all directions are computed, not only the first."""


def score(z: Tensor) -> Tensor:
    r"""Score each example by its embedding's coordinate along the direction in which the embeddings differ most.

    .. math:: r(z_i) = \pm \langle z_i - \bar z, v_1 \rangle

    with :math:`v_1` the top right-singular vector of the centred embeddings. Its sign is chosen without labels: at most
    half of the scores are positive, for positives are the rarer class; where as many are positive as are negative, the
    third moment is not negative.

    Neither noise on the gradients nor flipped labels prevent this: the trained model separates the classes anyway.

    Parameters
    ----------
    z
        (B, D) embeddings, one row an example; further dimensions are flattened.

    Returns
    -------
    Tensor
        (B,), float32 for the half precisions, else of the type of ``z``; zeros where all rows are equal.

    Raises
    ------
    ArgumentError
        When ``z`` is no floating point tensor with a row for each example.

    References
    ----------
    Sun, Yang, Yao and Wang, *Label Leakage and Protection from Forward Embedding in Vertical Federated Learning*, 2022
    (the choice of the sign is ours).

    Examples
    --------
    >>> score(torch.tensor([[1.0, 5.0], [1.0, 5.0], [1.0, 5.0], [5.0, 5.0]]) * 1e-30) * 1e30
    tensor([-1., -1., -1.,  3.])
    """
    rows = as_rows(z)
    x, unit = _centred(rows)
    if x is None:
        return narrowed(torch.zeros(len(rows), device=rows.device), rows)
    along = _first_component(x)
    return narrowed(rarer_side_up(along) * unit, rows)


def _centred(rows: Tensor) -> tuple[Tensor | None, float]:
    """Return rows (B, D) around their mean with a largest entry in [1, 2), and the unit; None where all are equal."""
    wide = rows.to(torch.float64 if rows.numel() <= MOST_FLOAT64 else torch.promote_types(rows.dtype, torch.float32))
    if not wide.numel():
        return None, 1.0
    size = _unit(wide)
    x = wide / size
    x = x - x[0]  # first: equal rows are then exactly zero, and a large common part costs no digit of the mean
    x -= x.mean(dim=0)
    spread = _unit(x)
    if not bool((x != 0).any()):
        return None, 1.0
    return x.div_(spread), size * spread


def _unit(x: Tensor) -> float:
    """Return the power of two at or below the largest entry, 1 where there is none: dividing by it costs no digit."""
    largest = float(x.abs().amax())
    return 2.0 ** (torch.frexp(torch.tensor(largest, dtype=torch.float64)).exponent.item() - 1) if largest > 0 else 1.0


def _first_component(x: Tensor) -> Tensor:
    """Return the coordinates (B,) of centred rows (B, D) along their first right-singular vector.

    It comes from the eigenvectors of the smaller of the two products of ``x`` with itself.
    """
    rows, width = x.shape
    if min(rows, width) > MOST_DECOMPOSED:
        direction = _first_direction(x)
    elif width <= rows:
        direction = torch.linalg.eigh(x.T @ x).eigenvectors[:, -1]
    else:
        direction = x.T @ torch.linalg.eigh(x @ x.T).eigenvectors[:, -1]
        direction = direction / torch.linalg.vector_norm(direction)
    along: Tensor = x @ direction
    return along


def _first_direction(x: Tensor) -> Tensor:
    """Return the top right-singular vector (D,) by Lanczos' method, started at the longest row, not at random."""
    from scipy.sparse.linalg import svds

    matrix = x.cpu().numpy()
    longest = matrix[int(torch.linalg.vector_norm(x, dim=1).argmax())]
    start = longest if matrix.shape[1] <= matrix.shape[0] else matrix @ longest
    _, _, directions = svds(matrix, k=1, v0=start)
    return torch.from_numpy(directions[0].copy()).to(x)


class SpectralAttack(Attack, InferenceAttack):
    """An attack that scores each example by its embedding's coordinate along the direction of the largest spread.

    It scores each batch during training and, once the model is trained, all attacked rows together. Its baseline is
    the same score of the raw inputs.

    Parameters
    ----------
    normalise
        True if it uses the layer-normalised embeddings, as the top model does behind a defense that normalises.
    """

    name: ClassVar[str] = "spectral"
    sees: ClassVar[Literal["gradients", "embeddings"]] = "embeddings"
    reads: ClassVar[Reads] = "scores"

    def __init__(self, normalise: bool = False) -> None:
        self.normalise = truth(self.name, "normalise", normalise)

    def score(self, transcript: Transcript, layer: str, side: SideInformation = NOTHING) -> Tensor:
        """Return the spectral scores of the layer's outputs in the last step, (B,)."""
        return self._score(transcript.last.output(layer))

    def infer(self, view: TrainedView) -> Tensor:
        """Return the spectral scores of all attacked rows, (N,)."""
        return self._score(view.embeddings)

    def baseline(self, view: TrainedView) -> Tensor | None:
        """Return the spectral scores of the raw inputs, (N,)."""
        return score(raw_features(view.inputs)) if view.inputs else None

    def _score(self, z: Tensor) -> Tensor:
        return score(normalised(z) if self.normalise else z)
