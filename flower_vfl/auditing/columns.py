"""The informed reader of gradients together with a party's columns, which knows the labels of half of the rows.

A simulation has the columns of all parties. The readers of the informed audit are fitted to one half of the rows, with
the gradients and without, and both are scored on the other half.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from flower_vfl.attacks.joint import JointView, OwnRows
from flower_vfl.attacks.joint.features import fit_features
from flower_vfl.attacks.joint.regression import evidence
from flower_vfl.attacks.rows import as_rows
from flower_vfl.auditing.entries import AUDIT
from flower_vfl.auditing.members import ALONE, Members
from flower_vfl.auditing.readers import DISCRIMINANTS, LEARNERS, OF_SIGNS, Fit
from flower_vfl.auditing.selection import SPAN_EPOCHS, FittedReader, Sample, best_gain, candidates, measured, strongest
from flower_vfl.auditing.verdict import INFORMED
from flower_vfl.data.store.dataset import PartyTable
from flower_vfl.metrics import LeakSummary

SEES = ["columns", "embeddings", "gradients"]

MOST_FIT = 8192
"""Largest number of rows to which trees and a network are fitted, twice: with the gradients and without."""

JointMatrix = NDArray[np.float32]


def joint_view(
    tables: Sequence[PartyTable], rows: NDArray[np.int64], gradients: torch.Tensor, embeddings: torch.Tensor
) -> JointView:
    """Return the joint view of training rows: the parties' gradients, columns and embeddings, side by side.

    Parameters
    ----------
    tables : Sequence[PartyTable]
        The parties' columns. Where some have texts and others category numbers, the texts are left out.
    rows : NDArray
        (n,) rows of the training table.
    gradients, embeddings : Tensor
        (n, D) and (n, E) of these rows.
    """
    texts = [table for table in tables if table.spec.vocabulary > 0]
    read = tables if len(texts) == len(tables) else [table for table in tables if table not in texts]
    inputs = tuple(tensor for table in read for tensor in table.train.gather(rows))
    empty = OwnRows(tuple(tensor[:0] for tensor in inputs), embeddings[:0])
    return JointView(gradients, OwnRows(inputs, embeddings), empty, words=bool(texts) and len(texts) == len(tables))


def read_with_columns(
    view: JointView,
    y: NDArray[np.int64],
    parts: NDArray[np.int8],
    *,
    party: str,
    defended: bool,
    lengths: torch.Tensor | None = None,
    signs: torch.Tensor | None = None,
    batches: NDArray[np.int64] | None = None,
    classes: int = 2,
    positives: Sequence[int] = (1,),
    members: Members = ALONE,
) -> dict[str, Any]:
    """Return the entry of the informed reader of gradients, columns and embeddings, for `result.json`.

    Parameters
    ----------
    view : JointView
        The party's view of training rows; the labels that an attack knows are not used.
    y : NDArray
        (n,) true class of each of its training rows.
    parts : NDArray
        (n,) part of each row, see `Split`.
    party : str
        The feature party, or a colluding group such as "a+b".
    defended : bool
        True if any defense is in force.
    lengths : Tensor, optional
        (n, L) logarithms of the lengths of each row's gradients over the epochs, which their mean does not show.
    signs : Tensor, optional
        (n, D) means of the signs of each row's gradients over the epochs, which a reader of their own gets.
    batches : NDArray, optional
        (n,) batch of each row, where rows are compared within their batch: in time order.
    classes : int
        Number of classes.
    positives : Sequence[int]
        Classes that are read.
    members : Members
        The positions of each party's gradients, for several parties.
    """
    summary = LeakSummary(INFORMED, party, phase=AUDIT, source="monitor", defended=defended)
    entry = {**summary.result(), "label": INFORMED, "sees": SEES, "steps": None, "one_class_steps": None}
    evidences = [evidence(part) for _, part in members.views(view.gradients)]
    of_lengths = [] if lengths is None else [lengths.double()]
    gradients = torch.cat([view.gradients.double(), *evidences, *of_lengths], dim=1).float().numpy()
    own = _matrices(view.train, words=view.words)
    bare = Sample(np.zeros((len(y), 0), dtype=np.float32), y, parts, batches)
    with_gradients = [np.concatenate([matrix, gradients], axis=1) for matrix in own]
    others: Mapping[str, Fit] = {**DISCRIMINANTS, "network": partial(LEARNERS["network"], most=MOST_FIT)}
    read = partial(_read, bare, others, classes=classes, positives=positives)
    found, without = read(with_gradients), read(own)
    if signs is not None:
        beside = bare.with_columns(np.concatenate([own[0], signs.float().numpy()], axis=1))
        found += candidates(beside, OF_SIGNS, SPAN_EPOCHS, classes=classes, positives=positives)
    chosen = best_gain(found, without)
    if chosen is None:
        return {**entry, "unavailable": bare.lacking(positives[0]) or "no reader could be fitted"}
    baseline = strongest(without, chosen.positive)
    return {**entry, "rows_of": "train", **measured(chosen, found, baseline)}


def read_background(
    tables: Sequence[PartyTable],
    rows: NDArray[np.int64],
    embeddings: torch.Tensor,
    y: NDArray[np.int64],
    parts: NDArray[np.int8],
    *,
    classes: int,
    positives: Sequence[int],
) -> list[FittedReader]:
    """Return readers that are fitted to columns and embeddings, without any gradient: they give the odds of labels.

    Parameters
    ----------
    tables : Sequence[PartyTable]
        All available columns.
    rows : NDArray
        (n,) rows of the training table.
    embeddings : Tensor
        (n, E) last known embeddings of these rows, of all parties.
    y, parts : NDArray
        (n,) classes and parts of the rows, see `Split`.
    classes : int
        Number of classes.
    positives : Sequence[int]
        Classes that are read.
    """
    if tables:
        view = joint_view(tables, rows, torch.zeros(len(rows), 0), embeddings)
        own = _matrices(view.train, words=view.words)
    else:
        embedded = as_rows(embeddings).float().cpu().numpy()
        own = embedded, embedded
    bare = Sample(np.zeros((len(y), 0), dtype=np.float32), y, parts)
    return _read(bare, {"linear": DISCRIMINANTS["linear"]}, own, classes=classes, positives=positives)


def _read(
    bare: Sample,
    others: Mapping[str, Fit],
    matrices: Sequence[JointMatrix],
    *,
    classes: int,
    positives: Sequence[int],
) -> list[FittedReader]:
    """Return readers: trees fitted to the matrix of category numbers, the others to that of one-hot categories."""
    trees: Mapping[str, Fit] = {"trees": partial(LEARNERS["trees"], most=MOST_FIT)}
    return [
        candidate
        for matrix, fits in zip(matrices, (others, trees), strict=True)
        if matrix.shape[1]
        for candidate in candidates(bare.with_columns(matrix), fits, SPAN_EPOCHS, classes=classes, positives=positives)
    ]


def _matrices(rows: OwnRows, *, words: bool) -> tuple[JointMatrix, JointMatrix]:
    """Return columns and embeddings as two matrices: with one-hot categories, and with category numbers."""
    features = fit_features(rows, ("columns", "embeddings"), words=words)
    every = torch.cat(list(features.pieces(rows))) if features is not None else torch.zeros(len(rows), 0)
    if words or features is None:
        return every.numpy(), every.numpy()
    numbers = [tensor.detach().flatten(1).float().cpu() for tensor in rows.inputs if tensor[:1].numel() <= 1024]
    return every.numpy(), torch.cat([*numbers, as_rows(rows.embeddings).float().cpu()], dim=1).numpy()
