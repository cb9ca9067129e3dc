"""Every setting is tried before the first trial starts."""

import pytest

from flower_vfl.accounting.ledger import Limit, PrivacyLedger
from flower_vfl.apps.factories import open_data
from flower_vfl.errors import ConfigError, TrainingError
from flower_vfl.simulations.sweep import checking
from flower_vfl.simulations.sweep.checking import check_devices, check_trials
from flower_vfl.simulations.sweep.definition import Running, load_definition
from flower_vfl.simulations.sweep.planning import measure
from flower_vfl.simulations.sweep.trials import trials_of

SMALL = """
[set]
data.name = "breast-cancer"
training.batch_size = 64
model.bottom = [8]
"""


@pytest.fixture
def trials(tmp_path):
    def reading(text):
        path = tmp_path / "sweep.toml"
        path.write_text(SMALL + text, encoding="utf8")
        return trials_of(load_definition(str(path)))

    return reading


def test_each_setting_is_tried_once_whatever_its_seeds_and_rates(trials, monkeypatch):
    tried = []
    monkeypatch.setattr(checking, "dry_run", lambda config, data: tried.append(config.defenses))
    progress = []
    text = '[grid]\nseed = [0, 1, 2]\ntraining.learning_rate = [0.1, 0.2]\ndefenses = ["none", "max_norm"]'
    check_trials(trials(text), Running(), lambda done, total: progress.append((done, total)))
    assert tried == [[], [{"name": "max_norm"}]]
    assert progress == [(0, 2), (1, 2), (2, 2)]


def test_all_that_cannot_run_is_named_with_its_reason_and_what_can_is_not(trials):
    text = '[grid]\nseed = [0, 1]\ndefenses = ["none", "marvel", "label_dp(flip=0.7)", "iso(x=1)"]'
    with pytest.raises(ConfigError) as failure:
        check_trials(trials(text), Running())
    words = str(failure.value)
    assert "3 settings cannot run" in words
    assert all(part in words for part in ("did you mean 'marvell'", "flip must be", "seed0-iso-x1"))
    assert "none" not in words


def test_a_setting_that_fails_at_its_first_step_is_found(trials):
    with pytest.raises(ConfigError, match="potential_energy"):
        check_trials(trials('[grid]\nmodel.cut = [2, 8]\ndefenses = ["potential_energy"]'), Running())


def test_data_that_is_not_there_is_found(trials):
    with pytest.raises(ConfigError, match="does not exist"):
        check_trials(trials('[grid]\ndata.path = ["", "/no/such/place"]'), Running())


def test_a_first_step_and_a_measurement_charge_no_ledger(trials, tmp_path):
    ledger = PrivacyLedger.create(tmp_path / "ledger.json", Limit(2.5))
    keys = ["training.patience = [0]", 'defenses = ["local_head(epsilon=1.0)"]', f'privacy.ledger = ["{ledger.path}"]']
    sweep = trials("\n".join(["[grid]", "seed = [0, 1]", *keys]))
    check_trials(sweep, Running())
    measure(sweep[0].config, open_data)
    assert not ledger.read().entries


def test_a_first_step_writes_nothing(trials, tmp_path, monkeypatch):
    sweep = trials("[grid]\nseed = [0, 1]")
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.iterdir())
    check_trials(sweep, Running())
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize(
    ("device", "gpus", "words"),
    [("cuda", 0.0, r"gpus is 0"), ("cuda:1", 1.0, "Ray chooses"), ("cpu", 0.5, "no trial has device")],
)
def test_devices_and_gpus_must_fit(trials, device, gpus, words):
    sweep = trials(f'device = "{device}"\n[grid]\nseed = [0, 1]')
    with pytest.raises(ConfigError, match=words):
        check_devices(sweep, Running(gpus=gpus))


def test_a_number_of_epochs_that_a_limit_of_the_bound_does_not_allow_is_found(trials):
    text = '[grid]\ntraining.epochs = [1, 21]\nattack.max_bound = [0.9]\nmodel.cut = [32]\ndefenses = ["marvell"]'
    with pytest.raises(ConfigError, match=r"1 setting cannot run: .*for 20 epochs of gradients this wide, and 21 are"):
        check_trials(trials(text), Running())


@pytest.mark.parametrize("kind", [RuntimeError, TrainingError])
def test_of_a_very_long_reason_a_sweep_shows_the_beginning_and_the_end(trials, monkeypatch, kind):
    def failing(config, data):
        raise kind("shape" + "9" * 3_000_000 + "end")

    monkeypatch.setattr(checking, "dry_run", failing)
    with pytest.raises(ConfigError, match=r"shape9+ \[2,99.,... characters left out\] 9+end") as failure:
        check_trials(trials('[grid]\ndefenses = ["none", "max_norm"]'), Running())
    assert len(str(failure.value)) < 5_000
