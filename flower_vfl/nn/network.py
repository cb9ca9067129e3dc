"""The interface of networks that a configuration can name: the parts at the feature parties and the label party."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from torch import nn

from flower_vfl.config.schema import ModelConfig
from flower_vfl.errors import ConfigError
from flower_vfl.nn.tabular import FeatureShape

_COMMON = frozenset({"network", "fusion", "cut"})


class Network(ABC):
    """One architecture, cut in two: a bottom model and a top model for one place of the cut.

    Attributes
    ----------
    reads
        Names of the settings of `model` that it uses, besides `network`, `fusion` and `cut`; any other that is not at
        its default is refused, because it would change nothing.
    """

    reads: ClassVar[frozenset[str]] = frozenset()

    def check(self, model: ModelConfig) -> None:
        """Refuse settings that do not fit the network, before any data is read.

        Raises
        ------
        ConfigError
            For a setting that is not at its default and that the network does not have.
        """
        for name, field in ModelConfig.model_fields.items():
            value = getattr(model, name)
            if name not in _COMMON | self.reads and value != field.get_default(call_default_factory=True):
                raise ConfigError(
                    f"model.{name} is {value!r}, which the network {model.network!r} does not have; it has "
                    f"{', '.join(f'model.{setting}' for setting in sorted({'cut', *self.reads}))}"
                )

    @abstractmethod
    def bottom(self, spec: FeatureShape, model: ModelConfig) -> nn.Module:
        """Make the part up to the cut.

        Parameters
        ----------
        spec : FeatureShape
            The shape of a row of the party's features.
        model : ModelConfig
            The shape of the network; a `cut` of 0 stands for the network's own width.

        Raises
        ------
        ConfigError
            When the network does not fit the features, or a setting does not fit the network.
        """

    def own(self, spec: FeatureShape, classes: int, model: ModelConfig) -> nn.Module:
        """Make the label party's model of its own columns, by default one like the feature parties' bottom models.

        A model with the attribute ``adds_to_logits``, set to true, returns logits, which are added to those of the top
        model; any other returns an embedding, which is joined with the others.

        Parameters
        ----------
        spec : FeatureShape
            The shape of a row of its features.
        classes : int
            Number of classes C.
        model : ModelConfig
            The shape of the network.

        Raises
        ------
        ConfigError
            As `bottom`.
        """
        return self.bottom(spec, model)

    @abstractmethod
    def top(self, shape: tuple[int, ...], classes: int, model: ModelConfig) -> nn.Module:
        """Make the part from the cut to the logits, (B,) for two classes and (B, C) for more.

        An attacker also makes this part, for each layer of its own model that it attacks.

        Parameters
        ----------
        shape : tuple of int
            Shape of one row of its input: the joined embeddings, or the output of an attacked layer.
        classes : int
            Number of classes C.
        model : ModelConfig
            The shape of the network.

        Raises
        ------
        ConfigError
            When the part does not fit the shape, or a setting does not fit the network.
        """
