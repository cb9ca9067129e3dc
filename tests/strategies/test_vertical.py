"""The strategy's hooks: their order, the checks of what they return, and the training that calls them."""

from __future__ import annotations

import logging
import math

import numpy as np
import pytest
import torch
from torch import nn

from flower_vfl.apps import run
from flower_vfl.apps.client_app import make_client_app
from flower_vfl.apps.local_grid import LocalGrid
from flower_vfl.errors import ConfigError, DataError, UnprotectedBatchError
from flower_vfl.parties.hooks import checked_log
from flower_vfl.simulations.tables import print_results
from flower_vfl.strategies import DEFENSES, Defense, Iso, LabelDP, LocalHead, Observer, VerticalStrategy
from flower_vfl.strategies.gradients.base import GradientDefense
from flower_vfl.training.factories import schedule_of
from tests.cases import parametrize
from tests.toys import toy_config, toy_data


class Spy(Defense):
    """A defense that records every call of a hook."""

    name = "spy"

    def __init__(self, strategy, tag="spy", calls=None):
        super().__init__(strategy)
        self.tag, self.calls = tag, [] if calls is None else calls

    @property
    def params(self):
        return {"tag": self.tag}

    def prepare_labels(self, labels):
        self.calls.append((self.tag, "prepare_labels"))
        return super().prepare_labels(labels)

    def embed(self, z, *, party="", train=True):
        self.calls.append((self.tag, "embed"))
        return super().embed(z, party=party, train=train)

    def loss(self, logits, labels, z):
        self.calls.append((self.tag, "loss"))
        return super().loss(logits, labels, z)

    def protect(self, grads, labels, step=None):
        grads, log = super().protect(grads, labels, step)
        self.calls.append((self.tag, "protect"))
        return grads, {**log, f"{self.tag}.seen": float(len(labels))}


def federation(data, config):
    return LocalGrid(make_client_app(data=lambda _: data, config=config), len(data.parties), {})


def strategy_for(data, config, **more):
    return VerticalStrategy(
        lambda shape: nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), 1)),
        data.labels(),
        parties=data.parties,
        config=config,
        **more,
    )


class Values(Observer):
    def __init__(self):
        self.values = {}

    def add(self, *, step, epoch, party, layer, attack, metric, value):
        self.values.setdefault(metric, []).append(value)


def test_start_of_the_outermost_strategy_runs_every_hook_and_protects_inner_first():
    data, config = toy_data(rows=200), toy_config(training={"epochs": 1})
    calls = []
    outer = Spy(Spy(strategy_for(data, config), "inner", calls), "outer", calls)
    outer.start(federation(data, config))
    protects = [tag for tag, hook in calls if hook == "protect"]
    assert protects[:2] == ["inner", "outer"]
    assert {hook for tag, hook in calls if tag == "outer"} == {"prepare_labels", "embed", "loss", "protect"}
    assert sum(hook == "prepare_labels" for _, hook in calls) == 2


@pytest.mark.parametrize("defend", [lambda base: base, lambda base: Iso(base, t=1.0)])
def test_a_strategy_is_trained_once_and_nothing_of_it_reaches_the_next_run(defend):
    data, config = toy_data(rows=200), toy_config(training={"epochs": 1})
    strategy = defend(strategy_for(data, config))
    weights = strategy.start(federation(data, config)).outcome.weights
    with pytest.raises(ConfigError, match=r"trained before.*make a new VerticalStrategy"):
        strategy.start(federation(data, config))
    assert strategy.base.outcome.weights == weights
    assert defend(strategy_for(data, config)).start(federation(data, config)).outcome.weights == weights


def test_hooks_of_begin_and_end_are_called_innermost_first_though_no_wrapper_passes_them_on():
    class Recording(Spy):
        def begin(self):
            self.calls.append((self.tag, "begin"))

        def begin_batch(self, rows):
            self.calls.append((self.tag, len(rows)))

        def end_epoch(self):
            self.calls.append((self.tag, "end_epoch"))
            return {f"{self.tag}.epochs": 1.0}

    data, config = toy_data(rows=200), toy_config(training={"epochs": 1})
    calls, values, batches = [], Values(), []

    class Inner(Recording):
        def protect(self, grads, labels, step=None):
            batches.append(len(self.base.step.rows))
            return super().protect(grads, labels, step)

    outer = Recording(Inner(strategy_for(data, config, observer=values), "inner", calls), "outer", calls)
    outer.start(federation(data, config))
    hooks = [
        hook for tag, hook in calls if tag == "inner" and hook not in ("prepare_labels", "embed", "loss", "protect")
    ]
    assert hooks == ["begin", 64, 64, 52, "end_epoch"]
    assert batches == [64, 64, 52]
    for hook in ("begin", "end_epoch", 52):
        assert [tag for tag, called in calls if called == hook] == ["inner", "outer"]
    assert values.values["inner.epochs"] == values.values["outer.epochs"] == [1.0]


def test_observers_of_a_run_receive_each_value_with_a_folder_or_without(tmp_path):
    class Flushed(Values):
        flushed = 0

        def flush(self):
            self.flushed += 1

    config = toy_config(training={"epochs": 1}, attack={"names": ["norm"]})
    for out in (None, tmp_path / "run"):
        values = Flushed()
        run(config, data=lambda _: toy_data(rows=200), observers=(values,), out=out)
        assert len(values.values["train_loss"]) == 3
        assert len(values.values["monitor_auc"]) == 9  # of two parties, and of both together
        assert values.flushed


def test_what_hooks_return_is_logged_each_step():
    data, config = toy_data(rows=200), toy_config(training={"epochs": 1})
    values = Values()
    Spy(strategy_for(data, config, observer=values), "mine").start(federation(data, config))
    assert len(values.values["mine.seen"]) == 3
    assert values.values["mine.seen"][0] == 64.0


@parametrize("value", ["1.0", None, True, torch.ones(1), torch.ones(2)], quick=1)
@pytest.mark.parametrize("hook", ["prepare_labels", "embed", "loss", "protect", "end_epoch"])
def test_what_is_no_number_is_refused_when_it_is_to_be_logged_for_the_first_time(hook, value):
    class Logging(Defense):
        name = "logging"
        params = {}  # noqa: RUF012

    def called(self, *given, **named):
        log = {"mine": value}
        return log if hook == "end_epoch" else (getattr(self.strategy, hook)(*given, **named)[0], log)

    setattr(Logging, hook, called)
    data, config = toy_data(rows=200), toy_config(training={"epochs": 1})
    with pytest.raises(ConfigError, match=f"a defense's `{hook}` wants 'mine' = .* logged; a name and a number"):
        Logging(strategy_for(data, config)).start(federation(data, config))


def test_a_loss_that_writes_into_the_labels_ends_the_run():
    class Overwriting(Defense):
        """Sets all labels to 0 after the loss."""

        name = "overwriting"
        params = {}  # noqa: RUF012

        def loss(self, logits, labels, z):
            found = self.strategy.loss(logits, labels, z)
            labels.zero_()
            return found

    data, config = toy_data(rows=200), toy_config(training={"epochs": 1})
    with pytest.raises(ConfigError, match="loss of a defense writes into the labels, which others use after it"):
        Overwriting(strategy_for(data, config)).start(federation(data, config))


def test_numbers_of_any_kind_are_logged_and_what_is_no_dictionary_is_refused():
    assert checked_log({"a": 1, "b": np.float32(0.5)}, "protect") == {"a": 1.0, "b": 0.5}
    for name in ("train_loss", "test_auc", "epoch_train_loss", "batch_rows"):
        with pytest.raises(ConfigError, match=f"'{name}' logged, which is a name of the training's own metrics"):
            checked_log({name: 1.0}, "loss")
    for log in (None, [("a", 1.0)]):
        with pytest.raises(ConfigError, match="a dictionary of numbers is needed"):
            checked_log(log, "end_epoch")


def test_the_summary_shows_the_defenses_as_a_tree_and_their_absence_as_a_warning(caplog):
    data, config = toy_data(), toy_config()
    with caplog.at_level(logging.INFO):
        Iso(strategy_for(data, config), t=2.0).summary()
    assert "Iso(t=2.0" in caplog.text
    assert "no defense" not in caplog.text
    strategy_for(data, config).summary()
    assert "no defense is in force" in caplog.text


@pytest.mark.parametrize(
    ("change", "words"),
    [(lambda g: g * math.inf, "not sent"), (lambda g: g[:, :1], "defense returned")],
    ids=["not finite", "another shape"],
)
def test_a_protected_gradient_that_is_not_finite_or_of_another_shape_is_never_sent(change, words):
    class Broken(Spy):
        def protect(self, grads, labels, step=None):
            return change(grads), {}

    data, config = toy_data(rows=200), toy_config(transport={"kind": "inproc"})
    with pytest.raises(UnprotectedBatchError, match=words):
        Broken(strategy_for(data, config)).start(federation(data, config))


@pytest.mark.parametrize(("classes", "given", "expected"), [(2, 2, "(64,)"), (3, 5, "(64, 3)"), (3, 1, "(64, 3)")])
def test_logits_that_are_not_one_a_row_and_class_are_refused_at_the_first_step(classes, given, expected):
    data, config = toy_data(rows=200, classes=classes), toy_config(attack={"names": []})
    with pytest.raises(ConfigError) as caught:
        run(config, data=lambda _: data, top=lambda shape, classes, config: nn.Linear(math.prod(shape), given))
    assert f"for 64 rows of {classes} classes; {expected} is needed" in str(caught.value)


def test_hooks_get_prepared_labels_and_scorers_get_the_true_ones():
    class Flip(Spy):
        def prepare_labels(self, labels):
            return 1 - labels, {}

        def protect(self, grads, labels, step=None):
            self.calls.append(labels.clone())
            return grads, {}

    data, config = toy_data(rows=200), toy_config(training={"epochs": 1, "validation": 0.0, "batch_size": 200})
    flip = Flip(strategy_for(data, config))
    flip.start(federation(data, config))
    (seen,) = (call for call in flip.calls if isinstance(call, torch.Tensor))
    assert int(seen.sum()) == 200 - int(data.target.train.sum())
    assert flip.base.outcome.leakage[0]["steps"] == 1


class Prepares(Spy):
    """A defense that applies a given function to the labels."""

    name = "prepares"

    def __init__(self, strategy, change):
        super().__init__(strategy)
        self.change = change

    def prepare_labels(self, labels):
        labels, log = super().prepare_labels(labels)
        return self.change(labels), log


def test_a_defense_that_writes_into_the_labels_changes_neither_the_data_nor_the_truth_of_the_scorers():
    def flip(labels):
        labels[::3] = 1 - labels[::3]
        return labels

    data, config = toy_data(rows=200), toy_config(training={"epochs": 1})
    given, entries = data.target.train.copy(), []
    for change in (flip, lambda labels: flip(labels.clone())):
        defense = Prepares(strategy_for(data, config), change)
        defense.start(federation(data, config))
        entries.append(defense.base.outcome.leakage)
    assert np.array_equal(data.target.train, given)
    assert entries[0] == entries[1]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda labels: labels.float() * 0.9 + 0.05, r"returned torch\.float32 \(200,\); return the class of each"),
        (lambda labels: labels > 0, r"returned torch\.bool \(200,\)"),
        (lambda labels: nn.functional.one_hot(labels, 2), r"returned torch\.int64 \(200, 2\)"),
        (lambda labels: labels[1:], r"each of the 200 rows"),
        (lambda labels: labels.numpy(), r"returned a tuple of 2, the first of type ndarray; return a tensor"),
        (lambda labels: labels + 1, r"classes 1 to 2; labels of 2 classes are 0 to 1"),
        (lambda labels: labels - 1, r"classes -1 to 0"),
    ],
    ids=["smoothed", "bool", "one-hot", "too few", "an array", "too high", "negative"],
)
def test_prepared_labels_that_are_no_classes_are_refused_by_the_name_of_the_defense(change, words):
    data, config = toy_data(rows=200), toy_config()
    defense = Iso(Prepares(strategy_for(data, config), change))
    with pytest.raises(ConfigError, match=f"prepare_labels of prepares.*{words}"):
        defense.start(federation(data, config))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int32])
def test_prepared_labels_may_be_whole_numbers_of_any_size(dtype):
    data, config = toy_data(rows=200), toy_config(training={"epochs": 1})
    losses = []
    for change in (lambda labels: labels, lambda labels: labels.to(dtype)):
        defense = Prepares(strategy_for(data, config), change)
        defense.start(federation(data, config))
        losses.append(defense.base.outcome.epochs[0]["train_loss"])
    assert losses[0] == losses[1]


def test_joint_scope_draws_one_noise_and_per_party_scope_one_for_each_party():
    class Count(GradientDefense):
        name = "count"
        params = {}  # noqa: RUF012

        def perturb(self, g, y):
            widths.append(g.shape[1])
            return g, {}

    for scope, expected in (("joint", [16]), ("per-party", [8, 8])):
        widths: list[int] = []
        data, config = toy_data(rows=100), toy_config(training={"epochs": 1, "batch_size": 200, "validation": 0.0})
        Count(strategy_for(data, config), scope=scope).start(federation(data, config))
        assert widths == expected


def test_clipping_happens_before_the_defense():
    norms = []

    class Recording(Spy):
        def protect(self, grads, labels, step=None):
            norms.append(float(grads.norm()))
            return grads * 100, {}

    data = toy_data(rows=200)
    config = toy_config(training={"epochs": 1, "clip_norm": 1e-3})
    Recording(strategy_for(data, config)).start(federation(data, config))
    assert max(norms) <= 1.001e-3


def test_class_weights_are_taken_from_the_prepared_labels():
    y = torch.tensor([0, 0, 0, 1])
    strategy = VerticalStrategy(nn.Linear(2, 1), y, config=toy_config(training={"class_weights": "balanced"}))
    strategy.prepare_labels(y)
    logits = torch.zeros(4)
    loss, _ = strategy.loss(logits, y, torch.zeros(4, 2))
    weights = torch.tensor([4 / 6, 4 / 6, 4 / 6, 2.0])
    assert loss.item() == pytest.approx((weights * math.log(2)).mean().item(), rel=1e-6)


def test_class_weights_of_several_classes_hold_in_a_batch_of_one_class():
    y = torch.tensor([0] * 80 + [1] * 10 + [2] * 10)
    strategy = VerticalStrategy(nn.Linear(2, 3), y, config=toy_config(training={"class_weights": "balanced"}))
    strategy.prepare_labels(y)
    alone = [float(strategy.loss(torch.zeros(1, 3), y[row : row + 1], torch.zeros(1, 2))[0]) for row in (0, 80, 90)]
    assert alone == pytest.approx([math.log(3) * 100 / (3 * count) for count in (80, 10, 10)], rel=1e-6)
    whole, _ = strategy.loss(torch.zeros(100, 3), y, torch.zeros(100, 2))
    assert whole.item() == pytest.approx(math.log(3), rel=1e-6)


@pytest.mark.parametrize("on_leak", ["stop", "warn"])
def test_the_leak_limit_stops_or_warns(on_leak, caplog):
    data = toy_data(rows=400)
    config = toy_config(training={"epochs": 3}, attack={"max_leak": 0.51, "on_leak": on_leak})
    result = run(config, data=lambda _: data)
    assert "attack.max_leak is 0.51" in caplog.text
    assert result.status == ("leak limit" if on_leak == "stop" else "finished")
    assert len(result.outcome.epochs) == (1 if on_leak == "stop" else 3)


def test_early_stopping_waits_for_its_patience_and_keeps_the_best_epoch():
    data = toy_data(rows=300)
    config = toy_config(training={"epochs": 30, "patience": 2, "learning_rate": 0.05})
    result = run(config, data=lambda _: data)
    scores = [epoch["validation_auc"] for epoch in result.outcome.epochs]
    assert result.status == "early stopping"
    assert len(scores) == int(np.argmax(scores)) + 3
    assert result.summary["utility"]["best"]["epoch"] == int(np.argmax(scores)) + 1


def one_class_validated(classes):
    """Return data and a configuration whose validation rows are all of class 0."""
    config = toy_config(training={"epochs": 4, "patience": 1, "validation": 0.05})
    data = toy_data(rows=300, classes=classes)
    schedule = schedule_of(config, 300, 150)
    held_out = [schedule.eval_batch("validation", index) for index in range(schedule.batches("validation"))]
    data.target.train[np.concatenate(held_out)] = 0
    return data, config


@pytest.mark.parametrize("classes", [2, 3])
def test_a_validation_part_of_one_class_chooses_no_epoch_ends_no_training_and_is_reported_once(classes, caplog, capsys):
    data, config = one_class_validated(classes)
    result = run(config, data=lambda _: data)
    assert (result.status, len(result.outcome.epochs)) == ("finished", 4)
    assert result.summary["utility"]["best"] == result.summary["utility"]["last"]
    assert result.summary["best_by"] is None
    warnings = [record.message for record in caplog.records if "of one class" in record.message]
    assert len(warnings) == 1
    assert "training.patience = 1 ends nothing" in warnings[0]
    print_results([result.summary])
    assert "no epoch was chosen by validation" in " ".join(capsys.readouterr().out.split())


@parametrize(
    ("classes", "weights", "measure"),
    [
        (2, "none", "validation_auc"),
        (2, "balanced", "validation_auc"),
        (3, "none", "validation_accuracy"),
        (3, "balanced", "validation_macro_auc"),
    ],
    quick=1,
)
def test_the_result_names_the_measure_that_chose_the_best_epoch(classes, weights, measure, caplog, capsys):
    data = toy_data(rows=300, classes=classes)
    training = {"class_weights": weights, "epochs": 6, "patience": 2, "learning_rate": 0.05}
    result = run(toy_config(training=training), data=lambda _: data)
    scores = [epoch[measure] for epoch in result.outcome.epochs]
    assert result.summary["model"]["epoch"] == int(np.argmax(scores)) + 1
    assert result.summary["best_by"] == measure
    print_results([result.summary])
    assert "of one class" not in caplog.text + capsys.readouterr().out


def test_without_a_validation_part_the_last_epoch_is_the_best_and_no_warning_is_logged(caplog):
    data = toy_data(rows=300)
    result = run(toy_config(training={"validation": 0.0}), data=lambda _: data)
    assert (result.summary["best_by"], result.summary["utility"]["best"]["epoch"]) == (None, 2)
    assert "of one class" not in caplog.text


def test_flower_callers_can_start_from_given_weights_and_follow_each_epoch():
    from flwr.app import ArrayRecord

    data, config = toy_data(rows=200), toy_config(training={"learning_rate": 1e-12})
    top = nn.Linear(16, 1)
    given = {name: torch.full_like(value, 0.25) for name, value in top.state_dict().items()}
    seen = []
    strategy = VerticalStrategy(top, data.labels(), parties=data.parties, config=config)
    result = strategy.start(
        federation(data, config),
        initial_arrays=ArrayRecord(given),
        num_rounds=0,
        evaluate_fn=lambda epoch, arrays: seen.append((epoch, arrays)),
    )
    assert torch.allclose(result.arrays.to_torch_state_dict()["weight"], given["weight"], atol=1e-6)
    assert [epoch for epoch, _ in seen] == [1, 2]
    assert result.evaluate_metrics_serverapp[2]["test_auc"] > 0


@pytest.mark.parametrize("defense", [LabelDP, LocalHead])
def test_a_proof_excludes_weights_that_may_have_been_trained_on_the_same_labels(defense):
    from flwr.app import ArrayRecord

    data, config = toy_data(rows=200), toy_config(training={"patience": 0})
    top = nn.Linear(16, 1)
    strategy = defense(VerticalStrategy(top, data.labels(), parties=data.parties, config=config))
    with pytest.raises(ConfigError, match=rf"the proof of {strategy.name} .* initial_arrays may come"):
        strategy.start(federation(data, config), initial_arrays=ArrayRecord(top.state_dict()))


def test_iso_adds_noise_of_the_power_it_promises():
    g = torch.randn(4000, 8, generator=torch.Generator().manual_seed(0))
    y = torch.zeros(4000)
    strategy = Iso(VerticalStrategy(nn.Linear(8, 1), torch.tensor([0, 1])), t=4.0)
    noisy, log = strategy.protect(g, y)
    power = (noisy - g).pow(2).sum(dim=1).mean().item()
    promised = 4.0 * g.norm(dim=1).max().item() ** 2
    # 32,000 squared normals: their mean is within 4 % of 1 with probability above 1 - 1e-6.
    assert power == pytest.approx(promised, rel=0.04)
    assert log["iso.noise_power"] == pytest.approx(promised, rel=1e-5)


@pytest.mark.parametrize("t", [-1.0, math.nan, math.inf, "2", True])
def test_iso_refuses_impossible_strengths(t):
    with pytest.raises(ConfigError, match="iso: t must"):
        Iso(VerticalStrategy(nn.Linear(8, 1), torch.tensor([0, 1])), t=t)


def test_a_defense_wraps_strategies_only():
    with pytest.raises(ConfigError, match="wraps"):
        Iso(nn.Linear(2, 1))


def test_labels_that_are_no_classes_are_refused():
    with pytest.raises(DataError, match="whole numbers"):
        VerticalStrategy(nn.Linear(2, 1), torch.tensor([0.2, 0.7]))


def test_every_defense_has_the_name_that_the_configuration_uses():
    assert all(defense.name == name for name, defense in DEFENSES.items())


class Returning(Iso):
    """Returns something from a hook."""

    name = "returning"
    hook, found = "", None

    def embed(self, z, *, party="", train=True):
        return self.found(z) if self.hook == "embed" else super().embed(z, party=party, train=train)

    def loss(self, logits, labels, z):
        return self.found(logits) if self.hook == "loss" else super().loss(logits, labels, z)

    def perturb(self, g, y):
        return self.found(g) if self.hook == "perturb" else super().perturb(g, y)


@pytest.mark.parametrize(
    ("hook", "found", "words"),
    [
        ("perturb", lambda g: g, "perturb of returning returned a value of type Tensor; return a tensor and a dict"),
        ("perturb", lambda g: (g.numpy(), {}), "a tuple of 2, the first of type ndarray"),
        ("embed", lambda z: z, "embed of a defense returned a value of type Tensor"),
        (
            "loss",
            lambda logits: (logits.square(), {}),
            r"loss of a defense returned a tensor \(.*\); return a single number",
        ),
        ("loss", lambda logits: (0.5, {}), "loss of a defense returned a tuple of 2, the first of type float"),
    ],
)
def test_a_hook_that_returns_something_else_ends_with_its_name(monkeypatch, hook, found, words):
    monkeypatch.setattr(Returning, "hook", hook)
    monkeypatch.setattr(Returning, "found", staticmethod(found))
    data, config = toy_data(rows=200), toy_config()
    with pytest.raises(ConfigError, match=words):
        Returning(strategy_for(data, config)).start(federation(data, config))
