"""The shell attack: where a defense gives all rows one expected length, rows with little noise have that length."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import torch

from flower_vfl.attacks.gradient.principal_direction import FollowingAttack, Placed, follow
from flower_vfl.attacks.rows import as_rows, narrowed

if TYPE_CHECKING:
    from torch import Tensor


def score(g: Tensor) -> Tensor:
    r"""Score each example by the nearness of its length to the batch's root mean square, with the sign of its side.

    .. math:: r(g_i) = \frac{\pm \operatorname{sign} \langle g_i, v_1 \rangle}{1 + |\log (\| g_i \|_2 / \rho)|},
        \qquad \rho^2 = \tfrac1B \sum_j \| g_j \|_2^2

    with :math:`v_1` the first principal direction of the batch. The max-norm defense stretches each row along itself
    so that its expected squared length is the largest of the batch, which :math:`\rho^2` estimates. Long rows get
    little noise and lie on the shell of that radius, short ones anywhere. No row leaves its line, and the longer it is,
    the less likely the noise changes its side. So the side is most reliable on the shell: the highest scores are there
    on the positives' side, the lowest there on the other. The sign is chosen without labels and followed from batch to
    batch, see `principal_direction.follow`. This function scores a batch without earlier ones.

    Parameters
    ----------
    g
        (B, D) gradients, one row an example; further dimensions are flattened.

    Returns
    -------
    Tensor
        (B,) between -1 and 1, float32 for the half precisions, else of the type of ``g``; 0 for a row of zeros, NaN for
        each row of a batch that is not finite.

    Raises
    ------
    ArgumentError
        When ``g`` is no floating point tensor with a row for each example.

    Examples
    --------
    >>> score(torch.tensor([[-2.0, 0.0], [4.0, 0.0], [0.5, 0.0], [0.5, 0.0], [1.0, 0.0]])).argmax()
    tensor(0)
    """
    rows = as_rows(g)
    return narrowed(_scores(follow(rows)), rows)


def _scores(placed: Placed) -> Tensor:
    """Return the scores (..., B) of rows from their lengths and coordinates."""
    sides = placed.along.sign().where(placed.along.isfinite(), torch.nan)  # the sign of NaN would be 0
    return sides / (1.0 + placed.lengths.clamp(min=1e-30).log().abs())


class ShellAttack(FollowingAttack):
    """An attack that scores each example by its length's distance from the batch's root mean square, and by its side.

    It is made for the defense `max_norm`. It assumes only that positives are rare and that it sees the first batches of
    the training run, which settle the side.
    """

    name: ClassVar[str] = "shell"

    def rate(self, rows: Tensor, known: Tensor | None) -> Tensor:
        """Return the scores of the rows by the lines of their runs."""
        return narrowed(_scores(self.follower.place(rows)), rows)
