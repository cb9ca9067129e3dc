"""Defenses with one mistake each."""

import math

import torch

from flower_vfl.accounting import RandomisedResponse, Release
from flower_vfl.errors import ConfigError, UnprotectedBatchError
from flower_vfl.strategies import Defense, GradientDefense, Guarantee
from flower_vfl.strategies.labels.label_dp import flip, label_dependent_ends
from tests.testing import right
from tests.testing.right import Norms, Right, RisingBound, RunningMean


class Unnamed(Right):
    """Has a name with a space."""

    name = "un named"


class Borrowed(Right):
    """Has the name of a built-in; `scope` is that of `GradientDefense`."""

    name = "iso"


class Silent(Right):
    __doc__ = None

    def perturb(self, g, y):
        return super().perturb(g, y)


class Unfinished(GradientDefense):
    """Does not define `perturb`."""

    name = "unfinished"


class NoHook(Defense):
    """Overrides nothing."""

    name = "idle"
    params = {}  # noqa: RUF012


class Starting(Right):
    """Starts by itself; `scope` is that of `GradientDefense`."""

    def start(self, grid, **more):
        return self.strategy.start(grid, **more)


class Hidden(Right):
    """Does not show its strength; `scope` is that of `GradientDefense`."""

    def __init__(self, strategy, strength=1.0, *, scope="joint"):
        super().__init__(strategy, scope=scope)


class Opaque(Right):
    """Has params that JSON cannot hold."""

    params = {"params": torch.ones(1)}  # noqa: RUF012


class Undocumented(Right):
    """Does not describe its parameters."""


class Tolerant(Right):
    """Takes any parameter; `scope` is that of `GradientDefense`."""

    def __init__(self, strategy, scope="joint", **anything):
        super().__init__(strategy, scope=scope)


class Narrow(Right):
    """Sends the first column; `scope` is that of `GradientDefense`."""

    def perturb(self, g, y):
        """Cut."""
        return g[:, :1] + 1, {}


class Single(Right):
    """Computes in float32; `scope` is that of `GradientDefense`."""

    def perturb(self, g, y):
        """Add noise."""
        return g.float() + self.noise(g.float()), {}


class Scopeless(Right):
    """Does not pass its `scope` on."""

    def __init__(self, strategy, *, scope="joint"):
        super().__init__(strategy)


class FixedWidth(Right):
    """Accepts gradients of width 8 only; `scope` is that of `GradientDefense`."""

    def perturb(self, g, y):
        """Add noise."""
        return g + self.noise(g) @ torch.ones(8, 8, dtype=g.dtype), {}


class Counting(Right):
    """Divides by the number of rows; `scope` is that of `GradientDefense`."""

    def perturb(self, g, y):
        """Add noise."""
        return g + self.noise(g) * (1 / len(g) + 1), {}


class Graph(Right):
    """Keeps a graph; `scope` is that of `GradientDefense`."""

    def perturb(self, g, y):
        """Add noise."""
        return g + self.noise(g) * torch.ones(1, requires_grad=True), {}


class Unchecked(right.Unchecked):
    """Overrides `protect`, where nothing withholds what is not finite; `scope` is that of `GradientDefense`."""

    def protect(self, grads, labels, step=None):
        """Add noise."""
        inner, log = self.strategy.protect(grads, labels, step)
        return inner + self.noise(inner), log


class Cleaning(Right):
    """Replaces what is not finite and sends the rest; `scope` is that of `GradientDefense`."""

    def perturb(self, g, y):
        """Add noise."""
        return (g + self.noise(g), {}) if bool(torch.isfinite(g).all()) else (g.nan_to_num(0.0, 0.0, 0.0), {})


class OnlyBoth(Right):
    """Sends batches of one class without noise; `scope` is that of `GradientDefense`."""

    def perturb(self, g, y):
        """Add noise."""
        return (g + self.noise(g), {}) if len(y.unique()) > 1 else (g.clone(), {})


class Relative(Right):
    """Adds noise along the deviation from the mean row, zero for one row; `scope` is that of `GradientDefense`."""

    unbiased = False

    def perturb(self, g, y):
        """Add noise along what differs from the mean."""
        self.longest(g)
        rest = g - g.mean(dim=0) if len(g) else g
        return g + rest * torch.randn(len(g), 1, generator=self.generator(g.device)).to(g.dtype), {}


class Squaring(Right):
    """Squares gradients, which vanish or overflow; `scope` is that of `GradientDefense`."""

    def longest(self, g):
        super().longest(g)
        return float((g * g).sum(dim=1).max().sqrt()) if len(g) else 0.0


class Withholding(Right):
    """Sends zeros; `scope` is that of `GradientDefense`."""

    def perturb(self, g, y):
        """Send zeros."""
        return torch.zeros_like(g), {}


class Refusing(Defense):
    """Protects nothing."""

    name = "refusing"
    params = {}  # noqa: RUF012

    def protect(self, grads, labels, step=None):
        """Refuse."""
        self.strategy.protect(grads, labels, step)
        raise UnprotectedBatchError("refusing: no")


class Multiplying(Right):
    """Scales rows, so that zeros stay zeros; `scope` is that of `GradientDefense`."""

    def perturb(self, g, y):
        """Stretch."""
        self.longest(g)
        return g * (1 + torch.randn(len(g), 1, generator=self.generator(g.device)).to(g.dtype)), {}


class Shrinking(Right):
    """Shrinks gradients although it is declared unbiased; `scope` is that of `GradientDefense`."""

    def perturb(self, g, y):
        """Add noise."""
        return 0.8 * g + self.noise(g), {}


class Drifting(Right):
    """Shifts the gradients of positives although it is declared unbiased; `scope` is that of `GradientDefense`."""

    def perturb(self, g, y):
        """Add noise."""
        return g + self.noise(g) + 0.5 * self.longest(g) * (y == 1)[:, None], {}


class Global(Right):
    """Draws from the global generator; `scope` is that of `GradientDefense`."""

    def noise(self, g):
        return torch.randn_like(g) * self.longest(g)


class Seeding(Right):
    """Seeds the global generator; `scope` is that of `GradientDefense`."""

    def noise(self, g):
        torch.manual_seed(self.generator(g.device).initial_seed() % 1000)
        return torch.randn_like(g) * self.longest(g)


class Numpy(Right):
    """Draws from a generator without a seed; `scope` is that of `GradientDefense`."""

    def noise(self, g):
        import numpy as np

        return torch.from_numpy(np.random.default_rng().normal(size=g.shape)).to(g.dtype) * self.longest(g)


class Public(Right):
    """Draws from a generator with a known seed; `scope` is that of `GradientDefense`."""

    def __init__(self, strategy, *, scope="joint"):
        super().__init__(strategy, scope=scope)
        self._own = torch.Generator().manual_seed(7)

    def noise(self, g):
        return torch.randn(g.shape, generator=self._own).to(g.dtype) * self.longest(g)


class Constant(Right):
    """Adds the same numbers in every step, whatever the secret; `scope` is that of `GradientDefense`."""

    unbiased = False

    def noise(self, g):
        again = torch.Generator().manual_seed(7)
        return torch.randn(g.shape, generator=again).to(g.dtype) * self.longest(g)


class Repeating(Right):
    """Draws the same noise in every step; `scope` is that of `GradientDefense`."""

    unbiased = False

    def noise(self, g):
        again = torch.Generator().manual_seed(self.base.secret.seed("again"))
        return torch.randn(g.shape, generator=again).to(g.dtype) * self.longest(g)


class Writing(Right):
    """Adds in place; `scope` is that of `GradientDefense`."""

    def perturb(self, g, y):
        """Add noise."""
        return g.add_(self.noise(g)), {}


class UnsavedMean(RunningMean):
    """Does not save its mean; `scope` is that of `GradientDefense`."""

    def state(self):
        return GradientDefense.state(self)

    def restore(self, state):
        GradientDefense.restore(self, state)


class UnsavedGenerator(Right):
    """Does not save the state of its generator; `scope` is that of `GradientDefense`."""

    def state(self):
        return {"fallbacks": self.fallbacks}


class Shared(RunningMean):
    """Saves a tensor that it changes later; `scope` is that of `GradientDefense`."""

    def perturb(self, g, y):
        """Add noise."""
        self.mean.mul_(0.9).add_(self.longest(g) * 0.1)
        return g + self.noise(g) * self.factor(self.longest(g)), {}


class Unsavable(Right):
    """Saves a generator, which no file can hold; `scope` is that of `GradientDefense`."""

    def state(self):
        return {**super().state(), "generator": self.generator(torch.device("cpu"))}


class NotANumber(Right):
    """Logs NaN; `scope` is that of `GradientDefense`."""

    def perturb(self, g, y):
        """Add noise."""
        return g + self.noise(g), {"length": math.nan}


class Clashing(Right):
    """Logs under the name of the training's loss; `scope` is that of `GradientDefense`."""

    def perturb(self, g, y):
        """Add noise."""
        return g + self.noise(g), {}

    def end_epoch(self):
        """Log the name."""
        return {"train_loss": 0.0}


class Endless(Right):
    """Logs an infinite value that no docstring explains; `scope` is that of `GradientDefense`."""

    def perturb(self, g, y):
        """Add noise."""
        return g + self.noise(g), {"length": math.inf}


class Tensors(Right):
    """Logs a tensor; `scope` is that of `GradientDefense`."""

    def perturb(self, g, y):
        """Add noise."""
        return g + self.noise(g), {"length": g.abs().sum()}


class Alone(Right):
    """Does not call `protect` of the strategy that it wraps; `scope` is that of `GradientDefense`."""

    def protect(self, grads, labels, step=None):
        """Add noise."""
        return grads + self.noise(grads), {}


class NoiseFirst(Right):
    """Adds noise before it calls the strategy that it wraps; `scope` is that of `GradientDefense`."""

    def protect(self, grads, labels, step=None):
        """Add noise."""
        return self.strategy.protect(grads + self.noise(grads), labels)


class LosingLog(Norms):
    """Loses the inner log."""

    def embed(self, z, *, party="", train=True):
        """Divide by the length."""
        return super().embed(z, party=party, train=train)[0], {}


class Cutting(Norms):
    """Detaches embeddings."""

    def embed(self, z, *, party="", train=True):
        """Detach."""
        inner, log = self.strategy.embed(z, party=party, train=train)
        return inner.detach(), log


class Dividing(Norms):
    """Divides by zero."""

    def embed(self, z, *, party="", train=True):
        """Divide."""
        inner, log = self.strategy.embed(z, party=party, train=train)
        return inner / inner.flatten(1).norm(dim=1).view(-1, *[1] * (inner.dim() - 1)), log


class Halving(Norms):
    """Loses rows."""

    def embed(self, z, *, party="", train=True):
        """Halve."""
        inner, log = self.strategy.embed(z, party=party, train=train)
        return inner[: len(z) // 2], log


class Lossy(Norms):
    """Adds a term that is NaN for one class."""

    def loss(self, logits, labels, z):
        """Add the term."""
        value, log = self.strategy.loss(logits, labels, z)
        return value + z[labels == 1].mean(), log


class Overwriting(Norms):
    """Learns from other labels, and leaves them to the defenses after it."""

    def loss(self, logits, labels, z):
        """Change labels."""
        found = self.strategy.loss(logits, labels, z)
        labels.zero_()
        return found


class Rows(Norms):
    """Returns a loss for each row."""

    def loss(self, logits, labels, z):
        """Return rows."""
        value, log = self.strategy.loss(logits, labels, z)
        return value + z.mean(dim=1), log


class Relabelling(Norms):
    """Returns labels of a class that does not exist."""

    def prepare_labels(self, labels):
        """Add one."""
        inner, log = self.strategy.prepare_labels(labels)
        return inner + 1, log


class Floating(Norms):
    """Returns soft labels."""

    def prepare_labels(self, labels):
        """Soften."""
        inner, log = self.strategy.prepare_labels(labels)
        return inner * 0.9, log


class Relabelled(Norms):
    """Changes labels in place."""

    def prepare_labels(self, labels):
        """Flip the first."""
        inner, log = self.strategy.prepare_labels(labels)
        inner[0] = 1 - inner[0]
        return inner, log


class Binary(Right):
    """Takes two classes and does not declare it; `scope` is that of `GradientDefense`."""

    def __init__(self, strategy, *, scope="joint"):
        super().__init__(strategy, scope=scope)
        if self.base.labels.classes != 2:
            raise ConfigError("binary: two classes")


class OnceOnly(Right):
    """Refuses another of its kind and names no alternative; `scope` is that of `GradientDefense`."""

    def __init__(self, strategy, *, scope="joint"):
        super().__init__(strategy, scope=scope)
        if any(inner.name == self.name for inner in strategy.chain()):
            raise ConfigError("lonely: once only")


class Bypassing(Right):
    """Declares two classes and does not check it; `scope` is that of `GradientDefense`."""

    two_classes_only = True

    def __init__(self, strategy, *, scope="joint"):
        self.strategy, self.scope, self.fallbacks, self._generator = strategy, scope, 0, None


class NoEpochLog(Right):
    """Logs None at the end of an epoch; `scope` is that of `GradientDefense`."""

    def end_epoch(self):
        """Return None."""


class NanAtEpochEnd(Right):
    """Logs NaN at the end of an epoch; `scope` is that of `GradientDefense`."""

    def end_epoch(self):
        """Log NaN."""
        return {"hope": math.nan}


class NanBound(RisingBound):
    """Returns NaN as its bound; `scope` is that of `GradientDefense`."""

    def bound(self):
        """Return NaN."""
        return math.nan


class BoundBelowHalf(RisingBound):
    """Returns a bound below 0.5; `scope` is that of `GradientDefense`."""

    def bound(self):
        """Return a negative number."""
        return -3.0


class RaisingCheck(RisingBound):
    """Raises an error in `check_bound`; `scope` is that of `GradientDefense`."""

    def check_bound(self, epochs):
        """Fail."""
        raise KeyError(epochs)


class Growing(Right):
    """Does not save what the end of an epoch changes; `scope` is that of `GradientDefense`."""

    factor = 1.0

    def perturb(self, g, y):
        """Add noise."""
        return g + self.factor * self.noise(g), {}

    def end_epoch(self):
        """Add more noise from here on."""
        self.factor *= 2.0
        return {}


class Recounting(RisingBound):
    """Does not save what it logs at the end of an epoch; `scope` is that of `GradientDefense`."""

    def state(self):
        return {**super().state(), "largest": 0.0}


class Lowering(RisingBound):
    """Does not save the number of epochs of its bound; `scope` is that of `GradientDefense`."""

    def end_epoch(self):
        """Count."""
        return {"largest": super().end_epoch()["largest"]}

    def state(self):
        return {**super().state(), "epochs": 0}


class Delegating(RisingBound):
    """Calls `end_epoch` of the strategy that it wraps; `scope` is that of `GradientDefense`."""

    def end_epoch(self):
        """Call both."""
        return {**self.strategy.end_epoch(), **super().end_epoch()}


class Averaging(Norms):
    """Subtracts a running mean of all embeddings, and saves it for a resumed run but not for predictions."""

    name = "averaging"

    def __init__(self, strategy):
        super().__init__(strategy)
        self.mean = torch.zeros(())

    def embed(self, z, *, party="", train=True):
        """Subtract the mean."""
        inner, log = super().embed(z, party=party, train=train)
        if train:
            self.mean = 0.9 * self.mean + 0.1 * inner.detach().abs().mean()
        return inner - self.mean, log

    def state(self):
        return {**super().state(), "mean": self.mean}

    def restore(self, state):
        super().restore(state)
        self.mean = state["mean"]


class Kept(Norms):
    """Subtracts a running mean of all embeddings, and keeps it in its modules."""

    name = "kept"

    def build(self, cut, device):
        self.modules["mean"] = torch.nn.BatchNorm1d(1, affine=False)

    def embed(self, z, *, party="", train=True):
        """Subtract the mean."""
        inner, log = super().embed(z, party=party, train=train)
        if train:
            self.modules["mean"](inner.detach().abs().reshape(-1, 1))
        return inner - self.modules["mean"].running_mean, log


class Drawing(Defense):
    """Randomises labels once; the shared network and a private head learn, each from its own labels."""

    name = "drawing"
    two_classes_only = True
    alone = True
    params = {}  # noqa: RUF012

    def __init__(self, strategy):
        super().__init__(strategy)
        self.received, self.rows = None, None

    def begin(self):
        """Refuse what would end a training by true labels."""
        if label_dependent_ends(self.base.config):
            raise ConfigError("drawing: set training.patience to 0 and limits of attacks to 1")

    def guarantee(self):
        """Return an epsilon of 1."""
        return Guarantee(1.0, release=Release(RandomisedResponse(1.0, 2), kept=True))

    def prepare_labels(self, labels):
        """Draw."""
        return self.strategy.prepare_labels(flip(labels, classes=2, rate=0.2689, draws=self.keystream(labels)))

    def begin_batch(self, rows):
        self.rows = rows

    def build(self, cut, device):
        self.modules["head"] = torch.nn.Linear(sum(map(math.prod, cut.values())), 1)

    def embed(self, z, *, party="", train=True):
        """Keep the embedding."""
        inner, log = self.strategy.embed(z, party=party, train=train)
        self.received = inner
        return inner, log

    def private_loss(self, z, true_labels, rows):
        """Return the loss of the private head."""
        return torch.nn.functional.binary_cross_entropy_with_logits(self.predict(z), true_labels.to(z.dtype))

    def predict(self, z):
        """Return the logits of the private head."""
        return self.modules["head"](z)[:, 0]


class Peeking(Drawing):
    """Changes the sign of gradients by true labels."""

    def protect(self, grads, labels, step=None):
        """Negate the gradients of positives."""
        inner, log = self.strategy.protect(grads, labels, step)
        true = torch.from_numpy(self.base.labels.train[self.rows]).to(inner)
        return torch.where(true[:, None] > 0.5, -inner, inner), log


class Joined(Drawing):
    """Trains the shared network on true labels, whose gradients flow back to the parties."""

    def prepare_labels(self, labels):
        """Leave the labels to the shared network."""
        return self.strategy.prepare_labels(labels)


class Reaching(Drawing):
    """Computes its private loss from received embeddings, through which gradients flow back."""

    def private_loss(self, z, true_labels, rows):
        """Return the loss."""
        return super().private_loss(z, true_labels, rows) + self.received.square().mean()


class Sharing(Drawing):
    """Adds the loss of the shared top model to its private loss."""

    def private_loss(self, z, true_labels, rows):
        """Return the loss."""
        shared = self.base.top(z)[:, 0]
        return super().private_loss(z, true_labels, rows) + (shared - true_labels).square().mean()


class Backward(Drawing):
    """Calls `backward` through the received embeddings itself."""

    def private_loss(self, z, true_labels, rows):
        """Return the loss, after another loss added its gradient to those that are sent."""
        (self.received * (true_labels.to(z.dtype) - 0.5)[:, None]).sum().backward()
        return super().private_loss(z, true_labels, rows)


class Learning(Drawing):
    """Has a private loss that depends on none of its modules."""

    def private_loss(self, z, true_labels, rows):
        """Return a loss without a head."""
        return (z.sum(dim=1).requires_grad_() - true_labels).square().mean()


class Wide(Drawing):
    """Predicts a column of logits."""

    def private_loss(self, z, true_labels, rows):
        """Return the loss of the private head."""
        return (self.modules["head"](z)[:, 0] - true_labels).square().mean()

    def predict(self, z):
        """Return the logits of the private head as a column."""
        return self.modules["head"](z)


class Ending(Drawing):
    """Permits early stopping by true labels, and claims an epsilon nevertheless."""

    def begin(self):
        """Refuse nothing."""
