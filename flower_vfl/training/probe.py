"""The logits of a trained label party for fixed inputs, to check that a rebuilt one computes the same.

A prediction rebuilds the label party from its configuration and its weights. State that a defense learned outside of
its `modules` is in neither. So the logits for a few fixed embeddings are recorded at the end of a training, and
compared before a prediction.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Generator, Mapping
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from flower_vfl.data.store.dataset import PartyTable
from flower_vfl.data.store.source import FeatureSource
from flower_vfl.errors import NotRestoredError
from flower_vfl.nn.placement import Placement
from flower_vfl.parties.network import LabelModel
from flower_vfl.registry import from_elsewhere
from flower_vfl.training.protocols import TrainedDefense, TrainedStrategy

if TYPE_CHECKING:
    from flower_vfl.transport.base import Link

_log = logging.getLogger(__name__)

FIXED_ROWS = 32
"""Largest number of rows of the fixed inputs; fewer if the label party has fewer rows of its own columns."""

CutFormat = Mapping[str, tuple[tuple[int, ...], torch.dtype]]
"""The shape of one row of the embedding and its number format, by feature party."""

_ADVICE = (
    "Let the defense make its trainable modules in `build` and add them to `self.modules`, because those weights are "
    "kept. The run's results on the test rows are in its result.json"
)


def cut_of(links: Mapping[str, Link]) -> CutFormat:
    """Return the shapes and number formats of the parties' embeddings, known after their hello."""
    return {party: (link.shape, link.dtype) for party, link in links.items()}


def fixed_rows(table: PartyTable) -> FeatureSource:
    """Return the label party's own columns of the fixed inputs: those of the test rows, else of the training rows."""
    return table.test if len(table.test) else table.train


def answer(model: LabelModel, strategy: TrainedStrategy, cut: CutFormat, own: FeatureSource | None) -> tuple[str, ...]:
    """Return the logits for the fixed inputs, each as `float.hex` writes it; empty if the network rejects these.

    Noise is the same in each call: only learned state makes a difference.

    Parameters
    ----------
    model : LabelModel
        The label party's network.
    strategy : TrainedStrategy
        The strategy with its defenses.
    cut : CutFormat
        Shapes and number formats of the feature parties' embeddings.
    own : FeatureSource, optional
        The label party's own columns of rows that stay the same, such as the test rows.
    """
    try:
        return tuple(float(value).hex() for value in _logits(model, strategy, cut, own).flatten().tolist())
    except Exception as error:  # noqa: BLE001 - code of others, which may reject such inputs
        _log.debug("the network of the label party takes no fixed inputs: %s", error)
        return ()


def check_restored(
    model: LabelModel, strategy: TrainedStrategy, cut: CutFormat, own: FeatureSource | None, noted: tuple[str, ...]
) -> None:
    """Refuse a rebuilt label party that gives other logits than the trained one.

    Parameters
    ----------
    model, strategy, cut, own
        As for `answer`, rebuilt.
    noted : tuple of str
        The result of `answer` after training.

    Raises
    ------
    NotRestoredError
        When logits differ or are missing; the message names the defenses of other packages that change embeddings.
    """
    suspects = _changing_embeddings(strategy)
    if not noted and not suspects:
        return
    names = " and ".join(suspects) or "its network"
    if not noted:
        raise NotRestoredError(
            f"it cannot be checked whether {names} computes what it did in training, so that nothing is predicted: "
            f"it failed for fixed inputs after training. {_ADVICE}"
        )
    try:
        found = _logits(model, strategy, cut, own).flatten().double().cpu()
    except Exception as error:
        raise NotRestoredError(
            f"the label party cannot be rebuilt from its weights: {names} fails with {error!r:.200}. {_ADVICE}"
        ) from error
    expected = torch.tensor([float.fromhex(value) for value in noted], dtype=torch.float64)
    rounding = Placement.of(strategy.base.config).rounding
    size = expected[expected.isfinite()].abs()
    largest = float(size.max()) if len(size) else 0.0
    same_shape = found.shape == expected.shape
    if not same_shape or not torch.allclose(found, expected, rounding, 0.1 * rounding * largest, equal_nan=True):
        difference = float((found - expected).abs().max()) if same_shape else float("nan")
        raise NotRestoredError(
            f"the label party cannot be rebuilt from its weights: {names} gives other logits than at the end of "
            f"training, by up to {difference:.3g}, so that scores would be those of another model. What was learned "
            f"outside of `modules` is not kept. {_ADVICE}"
        )


def warn_of_learning(strategy: TrainedStrategy) -> None:
    """Warn at the end of a run if defenses hold trained tensors that are not kept: `predict` refuses such a run."""
    for defense in strategy.chain():
        others = (value for name, value in vars(defense).items() if name != "modules")
        kept = {id(parameter) for parameter in defense.modules.parameters()}
        if _overrides_embed(defense) and any(_holds_trained(value, kept) for value in others):
            _log.warning(
                "the defense %r changes embeddings and holds trainable tensors, which are not kept: `predict` refuses "
                "this run if they were trained. %s",
                *(defense.name, _ADVICE),
            )


@torch.no_grad()
def _logits(model: LabelModel, strategy: TrainedStrategy, cut: CutFormat, own: FeatureSource | None) -> Tensor:
    count = FIXED_ROWS if own is None or model.bottom is None else min(FIXED_ROWS, len(own))
    embeddings = {}
    for number, (party, (shape, dtype)) in enumerate(cut.items()):
        generator = torch.Generator().manual_seed(number)
        embeddings[party] = torch.randn(count, *shape, generator=generator).to(dtype)
    with _fixed_noise(strategy):
        return model.logits(embeddings, own, np.arange(count))


@contextmanager
def _fixed_noise(strategy: TrainedStrategy) -> Generator[None]:
    """Set the defenses' generators and torch's global ones to fixed seeds within the context."""
    device = torch.device(strategy.base.config.device)
    with ExitStack() as stack:
        stack.enter_context(torch.random.fork_rng(devices=[] if device.type == "cpu" else [device]))
        torch.manual_seed(0)
        for number, defense in enumerate(strategy.chain()):
            stack.enter_context(defense.drawing_from(torch.Generator(device).manual_seed(number)))
        yield


def _changing_embeddings(strategy: TrainedStrategy) -> list[str]:
    """Return the defenses of other packages that change embeddings."""
    chain = [defense for defense in strategy.chain() if _overrides_embed(defense)]
    return [f"the defense {defense.name!r}" for defense in chain if from_elsewhere(type(defense))]


def _overrides_embed(defense: TrainedDefense) -> bool:
    return defense.writes("embed") or defense.writes("predict")


def _holds_trained(value: object, kept: Collection[int]) -> bool:
    """Return True if a value is, or holds, a tensor that requires a gradient, other than those that are kept."""
    if isinstance(value, nn.Module):
        return any(_holds_trained(parameter, kept) for parameter in value.parameters())
    if isinstance(value, Tensor):
        return value.requires_grad and id(value) not in kept
    if isinstance(value, Mapping):
        value = list(value.values())
    return isinstance(value, list | tuple) and any(_holds_trained(one, kept) for one in value)
