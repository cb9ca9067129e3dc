"""A reader of gradients, columns and embeddings together, fitted on a few rows with known labels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch

from flower_vfl.attacks.base import whole
from flower_vfl.attacks.embedding.inference import LEAKED
from flower_vfl.attacks.joint.base import JointAttack, JointScores
from flower_vfl.attacks.joint.features import fit_features
from flower_vfl.attacks.joint.regression import EVERYTHING, fit_gradients
from flower_vfl.attacks.joint.ridge import leave_one_out
from flower_vfl.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor

    from flower_vfl.attacks.joint.base import JointView, OwnRows, Sees

_VIEWS: tuple[tuple[Sees, ...], ...] = (("columns",), ("embeddings",), EVERYTHING)


@dataclass(frozen=True, slots=True, eq=False)
class Margins:
    """Scores of rows by a reader of columns or embeddings.

    Attributes
    ----------
    known
        (k,) scores of the known rows, each by a fit to the others.
    train, test
        (n,) and (N,) scores of all training rows and the test rows.
    """

    known: Tensor
    train: Tensor
    test: Tensor


def read_own(view: JointView, sees: tuple[Sees, ...]) -> Margins | None:
    """Return the scores of a ridge regression of the known labels on columns or embeddings; None where it has none."""
    features = fit_features(view.train, sees, words=view.words)
    if features is None:
        return None
    known = features.at(view.train, torch.from_numpy(view.known.rows)).double()
    centre = known.mean(dim=0)
    expected, weights = leave_one_out(known - centre, _signs(view))

    def score(rows: OwnRows) -> Tensor:
        return torch.cat([(piece.double() - centre) @ weights for piece in features.pieces(rows)] or [expected[:0]])

    return Margins(expected, score(view.train), score(view.test))


def _mean(margins: Sequence[Margins]) -> Margins:
    """Return the mean of margins, each in units of its deviation over the training rows."""
    units = [float(one.train.std()) or 1.0 for one in margins]
    known, train, test = (
        torch.stack([part / unit for part, unit in zip(parts, units, strict=True)]).mean(dim=0)
        for parts in zip(*((one.known, one.train, one.test) for one in margins), strict=True)
    )
    return Margins(known, train, test)


def combine(known: Tensor, labels: Tensor, *others: Tensor) -> list[Tensor]:
    """Fit a linear discriminant with Ledoit and Wolf's shrinkage to known rows (k, F); return its scores of others.

    Parameters
    ----------
    known
        (k, F) rows whose labels are known.
    labels
        (k,) of -1 and 1.
    *others
        (n, F) rows that are read.
    """
    from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

    # A column without any spread, of gradients that are all zero, has no information and no covariance.
    spread = known.std(dim=0) > 0
    if not bool(spread.any()):
        return [rows.new_zeros(len(rows)) for rows in others]
    reader = LinearDiscriminantAnalysis(solver="lsqr", shrinkage="auto", priors=[0.5, 0.5])
    reader.fit(known[:, spread].numpy(), labels.numpy())
    scores = [reader.decision_function(rows[:, spread].numpy()) if len(rows) else np.zeros(0) for rows in others]
    return [torch.from_numpy(np.asarray(one, dtype=np.float64)) for one in scores]


class JointReaderAttack(JointAttack):
    """An attack that scores each row by a reader of its gradient, columns and embedding, fitted on k rows a class.

    It combines two kinds of fit: the mean of ridge regressions of the known labels on columns, on embeddings and on
    both, and the label-free regression of all rows' gradients on both (`JointRegressionAttack`). A linear discriminant
    of the known rows weighs them with the row's own gradient: its coordinate along the first direction, its length, and
    its residual length without the first directions. Test rows have no gradient.

    Parameters
    ----------
    k
        Number of labelled rows of each class that it knows, at least 2.
    """

    name: ClassVar[str] = "joint_reader"
    needs: ClassVar[frozenset[str]] = frozenset({LEAKED})

    def __init__(self, k: int = 64) -> None:
        self.k = whole(self.name, "k", k)
        if self.k < 2:
            raise ConfigError(f"{self.name}: k is {k}; a reader needs 2 rows of each class at least")

    @property
    def leaks(self) -> int:
        """The number of labelled rows of each class that it knows."""
        return self.k

    def read(self, view: JointView) -> JointScores:
        """Return the fitted reader's scores of all rows."""
        rows, labels = torch.from_numpy(view.known.require(0, 1).rows), _signs(view)
        fit = fit_gradients(view.gradients, view.train, view.test, words=view.words)
        margins = _mean([one for sees in _VIEWS if (one := read_own(view, sees)) is not None])
        parts = (margins.known[:, None], margins.train[:, None], margins.test[:, None])
        known, train, test = (
            torch.cat(pair, dim=1) for pair in zip(parts, (fit.train[rows], fit.train, fit.test), strict=True)
        )
        without, other = combine(known, labels, train, test)
        (mine,) = combine(torch.cat([known, fit.own[rows]], dim=1), labels, torch.cat([train, fit.own], dim=1))
        return JointScores(mine, other, without)

    def baselines(self, view: JointView) -> Mapping[str, JointScores]:
        """Return readers of the columns, of the embeddings and of both, fitted on the same labels without gradients."""
        view.known.require(0, 1)
        found = {}
        for sees in _VIEWS:
            margins = read_own(view, sees)
            if margins is not None:
                found[", ".join(sees)] = JointScores(margins.train, margins.test)
        return found


def _signs(view: JointView) -> Tensor:
    return torch.from_numpy(np.where(view.known.labels == 1, 1.0, -1.0))
