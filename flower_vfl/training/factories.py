"""Factories that make a party's schedule of batches and its optimizers from the configuration."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from flower_vfl.config import Config
from flower_vfl.data.store.periods import Periods
from flower_vfl.errors import ConfigError
from flower_vfl.protocol.schedule import Schedule

if TYPE_CHECKING:
    import torch
    from torch import nn

    from flower_vfl.nn.optim import Optimizers, OwnOptimizer

OptimizerFactory = Callable[["nn.Module", Config], "torch.optim.Optimizer"]
"""Function that makes a party's optimizer, in place of the configured one."""


def schedule_of(
    config: Config, rows: int, test_rows: int, epochs: int = 0, *, periods: Periods | None = None
) -> Schedule:
    """Return the configured schedule for tables of these lengths; the periods are used in time order only.

    Raises
    ------
    ConfigError
        When training is in time order, and the data has no periods or there are several epochs.
    """
    training = config.fitted(rows).training
    epochs = epochs or training.epochs
    lengths = _lengths(periods, epochs) if training.order == "time" else ()
    return Schedule(
        config.shared_seed,
        rows,
        test_rows,
        training.batch_size,
        training.eval_batch_size,
        len(lengths) or epochs,
        training.validation,
        lengths,
    )


def _lengths(periods: Periods | None, epochs: int) -> tuple[int, ...]:
    """Return the number of rows of each period, for training in time order."""
    if epochs != 1:
        raise ConfigError(f'training.order is "time", which is one pass; {epochs} epochs were asked for')
    if periods is None:
        raise ConfigError(
            'training.order is "time", but this data does not give the days of its rows. Prepare avazu or '
            "flights again with the last days as the test (data.options test_days = 1), return MemoryData with "
            '`periods` from a loader of your own, or set training.order to "random"'
        )
    return periods.rows


def optimizers_of(
    config: Config, module: nn.Module, schedule: Schedule, factory: OptimizerFactory | None = None
) -> Optimizers | OwnOptimizer:
    """Return the optimizers of one party's model: the configured ones, or the user's own."""
    from flower_vfl.nn.optim import Optimizers, OwnOptimizer

    if factory is not None:
        return OwnOptimizer(module, factory(module, config))
    training = config.training.fitted(schedule.rows)
    return Optimizers(
        module,
        training.optimizer,
        learning_rate=training.learning_rate,
        weight_decay=training.weight_decay,
        embedding_decay=training.embedding_decay,
        schedule=training.schedule,
        steps=schedule.steps,
        fused=training.fused,
    )
