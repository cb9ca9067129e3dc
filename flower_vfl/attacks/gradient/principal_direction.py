"""The first principal direction of gradients, followed from batch to batch, with the side of the rarer class."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Self

import torch

from flower_vfl.attacks.base import Attack, RowAttack
from flower_vfl.attacks.rows import in_safe_units
from flower_vfl.errors import ArgumentError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from torch import Tensor

FORGETTING = 0.5
"""Weight of the earlier batches relative to the next one, the forgetting factor."""

FIRST_ITERATIONS, NEXT_ITERATIONS = 16, 2
"""Numbers of power iterations on the first batch, and on each later one, which start at the direction before it."""

CLEAR = 4.0
"""Number of standard deviations of the evidence at which the side is settled."""


@dataclass(frozen=True, slots=True, eq=False)
class Line:
    """A principal direction and its side of the rarer class, after some batches.

    Attributes
    ----------
    direction
        (..., D) of length 1; zeros where all gradients were zero.
    weight
        (...) discounted sum of squares along it, in units of the batches' mean squared lengths.
    evidence
        (...) the sum of standard scores of the batches for a side; at least 0 means that `direction` points to the
        rarer class.
    batches
        (...) number of batches in the evidence.
    """

    direction: Tensor
    weight: Tensor
    evidence: Tensor
    batches: Tensor

    @classmethod
    def unknown(cls, rows: Tensor) -> Self:
        """Return the line before the first batch, for rows (..., B, D) in the number format of the computation."""
        direction = rows.new_zeros((*rows.shape[:-2], rows.shape[-1]))
        weight, evidence, batches = direction.new_zeros((3, *rows.shape[:-2]))
        return cls(direction, weight, evidence, batches)

    def state(self) -> dict[str, Tensor]:
        """Return copies of its tensors in main memory, by name."""
        return {one.name: getattr(self, one.name).cpu().clone() for one in fields(self)}


@dataclass(frozen=True, slots=True, eq=False)
class Placed:
    """The coordinates of a batch along its line, and the line after it.

    Attributes
    ----------
    along
        (..., B) coordinate of each row along the line, the rarer class on the positive side; NaN for a batch that is
        not finite.
    lengths
        (..., B) lengths of the rows.
    line
        The line after this batch.

    Lengths and coordinates are in units of the root mean square length of the batch's rows.
    """

    along: Tensor
    lengths: Tensor
    line: Line


def follow(rows: Tensor, line: Line | None = None) -> Placed:
    r"""Return the coordinates of rows along the principal direction of their batch, oriented as in earlier batches.

    The direction is the first right-singular vector of the rows, not centred, together with one row for the earlier
    batches (incremental principal components with a forgetting factor):

    .. math:: v_t = \arg\max_{\|v\| = 1} \;
        \sum_i \langle x_i, v \rangle^2 / m_t + \lambda w_{t-1} \langle v_{t-1}, v \rangle^2

    with :math:`m_t` the mean squared length of the batch's rows and :math:`w_{t-1}` the maximum for the batch before.
    Of the two signs it has the one with :math:`\langle v_t, v_{t-1} \rangle \ge 0`.

    The side of the rarer class follows from the first batches, without a label. The mean over a batch of
    :math:`(p - y) \, \partial h / \partial z` lies on the side of the more frequent class as long as the model
    underestimates its share, as an untrained one does; and the rarer class has the longer tail. Each batch adds the
    standard scores of both, :math:`-\sqrt B \, \bar a / s` and :math:`\sqrt{B / 6}` times the skewness, until the sum
    is beyond `CLEAR` standard deviations; then the side is settled.

    Parameters
    ----------
    rows
        (..., B, D) gradients of any scale.
    line
        The line after the batches before, with the same leading dimensions and width; None for the first batch.

    Returns
    -------
    Placed
        Coordinates, lengths and line of float32, or of float64 where the rows are.

    Raises
    ------
    ArgumentError
        When the line has other leading dimensions or another width.

    References
    ----------
    Ross, Lim, Lin and Yang, *Incremental Learning for Robust Visual Tracking*, 2008, section 3 (the forgetting factor).

    Examples
    --------
    >>> rows = torch.tensor([[3.0, 4.0], [-0.6, -0.8], [-0.6, -0.8], [-0.6, -0.8]])
    >>> follow(rows).along
    tensor([ 1.8898, -0.3780, -0.3780, -0.3780])
    >>> follow(-rows, follow(rows).line).along  # the side is settled by the first batches
    tensor([-1.8898,  0.3780,  0.3780,  0.3780])
    """
    x, _, finite = in_safe_units(rows.to(torch.promote_types(rows.dtype, torch.float32)))
    started, line = line is not None, Line.unknown(x) if line is None else line
    if line.direction.shape != (*x.shape[:-2], x.shape[-1]):
        raise ArgumentError(
            f"Gradients {tuple(rows.shape)} came after batches with a principal direction "
            f"{tuple(line.direction.shape)}: an attack that follows batches sees those of one layer and party."
        )
    placed = _updated(x, line, NEXT_ITERATIONS if started else FIRST_ITERATIONS)
    if finite is None:
        return placed
    return replace(placed, along=placed.along.where(finite[..., None], torch.nan))


def _updated(x: Tensor, line: Line, iterations: int) -> Placed:
    """Return the coordinates of finite rows (..., B, D) along the line, updated by them."""
    lengths = torch.linalg.vector_norm(x, dim=-1)
    square = lengths.square().mean(dim=-1) if x.shape[-2] else x.new_zeros(x.shape[:-2])
    nonzero = square > 0.0
    square = square.where(nonzero, 1.0)
    found, weight = _direction(x, lengths, square, line, iterations)
    found, weight = found.where(nonzero[..., None], line.direction), weight.where(nonzero, line.weight)
    size = square.sqrt()[..., None]
    along = (x @ found[..., None])[..., 0] / size
    evidence, batches = _updated_evidence(along, line)
    side = torch.where(evidence < 0.0, -1.0, 1.0)[..., None]
    return Placed(along * side, lengths / size, Line(found, weight, evidence, batches))


def _direction(x: Tensor, lengths: Tensor, square: Tensor, line: Line, iterations: int) -> tuple[Tensor, Tensor]:
    """Return the direction (..., D) and its weight (...), by power iterations that start at the direction before.

    The matrix has no negative eigenvalue, so that the inner product with the direction before is not negative.
    """
    if not x.numel():
        return line.direction, line.weight
    longest = lengths.argmax(dim=-1)[..., None, None].expand(*x.shape[:-2], 1, x.shape[-1])
    first = x.gather(-2, longest)[..., 0, :] / lengths.amax(dim=-1, keepdim=True).clamp(min=torch.finfo(x.dtype).tiny)
    known = (line.weight > 0.0)[..., None]
    v, weight = line.direction.where(known, first), line.weight
    memory = (FORGETTING * line.weight)[..., None]
    for _ in range(iterations):
        products = (x.mT @ (x @ v[..., None]))[..., 0] / square[..., None]
        products = products + memory * (line.direction * v).sum(dim=-1, keepdim=True) * line.direction
        weight = torch.linalg.vector_norm(products, dim=-1)
        v = products / weight.where(weight > 0.0, 1.0)[..., None]
    return v, weight


def _updated_evidence(along: Tensor, line: Line) -> tuple[Tensor, Tensor]:
    """Return the evidence (...) with the coordinates (..., B) of a batch, and the number of batches in it."""
    rows = along.shape[-1]
    if rows < 2:
        return line.evidence, line.batches
    mean = along.mean(dim=-1, keepdim=True)
    apart = along - mean
    deviation = apart.square().mean(dim=-1).sqrt()
    varied = deviation > 64.0 * torch.finfo(along.dtype).eps
    deviation = deviation.where(varied, 1.0)
    skewness = (apart / deviation[..., None]).pow(3).mean(dim=-1)
    score = math.sqrt(rows / 6.0) * skewness - math.sqrt(rows) * mean[..., 0] / deviation
    unsettled = varied & ((line.batches == 0.0) | (line.evidence.abs() < CLEAR * line.batches.sqrt()))
    return torch.where(unsettled, line.evidence + score, line.evidence), line.batches + unsettled.to(line.batches)


class SharedLine:
    """The line of one sequence of batches, which each batch updates once for all attacks that share it."""

    def __init__(self) -> None:
        self._line: Line | None = None
        self._last: tuple[Tensor, int, Placed] | None = None

    def place(self, rows: Tensor) -> Placed:
        """Return the coordinates of rows (..., B, D) along the line, updated once by these rows."""
        if self._last is not None:
            last, version, placed = self._last  # these rows are kept alive: no other tensor has their memory
            same = last is rows or (rows.data_ptr() and _storage(last) == _storage(rows))  # empty: no address
            if version == rows._version and same:
                return placed
        line = self._line
        if line is not None and line.direction.device != rows.device:
            line = Line(**{name: tensor.to(rows.device) for name, tensor in line.state().items()})
        placed = follow(rows, line)
        self._line, self._last = placed.line, (rows, rows._version, placed)
        return placed

    def state(self) -> dict[str, Any]:
        """Return the line's tensors by name; empty before the first batch."""
        return {} if self._line is None else self._line.state()

    def restore(self, state: Mapping[str, Any]) -> None:
        """Set the line to a result of `state`."""
        self._line, self._last = Line(**state) if state else None, None


def _storage(rows: Tensor) -> tuple[Any, ...]:
    """Return address, layout, type and device of rows."""
    return rows.data_ptr(), rows.shape, rows.stride(), rows.dtype, rows.device


class FollowingAttack(RowAttack):
    """An attack that follows the first principal direction from batch to batch; its state is a `Line`."""

    sequential = True

    def __init__(self) -> None:
        self.follower = SharedLine()
        """The line that it follows; attacks on the same gradients may share one."""

    def fresh(self) -> Self:
        """Return an instance without a line."""
        return type(self)(**self.params)

    def state(self) -> dict[str, Any]:
        """Return the line's tensors by name; empty before the first batch."""
        return self.follower.state()

    def restore(self, state: Mapping[str, Any]) -> None:
        """Set the line to a result of `state`."""
        self.follower.restore(state)


def fresh_together(attacks: Iterable[Attack]) -> list[Attack]:
    """Return fresh instances of attacks on one layer of one party.

    Those that follow its principal direction share one `SharedLine`: each batch updates the line once.
    """
    follower, found = SharedLine(), [attack.fresh() for attack in attacks]
    for attack in found:
        if isinstance(attack, FollowingAttack):
            attack.follower = follower
    return found
