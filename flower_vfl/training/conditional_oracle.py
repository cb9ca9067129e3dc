"""Input of the conditional oracle in a training run: both labels' gradients of each row, and the defense's noise."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from flower_vfl.auditing.conditional import ConditionalOracle
from flower_vfl.auditing.noise import hypotheses
from flower_vfl.parties.label import Inside, Step
from flower_vfl.training.protocols import StrategySettings, TrainedDefense, TrainedStrategy


@dataclass(frozen=True, slots=True)
class ConditionalAudit:
    """The conditional oracle of a training run, with the one defense that adds noise.

    Attributes
    ----------
    oracle
        The oracle, which scores the gradients.
    defense
        The defense that added noise to the gradients.
    """

    oracle: ConditionalOracle
    defense: TrainedDefense

    def __call__(self, step: int, epoch: int, done: Step, inside: Inside) -> None:
        """Score one step; `inside` holds the parts of its gradients."""
        base, defense = self.defense.base, self.defense
        change = _label_slopes(base, inside)[:, None] * inside.slopes * inside.clipping
        known = hypotheses(inside.gradients, inside.labels, change)
        apart = defense.scope == "per-party" and len(base.widths) > 1
        noise = [defense.noise_model(part) for part in range(len(base.widths) if apart else 1)]
        self.oracle.observe(step, epoch, done.rows, done.gradients, known, noise)


def build_conditional(strategy: TrainedStrategy, steps: int) -> ConditionalAudit | None:
    """Build the conditional oracle of a simulation with this number of steps; None where it does not apply.

    It applies to runs with attacks and a monitor, two classes, one network rather than an ensemble, and one gradient
    defense, which has a `noise_model`. No defense may change the loss or the embeddings: the gradient of a row with the
    other label follows from the logit's slope alone where the loss is the cross-entropy of the logits.
    """
    base, attack = strategy.base, strategy.base.config.attack
    perturbing = [defense for defense in strategy.chain() if defense.writes("protect")]
    one_logit = base.labels.classes == 2 and base.config.model.ensemble == 1
    if not base.attacks or not attack.monitor or not one_logit or len(perturbing) != 1:
        return None
    if any(one.writes("loss") or one.writes("embed") for one in strategy.chain()):
        return None
    defense = perturbing[0]
    if not defense.writes("noise_model"):
        return None
    parties = [*base.parties, *base.config.parties.coalitions(base.parties)]
    oracle = ConditionalOracle(parties, base.labels.train, every=base.config.cadence(steps), record=base.observer.add)
    return ConditionalAudit(oracle, defense)


def _label_slopes(base: StrategySettings, inside: Inside) -> Tensor:
    """Return the change of the loss's derivative by each row's logit as its label turns from 0 to 1, (B,)."""
    logits, found = inside.logits.detach(), []
    for label in (0, 1):
        leaf = logits.clone().requires_grad_()
        with torch.enable_grad():
            loss, _ = base.loss(leaf, torch.full_like(inside.labels, label), leaf[:, None].detach())
        found.append(torch.autograd.grad(loss, leaf)[0])
    return found[1] - found[0]
