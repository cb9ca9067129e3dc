"""The training of a stack in this process, from its configurations to the checkpoints of its runs."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from flower_vfl.apps.factories import check_device, computing, open_data
from flower_vfl.apps.folder import RunFolder
from flower_vfl.config import Config
from flower_vfl.data.store.memory import VerticalData
from flower_vfl.metrics import Values
from flower_vfl.simulations.stacked.member import Member
from flower_vfl.simulations.stacked.training import StackedTraining, StepProgress
from flower_vfl.tracking import add_snapshot, write_steps

_log = logging.getLogger(__name__)


def train_stack(
    configs: Sequence[Config],
    folders: Sequence[Path],
    *,
    data: Callable[[Config], VerticalData] = open_data,
    progress: StepProgress = lambda step, steps, loss: None,
) -> list[int]:
    """Train runs together, and write each one's checkpoint after its last step, to be finished with ``resume``.

    Parameters
    ----------
    configs, folders : Sequence
        Configuration and folder of each run; nothing has been trained in the folders.
    data : Callable
        Opens the data.
    progress : StepProgress
        Receives the progress of training.

    Returns
    -------
    list of int
        Numbers of the runs that diverged; nothing of them is saved, and run by themselves they report the error.

    Raises
    ------
    FlowerVflError
        When the runs cannot be trained together, or one cannot run at all.
    """
    check_device(configs[0])
    dataset = data(configs[0])
    configs = [config.fitted(dataset.alignment.rows) for config in configs]
    with ExitStack() as open_folders, computing(configs[0]):
        for config, folder in zip(configs, folders, strict=True):
            open_folders.enter_context(RunFolder(folder, config, resume=True))
        members = [Member(config, dataset) for config in configs]

        def keep_snapshot(run: int, step: int, values: Values) -> None:
            add_snapshot(folders[run], step, values)

        training = StackedTraining(members, dataset, keep_snapshot)
        training.train(progress)
        for run in np.flatnonzero(~training.diverged).tolist():
            trained, curves = training.trained(run)
            write_steps(folders[run], curves)
            members[run].keep(folders[run], trained)  # last: a run with a checkpoint goes on from it
    lost: list[int] = np.flatnonzero(training.diverged).tolist()
    if lost:
        _log.warning("%d of %d runs of a stack diverged (%s); they run by themselves", len(lost), len(configs), lost)
    return lost
