"""An attack for parties that collude: each one's gradient is a look of its own, and all looks count the same."""

from __future__ import annotations

from typing import Any, ClassVar

from torch import Tensor

from flower_vfl.attacks import Attack, SideInformation
from flower_vfl.attacks.base import NOTHING, REFERENCE
from flower_vfl.protocol.transcript import Transcript


def score(g: Tensor, reference: Tensor, *, width: int) -> Tensor:
    r"""Add up the looks of parties whose gradients are `width` numbers each, side by side.

    .. math:: r(g) = \sum_k \langle g_k, g_{+,k} \rangle / \lVert g_{+,k} \rVert^2

    Where each party's noise has a power in proportion to its own squared distance of the class means, and lies along
    it, this is the likelihood ratio; the inner product of the whole would listen to the loudest party. Of one party it
    is the inner product.

    Parameters
    ----------
    g : Tensor
        (B, K `width`) gradients.
    reference : Tensor
        (K `width`,) the clean gradient of a positive, which an oracle tells.

    Returns
    -------
    Tensor
        (B,) float64.
    """
    looks, known = g.detach().double().view(len(g), -1, width), reference.double().view(-1, width)
    squares = known.square().sum(dim=1)
    unit = squares.where(squares > 0.0, squares.new_full((), float("inf")))
    return ((looks * known).sum(dim=2) / unit).sum(dim=1)


class Looks(Attack):
    """The oracle attack on joined gradients that weighs every party's part the same.

    Parameters
    ----------
    width : int
        Numbers of one party's gradient.
    """

    name: ClassVar[str] = "looks"
    needs: ClassVar[frozenset[str]] = frozenset({REFERENCE})

    def __init__(self, width: int) -> None:
        self.width = width

    @property
    def params(self) -> dict[str, Any]:
        """The width."""
        return {"width": self.width}

    def score(self, transcript: Transcript, layer: str, side: SideInformation = NOTHING) -> Tensor:
        """Return the sums of the looks of the last step, (B,)."""
        return score(transcript.last.gradients[layer], side.tensor(REFERENCE), width=self.width)
