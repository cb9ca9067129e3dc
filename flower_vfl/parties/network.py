"""The label party's part of the network: the cut, a model of its own columns, the fusion, the top model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import torch
from torch import Tensor, nn

from flower_vfl.data.store.source import FeatureSource
from flower_vfl.errors import ConfigError
from flower_vfl.nn.digest import weights_digest
from flower_vfl.nn.ensemble import EnsembleTop, mixture
from flower_vfl.nn.fusion import fuse
from flower_vfl.nn.placement import IN_MEMORY, Placement
from flower_vfl.parties.feature import set_mode
from flower_vfl.parties.hooks import Hooks
from flower_vfl.parties.loading import gather
from flower_vfl.protocol.schedule import Rows

NOTHING_LEARNED: Mapping[str, nn.Module] = MappingProxyType({})


class LabelModel:
    """The label party's part of the network: a model of its own columns, the fusion, the top model.

    Parameters
    ----------
    top : nn.Module
        Top model; takes the fused embedding, returns logits (B,) for two classes or (B, C).
    hooks : Hooks
        The defenses; their `embed`, which changes embeddings, belongs to the network.
    parties : Sequence[str]
        Feature parties, in the order in which their embeddings are joined.
    bottom : nn.Module, optional
        The model of the label party's own columns. Its embedding comes last; or, where it has the attribute
        ``adds_to_logits``, it gives logits, which are added to those of the top model.
    fusion : str
        "concat", "sum" or "mean".
    learned : Mapping[str, nn.Module]
        The defenses' trained modules, by defense: they belong to the network.
    placement : Placement
        Device and precision of the models.
    """

    def __init__(
        self,
        top: nn.Module,
        hooks: Hooks,
        parties: Sequence[str],
        *,
        bottom: nn.Module | None = None,
        fusion: str = "concat",
        learned: Mapping[str, nn.Module] = NOTHING_LEARNED,
        placement: Placement = IN_MEMORY,
    ) -> None:
        self.top, self.bottom, self.learned = top, bottom, learned
        self._hooks, self._parties, self._fusion, self._placement = hooks, tuple(parties), fusion, placement

    @torch.no_grad()
    def logits(self, embeddings: Mapping[str, Tensor], own: FeatureSource | None, rows: Rows) -> Tensor:
        """Return the logits of rows, (B,) or (B, C), from the network in evaluation mode.

        Parameters
        ----------
        embeddings : Mapping[str, Tensor]
            (B, ...) embedding of each feature party.
        own : FeatureSource, optional
            Source of the label party's own columns, if it has any.
        rows : Rows
            (B,) positions in `own`.
        """
        self._set_mode(train=False)
        parts = self._evaluated(embeddings)
        inputs = () if self.bottom is None or own is None else gather(own, rows, self._placement)
        own_parts = self._own(inputs, train=False)
        found = self._hooks.predict(side_by_side([*parts, *own_parts]))
        return self.join(parts, own_parts) if found is None else as_logits(found)

    def _evaluated(self, embeddings: Mapping[str, Tensor]) -> list[Tensor]:
        """Return the parties' embeddings (B, ...) as the defenses change them in an evaluation."""
        device = self._placement.device
        return [self._hooks.embed(embeddings[party].to(device), party=party, train=False)[0] for party in self._parties]

    def _set_mode(self, *, train: bool) -> None:
        for module in (self.top, *self.learned.values()):
            set_mode(module, train=train)

    def _own(self, inputs: Sequence[Tensor], *, train: bool) -> list[Tensor]:
        """Return the output of the model of the label party's own columns; empty without one."""
        if self.bottom is None or not inputs:
            return []
        set_mode(self.bottom, train=train)
        return [self._placement.forward(self.bottom, *inputs)]

    def join(self, parts: list[Tensor], own: list[Tensor], *, apart: bool = False) -> Tensor:
        """Return the network's logits; a single column (B, 1) counts as (B,).

        Parameters
        ----------
        parts : list of Tensor
            (B, ...) embedding of each feature party.
        own : list of Tensor
            The output of the model of the label party's own columns, if there is one.
        apart : bool
            True for the logits of each member where the top model is an `EnsembleTop`, (B, M) or (B, M, C): each learns
            from its own loss.

        Raises
        ------
        ConfigError
            When the own part gives logits of another shape than the top model.
        """
        if self.bottom is None or not adds_to_logits(self.bottom):
            return self._logits([*parts, *own], apart=apart)
        deep, wide = self._logits(parts, apart=apart), [as_logits(part) for part in own]
        if any(part.shape != deep.shape for part in wide):
            raise ConfigError(
                f"the label party's own model adds to the logits {tuple(deep.shape)}, but gives {tuple(wide[0].shape)}"
            )
        return sum(wide, deep)

    def _logits(self, parts: list[Tensor], *, apart: bool) -> Tensor:
        top = self.top.members if apart and isinstance(self.top, EnsembleTop) else self.top
        return as_logits(self._placement.forward(top, fuse(parts, self._fusion)))

    def mixed(self, logits: Tensor) -> Tensor:
        """Return the logits of the mean prediction of an ensemble's members; other logits are returned unchanged."""
        return mixture(logits) if isinstance(self.top, EnsembleTop) else logits

    @property
    def module(self) -> nn.ModuleDict:
        """All modules that the label party trains."""
        own = {} if self.bottom is None else {"bottom": self.bottom}
        learned = {"defenses": nn.ModuleDict(dict(self.learned))} if self.learned else {}
        return nn.ModuleDict({"top": self.top, **own, **learned})

    @property
    def weights(self) -> str:
        """The digest of the label party's weights."""
        return weights_digest(self.module)


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

    def slopes(self, logits: Tensor) -> Tensor | None:
        """Return each row's derivative of its logit (..., B) by all embeddings, (..., B, D); the graph is kept.

        None where logits do not depend on the embeddings: a defense's private network predicts from detached ones.
        Dividing gradients by p1 - y would give the same, except for a weighted loss, clipped gradients and residuals
        that vanish.
        """
        return torch.autograd.grad(logits.sum(), self.leaf, retain_graph=True, allow_unused=True)[0]

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


def side_by_side(parts: Sequence[Tensor]) -> Tensor:
    """Return embeddings (B, ...) side by side, (B, D), without their graph; logits (B,) are a column."""
    found = [part.detach() for part in parts]
    return torch.cat([part.flatten(1) if part.dim() > 1 else part[:, None] for part in found], dim=1)


def adds_to_logits(own: nn.Module) -> bool:
    """Return True if a model of the label party's own columns returns logits rather than an embedding."""
    return bool(getattr(own, "adds_to_logits", False))


def as_logits(found: Tensor) -> Tensor:
    """Return the output of a top model as logits: a single column (B, 1) counts as (B,)."""
    return found.squeeze(1) if found.dim() == 2 and found.shape[1] == 1 else found
