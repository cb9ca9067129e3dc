"""Small vertical data sets for tests: a label that no party can predict alone."""

from __future__ import annotations

from dataclasses import replace
from string import ascii_lowercase

import numpy as np

from flower_vfl.config import Config, build_config
from flower_vfl.data.store.dataset import FeatureSpec, Labels, PartyTable
from flower_vfl.data.store.memory import MemoryData, array_table
from flower_vfl.data.store.source import ArraySource


def toy_data(
    rows: int = 600,
    test_rows: int = 150,
    parties: int = 2,
    shape: tuple[int, ...] = (6,),
    *,
    seed: int = 0,
    label_features: bool = False,
    classes: int = 2,
) -> MemoryData:
    """Return normal features with labels that are quantile classes of a noisy sum over all parties."""
    rng = np.random.default_rng(seed)
    total = rows + test_rows
    names = [*ascii_lowercase[:parties], *(["label"] if label_features else [])]
    features = {name: rng.normal(size=(total, *shape)).astype(np.float32) for name in names}
    score = sum(x.reshape(total, -1)[:, :2].sum(axis=1) for x in features.values())
    cuts = np.quantile(score, np.arange(1, classes) / classes)
    y = np.digitize(score + 0.3 * rng.normal(size=total), cuts).astype(np.int64)
    tables = {name: array_table(name, x[:rows], x[rows:]) for name, x in features.items()}
    return MemoryData("toy", tables, "label", Labels(y[:rows], y[rows:], classes))


def mixed_data(rows: int = 600, test_rows: int = 150, *, seed: int = 0) -> MemoryData:
    """Return data of two parties with numeric and categorical columns; the label party is the second."""
    rng = np.random.default_rng(seed)
    total = rows + test_rows
    tables, score = {}, np.zeros(total)
    for name in ("a", "b"):
        numeric = rng.normal(size=(total, 3)).astype(np.float32)
        categorical = np.stack([rng.integers(0, size, total) for size in (5, 11)], axis=1).astype(np.int32)
        score += numeric[:, 0] + (categorical[:, 0] == 2) - (categorical[:, 1] > 6)
        tables[name] = PartyTable(
            name,
            FeatureSpec(3, (5, 11)),
            ArraySource(numeric[:rows], categorical[:rows]),
            ArraySource(numeric[rows:], categorical[rows:]),
            ("x", "y", "z", "u", "v"),
        )
    y = (score + 0.3 * rng.normal(size=total) > 0.5).astype(np.int64)
    return MemoryData("mixed", tables, "b", Labels(y[:rows], y[rows:], 2))


def toy_config(**sections: dict[str, object]) -> Config:
    """Return a configuration that trains in a fraction of a second; informed readers, which take longer, are off."""
    values: dict[str, object] = {
        "training": {"epochs": 2, "batch_size": 64, "eval_batch_size": 100},
        "model": {"cut": 8, "bottom": [16], "top": [16], "embedding_width": 4},
        "attack": {"informed": 0},
        "transport": {"connect_timeout": 20.0, "step_timeout": 60.0},
    }
    for section, content in sections.items():
        base = values.get(section)
        values[section] = {**base, **content} if isinstance(base, dict) and isinstance(content, dict) else content
    return build_config(values)


def text_data(rows: int = 80, test_rows: int = 40, *, classes: int = 3, length: int = 12, seed: int = 0) -> MemoryData:
    """Return texts of random words, padded with zeros; each class has a word of its own."""
    rng = np.random.default_rng(seed)
    total, vocabulary = rows + test_rows, 30
    y = rng.integers(0, classes, total)
    ids = rng.integers(2 + classes, vocabulary, (total, length)).astype(np.int32)
    ids[np.arange(total), rng.integers(0, 6, total)] = 2 + y
    ids[np.arange(length) >= rng.integers(6, length + 1, total)[:, None]] = 0
    vectors = rng.normal(size=(vocabulary, 5)).astype(np.float32)
    vectors[[0, 1, 7]] = 0.0
    spec = FeatureSpec(0, (), (length,), vocabulary=vocabulary, vectors=vectors)
    table = PartyTable("text", spec, ArraySource(ids[:rows]), ArraySource(ids[rows:]), ("text",))
    return MemoryData("texts", {"text": table}, "label", Labels(y[:rows], y[rows:], classes))


def with_unaligned(data: MemoryData, rows: int, *, seed: int = 9) -> MemoryData:
    """Return data of `mixed_data` with `rows` unaligned rows at each party; the label party has their labels."""
    more = mixed_data(rows, 1, seed=seed)
    tables = {name: replace(table, unaligned=more.tables[name].train) for name, table in data.tables.items()}
    return replace(data, tables=tables, target=replace(data.target, unaligned=more.target.train))
