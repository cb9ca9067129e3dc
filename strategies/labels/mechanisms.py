"""Randomised labels and targets, from which the heads of `local_head` learn."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from flower_vfl import accounting
from flower_vfl.accounting import Bounded, Release
from flower_vfl.config import Config
from flower_vfl.errors import ConfigError
from flower_vfl.parties.hooks import Log
from flower_vfl.rng import Keystream
from flower_vfl.strategies.labels.label_dp import flip, rate_of
from flower_vfl.strategies.labels.noisy_targets import (
    evidence_of_answers,
    evidence_of_targets,
    noisy_targets,
    posterior,
)
from flower_vfl.strategies.labels.with_prior import with_prior, without_flips
from flower_vfl.strategies.vertical import balanced_weights, label_loss


class LabelMechanism(ABC):
    """A randomisation of labels: the draw, and the loss of a head on its result.

    A subclass uses labels in `draw` and in `end_epoch` only, each of them once, under epsilon. Everything else that it
    computes is a function of the draw, of embeddings and of public numbers: it costs no further privacy.

    Parameters
    ----------
    epsilon : float
        Privacy parameter of each label, above 0.
    classes : int
        Number of classes C.

    Attributes
    ----------
    name
        Its name in configurations.
    every_class
        True if it uses the frequencies of classes among labels: each class needs a row.
    """

    name: ClassVar[str]
    every_class: ClassVar[bool] = False

    def __init__(self, epsilon: float, classes: int) -> None:
        self.epsilon, self.classes = epsilon, classes

    @property
    def release(self) -> Release:
        """The release of each label by the mechanism, for an account over several trainings."""
        return Release(Bounded(self.epsilon), kept=True)

    @property
    def counts_steps(self) -> bool:
        """True if a step that is repeated now could change a later draw of labels."""
        return False

    def purpose(self) -> tuple[str, ...]:
        """Return the purpose from which the draw derives, beside the label party's secret."""
        return (self.name, repr(self.epsilon))

    def begin(self, config: Config, parties: int) -> None:
        """Check a configuration and the number of feature parties, before labels are drawn.

        Raises
        ------
        ConfigError
            When the mechanism does not work as documented in this configuration; the message gives the reason and the
            remedy.
        """
        if config.training.class_weights != "none":
            raise ConfigError(
                f"local_head: mechanism {self.name!r} does not go with training.class_weights = "
                f"{config.training.class_weights!r}: weights are counted from randomised labels, and it has none to "
                'count; set it to "none", or take mechanism="randomised_response"'
            )

    @abstractmethod
    def draw(self, labels: Tensor, draws: Keystream) -> Log:
        """Draw the heads' targets once for labels (N,), and return the log entries."""

    @abstractmethod
    def loss(self, logits: Tensor, rows: Tensor) -> Tensor:
        """Return the loss of a head with logits (B,) or (B, C) for these rows (B,)."""

    def end_epoch(self) -> None:  # noqa: B027 - most mechanisms have no stages
        """End an epoch, in which all rows occurred once more."""

    def state(self) -> dict[str, Any]:
        """Return the state that a resumed run needs beside the draw, as plain values and tensors."""
        return {}

    def restore(self, state: Mapping[str, Any]) -> None:  # noqa: B027 - most mechanisms keep nothing
        """Restore a state that `state` returned; `draw` was called before."""


class FlippedLabels(LabelMechanism):
    """Labels that are kept with probability e^epsilon / (e^epsilon + C - 1), else become another class.

    References
    ----------
    Warner, *Randomized response*, 1965.
    """

    name: ClassVar[str] = "randomised_response"

    def __init__(self, epsilon: float, classes: int) -> None:
        super().__init__(epsilon, classes)
        self.rate = rate_of(epsilon, classes, name="local_head")
        self.balanced = False
        self._drawn = torch.empty(0, dtype=torch.int64)
        self._weights: Tensor | None = None

    @property
    def release(self) -> Release:
        """Randomised response, once."""
        return Release(accounting.RandomisedResponse(self.epsilon, self.classes), kept=True)

    def purpose(self) -> tuple[str, ...]:
        """Return the rate, from which all draws of randomised response derive."""
        return (repr(self.rate),)

    def begin(self, config: Config, parties: int) -> None:
        """Read from the configuration whether classes are weighted."""
        self.balanced = config.training.class_weights == "balanced"

    def draw(self, labels: Tensor, draws: Keystream) -> Log:
        """Flip labels, and count classes among the flipped ones."""
        self._drawn = flip(labels, classes=self.classes, rate=self.rate, draws=draws).long()
        if self.balanced:
            self._weights = balanced_weights(self._drawn, self.classes)
        flipped = float((self._drawn != labels).double().mean())
        return {"epsilon": self.epsilon, "flip": self.rate, "flipped": flipped}

    def loss(self, logits: Tensor, rows: Tensor) -> Tensor:
        """Return the cross-entropy with the flipped labels."""
        return label_loss(logits, self._drawn[rows].to(logits.device), self._weights)


class Likelihood(LabelMechanism):
    """Targets that are the probabilities of labels, given the draw and the head's own prediction.

    A head with these targets predicts true labels rather than randomised ones, by maximum likelihood (`posterior`). Its
    first predictions are the class frequencies by the draw: from uniform ones, it would learn rare classes slowly.
    """

    every_class: ClassVar[bool] = True

    def __init__(self, epsilon: float, classes: int) -> None:
        super().__init__(epsilon, classes)
        self._evidence = self._start = torch.empty(0)

    def take(self, evidence: Tensor, frequencies: Tensor) -> None:
        """Store the evidence of each row, and the frequencies (C,) of classes that follow from the draw."""
        least = 1.0 / max(1, len(evidence))
        logs = frequencies.clamp(min=least).log().float()
        self._evidence, self._start = evidence, logs[1] - logs[0] if self.classes == 2 else logs

    def loss(self, logits: Tensor, rows: Tensor) -> Tensor:
        """Return the cross-entropy with the probabilities of true labels."""
        started = logits + self._start.to(logits)
        return target_loss(started, posterior(started, self._evidence[rows].to(logits.device)))


class Posterior(Likelihood):
    """Targets that are the probabilities of labels, given flipped labels and the head's own prediction.

    References
    ----------
    Patrini et al., *Making deep neural networks robust to label noise: a loss correction approach*, CVPR 2017.
    """

    name: ClassVar[str] = "posterior"

    @property
    def release(self) -> Release:
        """Randomised response, once."""
        return Release(accounting.RandomisedResponse(self.epsilon, self.classes), kept=True)

    def draw(self, labels: Tensor, draws: Keystream) -> Log:
        """Flip labels."""
        rate = rate_of(self.epsilon, self.classes, name="local_head")
        drawn = flip(labels, classes=self.classes, rate=rate, draws=draws).long()
        answered = torch.bincount(drawn, minlength=self.classes) / max(1, len(drawn))
        evidence = evidence_of_answers(drawn, classes=self.classes, epsilon=self.epsilon)
        self.take(evidence, without_flips(answered[None], rate=rate)[0])
        return {"epsilon": self.epsilon, "flip": rate, "flipped": float((drawn != labels).double().mean())}


class LaplaceTargets(LabelMechanism):
    """Targets with noise that is drawn once: on average over the noise, gradients are those of true labels.

    The loss has no lower bound, since a target can be below 0 or above 1: a head that overfits makes it ever smaller.

    References
    ----------
    Yang et al., *Differentially private label protection in split learning*, 2022.
    """

    name: ClassVar[str] = "laplace"

    def __init__(self, epsilon: float, classes: int) -> None:
        super().__init__(epsilon, classes)
        self._targets = torch.empty(0)

    def draw(self, labels: Tensor, draws: Keystream) -> Log:
        """Add noise to the targets."""
        self._targets = noisy_targets(labels, classes=self.classes, epsilon=self.epsilon, draws=draws)
        return {"epsilon": self.epsilon}

    def loss(self, logits: Tensor, rows: Tensor) -> Tensor:
        """Return the cross-entropy with the noisy targets."""
        return target_loss(logits, self._targets[rows].to(logits.device))


class Alibi(Likelihood):
    """Targets that are the probabilities of labels, given targets as in `LaplaceTargets` and the head's own prediction.

    References
    ----------
    Malek et al., *Antipodes of label differential privacy: PATE and ALIBI*, NeurIPS 2021.
    """

    name: ClassVar[str] = "alibi"

    def draw(self, labels: Tensor, draws: Keystream) -> Log:
        """Add noise to the targets."""
        targets = noisy_targets(labels, classes=self.classes, epsilon=self.epsilon, draws=draws)
        mean = targets.mean(dim=0)
        self.take(
            evidence_of_targets(targets, epsilon=self.epsilon),
            torch.stack([1.0 - mean, mean]) if self.classes == 2 else mean,
        )
        return {"epsilon": self.epsilon}


class Prior(LabelMechanism):
    """Labels drawn in two stages, the second with the head of the first as prior (LP-2ST).

    In the first half of the epochs a half of the rows has flipped labels; the head learns from these alone. Its
    predictions for the other rows in the last of these epochs are their prior, after a correction for the flips. At the
    end of that epoch all their labels are drawn at once (`with_prior`), so that no repeated step can draw one again: a
    restored state has them, or is from before the draw. The split into halves does not depend on labels.

    The draw of a label depends on the prediction of its row. So only one feature party is allowed: with several, the
    draw would reveal information on the others' columns to each of them.

    References
    ----------
    Ghazi et al., *Deep learning with label differential privacy*, NeurIPS 2021, Algorithm 4, with two stages; without
    its mixup, temperature, and new training of the second stage.
    """

    name: ClassVar[str] = "prior"
    every_class: ClassVar[bool] = True

    @property
    def release(self) -> Release:
        """A draw that depends on the head's predictions: another training draws other labels."""
        return Release(Bounded(self.epsilon))

    def __init__(self, epsilon: float, classes: int) -> None:
        super().__init__(epsilon, classes)
        self.rate = rate_of(epsilon, classes, name="local_head")
        self._draws: Keystream | None = None
        self._labels = self._drawn = torch.empty(0, dtype=torch.int64)
        self._prior = torch.empty(0, classes)
        self._second: Tensor | None = None
        self._first_stage_left = 0

    @property
    def counts_steps(self) -> bool:
        """True until the labels of the second stage are drawn, which depend on predictions."""
        return self._first_stage_left > 0 and self._second is None

    def begin(self, config: Config, parties: int) -> None:
        """Set the length of the first stage; refuse a run without a second one, and several feature parties."""
        super().begin(config, parties)
        training = config.training
        if parties > 1:
            raise ConfigError(
                f"local_head: mechanism 'prior' is for one feature party, given {parties}: a label drawn by what one "
                "party's head predicts would tell the others what its columns say; take "
                'mechanism="randomised_response"'
            )
        if training.epochs < 2:
            raise ConfigError(
                "local_head: mechanism 'prior' draws half of the labels after half of the epochs; given "
                f"{training.epochs}, set training.epochs to 2 or more"
            )
        self._first_stage_left = training.epochs // 2

    def draw(self, labels: Tensor, draws: Keystream) -> Log:
        """Choose the rows of the first stage, and flip their labels."""
        first = torch.from_numpy(draws.uniform(len(labels))).to(labels.device) < 0.5
        flipped = flip(labels, classes=self.classes, rate=self.rate, draws=draws).long()
        self._labels, self._draws, self._second = labels, draws, None
        self._drawn = torch.where(first, flipped, _UNDRAWN)
        self._prior = torch.full((len(labels), self.classes), 1.0 / self.classes, device=labels.device)
        return {"epsilon": self.epsilon, "flip": self.rate, "first_stage": float(first.double().mean())}

    def loss(self, logits: Tensor, rows: Tensor) -> Tensor:
        """Return the cross-entropy with the labels drawn so far; record the predictions for the prior."""
        drawn = self._drawn[rows]
        if self._first_stage_left == 1:
            self._prior[rows] = self._predicted(logits).to(self._prior)
        known = (drawn != _UNDRAWN).to(logits.device)
        if not bool(known.any()):
            return logits.sum() * 0.0
        return label_loss(logits[known], drawn.to(logits.device)[known])

    def _predicted(self, logits: Tensor) -> Tensor:
        """Return the probabilities (B, C) of true labels by the logits of a head that learns flipped ones."""
        values = logits.detach().double()
        two = torch.stack([-values / 2.0, values / 2.0], dim=1) if values.dim() == 1 else values
        return without_flips(torch.softmax(two, dim=1), rate=self.rate)

    def end_epoch(self) -> None:
        """Draw the labels of the second stage after the last epoch of the first."""
        self._first_stage_left -= 1
        if self._first_stage_left or self._draws is None:
            return
        undrawn = self._drawn == _UNDRAWN
        # Once, also where all parties are restored to a step before: epsilon is that of one draw.
        if self._second is None:
            prior = self._prior[undrawn]
            draws = self._draws.of(prior.cpu().numpy().tobytes())  # another training with this secret has another prior
            self._second = with_prior(self._labels[undrawn], prior, epsilon=self.epsilon, draws=draws)
        self._drawn = self._drawn.masked_scatter(undrawn, self._second.long())

    def state(self) -> dict[str, Any]:
        """Return the labels drawn so far, the predictions for the others, and the epochs left of the first stage."""
        return {"drawn": self._drawn.clone(), "prior": self._prior.clone(), "left": self._first_stage_left}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore a state that `state` returned."""
        self._drawn, self._prior, self._first_stage_left = state["drawn"].clone(), state["prior"].clone(), state["left"]


_UNDRAWN = -1
"""Placeholder of a label that was not drawn yet."""

LABEL_MECHANISMS: dict[str, type[LabelMechanism]] = {
    cls.name: cls for cls in (FlippedLabels, LaplaceTargets, Alibi, Posterior, Prior)
}
"""Mechanisms by the name that a configuration uses."""


def target_loss(logits: Tensor, targets: Tensor) -> Tensor:
    r"""Return the mean over rows of :math:`-\sum_c t_c \log p_c`, for any numbers as targets.

    Parameters
    ----------
    logits, targets : Tensor
        (B,) for two classes, where the target is that of class 1 and the other's is 1 - t; or (B, C).
    """
    if logits.dim() > 1:
        return -(targets * torch.log_softmax(logits, dim=1)).sum(dim=1).mean()
    return nn.functional.binary_cross_entropy_with_logits(logits, targets)
