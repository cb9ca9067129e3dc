"""TextCNN: convolutions over word vectors and a maximum over time up to the cut, one linear layer behind it."""

from __future__ import annotations

from math import prod
from typing import ClassVar

import torch
from torch import Tensor, nn

from flower_vfl.config.schema import ModelConfig
from flower_vfl.errors import ConfigError
from flower_vfl.nn.network import Network
from flower_vfl.nn.tabular import EMBEDDING_SCALE, FeatureShape, Top

WIDTHS = (3, 4, 5)
"""Numbers of words that a filter spans; each number has its own group of filters."""

_CUT = 600
_RESERVED = 2


class TextBottom(nn.Module):
    """Word vectors, convolutions over 3, 4 and 5 words with a ReLU, and the maximum of each over the text.

    Word vectors start at those of the data, for instance GloVe, or small and random, and are trained like all other
    weights (Kim's "non-static" variant). A word without a vector starts at zero; the padding id of short texts stays at
    zero.

    Parameters
    ----------
    spec : FeatureShape
        Features of texts: shape (length,), a vocabulary and, possibly, vectors (V, W).
    cut : int
        Width D of the cut layer, the same number of filters for each span.
    embedding_width : int
        Width of a word vector where the data has none.

    Raises
    ------
    ConfigError
        When the rows are no texts or too short, or `cut` is no multiple of the number of spans.

    References
    ----------
    Kim, *Convolutional Neural Networks for Sentence Classification*, EMNLP 2014; 200 filters a span and vectors of
    width 50 as in Zheng et al., *Protecting Split Learning by Potential Energy Loss*.
    """

    def __init__(self, spec: FeatureShape, *, cut: int = _CUT, embedding_width: int = 50) -> None:
        super().__init__()
        if not spec.vocabulary or spec.shape[0] < max(WIDTHS):
            raise ConfigError(f"a model for texts needs texts of at least {max(WIDTHS)} words, given {spec}")
        if cut < 1 or cut % len(WIDTHS):
            raise ConfigError(
                f"the cut of 'textcnn' has as many filters for each of {len(WIDTHS)} spans: set model.cut to a "
                f"multiple of {len(WIDTHS)}, given {cut}"
            )
        self.embedding = _embedding(spec, embedding_width)
        width, filters = self.embedding.embedding_dim, cut // len(WIDTHS)
        self.convolutions = nn.ModuleList(nn.Sequential(nn.Conv1d(width, filters, span), nn.ReLU()) for span in WIDTHS)

    def forward(self, ids: Tensor) -> Tensor:
        """Map word ids (B, length) to embeddings (B, D)."""
        words = self.embedding(ids).transpose(1, 2)
        # Not amax: it would share a gradient out among equal maxima.
        return torch.cat([convolution(words).max(dim=2).values for convolution in self.convolutions], dim=1)

    def watched_layers(self) -> dict[str, nn.Module]:
        """Return the convolution over the fewest words, with its activation; the others are parallel to it."""
        return {"first": self.convolutions[0]}


class TextCnn(Network):
    """The network of Zheng et al. for DBpedia, cut behind the maxima over time."""

    reads: ClassVar[frozenset[str]] = frozenset({"embedding_width", "embedding_device"})

    def bottom(self, spec: FeatureShape, model: ModelConfig) -> nn.Module:
        """Make the word vectors and the convolutions."""
        width, default = model.embedding_width, ModelConfig.model_fields["embedding_width"].default
        if spec.vectors is not None and width not in (default, spec.vectors.shape[1]):
            raise ConfigError(
                f"model.embedding_width is {width}, but this data comes with word vectors of width "
                f"{spec.vectors.shape[1]}: leave it out, or prepare the data with the option vectors = 'none'"
            )
        return TextBottom(spec, cut=model.cut or _CUT, embedding_width=width)

    def top(self, shape: tuple[int, ...], classes: int, model: ModelConfig) -> nn.Module:
        """Make one linear layer."""
        return Top(prod(shape), hidden=(), classes=classes)


def _embedding(spec: FeatureShape, width: int) -> nn.Embedding:
    """Return the table of word vectors; a gradient touches the rows of the words of a batch only."""
    width = width if spec.vectors is None else spec.vectors.shape[1]
    table = nn.Embedding(spec.vocabulary, width, sparse=True, padding_idx=0)
    with torch.no_grad():
        if spec.vectors is None:
            table.weight.mul_(EMBEDDING_SCALE)
            # An unseen word may be missing in training: its vector should then be zero rather than random.
            table.weight[:_RESERVED] = 0.0
        else:
            table.weight.copy_(torch.tensor(spec.vectors))  # a copy: the data is a memory map of a file
    return table
