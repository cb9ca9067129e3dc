"""The table and the summary that a sweep writes."""

import json

import pyarrow.parquet as pq
import pytest

from flower_vfl.config import to_toml
from flower_vfl.simulations.sweep.definition import load_definition
from flower_vfl.simulations.sweep.folder import SweepFolder
from flower_vfl.simulations.sweep.results import write_results
from flower_vfl.simulations.sweep.trials import trials_of

RESULT = {
    "schema": 1,
    "status": "finished",
    "error": "",
    "dataset": {},
    "defenses": [{"name": "max_norm", "params": {}}],
    "utility": {"last": {"test_auc": 0.9, "epoch": 3}, "best": {"test_auc": 0.95, "epoch": 2}},
    "leakage": [
        *(
            {"attack": "norm", "label": "norm", "metric": "auc", "phase": "train", "source": "attacker", "q95": q95}
            | {"defended": defended, "party": "a", "layer": "cut", "mean": None}
            for defended, q95 in ((True, 0.6), (False, 0.99))
        ),
    ],
    "cost": {"steps": 12, "seconds": 1.5},
}


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "sweep.toml"
    path.write_text('[grid]\nseed = [0, 1, 2]\nmodel.bottom = [[8]]\ndefenses = ["max_norm", "none"]', encoding="utf8")
    trials = trials_of(load_definition(str(path)))
    with SweepFolder(tmp_path / "out", "", trials) as made:
        place = made.of(trials[0])
        place.mkdir()
        (place / "config.toml").write_text(to_toml(trials[0].config))
        (place / "result.json").write_text(json.dumps(RESULT))
        yield made


def test_the_table_has_a_row_a_trial_with_all_that_was_measured(folder):
    failed = folder.trials[2].run
    for run in (failed, folder.trials[0].run, failed):
        folder.begun(run)
    write_results(folder, {failed: "ValueError: no"})
    table = pq.read_table(folder.path / "trials.parquet")
    rows = {row["run"]: row for row in table.to_pylist()}
    first = rows[folder.trials[0].run]
    assert len(rows) == 6
    assert {key: first[key] for key in ("status", "seed", "schedule_seed", "defenses", "attempts")} == {
        "status": "finished",
        "seed": 0,
        "schedule_seed": 0,
        "defenses": "max_norm",
        "attempts": 1,
    }
    assert (first["last/test_auc"], first["best/test_auc"], first["cost/steps"], first["cost/seconds"]) == (
        0.9,
        0.95,
        12,
        1.5,
    )
    assert first["leak/train/attacker/a/cut/norm/auc/q95"] == 0.6
    assert first["leak/clean/train/attacker/a/cut/norm/auc/q95"] == 0.99
    assert (rows[failed]["status"], rows[failed]["error"], rows[failed]["attempts"]) == ("failed", "ValueError: no", 2)
    other = rows[folder.trials[1].run]
    assert (other["status"], other["attempts"]) == ("not run", 0)
    assert "model.bottom" not in table.column_names


def test_the_summary_is_the_list_of_the_results_that_there_are(folder):
    expected = [{"run": folder.trials[0].run, **RESULT}]
    assert write_results(folder) == expected
    assert json.loads((folder.path / "summary.json").read_text()) == expected


def test_a_result_that_is_damaged_is_left_out(folder):
    (folder.of(folder.trials[0]) / "result.json").write_text("{")
    assert write_results(folder) == []
