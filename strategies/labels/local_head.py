"""Local heads: all that leaves the label party is computed from labels that were randomised once [PSLF]."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from flower_vfl.errors import ConfigError
from flower_vfl.nn.networks import network_of
from flower_vfl.nn.placement import Placement
from flower_vfl.parties.hooks import Cut, Log
from flower_vfl.parties.network import as_logits
from flower_vfl.protocol.schedule import Rows
from flower_vfl.strategies.base import Defense, Guarantee, HookedStrategy
from flower_vfl.strategies.labels.label_dp import epsilon_of, flip, label_dependent_ends, rate_of


class LocalHead(Defense):
    r"""Gradients of randomised labels alone for feature parties, and predictions by a head that sends none.

    Each feature party has a head of its own at the label party. It sees the embedding of this party and nothing else,
    and learns from labels :math:`\tilde y` that are drawn once, by randomised response. Its gradient is all that the
    party ever gets. The network that joins all embeddings and the label party's own columns learns from the true
    labels, on embeddings through which no gradient flows back. It makes the predictions.

    So everything that leaves in training is a function of :math:`\tilde y`, the embeddings and public numbers: it is
    label-private with this epsilon, for any number of epochs and whatever an attacker computes. A gradient also carries
    its head's prediction, and that tells a party no more than its own columns and :math:`\tilde y` do.

    This holds for one training on these labels; another one with a new secret costs its epsilon again. What depends on
    the true labels otherwise must not leave: early stopping, `max_leak` and `max_bound` are refused. Predictions that
    are served later, and metrics that are published, tell of true labels and are not covered.

    Parameters
    ----------
    strategy : HookedStrategy
        The wrapped strategy; no other defense, and none wraps it.
    epsilon : float
        The privacy of each label, above 0.

    References
    ----------
    Warner, *Randomized response*, 1965; Wang et al., *PSLF: Defending Against Label Leakage in Split Learning*, CIKM
    2023, for a private model beside the one that learns from flipped labels; docs/methods/local-head.md.
    """

    name: ClassVar[str] = "local_head"
    alone: ClassVar[bool] = True
    twice: ClassVar[str] = "give one epsilon"

    def __init__(self, strategy: HookedStrategy, epsilon: float = 1.0) -> None:
        super().__init__(strategy)
        self.flip = rate_of(epsilon, self.base.labels.classes, name=self.name)
        self.epsilon = float(epsilon)
        self._randomised: Tensor | None = None
        self._weights: Tensor | None = None
        self._rows: Rows | None = None
        self._local: dict[str, Tensor] = {}

    @property
    def params(self) -> dict[str, Any]:
        """The privacy."""
        return {"epsilon": self.epsilon}

    def begin(self) -> None:
        """Refuse what would end or change a training by the true labels.

        Raises
        ------
        ConfigError
            If a setting would do so; the message names the settings.
        """
        wanted = label_dependent_ends(self.base.config)
        if wanted:
            raise ConfigError(
                "local_head promises that nothing which leaves depends on true labels; the end of a training would: "
                f"set {' and '.join(wanted)}, and training.epochs to a number"
            )

    def guarantee(self) -> Guarantee | None:
        """Return the privacy of the randomised labels."""
        return Guarantee(self.epsilon)

    def build(self, cut: Cut, device: torch.device) -> None:
        """Make a head for each party, of the configuration's network, for its embedding alone."""
        config, classes = self.base.config, self.base.labels.classes
        for party, shape in cut.items():
            self.modules[party] = network_of(config.model).top(tuple(shape), classes, config.model)

    def prepare_labels(self, labels: Tensor) -> tuple[Tensor, Log]:
        """Draw the randomised labels; the true ones go on to the network that predicts.

        The draw derives from the label party's secret and the rate alone: a resumed training has the same labels.
        """
        classes = self.base.labels.classes
        generator = self.base.secret.generator("defense", self.name, repr(self.flip), device=str(labels.device))
        self._randomised = flip(labels, classes=classes, rate=self.flip, generator=generator).long()
        if self.base.config.training.class_weights == "balanced":
            counts = torch.bincount(self._randomised, minlength=classes).clamp(min=1)
            self._weights = len(labels) / (classes * counts.float())
        prepared, log = self.strategy.prepare_labels(labels)
        share = float((self._randomised != labels).double().mean())
        own = {"epsilon": epsilon_of(self.flip, classes), "flip": self.flip, "flipped": share}
        return prepared, {**log, **{f"{self.name}.{key}": value for key, value in own.items()}}

    def begin_batch(self, rows: Rows) -> None:
        """Take in the rows (B,) of the next batch."""
        self._rows, self._local = rows, {}

    def embed(self, z: Tensor, *, party: str = "", train: bool = True) -> tuple[Tensor, Log]:
        """Keep the embedding for the party's head; the network that predicts gets it without its graph."""
        inner, log = self.strategy.embed(z, party=party, train=train)
        if train:
            self._local[party or next(iter(self.modules))] = inner
        return inner.detach(), log

    def loss(self, logits: Tensor, labels: Tensor, z: Tensor) -> tuple[Tensor, Log]:
        """Add the losses of the parties' heads to that of the network that predicts.

        No weight is in both, so that each learns from its own labels.
        """
        inner, log = self.strategy.loss(logits, labels, z)
        if not self._local or self._rows is None or self._randomised is None:
            return inner, log
        drawn = self._randomised[torch.from_numpy(self._rows)].to(logits.device)
        placement = Placement.of(self.base.config)
        terms = [
            self._local_loss(as_logits(placement.forward(self.modules[party], part)), drawn)
            for party, part in self._local.items()
        ]
        added = torch.stack(terms).sum()
        return inner + added, {**log, f"{self.name}.term": added.item()}

    def _local_loss(self, logits: Tensor, drawn: Tensor) -> Tensor:
        weights = None if self._weights is None else self._weights.to(logits)
        if self.base.labels.classes > 2:
            return nn.functional.cross_entropy(logits, drawn, weight=weights)
        weight = None if weights is None else weights[drawn]
        return nn.functional.binary_cross_entropy_with_logits(logits, drawn.to(logits.dtype), weight=weight)

    def __repr__(self) -> str:
        return f"LocalHead(epsilon={self.epsilon:.6g})"
