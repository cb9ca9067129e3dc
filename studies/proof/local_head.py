"""Measure the prediction of unseen people's labels by a feature party, from a local head's gradients.

Usage::

    python -m studies.proof.local_head census --seeds 0 1 2
    python -m studies.proof.local_head credit --seeds 0 1 2 --runs runs/proof
    python -m studies.proof.local_head flights --seeds 0 1 2 --columns

For each seed: the AUC on the test rows of the local head's prediction after the last epoch, at epsilon 1 and where
nearly no label is flipped (a network of the same size that learned from true labels), both after pre-training. Beside
them that of gradient boosting on the party's own columns: fitted to the true labels of all training rows, and to
randomised ones, which its gradients show: those of the two answers point to opposite sides. With `--columns` only the
latter two. Prints a line of JSON a seed.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.ensemble import HistGradientBoostingClassifier
from torch import Tensor

from flower_vfl import load_config, run
from flower_vfl.accounting import RandomisedResponse
from flower_vfl.apps.factories import open_data
from flower_vfl.config import Config
from flower_vfl.data.store.dataset import PartyTable
from flower_vfl.metrics import leak_auc
from flower_vfl.parties.hooks import Log
from flower_vfl.parties.network import as_logits
from flower_vfl.strategies import HookedStrategy, LocalHead
from studies.proof.study import ALMOST, CREDIT, EPSILONS, FATE, PASSES, STUDIES


class Recorded(LocalHead):
    """Local heads that record the predictions of the only party's head in evaluations, the test rows last."""

    name: ClassVar[str] = "recorded"
    logits: ClassVar[list[NDArray[np.float32]]] = []

    def __init__(self, strategy: HookedStrategy, epsilon: float = 1.0) -> None:
        super().__init__(strategy, epsilon)
        self.logits.clear()

    def embed(self, z: Tensor, *, party: str = "", train: bool = True) -> tuple[Tensor, Log]:
        """Record the prediction in evaluations."""
        if not train:
            with torch.no_grad():
                self.logits.append(as_logits(self.modules[party](z)).numpy())
        return super().embed(z, party=party, train=train)


def config_of(study: str, seed: int, epsilon: float, runs: Path) -> Config:
    """Return the study's configuration with pre-training, and without attacks and audits."""
    changed: dict[str, Any] = {
        **{"seed": seed, "training.patience": 0, "training.pretrain": PASSES},
        **{"attack.names": [], "attack.informed": 0, "attack.audit": False, "attack.embeddings": 0},
        "defenses": [{"name": f"{__spec__.name}:Recorded", "epsilon": epsilon}],
    }
    if study == CREDIT:
        changed |= {f"data.options.files.{party}": str(runs / "fate" / name) for party, name in FATE.items()}
    return load_config(STUDIES[study], changed)


def of_head(config: Config, labels: NDArray[Any]) -> float:
    """Train, and return the AUC (M test rows) of the local head's prediction."""
    from studies.proof.local_head import Recorded as Loaded  # the class that the configuration names

    run(config)
    return leak_auc(np.concatenate(Loaded.logits)[-len(labels) :], labels)


def randomised(labels: NDArray[Any], epsilon: float, seed: int) -> NDArray[Any]:
    """Return labels of two classes, each flipped by randomised response."""
    flipped = np.random.default_rng(seed).random(len(labels)) < RandomisedResponse(epsilon).flip
    return np.where(flipped, 1 - labels, labels)


def of_columns(table: PartyTable, train: NDArray[Any], test: NDArray[Any]) -> float:
    """Return the AUC on test rows of gradient boosting on a party's columns, fitted to labels of all training rows."""
    ours, others = (
        np.concatenate([part.numpy().reshape(len(part), -1) for part in source.gather(np.arange(len(source)))], axis=1)
        for source in (table.train, table.test)
    )
    fitted = HistGradientBoostingClassifier(random_state=0).fit(ours, train)
    return leak_auc(fitted.predict_proba(others)[:, 1], test)


def main() -> None:
    """Print the AUCs, a line for each seed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", choices=list(STUDIES))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--runs", type=Path, default=Path("runs/proof"))
    parser.add_argument("--columns", action="store_true", help="train no network")
    given = parser.parse_args()
    data = open_data(config_of(given.study, 0, 1.0, given.runs))
    labels = data.labels()
    table = data.party(next(name for name in data.parties if name != data.label_party))
    columns = of_columns(table, labels.train, labels.test)
    for seed in given.seeds:
        found: dict[str, Any] = {"study": given.study, "seed": seed}
        for epsilon in () if given.columns else (1.0, ALMOST):
            found[f"head, {epsilon:g}"] = of_head(config_of(given.study, seed, epsilon, given.runs), labels.test)
        found["boosting"] = columns
        for epsilon in EPSILONS:
            answers = randomised(labels.train, epsilon, seed)
            found[f"boosting, {epsilon:g}"] = of_columns(table, answers, labels.test)
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
