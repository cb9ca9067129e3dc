"""A training is charged to its label party's ledger before its first step, or refused before its sessions open."""

import logging

import pytest
import torch

from flower_vfl.accounting import Bounded, Laplace, RandomisedResponse, Release
from flower_vfl.accounting.ledger import Limit, PrivacyLedger
from flower_vfl.apps import run
from flower_vfl.apps.local import run_alone
from flower_vfl.errors import ConfigError, DataError, PermissionDeniedError
from flower_vfl.reports.proof import epsilon_of
from flower_vfl.rng import Secret
from flower_vfl.strategies import Defense, Guarantee, LabelDP, LocalHead, VerticalStrategy
from flower_vfl.training.factories import schedule_of
from flower_vfl.training.privacy import LEDGER_VARIABLE, ledger_of, open_account
from flower_vfl.transport.inproc import InprocLink
from tests.faults.common import Interrupt
from tests.toys import toy_config, toy_data

DATA = toy_data(rows=200, test_rows=60)


class FreshNoise(Defense):
    """A defense that claims fresh noise in each epoch."""

    name = "fresh_noise"

    @property
    def params(self):
        return {}

    def guarantee(self):
        return Guarantee.of(Release(Laplace(4.0), draws=self.base.config.training.epochs))


FRESH = {"name": f"{__name__}:FreshNoise"}


@pytest.fixture
def ledger(tmp_path):
    return PrivacyLedger.create(tmp_path / "ledger.json", Limit(1.5))


def config(ledger, *, seed=0, epochs=2, defense=None, **sections):
    return toy_config(
        seed=seed,
        training={"epochs": epochs, "patience": 0},
        defenses=[defense or {"name": "local_head", "epsilon": 1.0}],
        attack={"names": []},
        privacy={"ledger": str(ledger.path)},
        **sections,
    )


def train(config, **options):
    return run(config, data=lambda _: DATA, **options)


def test_a_second_training_with_another_secret_is_refused_before_any_message(ledger, tmp_path, monkeypatch):
    first = train(config(ledger), out=tmp_path / "run").summary
    assert first["account"] == {"epsilon": 1.0, "delta": 0.0, "limit": 1.5, "trainings": 1}
    assert "1 training on these labels has spent epsilon 1.0 of a limit of 1.5." in " ".join(
        epsilon_of(first).assumptions
    )
    monkeypatch.setattr(InprocLink, "send", lambda link, frame: pytest.fail(f"{frame} was sent"))
    with pytest.raises(PermissionDeniedError, match=r"1 training spent 1, 0.5 is left"):
        train(config(ledger, seed=1), out=tmp_path / "other")
    assert not (tmp_path / "other").exists()
    assert len(ledger.read().entries) == 1


def test_the_same_secret_with_another_mechanism_draws_other_noise_and_is_refused(ledger):
    """Both add noise to targets with the same epsilon: only the mechanism's name distinguishes the draws."""
    first, other = ({"name": "local_head", "epsilon": 0.5, "mechanism": name} for name in ("laplace", "alibi"))
    train(config(ledger, defense=first))
    assert train(config(ledger, defense=first)).summary["account"]["epsilon"] == 0.5
    with pytest.raises(PermissionDeniedError, match="Use a new secret"):
        train(config(ledger, defense=other))


def test_the_same_randomised_labels_again_cost_nothing_whatever_is_trained_on_them(ledger):
    for epochs in (1, 3):
        assert train(config(ledger, epochs=epochs)).summary["account"]["epsilon"] == 1.0


def test_a_training_that_sends_no_gradients_costs_nothing(ledger):
    silent = toy_config(
        training={"epochs": 2, "patience": 0, "pretrain": 1, "gradients": False},
        attack={"names": []},
        privacy={"ledger": str(ledger.path)},
    )
    train(silent)
    assert not ledger.read().entries


def test_a_training_of_which_nothing_is_proven_is_refused(ledger):
    for defense in ({"name": "marvell"}, {"name": "label_dp", "flip": 0.0}):
        with pytest.raises(PermissionDeniedError, match=r"nothing is proven .* allows epsilon 1.5 in all"):
            train(config(ledger, defense=defense))
    assert not ledger.read().entries


def test_a_training_on_one_partys_columns_alone_costs_nothing(ledger):
    assert run_alone(config(ledger), "a", data=lambda _: DATA).status == "finished"
    assert not ledger.read().entries


def test_an_interrupted_training_is_charged_once_and_its_resumption_is_free(ledger, tmp_path):
    setting = config(ledger, defense=FRESH, checkpoint={"every": 1})
    with pytest.raises(KeyboardInterrupt):
        train(setting, out=tmp_path / "run", observers=(Interrupt(1),))
    assert [entry.release for entry in ledger.read().entries] == [Release(Laplace(4.0), draws=2)]
    resumed = train(setting, out=tmp_path / "run", resume=True).summary
    assert (resumed["status"], resumed["account"]["trainings"]) == ("finished", 1)
    with pytest.raises(PermissionDeniedError, match="Use a new secret"):
        train(setting, out=tmp_path / "new")


def test_a_training_that_is_interrupted_before_its_first_step_costs_nothing(ledger, tmp_path):
    setting = toy_config(
        training={"epochs": 2, "patience": 0, "pretrain": 2},
        defenses=[{"name": "local_head", "epsilon": 1.0}],
        attack={"names": []},
        privacy={"ledger": str(ledger.path)},
    )
    with pytest.raises(KeyboardInterrupt):
        train(setting, out=tmp_path / "run", observers=(Interrupt(hook="on_pretraining"),))
    assert not ledger.read().entries
    assert train(setting, out=tmp_path / "again").summary["account"]["trainings"] == 1


@pytest.mark.parametrize("other", [{"canaries": 0}, {"canaries": 101}, {"validation": 0.2}])
def test_other_canaries_are_other_labels_for_the_same_defense(ledger, other):
    """Repeated with the same secret, each would have another draw of all labels, at no cost."""
    data = toy_data(rows=1500, test_rows=60)

    def trained(*, canaries=100, validation=0.1):
        plain = config(ledger)
        attack = plain.attack.model_copy(update={"informed": 1, "canaries": canaries})
        training = plain.training.model_copy(update={"validation": validation, "epochs": 1})
        run(plain.model_copy(update={"attack": attack, "training": training}), data=lambda _: data)

    trained()
    trained()  # the same draws again
    with pytest.raises(PermissionDeniedError, match="Use a new secret"):
        trained(**other)
    assert len(ledger.read().entries) == 1


def test_a_ledger_that_somebody_edited_stops_a_training_at_once(ledger, tmp_path):
    ledger.path.write_text(ledger.path.read_text().replace("1.5", "9.5"))
    with pytest.raises(DataError, match="failed its integrity check"):
        train(config(ledger), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def strategy(wrap, **sections):
    labels = torch.arange(40) % 2
    settings = toy_config(training={"epochs": 2, "patience": 0}, **sections)
    secret = Secret.for_simulation(0, "label")
    return wrap(VerticalStrategy(torch.nn.Linear(4, 1), labels, config=settings, secret=secret))


def opened(strategy, *, epochs=0, simulation=False):
    schedule = schedule_of(strategy.base.config, 40, 0, epochs)
    return open_account(strategy, schedule, strategy.base.labels.train, simulation=simulation)


def test_a_deployed_label_party_names_its_ledger_on_its_host_alone(ledger, monkeypatch):
    monkeypatch.delenv(LEDGER_VARIABLE, raising=False)
    plain, named = toy_config(), toy_config(privacy={"ledger": str(ledger.path)})
    assert ledger_of(plain, simulation=False) is None
    with pytest.raises(ConfigError, match=rf"privacy.ledger .* in a run config.*{LEDGER_VARIABLE}"):
        ledger_of(named, simulation=False)
    monkeypatch.setenv(LEDGER_VARIABLE, str(ledger.path))
    assert ledger_of(plain, simulation=False).path == ledger.path
    assert ledger_of(plain, simulation=True) is None
    charge = opened(strategy(LocalHead))
    assert not ledger.read().entries
    charge()
    assert [entry.defense for entry in ledger.read().entries] == [
        "local_head(epsilon=1.0, mechanism=randomised_response)"
    ]


def test_without_a_ledger_a_deployed_label_party_is_warned(monkeypatch, caplog):
    monkeypatch.delenv(LEDGER_VARIABLE, raising=False)
    with caplog.at_level(logging.WARNING):
        opened(strategy(LocalHead), simulation=True)()
        assert not caplog.messages
        opened(strategy(LocalHead))()
    assert "several trainings on the same labels are not added up" in caplog.text


def test_of_several_proofs_the_smallest_counts(ledger):
    made = strategy(lambda base: FreshNoise(LabelDP(base, epsilon=0.25)), privacy={"ledger": str(ledger.path)})
    opened(made, simulation=True)()
    entry = ledger.read().entries[0]
    assert (entry.defense, entry.release) == ("label_dp(epsilon=0.25)", Release(RandomisedResponse(0.25), kept=True))


def test_more_epochs_than_a_proof_counts_are_refused(ledger):
    made = strategy(FreshNoise, privacy={"ledger": str(ledger.path)})
    with pytest.raises(ConfigError, match=r"counts training\.epochs = 2, and this training has 3"):
        opened(made, epochs=3, simulation=True)


def test_a_guarantee_without_a_mechanism_counts_as_the_worst_of_its_epsilon():
    assert Guarantee(1.0).accounted == Release(Bounded(1.0))
    assert Guarantee(1.0, 1e-6).accounted == Release(Bounded(1.0, 1e-6))
    assert Guarantee.of(Release(Laplace(2.0), 6)).epsilon == 3.0
