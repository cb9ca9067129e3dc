"""Content of a run's folder, read and checked for a report."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow.compute as pc
from numpy.typing import NDArray

from flower_vfl.apps.folder import CONFIG, ENDED, RESULT, check_is_run, how_to_resume, read_result
from flower_vfl.apps.periods import PERIODS_SCHEMA, read_periods
from flower_vfl.errors import InputError
from flower_vfl.tracking import SCHEMA, STEPS, read_embeddings, read_snapshots, read_steps

if TYPE_CHECKING:
    import pyarrow as pa

    from flower_vfl.metrics import Embeddings, Values


PAGE = "report.html"
"""The file of a run's own report."""


@dataclass(frozen=True)
class Run:
    """Content of a run's folder: configuration, result, the values along training and by day, snapshots, embeddings."""

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
        """Status of its end, such as "finished" or "failed"."""
        return str(self.result.get("status", "finished"))

    @property
    def date(self) -> str:
        """The day, in UTC, on which its result was written."""
        return datetime.fromtimestamp((self.folder / RESULT).stat().st_mtime, UTC).strftime("%Y-%m-%d")

    @property
    def ended(self) -> bool:
        """True if it ended by itself; a run that failed or was interrupted cannot be compared."""
        return self.status in ENDED

    def curve(self, **keys: str) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
        """Return steps, epochs and values of the rows with these keys, such as ``metric="train_loss"``."""
        table = self.steps
        for column, value in keys.items():
            table = table.filter(pc.equal(table[column], value))
        return table["step"].to_numpy(), table["epoch"].to_numpy(), table["value"].to_numpy()

    def leak_series(self) -> list[tuple[str, str, str, str]]:
        """Return (attack, party, layer, metric) of each leak AUC along training.

        The monitor measures at the label party the same AUC as an attacker at the cut; its values are used where no
        attacker reported.
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
    """Return the content of a run's folder; with `light` only its configuration and its result.

    Raises
    ------
    InputError
        When it is no folder of a run that has ended, or a file cannot be read; the message names it and the error.
    """
    folder = Path(folder)
    check_is_run(folder)
    if not (folder / RESULT).exists():
        raise InputError(f"the run in {folder} has not ended: there is no {RESULT} in it; {how_to_resume(folder)}")
    text = _read(folder / CONFIG)
    try:
        tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{folder / CONFIG} is not valid TOML: {error}") from error
    result = read_result(folder)
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
