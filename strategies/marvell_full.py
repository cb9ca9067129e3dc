"""Marvell with full covariances: the classes are matched direction by direction, not by one variance for all.

Marvell's model has one variance a class, the same in every direction, and at its optimum noise across the means' line
goes to one class only. Cut gradients lie near a few directions, so outside of these that class has noise and the other
has none: `flower_vfl.attacks.residual` reads labels there, from a single batch. Here what the classes' covariances
differ by is given to the class that lacks it, and noise that is the same for both covers what covariances do not tell.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from flower_vfl.errors import ConfigError, UnprotectedBatchError
from flower_vfl.metrics import auc_bound
from flower_vfl.parties.label import Log
from flower_vfl.strategies import marvell_strength
from flower_vfl.strategies.base import HookedStrategy, Scope
from flower_vfl.strategies.bounded import BoundedNoise
from flower_vfl.strategies.checks import check_shapes, check_two_classes, is_number, strength
from flower_vfl.strategies.marvell_estimates import largest_entry, working
from flower_vfl.strategies.marvell_full_course import FullCourse, Part, most_epochs
from flower_vfl.strategies.noise import Noise

EVERYWHERE = 0.5
"""Of the noise that covers what covariances do not tell, the part that is the same in every direction."""

_STEPS, _STEP, _PRECISION = 200, 1.5, 0.01
"""How the least power is looked for: doublings at most, the factor of each step down, and what is near enough."""

_NEGLIGIBLE = 1e-12
"""Of the largest squared length of a direction that the rows span: what is below is rounding."""


@dataclass(frozen=True, slots=True)
class Pair:
    """The two classes of a batch, in a unit of length of its own.

    Attributes
    ----------
    unit
        The length.
    p
        Fraction of positives.
    square
        Mean squared length of a row.
    g
        Squared distance of the class means.
    means
        (D,) difference of the class means, from negatives to positives.
    basis
        (D, R) orthonormal: directions in which rows of a class deviate from their mean, that of the means with them.
        None where it would be the identity.
    covariances
        (2, R, R) of negatives and of positives in that basis, biased (1/N), float64.
    """

    unit: float
    p: float
    square: float
    g: float
    means: Tensor
    basis: Tensor | None
    covariances: Tensor


@dataclass(frozen=True, slots=True)
class FullNoise:
    r"""Noise of the two classes, in the units of a `Pair`.

    .. math:: N_c = \lambda \, u u^T + \varepsilon I + \sum_i \ell_{ci} w_i w_i^T

    Attributes
    ----------
    along
        lambda, the variance along the means' line.
    everywhere
        epsilon, the variance in every direction.
    levels
        l, (2, R) of negatives and of positives, float64.
    directions
        w, (D, R), orthonormal columns.
    line
        u, (D,), of length 1; zeros where the means coincide.
    power
        Mean squared length of a row's noise.
    likeness
        Share of it that makes the covariances alike, at most one half; 0 without noise.
    sum_kl
        Sum of the two divergences between the classes with this noise, were they Gaussian with these covariances; inf
        without noise where they differ.
    """

    along: float
    everywhere: float
    levels: Tensor
    directions: Tensor
    line: Tensor
    power: float
    likeness: float
    sum_kl: float


def estimate(g: Tensor, y: Tensor) -> Pair:
    """Estimate the classes' means and covariances from gradients (B, D) of examples with labels (B,).

    Raises
    ------
    UnprotectedBatchError
        When a class is missing or a value is not finite.
    ConfigError
        When a label is neither 0 nor 1, or shapes do not fit.
    """
    check_shapes("marvell_full", g, y)
    work = working(g)
    members = torch.stack([y == 0, y == 1])
    unit, *counts = torch.cat([largest_entry(work)[None].double(), members.sum(dim=1)]).tolist()
    check_two_classes("marvell_full", [unit], counts, len(g))
    unit = unit or 1.0
    work = work / unit
    sizes = torch.tensor(counts).to(work)
    means = (members.to(work) @ work) / sizes[:, None]
    apart = work - means[y.long()]
    difference = means[1] - means[0]
    basis = _basis(torch.cat([apart, difference[None]])) if g.shape[1] > len(g) else None
    inside = apart if basis is None else apart @ basis
    covariances = torch.stack([_scatter(inside[members[label]], counts[label]) for label in (0, 1)])
    squares = torch.stack([work.square().sum(dim=1).mean().double(), difference.double().square().sum()])
    square, apart = squares.tolist()
    return Pair(unit, counts[1] / len(g), square, apart, difference, basis, covariances)


def _scatter(rows: Tensor, count: float) -> Tensor:
    return (rows.T @ rows).double() / count


def _basis(rows: Tensor) -> Tensor:
    """Return an orthonormal basis (D, R) of what rows (B, D) span, by way of their inner products."""
    squares, vectors = torch.linalg.eigh((rows @ rows.T).double())
    kept = squares > _NEGLIGIBLE * max(float(squares[-1]), torch.finfo(torch.float64).tiny)
    columns = rows.T @ (vectors[:, kept] / squares[kept].sqrt()).to(rows)
    orthonormal: Tensor = torch.linalg.qr(columns)[0]  # what rounding left of the angles
    return orthonormal


def optimal_noise(pair: Pair, power: float, spread: float = 0.1) -> FullNoise:
    r"""Return noise of this power, in units of the pair, that makes the classes alike and covers the means' line.

    With :math:`E = A_1 - A_0 = \sum_i e_i w_i w_i^T`, the difference of the classes' covariances, noise
    :math:`\theta E_+` for negatives and :math:`\theta E_-` for positives is what makes them alike: at theta = 1 both
    have :math:`A_0 + E_+ = A_1 + E_-`. Half of the power goes there at most, mostly far less. Of what remains,
    `spread` is noise that both classes get alike, half of it in proportion to :math:`|e_i|`, half the same in every
    direction, for what covariances do not tell; and the rest is noise that both get along the line of the means, which
    is all that tells the classes apart by then: with theta = 1 the divergence is :math:`\Delta^T C^{-1} \Delta`.

    Parameters
    ----------
    pair : Pair
        The classes.
    power : float
        Mean squared length of a row's noise, at least 0.
    spread : float
        Above 0 and below 1.

    """
    return _Family(pair, spread).noise(power)


def least_noise(pair: Pair, target: float, spread: float = 0.1) -> FullNoise:
    """Return the noise of `optimal_noise` of the least power, within a hundredth, that leaves at most this divergence.

    Parameters
    ----------
    pair : Pair
        The classes.
    target : float
        Above 0.
    spread : float
        Above 0 and below 1.

    Raises
    ------
    UnprotectedBatchError
        When no power is found: the target is as small as rounding.
    """
    family = _Family(pair, spread)
    if (nothing := family.noise(0.0)).sum_kl <= target:
        return nothing
    found = family.noise(2.0 * family.matching + pair.g / ((1.0 - spread) * target))  # often a little too much
    for _ in range(_STEPS):
        if found.sum_kl <= target:
            break
        found = family.noise(2.0 * found.power)
    else:
        raise UnprotectedBatchError(f"marvell_full: no power was found that leaves a divergence of {target}")
    while (less := family.noise(found.power / _STEP)).sum_kl <= target:
        found = less
    low, high = math.log(less.power), math.log(found.power)
    while high - low > _PRECISION:
        middle = family.noise(math.exp((low + high) / 2.0))
        if middle.sum_kl <= target:
            found, high = middle, (low + high) / 2.0
        else:
            low = (low + high) / 2.0
    return found


class _Family:
    """The noise that a pair of classes gets, by its power.

    Covariances are written in the directions in which the classes differ, so that most of the noise is diagonal.
    """

    def __init__(self, pair: Pair, spread: float) -> None:
        self._pair, self._spread = pair, spread
        values, vectors = torch.linalg.eigh(pair.covariances[1] - pair.covariances[0])
        self._lacks = torch.stack([values.clamp(min=0.0), (-values).clamp(min=0.0)])
        shares = torch.tensor([1.0 - pair.p, pair.p]).to(self._lacks)
        self.matching, self._total = torch.stack([(shares @ self._lacks).sum(), self._lacks.sum()]).tolist()
        self._line = pair.means / math.sqrt(pair.g) if pair.g > 0.0 else torch.zeros_like(pair.means)
        directions = vectors.to(pair.means) if pair.basis is None else pair.basis @ vectors.to(pair.means)
        self._directions = directions.contiguous()  # as a checkpoint returns it: products of another layout round
        self._covariances = vectors.T @ pair.covariances @ vectors
        inside = self._line if pair.basis is None else self._line @ pair.basis
        self._inside = inside.double() @ vectors

    def noise(self, power: float) -> FullNoise:
        """Return the noise of this power, in units of the pair."""
        pair, line, directions = self._pair, self._line, self._directions
        if power <= 0.0:
            left = math.inf if self._total > 0.0 or pair.g > 0.0 else 0.0
            return FullNoise(0.0, 0.0, torch.zeros_like(self._lacks), directions, line, 0.0, 0.0, left)
        theta = min(1.0, power / 2.0 / self.matching) if self.matching > 0.0 else 1.0
        likeness = theta * self.matching / power
        rest = power - theta * self.matching
        covering = self._spread * rest if pair.g > 0.0 else rest  # without a line all of it covers
        alike = covering * (1.0 - EVERYWHERE) / self._total if self._total > 0.0 else 0.0
        everywhere = (covering - alike * self._total) / len(pair.means)
        along = rest - covering
        levels = theta * self._lacks + alike * self._lacks.sum(dim=0)
        common = along * torch.outer(self._inside, self._inside)
        left = divergence(
            self._covariances + torch.diag_embed(levels + everywhere) + common, math.sqrt(pair.g) * self._inside
        )
        return FullNoise(along, everywhere, levels, directions, line, power, likeness, left)


def divergence(covariances: Tensor, difference: Tensor) -> float:
    """Return the sum of both divergences of Gaussians with covariances (2, D, D) and means that differ by (D,)."""
    inverses = torch.linalg.inv(covariances)
    spreads = 0.5 * (inverses * covariances.flip(0)).sum() - len(difference)  # both are symmetric
    means = 0.5 * torch.einsum("i,cij,j->", difference, inverses, difference)
    return max(0.0, float(spreads)) + float(means)


def perturb(
    g: Tensor, y: Tensor, *, s: float, generator: torch.Generator, spread: float = 0.1
) -> tuple[Tensor, FullNoise]:
    """Add `optimal_noise` of mean power s times the squared distance of the class means, each row its own draw.

    A row of class c gets normal noise of the covariance that is written at `FullNoise`. It hides labels from every
    attack on cut gradients by every feature party: `flower_vfl.metrics.auc_bound` of the noise's sum_kl bounds their
    AUC, for classes that are Gaussian with the covariances of this batch.

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
    value, share = strength("marvell_full: s", s), _checked(spread)
    pair = estimate(g, y)
    noise = _strongest(pair, value * pair.g, share, required=value > 0.0)
    return _draw(g, y, noise, pair.unit, Noise(generator)), noise


def _strongest(pair: Pair, power: float, spread: float, *, required: bool) -> FullNoise:
    """Return the noise of this power; refuse to do nothing where something was required and is needed."""
    noise = optimal_noise(pair, power, spread)
    if required and power == 0.0 and noise.sum_kl > 0.0:
        raise UnprotectedBatchError(
            "marvell_full: the class means coincide but the classes differ; noise relative to the distance of the "
            "means is zero then and hides nothing"
        )
    return noise


def _draw(g: Tensor, y: Tensor, noise: FullNoise, unit: float, source: Noise) -> Tensor:
    """Return `g` with noise that is given in this unit of length."""
    work = working(g)
    # The symmetric root of a covariance does not depend on how its eigenvectors are chosen: where the numbers of a row
    # are persistent, its noise is as far as the covariance is.
    normals = source.draw(work, work.shape[1], stream=1)
    if noise.everywhere > 0.0:
        stretched = ((1.0 + noise.levels / noise.everywhere).sqrt() - 1.0).to(work)
        inside = (normals @ noise.directions.to(work)).mul_(stretched[y.long()])
        normals = torch.addmm(normals, inside, noise.directions.to(work).T)
    noisy = torch.add(work, normals, alpha=math.sqrt(noise.everywhere) * unit)
    lengths = source.draw(work, 1)[:, 0] * (math.sqrt(noise.along) * unit)
    return torch.addr(noisy, lengths, noise.line.to(work)).to(g.dtype)


def _checked(spread: float) -> float:
    if not is_number(spread) or not 0.0 < spread < 1.0:
        raise ConfigError(f"marvell_full: spread must be above 0 and below 1, given {spread!r}")
    return float(spread)


@dataclass(frozen=True, slots=True)
class _Kept:
    """The noise of a batch that had both classes, the unit it is given in, and the root mean square of its rows."""

    noise: FullNoise
    unit: float
    length: float


class MarvellFull(BoundedNoise[FullCourse]):
    """Gaussian noise that makes the two classes' covariances alike and covers the difference of their means.

    What Marvell is for classes with one variance each, this is for classes as they are: it also hides labels from
    attacks that look outside the means' line, such as `residual`. For two classes.

    The strength is one of four; none given means s = 4.

    A batch that cannot be estimated from (one class only) gets the noise of the latest one that could, for rows as long
    as its own or as that one's, whichever are longer; zeros are sent where there was none yet, and where a value is not
    finite. Both are counted, logged as `fallback` and told once.

    Parameters
    ----------
    strategy : HookedStrategy
        What it wraps.
    s : float
        Power of the noise relative to the squared distance of the class means, at least 0.
    P : float
        Power of the noise itself, the mean squared norm of a row's noise, at least 0.
    sum_kl : float
        Largest divergence to leave, above 0; the least power that reaches it is used. `auc_bound` says what it means.
    detection_error : float
        Least detection error to leave to the best attack, above 0 and below 0.5: a sum_kl of (2 - 4 L)^2.
    spread : float
        The share of the power, once covariances are matched, that goes in all directions; above 0 and below 1.
    scope, rho
        See `NoiseDefense`.

    References
    ----------
    After Li et al., *Label Leakage and Protection in Two-party Split Learning*, ICLR 2022, section 4.2, and for sum_kl
    and detection_error the workshop version of 2021, whose model has isotropic classes; docs/methods/marvell-full.md.
    """

    name: ClassVar[str] = "marvell_full"
    unbiased: ClassVar[bool] = True
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
    ) -> None:
        super().__init__(strategy, scope=scope, rho=rho)
        self.strength, self.value = marvell_strength.chosen(
            self.name, s=s, P=P, sum_kl=sum_kl, detection_error=detection_error
        )
        self.spread = _checked(spread)
        self._latest: dict[int, _Kept] = {}

    @property
    def params(self) -> dict[str, Any]:
        """The strength by its name, the spread, the persistent share and the scope."""
        return {self.strength: self.value, "spread": self.spread, **super().params}

    def perturb(self, g: Tensor, y: Tensor) -> tuple[Tensor, Log]:
        """Add the noise and log its mean power, the divergence that it leaves and the bound on any attack's AUC.

        `likeness` is the share of the power that makes the covariances alike. `sum_kl_after` is inf without noise, and
        where the classes could not be estimated.
        """
        if not g.numel() or self.value == 0.0:
            return g.clone(), _report(0.0, 0.0, 0.0 if not g.numel() else math.inf)
        try:
            pair = estimate(g, y)
            noise, unit = self._noise(pair), pair.unit
            self._latest[self.part] = _Kept(noise, unit, unit * math.sqrt(pair.square))
            self._course().add(pair, [Part(noise)], noise.sum_kl, g, y, self.base.batch)
        except UnprotectedBatchError as error:
            latest = self._latest.get(self.part)
            length = float(working(g).double().square().sum(dim=1).mean().sqrt())
            if latest is None or not math.isfinite(length) or len(latest.noise.line) != g.shape[1]:
                raise
            self.count_fallback(error, "its noise comes from the latest batch that had both classes")
            noise = latest.noise
            unit = latest.unit * max(1.0, length / latest.length) if latest.length > 0.0 else latest.unit
            log = _report(noise.power * unit**2, noise.likeness, math.inf, fallback=True)
        else:
            log = _report(noise.power * unit**2, noise.likeness, noise.sum_kl)
        return _draw(g, y, noise, unit, self.noise(g)), log

    def _noise(self, pair: Pair) -> FullNoise:
        """Return the noise of the chosen strength."""
        if self.strength in ("s", "P"):
            power = marvell_strength.power(self.strength, self.value, pair.g, pair.unit)
            return _strongest(pair, power, self.spread, required=True)
        return least_noise(pair, marvell_strength.target(self.strength, self.value), self.spread)

    def most_epochs(self, width: int) -> int:
        """Return after how many epochs something is still said of gradients (B, width)."""
        return most_epochs(width)

    def _nothing_done(self) -> FullCourse:
        return FullCourse(self.base.labels.train, repeats=self._repeats)

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
        return {**super().state(), "latest": latest}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state` returned."""
        super().restore(state)
        self._latest = {
            int(part): _Kept(
                FullNoise(**{name: kept[name] for name in FullNoise.__slots__}), kept["unit"], kept["length"]
            )
            for part, kept in state["latest"].items()
        }


def _report(power: float, likeness: float, sum_kl: float, *, fallback: bool = False) -> Log:
    return {
        "noise_power": power,
        "likeness": likeness,
        "sum_kl_after": sum_kl,
        "auc_bound": auc_bound(sum_kl),
        "fallback": float(fallback),
    }
