"""Further training of the label party's own network after the last step, on fixed embeddings."""

from __future__ import annotations

import logging
from dataclasses import replace

import numpy as np
from torch import nn

from flower_vfl.nn.optim import Optimizers, OwnOptimizer
from flower_vfl.nn.placement import Placement
from flower_vfl.parties.best import BestModel
from flower_vfl.parties.label import LabelParty
from flower_vfl.parties.loading import Loader
from flower_vfl.protocol.schedule import Schedule
from flower_vfl.training.factories import optimizers_of
from flower_vfl.training.kept import KeptEmbeddings
from flower_vfl.training.loop import TrainingLoop
from flower_vfl.training.protocols import StrategySettings

_log = logging.getLogger(__name__)


class Refit:
    """The passes of `training.refit`, after the feature parties' bottom models are trained.

    While these learn, the network that predicts receives embeddings that keep changing. Afterwards all embeddings are
    sent once, as in an evaluation, and everything else is local: a new optimizer, with the configured learning rate
    and schedule over all passes, trains the top model and the label party's own bottom model. The weights of the pass
    with the best validation are kept, or those before the refit; without a validation part those of the last pass.

    No number that depends on it is sent. It has no checkpoint: a resumed run repeats it from the state after the last
    step, and gets the same weights.

    Parameters
    ----------
    training : TrainingLoop
        The training loop, which keeps the embeddings and evaluates.
    label : LabelParty
        The label party.
    schedule : Schedule
        Schedule of the training; passes use the order of rows of its first epochs.
    base : StrategySettings
        The innermost strategy.
    """

    def __init__(self, training: TrainingLoop, label: LabelParty, schedule: Schedule, base: StrategySettings) -> None:
        self._training, self._label, self._base = training, label, base
        self._schedule = replace(schedule, epochs=base.config.training.refit or schedule.epochs)
        own = None if label.bottom is None else base.table
        self._loader = None if own is None else Loader(own.train, self._schedule, Placement.of(base.config))

    def __call__(self) -> None:
        """Do the passes, if there are any and a model is kept, and put the metrics of its weights into the outcome.

        Raises
        ------
        TrainingError
            When a loss or a prediction is not finite.
        """
        outcome, label, passes = self._training.outcome, self._label, self._base.config.training.refit
        if not passes or outcome.model_step is None:
            return
        _log.info("refit: the label party's network learns on for %d passes; nothing is sent", passes)
        kept = self._training.keep_embeddings()
        modules = {"top": label.top, **({} if label.bottom is None else {"bottom": label.bottom})}
        optimizers = optimizers_of(self._base.config, nn.ModuleDict(modules), self._schedule, self._base.optimizer)
        found, best = [outcome.of_model], BestModel.of(label.module, 0)
        for number in range(1, passes + 1):
            loss = self._pass(number, kept, optimizers)
            found.append({**outcome.of_model, "train_loss": loss, **self._training.metrics(outcome.model_epoch)})
            measure = outcome.measure_of(found[-1])
            words = "" if measure is None else f", {measure} {found[-1][measure]:.4f}"
            _log.info("refit: pass %d of %d: loss %.4f%s", number, passes, loss, words)
            if measure is None or outcome.score_of(found[-1]) > outcome.score_of(found[best.step]):
                best = BestModel.of(label.module, number)
        best.load_into(label.module)
        self._training.evaluate_again()
        at = outcome.epochs.index(outcome.of_model)
        outcome.epochs[at] = found[best.step]
        measure = outcome.measure_of(found[0])
        values = [None if measure is None else epoch[measure] for epoch in found]
        outcome.refit = {"passes": passes, "kept": best.step, "validation": values}

    def _pass(self, number: int, kept: KeptEmbeddings, optimizers: Optimizers | OwnOptimizer) -> float:
        """Learn from each training row once, and return the mean loss."""
        losses = []
        for step in self._schedule.steps_of(number):
            rows = self._schedule.train_batch(step)
            inputs = [] if self._loader is None else self._loader.batch(step)
            losses.append(self._label.refit_step(rows, inputs, kept.of("train", rows), optimizers))
        return float(np.mean(losses))
