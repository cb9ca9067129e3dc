"""Marvell: the Gaussian noise on cut gradients that hides labels best for its power [L22 section 4.2, A.4].

`marvell_solver` finds the optimal noise, `marvell_estimates` learns the two classes from batches; here the noise is
drawn, and the strategy decides what happens to a batch that cannot be protected by itself. For more than two classes
`marvell_classes` finds the noise, and `marvell_many` learns the classes and draws it.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, NamedTuple, Self, cast

import torch
from torch import Tensor

from flower_vfl.auditing.noise import GaussianNoise
from flower_vfl.errors import UnprotectedBatchError
from flower_vfl.metrics import accuracy_bound, auc_bound, one_against_rest_bound
from flower_vfl.parties.hooks import Log, StepView
from flower_vfl.protocol.tensors import brought
from flower_vfl.strategies.base import HookedStrategy
from flower_vfl.strategies.gradients.accounted import AccountedNoise
from flower_vfl.strategies.gradients.base import Protection, Scope, of_one_run
from flower_vfl.strategies.gradients.checks import check_shapes, strength
from flower_vfl.strategies.gradients.marvell import multiclass, strengths
from flower_vfl.strategies.gradients.marvell.accountant import Accountant, accounted_epochs, take_in_batches
from flower_vfl.strategies.gradients.marvell.estimates import (
    Classes,
    RunningEstimates,
    classes_of,
    estimate,
    statistics,
)
from flower_vfl.strategies.gradients.marvell.multiclass import ManyClasses, ManyEstimates
from flower_vfl.strategies.gradients.marvell.multiclass_solver import ClassNoise
from flower_vfl.strategies.gradients.marvell.solver import NoiseSpectrum, least_power, optimal_noise
from flower_vfl.strategies.gradients.noise import Noise, draw_each
from flower_vfl.strategies.gradients.units import beside, each_run, working

_log = logging.getLogger(__name__)

__all__ = ["Marvell", "NoiseSpectrum", "least_power", "optimal_noise", "perturb"]


def perturb(g: Tensor, y: Tensor, *, s: float, generator: torch.Generator) -> tuple[Tensor, NoiseSpectrum[float]]:
    r"""Add the optimal noise of mean power s times the squared distance of the class means.

    With class means :math:`\mu_c`, their difference :math:`\Delta = \mu_1 - \mu_0`, the mean over coordinates of each
    class's biased variance and the fraction of positives, all of this batch, `optimal_noise` gives lam1 and lam2 of
    each class for the power :math:`P = s \|\Delta\|_2^2`, and a row of class c becomes

    .. math::
        \tilde g_j = g_j + \sqrt{\lambda_1^c - \lambda_2^c} \, \varepsilon_j \frac{\Delta}{\|\Delta\|_2} +
        \sqrt{\lambda_2^c} \, \eta_j, \quad \varepsilon_j \sim N(0, 1), \; \eta_j \sim N(0, I).

    `flower_vfl.metrics.auc_bound` of the spectrum's sum_kl bounds the AUC of attacks that use nothing of a row but its
    gradient, if each class is the isotropic Gaussian of the model. Gradients of networks are not: see `marvell_full`.

    Parameters
    ----------
    g : Tensor
        (B, D) cut gradients, of any scale.
    y : Tensor
        (B,) labels 0 or 1.
    s : float
        Power of the noise relative to the squared distance of the class means, at least 0.
    generator : torch.Generator
        On the device of `g`.

    Returns
    -------
    tuple[Tensor, NoiseSpectrum]
        (B, D) perturbed gradients, unbiased; and the noise, in the units of `g`.

    Raises
    ------
    UnprotectedBatchError
        When the batch has one class only, a value is not finite, or the class means coincide although the classes
        differ, so that there is no power to hide that.
    ConfigError
        For an s that is negative or not finite, and for labels other than 0 and 1.

    References
    ----------
    Li et al., *Label Leakage and Protection in Two-party Split Learning*, ICLR 2022, section 4.2 and appendix A.4.
    (The 2021 workshop version prints u and v the other way round.)

    Examples
    --------
    >>> g = torch.tensor([[0.1, 0.0], [0.1, 0.1], [-0.9, -0.5]])
    >>> noisy, noise = perturb(g, torch.tensor([0, 0, 1]), s=4.0, generator=torch.Generator().manual_seed(0))
    >>> noisy.shape, round(noise.power(2, 1 / 3), 3)  # 4 times the squared distance of the means
    (torch.Size([3, 2]), 5.21)
    """
    value = strength("marvell: s", s)
    classes = estimate(g, y)
    spectrum = _strongest(classes, value * classes.g, value=value)
    positives = round(classes.p * len(y))
    plan = NoisePlan(classes, spectrum, Noise(generator), (len(y) - positives, positives))
    return add_noise(g, y, [plan]), spectrum.scaled(classes.unit**2)


def _strongest(classes: Classes, power: float, *, value: float) -> NoiseSpectrum[float]:
    """Return the optimal noise of this power, to which a strength of this value amounts."""
    spectrum = optimal_noise(classes.u, classes.v, classes.d, classes.g, classes.p, power)
    strengths.check_power("marvell", value, power, spectrum.sum_kl)
    return spectrum


class NoisePlan(NamedTuple):
    """The noise of one batch: its spectrum in the units of `classes`, its source, and the number of rows by class."""

    classes: Classes
    spectrum: NoiseSpectrum[float]
    noise: Noise
    rows: tuple[int, int]

    @property
    def along(self) -> list[float]:
        """Standard deviation along the difference of means, of negatives and of positives."""
        return _along(self.classes, self.spectrum)

    @property
    def wide(self) -> int:
        """The class, one at most, that gets noise in all directions; -1 for none."""
        return 0 if self.spectrum.lam2_neg > 0.0 else 1 if self.spectrum.lam2_pos > 0.0 else -1


def _along(classes: Classes, spectrum: NoiseSpectrum[float]) -> list[float]:
    pairs = ((spectrum.lam1_neg, spectrum.lam2_neg), (spectrum.lam1_pos, spectrum.lam2_pos))
    return [math.sqrt(max(one - two, 0.0)) * classes.unit for one, two in pairs]


def add_noise(g: Tensor, y: Tensor, plans: Sequence[NoisePlan | None]) -> Tensor:
    """Return gradients (B, D) or (R, B, D), with labels (B,) or (R, B), with each run's noise; zeros without a plan."""
    work, runs, width = working(g), g.shape[:-2], g.shape[-1]
    along = torch.tensor([(0.0, 0.0) if plan is None else plan.along for plan in plans], dtype=torch.float64)
    negative, positive = beside(along, work).view(*runs, 2, 1).unbind(-2)
    nowhere = torch.zeros(width, dtype=work.dtype)
    directions = [nowhere if plan is None else plan.classes.direction for plan in plans]
    towards = beside(torch.stack(directions) if runs else directions[0], work)
    draws = draw_each([plan and plan.noise for plan in plans], work, 1)[..., 0]
    lengths = draws * torch.where(y == 1, positive, negative)
    noisy = torch.baddbmm(work, lengths[..., None], towards[:, None]) if runs else work.addr(lengths, towards)
    _add_in_all_directions(noisy, y, plans)
    for plan, rows in zip(plans, each_run(noisy), strict=True):
        if plan is None:
            rows.zero_()
    return noisy.to(g.dtype)


def _add_in_all_directions(noisy: Tensor, y: Tensor, plans: Sequence[NoisePlan | None]) -> None:
    """Add the noise that the rows of one class get in all directions, in those runs that have it.

    Drawing for these rows alone saves up to half of the time.
    """
    wide = [-1 if plan is None else plan.wide for plan in plans]
    if max(wide) < 0:
        return
    labels = torch.tensor(wide).to(y.device, non_blocking=True)[:, None] if y.dim() > 1 else wide[0]
    order = (y != labels).argsort(dim=-1, stable=True)  # no GPU is waited for to count these rows
    for plan, label, own, rows in zip(plans, wide, each_run(noisy), each_run(order, dims=1), strict=True):
        if plan is not None and label >= 0:
            chosen = rows[: plan.rows[label]]
            size = math.sqrt(plan.spectrum.lam2_neg or plan.spectrum.lam2_pos) * plan.classes.unit
            own.index_add_(0, chosen, plan.noise.draw(own, own.shape[1], chosen=chosen, stream=1), alpha=size)


def _model(classes: Classes, spectrum: NoiseSpectrum[float]) -> GaussianNoise:
    negative, positive = (length * classes.direction[:, None] for length in _along(classes, spectrum))
    unit = classes.unit**2
    return GaussianNoise((spectrum.lam2_neg * unit, spectrum.lam2_pos * unit), (negative, positive))


class Marvell(AccountedNoise[Accountant]):
    """Optimal Gaussian noise for isotropic classes: hides labels from attacks on lengths and on the means' line.

    `residual` reads nearly every label of two classes behind it, from a single batch; `marvell_full` hides them.

    The strength is one of four; none given means s = 4. Of more than two classes, s is relative to the mean squared
    distance of two class means, and the two targets hold for any two of them, and so for one against the rest.

    A batch that cannot be estimated from (one class only, one row) gets the noise that the running estimates of the
    latest batches ask for. Where there are none yet, and where a value is not finite, zeros are sent instead of the
    batch: they carry nothing about any row, and the feature party's model only misses a step. (Isotropic noise would
    not do: whoever learns the direction of the class means later reads the recorded rows through it, because only one
    of its D directions hides anything.) Both are counted, logged as `fallback` and warned of once; that *something*
    unusual was sent may be visible.

    Parameters
    ----------
    strategy : HookedStrategy
        The wrapped strategy.
    s : float
        Power of the noise relative to the (mean) squared distance of the class means, at least 0.
    P : float
        Power of the noise itself, the mean squared norm of a row's noise, at least 0.
    sum_kl : float
        Largest divergence to leave, above 0; the least power that reaches it is used. `auc_bound` gives its AUC.
    detection_error : float
        Least detection error to leave to the best attack, above 0 and below 0.5: a sum_kl of (2 - 4 L)^2.
    scope, rho
        See `NoiseDefense`.

    References
    ----------
    Li et al., *Label Leakage and Protection in Two-party Split Learning*, ICLR 2022, section 4.2; for sum_kl and
    detection_error the workshop version of 2021, section 4.2.
    """

    name: ClassVar[str] = "marvell"
    read_by: ClassVar[tuple[str, ...]] = ("residual",)
    unbiased: ClassVar[bool] = True

    def __init__(
        self,
        strategy: HookedStrategy,
        *,
        s: float | None = None,
        P: float | None = None,
        sum_kl: float | None = None,
        detection_error: float | None = None,
        scope: Scope = "joint",
        rho: float = 0.0,
    ) -> None:
        super().__init__(strategy, scope=scope, rho=rho)
        self.strength, self.value = strengths.chosen(
            self.name, s=s, P=P, sum_kl=sum_kl, detection_error=detection_error
        )
        self._estimates: dict[str, RunningEstimates | ManyEstimates] = {}

    def begin(self) -> None:
        """Warn that two classes are better hidden by another defense."""
        super().begin()
        if self.base.labels.classes == 2:
            _log.warning(
                "marvell models each class of gradients as an isotropic Gaussian, which gradients of networks are not: "
                "the attack residual reads nearly every label from a single batch behind it. marvell_full hides them "
                "from that attack with the same power of noise (docs/results/shapes.md)"
            )

    @property
    def params(self) -> dict[str, Any]:
        """The strength by its name, the persistent share and the scope."""
        return {self.strength: self.value, **super().params}

    @classmethod
    def perturb_runs(
        cls, defenses: Sequence[Self], g: Tensor, y: Tensor, steps: Sequence[StepView]
    ) -> tuple[Tensor, list[Protection]]:
        """Add the noise; log what `perturb` logs. More than two classes are perturbed run by run."""
        if defenses[0].base.labels.classes > 2 or not g.numel():
            return super().perturb_runs(defenses, g, y, steps)
        numbers, differences = brought(statistics(working(g), y))
        values, gaps = numbers.view(-1, 8).tolist(), differences.view(-1, g.shape[-1])
        parts = zip(defenses, each_run(g), each_run(y, dims=1), steps, values, gaps, strict=True)
        found = [defense._plan(own, labels, step, each, gap) for defense, own, labels, step, each, gap in parts]
        counted = {run: accounted for run, (_, _, accounted) in enumerate(found) if accounted is not None}
        take_in_batches(counted, g, y, [step.rows for step in steps])
        return add_noise(g, y, [plan for plan, _, _ in found]), [log for _, log, _ in found]

    def _plan(
        self, g: Tensor, y: Tensor, step: StepView, numbers: Sequence[float], difference: Tensor
    ) -> tuple[NoisePlan | None, Log, tuple[Accountant, Classes] | None]:
        """Find the noise of a batch (B, D) from its `statistics`, or from earlier batches; draw nothing.

        Returns
        -------
        tuple
            The noise, or None for a batch to withhold; what is logged; and the accountant that is still to take in the
            gradients, with the model of the batch.
        """
        whose, fallback = self._whose(step), False
        estimates, accountant = cast("RunningEstimates", self._running(whose)), self._accountant(whose)
        try:
            classes = classes_of(numbers, difference, len(g))
            spectrum = self._spectrum(classes)
        except UnprotectedBatchError as error:
            fallback, counted = True, False
            self.count_fallback(error, "its noise comes from earlier batches, or zeros are sent")
            recalled = self._recall(g, estimates)
            if recalled is None:
                return None, _report(0.0, math.inf, 0.0, fallback=True, withheld=True), None
            classes, spectrum = recalled
            accountant.note(spectrum)
        else:
            estimates.add(classes)
            counted = accountant.count(classes, spectrum, step.rows)
        positives = int((y == 1).sum()) if fallback else int(numbers[3])
        self.describe_noise(step, partial(_model, classes, spectrum))
        plan = NoisePlan(classes, spectrum, self.noise(g, step), (len(y) - positives, positives))
        log = _logged(classes, spectrum, positives / len(y), fallback=fallback)
        return plan, log, (accountant, classes) if counted else None

    def perturb(self, g: Tensor, y: Tensor, step: StepView | None = None) -> tuple[Tensor, Log]:
        """Add the noise; log its mean power, the divergence before and after, and the bound on the AUC.

        `sum_kl_before` and `sum_kl_after` are inf where nothing is known of the classes, and where they do not spread
        and no noise hides that. Of more than two classes they are the largest ones of two classes; the bound is on the
        AUC of any class against the rest; a bound on the accuracy is logged beside it.
        """
        step = step or self.base.step
        estimates = self._running(self._whose(step))
        if not g.numel():
            return g.clone(), _report(0.0, 0.0, 0.0)
        if isinstance(estimates, ManyEstimates):
            return self._perturb_many(g, y, estimates, step)
        check_shapes("marvell", g, y)
        return of_one_run(*Marvell.perturb_runs([self], g, y, [step]))

    def colluding(self, parties: Sequence[str], logs: Sequence[Log], step: StepView) -> Log:
        """Sum up what is left at each: the noises are independent, and so, as modelled, are a row's own deviations.

        Of more than two classes that is at least the largest divergence of any two, for all these parties' gradients.
        """
        power, before, after = (
            sum(log[key] for log in logs) for key in ("noise_power", "sum_kl_before", "sum_kl_after")
        )
        fallback, withheld = (any(log[key] for log in logs) for key in ("fallback", "withheld"))
        return _report(power, before, after, fallback=fallback, withheld=withheld)

    def _running(self, whose: str) -> RunningEstimates | ManyEstimates:
        """Return what is known of earlier batches, of one party where each has noise of its own."""
        if whose not in self._estimates:
            self._estimates[whose] = self._nothing_known()
        return self._estimates[whose]

    def _perturb_many(self, g: Tensor, y: Tensor, estimates: ManyEstimates, step: StepView) -> tuple[Tensor, Log]:
        if not g.numel():
            return g.clone(), _report(0.0, 0.0, 0.0)
        fallback = False
        try:
            model = multiclass.estimate(g, y, estimates)
            noise = model.noise(self.strength, self.value)
        except UnprotectedBatchError as error:
            fallback = True
            self.count_fallback(error, "its noise comes from earlier batches, or zeros are sent")
            recalled = self._recall_many(g, y, estimates)
            if recalled is None:
                log = _report(0.0, math.inf, 0.0, fallback=True, withheld=True)
                log["accuracy_bound"] = float(torch.bincount(y.long()).max()) / len(
                    y
                )  # a party that receives zeros can guess
                return torch.zeros_like(g), log
            model, noise = recalled
        else:
            estimates.add(model, y)
        problem = model.problem
        before, after = problem.divergences(0.0 * noise.levels), noise.divergences
        log = _report(model.power(y, noise), float(before.max()), noise.largest, fallback=fallback)
        shares = model.shares(y)  # those of the problem count classes that the batch does not have
        if (shares < 1.0).all():
            log["auc_bound"] = one_against_rest_bound(after, shares)
            log["accuracy_bound"] = accuracy_bound(after, shares)
        else:
            log["accuracy_bound"] = 1.0  # a constant answer is right
        return model.draw(g, y, noise, self.noise(g, step)), log

    def _recall_many(self, g: Tensor, y: Tensor, estimates: ManyEstimates) -> tuple[ManyClasses, ClassNoise] | None:
        try:
            model = estimates.recall(g, y)
            return None if model is None else (model, model.noise(self.strength, self.value))
        except UnprotectedBatchError:
            return None

    def _spectrum(self, classes: Classes) -> NoiseSpectrum[float]:
        """Return the noise of the chosen strength, in the units of `classes`."""
        if self.strength in ("s", "P"):
            power = strengths.power(self.strength, self.value, classes.g, classes.unit)
            return _strongest(classes, power, value=self.value)
        target = strengths.target(self.strength, self.value)
        return least_power(classes.u, classes.v, classes.d, classes.g, classes.p, target)[1]

    def _recall(self, g: Tensor, estimates: RunningEstimates) -> tuple[Classes, NoiseSpectrum[float]] | None:
        try:
            classes = estimates.recall(g)
            return None if classes is None else (classes, self._spectrum(classes))
        except UnprotectedBatchError:
            return None

    def accounted_epochs(self, width: int) -> int:
        """Return the largest number of epochs that can be accounted for gradients (B, width)."""
        return accounted_epochs(width)

    def _summed(self, left: Mapping[str, float]) -> dict[str, float]:
        """Add up the divergences of parties that collude: each has noise of its own, over the epochs too."""
        groups = self.base.config.parties.coalitions(list(self.base.widths))
        return {
            group: sum(left[one] for one in members) for group, members in groups.items() if left.keys() >= {*members}
        }

    def state(self) -> dict[str, Any]:
        """Add the running estimates."""
        return {**super().state(), "estimates": {party: running.state() for party, running in self._estimates.items()}}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state` returned."""
        super().restore(state)
        self._estimates = {}
        for party, running in state["estimates"].items():
            self._estimates[party] = self._nothing_known()
            self._estimates[party].restore(running)

    def _nothing_done(self) -> Accountant:
        return Accountant(self.base.prepared, repeats=self._repeats)

    def _nothing_known(self) -> RunningEstimates | ManyEstimates:
        classes = self.base.labels.classes
        return RunningEstimates() if classes == 2 else ManyEstimates(classes)


def _logged(classes: Classes, spectrum: NoiseSpectrum[float], share: float, *, fallback: bool = False) -> Log:
    """Return what is logged of a batch that got this noise, of which so large a share is positive."""
    before = optimal_noise(classes.u, classes.v, classes.d, classes.g, classes.p, 0.0).sum_kl
    power = spectrum.power(classes.d, share) * classes.unit**2
    return _report(power, before, spectrum.sum_kl, fallback=fallback)


def _report(
    power: float, before: float, after: float, *, fallback: bool = False, withheld: bool = False
) -> dict[str, float]:
    return {
        "noise_power": power,
        "sum_kl_before": before,
        "sum_kl_after": after,
        "auc_bound": auc_bound(after),
        "fallback": float(fallback),
        "withheld": float(withheld),
    }
