"""The selection of an informed reader: fit readers, choose one on other rows, score it on the rest."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flower_vfl.auditing.halves import CHOOSE, FIT, SCORE
from flower_vfl.auditing.readers import LEARNERS, FeatureRows, Fit, Scores, linear_discriminant, score_of, thinned
from flower_vfl.metrics import leak_auc
from flower_vfl.metrics.paired import advantage_fields, auc_fields

_log = logging.getLogger(__name__)

FEWEST_OF_PART = {FIT: 10, CHOOSE: 5, SCORE: 20}
"""Smallest number of rows of a class, and of all others, that each part must have for a reader."""

SPAN_BATCH, SPAN_EPOCH, SPAN_EPOCHS = "batch", "epoch", "epochs"
"""The rows that a reader scores together: each batch by itself, all batches of one epoch, all epochs of a row."""

SURE = 0.998
"""AUC of a discriminant, on the rows to choose on, from which trees and networks are not fitted to gradients: they
take seconds, and no verdict changes above it."""

_FEWEST_IN_BATCH = 4


@dataclass(frozen=True, slots=True, eq=False)
class Sample:
    """Rows that readers are fitted to and scored on.

    Attributes
    ----------
    x
        (n, F) columns.
    y
        (n,) class of each row.
    parts
        (n,) part of each row: to fit, to choose or to score.
    batches
        (n,) batch of each row, None where unknown: rows with a known batch are compared within it.
    """

    x: FeatureRows
    y: NDArray[np.int64]
    parts: NDArray[np.int8]
    batches: NDArray[np.int64] | None = None

    def with_columns(self, x: FeatureRows) -> Sample:
        """Return the same rows with other columns."""
        return Sample(x, self.y, self.parts, self.batches)

    def thinned(self, classes: int, most: int) -> Sample:
        """Return a sample of at most ``most`` of the rows; those of rare classes are kept before others."""
        kept = thinned(self.y, classes, most)
        batches = None if self.batches is None else self.batches[kept]
        return Sample(self.x[kept], self.y[kept], self.parts[kept], batches)

    def readable(self, positives: Sequence[int]) -> list[int]:
        """Return the classes of which each part has enough rows, and enough rows of others."""
        return [c for c in positives if not self.lacking(c)]

    def lacking(self, positive: int) -> str:
        """Return the reason why a class cannot be read; empty where it can."""
        names = {FIT: "fit readers to", CHOOSE: "choose one on", SCORE: "score it on"}
        for part, least in FEWEST_OF_PART.items():
            of_class = self.y[self.parts == part] == positive
            count = int(np.count_nonzero(of_class))
            if min(count, len(of_class) - count) < least:
                return (
                    f"too few rows to {names[part]}: {count} of class {positive} and {len(of_class) - count} others; "
                    f"{least} of each are needed"
                )
        return ""


@dataclass(frozen=True, slots=True, eq=False)
class FittedReader:
    """A fitted reader and its scores of the rows that it was not fitted to.

    Attributes
    ----------
    reader, span
        Name of the reader, and the span that it scores together: a batch, an epoch or all epochs.
    positive
        The class that it reads.
    chosen_by
        Its AUC on the rows on which one of the readers is chosen.
    held
        (m,) its scores of all rows that it was not fitted to, in their order.
    sample
        The rows.
    member
        The member of a colluding group whose numbers alone it reads; empty where it reads all.
    """

    reader: str
    span: str
    positive: int
    chosen_by: float
    held: NDArray[np.float64] = field(repr=False)
    sample: Sample = field(repr=False)
    member: str = ""

    @property
    def name(self) -> dict[str, Any]:
        """The fields of an entry that name it."""
        found = {"reader": self.reader, "span": self.span, "positive_class": self.positive}
        return {**found, "member": self.member} if self.member else found

    def scores_of(self, part: int) -> NDArray[np.float64]:
        """Return its scores of the rows of a part, other than those that it was fitted to."""
        parts = self.sample.parts
        return np.asarray(self.held[parts[parts != FIT] == part])

    def labels_of(self, part: int) -> NDArray[np.bool_]:
        """Return a mask of the rows of a part that are of the class."""
        return np.asarray(self.sample.y[self.sample.parts == part] == self.positive)

    @property
    def chosen_error(self) -> float:
        """Standard error of `chosen_by`, by Hanley and McNeil (1982) for exponential distributions; 0 without rows."""
        labels, auc = self.labels_of(CHOOSE), self.chosen_by
        positives = int(np.count_nonzero(labels))
        negatives = len(labels) - positives
        of_positives, of_negatives = auc / (2.0 - auc) - auc**2, 2.0 * auc**2 / (1.0 + auc) - auc**2
        spread = auc * (1.0 - auc) + (positives - 1) * of_positives + (negatives - 1) * of_negatives
        return math.sqrt(spread / (positives * negatives)) if positives and negatives else 0.0

    @property
    def scores(self) -> NDArray[np.float64]:
        """Its scores of the rows to score, (k,)."""
        return self.scores_of(SCORE)

    @property
    def labels(self) -> NDArray[np.bool_]:
        """True for the rows to score that are of the class, (k,)."""
        return self.labels_of(SCORE)


def candidates(
    sample: Sample,
    fits: Mapping[str, Fit],
    span: str,
    *,
    classes: int,
    positives: Sequence[int],
    sure: float = math.inf,
) -> Iterator[FittedReader]:
    """Fit readers to a sample and yield one candidate for each reader and each class that can be read.

    Scores that are wrong more often than right on the rows to choose on are turned around. Trees and networks are
    fitted last, unless a reader before them has at least the AUC ``sure`` for every class.
    """
    readable = sample.readable(positives)
    if not readable:
        return
    others, fitted = sample.parts != FIT, sample.parts == FIT
    x, y, rows = sample.x[fitted], sample.y[fitted], sample.x[others]  # the same arrays for all readers
    reached = dict.fromkeys(readable, 0.0)
    for name, fit in sorted(fits.items(), key=lambda one: one[0] in LEARNERS):
        if name in LEARNERS and min(reached.values()) >= sure:
            return
        try:
            scores = _by_batch(sample, fit, classes) if span == SPAN_BATCH else _scores(fit, x, y, rows, classes)
        except (ValueError, ArithmeticError, np.linalg.LinAlgError) as error:
            _log.warning("the informed reader %s of %s could not be fitted: %s", name, span, error)
            continue
        if scores is None:
            continue
        parts, true = sample.parts[others], sample.y[others]
        for positive in readable:
            along = score_of(scores, positive)
            if sample.batches is not None:
                along = ranks_within(along, sample.batches[others])
            choose = parts == CHOOSE
            auc = leak_auc(along[choose], true[choose] == positive)
            if auc < 0.5:  # as where noise turns each batch's class means around: what was fitted reads the opposite
                along, auc = -along, 1.0 - auc
            reached[positive] = max(reached[positive], auc)
            yield FittedReader(name, span, positive, auc, along, sample)


def linear_scores(sample: Sample, classes: int) -> Scores | None:
    """Return scores (n, C) of all rows by a linear discriminant of those to fit readers to; None if it has no fit."""
    fitted = sample.parts == FIT
    try:
        return _scores(linear_discriminant, sample.x[fitted], sample.y[fitted], sample.x, classes)
    except (ValueError, ArithmeticError, np.linalg.LinAlgError):
        return None


def best(found: Sequence[FittedReader]) -> FittedReader | None:
    """Return the candidate with the largest AUC on the rows to choose on, less twice its standard error; None if none.

    Samples differ in their number of rows: of many readers of a few rows one is always good by chance.
    """
    known = [one for one in found if not math.isnan(one.chosen_by)]
    return max(known, key=lambda one: one.chosen_by - 2.0 * one.chosen_error, default=None)


def best_gain(found: Sequence[FittedReader], without: Sequence[FittedReader]) -> FittedReader | None:
    """Return the best candidate of the class that is read so much better than without gradients; None if none.

    Of each class it is the candidate that `best` returns, compared on the rows to choose on with the strongest of
    `without` that reads the same span. A class that other data give away has no gain, however large its AUC.
    """

    def gain(one: FittedReader) -> float:
        same = [other for other in without if (other.positive, other.span) == (one.positive, one.span)]
        alone = max((other.chosen_by for other in same if not math.isnan(other.chosen_by)), default=0.5)
        return one.chosen_by - 2.0 * one.chosen_error - alone

    each = [best([one for one in found if one.positive == positive]) for positive in {one.positive for one in found}]
    return max((one for one in each if one is not None), key=gain, default=None)


def strongest(found: Sequence[FittedReader], positive: int) -> FittedReader | None:
    """Return the candidate with the largest AUC of a class on the very rows to score; None without any.

    A baseline is chosen in this way, in its favour, so that no gain over it comes from a poorer choice.
    """
    known = [one for one in found if one.positive == positive]
    return max(known, key=lambda one: leak_auc(one.scores, one.labels), default=None)


def measured(
    chosen: FittedReader, found: Sequence[FittedReader], baseline: FittedReader | None = None
) -> dict[str, Any]:
    """Return the fields of a result's entry for the chosen reader, see decision 0024.

    Parameters
    ----------
    chosen : FittedReader
        The reader.
    found : Sequence[FittedReader]
        All candidates that it was chosen from.
    baseline : FittedReader, optional
        The best reader of the same rows without gradients.
    """
    entry = {
        **auc_fields(chosen.scores, chosen.labels),
        **chosen.name,
        "candidates": [{**one.name, "auc": one.chosen_by} for one in found],
    }
    if baseline is None:
        return entry
    gain = advantage_fields(chosen.scores, baseline.scores, chosen.labels)
    return {**entry, "baseline_reader": baseline.reader, **gain}


def _scores(fit: Fit, x: FeatureRows, y: NDArray[np.int64], rows: FeatureRows, classes: int) -> Scores | None:
    """Return scores by a fit to the classes with two rows or more; other classes are the least likely."""
    known = np.flatnonzero(np.bincount(y, minlength=classes) >= 2)
    if len(known) < 2:
        return None
    if len(known) == classes:
        return fit(x, y, classes)(rows)
    usable = np.isin(y, known)
    found = fit(x[usable], np.searchsorted(known, y[usable]), len(known))(rows)
    scores = np.repeat(found.min(axis=1, keepdims=True) - 30.0, classes, axis=1)
    scores[:, known] = found
    return scores


def _by_batch(sample: Sample, fit: Fit, classes: int) -> Scores | None:
    """Return scores (m, C) of each batch's other rows by a fit within the batch; zeros where it has too few rows."""
    if sample.batches is None:
        return None
    others = np.flatnonzero(sample.parts != FIT)
    scores, read = np.zeros((len(others), classes)), False
    for batch in np.unique(sample.batches):
        inside = sample.batches == batch
        fitted = np.flatnonzero(inside & (sample.parts == FIT))
        rows = np.flatnonzero(inside[others])
        counts = np.bincount(sample.y[fitted], minlength=classes)
        if len(rows) and np.count_nonzero(counts >= _FEWEST_IN_BATCH) > 1:
            kept = fitted[counts[sample.y[fitted]] >= _FEWEST_IN_BATCH]
            found = _scores(fit, sample.x[kept], sample.y[kept], sample.x[others[rows]], classes)
            if found is not None:
                scores[rows], read = found, True
    return scores if read else None


def ranks_within(values: NDArray[np.float64], batches: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return ranks between 0 and 1 within each batch.

    Fits of different batches have no common scale. Also, the gradients of a batch in any order show its number of
    positives: this is a property of the batch, not of a row.
    """
    from scipy.stats import rankdata

    ranks = np.empty(len(values))
    for batch in np.unique(batches):
        inside = batches == batch
        ranks[inside] = rankdata(values[inside]) / (np.count_nonzero(inside) + 1)
    return ranks
