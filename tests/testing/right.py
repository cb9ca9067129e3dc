"""Correct defenses as users write them: with noise or without, with a state or without."""

import math

import torch

from flower_vfl.errors import UnprotectedBatchError
from flower_vfl.strategies import Defense, GradientDefense


class Right(GradientDefense):
    """Adds noise as long as the longest entry; `scope` is that of `GradientDefense`."""

    name = "right"
    unbiased = True

    def perturb(self, g, y):
        """Add the noise."""
        return g + self.noise(g), {"length": self.longest(g)}

    def noise(self, g):
        draw = torch.randn(g.shape, generator=self.generator(g.device), device=g.device).to(g.dtype)
        return draw * self.longest(g)

    def longest(self, g):
        longest = float(g.abs().max()) if g.numel() else 0.0
        if not math.isfinite(longest):
            raise UnprotectedBatchError("right: a gradient is not finite")
        return longest


class Unchecked(Right):
    """Does not check whether gradients are finite; `scope` is that of `GradientDefense`."""

    name = "unchecked"

    def perturb(self, g, y):
        """Add noise."""
        return g + self.noise(g), {}

    def longest(self, g):
        return g.abs().max() if g.numel() else 0.0


class Norms(Defense):
    """Scales all embeddings to length 1."""

    name = "norms"
    params = {}  # noqa: RUF012

    def embed(self, z, *, party="", train=True):
        """Divide by the length."""
        inner, log = self.strategy.embed(z, party=party, train=train)
        lengths = inner.flatten(1).norm(dim=1).clamp(min=1e-6)
        return inner / lengths.view(-1, *[1] * (inner.dim() - 1)), log


class RunningMean(Right):
    """Scales its noise by a running mean; `scope` is that of `GradientDefense`."""

    name = "remembering"

    def __init__(self, strategy, *, scope="joint"):
        super().__init__(strategy, scope=scope)
        self.mean = torch.zeros(1)

    def perturb(self, g, y):
        """Add the noise."""
        longest = self.longest(g)
        self.mean = self.mean * 0.9 + longest * 0.1
        return g + self.noise(g) * self.factor(longest), {}

    def factor(self, longest):
        return 1.0 + float(self.mean) / (float(self.mean) + longest) if longest else 1.0

    def state(self):
        return {**super().state(), "mean": self.mean}

    def restore(self, state):
        super().restore(state)
        self.mean = state["mean"]


class RisingBound(Right):
    """Returns a bound that rises after each epoch; `scope` is that of `GradientDefense`."""

    name = "promising"

    def __init__(self, strategy, *, scope="joint"):
        super().__init__(strategy, scope=scope)
        self.epochs, self.largest = 0, 0.0

    def perturb(self, g, y):
        """Add the noise."""
        self.largest = max(self.largest, self.longest(g))
        return g + self.noise(g), {}

    def end_epoch(self):
        """Count."""
        self.epochs += 1
        return {"epochs": float(self.epochs), "largest": self.largest}

    def bound(self):
        """Return a number that rises."""
        return 1.0 - 0.5**self.epochs * 0.4

    def check_bound(self, epochs):
        """Take any number."""

    def state(self):
        return {**super().state(), "epochs": self.epochs, "largest": self.largest}

    def restore(self, state):
        super().restore(state)
        self.epochs, self.largest = state["epochs"], state["largest"]


class Grid(Right):
    """Rounds to a coarse grid, without any noise; `scope` is that of `GradientDefense`."""

    name = "grid"
    unbiased = False

    def perturb(self, g, y):
        """Round."""
        step = self.longest(g) or 1.0
        return (g / step).round() * step, {}


class Clipped(Right):
    """Scales rows to a running mean of their lengths, without any noise; `scope` is that of `GradientDefense`."""

    name = "clipped"
    unbiased = False

    def __init__(self, strategy, *, scope="joint"):
        super().__init__(strategy, scope=scope)
        self.means = {}

    def perturb(self, g, y):
        """Scale."""
        longest = self.longest(g)
        if not longest:
            return torch.zeros_like(g), {}
        key = str(g.shape[1])
        self.means[key] = 0.9 * self.means.get(key, 1.0) + 0.1 * longest
        lengths = (g.double() / longest).norm(dim=1, keepdim=True) * longest
        rows = g.double() / lengths.clamp(min=1e-300) * self.means[key]
        rows[g.norm(dim=1) == 0] = self.means[key] / g.shape[1] ** 0.5
        return rows.to(g.dtype), {}

    def state(self):
        return {**super().state(), "means": dict(self.means)}

    def restore(self, state):
        super().restore(state)
        self.means = dict(state["means"])


class ByConfidence(Right):
    """Adds noise that grows with the confidence of the step's logits; `scope` is that of `GradientDefense`."""

    def perturb(self, g, y, step=None):
        """Add the noise."""
        confidence = (step.logits.sigmoid() - 0.5).abs()
        confidence = confidence.mean(dim=1) if confidence.dim() == 2 else confidence
        return g + confidence[:, None] * self.noise(g), {}


class Smoothed(Defense):
    """Mixes the loss of the labels with that of the other class."""

    name = "smoothed"
    params = {}  # noqa: RUF012
    two_classes_only = True

    def loss(self, logits, labels, z):
        """Return the mixture."""
        (one, log), (other, _) = (self.strategy.loss(logits, given, z) for given in (labels, 1 - labels))
        return 0.9 * one + 0.1 * other, log


class Adversary(Defense):
    """Has a network that reads all embeddings side by side in the loss."""

    name = "adversary"
    params = {}  # noqa: RUF012

    def build(self, cut, device):
        """Make the network."""
        self.modules["reader"] = torch.nn.Linear(sum(shape[0] for shape in cut.values()), 1)

    def loss(self, logits, labels, z):
        """Add its output."""
        loss, log = self.strategy.loss(logits, labels, z)
        return loss + self.modules["reader"](z).square().mean(), log
