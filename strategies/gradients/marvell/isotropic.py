"""Marvell: the Gaussian noise on cut gradients that hides labels best for its power [L22 section 4.2, A.4].

`solver` finds the optimal noise, `estimates` models the two classes by batches; here the noise is drawn, and the
strategy handles batches that cannot be protected by themselves. For more than two classes `multiclass_solver` finds the
noise, and `multiclass` models the classes and draws it.
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
from flower_vfl.strategies.gradients.marvell.accountant import IsotropicAccountant, accounted_epochs, take_in_batches
from flower_vfl.strategies.gradients.marvell.estimates import (
    RunningEstimates,
    TwoClassModel,
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

    `flower_vfl.metrics.auc_bound` of the spectrum's sum_kl bounds the AUC of attacks that use only a row's
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
        Generator on the device of `g`.

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
    spectrum = _noise_of_power(classes, value * classes.g, value=value)
    positives = round(classes.p * len(y))
    plan = NoisePlan(classes, spectrum, Noise(generator), (len(y) - positives, positives))
    return add_noise(g, y, [plan]), spectrum.scaled(classes.unit**2)


def _noise_of_power(classes: TwoClassModel, power: float, *, value: float) -> NoiseSpectrum[float]:
    """Return the optimal noise of this power, which is that of a strength of this value."""
    spectrum = optimal_noise(classes.u, classes.v, classes.d, classes.g, classes.p, power)
    strengths.check_power("marvell", value, power, spectrum.sum_kl)
    return spectrum


class NoisePlan(NamedTuple):
    """The noise of one batch: its spectrum in the units of `classes`, its source, and the number of rows by class."""

    classes: TwoClassModel
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


def _along(classes: TwoClassModel, spectrum: NoiseSpectrum[float]) -> list[float]:
    pairs = ((spectrum.lam1_neg, spectrum.lam2_neg), (spectrum.lam1_pos, spectrum.lam2_pos))
    return [math.sqrt(max(one - two, 0.0)) * classes.unit for one, two in pairs]


def add_noise(g: Tensor, y: Tensor, plans: Sequence[NoisePlan | None]) -> Tensor:
    """Return gradients (B, D) or (R, B, D), with labels (B,) or (R, B), with each run's noise; zeros without a plan."""
    work, runs, width = working(g), g.shape[:-2], g.shape[-1]
    along = torch.tensor([(0.0, 0.0) if plan is None else plan.along for plan in plans], dtype=torch.float64)
    negative, positive = beside(along, work).view(*runs, 2, 1).unbind(-2)
    no_direction = torch.zeros(width, dtype=work.dtype)
    directions = [no_direction if plan is None else plan.classes.direction for plan in plans]
    towards = beside(torch.stack(directions) if runs else directions[0], work)
    draws = draw_each([plan and plan.noise for plan in plans], work, 1)[..., 0]
    lengths = draws * torch.where(y == 1, positive, negative)
    noisy = torch.baddbmm(work, lengths[..., None], towards[:, None]) if runs else work.addr(lengths, towards)
    _add_isotropic_part(noisy, y, plans)
    for plan, rows in zip(plans, each_run(noisy), strict=True):
        if plan is None:
            rows.zero_()
    return noisy.to(g.dtype)


def _add_isotropic_part(noisy: Tensor, y: Tensor, plans: Sequence[NoisePlan | None]) -> None:
    """Add the noise that the rows of one class get in all directions, in those runs that have it.

    Drawing for these rows alone saves up to half of the time.
    """
    wide = [-1 if plan is None else plan.wide for plan in plans]
    if max(wide) < 0:
        return
    labels = torch.tensor(wide).to(y.device, non_blocking=True)[:, None] if y.dim() > 1 else wide[0]
    order = (y != labels).argsort(dim=-1, stable=True)  # counting these rows would wait for the GPU
    for plan, label, own, rows in zip(plans, wide, each_run(noisy), each_run(order, dims=1), strict=True):
        if plan is not None and label >= 0:
            chosen = rows[: plan.rows[label]]
            size = math.sqrt(plan.spectrum.lam2_neg or plan.spectrum.lam2_pos) * plan.classes.unit
            own.index_add_(0, chosen, plan.noise.draw(own, own.shape[1], chosen=chosen, stream=1), alpha=size)


def _model(classes: TwoClassModel, spectrum: NoiseSpectrum[float]) -> GaussianNoise:
    negative, positive = (length * classes.direction[:, None] for length in _along(classes, spectrum))
    unit = classes.unit**2
    return GaussianNoise((spectrum.lam2_neg * unit, spectrum.lam2_pos * unit), (negative, positive))


class Marvell(AccountedNoise[IsotropicAccountant]):
    """Optimal Gaussian noise for isotropic classes: hides labels from attacks on lengths and on the means' line.

    The attack `residual` still reads nearly every label of two classes from a single batch; `marvell_full` hides these.

    The strength is one of four; none given means s = 4. For more than two classes, s is relative to the mean squared
    distance of two class means, and the two targets hold for any two of them, and so for one against the rest.

    A batch without an estimate (one class only, one row) gets the noise for the running estimates of the latest
    batches. If there are none yet, or a value is not finite, zeros are sent instead of the batch: they carry no
    information on any row, and the feature party's model only misses a step. (Isotropic noise would not suffice: a
    party that learns the direction of the class means later reads the recorded rows along it, because only one of the
    D directions of such noise hides anything.) Both are counted, logged as `fallback` and warned of once; a party may
    notice that the batch is *unusual*.

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
    checks_finite: ClassVar[bool] = True

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
        """Warn that another defense hides two classes better."""
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
    ) -> tuple[NoisePlan | None, Log, tuple[IsotropicAccountant, TwoClassModel] | None]:
        """Find the noise of a batch (B, D) from its `statistics`, or from earlier batches; draw nothing.

        Returns
        -------
        tuple
            The noise, or None for a batch to withhold; the log; and the accountant to which the gradients must be
            added, with the model of the batch, or None.
        """
        name, fallback = self._accountant_name(step), False
        estimates, accountant = cast("RunningEstimates", self._running_estimates(name)), self._accountant(name)
        try:
            classes = classes_of(numbers, difference, len(g))
            spectrum = self._spectrum(classes)
        except UnprotectedBatchError as error:
            fallback, counted = True, False
            self.count_fallback(error, "its noise comes from earlier batches, or zeros are sent")
            recalled = self._recall(g, estimates)
            if recalled is None:
                return None, _log_entries(0.0, math.inf, 0.0, fallback=True, withheld=True), None
            classes, spectrum = recalled
            accountant.note(spectrum)
        else:
            estimates.add(classes)
            counted = accountant.count(classes, spectrum, step.rows)
        positives = int((y == 1).sum()) if fallback else int(numbers[3])
        self.describe_noise(step, partial(_model, classes, spectrum))
        plan = NoisePlan(classes, spectrum, self.noise(g, step), (len(y) - positives, positives))
        log = _batch_log(classes, spectrum, positives / len(y), fallback=fallback)
        return plan, log, (accountant, classes) if counted else None

    def perturb(self, g: Tensor, y: Tensor, step: StepView | None = None) -> tuple[Tensor, Log]:
        """Add the noise; log its mean power, the divergence before and after, and the bound on the AUC.

        `sum_kl_before` and `sum_kl_after` are inf where the classes have no estimate, and where they have no variance
        and no noise hides that. For more than two classes they are the largest of any two; the bound is on the AUC of
        any class against the rest; a bound on the accuracy is logged beside it.
        """
        step = step or self.base.step
        estimates = self._running_estimates(self._accountant_name(step))
        if not g.numel():
            return g.clone(), _log_entries(0.0, 0.0, 0.0)
        if isinstance(estimates, ManyEstimates):
            return self._perturb_many(g, y, estimates, step)
        check_shapes("marvell", g, y)
        return of_one_run(*type(self).perturb_runs([self], g, y, [step]))

    def colluding(self, parties: Sequence[str], logs: Sequence[Log], step: StepView) -> Log:
        """Log the sum of the parties' divergences: their noises and, as modelled, a row's deviations are independent.

        For more than two classes it is at least the largest divergence of any two, for all these parties' gradients.
        """
        power, before, after = (
            sum(log[key] for log in logs) for key in ("noise_power", "sum_kl_before", "sum_kl_after")
        )
        fallback, withheld = (any(log[key] for log in logs) for key in ("fallback", "withheld"))
        return _log_entries(power, before, after, fallback=fallback, withheld=withheld)

    def _running_estimates(self, name: str) -> RunningEstimates | ManyEstimates:
        """Return the estimates from earlier batches, of one party if each has noise of its own."""
        if name not in self._estimates:
            self._estimates[name] = self._new_estimates()
        return self._estimates[name]

    def _perturb_many(self, g: Tensor, y: Tensor, estimates: ManyEstimates, step: StepView) -> tuple[Tensor, Log]:
        fallback = False
        try:
            model = multiclass.estimate(g, y, estimates)
            noise = model.noise(self.strength, self.value)
        except UnprotectedBatchError as error:
            fallback = True
            self.count_fallback(error, "its noise comes from earlier batches, or zeros are sent")
            recalled = self._recall_many(g, y, estimates)
            if recalled is None:
                log = _log_entries(0.0, math.inf, 0.0, fallback=True, withheld=True)
                log["accuracy_bound"] = float(torch.bincount(y.long()).max()) / len(y)  # guessing without gradients
                return torch.zeros_like(g), log
            model, noise = recalled
        else:
            estimates.add(model, y)
        problem = model.problem
        before, after = problem.divergences(0.0 * noise.levels), noise.divergences
        log = _log_entries(model.power(y, noise), float(before.max()), noise.largest, fallback=fallback)
        shares = model.shares(y)  # those of the problem include classes that the batch lacks
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

    def _spectrum(self, classes: TwoClassModel) -> NoiseSpectrum[float]:
        """Return the noise of the chosen strength, in the units of `classes`."""
        if self.strength in ("s", "P"):
            power = strengths.power(self.strength, self.value, classes.g, classes.unit)
            return _noise_of_power(classes, power, value=self.value)
        target = strengths.target(self.strength, self.value)
        return least_power(classes.u, classes.v, classes.d, classes.g, classes.p, target)[1]

    def _recall(self, g: Tensor, estimates: RunningEstimates) -> tuple[TwoClassModel, NoiseSpectrum[float]] | None:
        try:
            classes = estimates.recall(g)
            return None if classes is None else (classes, self._spectrum(classes))
        except UnprotectedBatchError:
            return None

    def accounted_epochs(self, width: int) -> int:
        """Return the largest number of epochs that can be accounted for gradients (B, width)."""
        return accounted_epochs(width)

    def _colluding_divergences(self, divergences: Mapping[str, float]) -> dict[str, float]:
        """Return the summed divergences of colluding parties: each has noise of its own, over the epochs too."""
        groups = self.base.config.parties.coalitions(list(self.base.widths))
        return {
            group: sum(divergences[one] for one in members)
            for group, members in groups.items()
            if divergences.keys() >= {*members}
        }

    def state(self) -> dict[str, Any]:
        """Add the running estimates."""
        return {**super().state(), "estimates": {party: running.state() for party, running in self._estimates.items()}}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore a state that `state` returned."""
        super().restore(state)
        self._estimates = {}
        for party, running in state["estimates"].items():
            self._estimates[party] = self._new_estimates()
            self._estimates[party].restore(running)

    def _new_accountant(self) -> IsotropicAccountant:
        return IsotropicAccountant(self.base.prepared, repeats=self._rows_recur)

    def _new_estimates(self) -> RunningEstimates | ManyEstimates:
        classes = self.base.labels.classes
        return RunningEstimates() if classes == 2 else ManyEstimates(classes)


def _batch_log(classes: TwoClassModel, spectrum: NoiseSpectrum[float], share: float, *, fallback: bool = False) -> Log:
    """Return the log of a batch with this noise and this share of positives."""
    before = optimal_noise(classes.u, classes.v, classes.d, classes.g, classes.p, 0.0).sum_kl
    power = spectrum.power(classes.d, share) * classes.unit**2
    return _log_entries(power, before, spectrum.sum_kl, fallback=fallback)


def _log_entries(
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
