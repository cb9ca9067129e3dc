"""Baselines of a federation: scikit-learn on each party's columns and on the joined table, same test rows.

They join the parties' columns in one place, which a deployment never does: only simulations have them.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from rich.status import Status

from flower_vfl.apps.factories import party_names
from flower_vfl.apps.folder import RESULT, has_ended, read_result
from flower_vfl.apps.result_schema import OWN_DATA, kept_utility
from flower_vfl.config import Config
from flower_vfl.data.store.memory import VerticalData
from flower_vfl.files import write_json_atomic
from flower_vfl.metrics import leak_auc
from flower_vfl.reports import renew
from flower_vfl.reports.worth import JOINED, WORTH
from flower_vfl.simulations.running import alone_parties, opened_here
from flower_vfl.terminal import console

if TYPE_CHECKING:
    import torch

_MOST_LEVELS = 250
"""Most values of a category: gradient boosting takes more as numbers, logistic regression joins the rarest."""
_MOST_ROWS = 200_000
_FEWEST_OF_CLASS = 10
"""Number of test rows of a class below which an AUC has no interval worth the name."""


def wants_baselines(config: Config, dataset: VerticalData) -> bool:
    """Return True if a run is compared with scikit-learn: if configured, and by default on the user's own tables."""
    tables = not any(dataset.party(party).spec.shape for party in alone_parties(config, dataset))
    return tables and (config.baselines == "on" or (config.baselines == "auto" and dataset.name == OWN_DATA))


def compare_run(config: Config, folder: Path) -> dict[str, Any]:
    """Return the result of a finished run, with the comparison with scikit-learn on its test rows if configured.

    The comparison is added to the run's `result.json`, and its report is written again. A deployed run has none: on
    the label party's host the columns of the others are missing.
    """
    result = read_result(folder)
    if WORTH not in result and has_ended(folder) and config.baselines != "off":
        config, dataset = opened_here(config)
        complete = set(party_names(config, dataset)) <= set(alone_parties(config, dataset))
        if complete and wants_baselines(config, dataset):
            with Status("scikit-learn on the same rows", console=console()):
                result = {**result, WORTH: worth_of(config, dataset, result)}
            write_json_atomic(folder / RESULT, result)
            renew(folder)
    return result


def worth_of(config: Config, dataset: VerticalData, result: Mapping[str, Any]) -> dict[str, Any]:
    """Return the utility of gradient boosting and logistic regression on each party's columns and on all of them.

    They use their defaults, all training rows (200,000 at most, evenly spaced) and the encoded columns of the
    federation, but no validation.

    Parameters
    ----------
    config : Config
        Configuration of the run: it names the parties whose columns were used.
    dataset : VerticalData
        Its data.
    result : Mapping
        Its result, with the federation's utility.

    Returns
    -------
    dict
        ``measure`` (test AUC of two classes, accuracy of more), ``together``, ``margin`` (half of the 95 % interval
        by the number of test rows; None for an AUC of fewer than ten rows of a class), ``test_rows``, and
        ``baselines``: objects with ``model``, ``columns``, ``value``; none where all training labels are equal.
    """
    labels = dataset.labels()
    measure = "test_auc" if labels.classes == 2 else "test_accuracy"
    chosen = np.linspace(0, len(labels.train), min(len(labels.train), _MOST_ROWS), endpoint=False).astype(np.int64)
    tables = {party: _Table.of(dataset, party, chosen) for party in alone_parties(config, dataset)}
    if len(tables) > 1:
        tables[JOINED] = _Table.joined(list(tables.values()))
    found, known = [], labels.train[chosen]
    for columns, table in tables.items() if len(np.unique(known)) > 1 else ():
        for model, scores in table.scores(known, labels.classes, config.threads).items():
            found.append({"model": model, "columns": columns, "value": _utility(scores, labels.test, labels.classes)})
    together = kept_utility(result).get(measure)
    counts = np.bincount(labels.test, minlength=labels.classes)
    margin = _margin(float(together), counts) if isinstance(together, int | float) else None
    return {
        "measure": measure,
        "together": together,
        "margin": margin,
        "test_rows": len(labels.test),
        "baselines": found,
    }


class _Table:
    """Encoded columns as scikit-learn takes them: numbers (N, F) and the ids of categories (N, K)."""

    def __init__(self, numbers: list[NDArray[np.float64]], ids: list[NDArray[np.float64]]) -> None:
        self.numbers, self.ids = numbers, ids

    @classmethod
    def of(cls, dataset: VerticalData, party: str, chosen: NDArray[np.int64]) -> _Table:
        """Return a party's columns of some training rows and of all test rows."""
        table = dataset.party(party)
        parts = [table.train.gather(chosen), table.test.gather(np.arange(len(table.test)))]
        kinds = ([_beside(part, floats=floats) for part in parts] for floats in (True, False))
        return cls(*kinds)

    @classmethod
    def joined(cls, tables: list[_Table]) -> _Table:
        """Return the columns of all tables, side by side."""
        sides = (0, 1)
        return cls(
            [np.concatenate([table.numbers[side] for table in tables], axis=1) for side in sides],
            [np.concatenate([table.ids[side] for table in tables], axis=1) for side in sides],
        )

    def scores(self, labels: NDArray[np.integer], classes: int, threads: int) -> dict[str, NDArray[np.float64]]:
        """Return the probabilities (N, C) of the test rows by each model, computed with `threads` threads; 0: all.

        A class that no label is of has the probability 0.
        """
        from sklearn.compose import make_column_transformer
        from sklearn.ensemble import HistGradientBoostingClassifier
        from sklearn.linear_model import LogisticRegression
        from sklearn.pipeline import make_pipeline
        from sklearn.preprocessing import OneHotEncoder
        from threadpoolctl import threadpool_limits

        width = self.numbers[0].shape[1]
        train, test = (np.concatenate([self.numbers[side], self.ids[side]], axis=1) for side in (0, 1))
        levels = train.max(axis=0, initial=0)
        boosting = HistGradientBoostingClassifier(
            random_state=0,
            categorical_features=[place >= width and levels[place] < _MOST_LEVELS for place in range(train.shape[1])],
        )
        hot = OneHotEncoder(handle_unknown="infrequent_if_exist", max_categories=_MOST_LEVELS)
        columns = make_column_transformer(
            (hot, list(range(width, train.shape[1]))), remainder="passthrough", sparse_threshold=1.0
        )
        logistic = make_pipeline(columns, LogisticRegression(max_iter=1000))
        models = {"gradient boosting": boosting, "logistic regression": logistic}
        # OpenMP's threads spin while they wait for each other: slow where other work has the processors.
        with threadpool_limits(limits=threads or None):
            found = {name: model.fit(train, labels).predict_proba(test) for name, model in models.items()}
        return {name: _of_all_classes(scores, np.unique(labels), classes) for name, scores in found.items()}


def _of_all_classes(scores: NDArray[np.float64], known: NDArray[np.integer], classes: int) -> NDArray[np.float64]:
    """Return scores (N, C) of all classes, from those (N, K) of the known ones."""
    whole = np.zeros((len(scores), classes))
    whole[:, known] = scores
    return whole


def _beside(part: tuple[torch.Tensor, ...], *, floats: bool) -> NDArray[np.float64]:
    """Return the numbers of some rows, or the ids of their categories, side by side."""
    found = [tensor.numpy().astype(np.float64) for tensor in part if tensor.is_floating_point() == floats]
    return np.concatenate([np.empty((len(part[0]), 0)), *found], axis=1)


def _utility(scores: NDArray[np.float64], labels: NDArray[np.integer], classes: int) -> float:
    if classes == 2:
        return float(leak_auc(scores[:, 1], labels))
    return float((scores.argmax(axis=1) == labels).mean())


def _margin(value: float, counts: NDArray[np.int64]) -> float | None:
    """Return half of the 95 % interval of an accuracy, or of an AUC (Hanley and McNeil, 1982), by class counts.

    None for an AUC of too few rows of a class.
    """
    fewest = int(counts.sum() if len(counts) > 2 else counts.min())
    if len(counts) == 2 and fewest < _FEWEST_OF_CLASS:
        return None
    least = 2 / (fewest + 4)  # an interval also where every row or pair is right (Agresti and Coull, 1998)
    value = min(max(value, least), 1 - least)
    if len(counts) > 2:
        return float(1.96 * np.sqrt(value * (1 - value) / counts.sum()))
    first, second = value / (2 - value), 2 * value**2 / (1 + value)
    negatives, positives = (int(count) for count in counts)
    spread = value * (1 - value) + (positives - 1) * (first - value**2) + (negatives - 1) * (second - value**2)
    return float(1.96 * np.sqrt(max(0.0, spread) / (positives * negatives)))
