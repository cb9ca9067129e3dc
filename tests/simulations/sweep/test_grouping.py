"""Groups of trials that can be trained together, and obstacles of the others."""

import pytest

from flower_vfl.attacks import NOTHING, Attack, RowAttack
from flower_vfl.config import Config, build_config, leaf_paths
from flower_vfl.simulations.sweep.definition import load_definition
from flower_vfl.simulations.sweep.grouping import NO_GROUP, SERVES, TAKES, VARIES, groups, obstacle
from flower_vfl.simulations.sweep.trials import trials_of
from flower_vfl.strategies import Iso

FIXED = {"training": {"epochs": 3}}  # otherwise validation ends a run, and each has an end of its own

SWEEP = """
[set]
data.name = "toy-gap"
training.epochs = 2
[grid]
seed = [0, 1]
training.batch_size = [100, 200]
defenses = ["none", { name = "iso", t = [1.0, 4.0] }, "label_dp(flip=0.02)"]
"""


def test_trials_that_differ_in_seed_defense_or_strength_are_one_group(tmp_path):
    path = tmp_path / "sweep.toml"
    path.write_text(SWEEP, encoding="utf8")
    found = groups(trials_of(load_definition(str(path))))
    together = [group for group in found if not group.reason]
    assert [len(group.trials) for group in together] == [6, 6]
    assert [{trial.config.training.batch_size for trial in group.trials} for group in together] == [{100}, {200}]
    assert {group.reason for group in found} == {"", "label_dp is no defense of gradients alone"}
    assert sum(len(group.trials) for group in found) == 16


def test_a_trial_that_shares_with_none_is_alone(tmp_path):
    path = tmp_path / "sweep.toml"
    path.write_text("[set]\ntraining.epochs = 2\n[grid]\ntraining.batch_size = [100, 200]\n", encoding="utf8")
    assert [group.reason for group in groups(trials_of(load_definition(str(path))))] == [NO_GROUP, NO_GROUP]


class Peak(RowAttack):
    """Scores each example by the largest entry of its gradient."""

    name = "peak"

    def rate(self, rows, known):
        """Return the largest entries."""
        return rows.abs().amax(dim=-1)


class Squared(Peak):
    """Scores a step by the squares."""

    name = "squared"

    def score(self, transcript, layer, side=NOTHING):
        """Return the squares."""
        return super().score(transcript, layer, side) ** 2


class Groups(Peak):
    """Returns groups."""

    name, reads = "groups", "clusters"


class Labelled(Peak):
    """Knows labels."""

    name, needs = "labelled", frozenset({"labels"})


class Predicting(Iso):
    """Predicts from the embeddings alone."""

    name = "predicting"

    def predict(self, z):
        """Return their sums."""
        return z.sum(dim=1)


class OneByOne(Attack):
    """Scores as `Peak` does, one run at a time."""

    name = "one_by_one"
    score = Peak.score
    rate = Peak.rate


OWN = "tests.simulations.sweep.test_grouping"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"training.patience": 2}, "training.patience is set"),
        ({"training.epochs": "auto"}, "a run may end early: set training.epochs to a number"),
        ({"training.clip_norm": 1.0}, "training.clip_norm is set"),
        ({"training.order": "time", "training.epochs": 1, "training.validation": 0.0}, "training.order"),
        ({"attack.max_leak": 0.9}, "attack.max_leak is set"),
        ({"attack.max_bound": 0.9}, "attack.max_bound is set"),
        ({"attack.audit": False}, "attack.audit"),
        ({"checkpoint.every": 10}, "checkpoint.every is set"),
        ({"checkpoint.every": -1}, "checkpoint.every is set"),
        ({"transport.kind": "stream"}, "transport.kind is set"),
        ({"transport.in_flight": 2}, "transport.in_flight is set"),
        ({"model.embedding_device": "cpu", "device": "cuda"}, "model.embedding_device"),
        ({"sinks": ["wandb"]}, "sinks is set"),
        ({"metrics_port": 9100}, "metrics_port is set"),
        ({"precision": "bfloat16"}, "precision is set"),
        ({"training.pretrain": 1}, "training.pretrain is set"),
        ({"training.gradients": False}, "training.gradients is set"),
        ({"attack.canaries": 8}, "attack.canaries is set"),
        ({"privacy.ledger": "ledger.json"}, "privacy.ledger is set"),
        ({"attack.names": ["norm", "spectral"]}, "spectral is no RowAttack, which scores many runs at once"),
        ({"attack.names": [f"{OWN}:OneByOne"]}, "one_by_one is no RowAttack, which scores many runs at once"),
        *(
            ({"attack.names": [f"{OWN}:{name}"]}, f"{name.lower()} scores a step in other ways than by `rate`")
            for name in ("Squared", "Groups", "Labelled")
        ),
        ({"defenses": f"{OWN}:Predicting"}, "predicting is no defense of gradients alone"),
        ({"attack.names": ["nrom"]}, "nrom"),
        ({"defenses": "potential_energy"}, "potential_energy is no defense of gradients"),
        ({"defenses": "marvell(s=4.0), label_dp"}, "label_dp is no defense of gradients"),
        ({"defenses": "marvell(s=4.0), iso"}, "wraps another"),
    ],
)
def test_a_setting_that_prevents_stacking_is_named(changes, words):
    assert words in obstacle(build_config(FIXED, changes))


@pytest.mark.parametrize("defenses", ["", "iso(t=2.0)", "max_norm(scope=per-party)", "marvell(detection_error=0.2)"])
def test_defenses_of_gradients_at_any_strength_can_be_stacked(defenses):
    names = ["norm", "cosine", "inner_product", "hint(k=3)", "direction_count", "clustering", "model_completion(k=4)"]
    assert obstacle(build_config(FIXED, {"defenses": defenses, "attack.names": names})) == ""


def test_an_attack_of_ones_own_on_the_rows_of_a_step_can_be_stacked():
    assert obstacle(build_config(FIXED, {"attack.names": [f"{OWN}:Peak"]})) == ""


def test_every_key_of_a_configuration_is_decided_about_once():
    decided = [*VARIES, *SERVES, *TAKES]
    assert sorted(decided) == sorted(leaf_paths())
    assert all(takes(build_config(FIXED)) for takes in TAKES.values())


class Wider(Config):
    """A configuration with one more key."""

    colour: str = "blue"


def test_a_key_that_nobody_decided_about_keeps_every_run_out():
    assert "colour is a key that nobody has decided about" in obstacle(
        Wider.model_validate(build_config(FIXED).model_dump())
    )
