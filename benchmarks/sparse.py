"""(q) Wide & Deep with a million values, embeddings updated at the rows of a batch, against updates of whole tables.

Generated data with 16 categorical columns a party, values by Zipf's law as in logs of clicks; the papers' network and
batches of 1,024; `inproc`, two torch threads, attacks off. The other side is the same run with `torch.optim.Adam` on
dense gradients of the tables. Quality: test AUC after two epochs, three seeds. Target: at least 3 times the steps a
second, and a mean AUC that differs by at most 0.003.
"""

from __future__ import annotations

import logging
import os
import statistics
import tempfile
from typing import Any

from harness import Gate, arguments, compare, report
from lanes import split
from torch import nn

from flower_vfl import run
from flower_vfl.config import Config, build_config
from flower_vfl.nn import networks
from flower_vfl.nn.tabular import FeatureShape
from flower_vfl.nn.wide_deep import WideDeep
from flower_vfl.sections import ModelConfig

FASTER, APART = 3.0, 0.003
DENSE = "wide-deep, dense"


class _Dense(WideDeep):
    """The same network, whose tables get dense gradients."""

    def bottom(self, spec: FeatureShape, model: ModelConfig) -> nn.Module:
        return _dense(super().bottom(spec, model))

    def own(self, spec: FeatureShape, classes: int, model: ModelConfig) -> nn.Module:
        return _dense(super().own(spec, classes, model))


def _dense(network: nn.Module) -> nn.Module:
    for part in network.modules():
        if isinstance(part, nn.Embedding | nn.EmbeddingBag):
            part.sparse = False
    return network


def settings(quick: bool, network: str, seed: int = 0, epochs: int = 1000) -> Config:
    """Return a run of the papers' network on a million values."""
    rows = {"rows": 4_096, "vocabulary": 1_000, "test_rows": 512}
    if not quick:
        rows = {"rows": 150_000, "vocabulary": 1_000_000, "test_rows": 20_000}
    return build_config(
        {
            "seed": seed,
            "data": {"name": "synthetic", "options": rows},
            "model": {"network": network, "embedding_width": 4, "bottom": [128] * 2, "cut": 128, "top": [128] * 3},
            "training": {"epochs": epochs, "batch_size": 256 if quick else 1024, "learning_rate": 0.001},
            "attack": {"names": [], "snapshots": []},
            "threads": 2,
        }
    )


def lane(gate: Gate, config: Config) -> None:
    """Train, with the dense network among those that a configuration can name."""
    networks.NETWORKS = {**networks.NETWORKS, DENSE: _Dense()}
    split(gate, config)


def aucs(quick: bool, network: str) -> list[float]:
    """Return the test AUC of each seed."""
    logging.disable(logging.WARNING)
    networks.NETWORKS = {**networks.NETWORKS, DENSE: _Dense()}
    return [float(run(settings(quick, network, seed, epochs=2)).test_auc) for seed in range(1 if quick else 3)]


def main() -> None:
    """Measure and report."""
    quick = arguments(__doc__).quick
    with tempfile.TemporaryDirectory(prefix="flower-vfl-benchmark-") as cache:
        os.environ["FLOWER_VFL_CACHE"] = cache
        lanes = [(name, lane, settings(quick, name)) for name in ("wide-deep", DENSE)]
        size = {"starts": 1, "blocks": 2, "steps": 4} if quick else {"starts": 3, "blocks": 16, "steps": 20}
        sparse, dense = compare(lanes, **size).times
        quality: dict[str, Any] = {name: aucs(quick, name) for name in ("wide-deep", DENSE)}
    ratio = dense.over(sparse)
    apart = statistics.mean(quality["wide-deep"]) - statistics.mean(quality[DENSE])
    report(
        "sparse",
        target=f">= {FASTER} times the steps a second, AUC within {APART}",
        met={"speed": ratio.median >= FASTER, "quality": abs(apart) <= APART},
        quick=quick,
        ratio=ratio.describe(),
        sparse_ms=sparse.milliseconds,
        dense_ms=dense.milliseconds,
        auc=quality,
        auc_apart=round(apart, 5),
    )


if __name__ == "__main__":
    main()
