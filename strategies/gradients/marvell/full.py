"""Marvell with full covariances: the classes are matched direction by direction, not by one variance for all.

Marvell's model has one variance a class, the same in every direction, and at its optimum noise across the means' line
goes to one class only. Cut gradients lie near a few directions; outside of these that class has noise and the other has
none, and `flower_vfl.attacks.gradient.residual` reads labels there, from a single batch. Here each class gets noise
with the covariance that it lacks compared to the other, and noise that is the same for both covers differences beyond
the covariances.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from flower_vfl.auditing.noise import GaussianNoise
from flower_vfl.errors import ConfigError, UnprotectedBatchError
from flower_vfl.metrics import auc_bound, together_shaped
from flower_vfl.parties.hooks import Log, StepView
from flower_vfl.protocol.schedule import Rows
from flower_vfl.strategies.base import HookedStrategy
from flower_vfl.strategies.gradients.accounted import AccountedNoise
from flower_vfl.strategies.gradients.base import Scope
from flower_vfl.strategies.gradients.checks import is_real, strength
from flower_vfl.strategies.gradients.deviation_correlation import deviations
from flower_vfl.strategies.gradients.marvell import strengths
from flower_vfl.strategies.gradients.marvell.full_accountant import (
    LARGEST_COVARIANCE,
    FullAccountant,
    PartNoise,
    accounted_epochs,
    release,
)
from flower_vfl.strategies.gradients.marvell.full_noise import FullNoise, Pair, estimate, least_noise, optimal_noise
from flower_vfl.strategies.gradients.marvell.mixture_noise import WIDEST_MIXTURE, ResidualMixture
from flower_vfl.strategies.gradients.noise import Noise
from flower_vfl.strategies.gradients.units import beside, working
from flower_vfl.training.factories import schedule_of

__all__ = ["FullNoise", "MarvellFull", "Pair", "estimate", "least_noise", "optimal_noise", "perturb"]


def perturb(
    g: Tensor, y: Tensor, *, s: float, generator: torch.Generator, spread: float = 0.1
) -> tuple[Tensor, FullNoise]:
    """Add `optimal_noise` of mean power s times the squared distance of the class means, each row its own draw.

    A row of class c gets normal noise of the covariance in the formula of `FullNoise`. `flower_vfl.metrics.auc_bound`
    of the noise's sum_kl bounds the AUC of attacks that use only a row's gradient, if the classes are Gaussian with the
    covariances of this batch.

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
    spread : float
        See `optimal_noise`.

    Returns
    -------
    tuple[Tensor, FullNoise]
        (B, D) perturbed gradients, unbiased; and the noise, in units of the largest entry of `g`.

    Raises
    ------
    UnprotectedBatchError
        When the batch has one class only, a value is not finite, or the class means coincide although the classes
        differ, so that there is no power to hide that.
    ConfigError
        For an s that is negative or not finite, a spread that is not between 0 and 1, and other labels than 0 and 1.

    Examples
    --------
    >>> g = torch.tensor([[0.1, 0.0], [0.1, 0.1], [-0.9, -0.5], [-0.7, -0.4]])
    >>> noisy, noise = perturb(g, torch.tensor([0, 0, 1, 1]), s=4.0, generator=torch.Generator().manual_seed(0))
    >>> noisy.shape, noise.levels.shape
    (torch.Size([4, 2]), torch.Size([2, 2]))
    """
    value, share = strength("marvell_full: s", s), _check_spread(spread)
    pair = estimate(g, y)
    noise = _noise_of_power(pair, value * pair.g, share, value=value)
    return draw_noise(g, y, noise, pair.unit, Noise(generator)), noise


def _noise_of_power(pair: Pair, power: float, spread: float, *, value: float) -> FullNoise:
    """Return the noise of this power, which is that of a strength of this value."""
    noise = optimal_noise(pair, power, spread)
    strengths.check_power("marvell_full", value, power, noise.sum_kl)
    return noise


def draw_noise(
    g: Tensor, y: Tensor, noise: FullNoise, unit: float, source: Noise, imitating: Tensor | None = None
) -> Tensor:
    """Return `g` with noise that is given in units of `unit`; the equalising part may be residual mixture noise."""
    work = working(g)
    directions, line = beside(noise.directions, work), beside(noise.line, work)
    # The symmetric root of a covariance does not depend on the choice of its eigenvectors: the noise of persistent
    # numbers is as persistent as the covariance.
    if imitating is None:
        normals, levels = source.draw(work, work.shape[1], stream=1), noise.levels
    else:
        normals, levels = source.fresh(work, work.shape[1]), noise.common_levels.expand_as(noise.levels)
    if noise.everywhere > 0.0:
        stretched = beside(torch.from_numpy(np.sqrt(1.0 + levels.numpy() / noise.everywhere) - 1.0), work)
        inside = (normals @ directions).mul_(stretched.index_select(0, y.long()))
        normals.addmm_(inside, directions.T)
    noisy = torch.add(work, normals, alpha=math.sqrt(noise.everywhere) * unit, out=normals)
    if imitating is not None:
        lacking = beside((noise.levels - levels).sqrt(), work)
        missing = (imitating.to(work) @ directions).mul_(lacking.index_select(0, y.long()))
        noisy.addmm_(missing, directions.T, alpha=unit)
    lengths = source.draw(work, 1)[:, 0] * (math.sqrt(noise.along) * unit)
    return noisy.addr_(lengths, line).to(g.dtype)


def _model(noise: FullNoise, unit: float) -> GaussianNoise:
    """Return the noise of the two classes, in the units of the gradients."""
    line = noise.line[:, None].double() * math.sqrt(noise.along)
    directions = noise.directions.double()
    negative, positive = (torch.cat([directions * level.sqrt(), line], dim=1) * unit for level in noise.levels)
    return GaussianNoise((noise.everywhere * unit**2, noise.everywhere * unit**2), (negative, positive))


def _check_spread(spread: float) -> float:
    if not is_real(spread) or not 0.0 < spread < 1.0:
        raise ConfigError(f"marvell_full: spread must be above 0 and below 1, given {spread!r}")
    return float(spread)


@dataclass(frozen=True, slots=True)
class _LatestNoise:
    """The noise of a batch with both classes, its unit, and the root mean square of the batch's rows."""

    noise: FullNoise
    unit: float
    length: float


@dataclass(frozen=True, slots=True)
class _ProtectedBatch:
    """A party's clean gradients (B, D) of a batch with both classes, labels (B,), noise and the unit of this."""

    g: Tensor
    y: Tensor
    noise: FullNoise
    unit: float


class MarvellFull(AccountedNoise[FullAccountant]):
    """Gaussian noise that equalises the two classes' covariances and covers the difference of their means.

    It generalises Marvell from classes with one variance each to classes with any covariances: it also hides labels
    from attacks that read outside the means' line, such as `residual`. For two classes.

    The strength is one of four; none given means s = 4.

    A batch without an estimate (one class only) gets the noise of the latest batch with one, for rows as long as its
    own or as those of that batch, whichever are longer; zeros are sent if there was none yet, or a value is not finite.
    Both are counted, logged as `fallback` and warned of once.

    Parameters
    ----------
    strategy : HookedStrategy
        The wrapped strategy.
    s : float
        Power of the noise relative to the squared distance of the class means, at least 0.
    P : float
        Power of the noise itself, the mean squared norm of a row's noise, at least 0.
    sum_kl : float
        Largest divergence to leave, above 0; the least power that reaches it is used. `auc_bound` gives its AUC.
    detection_error : float
        Least detection error to leave to the best attack, above 0 and below 0.5: a sum_kl of (2 - 4 L)^2.
    spread : float
        The share of the power, once covariances are matched, that goes in all directions; above 0 and below 1.
    scope, rho
        See `NoiseDefense`.
    imitate : bool
        True if the covariances are made equal by mixtures of the deviations of rows of the other class
        (`ResidualMixture`), so that classes are equal over all epochs as well; `rho` then applies to the noise along
        the means' line alone, and all other noise is fresh. For gradients of up to 256 numbers.

    References
    ----------
    After Li et al., *Label Leakage and Protection in Two-party Split Learning*, ICLR 2022, section 4.2, and for sum_kl
    and detection_error the workshop version of 2021, whose model has isotropic classes; docs/methods/marvell-full.md.
    """

    name: ClassVar[str] = "marvell_full"
    read_by: ClassVar[tuple[str, ...]] = ("direction",)
    unbiased: ClassVar[bool] = True
    checks_finite: ClassVar[bool] = True
    two_classes_only: ClassVar[bool] = True

    def __init__(
        self,
        strategy: HookedStrategy,
        *,
        s: float | None = None,
        P: float | None = None,
        sum_kl: float | None = None,
        detection_error: float | None = None,
        spread: float = 0.1,
        scope: Scope = "joint",
        rho: float = 0.0,
        imitate: bool = False,
    ) -> None:
        super().__init__(strategy, scope=scope, rho=rho)
        self.strength, self.value = strengths.chosen(
            self.name, s=s, P=P, sum_kl=sum_kl, detection_error=detection_error
        )
        self.spread = _check_spread(spread)
        if not isinstance(imitate, bool):
            raise ConfigError(f"marvell_full: imitate must be true or false, given {imitate!r}")
        self.imitate = imitate
        self._mixtures: dict[int, ResidualMixture] = {}
        self._latest: dict[int, _LatestNoise] = {}
        self._protected: dict[int, _ProtectedBatch] = {}

    @property
    def params(self) -> dict[str, Any]:
        """The strength by its name, the spread, the persistent share, the scope, and the switch of mixture noise."""
        imitate = {"imitate": True} if self.imitate else {}
        return {self.strength: self.value, "spread": self.spread, **super().params, **imitate}

    @property
    def follows_rows(self) -> bool:
        """True also with residual mixture noise: a row's noise is always a mixture of the same rows."""
        return super().follows_rows or self.imitate

    def perturb(self, g: Tensor, y: Tensor, step: StepView | None = None) -> tuple[Tensor, Log]:
        """Add the noise; log its mean power, the divergence that it leaves and the bound on the AUC.

        `matched` is the share of the power that equalises the covariances. `sum_kl_after` is inf without noise, and
        where the classes have no estimate.
        """
        step = step or self.base.step
        part = step.part
        self._protected.pop(part, None)
        if not g.numel() or self.value == 0.0:
            return g.clone(), _log_entries(0.0, 0.0, 0.0 if not g.numel() else math.inf)
        try:
            pair = estimate(g, y)
            self._update_mixture(pair, g, y, step)
            noise, unit = self._noise(pair), pair.unit
            self._latest[part] = _LatestNoise(noise, unit, unit * math.sqrt(pair.square))
            self._protected[part] = _ProtectedBatch(g, y, noise, unit)
            self._accountant(self._accountant_name(step)).add(pair, [PartNoise(noise)], noise.sum_kl, g, y, step.rows)
        except UnprotectedBatchError as error:
            latest = self._latest.get(part)
            length = float(working(g).double().square().sum(dim=1).mean().sqrt())
            if latest is None or not math.isfinite(length) or len(latest.noise.line) != g.shape[1]:
                raise
            self.count_fallback(error, "its noise comes from the latest batch that had both classes")
            noise = latest.noise
            unit = latest.unit * max(1.0, length / latest.length) if latest.length > 0.0 else latest.unit
            log = _log_entries(noise.power * unit**2, noise.matched, math.inf, fallback=True)
        else:
            log = _log_entries(noise.power * unit**2, noise.matched, noise.sum_kl)
        imitating = self._mixture_noise(g, y, step)
        if imitating is None:  # mixtures of rows are not normal
            self.describe_noise(step, partial(_model, noise, unit))
        return draw_noise(g, y, noise, unit, self.noise(g, step), imitating), log

    def _update_mixture(self, pair: Pair, g: Tensor, y: Tensor, step: StepView) -> None:
        """Add the deviations of a batch's rows from their class means to the mixtures."""
        if not self.imitate or pair.square == 0.0:
            return
        if g.shape[1] > WIDEST_MIXTURE:
            raise ConfigError(
                f"marvell_full: imitate is for gradients of up to {WIDEST_MIXTURE} numbers, these have {g.shape[1]}; "
                "take a narrower cut, or leave it out"
            )
        mixture, away = self._mixtures.get(step.part), deviations(working(g), y) / (pair.unit * math.sqrt(pair.square))
        if mixture is None or mixture.width != g.shape[1]:
            mixture = ResidualMixture.begin(self._class_counts(), away, y, self.generator(g.device))
            self._mixtures[step.part] = mixture
        mixture.add(away, y, _rows(g, step))

    def _mixture_noise(self, g: Tensor, y: Tensor, step: StepView) -> Tensor | None:
        """Return mixtures (B, D) in place of normal numbers; None without residual mixture noise."""
        mixture = self._mixtures.get(step.part)
        if mixture is None:
            return None
        numbers = self.base.identities(_rows(g, step))
        normals = self.noise(g, step).fresh(working(g), g.shape[1])
        return mixture.mixtures(y, numbers, normals, key=self._key("imitation"), part=step.part)

    def _class_counts(self) -> tuple[int, int]:
        """Return the number of training rows of each prepared class, without those for validation."""
        base = self.base
        labels, held_out = base.prepared, schedule_of(base.config, len(base.prepared), 0, periods=base.periods).held_out
        positives = int(np.count_nonzero(labels)) - int(np.count_nonzero(labels[held_out]))
        return len(labels) - len(held_out) - positives, positives

    def colluding(self, parties: Sequence[str], logs: Sequence[Log], step: StepView) -> Log:
        """Log the divergence of these parties' gradients side by side, with joint covariances and each party's noise.

        Gradients wider than `LARGEST_COVARIANCE` have no bound, nor have those of a party with another batch's noise.
        """
        places = [step.of(party).part for party in parties]
        if sum(step.widths[party] for party in parties) > LARGEST_COVARIANCE:
            return {}
        power = sum(log["noise_power"] for log in logs)
        matched = sum(log["noise_power"] * log.get("matched", 0.0) for log in logs) / power if power else 0.0
        if not all(place in self._protected for place in places):
            return _log_entries(power, matched, math.inf, fallback=any(log["fallback"] for log in logs))
        sent = [self._protected[place] for place in places]
        g, y = torch.cat([working(one.g) for one in sent], dim=1), sent[0].y
        pair = estimate(g, y)
        parts = [PartNoise(one.noise, one.unit / pair.unit) for one in sent]
        left = together_shaped([release(pair, parts)], rho=self.rho, kept=0.0).sum_kl()
        self._accountant("+".join(parties)).add(pair, parts, left, g, y, step.rows)
        return _log_entries(power, matched, left)

    def check_bound(self, epochs: int) -> None:
        """Refuse also colluding parties with noise of their own whose gradients are too wide to be accounted for."""
        super().check_bound(epochs)
        for group, width in self._groups().items():
            if width > LARGEST_COVARIANCE:
                raise ConfigError(
                    f"attack.max_bound: {group} collude and get {width} numbers a row with noise of their own; what "
                    f"they read together is computed for up to {LARGEST_COVARIANCE}: take "
                    'scope="joint", or attack.max_leak'
                )

    def _groups(self) -> dict[str, int]:
        """Return the colluding parties and the width of their gradients, where each party has noise of its own."""
        widths = self.base.widths
        if self.scope == "joint" or len(widths) < 2:
            return {}
        groups = self.base.config.parties.coalitions(list(widths))
        return {group: sum(widths[party] for party in members) for group, members in groups.items()}

    def _accounted_widths(self, widths: Mapping[str, int]) -> list[int]:
        return [*super()._accounted_widths(widths), *self._groups().values()]

    def _noise(self, pair: Pair) -> FullNoise:
        """Return the noise of the chosen strength."""
        if self.strength in ("s", "P"):
            power = strengths.power(self.strength, self.value, pair.g, pair.unit)
            return _noise_of_power(pair, power, self.spread, value=self.value)
        return least_noise(pair, strengths.target(self.strength, self.value), self.spread)

    def accounted_epochs(self, width: int) -> int:
        """Return the largest number of epochs that can be accounted for gradients (B, width)."""
        return 1 if self.imitate else accounted_epochs(width)

    def _new_accountant(self) -> FullAccountant:
        return FullAccountant(self.base.prepared, repeats=self._rows_recur, one_epoch=self.imitate)

    def state(self) -> dict[str, Any]:
        """Add the noise of the latest batch that had both classes, for each party that has noise of its own."""
        latest = {
            str(part): {
                "unit": kept.unit,
                "length": kept.length,
                **{name: getattr(kept.noise, name) for name in FullNoise.__slots__},
            }
            for part, kept in self._latest.items()
        }
        imitated = {str(part): mixture.state() for part, mixture in self._mixtures.items()}
        return {**super().state(), "latest": latest, **({"imitated": imitated} if self.imitate else {})}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore a state that `state` returned."""
        super().restore(state)
        self._latest = {
            int(part): _LatestNoise(
                FullNoise(**{name: kept[name] for name in FullNoise.__slots__}), kept["unit"], kept["length"]
            )
            for part, kept in state["latest"].items()
        }
        self._mixtures = {int(part): ResidualMixture.of(mixture) for part, mixture in state.get("imitated", {}).items()}


def _rows(g: Tensor, step: StepView) -> Rows:
    if step.rows is None or len(step.rows) != len(g):
        raise ConfigError("noise that imitates follows the rows of a batch: call `begin_batch` before `protect`")
    return step.rows


def _log_entries(power: float, matched: float, sum_kl: float, *, fallback: bool = False) -> Log:
    return {
        "noise_power": power,
        "matched": matched,
        "sum_kl_after": sum_kl,
        "auc_bound": auc_bound(sum_kl),
        "fallback": float(fallback),
    }
