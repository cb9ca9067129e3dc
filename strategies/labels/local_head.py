"""Local heads: all that leaves the label party is computed from labels that were randomised once [PSLF]."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from flower_vfl.accounting import Guarantee
from flower_vfl.errors import ConfigError, suggestion
from flower_vfl.nn.networks import network_of
from flower_vfl.nn.placement import Placement
from flower_vfl.parties.hooks import Cut, Log
from flower_vfl.parties.network import as_logits
from flower_vfl.protocol.schedule import Rows
from flower_vfl.strategies.base import Defense, HookedStrategy
from flower_vfl.strategies.labels.checks import check_task
from flower_vfl.strategies.labels.label_dp import label_dependent_ends, rate_of
from flower_vfl.strategies.labels.mechanisms import LABEL_MECHANISMS, FlippedLabels

LARGEST_EMBEDDING = 1e6
"""Larger numbers are cut off before the network that learns from true labels."""


class LocalHead(Defense):
    """Gradients of randomised labels alone for feature parties, and predictions by a network that sends none.

    Each feature party has a head of its own at the label party. Its input is the embedding of this party alone, and it
    learns from randomised labels: each label is randomised once. Its gradient is all that the party receives. The
    network that joins all embeddings and the label party's own columns learns from the true labels, on embeddings
    through which no gradient flows back. It makes the predictions.

    So everything that leaves in training is a function of the randomised labels, the embeddings and public numbers: it
    is label-private with this epsilon, for any number of epochs and whatever an attacker computes. A gradient also
    carries its head's prediction, and that reveals no more to a party than its own columns and the randomised labels.

    This holds for one training on these labels; another one with a new secret costs its epsilon again. Nothing
    else that depends on true labels may be sent: early stopping, `max_leak` and `max_bound` are refused. Predictions
    that are served later, and metrics that are published, depend on true labels and are not covered.

    Parameters
    ----------
    strategy : HookedStrategy
        The wrapped strategy; no other defense, and none wraps it.
    epsilon : float
        Privacy parameter of each label, above 0.
    mechanism : str
        Randomisation of labels: "randomised_response" flips them; "laplace" adds noise to targets; "alibi" and
        "posterior" learn from the probabilities of true labels that noisy targets, or flipped labels, give; "prior"
        draws half of the labels with the head's predictions as prior, for one feature party.

    References
    ----------
    Wang et al., *PSLF: Defending Against Label Leakage in Split Learning*, CIKM 2023, for a
    private model beside the one that learns from flipped labels; docs/methods/local-head.md.
    """

    name: ClassVar[str] = "local_head"
    alone: ClassVar[bool] = True
    twice: ClassVar[str] = "give one epsilon"

    def __init__(self, strategy: HookedStrategy, epsilon: float = 1.0, mechanism: str = FlippedLabels.name) -> None:
        super().__init__(strategy)
        classes = self.base.labels.classes
        rate_of(epsilon, classes, name=self.name)
        if mechanism not in LABEL_MECHANISMS:
            raise ConfigError(
                f"local_head: mechanism {mechanism!r} is not known; {suggestion(str(mechanism), LABEL_MECHANISMS)}"
            )
        self.epsilon = float(epsilon)
        self._mechanism = LABEL_MECHANISMS[mechanism](self.epsilon, classes)
        self._rows: Rows | None = None
        self._local: dict[str, Tensor] = {}

    @property
    def params(self) -> dict[str, Any]:
        """The epsilon, and the name of the mechanism that randomises labels."""
        return {"epsilon": self.epsilon, "mechanism": self._mechanism.name}

    def begin(self) -> None:
        """Refuse settings that end or change a training by true labels, and labels from which nothing can be learned.

        Raises
        ------
        ConfigError
            When a setting would do so, which the message names; for labels of one class, a class without a prior where
            the mechanism needs one, and an epsilon that leaves nothing of the labels.
        """
        required = label_dependent_ends(self.base.config)
        if required:
            raise ConfigError(
                "local_head promises that nothing which leaves depends on true labels; the end of a training would: "
                f"set {' and '.join(required)}, and training.epochs to a number"
            )
        self._mechanism.begin(self.base.config, len(self.base.parties))
        check_task(self.base, self.name, self.epsilon, every_class=self._mechanism.every_class)

    def guarantee(self) -> Guarantee | None:
        """Return the proven privacy of the randomised labels."""
        return Guarantee(self.epsilon, release=self._mechanism.release)

    @property
    def counts_steps(self) -> bool:
        """True while its labels are not all drawn."""
        return self._mechanism.counts_steps

    def build(self, cut: Cut, device: torch.device) -> None:
        """Make a head for each party, of the configuration's network, for its embedding alone."""
        config, classes = self.base.config, self.base.labels.classes
        for party, shape in cut.items():
            self.modules[party] = network_of(config.model).top(tuple(shape), classes, config.model)

    def prepare_labels(self, labels: Tensor) -> tuple[Tensor, Log]:
        """Randomise labels for the heads; the true ones go on to the network that predicts.

        The draw derives from the label party's secret, the mechanism, the rows and their labels: a resumed training has
        the same.
        """
        own = self._mechanism.draw(labels, self.keystream(labels, *self._mechanism.purpose()))
        prepared, log = self.strategy.prepare_labels(labels)
        return prepared, {**log, **{f"{self.name}.{key}": value for key, value in own.items()}}

    def begin_batch(self, rows: Rows) -> None:
        """Record the rows (B,) of the next batch."""
        self._rows, self._local = rows, {}

    def embed(self, z: Tensor, *, party: str = "", train: bool = True) -> tuple[Tensor, Log]:
        """Keep the embedding for the party's head; the network that predicts gets it without its graph.

        It gets no number above `LARGEST_EMBEDDING`: with huge ones a party could let the loss of a true label, and of
        no other, overflow, and see by the end of training which label it was.
        """
        inner, log = self.strategy.embed(z, party=party, train=train)
        if train:
            self._local[party or next(iter(self.modules))] = inner
        return inner.detach().clamp(-LARGEST_EMBEDDING, LARGEST_EMBEDDING), log

    def loss(self, logits: Tensor, labels: Tensor, z: Tensor) -> tuple[Tensor, Log]:
        """Add the losses of the parties' heads to that of the network that predicts.

        No weight is in both, so that each learns from its own labels.
        """
        inner, log = self.strategy.loss(logits, labels, z)
        if not self._local or self._rows is None:
            return inner, log
        rows, placement = torch.from_numpy(self._rows), Placement.of(self.base.config)
        terms = [
            self._mechanism.loss(as_logits(placement.forward(self.modules[party], part)), rows)
            for party, part in self._local.items()
        ]
        added = torch.stack(terms).sum()
        return inner + added, {**log, f"{self.name}.term": added.item()}

    def end_batch(self) -> Log:
        """Drop the embeddings of the batch."""
        self._local = {}
        return {}

    def end_epoch(self) -> Log:
        """Let the mechanism end an epoch."""
        self._mechanism.end_epoch()
        return {}

    def state(self) -> dict[str, Any]:
        """Return the state that a resumed run needs."""
        return {**super().state(), "mechanism": self._mechanism.state()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore a state that `state` returned."""
        super().restore(state)
        self._mechanism.restore(state["mechanism"])
