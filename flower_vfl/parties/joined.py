"""The embeddings of one step, joined across parties, for one run or for many, and the loss's gradients by them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor


class JoinedEmbeddings:
    """The embeddings of all feature parties in one step, as parts of one leaf of the graph.

    The gradients of all parties are then in one tensor, and their embeddings need not be copied side by side again.

    Parameters
    ----------
    embeddings : Mapping[str, Tensor]
        Embedding of each feature party, (B, ...), or (R, B, ...) for R runs.
    labels : Tensor
        (B,) or (R, B) labels of these rows.

    Attributes
    ----------
    leaf : Tensor
        (..., B, D) embeddings of all feature parties side by side.
    parts : dict of str to Tensor
        Each party's embedding, (..., B, ...), as a view of `leaf`.
    widths : dict of str to int
        Number of values of each party in `leaf`; their sum is D.
    """

    def __init__(self, embeddings: Mapping[str, Tensor], labels: Tensor) -> None:
        self._shapes = {party: embedding.shape for party, embedding in embeddings.items()}
        self.widths = {party: shape[labels.dim() :].numel() for party, shape in self._shapes.items()}
        self.leaf = joined([embedding.detach() for embedding in embeddings.values()], labels).requires_grad_()
        self.parts = self._parts(self.leaf)

    def slopes(self, logits: Tensor) -> Tensor:
        """Return each row's derivative of its logit (..., B) by all embeddings, (..., B, D); the graph is kept.

        Dividing gradients by p1 - y would give the same, except for a weighted loss, clipped gradients and residuals
        that vanish.
        """
        return torch.autograd.grad(logits.sum(), self.leaf, retain_graph=True, materialize_grads=True)[0]

    def backward(self, loss: Tensor, *, keep_graph: bool = False) -> Tensor:
        """Compute the gradients of a scalar loss by all weights and embeddings, and return the latter, (..., B, D)."""
        torch.autograd.backward(loss, retain_graph=keep_graph)
        return torch.zeros_like(self.leaf) if self.leaf.grad is None else self.leaf.grad

    def split(self, joint: Tensor) -> dict[str, Tensor]:
        """Split (..., B, D) into each party's gradient, in the shape of its embedding."""
        return {party: part.contiguous() for party, part in self._parts(joint).items()}

    def _parts(self, joint: Tensor) -> dict[str, Tensor]:
        if len(self.widths) == 1:
            pieces: Sequence[Tensor] = [joint]
        else:
            pieces = torch.split(joint, list(self.widths.values()), dim=-1) if self.widths else []
        return {party: piece.reshape(shape) for (party, shape), piece in zip(self._shapes.items(), pieces, strict=True)}


def joined(parts: Sequence[Tensor], labels: Tensor) -> Tensor:
    """Return embeddings (..., B, ...) side by side, (..., B, D), for rows with these labels (..., B)."""
    if len(parts) > 1:
        return torch.cat([part.flatten(labels.dim()) for part in parts], dim=-1)
    return parts[0].flatten(labels.dim()) if parts else labels.new_zeros(*labels.shape, 0, dtype=torch.float32)
