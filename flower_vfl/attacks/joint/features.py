"""The encoding of a party's columns and embeddings as the rows of a matrix, piece by piece."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from flower_vfl.attacks.rows import MOST_LEVEL_COLUMNS, MOST_LEVELS, as_rows, frequent

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch import Tensor

    from flower_vfl.attacks.joint.base import OwnRows, Sees

ROWS_AT_ONCE = 8192
"""Number of rows of a piece."""

WIDEST_COLUMNS = 1024
"""Largest width of floating point inputs that are read as columns; of wider ones only the embedding is read."""

PROJECTED = 256
"""Largest width of embeddings that are read as they are; wider ones are projected to it at random."""


def narrow(rows: Tensor, width: int) -> Tensor:
    """Return rows (n, F) of at most a width, wider ones by a fixed random projection that nearly keeps distances.

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
class RowEncoding:
    """An encoding of a party's rows as rows of a matrix: numbers standardised, categories as 0 and 1.

    Attributes
    ----------
    columns, embeddings
        True if the matrix contains them.
    levels
        For each integer column its most frequent values, each with a column of the matrix; for texts, the most frequent
        words of all positions.
    words
        True if integers are word ids, and a column of the matrix counts one word.
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
        """The width of the matrix, F."""
        return len(self.centre)

    def pieces(self, rows: OwnRows) -> Iterator[Tensor]:
        """Yield the matrix of rows in pieces (n, F) of float32."""
        for low in range(0, len(rows), ROWS_AT_ONCE):
            yield self.at(rows, slice(low, low + ROWS_AT_ONCE))

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


def fit_features(rows: OwnRows, sees: Sequence[Sees], *, words: bool = False) -> RowEncoding | None:
    """Fit the encoding of rows as rows of a matrix; return None where there is nothing to encode.

    Parameters
    ----------
    rows
        The rows that levels, means and units come from.
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
    unscaled = RowEncoding(columns, embeddings, levels, words and bool(integers), torch.zeros(1), torch.ones(1))
    width = unscaled.at(rows, slice(0, 1)).shape[1]
    total, squares = torch.zeros(width, dtype=torch.float64), torch.zeros(width, dtype=torch.float64)
    for piece in unscaled.pieces(rows):
        wide = piece.double()
        total, squares = total + wide.sum(dim=0), squares + wide.square().sum(dim=0)
    mean = total / len(rows)
    variance = (squares / len(rows) - mean.square()).clamp(min=0.0)
    return RowEncoding(*(columns, embeddings, levels, unscaled.words), mean.float(), _units(unscaled, rows, variance))


def _units(unscaled: RowEncoding, rows: OwnRows, variance: Tensor) -> Tensor:
    """Return the unit of each column: a number's own deviation, one deviation for a whole embedding, 1 for categories.

    With a unit of its own, a category of few rows would count as much as one of half of them.
    """
    unit = torch.ones(len(variance), dtype=torch.float64)
    if unscaled.columns:
        numbers = sum(_numbers(tensor, slice(0, 1)).shape[1] for tensor in rows.inputs if _are_columns(tensor))
        unit[:numbers] = variance[:numbers].sqrt()
    if unscaled.embeddings:
        embedded = min(as_rows(rows.embeddings[:1]).shape[1], PROJECTED)
        unit[-embedded:] = variance[-embedded:].mean().sqrt()
    return unit.where(unit > 0, 1.0).float()


def _are_columns(tensor: Tensor) -> bool:
    return tensor.is_floating_point() and math.prod(tensor.shape[1:]) <= WIDEST_COLUMNS


def _numbers(tensor: Tensor, where: slice | Tensor) -> Tensor:
    return tensor[where].detach().flatten(1).float().cpu()


def _levels(integers: Sequence[Tensor], *, words: bool) -> tuple[Tensor, ...]:
    """Return the most frequent values of each column; for texts, those of all positions."""
    if words:
        values = [tensor.flatten() for tensor in integers]
        return (frequent(torch.cat(values), MOST_LEVEL_COLUMNS // 4),) if values else ()
    columns = [column for tensor in integers for column in tensor.unbind(dim=1)]
    most = max(1, min(MOST_LEVELS, MOST_LEVEL_COLUMNS // max(1, len(columns))))
    return tuple(frequent(column, most) for column in columns)
