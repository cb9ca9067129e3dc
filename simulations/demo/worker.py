"""The tasks of a worker process: one run of the demo, or the training on one party's columns alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flower_vfl.simulations.demo.pool import Report


@dataclass(frozen=True)
class RunTask:
    """One run of the demo; an interrupted one goes on.

    Attributes
    ----------
    config
        Its configuration, as a dictionary.
    folder
        Folder of its results.
    alone
        The AUC of each party's columns alone, which goes into the result; None where that is not measured yet, or
        not wanted.
    """

    config: Mapping[str, Any]
    folder: Path
    alone: Mapping[str, float] | None = None


@dataclass(frozen=True)
class AloneTask:
    """The training on one party's columns alone."""

    config: Mapping[str, Any]
    party: str


def work(task: RunTask | AloneTask, report: Report) -> float | None:
    """Do a task; return the test AUC of one party alone, or None after a run."""
    import logging

    from flower_vfl.config import build_config
    from flower_vfl.simulations.demo.steps import Steps
    from flower_vfl.simulations.running import alone_auc, run_observed

    logging.getLogger("flower_vfl").setLevel(logging.ERROR)  # nine runs at once would write between each other's lines
    config, observers = build_config(dict(task.config)), (Steps(report),)
    if isinstance(task, AloneTask):
        return alone_auc(config, task.party, observers=observers)
    run_observed(config, task.folder, observers=observers, alone=task.alone)
    return None
