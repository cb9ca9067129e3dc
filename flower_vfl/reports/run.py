"""A finished run as a report reads it: the files of its folder, checked."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeGuard

import numpy as np
import pyarrow.compute as pc
from numpy.typing import NDArray

from flower_vfl.apps.folder import CONFIG, ENDED, RESULT
from flower_vfl.apps.periods import SCHEMA as PERIODS_SCHEMA
from flower_vfl.apps.periods import read_periods
from flower_vfl.errors import InputError
from flower_vfl.reports.leaks import is_remembered
from flower_vfl.tracking import SCHEMA, STEPS, read_embeddings, read_snapshots, read_steps

if TYPE_CHECKING:
    import pyarrow as pa

    from flower_vfl.metrics import Embeddings, Values

SECTIONS = {"dataset": dict, "defenses": list, "utility": dict, "leakage": list, "cost": dict}
OPTIONAL = {
    **dict.fromkeys(("weights", "environment", "alone", "parties", "model", "budget"), dict),
    **dict.fromkeys(("attacks", "rebuild"), list),
}


@dataclass(frozen=True)
class Run:
    """What a run's folder holds: configuration, result, the values along training and by day, snapshots, embeddings."""

    folder: Path
    config: str
    result: dict[str, Any]
    steps: pa.Table
    snapshots: Mapping[int, Values] = field(default_factory=dict)
    embeddings: Sequence[Embeddings] = ()
    periods: pa.Table = field(default_factory=PERIODS_SCHEMA.empty_table)

    @property
    def name(self) -> str:
        """The folder's name."""
        return self.folder.resolve().name

    @property
    def status(self) -> str:
        """How it ended, such as "finished" or "failed"."""
        return str(self.result.get("status", "finished"))

    @property
    def ended(self) -> bool:
        """Whether it ended by itself; what one measured that failed or was interrupted compares with nothing."""
        return self.status in ENDED

    def curve(self, **keys: str) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
        """Return steps, epochs and values of the rows with these keys, such as ``metric="train_loss"``."""
        table = self.steps
        for column, wanted in keys.items():
            table = table.filter(pc.equal(table[column], wanted))
        return table["step"].to_numpy(), table["epoch"].to_numpy(), table["value"].to_numpy()

    def leak_series(self) -> list[tuple[str, str, str, str]]:
        """Return (attack, party, layer, metric) of each leak AUC along training, the attackers' where there are both.

        The monitor repeats at the label party what an attacker measures at the cut; it stands in where no attacker
        reported.
        """
        columns = ["attack", "party", "layer", "metric"]
        rows = self.steps.select(columns).group_by(columns).aggregate([]).to_pylist()
        found = {tuple(row.values()) for row in rows if row["attack"] and row["metric"] in ("auc", "monitor_auc")}
        return sorted(s for s in found if s[3] == "auc" or (*s[:3], "auc") not in found)

    def parties(self) -> list[str]:
        """Return the feature parties, as the result names them or, where it does not, by their weights."""
        named = self.result.get("parties", {}).get("features")
        weights = self.result.get("weights", {})
        return [str(party) for party in named] if isinstance(named, list) else sorted(weights.keys() - {"label"})


def load_run(folder: Path | str, *, light: bool = False) -> Run:
    """Read a run's folder; with `light` only what is small, no values along training and no embeddings.

    Raises
    ------
    InputError
        Naming the file that is missing or cannot be read, and what is wrong with it.
    """
    folder = Path(folder)
    text = _read(folder / CONFIG)
    try:
        tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{folder / CONFIG} is not valid TOML: {error}") from error
    result = _result(folder / RESULT)
    if light:
        return Run(folder, text, result, SCHEMA.empty_table())
    steps = read_steps(folder)
    return Run(folder, text, result, steps, _snapshots(folder), read_embeddings(folder), read_periods(folder))


def _snapshots(folder: Path) -> dict[int, Values]:
    table = read_snapshots(folder)
    columns = [table[name].to_pylist() for name in ("step", "quantity", "group")]
    values = table["value"].to_numpy()
    positions: dict[tuple[int, str, str], list[int]] = {}
    for position, key in enumerate(zip(*columns, strict=True)):
        positions.setdefault(key, []).append(position)
    found: dict[int, dict[tuple[str, str], NDArray[np.float64]]] = {}
    for (step, quantity, group), rows in sorted(positions.items()):
        found.setdefault(step, {})[quantity, group] = values[rows]
    return dict(found)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(
            f"{path} cannot be read: {error}. A report needs config.toml, result.json, {STEPS}."
        ) from error


def _refuse(path: Path, constant: str) -> NoReturn:
    raise InputError(f"{path} holds {constant}, which is no number of JSON: null stands for what is not known.")


def _result(path: Path) -> dict[str, Any]:
    try:
        result = json.loads(_read(path), parse_constant=partial(_refuse, path))
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(result, dict) or result.get("schema") != 1:
        raise InputError(f'{path} is no result of schema 1: it must be a JSON object with "schema": 1.')
    for key, kind in (SECTIONS | OPTIONAL).items():
        if not isinstance(result.get(key, None if key in SECTIONS else kind()), kind):
            raise InputError(f"{path}: {key!r} is {result.get(key)!r}, a {kind.__name__} is needed.")
    for key in ("defenses", "leakage", "attacks", "rebuild"):
        if not all(isinstance(entry, dict) for entry in result.get(key, [])):
            raise InputError(f"{path}: every entry of {key!r} must be an object.")
    for attack in result.get("attacks", []):
        if not (isinstance(attack.get("needs"), list) and isinstance(attack.get("hints"), int)):
            raise InputError(f"{path}: every entry of 'attacks' must have a list 'needs' and a number 'hints'.")
    _check_leaks(path, result["leakage"])
    _check_budget(path, result.get("budget", {}))
    return result


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


def _check_leaks(path: Path, leakage: Sequence[Mapping[str, Any]]) -> None:
    for entry in filter(is_remembered, leakage):
        epochs, values = entry.get("epochs"), entry.get("values")
        if not (_numbers(epochs, int) and _numbers(values, float | int) and len(epochs) == len(values)):
            raise InputError(
                f"{path}: a remembered leak has a value for each of its epochs; it has {epochs}, {values}."
            )
    for entry in leakage:
        for number in ("q95", "q95_null", "q95_turned", "mean", "max", "detection_error_mean", "detection_error_q05"):
            if not isinstance(entry.get(number), float | int | None):
                raise InputError(f"{path}: {number!r} of a leak is {entry[number]!r}, a number or null is needed.")


def _numbers(value: Any, kind: Any) -> TypeGuard[list[float]]:
    return isinstance(value, list) and all(isinstance(n, kind) and not isinstance(n, bool) for n in value)
