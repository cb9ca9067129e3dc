"""Requirements on labels of the defenses that randomise them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from flower_vfl.accounting import Bounded, check_target
from flower_vfl.errors import ConfigError
from flower_vfl.training.factories import schedule_of

if TYPE_CHECKING:
    from flower_vfl.strategies.vertical import VerticalStrategy


def check_task(base: VerticalStrategy, name: str, epsilon: float, *, every_class: bool = False) -> None:
    """Refuse labels from which nothing can be learned, as they are or once randomised.

    Parameters
    ----------
    base : VerticalStrategy
        The innermost strategy, with labels and configuration.
    name : str
        The defense, for messages.
    epsilon : float
        Privacy parameter of each label; infinite for labels that are not changed.
    every_class : bool
        True if the defense estimates how frequent classes are: each needs a row.

    Raises
    ------
    ConfigError
        When all rows that are trained on have one class, a class has no row though each needs one, or all randomised
        labels together carry less than one bit of the true ones.
    ArgumentError
        When epsilon is so large that the probability of a changed label is lost in the digits of the draws.
    """
    labels = base.labels
    schedule = schedule_of(base.config, len(labels.train), len(labels.test), periods=base.periods)
    trained = np.delete(labels.train, schedule.held_out)
    counts = np.bincount(labels.train.astype(np.int64), minlength=labels.classes)
    if len(np.unique(trained)) < 2:
        if np.count_nonzero(counts) < 2:
            reason = (
                f"all {len(labels.train)} training rows are of class {int(np.argmax(counts))}; bring rows of another "
                "class, or see whether the right column is the label"
            )
        else:
            reason = (
                f"all {len(trained)} rows that are trained on are of class {int(trained[0])}, those of other classes "
                f"are among the {len(labels.train) - len(trained)} kept for validation; set training.validation = 0, "
                "or bring more rows of other classes"
            )
        raise ConfigError(f"{name}: nothing can be learned: {reason}")
    missing = np.flatnonzero(counts == 0)
    if every_class and len(missing):
        raise ConfigError(
            f"{name}: class {', '.join(map(str, missing[:5]))}{' and others' if len(missing) > 5 else ''} of "
            f"{labels.classes} has no training row, so there is no prior for it, and this mechanism needs one of each "
            'class; take mechanism="randomised_response", or prepare the data with only the classes that it has'
        )
    check_target(epsilon)
    bits = Bounded(epsilon).bits * len(trained) if epsilon < np.inf else np.inf
    if bits < 1.0:
        raise ConfigError(
            f"{name}: epsilon {epsilon:g} cannot be met by a training that learns: randomised labels of all "
            f"{len(trained)} rows together tell at most {bits:.2g} bits of the true ones, less than the answer to one "
            "question; give a larger epsilon, or take training.gradients = false, which sends nothing that depends on "
            "labels"
        )
