"""A party's columns and embeddings as the rows of a matrix, made piece by piece."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from flower_vfl.attacks.rows import COLUMNS, LEVELS, as_rows

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch import Tensor

    from flower_vfl.attacks.joint.base import OwnRows, Sees

PIECE = 8192
"""Rows of a piece."""

WIDEST = 1024
"""Numbers of a row up to which plain numbers are read as columns; of wider ones the embedding is read alone."""

PROJECTED = 256
"""Numbers of an embedding that are read; a wider one is projected to so many at random."""


def narrow(rows: Tensor, width: int) -> Tensor:
    """Return rows (n, F) with at most so many numbers, wider ones by a fixed random projection that keeps distances.

    References
    ----------
    Johnson and Lindenstrauss, *Extensions of Lipschitz mappings into a Hilbert space*, 1984.
    """
    if rows.shape[1] <= width:
        return rows
    generator = torch.Generator().manual_seed(0)
    projection = torch.randn(rows.shape[1], width, generator=generator) / math.sqrt(width)
    return rows @ projection.to(rows)


@dataclass(frozen=True, slots=True, eq=False)
class Features:
    """An encoding of a party's rows as rows of a matrix: numbers standardised, categories as 0 and 1.

    Attributes
    ----------
    columns, embeddings
        True if the matrix has them.
    levels
        Of each integer column the values that have a column of their own, the most frequent ones; of texts, of all
        positions together.
    words
        True if a column counts a word of a text.
    centre, unit
        (F,) mean of each column over the rows that it was fitted to, and the unit that it is divided by.
    """

    columns: bool
    embeddings: bool
    levels: tuple[Tensor, ...]
    words: bool
    centre: Tensor
    unit: Tensor

    @property
    def width(self) -> int:
        """Numbers of one row, F."""
        return len(self.centre)

    def pieces(self, rows: OwnRows) -> Iterator[Tensor]:
        """Yield the matrix of rows, (n, F) of float32 a piece."""
        for low in range(0, len(rows), PIECE):
            yield self.at(rows, slice(low, low + PIECE))

    def at(self, rows: OwnRows, where: slice | Tensor) -> Tensor:
        """Return some rows of the matrix, (n, F) of float32."""
        return (self._raw(rows, where) - self.centre) / self.unit

    def _raw(self, rows: OwnRows, where: slice | Tensor) -> Tensor:
        parts: list[Tensor] = []
        if self.columns:
            parts += [_numbers(tensor, where) for tensor in rows.inputs if _are_columns(tensor)]
            parts += self._coded(rows.inputs, where)
        if self.embeddings:
            parts.append(narrow(as_rows(rows.embeddings[where]).float().cpu(), PROJECTED))
        return torch.cat(parts, dim=1)

    def _coded(self, inputs: Sequence[Tensor], where: slice | Tensor) -> list[Tensor]:
        integers = [tensor[where].flatten(1).cpu() for tensor in inputs if not tensor.is_floating_point()]
        if self.words:
            ids = torch.cat(integers, dim=1)
            return [torch.stack([(ids == level).sum(dim=1) for level in self.levels[0]], dim=1).float()]
        columns = [column for tensor in integers for column in tensor.unbind(dim=1)]
        return [torch.eq(column[:, None], known).float() for column, known in zip(columns, self.levels, strict=True)]


def fit_features(rows: OwnRows, sees: Sequence[Sees], *, words: bool = False) -> Features | None:
    """Fit to rows how they become rows of a matrix; None where nothing of them can be read.

    Parameters
    ----------
    rows
        The rows.
    sees
        "columns", "embeddings" or both.
    words
        True if integers are word ids of a text.
    """
    integers = [tensor.flatten(1).cpu() for tensor in rows.inputs if not tensor.is_floating_point()]
    columns = "columns" in sees and (bool(integers) or any(map(_are_columns, rows.inputs)))
    embeddings = "embeddings" in sees
    if not (columns or embeddings) or not len(rows):
        return None
    levels = _levels(integers, words=words) if columns else ()
    bare = Features(columns, embeddings, levels, words and bool(integers), torch.zeros(1), torch.ones(1))
    width = bare.at(rows, slice(0, 1)).shape[1]
    total, squares = torch.zeros(width, dtype=torch.float64), torch.zeros(width, dtype=torch.float64)
    for piece in bare.pieces(rows):
        wide = piece.double()
        total, squares = total + wide.sum(dim=0), squares + wide.square().sum(dim=0)
    mean = total / len(rows)
    variance = (squares / len(rows) - mean.square()).clamp(min=0.0)
    return Features(*(columns, embeddings, levels, bare.words), mean.float(), _units(bare, rows, variance))


def _units(bare: Features, rows: OwnRows, variance: Tensor) -> Tensor:
    """Return what columns are divided by: numbers by their own deviation, all of an embedding by one, categories by 1.

    A level of few people would count as much as one of half of them if each had its own deviation.
    """
    unit = torch.ones(len(variance), dtype=torch.float64)
    if bare.columns:
        numbers = sum(_numbers(tensor, slice(0, 1)).shape[1] for tensor in rows.inputs if _are_columns(tensor))
        unit[:numbers] = variance[:numbers].sqrt()
    if bare.embeddings:
        embedded = min(as_rows(rows.embeddings[:1]).shape[1], PROJECTED)
        unit[-embedded:] = variance[-embedded:].mean().sqrt()
    return unit.where(unit > 0, 1.0).float()


def _are_columns(tensor: Tensor) -> bool:
    return tensor.is_floating_point() and math.prod(tensor.shape[1:]) <= WIDEST


def _numbers(tensor: Tensor, where: slice | Tensor) -> Tensor:
    return tensor[where].detach().flatten(1).float().cpu()


def _levels(integers: Sequence[Tensor], *, words: bool) -> tuple[Tensor, ...]:
    """Return the most frequent values of each column; of texts, those of all positions."""
    if words:
        return (_frequent(torch.cat([tensor.flatten() for tensor in integers]), COLUMNS // 4),) if integers else ()
    columns = [column for tensor in integers for column in tensor.unbind(dim=1)]
    most = max(1, min(LEVELS, COLUMNS // max(1, len(columns))))
    return tuple(_frequent(column, most) for column in columns)


def _frequent(values: Tensor, most: int) -> Tensor:
    found, counts = torch.unique(values, return_counts=True)
    kept: Tensor = found[counts.argsort(descending=True, stable=True)[:most]]
    return kept
