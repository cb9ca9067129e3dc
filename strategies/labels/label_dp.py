"""Randomised response: the label party trains on labels some of which were flipped once [Z23 section 5]."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch
from torch import Tensor

from flower_vfl.accounting import Guarantee, RandomisedResponse, Release
from flower_vfl.config import Config
from flower_vfl.errors import ConfigError
from flower_vfl.parties.hooks import Log
from flower_vfl.rng import Keystream
from flower_vfl.strategies.base import Defense, HookedStrategy
from flower_vfl.strategies.gradients.checks import is_real
from flower_vfl.strategies.labels.checks import check_task

_DEFAULT_FLIP = 0.02


def flip(labels: Tensor, *, classes: int, rate: float, draws: Keystream) -> Tensor:
    """Keep each label with probability 1 - rate, else replace it by one of the others, each as likely.

    The result, and everything computed from it, reveals about one label at most the `epsilon_of` the rate (label
    differential privacy). Draw once: an attacker averages over repeated draws.

    Parameters
    ----------
    labels : Tensor
        (N,) whole numbers from 0 to classes - 1, or bool.
    classes : int
        Number of classes C, at least 2.
    rate : float
        Probability of a replacement, at least 0 and below (C - 1) / C, at which the result is independent of labels.
    draws : Keystream
        Source of the random numbers.

    Returns
    -------
    Tensor
        (N,) in the number format of `labels`.

    Raises
    ------
    ConfigError
        For a rate out of range, fewer than two classes, and labels that are none of the classes.

    References
    ----------
    Warner, *Randomized response*, 1965; Ghazi et al., *Deep learning with label differential privacy*, 2021, for more
    than two classes.

    Examples
    --------
    >>> y = torch.tensor([0, 1, 2, 0, 1, 2])
    >>> flip(y, classes=3, rate=0.5, draws=Keystream(bytes(32))).tolist()
    [0, 1, 2, 0, 2, 0]
    """
    _check_rate(rate, classes)
    whole = check_labels(labels, classes)
    drawn, other = torch.from_numpy(draws.uniform(2, *whole.shape)).to(whole.device)
    steps = 1 + (other * (classes - 1)).long()
    return torch.where(drawn < rate, (whole + steps) % classes, whole).to(labels.dtype)


def check_labels(labels: Tensor, classes: int) -> Tensor:
    """Return labels (N,) as whole numbers.

    Raises
    ------
    ConfigError
        For labels that are none of the classes.
    """
    if labels.is_floating_point() or labels.is_complex():
        raise ConfigError(f"label_dp: labels must be whole numbers, given {labels.dtype}")
    whole = labels.long()
    low, high = (int(whole.min()), int(whole.max())) if whole.numel() else (0, 0)
    if low < 0 or high >= classes:
        raise ConfigError(f"label_dp: labels of {classes} classes are 0 to {classes - 1}, given {low} to {high}")
    return whole


def epsilon_of(rate: float, classes: int) -> float:
    """Return the label privacy that flips of this rate give: ln((1 - rate) (C - 1) / rate); inf for a rate of 0.

    Examples
    --------
    >>> round(epsilon_of(0.02, 2), 4)
    3.8918
    """
    _check_rate(rate, classes)
    return math.log((1.0 - rate) * (classes - 1) / rate) if rate > 0.0 else math.inf


def rate_of(epsilon: float, classes: int, *, name: str = "label_dp") -> float:
    """Return the rate of flips that gives this label privacy: (C - 1) / (e^epsilon + C - 1).

    Examples
    --------
    >>> round(rate_of(3.8918, 2), 4)
    0.02
    """
    if not is_real(epsilon) or not 0.0 < epsilon < math.inf:
        raise ConfigError(
            f"{name}: epsilon must be a finite number above 0, given {epsilon!r}; 0 would leave nothing of the labels"
        )
    _check_rate(0.0, classes)
    others = (classes - 1) * math.exp(-epsilon)
    return others / (1.0 + others)


def label_dependent_ends(config: Config) -> list[str]:
    """Return the required values of settings that now end or change a training by true labels."""
    training, attack = config.training, config.attack
    broken = {
        "training.patience = 0": training.patience > 0,
        "attack.max_leak = 1.0": attack.max_leak < 1.0 and attack.on_leak == "stop",
        "attack.max_bound = 1.0": attack.max_bound < 1.0 and attack.on_leak == "stop",
    }
    return [setting for setting, is_broken in broken.items() if is_broken]


def _check_rate(rate: float, classes: int) -> None:
    if classes < 2:
        raise ConfigError(f"label_dp: two classes at least are needed, given {classes}")
    if not is_real(rate) or not 0.0 <= rate < (classes - 1) / classes:
        raise ConfigError(
            f"label_dp: flip must be at least 0 and below {(classes - 1) / classes:.4g} for {classes} classes, given "
            f"{rate!r}; at that rate nothing is left of the labels"
        )


class LabelDP(Defense):
    """Label differential privacy: training on labels that were flipped at random once, before training.

    Whatever the training sends, in this and every later epoch, is computed from the flipped labels. It thus protects
    single labels against every attack of every party, up to epsilon, but no statistics of many labels: embeddings and
    cut gradients still separate the classes. The draw derives from the label party's secret, the rate, the rows and
    their labels, so that a resumed training flips the same labels. Every other draw on the same labels, with a new
    secret or another rate, costs its epsilon again.

    Parameters
    ----------
    strategy : HookedStrategy
        The wrapped strategy.
    flip : float, optional
        Probability that a label is replaced, at least 0 and below (C - 1) / C.
    epsilon : float, optional
        Privacy parameter instead of the flip, above 0. With neither, flip = 0.02.

    References
    ----------
    Zheng et al., *Protecting Split Learning by Potential Energy Loss*, section 5.
    """

    name: ClassVar[str] = "label_dp"
    twice: ClassVar[str] = "two flips are one at a higher rate, whose epsilon neither of them states; give that rate"

    def __init__(self, strategy: HookedStrategy, flip: float | None = None, epsilon: float | None = None) -> None:
        super().__init__(strategy)
        if flip is not None and epsilon is not None:
            raise ConfigError(f"label_dp: give flip or epsilon, not both; given flip={flip!r}, epsilon={epsilon!r}")
        classes = self.base.labels.classes
        if epsilon is not None:
            self.flip = rate_of(epsilon, classes)
            self.epsilon = float(epsilon)
        else:
            rate = _DEFAULT_FLIP if flip is None else flip
            self.epsilon = epsilon_of(rate, classes)
            self.flip = float(rate)
        self._given = "flip" if epsilon is None else "epsilon"

    @property
    def params(self) -> dict[str, Any]:
        """The strength as it was given."""
        return {self._given: getattr(self, self._given)}

    def begin(self) -> None:
        """Refuse labels of one class, and flips that leave nothing of the labels.

        Raises
        ------
        ConfigError
            When the labels are such; the message gives the reason and the remedy.
        """
        check_task(self.base, self.name, self.epsilon)

    def guarantee(self) -> Guarantee | None:
        """Return the proven privacy of the flips; None if nothing is flipped, or true labels can end the training."""
        if self.epsilon == math.inf or label_dependent_ends(self.base.config):
            return None
        response = RandomisedResponse(self.epsilon, self.base.labels.classes)
        return Guarantee(self.epsilon, release=Release(response, kept=True))

    def prepare_labels(self, labels: Tensor) -> tuple[Tensor, Log]:
        """Flip, then let the inner strategy prepare: it receives no true label, for class weights neither."""
        draws = self.keystream(labels, repr(self.flip))
        flipped = flip(labels, classes=self.base.labels.classes, rate=self.flip, draws=draws)
        prepared, log = self.strategy.prepare_labels(flipped)
        share = float((flipped != labels).double().mean())
        own = {"epsilon": self.epsilon, "flip": self.flip, "flipped": share}
        return prepared, {**log, **{f"{self.name}.{key}": value for key, value in own.items()}}

    def __repr__(self) -> str:
        return f"LabelDP(flip={self.flip:.6g}, epsilon={self.epsilon:.6g})"
