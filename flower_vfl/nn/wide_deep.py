"""Wide & Deep: a perceptron on embeddings, cut in its middle, and a linear model of the label party's own columns."""

from __future__ import annotations

from math import prod
from typing import ClassVar

from torch import Tensor, nn

from flower_vfl.config.schema import ModelConfig
from flower_vfl.errors import ConfigError
from flower_vfl.nn.network import Network
from flower_vfl.nn.tabular import FeatureShape, TabularBottom, Top, column_offsets, gathered

CUT = 128


class Wide(nn.Module):
    """A linear model of a table: a weight for each numeric column and for each level of each categorical one.

    Its output is added to the logits of the top model. All weights start at zero, so that a value that is missing in
    training has no effect; the top model has the bias.

    Parameters
    ----------
    spec : FeatureShape
        Numeric columns and cardinalities.
    classes : int
        2 gives one logit (B,), more give logits (B, C).

    Raises
    ------
    ConfigError
        When there is no column.
    """

    adds_to_logits: ClassVar[bool] = True

    def __init__(self, spec: FeatureShape, *, classes: int = 2) -> None:
        super().__init__()
        self.numeric, self.categorical = spec.numeric, len(spec.cardinalities)
        if spec.shape or not self.numeric + self.categorical:
            raise ConfigError(f"a linear model of a table needs numeric or categorical columns, given {spec}")
        self.classes, width = classes, 1 if classes == 2 else classes
        if self.numeric:
            self.linear = nn.Linear(self.numeric, width, bias=False)
            nn.init.zeros_(self.linear.weight)
        if self.categorical:
            self.embedding = nn.EmbeddingBag(sum(spec.cardinalities), width, mode="sum", sparse=True)
            nn.init.zeros_(self.embedding.weight)
            self.register_buffer("offsets", column_offsets(spec.cardinalities), persistent=False)
            self.offsets: Tensor

    def forward(self, *inputs: Tensor) -> Tensor:
        """Map a gathered batch of a table, numeric (B, F) and categorical (B, K), to logits, (B,) or (B, C)."""
        numbers, ids = gathered(inputs, numeric=self.numeric, categorical=self.categorical)
        parts: list[Tensor] = []
        if numbers is not None:
            parts.append(self.linear(numbers))
        if ids is not None:
            parts.append(self.embedding(ids + self.offsets))
        logits = sum(parts[1:], parts[0])
        return logits.squeeze(1) if self.classes == 2 else logits


class WideDeep(Network):
    """The network of Li et al. for Criteo and Avazu: the deep part is cut behind a ReLU, the wide part stays whole.

    Published: embeddings of width 4, three hidden layers of 128 up to the cut (``bottom = [128, 128]``, ``cut = 128``),
    three more behind it (``top = [128, 128, 128]``). The wide part reads the label party's own columns; without any,
    there is none.

    References
    ----------
    Cheng et al., *Wide & Deep Learning for Recommender Systems*, DLRS 2016; cut as in Li et al., *Label Leakage and
    Protection in Two-party Split Learning*, ICLR 2022, section 4.
    """

    reads: ClassVar[frozenset[str]] = frozenset({"embedding_width", "embedding_device", "bottom", "top", "dropout"})

    def bottom(self, spec: FeatureShape, model: ModelConfig) -> nn.Module:
        """Make the deep part up to the cut."""
        if spec.shape or spec.vocabulary:
            raise ConfigError("the network 'wide-deep' takes tables, this data has none; set model.network to 'auto'")
        return TabularBottom(
            spec,
            embedding_width=model.embedding_width,
            hidden=model.bottom,
            cut=model.cut or CUT,
            dropout=model.dropout,
        )

    def own(self, spec: FeatureShape, classes: int, model: ModelConfig) -> nn.Module:
        """Make the wide part."""
        return Wide(spec, classes=classes)

    def top(self, shape: tuple[int, ...], classes: int, model: ModelConfig) -> nn.Module:
        """Make the deep part behind the cut."""
        return Top(prod(shape), hidden=model.top, classes=classes)
