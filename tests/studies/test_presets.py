"""The numbers of the page on presets, studies/presets/study.py, on known results."""

import json

import pytest

from flower_vfl.config import load_config, preset_names

pytestmark = pytest.mark.usefixtures("beside_the_studies")


def result(seed, auc, leak, **more):
    entry = {"label": "norm", "layer": "cut", "party": "a", "source": "attacker", "phase": "train"}
    entries = [
        {**entry, "q95": leak, "q95_null": 0.55, "mean": 0.1},
        {**entry, "source": "monitor", "q95": 0.0, "q95_null": 0.0, "mean": 0.0},
        {**entry, "label": "clustering", "phase": "inference", "q95": 0.9, "mean": leak / 2, "baseline": 0.3},
    ]
    return {
        "dataset": {"name": "census-income", "rows": 1000, "test_rows": 500},
        "environment": {"seed": seed},
        "utility": {"last": {"test_auc": auc, "test_loss": 0.5, "test_accuracy": 0.9}},
        "leakage": entries,
        "cost": {"seconds": 60.0 * (seed + 1)},
        **more,
    }


def test_every_small_preset_has_a_twin_and_its_changes_are_valid_keys():
    from studies.presets import study as presets

    small = {name for name in preset_names() if name.endswith("-small")}
    assert set(presets.TWINS) == small
    for name, twin in presets.TWINS.items():
        assert twin.paper == name.removesuffix("-small")
        load_config(name, presets.settings_of(name, 0, quick=True))
        same = load_config(name, twin.changed).data.name == load_config(twin.paper).data.name
        assert (twin.data == presets.REAL) == same


def test_a_row_has_means_over_seeds_chance_levels_and_the_quickest_run(tmp_path):
    from studies.presets import study as presets

    for seed, auc, leak in ((0, 0.7, 0.8), (1, 0.8, 1.0)):
        folder = tmp_path / "criteo-small" / "undefended" / f"seed-{seed}"
        folder.mkdir(parents=True)
        (folder / "result.json").write_text(json.dumps(result(seed, auc, leak)))
    half_written = tmp_path / "criteo-small" / "undefended" / "seed-2.part"
    half_written.mkdir()
    (half_written / "result.json").write_text("{}")
    found = presets.collect(tmp_path)
    assert list(found) == ["criteo-small"]
    row = presets.twin_table(found).splitlines()[-1]
    assert "| census-income: stand-in | 1,000 + 500 | 0, 1 | auc 0.7500" in row
    assert "norm at cut 0.900" in row
    assert "(0.550); clustering at cut 0.450" in row
    assert row.endswith("(0.300) | 1.0 |")
    assert "next day" not in row


def test_the_mean_over_days_is_shown_where_a_run_has_days():
    from studies.presets import study as presets

    days = presets.numbers([result(0, 0.7, 0.8, periods={"mean": {"auc": 0.61}})])
    assert "AUC of the next day, mean over days 0.6100" in presets.twin_table({"avazu-days-small": days})
