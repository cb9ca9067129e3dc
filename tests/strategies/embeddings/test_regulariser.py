"""Defenses of the embedding in a training: normalisation, their term of the loss, nesting, and refusals."""

from __future__ import annotations

import dataclasses
import itertools
import logging
import math

import numpy as np
import pytest
import torch
from torch import nn

from flower_vfl.apps import run
from flower_vfl.apps.client_app import make_client_app
from flower_vfl.apps.factories import default_bottom
from flower_vfl.apps.local_grid import LocalGrid
from flower_vfl.data.store.dataset import Labels
from flower_vfl.data.store.memory import array_table
from flower_vfl.errors import ConfigError, TrainingError
from flower_vfl.rng import Secret
from flower_vfl.strategies import (
    DistanceCorrelation,
    Iso,
    LabelDP,
    Marvell,
    MaxNorm,
    PotentialEnergy,
    VerticalStrategy,
)
from flower_vfl.strategies.embeddings.distance_correlation import distance_correlation
from flower_vfl.strategies.embeddings.potential_energy import potential_energy
from flower_vfl.training.factories import schedule_of
from tests.cases import parametrize
from tests.strategies.test_vertical import Spy, Values, federation, strategy_for
from tests.toys import toy_config, toy_data

REGULARISERS = [PotentialEnergy, DistanceCorrelation]
GRADIENT = [Iso, MaxNorm, Marvell]


def base(classes=2):
    config = toy_config(attack={"names": []})
    return VerticalStrategy(nn.Linear(8, 1), torch.arange(classes), config=config, secret=Secret(b"s" * 32, "file"))


def batch(classes=2):
    generator = torch.Generator().manual_seed(0)
    z = torch.randn(40, 8, generator=generator).requires_grad_()
    return z, torch.arange(40) % classes


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize(
    ("defense", "term"),
    [
        (PotentialEnergy, potential_energy),
        (DistanceCorrelation, distance_correlation),
    ],
)
def test_the_loss_is_the_inner_one_and_alpha_times_the_term(defense, term, classes):
    z, y = batch(classes=classes)
    logits = torch.zeros(40, classes) if classes > 2 else torch.zeros(40)
    loss, log = defense(base(classes), alpha=0.5).loss(logits, y, z)
    expected = 0.5 * float(term(z.detach(), y))
    assert loss.item() == pytest.approx(math.log(classes) + expected, rel=1e-5)
    assert log == {f"{defense.name}.term": pytest.approx(expected, rel=1e-5)}
    loss.backward()
    other = z.detach().requires_grad_()
    term(other, y).backward()
    assert torch.allclose(z.grad, 0.5 * other.grad, rtol=1e-4, atol=1e-9)


def test_parameters_choose_the_form_of_the_term():
    z, y = batch()
    zeros = torch.zeros(40)
    for more in ({"reduction": "sum"}, {"distance": "euclidean"}):
        _, log = PotentialEnergy(base(), **more).loss(zeros, y, z)
        expected = potential_energy(z.detach(), y, **more).item()
        assert log["potential_energy.term"] == pytest.approx(expected, rel=1e-5)
        assert PotentialEnergy(base(), **more).params == {
            "alpha": 1.0,
            "reduction": "mean",
            "distance": "angular",
            **more,
        }
    for form in ("log", "squared"):
        _, log = DistanceCorrelation(base(), 2.0, form).loss(zeros, y, z)
        expected = 2.0 * distance_correlation(z.detach(), y, form=form).item()
        assert log["distance_correlation.term"] == pytest.approx(expected, rel=1e-5)
        params = DistanceCorrelation(base(), form=form).params
        assert params == {"alpha": 0.05, "form": form, "normalise": False}


@pytest.mark.parametrize(
    ("defense", "normalises"),
    [
        (PotentialEnergy(base()), True),
        (PotentialEnergy(base(), distance="euclidean"), False),
        (DistanceCorrelation(base()), False),
        (DistanceCorrelation(base(), normalise=True), True),
        (Iso(DistanceCorrelation(PotentialEnergy(base()))), True),
    ],
    ids=repr,
)
def test_rows_of_a_party_are_normalised_where_the_method_says_so(defense, normalises):
    z = torch.randn(10, 4, 2, generator=torch.Generator().manual_seed(1)) * 3 + 1
    embedded, log = defense.embed(z)
    assert log == {}
    if normalises:
        assert torch.allclose(embedded.flatten(1).mean(dim=1), torch.zeros(10), atol=1e-6)
        assert torch.allclose(embedded.flatten(1).var(dim=1, unbiased=False), torch.ones(10), atol=1e-4)
        assert embedded.shape == z.shape
    else:
        assert torch.equal(embedded, z)


def test_the_term_gets_each_partys_normalised_embedding_and_not_the_label_partys_own():
    class Recording(PotentialEnergy):
        def term(self, z, labels):
            seen.append(z.detach())
            return super().term(z, labels)

    seen = []
    data = toy_data(rows=200, parties=2, label_features=True)
    config = toy_config(training={"epochs": 1}, parties={"features": ["a", "b"]})
    strategy = VerticalStrategy(
        lambda shape: nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), 1)),
        data.labels(),
        parties=("a", "b"),
        config=config,
        bottom=lambda: default_bottom(data.party("label").spec, config),
        table=data.party("label"),
    )
    tops = []
    strategy.top = nn.Linear(24, 1)
    strategy.top.register_forward_pre_hook(lambda module, inputs: tops.append((module.training, inputs[0].detach())))
    Recording(strategy).start(LocalGrid(make_client_app(data=lambda _: data, config=config), 2, {}))
    assert {z.shape[1] for z in seen} == {16}
    for z in seen:
        assert z.view(-1, 2, 8).mean(dim=2).abs().max() < 1e-5
    for training in (True, False):
        fused = [z for mode, z in tops if mode == training]
        assert fused
        assert all(z[:, :16].view(-1, 2, 8).mean(dim=2).abs().max() < 1e-5 for z in fused)
        assert any(z[:, 16:].mean(dim=1).abs().max() > 1e-3 for z in fused)


@pytest.mark.parametrize("width", [1, 2])
def test_embeddings_with_fewer_than_three_numbers_are_refused_where_they_are_normalised(width):
    with pytest.raises(ConfigError, match=rf"potential_energy .* needs 3 numbers a row, given {width}.*model\.cut"):
        PotentialEnergy(base()).embed(torch.ones(4, width))
    assert PotentialEnergy(base(), distance="euclidean").embed(torch.ones(4, width))[0].shape == (4, width)


def test_an_embedding_that_is_not_of_floating_point_is_refused():
    with pytest.raises(ConfigError, match=r"floating point, given torch\.int32"):
        PotentialEnergy(base()).embed(torch.ones(4, 8, dtype=torch.int32))


@pytest.mark.parametrize("defense", REGULARISERS)
@pytest.mark.parametrize("alpha", [-1.0, math.nan, math.inf, "2", True, None])
def test_impossible_weights_are_refused(defense, alpha):
    with pytest.raises(ConfigError, match=f"{defense.name}: alpha must be a finite number of at least 0, given"):
        defense(base(), alpha=alpha)


def test_unknown_forms_are_refused_when_the_strategy_is_built():
    with pytest.raises(ConfigError, match="did you mean 'sum'"):
        PotentialEnergy(base(), reduction="sums")
    with pytest.raises(ConfigError, match="did you mean 'angular'"):
        PotentialEnergy(base(), distance="angle")
    with pytest.raises(ConfigError, match="did you mean 'log'"):
        DistanceCorrelation(base(), form="logarithm")
    with pytest.raises(ConfigError, match="normalise must be true or false, given 'no'"):
        DistanceCorrelation(base(), normalise="no")


@pytest.mark.parametrize("defense", REGULARISERS)
def test_the_same_term_twice_is_refused_with_the_reason(defense):
    with pytest.raises(ConfigError, match=rf"{defense.name} is given twice.*sum of both alphas"):
        defense(Iso(defense(base())))


def test_several_noises_and_one_of_each_other_kind_may_be_nested():
    assert len(Iso(Iso(PotentialEnergy(DistanceCorrelation(LabelDP(base()))))).chain()) == 5


def test_the_order_of_nesting_changes_nothing():
    z, y = batch()
    results = []
    for order in itertools.permutations([PotentialEnergy, DistanceCorrelation, LabelDP]):
        strategy = base()
        for defense in order:
            strategy = defense(strategy)
        labels, _ = strategy.prepare_labels(y)
        leaf = z.detach().requires_grad_()
        embedded, _ = strategy.embed(leaf)
        loss, log = strategy.loss(embedded.sum(dim=1), labels, embedded)
        loss.backward()
        results.append((labels, loss.item(), leaf.grad, sorted(log)))
    for labels, loss, grad, log in results[1:]:
        assert torch.equal(labels, results[0][0])
        assert loss == pytest.approx(results[0][1], rel=1e-6)
        assert torch.allclose(grad, results[0][2], rtol=1e-4, atol=1e-7)
        assert log == ["distance_correlation.term", "potential_energy.term"]


@parametrize("gradient", GRADIENT, quick=1)
@pytest.mark.parametrize("other", [PotentialEnergy, DistanceCorrelation, LabelDP])
@pytest.mark.parametrize("outside", [True, False])
def test_they_train_with_every_gradient_defense_in_either_order(gradient, other, outside):
    data, config = toy_data(rows=200), toy_config(training={"epochs": 1})
    values = Values()
    inner = strategy_for(data, config, observer=values)
    strategy = gradient(other(inner)) if outside else other(gradient(inner))
    strategy.start(federation(data, config))
    assert inner.outcome.stopped == "finished"
    names = {metric.split(".")[0] for metric in values.values if "." in metric}
    assert {gradient.name, other.name} <= names


@pytest.mark.parametrize(
    "defenses",
    [
        [{"name": "potential_energy", "alpha": 0.1}],
        [{"name": "potential_energy", "distance": "euclidean", "reduction": "sum", "alpha": 1e-4}],
        [{"name": "distance_correlation", "form": "log"}, {"name": "max_norm"}],
        [{"name": "label_dp", "flip": 0.1}, {"name": "distance_correlation", "form": "squared", "normalise": True}],
    ],
    ids=lambda defenses: "+".join(defense["name"] for defense in defenses),
)
def test_trainings_of_three_classes_run_with_them_and_report_their_parameters(defenses):
    data = toy_data(rows=300, classes=3)
    result = run(toy_config(attack={"names": []}, defenses=defenses), data=lambda _: data)
    assert result.status == "finished"
    for entry, given in zip(result.summary["defenses"], defenses, strict=True):
        assert entry["name"] == given["name"]
        assert {**entry["params"], **given} == {**entry["params"], "name": given["name"]}


EMBEDDING = [
    {"name": "potential_energy", "alpha": 8.0},
    {"name": "potential_energy", "alpha": 8.0, "reduction": "sum"},
    {"name": "potential_energy", "alpha": 8.0, "distance": "euclidean"},
    *({"name": "distance_correlation", "alpha": 8.0, "form": form} for form in ("dcor", "squared", "log")),
    {"name": "label_dp", "flip": 0.3},
]


@parametrize("defense", EMBEDDING, ids=lambda defense: "-".join(map(str, defense.values())), quick=1)
@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("what", ["batches of one", "batches of one class", "equal rows"])
def test_trainings_on_degenerate_batches_stay_finite(what, classes, defense):
    data = toy_data(rows=24, test_rows=12, classes=classes)
    if what == "equal rows":
        data = dataclasses.replace(
            data, tables={name: array_table(name, np.ones((24, 6), "f"), np.ones((12, 6), "f")) for name in "ab"}
        )
    config = toy_config(
        attack={"names": ["clustering"]},
        training={"epochs": 1, "batch_size": 1 if what == "batches of one" else 4, "validation": 0.0},
        defenses=[defense],
    )
    if what == "batches of one class":  # the order of batches is known to both sides
        order = schedule_of(config, 24, 12)
        labels = np.zeros(24, np.int64)
        for step in range(order.steps):
            labels[order.train_batch(step)] = step % classes
        data = dataclasses.replace(data, target=Labels(labels, data.target.test, classes))
    result = run(config, data=lambda _: data)
    assert result.status == "finished"
    assert math.isfinite(result.summary["utility"]["last"]["train_loss"])
    assert math.isfinite(result.summary["utility"]["last"]["test_loss"])
    assert all(0.0 < entry["mean"] <= 1.0 for entry in result.summary["leakage"])


def mean_cosine(data, alpha):
    """Return the mean cosine of same-class embeddings on test rows, after training."""
    config = toy_config(training={"epochs": 6, "learning_rate": 0.01, "batch_size": 128}, seed=3)
    tops = []
    strategy = strategy_for(data, config)
    strategy.top = nn.Linear(16, 1)
    strategy.top.register_forward_pre_hook(lambda module, inputs: tops.append((module.training, inputs[0].detach())))
    PotentialEnergy(strategy, alpha=alpha).start(federation(data, config))
    z = [z for training, z in tops if not training][-1]
    y = torch.from_numpy(data.target.test)[-len(z) :]
    z = nn.functional.normalize(z[: len(y)])
    same = (y[:, None] == y) & ~torch.eye(len(y), dtype=torch.bool)
    return float((z @ z.T)[same].mean())


@pytest.mark.slow
def test_training_against_the_energy_spreads_embeddings_of_a_class():
    data = toy_data(rows=512)
    assert mean_cosine(data, 4.0) < mean_cosine(data, 0.0) - 0.05


@pytest.mark.parametrize("defense", REGULARISERS)
def test_a_loss_that_diverges_names_step_loss_and_the_weight_that_may_have_done_it(defense):
    data, config = toy_data(rows=200), toy_config()
    reason = rf"diverged: the loss of step 0 is inf; .*learning_rate or a smaller alpha of {defense.name}$"
    with pytest.raises(TrainingError, match=reason):
        defense(strategy_for(data, config), alpha=1e300).start(federation(data, config))


@pytest.mark.parametrize("gradient", [Spy, Iso])
def test_gradients_that_diverge_stop_training_whether_or_not_a_defense_could_hide_them(gradient):
    class Steep(Spy):
        def loss(self, logits, labels, z):
            inner, log = super().loss(logits, labels, z)
            return inner + (z - z.detach()).abs().sum().sqrt(), {**log, "steep.term": 0.0}

    data, config = toy_data(rows=200), toy_config()
    reason = r"the cut gradients of step 0 are not finite at a loss of 0\.\d+; .* or a smaller alpha of steep$"
    with pytest.raises(TrainingError, match=reason):
        gradient(Steep(strategy_for(data, config))).start(federation(data, config))


@pytest.mark.parametrize("kind", ["inproc", "stream"])
def test_a_bottom_model_that_diverges_is_named_with_step_loss_and_weight(kind):
    data = toy_data(rows=200)
    config = toy_config(training={"optimizer": "sgd"}, transport={"kind": kind})
    reason = (
        r"party 'a': .* of step 1 .*not finite, after a loss of \d\S*e\+\d\d; .* a smaller alpha of potential_energy$"
    )
    with pytest.raises(TrainingError, match=reason):
        PotentialEnergy(strategy_for(data, config), alpha=1e30).start(federation(data, config))


def test_without_a_term_the_learning_rate_alone_is_named():
    class Broken(Spy):
        def loss(self, logits, labels, z):
            return logits.sum() * math.nan, {}

    data, config = toy_data(rows=200), toy_config()
    with pytest.raises(TrainingError, match=r"learning_rate$"):
        Broken(strategy_for(data, config)).start(federation(data, config))


def test_the_summary_shows_all_parameters(caplog):
    with caplog.at_level(logging.INFO):
        PotentialEnergy(DistanceCorrelation(base()), alpha=2).summary()
    assert "PotentialEnergy(alpha=2.0, reduction='mean', distance='angular')" in caplog.text
    assert "DistanceCorrelation(alpha=0.05, form='dcor', normalise=False)" in caplog.text


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("term", "classes"), [(distance_correlation, 2), (potential_energy, 1)])
def test_short_number_formats_are_computed_in_float32(term, classes, dtype):
    generator = torch.Generator().manual_seed(0)
    z, y = torch.randn(20, 6, generator=generator).to(dtype).requires_grad_(), torch.arange(20) % classes
    value = term(z, y)
    value.backward()
    assert value.dtype == torch.float32
    assert z.grad.dtype == dtype
    assert value.item() == pytest.approx(term(z.detach().float(), y).item())


@pytest.mark.parametrize("term", [distance_correlation, potential_energy])
def test_the_order_of_the_rows_changes_nothing_and_the_input_is_not_changed(term):
    generator = torch.Generator().manual_seed(0)
    z, y = torch.randn(90, 4, generator=generator, dtype=torch.float64).requires_grad_(), torch.arange(90) % 4
    before = z.detach().clone()
    value = term(z, y)
    value.backward()
    order = torch.randperm(90, generator=torch.Generator().manual_seed(1))
    other = z.detach()[order].view(90, 2, 2).requires_grad_()
    again = term(other, y[order])
    again.backward()
    assert again.item() == pytest.approx(value.item(), rel=1e-12)
    assert torch.allclose(other.grad.flatten(1), z.grad[order], rtol=1e-9, atol=1e-15)
    assert torch.equal(z.detach(), before)
