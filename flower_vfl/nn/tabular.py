"""Ready-made models for tables: embeddings and a perceptron up to the cut, and a perceptron from there."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Protocol, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from flower_vfl.errors import ConfigError, TrainingError
from flower_vfl.nn.ensemble import MemberLinear, check_shared_out, perceptron
from flower_vfl.nn.numbers import NumericEmbedding, Quantiles

EMBEDDING_SCALE = 0.1


class FeatureShape(Protocol):
    """The shape of the features of a bottom model; `flower_vfl.data.FeatureSpec` is one."""

    @property
    def numeric(self) -> int:
        """Number of numeric columns."""
        ...

    @property
    def cardinalities(self) -> tuple[int, ...]:
        """Number of levels of each categorical column."""
        ...

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one row of plain arrays; empty for tables."""
        ...

    @property
    def vocabulary(self) -> int:
        """Number of word ids of texts; 0 where rows are no texts."""
        ...

    @property
    def vectors(self) -> NDArray[np.float32] | None:
        """Initial vectors of the words of texts, (V, W)."""
        ...

    @property
    def quantiles(self) -> Quantiles | None:
        """A function that returns quantiles of the numeric columns of a table."""
        ...


class TabularBottom(nn.Module):
    """Embeddings of all columns, concatenated with the numbers themselves, then a perceptron up to the cut.

    All categorical columns share one embedding table with sparse gradients: a step touches the rows of its batch and
    costs the same whatever the vocabulary.

    The last operation before the cut is a ReLU, as in the networks of the papers: a top model that is a single linear
    layer still gives a non-linear network, and no coordinate of the cut gradient is zero by construction (a ReLU on the
    other side would mask them with the label party's activations).

    Parameters
    ----------
    spec : FeatureShape
        Numeric columns and cardinalities.
    embedding_width : int
        Width of the embedding of one category, and of one number.
    numeric_embedding : bool
        True if numbers have embeddings too (`NumericEmbedding`).
    hidden : sequence of int
        Widths of hidden layers.
    cut : int
        Width D of the cut layer.
    dropout : float
        Probability after each hidden layer; bind it to the party's generator with `bind_dropout`.
    members : int
        Number of members of an ensemble (`flower_vfl.nn.ensemble`). They share the embeddings of the columns; each has
        a part of the cut, and hidden layers of the widths `hidden`.

    Raises
    ------
    ConfigError
        When there is no column, a width is below 1, or the cut is no multiple of the number of members.
    """

    def __init__(
        self,
        spec: FeatureShape,
        *,
        embedding_width: int = 8,
        numeric_embedding: bool = False,
        hidden: Sequence[int] = (128,),
        cut: int = 32,
        dropout: float = 0.0,
        members: int = 1,
    ) -> None:
        super().__init__()
        columns = len(spec.cardinalities)
        if spec.shape or not spec.numeric + columns:
            raise ConfigError(f"a model for tables needs numeric or categorical columns, given {spec}")
        _check_widths({"embedding_width": embedding_width, "cut": cut}, hidden)
        self.numeric = spec.numeric
        self.categorical = columns
        if columns:
            self.embedding = _embedding_table(spec.cardinalities, embedding_width)
            self.register_buffer("offsets", column_offsets(spec.cardinalities), persistent=False)
            self.offsets: Tensor
        width = spec.numeric + columns * embedding_width
        self.numbers: NumericEmbedding | None = None
        if numeric_embedding and spec.numeric:
            self.numbers = NumericEmbedding(spec.numeric, embedding_width, spec.quantiles)
            width += spec.numeric * embedding_width
        self.members = members
        if members == 1:
            self.layers = perceptron(width, [*hidden, cut], dropout)
        else:
            check_shared_out(cut, members)
            linear = partial(MemberLinear, members=members)
            self.layers = perceptron(width, [*hidden, cut // members], dropout, linear=linear)
            cast("MemberLinear", self.layers[0]).draw_signs()

    def forward(self, *inputs: Tensor) -> Tensor:
        """Map a gathered batch of a table, numeric (B, F) and categorical (B, K), to the embedding (B, D)."""
        numbers, ids = gathered(inputs, numeric=self.numeric, categorical=self.categorical)
        parts: list[Tensor] = []
        if numbers is not None:
            parts.append(numbers)
            if self.numbers is not None:
                parts.append(self.numbers(numbers))
        if ids is not None:
            parts.append(self.embedding(ids + self.offsets).flatten(1))
        z: Tensor = self.layers(torch.cat(parts, dim=1) if len(parts) > 1 else parts[0])
        return z if self.members == 1 else z.transpose(1, 2).flatten(1)

    def watched_layers(self) -> dict[str, nn.Module]:
        """Return the first linear layer after the embeddings, with its activation."""
        return {"first": self.layers[1]}


class Top(nn.Module):
    """A perceptron from the joined embeddings to the logits.

    Parameters
    ----------
    in_width : int
        Width of the joined embedding, flattened.
    hidden : sequence of int
        Widths of hidden layers; none gives one linear layer.
    classes : int
        2 gives one logit (B,), more give logits (B, C).

    Raises
    ------
    ConfigError
        When a width is below 1, or there are fewer than two classes.
    """

    def __init__(self, in_width: int, *, hidden: Sequence[int] = (64,), classes: int = 2) -> None:
        super().__init__()
        _check_widths({"in_width": in_width}, hidden)
        if classes < 2:
            raise ConfigError(f"a top model needs at least two classes, given {classes}")
        self.classes = classes
        last = hidden[-1] if hidden else in_width
        body = perceptron(in_width, hidden)
        self.layers = nn.Sequential(*body, nn.Linear(last, 1 if classes == 2 else classes))

    def forward(self, z: Tensor) -> Tensor:
        """Map joined embeddings (B, ...) to logits, (B,) for two classes and (B, C) for more."""
        logits: Tensor = self.layers(z.flatten(1))
        return logits.squeeze(1) if self.classes == 2 else logits


def column_offsets(cardinalities: Sequence[int]) -> Tensor:
    """Return the first row of each categorical column's levels in the table that all columns share, (K,)."""
    return torch.tensor([0, *cardinalities[:-1]]).cumsum(0)


def gathered(inputs: Sequence[Tensor], *, numeric: int, categorical: int) -> tuple[Tensor | None, Tensor | None]:
    """Return the numbers (B, F) and the level numbers (B, K) of a gathered batch of a table; None where it has none.

    Raises
    ------
    TrainingError
        When the number of tensors does not fit.
    """
    expected = bool(numeric) + bool(categorical)
    if len(inputs) != expected:
        raise TrainingError(f"the model takes {expected} tensors (numeric, categorical), given {len(inputs)}")
    return inputs[0] if numeric else None, inputs[-1] if categorical else None


def _embedding_table(cardinalities: Sequence[int], width: int) -> nn.Embedding:
    """Return one table for all columns, with small weights, and zeros for the buckets of unseen values."""
    table = nn.Embedding(sum(cardinalities), width, sparse=True)
    with torch.no_grad():
        table.weight.mul_(EMBEDDING_SCALE)
        # Bucket 0 may be missing in training: an unseen value should then have zeros rather than random numbers.
        table.weight[column_offsets(cardinalities)] = 0.0
    return table


def _check_widths(named: dict[str, int], hidden: Sequence[int]) -> None:
    wrong = [f"{name}={width}" for name, width in named.items() if width < 1]
    wrong += [f"hidden={list(hidden)}"] if any(width < 1 for width in hidden) else []
    if wrong:
        raise ConfigError(f"widths of layers must be at least 1, given {', '.join(wrong)}")
