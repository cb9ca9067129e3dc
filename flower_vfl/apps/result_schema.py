"""Reading and checking of `result.json`."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, TypeGuard

from flower_vfl.errors import InputError

SECTIONS = {"dataset": dict, "defenses": list, "utility": dict, "leakage": list, "cost": dict}
OPTIONAL = {
    **dict.fromkeys(
        (
            "weights",
            "environment",
            "alone",
            "alone_better",
            "parties",
            "model",
            "budget",
            "verdict",
            "worth",
            "epsilon",
            "classes",
        ),
        dict,
    ),
    **dict.fromkeys(("attacks", "rebuild"), list),
    "baseline": str,
}

OWN_DATA = "files"
"""Name of the data set in results on the user's own tables."""

_CLASS = re.compile(r"\bclass (\d+)\b")

_NUMBERS = (
    *("q95", "q95_null", "q95_turned", "q95_p_value", "mean", "max", "detection_error_mean", "detection_error_q05"),
    *("baseline", "advantage", "p_value", "advantage_p_value", "max_p_value", "steps_read", "steps_read_max"),
)
"""Numbers of an entry of ``leakage``, each of which may be null."""


def checked_result(path: Path) -> dict[str, Any]:
    """Read a run's `result.json`, and check that it has everything that reports and tables need.

    Raises
    ------
    InputError
        When it cannot be read or is malformed; the message names the file and the problem.
    """
    try:
        result = json.loads(
            path.read_text(encoding="utf8"),
            parse_constant=partial(_refuse_constant, path),
            parse_int=partial(_number, int, path),
            parse_float=partial(_number, float, path),
        )
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error}") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(result, dict) or result.get("schema") != 1:
        raise InputError(f'{path} is no result of schema 1: it must be a JSON object with "schema": 1.')
    for key, kind in (SECTIONS | OPTIONAL).items():
        if not isinstance(result.get(key, None if key in SECTIONS else kind()), kind):
            raise InputError(f"{path}: {key!r} is {result.get(key)!r}, a {kind.__name__} is needed.")
    for which in ("last", "best"):
        if not isinstance(result["utility"].get(which), dict | None):
            raise InputError(f"{path}: {which!r} of 'utility' is {result['utility'][which]!r}, a dict is needed.")
    for key in ("defenses", "leakage", "attacks", "rebuild"):
        if not all(isinstance(entry, dict) for entry in result.get(key, [])):
            raise InputError(f"{path}: every entry of {key!r} must be an object.")
    for attack in result.get("attacks", []):
        if not (isinstance(attack.get("needs"), list) and isinstance(attack.get("hints"), int)):
            raise InputError(f"{path}: every entry of 'attacks' must have a list 'needs' and a number 'hints'.")
    _check_leaks(path, result["leakage"])
    _check_budget(path, result.get("budget", {}))
    _check_epsilon(path, result)
    _check_classes(path, result.get("classes", {}))
    return result


def kept_utility(result: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metrics of the model that a run kept: of its last epoch, or of the best one where patience chose it.

    Examples
    --------
    >>> utility = {"last": {"test_auc": 0.7}, "best": {"test_auc": 0.8}}
    >>> kept_utility({"utility": utility, "model": {"step": 9, "epoch": 1, "chosen_by": "validation_auc"}})
    {'test_auc': 0.8}
    >>> kept_utility({"utility": utility, "model": {"step": 27, "epoch": 3}})
    {'test_auc': 0.7}
    """
    utility, model = result.get("utility"), result.get("model")
    which = "best" if isinstance(model, dict) and model.get("chosen_by") else "last"
    found = utility.get(which) if isinstance(utility, dict) else None
    return found if isinstance(found, dict) else {}


def names_of(result: Mapping[str, Any]) -> list[str]:
    """Return the names of a result's classes; empty where it has none."""
    return list((result.get("classes") or {}).get("names") or [])


def class_name(result: Mapping[str, Any], number: Any) -> str:
    """Return the name of a class by its number, or the number where the result has no names.

    Examples
    --------
    >>> class_name({"classes": {"names": ["cat", "dog"]}}, 1), class_name({}, 1)
    ('dog', '1')
    """
    names = names_of(result)
    return names[number] if isinstance(number, int) and 0 <= number < len(names) else str(number)


def of_class(result: Mapping[str, Any], found: Mapping[str, Any]) -> str:
    """Return the class of a finding or an entry in words, as in ", class cat"; empty where it names none."""
    return "" if found.get("class") is None else f", class {class_name(result, found['class'])}"


def with_class_names(result: Mapping[str, Any], text: str) -> str:
    """Return a text about classes by number, such as why a reader has no value, with their names.

    Examples
    --------
    >>> with_class_names({"classes": {"names": ["cat", "dog"]}}, "too few rows: 1 of class 0 and 5 others")
    'too few rows: 1 of class cat and 5 others'
    """
    return _CLASS.sub(lambda found: f"class {class_name(result, int(found[1]))}", text)


def _refuse_constant(path: Path, constant: str) -> NoReturn:
    raise InputError(f"{path} holds {constant}, which is no number of JSON: null stands for an unknown value.")


def _number(kind: Callable[[str], float], path: Path, text: str) -> float:
    """Return a number of JSON; refuse one that no float holds."""
    if math.isinf(float(text)):
        raise InputError(f"{path} holds the number {text[:40]}, which is too large.")
    return kind(text)


def _check_budget(path: Path, budget: Mapping[str, Any]) -> None:
    for key, entry in budget.items():
        given = entry if isinstance(entry, dict) else {}
        reached = given.get("reached")
        values = [value for value in reached if value is not None] if isinstance(reached, list) else None
        if (
            key not in ("leak", "bound")
            or not _numbers([given.get("limit")], float | int)
            or not _numbers(values, float | int)
        ):
            raise InputError(
                f"{path}: the budget has a limit, and what was reached after each epoch, of the leak and of the bound; "
                f"it has {key!r}: {entry!r}."
            )


def _check_epsilon(path: Path, result: Mapping[str, Any]) -> None:
    for defense in result["defenses"]:
        proven = defense.get("proven")
        known = isinstance(proven, dict) and _numbers([proven.get("epsilon"), proven.get("auc")], float | int)
        if proven is not None and not known:
            raise InputError(f"{path}: 'proven' of a defense has numbers 'epsilon' and 'auc'; it is {proven!r}.")
    found = result.get("epsilon", {})
    if not found:
        return
    numbers = [found.get("confidence"), *([] if found.get("lower") is None else [found["lower"]])]
    parties = found.get("parties")
    if not (_numbers(numbers, float | int) and isinstance(parties, list) and all(isinstance(p, dict) for p in parties)):
        raise InputError(
            f"{path}: 'epsilon' has a confidence, a lower bound or null, and an entry for each party; it has {found!r}."
        )


def _check_classes(path: Path, found: Mapping[str, Any]) -> None:
    """Refuse classes without names, and numbers that do not fit the names."""
    names, numbers = found.get("names", []), {key: found.get(key, []) for key in ("rows", "recall", "precision")}
    matrix = found.get("confusion", [])
    lists = [*numbers.values(), matrix, *(matrix if isinstance(matrix, list) else ())]
    known = isinstance(names, list) and all(isinstance(one, list) and len(one) in (0, len(names)) for one in lists)
    values = [value for one in (*numbers.values(), *matrix) for value in one if value is not None] if known else []
    if not (known and all(isinstance(name, str) for name in names) and _numbers(values, float | int)):
        raise InputError(
            f"{path}: 'classes' has a list of names and, for each of them, rows, recall, precision and a row of the "
            f"confusion matrix; it has {found!r}."
        )


def _check_leaks(path: Path, leakage: Sequence[Mapping[str, Any]]) -> None:
    for entry in (entry for entry in leakage if entry.get("phase") == "remembered"):
        epochs, values = entry.get("epochs"), entry.get("values")
        if not (_numbers(epochs, int) and _numbers(values, float | int) and len(epochs) == len(values)):
            raise InputError(
                f"{path}: a longitudinal leak has a value for each of its epochs; it has {epochs}, {values}."
            )
    for entry in leakage:
        if not isinstance(entry.get("party", ""), str):
            raise InputError(f"{path}: 'party' of a leak is {entry['party']!r}, a text is needed.")
        for number in _NUMBERS:
            if not isinstance(entry.get(number), float | int | None):
                raise InputError(f"{path}: {number!r} of a leak is {entry[number]!r}, a number or null is needed.")


def _numbers(value: Any, kind: Any) -> TypeGuard[list[float]]:
    return isinstance(value, list) and all(isinstance(n, kind) and not isinstance(n, bool) for n in value)
