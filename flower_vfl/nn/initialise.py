"""Weights that depend on a seed and on nothing else, for model factories that draw from torch's global generator."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

_lock = threading.RLock()


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
