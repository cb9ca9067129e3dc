"""The clustering attack on gradients: those of one class have similar directions, also with many classes."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import torch

from flower_vfl.attacks.base import NOTHING, Attack, Reads, SideInformation, truth
from flower_vfl.attacks.embedding.clustering import assign
from flower_vfl.attacks.rows import as_rows, in_own_units, lengths, wide

if TYPE_CHECKING:
    from torch import Tensor

    from flower_vfl.protocol.transcript import Transcript


def groups(g: Tensor, *, classes: int, directions: bool = True) -> Tensor:
    r"""Put the gradients of a batch into as many groups as there are classes, by k-means.

    .. math:: \min_{c, m} \sum_i \| x_i - m_{c_i} \|_2^2, \qquad x_i = g_i / \| g_i \|_2

    The gradient of the cross-entropy is :math:`\sum_k (p_k - [y = k]) \, \partial l_k / \partial z`: it points away
    from its class, whatever the model's confidence. So directions are clustered (spherical k-means), not lengths, which
    depend on the model's error.

    Parameters
    ----------
    g
        (B, D) gradients, one row an example; further dimensions are flattened.
    classes
        Number of classes C, at least 2, which the attacker knows.
    directions
        True if rows are scaled to one length first; a row of zeros stays zeros.

    Returns
    -------
    Tensor
        (B,) group number of each row; the groups are not matched to classes. One group where there are fewer rows than
        classes, and where a gradient is not finite.

    Raises
    ------
    ArgumentError
        When ``g`` is no floating point tensor with a row for each example, and for fewer than two classes.

    References
    ----------
    Dhillon and Modha, *Concept Decompositions for Large Sparse Text Data using Clustering*, 2001 (spherical k-means).

    Examples
    --------
    >>> g = torch.tensor([[1.0, 0.1], [0.0, -3.0], [20.0, 0.0], [0.1, -1.0]])
    >>> found = groups(g, classes=2)
    >>> bool(found[0] == found[2]), bool(found[1] == found[3]), bool(found[0] == found[1])
    (True, True, False)
    """
    rows = as_rows(g)
    if len(rows) < classes or not bool(torch.isfinite(rows).all()):
        return torch.zeros(len(rows), dtype=torch.int64)
    if directions:
        rows, _ = in_own_units(wide(rows)[0])
        norms = lengths(rows)[:, None]
        rows = rows / norms.where(norms > 0, 1.0)
    return assign(rows.cpu(), classes=classes, seed=0)


class GradientClusteringAttack(Attack):
    """An attack that puts the gradients of a batch into as many groups as there are classes; it needs only that number.

    It is measured by the accuracy under the best assignment of groups to classes. On a small batch even random groups
    are right in more than 1 / C of the rows. The null value is the accuracy of the same groups in random order.

    Parameters
    ----------
    directions
        True if it uses directions only, not lengths.
    """

    name: ClassVar[str] = "gradient_clustering"
    reads: ClassVar[Reads] = "clusters"

    def __init__(self, directions: bool = True) -> None:
        self.directions = truth(self.name, "directions", directions)

    def score(self, transcript: Transcript, layer: str, side: SideInformation = NOTHING) -> Tensor:
        """Return the groups of the layer's gradients in the last step, (B,)."""
        return groups(transcript.last.gradients[layer], classes=side.classes, directions=self.directions)
