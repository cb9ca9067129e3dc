"""Data of three parties shaped like the census: numbers, categories, IDs; each part in a folder of its own."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pytest

from flower_vfl.data.sources.catalog import prepare
from flower_vfl.data.store.parts import write_part
from tests.deployment.hosts import deployed

SEED = 3


def write_parts(root, rows=1200, seed=0):
    """Prepare data of the shop, the club and the bank, which has the label, and write each part; return the folder."""
    rng = np.random.default_rng(seed)
    ids = [f"p{number:05}" for number in range(rows)]
    age, wage, savings = rng.normal(size=(3, rows))
    job = rng.choice(["none", "clerk", "nurse", "farmer"], rows)
    region = rng.choice(["north", "south", "west"], rows)
    label = (age + wage + savings + (job == "nurse") + (region == "west") > 1.2).astype(int)
    tables = {
        "shop": {"id": ids, "age": age, "job": job},
        "club": {"id": ids, "wage": wage, "region": region},
        "bank": {"id": ids, "savings": savings, "label": label},
    }
    (root / "raw").mkdir(parents=True)
    for party, table in tables.items():
        pa_csv.write_csv(pa.table(table), root / "raw" / f"{party}.csv")
    options = {"files": {party: f"{party}.csv" for party in tables}}
    prepare("files", source=root / "raw", out=root / "whole", options=options)
    for party in tables:
        write_part(root / "whole", party, root / party)
    return root


@pytest.fixture(scope="session")
def parts(tmp_path_factory):
    return write_parts(tmp_path_factory.mktemp("parts"))


def feature_parts(parts):
    return {"shop": parts / "shop", "club": parts / "club"}


@pytest.fixture(scope="module")
def hosts(parts, tmp_path_factory):
    """One deployment for all tests of a module that leave it as it was."""
    with deployed(tmp_path_factory.mktemp("hosts"), parts / "bank", feature_parts(parts), seed=SEED) as hosts:
        yield hosts
