"""(q) Wide & Deep with a million values, embeddings updated at the rows of a batch, against updates of whole tables.

Generated data with 16 categorical columns a party, values by Zipf's law as in logs of clicks; the papers' network and
batches of 1,024; `inproc`, attacks off, on two cores. The other side is the same run with `torch.optim.Adam` on dense
gradients of the tables. Each side runs with one torch thread, the default, and with two; the faster of each counts.
Quality: test AUC of three seeds as the papers train on clicks, five epochs of Adam at 0.0001, and beside that at ten
times their learning rate, where the two differ. Target: at least 3 times the steps a second, and, as the papers train,
a mean AUC that differs by at most 0.003.
"""

from __future__ import annotations

import logging
import os
import statistics
import tempfile
from typing import Any

from harness import Gate, Times, arguments, compare, report
from lanes import split
from torch import nn

from flower_vfl import run
from flower_vfl.config import Config, build_config
from flower_vfl.config.schema import ModelConfig
from flower_vfl.nn import networks
from flower_vfl.nn.tabular import FeatureShape
from flower_vfl.nn.wide_deep import WideDeep

FASTER, APART = 3.0, 0.003
THREADS = (1, 2)
EPOCHS, LEARNING_RATE, LARGER = 5, 0.0001, 0.001
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


def settings(
    quick: bool, network: str, *, seed: int = 0, epochs: int = 1000, threads: int = 1, rate: float = LEARNING_RATE
) -> Config:
    """Return a run of the papers' network on a million values."""
    rows = {"rows": 4_096, "vocabulary": 1_000, "test_rows": 512}
    if not quick:
        rows = {"rows": 150_000, "vocabulary": 1_000_000, "test_rows": 20_000}
    return build_config(
        {
            "seed": seed,
            "data": {"name": "synthetic", "options": rows},
            "model": {"network": network, "embedding_width": 4, "bottom": [128] * 2, "cut": 128, "top": [128] * 3},
            "training": {"epochs": epochs, "batch_size": 256 if quick else 1024, "learning_rate": rate},
            "attack": {"names": [], "informed": 0, "snapshots": []},
            "threads": threads,
        }
    )


def lane(gate: Gate, config: Config) -> None:
    """Train, with the dense network among those that a configuration can name."""
    networks.NETWORKS = {**networks.NETWORKS, DENSE: _Dense()}
    split(gate, config)


def aucs(quick: bool, network: str, rate: float) -> list[float]:
    """Return the test AUC of each seed."""
    logging.disable(logging.WARNING)
    networks.NETWORKS = {**networks.NETWORKS, DENSE: _Dense()}
    seeds, epochs = (range(1), 1) if quick else (range(3), EPOCHS)
    return [float(run(settings(quick, network, seed=seed, epochs=epochs, rate=rate)).test_auc) for seed in seeds]


def fastest(sides: list[Times]) -> Times:
    """Return the times of the side that takes the fewest milliseconds a step."""
    return min(sides, key=lambda side: side.milliseconds)


def main() -> None:
    """Measure and report."""
    quick = arguments(__doc__).quick
    with tempfile.TemporaryDirectory(prefix="flower-vfl-benchmark-") as cache:
        os.environ["FLOWER_VFL_CACHE"] = cache
        sides = [(name, threads) for name in ("wide-deep", DENSE) for threads in THREADS]
        lanes = [(f"{name}, {threads}", lane, settings(quick, name, threads=threads)) for name, threads in sides]
        size = {"starts": 1, "blocks": 2, "steps": 2} if quick else {"starts": 3, "blocks": 16, "steps": 20}
        times = compare(lanes, **size).times
        quality: dict[str, Any] = {
            rate: {name: aucs(quick, name, rate) for name in ("wide-deep", DENSE)} for rate in (LEARNING_RATE, LARGER)
        }
    sparse, dense = times[: len(THREADS)], times[len(THREADS) :]
    ratio = fastest(dense).over(fastest(sparse))
    apart = {rate: statistics.mean(of["wide-deep"]) - statistics.mean(of[DENSE]) for rate, of in quality.items()}
    report(
        "sparse",
        target=f">= {FASTER} times the steps a second, AUC within {APART}",
        met={"speed": ratio.median >= FASTER, "quality": abs(apart[LEARNING_RATE]) <= APART},
        quick=quick,
        ratio=ratio.describe(),
        sparse_ms={threads: side.milliseconds for threads, side in zip(THREADS, sparse, strict=True)},
        dense_ms={threads: side.milliseconds for threads, side in zip(THREADS, dense, strict=True)},
        auc=quality,
        auc_apart={rate: round(value, 5) for rate, value in apart.items()},
    )


if __name__ == "__main__":
    main()
