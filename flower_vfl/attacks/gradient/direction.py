"""The direction attack: the class means lie on one line, which noise that hides lengths does not hide."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from flower_vfl.attacks.gradient.principal_direction import FollowingAttack, follow
from flower_vfl.attacks.rows import as_rows, narrowed

if TYPE_CHECKING:
    from torch import Tensor


def score(g: Tensor) -> Tensor:
    r"""Score each example by its coordinate along the first principal direction of its batch.

    .. math:: r(g_i) = \pm \langle g_i, v_1 \rangle \big/ \sqrt{\textstyle\sum_j \| g_j \|_2^2 / B}

    with :math:`v_1` the first right-singular vector of the batch, not centred. The cut gradient of a row is
    :math:`(p - y) \, \partial h / \partial z`: both classes lie near one line through the origin, on opposite sides.
    A defense that adds its noise along that line makes it the first principal direction of the noisy batch. The sign is
    chosen without labels, see `principal_direction.follow`; the attack chooses it on the first batches of a training
    run and follows the line from then on. This function scores a batch without earlier ones.

    Parameters
    ----------
    g
        (B, D) gradients, one row an example; further dimensions are flattened.

    Returns
    -------
    Tensor
        (B,) scores, float32 for the half precisions, else of the type of ``g``; zeros for a batch of zeros, NaN for
        each row of a batch that is not finite.

    Raises
    ------
    ArgumentError
        When ``g`` is no floating point tensor with a row for each example.

    Examples
    --------
    >>> import torch
    >>> score(torch.tensor([[-3.0, -4.0], [0.6, 0.8], [0.6, 0.8], [0.6, 0.8]]) * 1e-30)
    tensor([ 1.8898, -0.3780, -0.3780, -0.3780])
    """
    rows = as_rows(g)
    return narrowed(follow(rows).along, rows)


class DirectionAttack(FollowingAttack):
    """An attack that scores each example by its coordinate along the first principal direction of the batches.

    It assumes only that positives are rare and that it sees the first batches of the training run: the gradients of an
    untrained model show the side of the rarer class. Later batches do not change the side.
    """

    name: ClassVar[str] = "direction"

    def rate(self, rows: Tensor, known: Tensor | None) -> Tensor:
        """Return the coordinates of the rows along the lines of their runs."""
        return narrowed(self.follower.place(rows).along, rows)
