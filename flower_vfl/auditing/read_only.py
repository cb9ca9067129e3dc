"""Write protection of the tensors that attacks receive, which are read or, in one process, sent afterwards."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from numpy.typing import NDArray
from torch import Tensor

from flower_vfl.attacks.base import AttackMethod
from flower_vfl.errors import ConfigError

Shown = TypeVar("Shown", bound=NDArray[Any])
T = TypeVar("T")


def read_only(array: Shown) -> Shown:
    """Return a read-only view of an array."""
    view = array.view()
    view.flags.writeable = False
    return view


class WriteError(ConfigError):
    """An attack writes into its inputs."""


def ask(attack: AttackMethod, say: Callable[[], T], shown: Sequence[Tensor] = (), *, copies: bool = False) -> T:
    """Return an attack's answer, and refuse an attack that writes into its inputs.

    Parameters
    ----------
    attack : AttackMethod
        The attack.
    say : Callable[[], T]
        Function that runs the attack and returns its answer.
    shown : Sequence[Tensor]
        The tensors that the attack receives; arrays are `read_only`.
    copies : bool
        True to compare them with copies, too: PyTorch does not count a write through `tensor.numpy()` or `tensor.data`.

    Raises
    ------
    WriteError
        When the attack has written into its inputs.
    """
    before = [(tensor, tensor._version, tensor.clone() if copies else tensor) for tensor in shown]
    try:
        answer = say()
    except Exception as error:
        if isinstance(error, ValueError) and "read-only" in str(error):  # in all messages of numpy about such arrays
            raise WriteError(_write_message(attack)) from error
        error.add_note(f"in the attack {attack.label!r}")
        raise
    if any(tensor._version != version or not _equal(tensor, copy) for tensor, version, copy in before):
        raise WriteError(_write_message(attack))
    return answer


def _equal(tensor: Tensor, copy: Tensor) -> bool:
    return tensor is copy or torch.equal(tensor.nan_to_num(), copy.nan_to_num())


def _write_message(attack: AttackMethod) -> str:
    return (
        f"the attack {attack.label!r} writes into what it is shown, which others use after it: training would go on "
        "with other numbers; clone first, or compute out of place (g = g - mean for g -= mean)"
    )
