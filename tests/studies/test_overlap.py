"""The numbers of the page on limited overlap, studies/overlap/study.py, on known results."""

import json

import pytest

from flower_vfl.config import load_config

pytestmark = pytest.mark.usefixtures("beside_the_studies")

AUCS = {"off-5": (0.90, 0.91), "on-5": (0.92, 0.93), "off-100": (0.93, 0.94), "off-1": (0.80,), "on18-5": (0.85,)}
VALIDATED = {"on18-5": 0.6}


def test_settings_differ_in_overlap_and_pre_training_alone():
    from studies.overlap import study

    found = {name: load_config("census", study.settings_of(name, 1, quick=False)) for name in study.SETTINGS}
    assert {name for name, config in found.items() if config.training.pretrain} == {
        *("on-1", "on-5", "on-20", "on-100", "on18-5", "on36-5")
    }
    assert [found[name].training.pretrain for name in ("on-5", "on18-5", "on36-5")] == [6, 18, 36]
    assert found["off-5"].data.options["overlap"] == found["on-5"].data.options["overlap"] == 0.05
    assert {config.training.ends_early for config in found.values()} == {True}


def test_the_page_has_the_gain_and_the_recovered_share_of_each_seed(tmp_path):
    from studies.overlap import study

    for setting, aucs in AUCS.items():
        for seed, auc in enumerate(aucs):
            folder = tmp_path / "runs" / "census" / setting / f"seed-{seed}"
            folder.mkdir(parents=True)
            kept = {"validation_auc": VALIDATED.get(setting, 0.5), "test_auc": auc}
            utility = {"last": dict.fromkeys(kept, 0.0), "best": kept}
            (folder / "result.json").write_text(json.dumps({"environment": {"seed": seed}, "utility": utility}))
    page = tmp_path / "overlap.md"
    blocks = ("census", "passes", "claims")
    page.write_text("".join(f"<!-- begin {name} -->\n<!-- end {name} -->\n" for name in blocks))
    study.make_page(tmp_path / "runs", tmp_path)
    text = page.read_text()
    assert "| 5 % | 0.9050 ± 0.0635 | 0.9250 ± 0.0635 | 0.0200 ± 0.0000; +0.0200 to +0.0200 |" in text
    assert "| at 5 %, at least half of the distance to all rows is recovered | holds | 0.67 ± 0.00; each" in text
    assert "| 1 % | 0.8000 | not run |  |" in text
    assert "| 6 | 1 | 0.5000 | 0.5000 |  |" in text  # one seed has both, and 18 passes validate better
    assert "| 18 | 1 | 0.6000 | 0.6000 | 0.8500 |" in text
    assert "at 1 %" not in text
    assert "20 %" not in text
