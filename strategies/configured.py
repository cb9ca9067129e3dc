"""What a configuration means for one party: the order of its batches, and the optimizers of its model."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from flower_vfl.config import Config
from flower_vfl.nn.optim import Optimizers, OwnOptimizer
from flower_vfl.protocol.schedule import Schedule

OptimizerFactory = Callable[[nn.Module, Config], torch.optim.Optimizer]
"""Makes a party's optimizer, instead of the configuration's."""


def schedule_of(config: Config, rows: int, test_rows: int, epochs: int = 0) -> Schedule:
    """Return the schedule that a configuration means for tables of these lengths."""
    training = config.training
    return Schedule(
        config.shared_seed,
        rows,
        test_rows,
        training.batch_size,
        training.eval_batch_size,
        epochs or training.epochs,
        training.validation,
    )


def optimizers_of(
    config: Config, module: nn.Module, schedule: Schedule, factory: OptimizerFactory | None = None
) -> Optimizers | OwnOptimizer:
    """Return the optimizers of one party's model: those that the configuration means, or the user's own."""
    if factory is not None:
        return OwnOptimizer(module, factory(module, config))
    training = config.training
    return Optimizers(
        module,
        training.optimizer,
        learning_rate=training.learning_rate,
        weight_decay=training.weight_decay,
        embedding_decay=training.embedding_decay,
        schedule=training.schedule,
        steps=schedule.steps,
    )
