"""The tables of the page on label privacy with a proof, studies/proof/study.py, on known results."""

import json
import shutil

import pytest

from flower_vfl.config import load_config

pytestmark = pytest.mark.usefixtures("beside_the_studies")


def result(seed, auc, **more):
    party = {
        "leak": {"informed": {"reached": 0.9}, "practical": {"reached": 0.8}},
        "gain": {"baseline": 0.87, "value": 0.03},
    }
    entry = {"environment": {"seed": seed}, "utility": {"last": {"test_auc": auc}}, "defenses": []}
    return {**entry, "verdict": {"parties": [party]}, **more}


def write(folder, results):
    for one in results:
        run = folder / f"seed-{one['environment']['seed']}"
        run.mkdir(parents=True)
        (run / "result.json").write_text(json.dumps(one))


def test_a_claim_with_fewer_than_all_seeds_is_undecided_and_shows_their_number(tmp_path):
    from studies.proof import study

    runs = tmp_path / "runs" / "census"
    noise = (0.0, 0.0002, -0.0002, 0.0, 0.0)
    write(runs / "none", [result(seed, 0.93) for seed in range(5)])
    write(runs / "randomised_response-1", [result(seed, 0.929 + noise[seed]) for seed in range(5)])
    write(runs / "prior-1", [result(seed, 0.92) for seed in range(4)])
    write(runs / "no_gradients", [{**result(0, 0.92), "baseline": "no_gradients", "verdict": {"parties": []}}])
    page = tmp_path / "proof.md"
    marks = ("trade-off", "mechanisms", "claims")
    page.write_text("".join(f"<!-- begin census {name} -->\n<!-- end census {name} -->\n" for name in marks))
    study.make_page(tmp_path / "runs", tmp_path)
    text = page.read_text()
    assert "`randomised_response-1` costs at most .003 of test AUC | holds | -0.0010 ± 0.0002, 5 seeds |" in text
    assert (
        "`prior-1` has a higher test AUC than `randomised_response-1` | undecided | -0.0090 ± 0.0003, 4 seeds |" in text
    )
    assert "`randomised_response-1` has a higher test AUC than `no_gradients` | undecided | +0.0090, 1 seed |" in text
    assert "| `no_gradients` |  |  | 1 | 0.9200 | -0.0100 |  |  |  |  |" in text


def test_settings_are_configurations_and_pre_training_on_census_is_as_long_as_training():
    from studies.proof import study

    by_study = {
        name: {setting: load_config(base, more) for setting, more in study.SETTINGS.items()}
        for name, base in study.STUDIES.items()
    }
    found, on_credit = by_study["census"], by_study["credit"]
    assert (on_credit["none"].data.name, on_credit["none"].training.epochs) == ("files", 6)
    trained = {name for name, config in found.items() if config.training.pretrain == config.training.epochs}
    assert trained == {
        "no_gradients",
        *(f"pretrained-{epsilon}" for epsilon in ("0.5", "1", "2", "8")),
        *(f"refitted-{epsilon}" for epsilon in ("0.5", "1", "2")),
        "pretrained_posterior-1",
    }
    assert [name for name, config in found.items() if not config.training.gradients] == ["no_gradients"]
    assert {name for name, config in found.items() if config.training.refit == config.training.epochs} == {
        "refitted_none",
        *(f"refitted-{epsilon}" for epsilon in ("0.5", "1", "2")),
    }
    assert found["refitted-2"].defenses == found["pretrained-2"].defenses == found["randomised_response-2"].defenses


def test_a_seed_without_a_run_keeps_its_numbers_and_a_new_run_replaces_them(tmp_path):
    from studies.proof import study

    runs, page = tmp_path / "runs" / "census", tmp_path / "proof.md"
    for folder, auc in ((runs / "none", 0.93), (runs / "prior-1", 0.92)):
        write(folder, [result(seed, auc) for seed in range(2)])
    study.make_page(tmp_path / "runs", tmp_path)
    shutil.rmtree(runs)
    write(runs / "prior-1", [result(seed, 0.91) for seed in (1, 2)])
    study.make_page(tmp_path / "runs", tmp_path)
    settings = json.loads(page.with_suffix(".json").read_text())["census"]["settings"]
    assert settings["none"]["test_auc"] == [0.93, 0.93]
    assert (settings["prior-1"]["seeds"], settings["prior-1"]["test_auc"]) == ([0, 1, 2], [0.92, 0.91, 0.91])
