"""Write protection of the tensors that attacks receive: others read them later, and in one process they are sent."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from numpy.typing import NDArray
from torch import Tensor

from flower_vfl.attacks.base import AttackMethod
from flower_vfl.errors import ConfigError

Shown = TypeVar("Shown", bound=NDArray[Any])


def read_only(array: Shown) -> Shown:
    """Return a view of an array through which nothing can be written."""
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
        Calls it.
    shown : Sequence[Tensor]
        The tensors that it receives; arrays are `read_only`.

    Raises
    ------
    ConfigError
        When it has written into them.
    """
    before = [tensor._version for tensor in shown]
    try:
        answer = say()
    except ValueError as error:
        if "read-only" not in str(error):  # the word of numpy in all its messages about such arrays
            raise
        raise ConfigError(_writes(attack)) from error
    if [tensor._version for tensor in shown] != before:
        raise ConfigError(_writes(attack))
    return answer


def _writes(attack: AttackMethod) -> str:
    return (
        f"the attack {attack.label!r} writes into what it is shown, which others use after it: training would go on "
        "with other numbers; clone first, or compute out of place (g = g - mean for g -= mean)"
    )
