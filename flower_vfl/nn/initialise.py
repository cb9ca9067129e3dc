"""New weights that depend on a seed and on nothing else, of model factories that draw from torch's global generator."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from weakref import WeakValueDictionary

import torch
from torch import nn

from flower_vfl.errors import ConfigError

_lock = threading.RLock()
_given: WeakValueDictionary[int, nn.Parameter] = WeakValueDictionary()
"""The parameters of all models that factories gave, as long as they live, by identity."""


def new_model(factory: Callable[[], nn.Module], seed: int, what: str) -> nn.Module:
    """Return what a model factory makes in `seeded_initialisation`: a model that nothing has trained and nobody shares.

    Parameters
    ----------
    factory : Callable[[], nn.Module]
        Makes the model.
    seed : int
        Of its weights.
    what : str
        Description of the model, for the error.

    Raises
    ------
    ConfigError
        When it has weights that a factory gave before: parties would train one model together, and a run would go on
        from what the last one learned. Weights that are not trained may be shared.

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
        if any(_given.get(id(parameter)) is parameter for parameter in trained):
            raise ConfigError(
                f"{what} has weights that a model factory gave before: parties would train one model together, or go "
                "on from what was trained already; make a new model in each call, or copy.deepcopy one that is there"
            )
        _given.update((id(parameter), parameter) for parameter in trained)
    return model


@contextmanager
def seeded_initialisation(seed: int) -> Iterator[None]:
    """Run a model factory so that its weights depend only on `seed`; the global generator is left as it was.

    `torch.nn` draws initial weights from the global generator. Inside this context it starts from `seed`, one thread at
    a time; on the way out its state is put back. CUDA generators are treated the same where CUDA is already in use; a
    factory that wants the same weights everywhere builds its model on the CPU and lets the party move it.

    Parameters
    ----------
    seed : int
        From a party's own secret: whoever knows it knows the initial weights.

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
        # Not torch.manual_seed: it would also seed accelerators whose state is not put back here.
        torch.default_generator.manual_seed(seed)
        if devices:
            torch.cuda.manual_seed_all(seed)
        yield
