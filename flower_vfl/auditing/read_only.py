"""Write protection of the tensors that attacks receive, which are read or, in one process, sent afterwards."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from numpy.typing import NDArray
from torch import Tensor

from flower_vfl.attacks.base import AttackMethod
from flower_vfl.errors import ConfigError

Shown = TypeVar("Shown", bound=NDArray[Any])


def read_only(array: Shown) -> Shown:
    """Return a read-only view of an array."""
    view = array.view()
    view.flags.writeable = False
    return view


def ask(attack: AttackMethod, say: Callable[[], Tensor], shown: Sequence[Tensor] = ()) -> Tensor:
    """Return an attack's scores, and refuse an attack that writes into its inputs.

    Parameters
    ----------
    attack : AttackMethod
        The attack.
    say : Callable[[], Tensor]
        Function that runs the attack and returns its scores.
    shown : Sequence[Tensor]
        The tensors that the attack receives; arrays are `read_only`.

    Raises
    ------
    ConfigError
        When the attack has written into its inputs.
    """
    before = [tensor._version for tensor in shown]
    try:
        answer = say()
    except ValueError as error:
        if "read-only" not in str(error):  # in all messages of numpy about such arrays
            raise
        raise ConfigError(_write_message(attack)) from error
    if [tensor._version for tensor in shown] != before:
        raise ConfigError(_write_message(attack))
    return answer


def _write_message(attack: AttackMethod) -> str:
    return (
        f"the attack {attack.label!r} writes into what it is shown, which others use after it: training would go on "
        "with other numbers; clone first, or compute out of place (g = g - mean for g -= mean)"
    )
