"""A regression of noisy gradients on a party's own columns and embeddings: noise averages out over similar people."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, ClassVar, Literal, TypeAlias, get_args

import torch

from flower_vfl.attacks.base import one_of
from flower_vfl.attacks.joint.base import JointAttack, JointScores
from flower_vfl.attacks.joint.features import fit_features, narrow
from flower_vfl.attacks.joint.ridge import cross_fitted
from flower_vfl.attacks.longitudinal import direction
from flower_vfl.attacks.rows import lengths, rarer_side_up
from flower_vfl.errors import ArgumentError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from flower_vfl.attacks.joint.base import JointView, OwnRows, Sees

Target: TypeAlias = Literal["both", "direction", "length"]

EVERYTHING: tuple[Sees, Sees] = ("columns", "embeddings")

_SHORTEST = 1e-6
"""Length, in units of the batch, to which shorter gradients are raised before the logarithm is taken."""

_DIRECTIONS = 4

_WIDEST = 1024
"""Largest width of gradients for the first direction; wider ones are projected."""


def evidence(gradients: Tensor) -> Tensor:
    r"""Return three numbers of each gradient that depend on its label, each with mean 0 and variance 1.

    The first is the coordinate along the first principal direction, :math:`\langle g_i - \bar g, v_1 \rangle`; fewer
    rows are on its positive side. The second is the logarithm of the length, :math:`\log \| g_i \|`. The third is the
    logarithm of the residual length without the first principal directions, at most four and at most half of all.

    Parameters
    ----------
    gradients
        (n, D) gradients in units of their batches.

    Returns
    -------
    Tensor
        (n, 3) of float64; zeros where all rows are equal.

    Examples
    --------
    >>> evidence(torch.tensor([[1.0, 0.0], [1.0, 0.0], [1.0, 0.0], [5.0, 0.0]])).round(decimals=2)[:, 1]
    tensor([-0.5800, -0.5800, -0.5800,  1.7300], dtype=torch.float64)
    """
    rows = narrow(gradients.float(), _WIDEST)
    along = direction.score(lambda: torch.split(rows, 1 << 14))
    numbers = [along, *(lengths(g).clamp(min=_SHORTEST).log() for g in (gradients, _residuals(rows)))]
    return torch.stack([standard(values) for values in numbers], dim=1)


def _residuals(rows: Tensor) -> Tensor:
    """Return centred rows (n, D) without their first principal directions; rows of width 1 as they are."""
    count = min(_DIRECTIONS, rows.shape[1] // 2)
    if not count:
        return rows
    mean, covariance = direction.moments(lambda: torch.split(rows, 1 << 14))
    first = torch.linalg.eigh(covariance)[1][:, -count:].to(rows)
    centred = rows - mean.to(rows)
    left: Tensor = centred - (centred @ first) @ first.T
    return left


def standard(values: Tensor, like: Tensor | None = None) -> Tensor:
    """Return values (n,) standardised by mean and deviation of ``like``, by default their own; zeros if it is 0."""
    like = values if like is None else like
    deviation = float(like.std(unbiased=False)) if len(like) else 0.0
    if not deviation > 1e-12 * float(like.abs().amax() if len(like) else 0.0):
        return torch.zeros_like(values)
    return (values - like.mean()) / deviation


@dataclass(frozen=True, slots=True, eq=False)
class GradientFit:
    """A fit of gradients to columns and embeddings.

    Attributes
    ----------
    own
        (n, 3) `evidence` of the training rows' own gradients, with its sign chosen.
    train
        (n, 3) prediction of it by a fit to other rows, each column with mean 0 and variance 1.
    test
        (N, 3) prediction of it for rows that were not trained on.
    """

    own: Tensor
    train: Tensor
    test: Tensor


def fit_gradients(gradients: Tensor, train: OwnRows, test: OwnRows, *, words: bool = False) -> GradientFit:
    r"""Regress the evidence of gradients on columns and embeddings by `cross_fitted`, without any label.

    The positive side of the first direction is that on which gradients are predicted to be longer: a model errs more on
    examples of the rarer class, so that their gradients are longer on average. Where lengths are not predictable, it is
    the side with fewer rows.

    Raises
    ------
    ArgumentError
        When there are fewer than 20 rows.
    """
    features = fit_features(train, EVERYTHING, words=words)
    if features is None or len(train) < 20:
        raise ArgumentError(f"{len(train)} rows with gradients: 20 at least are needed for a regression.")
    own = evidence(gradients)
    expected, weights = cross_fitted(partial(features.pieces, train), own)
    other = torch.cat([piece.double() @ weights for piece in features.pieces(test)] or [expected[:0]])
    pairs = [(standard(expected[:, k]), standard(other[:, k], expected[:, k])) for k in range(own.shape[1])]
    side = -1.0 if float(pairs[0][0] @ pairs[1][0]) < 0 else 1.0
    sides = own.new_tensor([side, 1.0, 1.0])
    return GradientFit(
        own * sides,
        torch.stack([pair[0] for pair in pairs], dim=1) * sides,
        torch.stack([pair[1] for pair in pairs], dim=1) * sides,
    )


def principal(train: OwnRows, test: OwnRows, sees: tuple[Sees, ...], *, words: bool) -> JointScores | None:
    """Return the coordinates of rows along the first principal direction of columns or embeddings; None without any."""
    features = fit_features(train, sees, words=words)
    if features is None:
        return None
    mean, covariance = direction.moments(partial(features.pieces, train))
    axis = torch.linalg.eigh(covariance)[1][:, -1]
    mine, other = (
        torch.cat([piece.double() @ axis for piece in features.pieces(rows)] or [mean[:0]]) for rows in (train, test)
    )
    settled = rarer_side_up(mine - mine.mean())
    side = -1.0 if float(settled @ mine) < 0 else 1.0
    return JointScores(settled, side * (other - mine.mean()))


class JointRegressionAttack(JointAttack):
    """An attack that scores each row by its gradient as predicted from its columns and embedding; needs no label.

    The coordinate along the gradients' first direction, the logarithm of their length, or both are regressed on the
    columns and the embeddings of all training rows. Training rows are scored by a fit to other rows, so that a score
    does not depend on the row's own gradient.

    Parameters
    ----------
    target
        Quantity that is predicted: "direction", "length", or "both", the sum of the two.
    """

    name: ClassVar[str] = "joint_regression"
    reads_own: ClassVar[bool] = False

    def __init__(self, target: Target = "both") -> None:
        self.target: Target = one_of(self.name, "target", target, get_args(Target))

    def read(self, view: JointView) -> JointScores:
        """Return scores from the gradients predicted from columns and embeddings."""
        fit = fit_gradients(view.gradients, view.train, view.test, words=view.words)
        if self.target == "both":
            return JointScores(fit.train[:, :2].sum(dim=1), fit.test[:, :2].sum(dim=1))
        place = 0 if self.target == "direction" else 1
        return JointScores(fit.train[:, place], fit.test[:, place])

    def baselines(self, view: JointView) -> Mapping[str, JointScores]:
        """Return the scores along the first directions of the columns and of the embeddings, and those of guessing."""
        nothing = JointScores(*(torch.zeros(len(rows), dtype=torch.float64) for rows in (view.train, view.test)))
        found = {"guessing": nothing}
        for sees in EVERYTHING:
            scores = principal(view.train, view.test, (sees,), words=view.words)
            if scores is not None:
                found[sees] = scores
        return found
