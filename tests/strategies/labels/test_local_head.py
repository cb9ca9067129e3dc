"""Local heads: no message depends on the true labels, and the network that predicts learns from them."""

import numpy as np
import pytest
import torch

from flower_vfl.apps import run
from flower_vfl.data.store.dataset import Labels
from flower_vfl.errors import ConfigError
from flower_vfl.reports import render
from flower_vfl.rng import Secret
from flower_vfl.strategies import Iso, LabelDP, LocalHead, VerticalStrategy
from flower_vfl.strategies.labels import mechanisms
from flower_vfl.strategies.labels.label_dp import flip, rate_of
from flower_vfl.testing import check_defense
from flower_vfl.training.assembly import build_defenses
from tests.cases import parametrize
from tests.strategies.sent import sent_for
from tests.toys import toy_config, toy_data

ROWS = 64


def config(epsilon=1.0, mechanism="randomised_response", **training):
    training = {"epochs": 2, "patience": 0, **training}
    chosen = {"name": "local_head", "epsilon": epsilon, "mechanism": mechanism}
    return toy_config(training=training, defenses=[chosen], attack={"names": []})


def defense():
    labels = torch.arange(ROWS) % 2
    base = VerticalStrategy(
        torch.nn.Linear(12, 1),
        labels,
        parties=("a", "b"),
        config=config(),
        secret=Secret.for_simulation(0, "label"),
    )
    made = LocalHead(base, epsilon=1.0)
    build_defenses(made, {"a": (8,), "b": (4,)})
    made.prepare_labels(labels)
    made.begin_batch(np.arange(ROWS))
    return made


@parametrize("params", [{"epsilon": 4.0}, {"mechanism": "alibi"}, {"mechanism": "posterior"}], ids=str, quick=1)
def test_it_does_what_every_defense_must(params):
    check_defense(LocalHead, **params)


def draw_for_class_0(monkeypatch):
    """Replace the labels of all draws by class 0, as if different labels had given the same draw."""

    def for_class_0(original):
        return lambda labels, *given, **named: original(torch.zeros_like(labels), *given, **named)

    for name in ("flip", "noisy_targets", "with_prior"):
        monkeypatch.setattr(mechanisms, name, for_class_0(getattr(mechanisms, name)))
    original = LocalHead.keystream
    monkeypatch.setattr(LocalHead, "keystream", lambda self, y, *more: original(self, torch.zeros_like(y), *more))


CHOICES = [
    ("randomised_response", 2, "none"),
    ("randomised_response", 2, "balanced"),
    ("randomised_response", 3, "balanced"),
    ("laplace", 2, "none"),
    ("laplace", 3, "none"),
    ("alibi", 2, "none"),
    ("alibi", 3, "none"),
    ("posterior", 2, "none"),
    ("posterior", 3, "none"),
    ("prior", 2, "none"),
    ("prior", 3, "none"),
]


@parametrize(("mechanism", "classes", "weights"), CHOICES, quick=2)
def test_with_the_same_draw_other_true_labels_change_no_message(monkeypatch, mechanism, classes, weights):
    parties = 1 if mechanism == "prior" else 2
    data = toy_data(rows=200, test_rows=60, classes=classes, parties=parties, label_features=True)
    truth, given = data.labels(), config(mechanism=mechanism, class_weights=weights, refit=1)
    draw_for_class_0(monkeypatch)
    labels = [Labels((truth.train + shift) % classes, (truth.test + shift) % classes, classes) for shift in range(2)]
    (one, many, first), (other, others, second) = (sent_for(one, data, given, monkeypatch) for one in labels)
    assert (one, many) == (other, others)
    assert many > 10
    names = "ab"[:parties]
    assert {party: first["weights"][party] for party in names} == {party: second["weights"][party] for party in names}
    assert first["weights"]["label"] != second["weights"]["label"]  # the network that predicts learned from them


@pytest.mark.parametrize("mechanism", sorted(mechanisms.LABEL_MECHANISMS))
def test_what_is_drawn_reaches_the_messages(monkeypatch, mechanism):
    data = toy_data(rows=200, test_rows=60, parties=1)
    truth = data.labels()
    other = Labels(1 - truth.train, truth.test, 2)
    given = config(mechanism=mechanism)
    assert sent_for(truth, data, given, monkeypatch)[0] != sent_for(other, data, given, monkeypatch)[0]


def test_the_second_stage_begins_in_the_middle_of_a_run_and_once(monkeypatch):
    calls, original = [], mechanisms.with_prior

    def with_prior(labels, prior, **named):
        calls.append((len(labels), float(prior.std(dim=0)[0])))
        return original(labels, prior, **named)

    monkeypatch.setattr(mechanisms, "with_prior", with_prior)
    run(config(mechanism="prior", epochs=5), data=lambda _: toy_data(parties=1))
    ((rows, spread),) = calls
    assert 240 < rows < 360
    assert spread > 0.01  # the priors of rows are what the head predicts


def test_a_run_with_local_heads_does_not_warn_that_something_is_not_kept(caplog):
    run(config(), data=lambda _: toy_data(rows=200, test_rows=60))
    assert "not kept" not in caplog.text


def test_a_partys_gradient_is_that_of_its_own_head_for_the_randomised_labels():
    made = defense()
    draws = {"a": torch.Generator().manual_seed(8), "b": torch.Generator().manual_seed(4)}
    z = {party: torch.randn(ROWS, width, generator=draws[party]) for party, width in (("a", 8), ("b", 4))}
    leaves = {party: tensor.clone().requires_grad_() for party, tensor in z.items()}
    parts = [made.embed(leaf, party=party)[0] for party, leaf in leaves.items()]
    joined = torch.cat(parts, dim=1)
    logits = made.base.top(joined)[:, 0]
    made.loss(logits, torch.arange(ROWS) % 2, joined)[0].backward()
    labels = torch.arange(ROWS) % 2
    draws = made.keystream(labels, repr(rate_of(1.0, 2)))
    drawn = flip(labels, classes=2, rate=rate_of(1.0, 2), draws=draws).float()
    for party, leaf in leaves.items():
        own = z[party].clone().requires_grad_()
        logit = made.modules[party](own).flatten()
        (torch.nn.functional.softplus(logit) - drawn * logit).mean().backward()
        torch.testing.assert_close(leaf.grad, own.grad, rtol=1e-5, atol=1e-9)


@pytest.mark.parametrize("label", [0, 1])
def test_huge_embeddings_do_not_show_a_true_label_by_the_end_of_training(label):
    made = defense()
    parts = [made.embed(torch.full((ROWS, width), 3e38), party=party)[0] for party, width in (("a", 8), ("b", 4))]
    joined = torch.cat(parts, dim=1)
    logits = made.base.top(joined)[:, 0]
    predicting, _ = made.strategy.loss(logits, torch.full((ROWS,), label), joined)
    assert torch.isfinite(predicting)


def test_every_party_learns_from_its_own_head():
    """This holds in a training too, not only where a test calls the hooks."""
    data = toy_data(rows=200, test_rows=60, parties=3)
    short, long = (run(config(epochs=epochs), data=lambda _: data).summary["weights"] for epochs in (1, 2))
    assert all(short[party] != long[party] for party in "abc")


@pytest.mark.parametrize(
    ("sections", "words"),
    [
        ({"training": {"epochs": 2, "patience": 2}}, r"training\.patience = 0"),
        ({"training": {"epochs": 2}, "attack": {"names": ["norm"], "max_leak": 0.6}}, r"attack\.max_leak = 1\.0"),
    ],
)
def test_what_ends_a_training_by_true_labels_is_refused(sections, words):
    given = toy_config(**sections, defenses=[{"name": "local_head"}])
    with pytest.raises(ConfigError, match=words):
        run(given, data=lambda _: toy_data())


@pytest.mark.parametrize(
    ("given", "parties", "words"),
    [
        (config(mechanism="prior"), 2, "for one feature party, given 2"),
        (config(mechanism="prior", epochs=1), 1, r"given 1, set training\.epochs to 2"),
        (config(mechanism="alibi", class_weights="balanced"), 1, r"does not go with training\.class_weights"),
        (config(mechanism="laplase"), 1, "did you mean 'laplace'"),
    ],
)
def test_a_mechanism_that_does_not_fit_the_configuration_is_refused(given, parties, words):
    with pytest.raises(ConfigError, match=words):
        run(given, data=lambda _: toy_data(rows=60, test_rows=20, parties=parties))


@pytest.mark.parametrize("make", [lambda base: Iso(LocalHead(base)), lambda base: LocalHead(LabelDP(base))])
def test_other_defenses_beside_it_are_refused(make):
    with pytest.raises(ConfigError, match="do not go together"):
        make(VerticalStrategy(torch.nn.Linear(4, 1), torch.tensor([0, 1])))


@pytest.mark.parametrize("epsilon", [0.0, -1.0, float("inf"), True, "1"])
def test_an_epsilon_that_is_no_finite_number_above_zero_is_refused(epsilon):
    with pytest.raises(ConfigError, match="local_head: epsilon must be a finite number above 0"):
        LocalHead(VerticalStrategy(torch.nn.Linear(4, 1), torch.tensor([0, 1])), epsilon=epsilon)


@pytest.mark.usefixtures("_sketched")
def test_the_proven_epsilon_is_in_the_result_and_in_the_report(tmp_path):
    data = toy_data()
    summary = run(config(epsilon=1.0), out=tmp_path / "run", data=lambda _: data).summary
    assert summary["defenses"][0]["proven"] == {"epsilon": 1.0, "auc": pytest.approx(np.e / (1.0 + np.e))}
    page = render([tmp_path / "run"]).read_text(encoding="utf8")
    assert "Proven: epsilon 1.0 for each person&#39;s label over 2 epochs, by randomised response (local_head)" in page
    assert "an AUC of at most 0.731" in page


@pytest.mark.parametrize(("patience", "proven"), [(0, True), (3, False)])
def test_flipped_labels_prove_nothing_where_true_ones_end_the_training(patience, proven):
    given = toy_config(training={"epochs": 2, "patience": patience})
    labels = torch.arange(ROWS) % 2
    base = VerticalStrategy(torch.nn.Linear(4, 1), labels, config=given, secret=Secret.for_simulation(0, "label"))
    assert (LabelDP(base, epsilon=2.0).guarantee() is not None) is proven
    assert LabelDP(base, flip=0.0).guarantee() is None
