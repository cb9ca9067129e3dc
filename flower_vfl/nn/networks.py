"""The networks that a configuration can name."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import ClassVar

from torch import nn

from flower_vfl.config.schema import ModelConfig
from flower_vfl.errors import ConfigError, lookup
from flower_vfl.nn.ensemble import EnsembleTop
from flower_vfl.nn.images import ConvBottom, ConvTop
from flower_vfl.nn.network import Network
from flower_vfl.nn.papers import FASHION, ISIC, MNIST, RESNET20
from flower_vfl.nn.tabular import FeatureShape, TabularBottom, Top
from flower_vfl.nn.text import TextCnn
from flower_vfl.nn.wide_deep import WideDeep

_CUT = 32


class Auto(Network):
    """A perceptron for tables, convolutions for images; the configuration sets the layers on each side of the cut."""

    reads: ClassVar[frozenset[str]] = frozenset(
        {
            "embedding_width",
            "embedding_device",
            "numeric_embedding",
            "bottom",
            "channels",
            "pools",
            "top_channels",
            "top",
            "dropout",
            "ensemble",
        }
    )

    def bottom(self, spec: FeatureShape, model: ModelConfig) -> nn.Module:
        """Make a bottom model for a table or for images."""
        cut = model.cut or _CUT
        if spec.vocabulary:
            raise ConfigError("this data has texts: set model.network to 'textcnn'")
        if spec.shape:
            if model.ensemble > 1:
                raise ConfigError("model.ensemble is for tables, and this data has images: leave it out")
            return ConvBottom(spec, channels=model.channels, cut=cut, pools=model.pools, dropout=model.dropout)
        return TabularBottom(
            spec,
            embedding_width=model.embedding_width,
            numeric_embedding=model.numeric_embedding == "bins",
            hidden=model.bottom,
            cut=cut,
            dropout=model.dropout,
            members=model.ensemble,
        )

    def top(self, shape: tuple[int, ...], classes: int, model: ModelConfig) -> nn.Module:
        """Make a perceptron, behind convolutions where the configuration names some."""
        if model.top_channels:
            return ConvTop(shape, channels=model.top_channels, hidden=model.top, classes=classes)
        if model.ensemble > 1:
            return EnsembleTop(prod(shape), model.ensemble, hidden=model.top, classes=classes)
        return Top(prod(shape), hidden=model.top, classes=classes)


NETWORKS: Mapping[str, Network] = {
    "auto": Auto(),
    "textcnn": TextCnn(),
    "wide-deep": WideDeep(),
    **{network.name: network for network in (MNIST, FASHION, ISIC, RESNET20)},
}
"""Networks by the name that `model.network` has."""


def network_of(model: ModelConfig) -> Network:
    """Return the network that a configuration names.

    Raises
    ------
    ConfigError
        When there is no such network, or a setting does not fit it.
    """
    network = lookup("network", model.network, NETWORKS)
    network.check(model)
    return network
