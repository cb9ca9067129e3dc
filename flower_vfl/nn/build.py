"""The bottom model that fits a party's features."""

from __future__ import annotations

from collections.abc import Sequence

from flower_vfl.nn.images import ConvBottom
from flower_vfl.nn.tabular import FeatureShape, TabularBottom


def build_bottom(
    spec: FeatureShape,
    *,
    embedding_width: int = 8,
    hidden: Sequence[int] = (128,),
    cut: int = 32,
    dropout: float = 0.0,
) -> TabularBottom | ConvBottom:
    """Return a bottom model for a table, or for images a convolutional one.

    Parameters
    ----------
    spec : FeatureShape
        The party's features.
    embedding_width : int
        Width of the embedding of one category; tables only.
    hidden : sequence of int
        Hidden layers; for images the first is the number of channels.
    cut : int
        Width of the cut layer; for images its channels.
    dropout : float
        Dropout in the model.
    """
    if spec.shape:
        return ConvBottom(spec, channels=hidden[0] if hidden else 16, cut=cut, dropout=dropout)
    return TabularBottom(spec, embedding_width=embedding_width, hidden=hidden, cut=cut, dropout=dropout)
