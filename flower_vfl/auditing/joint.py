"""The evaluator of joint attacks: their scores are compared with true labels, and with readers without gradients.

Each attack is scored on training rows and on test rows, and compared with the best reader that sees no gradient. That
one is chosen on the other rows, so that the choice does not bias the comparison. Few other rows may choose a weaker
one, so the p-value of the advantage is the largest over all readers without gradients.

That p-value is reported where scores depend on the row's own gradient: uninformative gradients then add
noise, and the advantage is not above 0. A regression on all rows' gradients is different. On uninformative gradients
it still follows the directions in which the columns vary most, with a random sign, and that may read labels.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flower_vfl.attacks.base import AttackMethod
from flower_vfl.attacks.joint import JointAttack, JointScores, JointView
from flower_vfl.auditing.entries import JOINT
from flower_vfl.auditing.halves import SCORE
from flower_vfl.auditing.selection import FEWEST_OF_PART, ranks_within
from flower_vfl.errors import ArgumentError, ConfigError
from flower_vfl.metrics import LeakSummary, auc_interval, leak_auc
from flower_vfl.metrics.arrays import as_numpy
from flower_vfl.metrics.paired import advantage_fields, auc_fields
from flower_vfl.metrics.summary import none_if_nan
from flower_vfl.protocol.printable import reason_of
from flower_vfl.registry import from_elsewhere
from flower_vfl.rng import scattered

_log = logging.getLogger(__name__)

WITHOUT_OWN = "without the row's own gradient"
"""Name of a baseline: the scores of the same reader without each row's own gradient."""

TRAINING_ROWS, TEST_ROWS, WIDE_ROWS = 1 << 17, 1 << 15, 1 << 13
"""Largest numbers of training rows, of test rows, and of either where a row has more than 1,024 numbers in columns."""

BYTES = 64 << 20
"""Largest number of bytes of the sampled gradients; of wider ones, fewer rows are sampled."""

PositiveMask = NDArray[np.bool_]


def sample_rows(rows: NDArray[np.integer], most: int, batches: NDArray[np.integer] | None = None) -> NDArray[np.int64]:
    """Return at most ``most`` of the rows, sorted: those with the smallest hashes, the same in each run.

    With the batch of each row whole batches are chosen, the last one in part.

    Examples
    --------
    >>> sample_rows(np.array([5, 3, 9]), 5), len(sample_rows(np.arange(100), 10))
    (array([3, 5, 9]), 10)
    """
    order = np.argsort(rows)
    if len(rows) > most:
        drawn = (rows if batches is None else batches)[order]
        order = order[scattered(drawn.astype(np.uint64) + np.uint64(1 << 62)).argsort(kind="stable")[:most]]
    return np.sort(rows[order]).astype(np.int64)


def most_rows(width: int, *, columns: int) -> int:
    """Return the largest number of training rows to read, by the numbers in a row's gradient and in its columns."""
    return min(WIDE_ROWS if columns > 1024 else TRAINING_ROWS, max(1, BYTES // (4 * max(1, width))))


@dataclass(frozen=True, slots=True, eq=False)
class JointLabels:
    """The true labels of the rows of a `JointView`: true for the class that is detected.

    Attributes
    ----------
    train, test
        (n,) labels of training rows and (N,) of test rows; ``test`` is empty where there are no test rows.
    batches
        (n,) batch of each training row in time order: their scores are then compared within a batch, see
        `Schedule.batches_of`.
    """

    train: PositiveMask
    test: PositiveMask
    batches: NDArray[np.int64] | None = None


class JointEvaluator:
    """An evaluator that compares joint attacks with the true labels, and with readers without gradients.

    Parameters
    ----------
    party : str
        The feature party with the attacked view.
    defended : bool
        True if any defense is in force.
    positive : int
        The class that is detected.
    classes : int
        Number of classes.
    source : str
        "attacker", or "monitor" for colluding parties.
    """

    def __init__(
        self, *, party: str, defended: bool, positive: int = 1, classes: int = 2, source: str = "attacker"
    ) -> None:
        self._party, self._defended, self._positive, self._classes = party, defended, positive, classes
        self._source = source

    def entries(self, attack: JointAttack, view: JointView, labels: JointLabels) -> list[dict[str, Any]]:
        """Run an attack and return one entry for training rows and one for test rows, for `result.json`.

        An error in a user's own attack must not end the run: its entries have the reason instead of a number.
        """
        parts = {"train": labels.train, **({"test": labels.test} if len(labels.test) else {})}
        try:
            scores, turned = _turned(_scores(attack.read(view), parts, labels.batches), labels.train, attack)
            baselines = {name: _scores(found, parts, labels.batches) for name, found in attack.baselines(view).items()}
            entries = [self._entry(attack, view, parts, rows_of, scores, baselines) for rows_of in parts]
            return entries if attack.leaks else [_of_two_sides(entry, turned=turned) for entry in entries]
        except Exception as error:  # noqa: BLE001 - training is done, and an attack may be a user's own
            why = reason_of(error)
            _log.warning("party %r: the joint attack %s cannot be run: %s", self._party, attack.label, why)
            return [self.unavailable(attack, why, rows_of) for rows_of in parts]

    def unavailable(self, attack: JointAttack, why: str, rows_of: str = "train") -> dict[str, Any]:
        """Return the entry of an attack without a number, with the reason."""
        empty = dict.fromkeys(("interval95", "p_value", "advantage_interval95", "advantage_p_value"))
        return {**self._base(attack, rows_of), **empty, "rows": 0, "positives": 0, "unavailable": why}

    def _base(self, attack: JointAttack, rows_of: str) -> dict[str, Any]:
        summary = LeakSummary(
            *(attack.name, self._party, "cut", attack.params), phase=JOINT, source=self._source, defended=self._defended
        )
        return {
            **summary.result(),
            "steps": None,
            "label": attack.label,
            "sees": ["columns", "embeddings", "gradients"],
            "rows_of": rows_of,
            "known": attack.leaks,
            **({"class": self._positive} if self._classes > 2 else {}),
            **from_elsewhere(type(attack)),
        }

    def _entry(
        self,
        attack: JointAttack,
        view: JointView,
        parts: Mapping[str, PositiveMask],
        rows_of: str,
        scores: Mapping[str, NDArray[Any]],
        baselines: Mapping[str, Mapping[str, NDArray[Any]]],
    ) -> dict[str, Any]:
        """Return the entry for one part of the rows, without those whose labels the attack knows."""
        kept = {part: np.ones(len(truth), dtype=bool) for part, truth in parts.items()}
        kept["train"][view.known.rows] = False
        scored, truth = kept[rows_of], parts[rows_of][kept[rows_of]]
        found = auc_fields(scores[rows_of][scored], truth)
        if found["mean"] is None:
            few = f"{found['rows']} rows, {found['positives']} of them positive: at least 2 of each class are needed"
            return self.unavailable(attack, few, rows_of)
        others = dict(baselines)
        if rows_of == "train" and WITHOUT_OWN in scores:
            others[WITHOUT_OWN] = {**scores, "train": scores[WITHOUT_OWN]}
        reached = {
            name: {part: leak_auc(own[part][kept[part]], parts[part][kept[part]]) for part in parts}
            for name, own in others.items()
        }
        other = next((part for part in parts if part != rows_of), rows_of)
        best = max(reached, key=lambda name: [_nan_as_lowest(reached[name][p]) for p in (other, rows_of)], default="")
        without = {name: own[rows_of][scored] for name, own in others.items()} or {"": np.zeros(len(truth))}
        gains = {name: advantage_fields(scores[rows_of][scored], own, truth) for name, own in without.items()}
        p_values = [one["advantage_p_value"] for one in gains.values() if one["advantage_p_value"] is not None]
        gain = {**gains[best], "advantage_p_value": max(p_values, default=None)}
        few = min(found["positives"], found["rows"] - found["positives"]) < FEWEST_OF_PART[SCORE]
        if rows_of == "test" or not attack.reads_own or few:  # of few rows the p-value would be too small
            gain["advantage_p_value"] = None
        return {
            **self._base(attack, rows_of),
            **found,
            **gain,
            "baselines": {name: none_if_nan(reached[name][rows_of]) for name in reached},
            "baseline_reader": best or None,
        }


def check_joint_attacks(attacks: Iterable[AttackMethod], labels: NDArray[np.bool_], positives: Sequence[int]) -> None:
    """Refuse joint attacks whose side information cannot be supplied.

    Parameters
    ----------
    attacks : Iterable[AttackMethod]
        The attacks that are run; those of other kinds are skipped.
    labels : NDArray of bool
        (N,) mask of the training rows of the class that is detected.
    positives : Sequence[int]
        The classes that are detected.

    Raises
    ------
    ConfigError
        When an attack knows too many rows, or there is not exactly one class to detect.
    """
    count = int(np.count_nonzero(labels))
    fewest = min(count, len(labels) - count)
    for attack in attacks:
        if not isinstance(attack, JointAttack):
            continue
        if len(positives) != 1:
            raise ConfigError(
                f"the attack {attack.label!r} detects one class; here {len(positives)} take turns "
                f"({', '.join(map(str, positives))}): name one in attack.positives"
            )
        if attack.leaks >= fewest:
            raise ConfigError(
                f"the attack {attack.label!r} knows {attack.leaks} rows of each class and reads others; the training "
                f"rows have {fewest} of the rarer class, so that it can know {max(fewest - 1, 0)} at most: lower k"
            )


def _scores(
    answer: JointScores, parts: Mapping[str, PositiveMask], batches: NDArray[np.int64] | None
) -> dict[str, NDArray[Any]]:
    """Return scores as arrays, one number for each row; with batches, training rows have ranks within theirs.

    Raises
    ------
    ArgumentError
        When there is not one number for each row.
    """
    found = {part: as_numpy(getattr(answer, part)) for part in parts}
    if answer.without_own is not None:
        found[WITHOUT_OWN] = as_numpy(answer.without_own)
    for part, scores in found.items():
        rows = len(parts.get(part, parts["train"]))
        if scores.shape != (rows,):
            raise ArgumentError(f"it returned {scores.shape} for {rows} {part} rows: ({rows},) is needed")
    if batches is not None:
        found |= {part: ranks_within(scores, batches) for part, scores in found.items() if part != "test"}
    return found


def _turned(
    scores: dict[str, NDArray[Any]], truth: PositiveMask, attack: JointAttack
) -> tuple[dict[str, NDArray[Any]], bool]:
    """Return scores that rank the training rows the right way round, and True where they were turned around.

    Scores without labels have a side that is a guess. One bit settles it, as for attacks on gradients alone.
    """
    interval = None if attack.leaks else auc_interval(scores["train"], truth)
    if interval is None or interval[1] >= 0.5:
        return scores, False
    return {part: -values for part, values in scores.items()}, True


def _of_two_sides(entry: dict[str, Any], *, turned: bool) -> dict[str, Any]:
    """Return an entry of scores that may be turned around: its p-values are those of the better of two sides."""
    doubled = {name: min(1.0, 2.0 * entry[name]) for name in ("p_value", "advantage_p_value") if entry.get(name)}
    return {**entry, **doubled, **({"turned": True} if turned else {})}


def _nan_as_lowest(auc: float) -> float:
    return -1.0 if math.isnan(auc) else auc
