"""New models whose weights depend on a seed alone, from factories that draw from torch's global generator."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from weakref import WeakValueDictionary

import torch
from torch import nn

from flower_vfl.errors import ConfigError

_lock = threading.RLock()
_known_parameters: WeakValueDictionary[int, nn.Parameter] = WeakValueDictionary()
"""The trainable parameters of all models that factories returned, by identity, while they exist."""


def new_model(factory: Callable[[], nn.Module], seed: int, what: str) -> nn.Module:
    """Return the model that a factory makes in `seeded_initialisation`, untrained and shared with no other party.

    Parameters
    ----------
    factory : Callable[[], nn.Module]
        Function that makes the model.
    seed : int
        Seed of its weights.
    what : str
        Description of the model, for the error.

    Raises
    ------
    ConfigError
        When it has trainable weights that a factory returned before: parties would train one model together, or a run
        would go on from the weights of an earlier one. Weights that are not trained may be shared.

    Examples
    --------
    >>> model = torch.nn.Linear(3, 2)
    >>> new_model(lambda: model, 7, "the bottom model") is model
    True
    >>> new_model(lambda: torch.nn.Sequential(model), 7, "the bottom model")
    Traceback (most recent call last):
    ...
    flower_vfl.errors.ConfigError: the bottom model has weights that a model factory gave before: ...
    """
    with seeded_initialisation(seed):
        model = factory()
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        if any(_known_parameters.get(id(parameter)) is parameter for parameter in trained):
            raise ConfigError(
                f"{what} has weights that a model factory gave before: parties would train one model together, or go "
                "on from what was trained already; make a new model in each call, or copy.deepcopy one that is there"
            )
        _known_parameters.update((id(parameter), parameter) for parameter in trained)
    return model


@contextmanager
def seeded_initialisation(seed: int) -> Iterator[None]:
    """Run a model factory so that its weights depend only on `seed`; the global generator's state is restored.

    `torch.nn` draws initial weights from the global generator. Inside this context it starts from `seed`, one thread at
    a time; at the end its state is restored. CUDA generators are treated the same where CUDA is already in use; a
    factory whose weights must be the same on all devices makes its model on the CPU, and the party moves it.

    Parameters
    ----------
    seed : int
        Seed from a party's own secret: it reveals the initial weights.

    Examples
    --------
    >>> with seeded_initialisation(7):
    ...     first = torch.nn.Linear(3, 2)
    >>> with seeded_initialisation(7):
    ...     second = torch.nn.Linear(3, 2)
    >>> torch.equal(first.weight, second.weight)
    True
    """
    devices = list(range(torch.cuda.device_count())) if torch.cuda.is_initialized() else []  # type: ignore[no-untyped-call]
    with _lock, torch.random.fork_rng(devices=devices):
        # Not torch.manual_seed: it would also seed accelerators whose state is not restored here.
        torch.default_generator.manual_seed(seed)
        if devices:
            torch.cuda.manual_seed_all(seed)
        yield
