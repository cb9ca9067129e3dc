"""Check of a sweep before its first trial starts: one training step of every setting."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

import torch

from flower_vfl.apps.factories import open_data
from flower_vfl.apps.local import run
from flower_vfl.apps.run_state import config_digest
from flower_vfl.config import Config
from flower_vfl.config.schema import PrivacyConfig
from flower_vfl.data.store.memory import VerticalData
from flower_vfl.errors import ConfigError
from flower_vfl.protocol.printable import reason_of
from flower_vfl.simulations.sweep.definition import Running
from flower_vfl.simulations.sweep.trials import Trial
from flower_vfl.strategies import Observer
from flower_vfl.tracking import require_sinks

_SHOWN, _MOST = 8, 2000
_NUMBERS = ("epochs", "learning_rate", "weight_decay", "embedding_decay", "schedule", "clip_norm")

SettingProgress = Callable[[int, int], None]
"""Function that receives the number of settings that have been tried, and of all settings."""


class _EnoughError(Exception):
    """Ends a trial step."""


class _OneStep(Observer):
    def on_step(self, step: int, epoch: int, loss: float, leak: float) -> None:
        raise _EnoughError


class OpenData:
    """A loader that opens each data set once for all trials."""

    def __init__(self) -> None:
        self._opened: dict[str, VerticalData] = {}

    def __call__(self, config: Config) -> VerticalData:
        """Return the data that a configuration names."""
        key = json.dumps(config.data.model_dump(), sort_keys=True)
        if key not in self._opened:
            self._opened[key] = open_data(config)
        return self._opened[key]


def check_trials(
    trials: Sequence[Trial], running: Running, progress: SettingProgress = lambda done, total: None
) -> None:
    """Refuse a sweep with a trial that cannot run.

    Opens all data, and does the first step of each setting: trials that differ only in seeds or in plain numbers of the
    training, such as its length, have one setting.

    Raises
    ------
    ConfigError
        When trials cannot run; the message names them, each with the reason.
    """
    check_devices(trials, running)
    require_sinks(sorted({name for trial in trials for name in trial.config.sinks}))
    settings = {config_digest(plain(trial.config)): trial for trial in reversed(trials)}
    data, problems = OpenData(), []
    with quiet_log():
        for index, trial in enumerate(reversed(settings.values())):
            progress(index, len(settings))
            try:
                dry_run(trial.config, data)
            except Exception as error:  # noqa: BLE001 - methods of other packages may raise anything
                problems.append(f"{trial.run}: {reason_of(error, _MOST)}")
    progress(len(settings), len(settings))
    if problems:
        more = f" (and {len(problems) - _SHOWN} more)" if len(problems) > _SHOWN else ""
        raise ConfigError(
            f"{len(problems)} setting{'s' * (len(problems) > 1)} cannot run: {'; '.join(problems[:_SHOWN])}{more}"
        )


def check_devices(trials: Sequence[Trial], running: Running) -> None:
    """Refuse devices that do not fit the GPUs of each trial.

    Raises
    ------
    ConfigError
        When trials on a GPU get none, trials without one get some, or a device names a GPU: Ray chooses it.
    """
    devices = {trial.config.device for trial in trials}
    numbered = sorted(device for device in devices if ":" in device)
    if numbered:
        raise ConfigError(f"device is {numbered[0]!r}; in a sweep it is 'cuda': Ray chooses the GPU of each trial")
    if "cuda" in devices and not running.gpus:
        raise ConfigError("device is 'cuda', but [sweep] gpus is 0: 1 gives each trial a GPU, 0.25 puts four on one")
    if "cuda" not in devices and running.gpus:
        raise ConfigError(f"[sweep] gpus is {running.gpus}, but no trial has device = 'cuda'")


def dry_run(config: Config, data: Callable[[Config], VerticalData]) -> None:
    """Do the first step of a configuration, on the processor where there is no GPU, and write nothing.

    Raises
    ------
    FlowerVflError
        The error that would end the run.
    """
    device = config.device if torch.cuda.is_available() else "cpu"
    with suppress(_EnoughError):
        # Nothing is sent to another party, so no ledger is charged.
        checked = config.model_copy(update={"device": device, "sinks": [], "privacy": PrivacyConfig()})
        run(checked, data=data, observers=(_OneStep(),))


def plain(config: Config) -> Config:
    """Return the configuration with the defaults for all keys that cannot make a run fail."""
    usual = Config()
    numbers = {name: getattr(usual.training, name) for name in _NUMBERS}
    if config.attack.max_bound < 1.0:  # with too many epochs there is no bound
        del numbers["epochs"]
    training = config.training.model_copy(update=numbers)
    return config.model_copy(update={"seed": 0, "schedule_seed": -1, "training": training, "sinks": []})


@contextmanager
def quiet_log(least: int = logging.CRITICAL) -> Iterator[None]:
    """Suppress log messages below a level within the block; by default all, because the trials log them too."""
    logger = logging.getLogger("flower_vfl")
    level = logger.level
    logger.setLevel(least)
    try:
        yield
    finally:
        logger.setLevel(level)
