"""Runs of the demo, and settings that it refuses."""

import pytest

from flower_vfl.config.schema import AttackConfig
from flower_vfl.errors import ConfigError
from flower_vfl.simulations.demo.plan import BASELINE, FIRST_RUNS, PROOF, SHORT_EPOCHS, demo_configs


def test_the_first_two_runs_are_undefended_and_recommended_with_equal_settings():
    configs = demo_configs({})
    assert tuple(configs)[:2] == FIRST_RUNS
    first, second = (configs[name] for name in FIRST_RUNS)
    assert [defense["name"] for defense in first.defenses] == []
    assert [defense["name"] for defense in second.defenses] == ["local_head"]
    assert first.model_copy(update={"defenses": second.defenses, "training": second.training}) == second
    assert first.training.model_copy(update={"patience": 0}) == second.training
    assert {(*(d["name"] for d in config.defenses),) for config in configs.values()} == {
        *((name,) for name in ("marvell_full", "local_head", "marvell", "max_norm", "iso")),
        (),
    }


def test_labels_end_neither_the_run_with_a_proof_nor_the_one_without_gradients():
    configs = demo_configs({"training.patience": "2", "attack.max_leak": "0.9"})
    ends = {name: (config.training.patience, config.attack.max_leak) for name, config in configs.items()}
    assert {name for name, end in ends.items() if end == (0, 1.0)} == {PROOF, BASELINE}
    assert set(ends.values()) == {(0, 1.0), (2, 0.9)}
    assert [defense["name"] for defense in configs[PROOF].defenses] == ["local_head"]


def test_full_runs_are_the_presets_and_have_more_attacks_than_every_run_has():
    assert demo_configs({}).keys() < demo_configs({}, full=True).keys()
    short, full = demo_configs({})["none"], demo_configs({}, full=True)["none"]
    assert short.training.epochs < full.training.epochs == 6
    assert short.attack.names == AttackConfig().names
    assert {*short.attack.names, "cosine", "model_completion(k=1)", "embedding_reader(reader=linear,k=16)"} <= {
        *full.attack.names
    }
    assert len(set(full.attack.names)) == len(full.attack.names)


def test_given_settings_hold_for_every_run():
    configs = demo_configs({"seed": "3", "training-epochs": "1", "training.refit": "2"})
    assert {(config.seed, config.training.epochs) for config in configs.values()} == {(3, 1)}
    assert {name: config.training.refit for name, config in configs.items()} == {
        **dict.fromkeys(configs, 2),
        BASELINE: 0,
    }


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"defenses": "max_norm"}, "--set defenses has no effect"),
        ({"training.gradients": "false"}, "--set training.gradients has no effect"),
        ({"align-method": "hash"}, "--set align.method has no effect"),
        ({"attack.rebuilt": "0.5"}, "without --full"),
        ({"transport.port": "9000"}, "--set transport.port has no effect"),
        ({"metrics_port": "9000"}, "one port cannot serve"),
        ({"nonsense": "1"}, "nonsense"),
    ],
)
def test_a_setting_that_would_have_no_effect_is_refused(given, words):
    with pytest.raises(ConfigError, match=words):
        demo_configs(given)


def test_settings_of_a_network_are_accepted_where_the_transport_is_one():
    given = {"transport.kind": "stream", "transport.step_timeout": "5", "transport.rejoin_timeout": "5"}
    assert demo_configs(given)["none"].transport.rejoin_timeout == 5.0


def test_a_setting_of_rebuilt_models_is_taken_where_models_are_rebuilt():
    assert demo_configs({"attack.rebuilt": "0.5"}, full=True)["none"].attack.rebuilt == 0.5


def test_the_baseline_sends_no_gradient_and_is_in_every_demo():
    for given, full in (({}, False), ({"attack.max_leak": "0.7", "training.pretrain": "1"}, True)):
        configs = demo_configs(given, full=full)
        without_gradients = {name for name, config in configs.items() if not config.training.gradients}
        assert without_gradients == {BASELINE}
        assert configs[BASELINE].training.pretrain == int(given.get("training.pretrain", SHORT_EPOCHS))
        assert configs[BASELINE].training.epochs == configs["none"].training.epochs
