"""Joining the embeddings of several parties before the top model."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Literal, get_args

import torch
from torch import Tensor

from flower_vfl.errors import ConfigError, suggestion

Fusion = Literal["concat", "sum", "mean"]


def fused_shape(shapes: Sequence[Sequence[int]], how: str) -> tuple[int, ...]:
    """Return the shape of the joined embedding of one example.

    Parameters
    ----------
    shapes : sequence of shapes
        Shape of one example of each party, without the batch dimension: (D,) or (channels, height, width).
    how : {"concat", "sum", "mean"}
        "concat" joins on the first dimension (features, or the channels of feature maps); feature maps of different
        sizes, and feature maps beside features, are flattened first.

    Raises
    ------
    ConfigError
        When there is nothing to join, or the shapes do not fit together.

    Examples
    --------
    >>> fused_shape([(32,), (16,)], "concat"), fused_shape([(32,), (4, 6, 6)], "concat")
    ((48,), (176,))
    """
    if how not in get_args(Fusion):
        raise ConfigError(f"there is no fusion {how!r}; {suggestion(how, get_args(Fusion))}")
    given = [tuple(shape) for shape in shapes]
    if not given or not all(given):
        raise ConfigError(f"fusion needs at least one embedding of at least one dimension, given shapes {given}")
    if how == "concat":
        if len({shape[1:] for shape in given}) > 1:
            return (sum(map(prod, given)),)
        return (sum(shape[0] for shape in given), *given[0][1:])
    if len(set(given)) > 1:
        raise ConfigError(f"embeddings must have one shape for {how!r}, given {given}; set equal cuts, or 'concat'")
    return given[0]


def fuse(embeddings: Sequence[Tensor], how: str) -> Tensor:
    """Join embeddings (B, ...) of the same batch, in the order of the parties.

    Parameters
    ----------
    embeddings : sequence of Tensor
        Embedding (B, ...) of each party.
    how : {"concat", "sum", "mean"}
        The way to join them.

    Raises
    ------
    ConfigError
        When there is nothing to join, or the shapes do not fit together.
    """
    fused_shape([embedding.shape[1:] for embedding in embeddings], how)
    if len({len(embedding) for embedding in embeddings}) > 1:
        raise ConfigError(f"embeddings of one batch must have equally many rows, given {[len(z) for z in embeddings]}")
    if len(embeddings) == 1:
        return embeddings[0]
    if how == "concat":
        same_maps = len({embedding.shape[2:] for embedding in embeddings}) == 1
        return torch.cat([embedding if same_maps else embedding.flatten(1) for embedding in embeddings], dim=1)
    # Added in the order of the parties: the order decides the last bit.
    total = embeddings[0]
    for embedding in embeddings[1:]:
        total = total + embedding
    return total if how == "sum" else total / len(embeddings)
