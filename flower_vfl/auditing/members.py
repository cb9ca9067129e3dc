"""The members of a colluding group: the position of each one's columns, for readers of one member alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Members:
    """The members of a group and the numbers of their columns in a joined row; empty for a single party.

    A reader of all members' numbers together may read less than one of a single member: noise of many numbers hides a
    signal of a few. So each member's part is read alone, too.

    Parameters
    ----------
    names
        The members, in the order of their columns.
    widths
        Number of columns of each member; their sum is the width of a row.

    Examples
    --------
    >>> [(name, part.shape[1]) for name, part in Members(("a", "b"), (1, 2)).split(torch.zeros(4, 3))]
    [('a', 1), ('b', 2)]
    """

    names: tuple[str, ...] = ()
    widths: tuple[int, ...] = ()

    def split(self, rows: Tensor) -> Iterator[tuple[str, Tensor]]:
        """Yield each member and its part (n, d) of joined rows (n, D); nothing for a single party."""
        if self.names:
            yield from zip(self.names, torch.split(rows, list(self.widths), dim=1), strict=True)

    def views(self, rows: Tensor) -> list[tuple[str, Tensor]]:
        """Return the inputs of readers: joined rows, named "", and each member's part of them."""
        return [("", rows), *self.split(rows)]


ALONE = Members()
"""The members of a single party: none."""
