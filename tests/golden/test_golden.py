"""Recordings are equal whatever the order of their parts, and every difference of a value is listed."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from safetensors.numpy import save_file

from tests.golden.comparing import Meant, differences
from tests.golden.recording import FACTS, GoldenError, record
from tests.golden.values import values_of

LEAK = {"attack": "norm", "label": "norm", "layer": "cut", "party": "a", "source": "monitor", "q95": 0.7, "params": {}}
STEPS = [
    {"step": step, "party": party, "attack": "norm", "metric": "auc", "value": value}
    for step, party, value in ((1, "a", 0.1), (1, "b", math.nan), (2, "a", 0.3), (2, "a", 0.4))
]


def run_folder(folder, *, q95=0.7, steps=STEPS, weight=1.0, backwards=False, seconds=1.0):
    folder.mkdir(parents=True)
    turn = reversed if backwards else iter
    result = {
        "schema": 1,
        "leakage": [*turn([{**LEAK, "q95": q95}, {**LEAK, "party": "b"}])],
        "defenses": [{"name": "iso", "params": {"t": 1.0}}],
        "cost": {"steps": 2, "seconds": seconds, "seconds_wait": seconds},
        "environment": {"torch": str(seconds)},
    }
    (folder / "result.json").write_text(json.dumps(dict(turn([*result.items()]))))
    pq.write_table(pa.Table.from_pylist([*turn(steps)]), folder / "steps.parquet")
    pq.write_table(pa.table({"run": ["a"], "cost/seconds": [seconds]}), folder / "trials.parquet")
    (folder / "weights").mkdir()
    save_file({"top": np.full(3, weight, np.float32)}, folder / "weights" / "label.safetensors")
    return folder


def recording(folder, values, *, name="run", failure="", definition="d", torch="2"):
    folder.mkdir(exist_ok=True)
    (folder / FACTS).write_text(json.dumps({"torch": torch}))
    content = {"run": name, "definition": definition, "failure": failure, "values": values}
    (folder / f"{name}.json").write_text(json.dumps(content))
    return folder


def compared(tmp_path, before, after, meant=None):
    first = recording(tmp_path / "first", before) if isinstance(before, dict) else before
    second = recording(tmp_path / "second", after) if isinstance(after, dict) else after
    return list(differences(first, second, meant or Meant()))


def test_order_and_times_make_no_difference(tmp_path):
    one = values_of(run_folder(tmp_path / "one"))
    other = values_of(run_folder(tmp_path / "other", backwards=True, seconds=2.0))
    assert compared(tmp_path, one, other) == []
    assert not [key for key in one if "seconds" in key or "environment" in key]
    assert "trials/run" in one


@pytest.mark.parametrize(
    ("changed", "key"),
    [
        ({"q95": math.nextafter(0.7, 1)}, "result/leakage/norm,cut,a,monitor/q95"),
        ({"weight": np.nextafter(np.float32(1), np.float32(2))}, "weights/label/top"),
        (
            {"steps": [{**STEPS[0], "value": math.nextafter(0.1, 1)}, *STEPS[1:]]},
            "attack=norm,metric=auc,party=a,step=1",
        ),
        ({"steps": STEPS[1:]}, "attack=norm,metric=auc,party=a,step=1"),
        ({"steps": [*STEPS, STEPS[0]]}, "party=a,step=1"),
        ({"steps": [STEPS[0], {**STEPS[1], "value": 0.5}, *STEPS[2:]]}, "attack=norm,metric=auc,party=b,step=1"),
    ],
    ids=["result", "weights", "value", "row gone", "row twice", "NaN"],
)
def test_one_changed_value_is_one_difference(tmp_path, changed, key):
    before, after = values_of(run_folder(tmp_path / "one")), values_of(run_folder(tmp_path / "other", **changed))
    (line,) = compared(tmp_path, before, after)
    assert line.startswith("run ")
    assert key in line.partition(": ")[0]


def test_whole_numbers_are_no_floats(tmp_path):
    assert compared(tmp_path, {"a": 1}, {"a": 1.0}) == ["run a: 1 -> 1.0"]
    assert compared(tmp_path, {"a": 0.0}, {"a": -0.0}) == ["run a: 0.0 -> -0.0"]


def test_runs_that_failed_or_are_missing_never_pass(tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    recording(first, {"a": 1}, name="gone")
    for folder in (first, second):
        recording(folder, {}, name="broken", failure="no such key")
        recording(folder, {"a": 1}, name="other", definition=folder.name)
    found = compared(tmp_path, first, second)
    assert [line.split(":")[0] for line in found] == ["broken", "broken", "gone", "other"]


def test_recordings_of_two_environments_are_named(tmp_path):
    first, second = (recording(tmp_path / version, {"a": 1}, torch=version) for version in ("2.6", "2.13"))
    (line,) = compared(tmp_path, first, second)
    assert "torch: 2.6 -> 2.13" in line


def test_intended_differences_are_left_out_and_patterns_out_of_date_are_named(tmp_path):
    file = tmp_path / "meant"
    file.write_text("run  a/*  # the solver\n* gone # nothing\n\n# only a comment\nrename remembered longitudinal\n")
    meant = Meant.read(file)
    before = {"a/x": 1, "b": 1, "remembered/z": "remembered"}
    found = compared(tmp_path, before, {"a/x": 2, "b": 2, "longitudinal/z": "longitudinal"}, meant)
    assert found == ["run b: 1 -> 2"]
    assert meant.unused() == ["* gone"]


@pytest.mark.parametrize("line", ["one", "one two three", "rename"])
def test_a_line_of_another_form_is_refused(tmp_path, line):
    (tmp_path / "meant").write_text(f"{line}\n")
    with pytest.raises(GoldenError, match="line 1"):
        Meant.read(tmp_path / "meant")


def test_recordings_are_not_mixed(tmp_path):
    (tmp_path / "old.json").touch()
    with pytest.raises(GoldenError, match="is not empty"):
        record(tmp_path, tmp_path, [])


def test_a_tree_without_the_package_is_not_recorded_as_another(tmp_path):
    (tmp_path / "tree").mkdir()
    with pytest.raises(GoldenError, match="holds no"):
        record(tmp_path / "tree", tmp_path / "out", [])


WEAKER = """
from torch.nn import functional

def changed(*arguments, real=functional.binary_cross_entropy_with_logits, **options):
    return real(*arguments, **options) * (1 - 1e-6)

functional.binary_cross_entropy_with_logits = changed
"""


@pytest.mark.slow
def test_a_changed_formula_is_found(tmp_path):
    root, tree = Path(__file__).resolve().parents[2], tmp_path / "tree"
    for folder in ("flower_vfl", "strategies", "simulations", "src"):
        shutil.copytree(root / folder, tree / folder, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    (tree / "src" / "sitecustomize.py").write_text(WEAKER)
    out = {"before": root, "after": tree}
    for name, version in out.items():
        assert record(version, tmp_path / name, ["iso"], jobs=1) == []
    found = list(differences(tmp_path / "before", tmp_path / "after", Meant()))
    assert any(line.startswith("iso weights/") for line in found)
    assert not any("leakage" in line and "/steps:" in line for line in found)  # as many steps were scored
