"""Learned readers of the trained model's embeddings: fitted on a few rows with known labels."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal, TypeAlias, get_args

import torch

from flower_vfl.attacks import readers
from flower_vfl.attacks.base import Reads, one_of
from flower_vfl.attacks.embedding.inference import ExamplesAttack, TrainedView
from flower_vfl.attacks.rows import as_rows, normalised, raw_features

if TYPE_CHECKING:
    from torch import Tensor

ReaderKind: TypeAlias = Literal["linear", "quadratic", "network"]

PENALTY, HIDDEN, READER_STEPS = 1.0, 16, 300
"""Settings of the linear reader and of the network: the defaults of the longitudinal readers."""

NUMBERS_AT_ONCE = 1 << 22
"""Numbers that are read at once: 32 MiB of float64."""


def read(z: Tensor, y: Tensor, attacked: Tensor, *, classes: int, kind: ReaderKind, seed: int = 0) -> Tensor:
    """Fit a reader to labelled rows and return its scores of other rows.

    Rows are standardised by the labelled ones (`readers.standardising`), so that their scale changes nothing.

    Parameters
    ----------
    z
        (n, ...) rows whose labels are known, in any number format; further dimensions are flattened.
    y
        (n,) their class numbers; each class occurs.
    attacked
        (N, ...) rows that are read.
    classes
        Number of classes C.
    kind
        "linear" for `readers.linear`, "quadratic" for `readers.quadratic`, "network" for `readers.network`.
    seed
        Seed of the network's initial weights; the other readers are not random.

    Returns
    -------
    Tensor
        (N,) scores for two classes and (N, C) for more, float64; `predicted_classes` returns their classes.

    Raises
    ------
    ArgumentError
        When rows are no floating point tensors with a row for each example.

    Examples
    --------
    >>> z = torch.tensor([[0.0, 1.0], [0.2, 1.0], [5.0, 1.0], [5.2, 1.0]])
    >>> (read(z, torch.tensor([0, 0, 1, 1]), z + 0.1, classes=2, kind="linear") > 0).tolist()
    [False, False, True, True]
    """
    known, rows = as_rows(z).double(), as_rows(attacked)
    unit = float(known.abs().amax()) or 1.0
    standard = readers.standardising((known / unit)[:, None])
    x = standard((known / unit)[:, None])
    if kind == "linear":
        reader = readers.linear(x, y, classes, penalty=PENALTY)
    elif kind == "quadratic":
        reader = readers.quadratic(x, y, classes, shrinkage=None)
    else:
        generator = torch.Generator().manual_seed(seed)
        reader = readers.network(x, y, classes, hidden=HIDDEN, steps=READER_STEPS, generator=generator)
    pieces = torch.split(rows, max(1, NUMBERS_AT_ONCE // rows.shape[1]))
    return torch.cat([reader(standard((piece.double() / unit)[:, None])) for piece in pieces])


class EmbeddingReaderAttack(ExamplesAttack):
    """An attack by a reader of embeddings that is fitted on k labelled examples of each class.

    Unlike model completion it needs no top model. The linear reader uses the embeddings' class means, the quadratic one
    a Gaussian for each class, which is optimal where classes are Gaussian, and the network any other difference. Its
    baseline is the same reader of the raw inputs.

    Parameters
    ----------
    reader
        "linear", "quadratic" or "network".
    k
        Number of labelled examples of each class, at least 1.
    draws
        Number of repetitions, with other examples.
    normalise
        True if it uses the layer-normalised embeddings, as the top model does behind a defense that normalises.

    Examples
    --------
    >>> EmbeddingReaderAttack("quadratic", k=4).label
    'embedding_reader(reader=quadratic,k=4)'
    """

    name: ClassVar[str] = "embedding_reader"
    reads: ClassVar[Reads] = "logits"

    def __init__(self, reader: ReaderKind = "linear", k: int = 16, draws: int = 5, normalise: bool = False) -> None:
        self.reader: ReaderKind = one_of(self.name, "reader", reader, get_args(ReaderKind))
        super().__init__(k, draws, normalise)

    def infer(self, view: TrainedView) -> Tensor:
        """Return the fitted reader's scores of the attacked rows' embeddings."""
        known, rows = view.examples().embeddings, view.embeddings
        if self.normalise:
            known, rows = normalised(known), normalised(rows)
        return self._read(known, rows, view)

    def baseline(self, view: TrainedView) -> Tensor | None:
        """Return the scores of the same reader on the raw inputs, fitted to those of the same examples."""
        known = view.examples().inputs
        if not known or not view.inputs:
            return None
        both = raw_features([torch.cat(pair) for pair in zip(known, view.inputs, strict=True)])  # one encoding for both
        return self._read(both[: len(known[0])], both[len(known[0]) :], view)

    def _read(self, known: Tensor, rows: Tensor, view: TrainedView) -> Tensor:
        labels = view.examples().labels
        return read(known, labels, rows, classes=view.classes, kind=self.reader, seed=view.seed)
