"""Objectives for the pre-training of a bottom model on its party's own columns or images."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from math import prod

import torch
from torch import Tensor, nn

from flower_vfl.errors import ConfigError
from flower_vfl.nn.tabular import FeatureShape, gathered

TABLE_RATE, IMAGE_RATE = 0.3, 0.5
"""Share of the cells of a table that are replaced, and of the blocks of an image that are hidden."""

BLOCK = 4
"""Height and width of a hidden block, in pixels."""

LEVELS = 64
"""Largest number of levels of a categorical column in the decoder; of a larger column, several share a number."""

_WIDTH, _CHANNELS = 256, 32


class Objective(nn.Module, ABC):
    """An objective of pre-training: a module behind the embeddings of a bottom model, and a loss."""

    @abstractmethod
    def corrupt(self, inputs: Sequence[Tensor], generator: torch.Generator) -> list[Tensor]:
        """Return the inputs (B, ...) of a bottom model; a reconstruction hides a part of them.

        Parameters
        ----------
        inputs : Sequence[Tensor]
            Tensors of a batch, as the party's source gathers them.
        generator : torch.Generator
            Generator on the CPU, so that the hidden cells are the same on every device.
        """

    @abstractmethod
    def loss(self, z: Tensor, inputs: Sequence[Tensor]) -> Tensor:
        """Return the loss, a scalar, of the embeddings (B, ...) of corrupted inputs."""


class TableReconstruction(Objective):
    r"""Reconstruct all columns of a table from the embedding of rows with some cells of other rows.

    Each cell is replaced, with the probability `TABLE_RATE`, by the value that a random row of the batch has there. A
    perceptron with one hidden layer decodes the embedding. The loss is the mean over columns: squared error of numbers,
    cross-entropy of categories.

    Parameters
    ----------
    spec : FeatureShape
        Numeric columns and cardinalities.
    width : int
        Width D of the flattened embedding.

    References
    ----------
    Vincent et al., *Extracting and Composing Robust Features with Denoising Autoencoders*, ICML 2008; with values of
    other rows as in Yoon et al., *VIME*, NeurIPS 2020, equation 3.
    """

    def __init__(self, spec: FeatureShape, width: int) -> None:
        super().__init__()
        self._numeric, self._levels = spec.numeric, [min(levels, LEVELS) for levels in spec.cardinalities]
        outputs = self._numeric + sum(self._levels)
        self.decoder = nn.Sequential(nn.Linear(width, _WIDTH), nn.ReLU(), nn.Linear(_WIDTH, outputs))

    def corrupt(self, inputs: Sequence[Tensor], generator: torch.Generator) -> list[Tensor]:  # noqa: D102
        found = []
        for cells in inputs:
            replaced = torch.rand(cells.shape, generator=generator) < TABLE_RATE
            others = torch.randint(len(cells), cells.shape, generator=generator)
            found.append(torch.where(replaced.to(cells.device), cells.gather(0, others.to(cells.device)), cells))
        return found

    def loss(self, z: Tensor, inputs: Sequence[Tensor]) -> Tensor:  # noqa: D102
        decoded = self.decoder(z.flatten(1))
        numbers, ids = gathered(inputs, numeric=self._numeric, categorical=len(self._levels))
        terms = []
        if numbers is not None:
            terms += list(((decoded[:, : self._numeric] - numbers) ** 2).mean(dim=0))
        if ids is not None:
            logits = decoded[:, self._numeric :].split(self._levels, dim=1)
            targets = ids.to(z.device)
            terms += [
                nn.functional.cross_entropy(of_column, targets[:, column] % levels)
                for column, (of_column, levels) in enumerate(zip(logits, self._levels, strict=True))
            ]
        return torch.stack(terms).mean()


class ArrayReconstruction(Objective):
    r"""Reconstruct the hidden blocks of images, or the hidden cells of other arrays, from the embedding of the rest.

    Blocks of `BLOCK` times `BLOCK` pixels are set to zero, each with the probability `IMAGE_RATE`. Feature maps are
    decoded by two convolutions behind a nearest-neighbour enlargement, flat embeddings by one linear layer. The loss is
    the mean squared error over the hidden cells.

    Parameters
    ----------
    shape : sequence of int
        Shape of one row: (channels, height, width) of images.
    embedded : sequence of int
        Shape of one row's embedding.

    References
    ----------
    Pathak et al., *Context Encoders*, CVPR 2016, equation 1; He et al., *Masked Autoencoders Are Scalable Vision
    Learners*, CVPR 2022, section 3, for the loss over hidden blocks alone.
    """

    def __init__(self, shape: Sequence[int], embedded: Sequence[int]) -> None:
        super().__init__()
        self._shape, self._hidden = tuple(shape), torch.zeros(0)
        maps = len(shape) == 3 and len(embedded) == 3
        self.decoder: nn.Sequential
        if maps:
            self.decoder = nn.Sequential(
                nn.Upsample(size=tuple(shape[1:])),
                nn.Conv2d(embedded[0], _CHANNELS, 3, padding=1),
                nn.ReLU(),
                nn.Conv2d(_CHANNELS, shape[0], 3, padding=1),
            )
        else:
            self.decoder = nn.Sequential(nn.Flatten(), nn.Linear(prod(embedded), prod(shape)))

    def corrupt(self, inputs: Sequence[Tensor], generator: torch.Generator) -> list[Tensor]:  # noqa: D102
        (images,) = inputs
        self._hidden = self._blocks(len(images), generator).to(images.device)
        return [images.masked_fill(self._hidden, 0.0)]

    def _blocks(self, rows: int, generator: torch.Generator) -> Tensor:
        """Draw the mask of the hidden cells, (B, 1, H, W) for images and (B, ...) for other arrays."""
        if len(self._shape) != 3:
            return torch.rand((rows, *self._shape), generator=generator) < IMAGE_RATE
        _, height, width = self._shape
        grid = torch.rand((rows, 1, -(-height // BLOCK), -(-width // BLOCK)), generator=generator) < IMAGE_RATE
        blocks = grid.repeat_interleave(BLOCK, dim=2).repeat_interleave(BLOCK, dim=3)
        return blocks[:, :, :height, :width]

    def loss(self, z: Tensor, inputs: Sequence[Tensor]) -> Tensor:  # noqa: D102
        (images,) = inputs
        errors = (self.decoder(z).view(images.shape) - images) ** 2 * self._hidden
        mean: Tensor = errors.sum() / self._hidden.expand(images.shape).sum().clamp(min=1)
        return mean


class Classification(Objective):
    """Predict the class of a row by a linear head behind its embedding; the last input tensor holds the classes.

    Parameters
    ----------
    width : int
        Width D of the flattened embedding.
    classes : int
        Number of classes.
    """

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.head = nn.Linear(width, classes)

    def corrupt(self, inputs: Sequence[Tensor], generator: torch.Generator) -> list[Tensor]:  # noqa: D102
        return list(inputs[:-1])

    def loss(self, z: Tensor, inputs: Sequence[Tensor]) -> Tensor:  # noqa: D102
        return nn.functional.cross_entropy(self.head(z.flatten(1)), inputs[-1].to(z.device))


def reconstruction_of(spec: FeatureShape, embedded: Sequence[int], owner: str) -> Objective:
    """Return the objective for a party's columns or images.

    Parameters
    ----------
    spec : FeatureShape
        The shape of its features.
    embedded : sequence of int
        Shape of one row's embedding.
    owner : str
        The party, for messages.

    Raises
    ------
    ConfigError
        For texts: there is no objective for them.
    """
    if spec.vocabulary:
        raise ConfigError(
            f"{owner} has texts, and its bottom model, convolutions over word vectors, has no objective without labels "
            "here: set training.pretrain to 0. Word vectors of the data, such as GloVe, are trained without labels"
        )
    return ArrayReconstruction(spec.shape, embedded) if spec.shape else TableReconstruction(spec, prod(embedded))
