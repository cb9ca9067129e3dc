"""Informed readers: classifiers that are fitted to labels of some rows, and read the labels of others.

They measure the leak to a party that knows the labels of half of all rows: discriminants that are fitted in closed
form, boosted trees and a small network. All take rows (n, F) of numbers and classes (n,), and score other rows.
"""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

FeatureRows: TypeAlias = NDArray[np.floating]
"""Rows (n, F)."""

Scores: TypeAlias = NDArray[np.float64]
"""(n, C) scores of the classes, up to a constant of the row; larger is more likely."""

Reader: TypeAlias = Callable[[FeatureRows], Scores]
"""Function from rows to scores of all classes; finite for finite rows."""

Fit: TypeAlias = Callable[[FeatureRows, NDArray[np.integer], int], Reader]
"""Function that fits a reader to rows (n, F), their classes (n,) and the number of classes; each class has a row."""

WIDEST_READER = 256
"""Largest number of columns of discriminants and networks; more are projected, see `_narrowing`."""

SQUARABLE = 1e18
"""Largest distance in units of a column whose square a float32 holds."""

CONSTANT_VARIANCE = 1e-9
"""Variance of a direction, as a part of the largest, below which it counts as constant."""

FARTHEST = 8.0
"""Number of standard deviations at which the inputs of a network are clipped."""

LARGEST_FIT = 16_384
"""Largest number of rows to fit trees and a network to; of more, those of frequent classes are thinned first."""

SCREENED = 96
"""Largest number of columns that trees of more than two classes read: those whose means differ most."""

SCREENED_OF_TWO = 512
"""Largest number of columns that trees of two classes read, chosen in the same way."""

_SEED = 0

Made = TypeVar("Made")


class _LatestCache(Generic[Made]):
    """A cache of the last value computed from arrays, as long as these live: several readers use the same rows."""

    def __init__(self) -> None:
        self._cached: tuple[tuple[weakref.ref[Any], ...], Made] | None = None

    def get(self, arrays: tuple[NDArray[Any], ...], make: Callable[[], Made]) -> Made:
        """Return the value made from these very arrays; make it if it is not cached."""
        known = self._cached
        if known is not None and all(seen() is array for seen, array in zip(known[0], arrays, strict=True)):
            return known[1]
        made = make()
        self._cached = tuple(weakref.ref(array, self._drop) for array in arrays), made
        return made

    def _drop(self, gone: weakref.ref[Any]) -> None:
        if self._cached is not None and any(gone is seen for seen in self._cached[0]):
            self._cached = None


def linear_discriminant(x: FeatureRows, y: NDArray[np.integer], classes: int) -> Reader:
    r"""Fit Fisher's linear discriminant with a shrunk covariance that all classes share.

    .. math:: s_c(x) = \langle \Sigma^{-1} \mu_c, x \rangle - \tfrac12 \mu_c^\top \Sigma^{-1} \mu_c + \ln \pi_c

    :math:`\Sigma` is the covariance within classes, shrunk to a multiple of the identity by Ledoit and Wolf's
    estimator.

    References
    ----------
    Ledoit and Wolf, *A well-conditioned estimator for large-dimensional covariance matrices*, 2004.
    """
    whiten, z = _whitened(x, y, classes)
    means = np.stack([z[y == c].mean(axis=0) for c in range(classes)])
    offset = np.log(_shares(y, classes)) - 0.5 * np.square(means).sum(axis=1)
    return lambda rows: whiten(rows) @ means.T + offset


def quadratic_discriminant(x: FeatureRows, y: NDArray[np.integer], classes: int) -> Reader:
    r"""Fit a Gaussian to each class, its covariance shrunk by Ledoit and Wolf's estimator.

    .. math:: s_c(x) = -\tfrac12 (x - \mu_c)^\top \Sigma_c^{-1} (x - \mu_c) - \tfrac12 \ln |\Sigma_c| + \ln \pi_c

    It works in units of the covariance within classes, so that each :math:`\Sigma_c` is shrunk towards the shape that
    the classes share. Where means are equal, it reads a class by the size of its noise, in any direction.
    """
    whiten, z = _whitened(x, y, classes)
    parts = [_gaussian(z[y == c]) for c in range(classes)]
    priors = np.log(_shares(y, classes))

    def read(rows: FeatureRows) -> Scores:
        white = whiten(rows)
        found = [-0.5 * np.square((white - mean) @ root).sum(axis=1) + offset for mean, root, offset in parts]
        return np.stack(found, axis=1) + priors

    return read


def energy_discriminant(x: FeatureRows, y: NDArray[np.integer], classes: int) -> Reader:
    r"""Fit the directions in which a class has more or less energy than all, weighted by the difference.

    .. math:: s_c(x) = \sum_k \lambda_k |\lambda_k| \langle v_k, z \rangle^2

    with z the row in units of the covariance within classes, and :math:`\lambda_k, v_k` the eigenvalues and vectors of
    the class's mean of :math:`z z^\top`, less the identity. A quadratic discriminant shrinks a covariance of few rows
    to a multiple of the identity. This discriminant keeps deviations from it: energy in a few directions of one batch.
    """
    whiten, z = _whitened(x, y, classes)
    centre = z.mean(axis=0)
    forms = []
    for c in range(classes):
        own = z[y == c] - centre
        values, vectors = np.linalg.eigh(own.T @ own / len(own) - np.eye(z.shape[1]))
        forms.append((vectors * (values * np.abs(values))) @ vectors.T)

    def read(rows: FeatureRows) -> Scores:
        white = whiten(rows) - centre
        return np.stack([np.einsum("nf,nf->n", white @ form, white) for form in forms], axis=1)

    return read


def product_discriminant(x: FeatureRows, y: NDArray[np.integer], classes: int) -> Reader:
    r"""Fit products of two columns, and squares, whose means differ between classes, weighted by the difference.

    .. math:: s_c(x) = \sum_{j \le k} d^c_{jk} |d^c_{jk}| \frac{z_j z_k}{\sigma_{jk}}, \qquad
        d^c_{jk} = \frac{m^c_{jk} - m_{jk}}{\sigma_{jk}}

    with z the row in standard units, :math:`m^c` the class's mean of a product, and :math:`m, \sigma` the mean and the
    standard deviation over all rows. The covariance of a class with few rows cannot be inverted; each product by
    itself still shows that its columns correlate, where their means and variances are equal between classes.
    """
    narrow = _narrowed(x, y, classes)

    def units(rows: FeatureRows) -> FeatureRows:
        return np.clip(narrow(rows), -FARTHEST / 2, FARTHEST / 2)

    z = units(x)
    means, squares = z.T @ z / len(z), np.square(z)
    variances = squares.T @ squares / len(z) - np.square(means)
    sigmas = np.sqrt(np.where(variances > CONSTANT_VARIANCE, variances, np.inf))
    forms = []
    for c in range(classes):
        own = z[y == c]
        apart = (own.T @ own / len(own) - means) / sigmas
        forms.append(np.triu(apart * np.abs(apart) / sigmas))

    def read(rows: FeatureRows) -> Scores:
        found = units(rows)
        return np.stack([np.einsum("nf,nf->n", found @ form, found, dtype=np.float64) for form in forms], axis=1)

    return read


def repeated_values(x: FeatureRows, y: NDArray[np.integer], classes: int) -> Reader:
    """Fit naive Bayes to the frequency of each exact value of a column in each class, over values that occur twice.

    Numbers that were rounded to a grid that depends on the label have equal values where the label is equal, which no
    mean, no variance and no threshold shows. Numbers that are all different give equal scores.
    """
    known: list[tuple[NDArray[np.floating], NDArray[np.float64]]] = []
    for column in x.T:
        values, places, counts = np.unique(column, return_inverse=True, return_counts=True)
        kept = np.flatnonzero(counts > 1)
        if len(kept) > 1:
            found = np.stack([np.bincount(places[y == c], minlength=len(values))[kept] for c in range(classes)], axis=1)
            shares = (found + 0.5 * _shares(y, classes)) / (np.bincount(y, minlength=classes) + 0.5)
            known.append((values[kept], np.log(shares)))
        else:
            known.append((values[:0], np.zeros((0, classes))))

    def read(rows: FeatureRows) -> Scores:
        scores = np.zeros((len(rows), classes))
        for column, (values, odds) in zip(rows.T, known, strict=True):
            if len(values):
                at = np.minimum(np.searchsorted(values, column), len(values) - 1)
                same = values[at] == column
                scores[same] += odds[at[same]]
        return scores

    return read


def shared_values(x: FeatureRows, y: NDArray[np.integer], classes: int) -> Reader:
    """Fit naive Bayes to the frequency of each exact value in each class, as `repeated_values` over all columns.

    A grid is mostly the same in all columns. A fine one then has values that occur twice, but not in the same column.
    """
    read = repeated_values(x.reshape(-1, 1), np.repeat(y, x.shape[1]), classes)
    return lambda rows: read(rows.reshape(-1, 1)).reshape(*rows.shape, classes).sum(axis=1)


def bounded_discriminant(x: FeatureRows, y: NDArray[np.integer], classes: int) -> Reader:
    r"""Fit a linear discriminant to two bounded functions of each column, which noise with heavy tails cannot spoil.

    .. math:: u \mapsto \frac{u}{1 + u^2}, \qquad u \mapsto \min(|u|, 1)

    with u the distance from the column's median in units of the median distance. The first is the score function of
    Cauchy's distribution. The second differs between distributions of equal mean and variance with other tails. Of more
    than `WIDEST_READER` such columns those are read whose means differ most, see `screened`.
    """
    middle = np.median(x, axis=0)
    unit = np.median(np.abs(x - middle), axis=0)
    unit = np.where(unit > 0, unit, _scale(x))

    def bounded(rows: FeatureRows) -> FeatureRows:
        with np.errstate(over="ignore"):
            u = np.clip((rows - middle) / unit, -SQUARABLE, SQUARABLE)
        return np.concatenate([u / (1 + np.square(u)), np.minimum(np.abs(u), 1)], axis=1)

    seen = bounded(x)
    kept = slice(None) if seen.shape[1] <= WIDEST_READER else screened(seen, y, classes, WIDEST_READER)
    seen = seen[:, kept]
    means = np.stack([seen[y == c].mean(axis=0) for c in range(classes)])
    _, root, _ = _gaussian(seen - means[y])
    offset = np.log(_shares(y, classes)) - 0.5 * np.square(means @ root).sum(axis=1)
    return lambda rows: bounded(rows)[:, kept] @ (root @ root.T @ means.T) + offset


def boosted_trees(x: FeatureRows, y: NDArray[np.integer], classes: int, *, most: int = LARGEST_FIT) -> Reader:
    """Fit gradient-boosted trees of scikit-learn to at most ``most`` rows, with early stopping by a held-out part.

    For two classes there are up to 200 trees, which read the `SCREENED_OF_TWO` columns whose means, or mean distances
    from the centre, differ most between classes. For more classes each round has one tree for each class: these are
    fewer and smaller, split columns at 31 thresholds instead of 254, and read `SCREENED` columns. On thousands of
    columns, which cuts of images have, that takes a tenth of the time or less, and reads no less.
    """
    from sklearn.ensemble import HistGradientBoostingClassifier
    from threadpoolctl import threadpool_limits

    rows, two = thinned(y, classes, most), classes == 2
    model = HistGradientBoostingClassifier(
        max_iter=200 if two else max(20, 200 // classes),
        max_leaf_nodes=31 if two else 8,
        max_bins=255 if two else 32,
        early_stopping=True,
        n_iter_no_change=10,
        validation_fraction=0.15,
        random_state=_SEED,
    )
    x, y = x[rows], y[rows]
    most_columns = SCREENED_OF_TWO if two else SCREENED
    columns = slice(None) if x.shape[1] <= most_columns else screened(x, y, classes, most_columns)
    # OpenMP's threads spin while they wait for each other: slow where other work has the processors.
    with threadpool_limits(limits=1, user_api="openmp"):
        model.fit(x[:, columns], y)

    def read(rows: FeatureRows) -> Scores:
        with threadpool_limits(limits=1, user_api="openmp"):
            return _log_odds(model.predict_proba(rows[:, columns]), model.classes_, classes)

    return read


def screened(x: FeatureRows, y: NDArray[np.integer], classes: int, most: int) -> NDArray[np.int64]:
    """Return the columns whose means, or mean distances from the centre, differ most between classes, in their order.

    Examples
    --------
    >>> x = np.array([[0.0, 1.0, 5.0], [0.0, -1.0, 5.0], [0.0, 3.0, 6.0], [1.0, -3.0, 6.0]])
    >>> screened(x, np.array([0, 0, 1, 1]), 2, most=2).tolist()  # the second has more of both signs
    [1, 2]
    """
    centred = x - x.mean(axis=0)
    of_class = np.eye(classes, dtype=centred.dtype)[y]
    counts = of_class.sum(axis=0)
    found = np.zeros(x.shape[1])
    for seen in (centred, np.abs(centred)):
        values = seen - seen.mean(axis=0)
        means = of_class.T @ values / np.maximum(counts, 1)[:, None]
        between, whole = counts @ np.square(means), np.square(values).sum(axis=0)
        found = np.maximum(found, np.divide(between, whole, out=np.zeros_like(between), where=whole > 0))
    return np.sort(np.argsort(-found, kind="stable")[:most])


def network(x: FeatureRows, y: NDArray[np.integer], classes: int, *, most: int = LARGEST_FIT) -> Reader:
    """Fit a perceptron of scikit-learn with one hidden layer to at most ``most`` rows, by least squares on the classes.

    Early stopping uses the share of explained variance in a held-out part, which measures a rare class where the
    accuracy does not. More than `WIDEST_READER` columns are projected as for a discriminant.
    """
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.neural_network import MLPRegressor

    if x.shape[1] > WIDEST_READER:
        narrow = _narrowed(x, y, classes)
        read = network(narrow(x), y, classes, most=most)
        return lambda wide: read(narrow(wide))
    rows = thinned(y, classes, most)
    mean, scale = x[rows].mean(axis=0), _scale(x[rows])
    model = MLPRegressor(
        hidden_layer_sizes=(64,), alpha=1e-2, max_iter=30, early_stopping=True, n_iter_no_change=4, random_state=_SEED
    )
    target = np.eye(classes)[y[rows]]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # thirty passes are the budget
            warnings.filterwarnings("error", "Training interrupted")  # scikit-learn takes an interrupt for the end
            model.fit(_standardised(x[rows], mean, scale), target / target.std(axis=0))
    except UserWarning:
        raise KeyboardInterrupt from None
    return lambda rows: np.asarray(model.predict(_standardised(rows, mean, scale)), dtype=np.float64)


def _standardised(x: FeatureRows, mean: NDArray[np.floating], scale: NDArray[np.floating]) -> FeatureRows:
    return np.asarray(np.clip((x - mean) / scale, -FARTHEST, FARTHEST))


DISCRIMINANTS: Mapping[str, Fit] = {
    "linear": linear_discriminant,
    "quadratic": quadratic_discriminant,
    "bounded": bounded_discriminant,
}
"""Readers in closed form, by their name in results."""

WITHIN_BATCH: Mapping[str, Fit] = {
    **DISCRIMINANTS,
    "energy": energy_discriminant,
    "products": product_discriminant,
    "values": repeated_values,
    "grid": shared_values,
}
"""Readers in closed form that are fitted to each batch afresh."""

IN_CONTEXT: Mapping[str, Fit] = {"context": linear_discriminant}
"""The reader of gradients beside others, see `flower_vfl.auditing.context`."""

OF_PRODUCTS: Mapping[str, Fit] = {"pairs": product_discriminant}
"""The reader of products of two numbers of a gradient and its neighbours, see `flower_vfl.auditing.context`."""

OF_STEPS_AROUND: Mapping[str, Fit] = {"around": linear_discriminant}
"""The reader of the gradients of other rows one step earlier and later, see `flower_vfl.auditing.context`."""

OF_SIGNS: Mapping[str, Fit] = {"signs": linear_discriminant}
"""The reader of the mean signs of a row's gradients over all epochs."""

LEARNERS: Mapping[str, Callable[..., Reader]] = {"trees": boosted_trees, "network": network}
"""Readers that take seconds to fit."""


def score_of(scores: Scores, positive: int) -> NDArray[np.float64]:
    """Return the score (n,) of one class against all others, from scores (n, C).

    Examples
    --------
    >>> score_of(np.array([[0.0, 2.0], [1.0, 0.0]]), 1).tolist()
    [2.0, -1.0]
    """
    others = np.delete(scores, positive, axis=1)
    if others.shape[1] == 1:
        return np.asarray(scores[:, positive] - others[:, 0])
    largest = others.max(axis=1)
    return np.asarray(scores[:, positive] - largest - np.log(np.exp(others - largest[:, None]).sum(axis=1)))


def thinned(y: NDArray[np.integer], classes: int, most: int) -> NDArray[np.int64]:
    """Return at most ``most`` row positions, in order; a rare class keeps its rows, up to an equal share.

    Examples
    --------
    >>> thinned(np.array([0, 0, 1, 0, 0, 0, 0, 1]), 2, 4).tolist()
    [0, 2, 4, 7]
    """
    if len(y) <= most:
        return np.arange(len(y))
    counts = np.bincount(y, minlength=classes)
    room, kept = most, []
    for rank, c in enumerate(np.argsort(counts, kind="stable")):
        rows = np.flatnonzero(y == c)
        count = min(len(rows), room // (classes - rank))
        kept.append(rows[np.arange(count) * len(rows) // max(count, 1)])
        room -= count
    return np.sort(np.concatenate(kept))


def _shares(y: NDArray[np.integer], classes: int) -> NDArray[np.float64]:
    return np.bincount(y, minlength=classes) / len(y)


def _scale(x: FeatureRows) -> NDArray[np.floating]:
    scale = x.std(axis=0)
    return np.asarray(np.where(scale > 0, scale, 1.0))


_latest_space: _LatestCache[tuple[Callable[[FeatureRows], FeatureRows], FeatureRows]] = _LatestCache()
_latest_narrowing: _LatestCache[Callable[[FeatureRows], FeatureRows]] = _LatestCache()


def _whitened(
    x: FeatureRows, y: NDArray[np.integer], classes: int
) -> tuple[Callable[[FeatureRows], FeatureRows], FeatureRows]:
    """Return the map that makes the covariance within classes the identity, and the mapped rows."""
    return _latest_space.get((x, y), lambda: _whitening(x, y, classes))


def _whitening(
    x: FeatureRows, y: NDArray[np.integer], classes: int
) -> tuple[Callable[[FeatureRows], FeatureRows], FeatureRows]:
    narrow = _narrowed(x, y, classes)
    rows = narrow(x)
    means = np.stack([rows[y == c].mean(axis=0) for c in range(classes)])
    _, root, _ = _gaussian(rows - means[y])
    latest: _LatestCache[FeatureRows] = _LatestCache()
    return lambda more: latest.get((more,), lambda: narrow(more) @ root), rows @ root


def _narrowed(x: FeatureRows, y: NDArray[np.integer], classes: int) -> Callable[[FeatureRows], FeatureRows]:
    """Return the `_narrowing` of these rows, which several readers share."""
    return _latest_narrowing.get((x, y), lambda: _narrowing(x, y, classes))


def _narrowing(x: FeatureRows, y: NDArray[np.integer], classes: int) -> Callable[[FeatureRows], FeatureRows]:
    """Return the map that standardises columns, and projects more than `WIDEST_READER` of them.

    The projection is on the principal components and on the differences of the classes' means.
    """
    mean, scale = x.mean(axis=0, dtype=np.float64), _scale(x).astype(np.float64)
    if x.shape[1] <= WIDEST_READER:
        return lambda rows: (rows - mean) / scale
    from sklearn.decomposition import PCA

    z = ((x - mean) / scale).astype(np.float32)
    apart = np.stack([z[y == c].mean(axis=0) for c in range(classes)])
    apart -= apart.mean(axis=0)
    apart = apart[:-1] if classes == 2 else apart
    count = min(WIDEST_READER - len(apart), len(z) - 1)
    kept = np.concatenate([PCA(count, svd_solver="randomized", random_state=_SEED).fit(z).components_, apart])
    latest: _LatestCache[FeatureRows] = _LatestCache()
    return lambda rows: latest.get(
        (rows,), lambda: ((rows - mean) / scale).astype(np.float32) @ kept.T.astype(np.float32)
    )


def _gaussian(rows: FeatureRows) -> tuple[NDArray[np.float64], NDArray[np.float64], float]:
    """Return mean (F,), inverse root of the shrunk covariance (F, F) and minus half its log determinant."""
    from sklearn.covariance import ledoit_wolf

    mean = rows.mean(axis=0)
    centred = rows - mean
    if len(rows) > 1:
        covariance, _ = ledoit_wolf(centred, assume_centered=True)
    else:
        covariance = np.eye(rows.shape[1])
    values, vectors = np.linalg.eigh(covariance)
    values = np.maximum(values, CONSTANT_VARIANCE * max(values[-1], CONSTANT_VARIANCE))
    return mean, vectors / np.sqrt(values), float(-0.5 * np.log(values).sum())


def _log_odds(shares: NDArray[np.floating], known: NDArray[np.integer], classes: int) -> Scores:
    found = np.full((len(shares), classes), 1e-12)
    found[:, known] = np.maximum(shares, 1e-12)
    return np.asarray(np.log(found), dtype=np.float64)
