"""Results by class: how well the kept model predicts each class of the test rows, and the classes' names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from string import ascii_uppercase
from typing import Any, NamedTuple

from flower_vfl.apps.result_schema import names_of
from flower_vfl.reports.words import number

MOST_CLASSES = 12
"""Largest number of classes in a table: as many columns of a matrix as a phone shows."""

_NAMED = 5
"""Largest number of classes without a test row that a sentence names."""

_SHORT = 3
"""Length of the longest class name, in characters, that can head a column of the matrix."""


class ClassRow(NamedTuple):
    """Results of one class; a share is None where there are no rows to compute it from."""

    name: str
    rows: int
    recall: float | None
    precision: float | None
    taken_for: str
    """The other class that its rows are most often predicted as; empty where none is."""


class Cell(NamedTuple):
    """One cell of the confusion matrix."""

    share: float
    """Share of the true class's rows."""
    title: str


class MatrixRow(NamedTuple):
    """One true class of the confusion matrix: its name, the heading of its column, and its cells."""

    name: str
    key: str
    cells: Sequence[Cell]


class ClassResults(NamedTuple):
    """Results by class.

    Attributes
    ----------
    shown
        The classes in the order of their numbers; of more than `MOST_CLASSES`, those that are recognised least.
    total
        Number of classes.
    worst
        The class that is recognised least; the first of several.
    matrix
        The confusion matrix; empty where there are too many classes.
    keyed
        True if letters head its columns, because names are long.
    unseen
        Names of the classes of which no test row is.
    """

    shown: Sequence[ClassRow]
    total: int
    worst: ClassRow
    matrix: Sequence[MatrixRow]
    keyed: bool
    unseen: Sequence[str] = ()

    @property
    def notable(self) -> bool:
        """True if a console should show the line: of two classes, if the rarer one is never recognised."""
        rarer = all(self.worst.rows < row.rows for row in self.shown if row != self.worst)
        return self.total > 2 or (self.worst.recall == 0.0 and rarer)

    @property
    def line(self) -> str:
        """The class that is recognised least, in a sentence for a console."""
        worst = self.worst
        if worst.recall == 1.0:
            return f"Of {self.total} classes each test row is recognised.{self._unseen}"
        rare = ' For rare classes there is training.class_weights = "balanced".' if worst.recall == 0.0 else ""
        missed = f"; it is most often taken for {worst.taken_for}" if worst.taken_for else ""
        return (
            f"Of {self.total} classes {worst.name} is recognised least: {number(worst.recall, 4)} of its "
            f"{worst.rows:,} test rows{missed}.{rare}{self._unseen}"
        )

    @property
    def _unseen(self) -> str:
        """The classes of which no test row is, in a sentence; empty where there is none."""
        if not self.unseen:
            return ""
        more = f" or {len(self.unseen) - _NAMED:,} more" if len(self.unseen) > _NAMED else ""
        return (
            f" No test row is of class {', '.join(self.unseen[:_NAMED])}{more}: how well it is recognised is not known."
        )


def classes_in(result: Mapping[str, Any]) -> ClassResults | None:
    """Return the results by class; None where no model was evaluated on test rows."""
    found = result.get("classes") or {}
    names, confusion = names_of(result), found.get("confusion") or []
    if not found.get("rows"):
        return None
    columns = (names, *(found[key] for key in ("rows", "recall", "precision")))
    every = [
        ClassRow(name, rows, recall, precision, _taken_for(names, confusion, place))
        for place, (name, rows, recall, precision) in enumerate(zip(*columns, strict=True))
    ]
    known = sorted((row for row in every if row.recall is not None), key=lambda row: row.recall or 0.0)
    if not known:
        return None
    few, unseen = len(every) <= MOST_CLASSES, [row.name for row in every if row.rows == 0]
    matrix, keyed = _matrix(names, confusion) if few and confusion else ([], False)
    return ClassResults(every if few else known[:MOST_CLASSES], len(every), known[0], matrix, keyed, unseen)


def _taken_for(names: Sequence[str], confusion: Sequence[Sequence[int]], place: int) -> str:
    """Return the other class that a class is most often predicted as; empty where none is, or without a matrix."""
    if not confusion:
        return ""
    count, other = max((count, -other) for other, count in enumerate(confusion[place]) if other != place)
    return names[-other] if count else ""


def _matrix(names: Sequence[str], confusion: Sequence[Sequence[int]]) -> tuple[list[MatrixRow], bool]:
    keyed = any(len(name) > _SHORT for name in names)
    rows = []
    for place, (name, counts) in enumerate(zip(names, confusion, strict=True)):
        all_ = sum(counts)
        cells = [
            Cell(count / all_ if all_ else 0.0, f"{count:,} of {all_:,} rows of {name} taken for {other}")
            for count, other in zip(counts, names, strict=True)
        ]
        rows.append(MatrixRow(name, ascii_uppercase[place] if keyed else name, cells))
    return rows, keyed
