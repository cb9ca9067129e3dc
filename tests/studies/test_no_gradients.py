"""The tables of the page on training without gradients, studies/no_gradients/study.py, on known results."""

import json

import pytest

from flower_vfl.config import load_config

pytestmark = pytest.mark.usefixtures("beside_the_studies")


def test_settings_are_configurations_that_differ_as_their_names_say():
    from studies.no_gradients import study

    for preset, epochs in study.PRETRAIN.items():
        found = {
            setting: load_config(preset, study.settings_of(preset, setting, 1, quick=False))
            for setting in study.SETTINGS
        }
        assert {name for name, config in found.items() if config.training.pretrain} == {
            "no-gradients-pre",
            "local-head-pre",
        }
        assert {name for name, config in found.items() if not config.training.gradients} == {
            "no-gradients",
            "no-gradients-pre",
        }
        assert {config.training.epochs for config in found.values()} == {epochs}
        assert found["local-head"].defenses == [{"name": "local_head", "epsilon": 1.0}]


def test_the_page_has_each_seed_and_the_mean(tmp_path):
    from studies.no_gradients import study

    for seed, auc in ((0, 0.9), (1, 0.92)):
        folder = tmp_path / "runs" / "census" / "no-gradients-pre" / f"seed-{seed}"
        folder.mkdir(parents=True)
        last = {"validation_auc": 0.5, "test_auc": auc}
        (folder / "result.json").write_text(json.dumps({"environment": {"seed": seed}, "utility": {"last": last}}))
    page = tmp_path / "no-gradients.md"
    page.write_text("<!-- begin census -->\n<!-- end census -->\n")
    study.make_page(tmp_path / "runs", tmp_path)
    assert "| no gradients, pre-trained | 0, 1 | 0.9000, 0.9200 | 0.9100 ± 0.1271 |" in page.read_text()
