"""An attack for parties that collude: an oracle that gives the gradient of each party the same weight."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from flower_vfl.attacks import Attack, SideInformation
from flower_vfl.attacks.base import NOTHING, REFERENCE
from flower_vfl.protocol.transcript import Transcript


def score(g: Tensor, reference: Tensor, *, width: int) -> Tensor:
    r"""Return the sum of the scores of parties whose gradients are `width` numbers each, side by side.

    .. math:: r(g) = \sum_k \langle g_k, g_{+,k} \rangle / \lVert g_{+,k} \rVert^2

    Where each party's noise has a power in proportion to its own squared distance of the class means, and lies along
    it, this is the likelihood ratio; in the inner product of the whole the largest gradients dominate. For one party
    it is the inner product.

    Parameters
    ----------
    g : Tensor
        (B, K `width`) gradients.
    reference : Tensor
        (K `width`,) the clean gradient of a positive, which only an oracle has.

    Returns
    -------
    Tensor
        (B,) float64.
    """
    parts, known = g.detach().double().view(len(g), -1, width), reference.double().view(-1, width)
    squares = known.square().sum(dim=1)
    unit = squares.where(squares > 0.0, squares.new_full((), float("inf")))
    return ((parts * known).sum(dim=2) / unit).sum(dim=1)


class EqualWeight(Attack):
    """The oracle attack on joined gradients that gives every party's part the same weight.

    Parameters
    ----------
    width : int
        Width of one party's gradient.
    """

    name: ClassVar[str] = "equal_weight"
    needs: ClassVar[frozenset[str]] = frozenset({REFERENCE})

    def __init__(self, width: int) -> None:
        self.width = width

    def score(self, transcript: Transcript, layer: str, side: SideInformation = NOTHING) -> Tensor:
        """Return the sums over the parties in the last step, (B,)."""
        return score(transcript.last.gradients[layer], side.tensor(REFERENCE), width=self.width)
