"""Model completion: the attacker trains a top model of its own on its trained bottom model, with few leaked labels."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import torch
from torch import nn

from flower_vfl.attacks.base import Reads
from flower_vfl.attacks.embedding.inference import ExamplesAttack, TrainedView
from flower_vfl.attacks.rows import normalised
from flower_vfl.errors import ArgumentError
from flower_vfl.metrics.utility import predicted_classes

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch import Tensor

ENOUGH_TRAINED, MOST_EPOCHS = 0.01, 1000
"""Training error below which training ends, and largest number of epochs: as in the paper."""

PREDICTED_ROWS = 4096
"""Number of rows that are predicted at once."""


def complete(top: nn.Module, z: Tensor, y: Tensor, attacked: Tensor, *, classes: int) -> Tensor:
    """Train a fresh top model on the embeddings of a few labelled examples and return its logits for other rows.

    The bottom model is frozen: only its embeddings are used. A top model that is one linear layer starts at the class
    means of the embeddings (`start_at_class_means`), any other at its own initial weights. Nothing is random except in
    the model itself.

    Parameters
    ----------
    top
        A fresh top model; it is trained in place.
    z
        (n, ...) embeddings of the labelled examples, in any number format.
    y
        (n,) their class numbers.
    attacked
        (N, ...) embeddings of the attacked rows.
    classes
        Number of classes C.

    Returns
    -------
    Tensor
        Logits of the attacked rows, (N,) for two classes and (N, C) for more, see `predicted_classes`.

    Raises
    ------
    ArgumentError
        When examples and labels do not fit, or the model's logits do not fit the number of classes.

    References
    ----------
    Zheng et al., *Protecting Split Learning by Potential Energy Loss*; Fu et al., *Label Inference Attacks Against
    Vertical Federated Learning*, 2022.
    """
    dtype = next((weight.dtype for weight in top.parameters()), z.dtype)
    z, attacked = z.to(dtype), attacked.to(dtype)
    start_at_class_means(top, z, y, classes=classes)
    train(top, (z,), y, classes=classes)
    return predict(top, (attacked,), classes=classes)


def train_alone(
    network: nn.Module, inputs: Sequence[Tensor], y: Tensor, attacked: Sequence[Tensor], *, classes: int
) -> Tensor:
    """Train a whole fresh network on the labelled examples alone and return its logits for other rows.

    It uses the leaked labels and the party's own columns, but not the trained bottom model: the baseline of `complete`.

    Parameters
    ----------
    network
        A fresh bottom model with a top model on it; it is trained in place.
    inputs, attacked
        (n, ...) and (N, ...) inputs of the network for the labelled examples and for the attacked rows.
    y
        (n,) class numbers of the labelled examples.
    classes
        Number of classes C.

    Returns
    -------
    Tensor
        Logits of the attacked rows, (N,) for two classes and (N, C) for more, see `predicted_classes`.

    Raises
    ------
    ArgumentError
        As `complete` does.
    """
    train(network, inputs, y, classes=classes)
    return predict(network, attacked, classes=classes)


def start_at_class_means(top: nn.Module, z: Tensor, y: Tensor, *, classes: int) -> bool:
    r"""Start a top model that is one linear layer at the class means of its inputs; leave any other as it is.

    .. math:: w_c = \mu_c, \qquad b_c = -\tfrac12 \| \mu_c \|^2

    so that it predicts the class with the nearest mean before any training; with one logit, :math:`w = \mu_1 - \mu_0`
    and likewise for the bias.

    Parameters
    ----------
    top
        The model; modules without weights beside the linear layer are allowed.
    z
        (n, ...) embeddings of the labelled examples.
    y
        (n,) their class numbers; each class must occur.
    classes
        Number of classes C.

    Returns
    -------
    bool
        True if it was one linear layer.

    Raises
    ------
    ArgumentError
        When a class does not occur.
    """
    y = _checked(z, y, classes)
    weighted = [module for module in top.modules() if any(True for _ in module.parameters(recurse=False))]
    linear = weighted[0] if len(weighted) == 1 else None
    if not isinstance(linear, nn.Linear):
        return False
    seen: list[Tensor] = []
    with torch.no_grad(), linear.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0])):
        top.eval()(z)
        means = torch.stack([seen[0][y == c].mean(dim=0) for c in range(classes)])
        biases = -means.square().sum(dim=1) / 2
        if linear.out_features == 1 and classes == 2:
            means, biases = means[1:] - means[:1], biases[1:] - biases[:1]
        linear.weight.copy_(means)
        if isinstance(linear.bias, nn.Parameter):
            linear.bias.copy_(biases)
    return True


def train(model: nn.Module, inputs: Sequence[Tensor], y: Tensor, *, classes: int, learning_rate: float = 1e-3) -> int:
    """Train a model with Adam on all examples at once until its training error is below 1 %, or for 1000 epochs.

    The error counts in training and in evaluation mode, so that the running statistics of batch normalisation converge,
    too.

    Parameters
    ----------
    model
        The model, trained in place; embeddings with sparse gradients are allowed.
    inputs
        (n, ...) inputs of the model.
    y
        (n,) class numbers.
    classes
        Number of classes C.
    learning_rate
        Learning rate of Adam.

    Returns
    -------
    int
        Number of epochs of training; 0 where the error was small enough from the start.

    Raises
    ------
    ArgumentError
        When inputs and labels do not fit, or the model's logits do not fit the number of classes.
    """
    y = _checked(inputs[0], y, classes)
    optimizers = list(_optimizers(model, learning_rate))
    for epoch in range(MOST_EPOCHS):
        logits = _logits(model.train(), inputs, classes)
        if _error(logits, y) < ENOUGH_TRAINED and _error(_evaluated(model, inputs, classes), y) < ENOUGH_TRAINED:
            return epoch
        if classes == 2:
            loss = nn.functional.binary_cross_entropy_with_logits(logits, y.to(logits.dtype))
        else:
            loss = nn.functional.cross_entropy(logits, y)
        model.zero_grad()
        torch.autograd.backward(loss)
        for optimizer in optimizers:
            optimizer.step()
    return MOST_EPOCHS


def predict(model: nn.Module, inputs: Sequence[Tensor], *, classes: int) -> Tensor:
    """Return a model's logits, (N,) for two classes and (N, C) for more, some thousand rows at a time."""
    starts = range(0, max(1, len(inputs[0])), PREDICTED_ROWS)
    pieces = [[tensor[start : start + PREDICTED_ROWS] for tensor in inputs] for start in starts]
    return torch.cat([_evaluated(model, piece, classes) for piece in pieces])


def _optimizers(model: nn.Module, learning_rate: float) -> Iterator[torch.optim.Optimizer]:
    sparse = {id(module.weight) for module in model.modules() if getattr(module, "sparse", False) is True}
    dense = [weight for weight in model.parameters() if id(weight) not in sparse]
    if dense:
        yield torch.optim.Adam(dense, lr=learning_rate)
    if sparse:
        yield torch.optim.SparseAdam([w for w in model.parameters() if id(w) in sparse], lr=learning_rate)


def _checked(z: Tensor, y: Tensor, classes: int) -> Tensor:
    """Return the labels (n,) as class numbers on the device of the examples."""
    if y.dim() != 1 or len(y) != len(z):
        raise ArgumentError(f"Examples {tuple(z.shape)} and labels {tuple(y.shape)}: give a label for each example.")
    labels = y.to(device=z.device, dtype=torch.int64)
    counts = torch.bincount(labels, minlength=classes) if len(y) and bool((labels >= 0).all()) else torch.zeros(1)
    if len(counts) != classes or bool((counts == 0).any()):
        raise ArgumentError(
            f"The labels are {sorted(set(labels.tolist()))}: give examples of each class, from 0 to {classes - 1}."
        )
    return labels


def _logits(model: nn.Module, inputs: Sequence[Tensor], classes: int) -> Tensor:
    """Return a model's logits, (n,) for two classes and (n, C) for more."""
    logits: Tensor = model(*inputs)
    if classes == 2 and logits.dim() == 2 and logits.shape[1] == 1:
        logits = logits.squeeze(1)
    needed = (len(inputs[0]),) if classes == 2 else (len(inputs[0]), classes)
    if logits.shape != needed:
        raise ArgumentError(f"The model gives logits {tuple(logits.shape)}; for {classes} classes {needed} are needed.")
    return logits


@torch.no_grad()
def _evaluated(model: nn.Module, inputs: Sequence[Tensor], classes: int) -> Tensor:
    return _logits(model.eval(), inputs, classes)


def _error(logits: Tensor, y: Tensor) -> float:
    return float((predicted_classes(logits) != y).double().mean())


class ModelCompletionAttack(ExamplesAttack):
    """An attack that trains a top model on the frozen bottom model, from k known examples of each class.

    Its baseline is the whole network trained on the same examples alone. The difference of both is the information that
    the trained bottom model reveals, the *bottom model advantage*. A defense protects perfectly where it is 0.

    Parameters
    ----------
    k
        Number of labelled examples of each class, at least 1.
    draws
        Number of repetitions, with other examples and other initial weights.
    normalise
        True if it uses the layer-normalised embeddings, as the top model does behind a defense that normalises.

    Examples
    --------
    >>> ModelCompletionAttack(k=8).label
    'model_completion(k=8)'
    """

    name: ClassVar[str] = "model_completion"
    reads: ClassVar[Reads] = "logits"

    def __init__(self, k: int = 1, draws: int = 5, normalise: bool = False) -> None:
        super().__init__(k, draws, normalise)

    def infer(self, view: TrainedView) -> Tensor:
        """Return logits of the attacked rows by a top model trained on the leaked examples."""
        leaked, top, _ = view.known()
        z, attacked = (normalised(t) if self.normalise else t for t in (leaked.embeddings, view.embeddings))
        return complete(top(), z, leaked.labels, attacked, classes=view.classes)

    def baseline(self, view: TrainedView) -> Tensor | None:
        """Return logits of the attacked rows by a network trained on the leaked examples alone."""
        leaked, _, network = view.known()
        return train_alone(network(), leaked.inputs, leaked.labels, view.inputs, classes=view.classes)
