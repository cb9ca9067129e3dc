"""A comparison judges the seeds of a setting together."""

import json

from flower_vfl.reports.comparison import of_several
from flower_vfl.reports.run import load_run
from tests.auditing.test_verdict import complete, informed, step, verdict
from tests.reports.conftest import write_run

DEFENSE = {"name": "marvell_full", "params": {"s": 4.0}, "read_by": []}


def choice(tmp_path, *leakages):
    """Return the recommendation among runs of one setting that differ in their seeds, by their leakage entries."""
    runs = []
    for seed, leakage in enumerate(leakages):
        folder = write_run(tmp_path / f"seed-{seed}", defenses=[DEFENSE], parties=("a",), steps=60, seed=seed)
        result = json.loads((folder / "result.json").read_text())
        (folder / "result.json").write_text(
            json.dumps({**result, "leakage": list(leakage), "weights": {"a": str(seed)}})
        )
        runs.append(load_run(folder))
    return of_several(runs, tmp_path)["choice"]


def test_a_run_is_not_recommended_where_another_seed_of_its_setting_leaks(tmp_path):
    clean = choice(tmp_path / "clean", complete(), complete())
    assert clean.headline.startswith("Recommended: ")
    mixed = choice(tmp_path / "mixed", complete(), complete(step("norm", 0.99)))
    assert "Recommended" not in mixed.headline
    assert mixed.tone == "bad"


def test_a_run_that_leaks_by_itself_is_not_recommended_beside_clean_seeds(tmp_path):
    """One p-value rejects for a run alone, and not among two seeds."""
    weak = informed(0.55, 0.045 / 7)
    (status,) = {verdict(*complete(weak))["status"]}
    assert status == "leaks"
    found = choice(tmp_path, complete(weak), complete())
    assert found.row["run"].name == "seed-1"
