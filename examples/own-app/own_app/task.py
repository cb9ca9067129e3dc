"""The data and the models of this app."""

from __future__ import annotations

from sklearn.datasets import load_breast_cancer
from torch import nn

from flower_vfl.config import Config
from flower_vfl.data import FeatureSpec, Labels, MemoryData, array_table


def open_data(config: Config) -> MemoryData:
    """Return the columns of both parties and the labels; on separate hosts each would load its own part only."""
    tumours = load_breast_cancer()
    x = (tumours.data - tumours.data.mean(axis=0)) / tumours.data.std(axis=0)
    y = tumours.target
    tables = {
        "laboratory": array_table("laboratory", x[:450, :20], x[450:, :20]),
        "clinic": array_table("clinic", x[:450, 20:], x[450:, 20:]),
    }
    return MemoryData("tumours", tables, label_party="clinic", target=Labels(y[:450], y[450:], classes=2))


def make_bottom(spec: FeatureSpec, config: Config) -> nn.Module:
    """Return a party's bottom model."""
    return nn.Sequential(nn.Linear(spec.numeric, 16), nn.ReLU(), nn.Linear(16, 8), nn.ReLU())


def make_top(shape: tuple[int, ...], classes: int, config: Config) -> nn.Module:
    """Return the top model."""
    return nn.Linear(shape[0], 1)
