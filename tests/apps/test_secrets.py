"""An attacker who knows the whole run config and regenerates everything that can be regenerated from it."""

from __future__ import annotations

import pytest
import torch
from flwr.app import Context, RecordDict

from flower_vfl.apps.client_app import make_client_app
from flower_vfl.apps.factories import default_bottom, default_top
from flower_vfl.apps.local_grid import LocalGrid
from flower_vfl.apps.server_app import make_server_app
from flower_vfl.attacks.gradient.norm import score
from flower_vfl.config import from_run_config, to_run_config
from flower_vfl.errors import PartyError
from flower_vfl.metrics import leak_auc
from flower_vfl.nn import seeded_initialisation, weights_digest
from flower_vfl.parties.feature import FeatureParty
from flower_vfl.rng import Secret
from flower_vfl.strategies import Iso, VerticalStrategy
from flower_vfl.strategies.gradients.iso import perturb
from flower_vfl.training.factories import schedule_of
from tests.grids import DeployedGrid
from tests.toys import toy_config, toy_data


class RecordingIso(Iso):
    """Keeps the clean and the sent gradients, for an attack after the training."""

    def protect(self, grads, labels, step=None):
        sent, log = super().protect(grads, labels, step)
        self.clean.append(grads.clone())
        self.sent.append(sent.clone())
        return sent, log


DATA = toy_data(rows=800, parties=1, test_rows=50)
CONFIG = toy_config(training={"epochs": 1, "batch_size": 128}, transport={"kind": "stream"})
NODES = [
    {"party": party, "role": "attacker", "train-epochs": 9, "partition-id": 0, "out": ""} for party in DATA.parties
]


def train(grid_kind, tmp_path, monkeypatch):
    monkeypatch.setenv("FLOWER_VFL_STATE", str(tmp_path))
    strategy = RecordingIso(
        VerticalStrategy(
            lambda shape: default_top(shape, 2, CONFIG), DATA.labels(), parties=DATA.parties, config=CONFIG
        ),
        t=9.0,
    )
    strategy.sent, strategy.clean = [], []
    client = make_client_app(data=lambda _: DATA, config=CONFIG)
    grid = LocalGrid(client, 1, {}) if grid_kind is LocalGrid else DeployedGrid(NODES, {}, client)
    strategy.start(grid)
    return strategy


def mean_leak(gradients):
    schedule = schedule_of(CONFIG, 800, 50)
    leaks = [leak_auc(score(g), DATA.target.train[schedule.train_batch(step)]) for step, g in enumerate(gradients)]
    return sum(leaks) / len(leaks)


def subtract_regenerated_noise(sent):
    """Return the gradients less each step's noise, regenerated from the seed, at the scale that fits best."""
    config = from_run_config(to_run_config(CONFIG))
    generator = Secret.for_simulation(config.seed, "label").generator("defense", "iso", 0)
    cleaned = []
    for received in sent:
        noise = perturb(torch.ones_like(received), t=9.0, generator=generator) - 1.0
        cleaned.append(received - noise * ((received * noise).sum() / (noise * noise).sum()))
    return cleaned


def test_in_a_deployment_regenerated_noise_does_not_uncover_the_labels(tmp_path, monkeypatch):
    deployed = train(DeployedGrid, tmp_path, monkeypatch)
    assert deployed.base.secret.origin == "operating system"
    hidden = mean_leak(deployed.sent)
    # 6 batches of 128, half of them positive: the mean of 6 AUCs has a standard deviation of 0.021; false alarm 6e-7.
    assert mean_leak(subtract_regenerated_noise(deployed.sent)) < hidden + 5 * 0.021


def test_the_same_attack_succeeds_against_a_simulation_whose_secrets_derive_from_the_seed(tmp_path, monkeypatch):
    simulated = train(LocalGrid, tmp_path, monkeypatch)
    assert simulated.base.secret.origin == "simulation seed"
    assert mean_leak(simulated.clean) > mean_leak(simulated.sent) + 0.1
    assert mean_leak(subtract_regenerated_noise(simulated.sent)) == pytest.approx(mean_leak(simulated.clean), abs=0.03)


def test_in_a_deployment_no_initial_weight_can_be_regenerated(tmp_path, monkeypatch):
    first = train(DeployedGrid, tmp_path, monkeypatch).base.outcome
    second = train(DeployedGrid, tmp_path, monkeypatch).base.outcome
    assert first.weights != second.weights
    assert first.reports["a"]["weights"] != second.reports["a"]["weights"]


def test_in_a_deployment_true_labels_go_nowhere(tmp_path, monkeypatch):
    deployed = train(DeployedGrid, tmp_path, monkeypatch)
    assert deployed.base.outcome.reports["a"]["leakage"] == []
    assert {entry["source"] for entry in deployed.base.outcome.leakage} == {"monitor"}


def test_in_a_deployment_the_leaks_that_a_party_reports_are_no_part_of_the_result(tmp_path, monkeypatch):
    honest = FeatureParty.report
    claimed = [{"attack": "norm", "label": "norm", "source": "monitor", "q95": 0.52}, 0]
    monkeypatch.setattr(FeatureParty, "report", lambda party: {**honest(party), "leakage": claimed})
    outcome = train(DeployedGrid, tmp_path, monkeypatch).base.outcome
    assert outcome.reports["a"]["leakage"] == []
    assert [entry["q95"] for entry in outcome.leakage if entry["label"] == "norm"] != [0.52]
    assert {(entry["source"], entry["steps"]) for entry in outcome.leakage} == {("monitor", outcome.steps)}


def test_a_node_with_a_party_of_its_own_is_deployed_even_when_the_offer_says_simulation(tmp_path, monkeypatch):
    monkeypatch.setenv("FLOWER_VFL_STATE", str(tmp_path))
    made = {}

    def bottom(spec, config):
        made["model"] = default_bottom(spec, config)
        made["initial"] = weights_digest(made["model"])
        return made["model"]

    class Liar(DeployedGrid):
        simulation = True

    config = toy_config(training={"epochs": 1}, attack={"names": []})
    strategy = VerticalStrategy(
        lambda shape: default_top(shape, 2, config), DATA.labels(), parties=DATA.parties, config=config
    )
    strategy.start(Liar(NODES, {}, make_client_app(data=lambda _: DATA, bottom=bottom, config=config)))
    with seeded_initialisation(Secret.for_simulation(config.seed, "a").seed("weights")):
        regenerated = default_bottom(DATA.party("a").spec, config)
    assert made["initial"] != weights_digest(regenerated)


def test_a_deployed_node_without_a_party_is_refused_with_what_to_set():
    grid = DeployedGrid(NODES, {}, make_client_app(data=lambda _: DATA, config=CONFIG))
    for context in grid._contexts.values():
        context.node_config = {"partition-id": 0}
    strategy = VerticalStrategy(torch.nn.Linear(8, 1), DATA.labels(), parties=DATA.parties, config=CONFIG)
    with pytest.raises(PartyError, match="--node-config"):
        strategy.start(grid)


def test_a_secret_file_makes_a_deployment_reproducible(tmp_path, monkeypatch, caplog):
    secret = tmp_path / "secret"
    secret.write_bytes(b"0123456789abcdef0123456789abcdef")
    monkeypatch.setenv("FLOWER_VFL_SECRET_FILE", str(secret))
    first, second = (train(DeployedGrid, tmp_path, monkeypatch) for _ in range(2))
    assert first.base.outcome.weights == second.base.outcome.weights
    assert first.base.secret.origin == "file"
    secret.write_bytes(b"short")
    with pytest.raises(PartyError, match="party 'a' could not take part in the training"):
        train(DeployedGrid, tmp_path, monkeypatch)
    assert "needs at least 16" in caplog.text


def test_the_label_party_is_warned_that_a_secret_file_repeats_fresh_noise(tmp_path, monkeypatch, caplog):
    (tmp_path / "secret").write_bytes(bytes(range(32)))
    monkeypatch.setenv("FLOWER_VFL_STATE", str(tmp_path))
    warned = []
    for variable in ("FLOWER_VFL_NOISE_KEY_FILE", "FLOWER_VFL_SECRET_FILE"):
        monkeypatch.setenv(variable, str(tmp_path / "secret"))
        caplog.clear()
        server = make_server_app(data=lambda _: DATA, config=CONFIG)
        context = Context(run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config={})
        server(DeployedGrid(NODES, {}, make_client_app(data=lambda _: DATA, config=CONFIG)), context)
        warned.append("two training runs with it have the same" in caplog.text)
    assert warned == [False, True]
