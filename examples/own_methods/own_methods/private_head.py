"""A private head: gradients that leave are of labels randomised once, and a head that sends nothing predicts."""

from __future__ import annotations

from collections.abc import Mapping
from math import exp, prod
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from flower_vfl.accounting import RandomisedResponse, Release
from flower_vfl.errors import ConfigError
from flower_vfl.rng import Keystream
from flower_vfl.strategies import Defense, Guarantee, HookedStrategy

WIDTH = 32


def randomised(labels: Tensor, *, epsilon: float, draws: Keystream) -> Tensor:
    r"""Return labels (N,) of 0 and 1, each kept with probability :math:`e^\varepsilon / (1 + e^\varepsilon)`."""
    drawn = torch.from_numpy(draws.uniform(len(labels))).to(labels.device)
    kept = drawn < 1.0 / (1.0 + exp(-epsilon))
    return torch.where(kept, labels, 1 - labels)


class PrivateHead(Defense):
    """Lets feature parties learn from randomised labels, and predicts by a head that learns from the true ones.

    The shared top model is trained on labels that are randomised once. Its gradients leave. A small network of all
    embeddings learns from the true labels by `private_loss`, and no gradient of it leaves.

    Parameters
    ----------
    strategy : HookedStrategy
        The wrapped strategy.
    epsilon : float
        The privacy of each label, above 0.
    """

    name: ClassVar[str] = "private_head"
    two_classes_only: ClassVar[bool] = True
    alone: ClassVar[bool] = True  # another defense might compute from true labels

    def __init__(self, strategy: HookedStrategy, epsilon: float = 1.0) -> None:
        super().__init__(strategy)
        if isinstance(epsilon, bool) or not isinstance(epsilon, int | float) or not 0.0 < epsilon < float("inf"):
            raise ConfigError(f"private_head: epsilon must be a finite number above 0, given {epsilon!r}")
        self.epsilon = epsilon

    @property
    def params(self) -> dict[str, Any]:
        """The privacy of a label."""
        return {"epsilon": self.epsilon}

    def begin(self) -> None:
        """Refuse what would end a training by the true labels."""
        training, attack = self.base.config.training, self.base.config.attack
        if training.patience or attack.max_leak < 1.0 or attack.max_bound < 1.0:
            raise ConfigError("private_head: set training.patience to 0, attack.max_leak and attack.max_bound to 1")

    def guarantee(self) -> Guarantee:
        """Return the privacy of labels that are randomised once, for the ledger and the report."""
        return Guarantee(self.epsilon, release=Release(RandomisedResponse(self.epsilon, 2), kept=True))

    def prepare_labels(self, labels: Tensor) -> tuple[Tensor, dict[str, float]]:
        """Randomise each label once; the same secret draws the same again, so that a resumed run asks for none."""
        drawn = randomised(labels, epsilon=self.epsilon, draws=self.keystream(labels, repr(self.epsilon)))
        return self.strategy.prepare_labels(drawn)

    def build(self, cut: Mapping[str, tuple[int, ...]], device: torch.device) -> None:
        """Make the private head, for all parties' embeddings; that of the label party's own columns comes last."""
        own = 0 if self.base.bottom is None else self.base.config.model.cut
        joined = sum(map(prod, cut.values())) + own
        self.modules["head"] = nn.Sequential(nn.Linear(joined, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 1))

    def private_loss(self, z: Tensor, true_labels: Tensor, rows: Any) -> Tensor:
        """Return the cross-entropy of the private head with the true labels."""
        return nn.functional.binary_cross_entropy_with_logits(self.predict(z), true_labels.to(z.dtype))

    def predict(self, z: Tensor) -> Tensor:
        """Return the private head's logits."""
        logits: Tensor = self.modules["head"](z)
        return logits[:, 0]
