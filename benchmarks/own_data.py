"""(aa) Utility of the default configuration on tables for which it was not tuned, against scikit-learn.

Six tables as CSVs, prepared like a user's own files, trained with nothing set but the seed. They are compared with
gradient boosting (`HistGradientBoostingClassifier` with its defaults) on the joined table and on each party's columns
alone, on the same rows. AUC for two classes, accuracy for more; no choice uses the test rows, a fifth.

`tables.py` has the sources; FATE's public examples are a folder with `default_credit_hetero_guest.csv`,
`..._host.csv` and `vehicle_scale_hetero_*.csv`, named by `--fate`. `--quick` and missing sources leave tables out,
which the JSON line lists. `--more` takes the further tables there instead; each seed then has test rows of its own.

With `--tune MINUTES` each table is searched as by `flower-vfl tune` instead, and the chosen trial's test is compared.
`--set KEY=VALUE` changes a setting, without `--tune`.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from harness import parser, report
from tables import Table, more, six

from flower_vfl.apps import run
from flower_vfl.config import build_config
from flower_vfl.config.parsing import written
from flower_vfl.data.sources.catalog import load

TARGET = 0.01
ENOUGH = 4
SEEDS = 3


def parties_of(table: Table) -> dict[str, list[str]]:
    """Return the columns of each party; the last one holds the labels."""
    parts = table.parties
    if isinstance(parts, int):
        parts = [list(part) for part in np.array_split(np.array(list(table.frame), dtype=object), parts)]
    return dict(zip("abcdefgh", parts, strict=False))


def prepared(table: Table, folder: Path, split: int) -> Any:
    """Write a CSV a party, and prepare them as `flower-vfl data prepare files` does, with this draw of test rows."""
    parties = parties_of(table)
    for name, columns in parties.items():
        part = table.frame[columns].copy()
        part.insert(0, "id", np.arange(len(part)))
        if name == list(parties)[-1]:
            part["label"] = table.label.to_numpy()
        part.to_csv(folder / f"{name}.csv", index=False)
    files = {name: str(folder / f"{name}.csv") for name in parties}
    options = {"files": files, "missing": "mean", "split_seed": split}
    return load("files", cache=folder / "prepared", options=options)


def measure(scores: Any, truth: Any) -> float:
    """Return the AUC for two classes, the accuracy for more."""
    from sklearn.metrics import roc_auc_score

    if scores.shape[1] == 2:
        return float(roc_auc_score(truth, scores[:, 1]))
    return float((scores.argmax(axis=1) == truth).mean())


def boosted(table: Table, columns: list[str], train: Any, test: Any) -> float:
    """Return the AUC or accuracy of gradient boosting on these columns."""
    from sklearn.ensemble import HistGradientBoostingClassifier
    from sklearn.preprocessing import OrdinalEncoder

    frame = table.frame[columns].copy()
    texts = [name for name in columns if not np.issubdtype(np.asarray(frame[name]).dtype, np.number)]
    if texts:
        encoder = OrdinalEncoder(
            handle_unknown="use_encoded_value", unknown_value=np.nan, encoded_missing_value=np.nan, max_categories=200
        )
        values = frame[texts].astype(object).where(frame[texts].notna(), None)
        frame[texts] = encoder.fit(values.iloc[train]).transform(values)
    _, truth = np.unique(table.label, return_inverse=True)
    model = HistGradientBoostingClassifier(random_state=0, categorical_features=[name in texts for name in columns])
    model.fit(frame.iloc[train].to_numpy(float), truth[train])
    return measure(model.predict_proba(frame.iloc[test].to_numpy(float)), truth[test])


def federated(data: Any, seed: int, settings: dict[str, str]) -> tuple[float, float]:
    """Train with the defaults except these settings; return the AUC or accuracy on the test rows, and the seconds."""
    began = time.perf_counter()
    config = build_config({"seed": seed, "attack": {"names": [], "informed": 0}}, settings)
    result = run(config, data=lambda _: data)
    kept = result.summary["utility"]
    reached = kept.get("best", kept["last"])
    name = "test_auc" if data.classes == 2 else "test_accuracy"
    return float(reached[name]), time.perf_counter() - began


def searched(folder: Path, minutes: float, classes: int) -> dict[str, Any]:
    """Search as `flower-vfl tune` does; return the test of the chosen trial, and the number of settings that ended."""
    from flower_vfl.simulations.sweep.search import run_tune

    (prepared_folder,) = (path.parent for path in (folder / "prepared").glob("*/manifest.json"))
    tuned = run_tune(str(prepared_folder), folder / "tuned", {}, minutes=minutes, trials=48)
    return {
        "tuned": round(tuned.test["test_auc" if classes == 2 else "test_accuracy"], 4),
        "changed": {key: written(value) for key, value in tuned.values.items()},
        "ended": len(tuned.scores),
        "tried": tuned.tried,
    }


def compare(table: Table, splits: list[int], seeds: int, settings: dict[str, str]) -> dict[str, Any]:
    """Compare the federation with gradient boosting, joined and of each party alone, on each draw of test rows."""
    runs, joined, alone = [], [], []
    for split in splits:
        with tempfile.TemporaryDirectory() as folder:
            data = prepared(table, Path(folder), split)
            runs += [federated(data, split + seed, settings) for seed in range(seeds)]
            everywhere, best = boosting(table, data)
        joined.append(everywhere)
        alone.append(best)
    values = [reached for reached, _ in runs]
    return {
        "rows": len(table.frame),
        "measure": "auc" if data.classes == 2 else "accuracy",
        "federation": round(statistics.mean(values), 4),
        "seeds": [round(value, 4) for value in values],
        "seconds": round(statistics.median(seconds for _, seconds in runs), 1),
        "joined": round(statistics.mean(joined), 4),
        "best alone": round(statistics.mean(alone), 4),
    }


def tuned(table: Table, minutes: float) -> dict[str, Any]:
    """Compare the choice of a search with gradient boosting, joined and of each party alone."""
    with tempfile.TemporaryDirectory() as folder:
        data = prepared(table, Path(folder), 0)
        found = searched(Path(folder), minutes, data.classes)
        joined, alone = boosting(table, data)
    return {
        "rows": len(table.frame),
        "measure": "auc" if data.classes == 2 else "accuracy",
        **found,
        "joined": round(joined, 4),
        "best alone": round(alone, 4),
    }


def boosting(table: Table, data: Any) -> tuple[float, float]:
    """Return the AUC or accuracy of gradient boosting on the joined table, and on the columns of the best party."""
    rows = {part: np.array(list(data.ids(part)), dtype=np.int64) for part in ("train", "test")}
    alone = [boosted(table, columns, rows["train"], rows["test"]) for columns in parties_of(table).values()]
    return boosted(table, list(table.frame), rows["train"], rows["test"]), max(alone)


def main() -> None:
    """Measure and report."""
    options = parser(__doc__)
    options.add_argument("--fate", type=Path, help="folder of FATE's public examples")
    options.add_argument("--only", nargs="+", help="these tables alone")
    options.add_argument("--tune", type=float, metavar="MINUTES", help="search each table for so long")
    options.add_argument("--more", action="store_true", help="further tables, each with three draws of test rows")
    options.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE", help="settings, without --tune")
    given = options.parse_args()
    settings = dict(entry.split("=", 1) for entry in given.set)
    if settings and given.tune is not None:
        options.error("--set has no effect on a search: leave out --set or --tune")
    found: dict[str, dict[str, Any]] = {}
    missing = []
    for name, source in (more() if given.more else six(given.fate)).items():
        if (given.only and name not in given.only) or (given.quick and name != "breast cancer"):
            continue
        try:
            table = source()
        except (ImportError, OSError) as error:
            missing.append(f"{name}: {error}")
            continue
        if given.tune is not None:
            found[name] = tuned(table, given.tune)
        elif given.more:
            found[name] = compare(table, list(range(SEEDS)), 1, settings)
        else:
            found[name] = compare(table, [0], 1 if given.quick else SEEDS, settings)
        print(name, written_line(found[name]), flush=True)
    if not found:
        raise SystemExit(f"no table to measure: {'; '.join(missing) or 'none has a name that was given'}")
    ours = "federation" if given.tune is None else "tuned"
    gaps = [entry[ours] - entry["joined"] for entry in found.values()]
    if given.tune is None:
        target = (
            f"on average at most {TARGET} below gradient boosting on the joined table, nowhere below the best party"
        )
        met = {
            "average": statistics.mean(gaps) >= -TARGET,
            "never below alone": all(entry[ours] >= entry["best alone"] for entry in found.values()),
        }
    else:
        target = f"at or above gradient boosting on the joined table on at least {ENOUGH}"
        met = {"at or above": sum(gap >= 0 for gap in gaps) >= ENOUGH}
    report(
        "own_data",
        target=target,
        met=met,
        quick=given.quick,
        gap=round(statistics.mean(gaps), 4),
        tables=found,
        missing=missing,
    )


def written_line(entry: dict[str, Any]) -> str:
    """Return an entry as a readable line."""
    return ", ".join(f"{key} {written(value)}" for key, value in entry.items())


if __name__ == "__main__":
    main()
