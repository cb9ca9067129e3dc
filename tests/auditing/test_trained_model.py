"""Attacks on a trained model: their inputs, their side information, and the measures of their answers."""

from __future__ import annotations

import dataclasses
from functools import partial

import numpy as np
import pytest
import torch
from sklearn.metrics import accuracy_score, balanced_accuracy_score, roc_auc_score
from torch import nn

from flower_vfl.attacks import InferenceAttack, TrainedView
from flower_vfl.attacks.embedding.clustering import matched_by_chance
from flower_vfl.auditing.audit_labels import draw_examples
from flower_vfl.auditing.recorder import NoRecorder
from flower_vfl.auditing.trained_model import FreshModels, TrainedModel, TrainedModelEvaluator
from flower_vfl.data.store.memory import array_table
from flower_vfl.errors import ConfigError
from flower_vfl.metrics import auc_interval, leak_auc, mean_interval, share_interval
from flower_vfl.nn.placement import Placement
from flower_vfl.rng import Secret

RNG = np.random.default_rng(0)
TABLE = array_table("a", RNG.normal(size=(60, 4)).astype(np.float32), RNG.normal(size=(30, 4)).astype(np.float32))
TRAIN, TEST = np.arange(60) % 3, np.arange(30) % 3


class Bottom(nn.Module):
    """A model that depends on the mode, counts its passes and has a named layer."""

    def __init__(self):
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 3)
        self.register_buffer("passes", torch.zeros(()))

    def forward(self, x):
        self.passes += 1
        return self.last(torch.relu_(self.norm(self.first(x))))


class Watching(InferenceAttack):
    """Records its views, and names class 0 for every row."""

    name, reads = "watching", "classes"

    def __init__(self, leaks=0, draws=1):
        self.needs = frozenset({"leaked"} if leaks else ())
        self._leaks, self._draws, self.seen, self.baselines = leaks, draws, [], 0

    def fresh(self):
        return self

    @property
    def leaks(self):
        return self._leaks

    @property
    def draws(self):
        return self._draws

    def infer(self, view):
        self.seen.append(view)
        return torch.zeros(len(view.embeddings), dtype=torch.int64)

    def baseline(self, view):
        self.baselines += 1
        return torch.ones(len(view.embeddings), dtype=torch.int64)


def trained(bottom=None):
    torch.manual_seed(0)
    fresh = FreshModels(
        bottom=Bottom,
        top=lambda shape, classes: nn.Sequential(nn.Linear(shape[0], classes), nn.Dropout(0.5)),
        seed=partial(Secret.for_simulation(0, "a").seed, "attacks"),
    )
    bottom = bottom or Bottom()
    return bottom, TrainedModel(bottom, TABLE, TRAIN, 3, fresh, placement=Placement())


def scorer(labels=TEST, classes=3):
    return TrainedModelEvaluator(labels, classes, party="a", source="attacker", defended=True)


@pytest.mark.parametrize("count", [1, 4, 20])
def test_each_class_leaks_as_many_true_examples(count):
    rows = draw_examples(TRAIN, 0, classes=3, count=count)
    assert len(set(rows.tolist())) == 3 * count
    assert TRAIN[rows].tolist() == [0] * count + [1] * count + [2] * count


def test_a_draw_depends_on_its_number_alone_and_more_labels_hold_fewer():
    few, many = (draw_examples(TRAIN, 1, classes=3, count=count).reshape(3, -1) for count in (2, 5))
    assert many[:, :2].tolist() == few.tolist()
    assert few.tolist() == draw_examples(TRAIN, 1, classes=3, count=2).reshape(3, -1).tolist()
    assert few.tolist() != draw_examples(TRAIN, 2, classes=3, count=2).reshape(3, -1).tolist()


def test_every_example_leaks_equally_often():
    first = np.concatenate([draw_examples(TRAIN, draw, classes=3, count=1) for draw in range(4000)])
    # 4000 draws of 1 in 20: five standard deviations are 69; false alarm 6e-7 for each of 60 rows.
    assert np.abs(np.bincount(first, minlength=60) - 200).max() < 69


@pytest.mark.parametrize(
    ("count", "classes", "reason"), [(21, 3, "class 0 .* have 20"), (1, 4, "class 3 .* have none")]
)
def test_a_class_with_too_few_examples_is_refused(count, classes, reason):
    with pytest.raises(ConfigError, match=reason):
        draw_examples(TRAIN, 0, classes=classes, count=count)


def test_an_attack_sees_the_outputs_of_the_layer_for_the_test_rows_in_evaluation_mode():
    attack = Watching(leaks=2)
    bottom, model = trained()
    model.entries([attack], {"cut": None, "norm": bottom.norm}, scorer())
    cut, norm = attack.seen
    bottom.eval()
    with torch.no_grad():
        x, known = (source.gather(rows)[0] for source, rows in (
            (TABLE.test, np.arange(30)), (TABLE.train, draw_examples(TRAIN, 0, classes=3, count=2))
        ))  # fmt: skip
        assert torch.equal(cut.embeddings, bottom(x))
        assert torch.equal(norm.embeddings, bottom.norm(bottom.first(x)))  # before the activation that works in place
        assert torch.equal(cut.leaked.embeddings, bottom(known))
        assert torch.equal(norm.leaked.embeddings, bottom.norm(bottom.first(known)))
    assert torch.equal(cut.inputs[0], x)
    assert torch.equal(cut.leaked.inputs[0], known)
    assert cut.leaked.labels.tolist() == [0, 0, 1, 1, 2, 2]


def test_an_attack_that_declares_no_need_gets_no_label_and_none_gets_labels_of_attacked_rows():
    attack = Watching()
    _, model = trained()
    model.entries([attack], {"cut": None}, scorer())
    (view,) = attack.seen
    assert view.leaked is None
    fields = {field.name for field in dataclasses.fields(view)}
    assert fields == {"embeddings", "classes", "seed", "inputs", "leaked", "top", "network"}


def test_attacks_leave_the_model_unchanged():
    for mode in (True, False):
        bottom, model = trained()
        bottom.train(mode)
        before = {name: value.clone() for name, value in bottom.state_dict().items()}
        hooks = len(bottom.norm._forward_hooks)
        model.entries([Watching(leaks=1, draws=2)], {"cut": None, "norm": bottom.norm}, scorer())
        assert bottom.training is mode
        assert all(torch.equal(value, before[name]) for name, value in bottom.state_dict().items())
        assert len(bottom.norm._forward_hooks) == hooks
        assert all(weight.grad is None for weight in bottom.parameters())


@pytest.mark.parametrize("write", [lambda z: z.zero_(), lambda z: z.numpy().fill(0.0)], ids=["tensor", "array"])
def test_an_attack_that_writes_into_its_view_ends_the_run_by_its_name(write):
    class Writing(Watching):
        def infer(self, view):
            write(view.embeddings)
            return super().infer(view)

    with pytest.raises(ConfigError, match="the attack 'watching' writes into what it is shown"):
        trained()[1].entries([Writing()], {"cut": None}, scorer())


def test_rows_go_through_the_model_in_batches_and_come_back_in_order(monkeypatch):
    attack, again = Watching(), Watching()
    _, model = trained()
    model.entries([attack], {"cut": None}, scorer())
    monkeypatch.setattr("flower_vfl.auditing.trained_model.BATCH", 7)
    model.entries([again], {"cut": None}, scorer())
    torch.testing.assert_close(attack.seen[0].embeddings, again.seen[0].embeddings)


def test_draws_differ_in_examples_seeds_and_fresh_models_and_can_be_repeated():
    attack, again = Watching(leaks=1, draws=2), Watching(leaks=1, draws=2)
    for each in (attack, again):
        trained()[1].entries([each], {"cut": None}, scorer())
    one, two = attack.seen
    assert not torch.equal(one.leaked.inputs[0], two.leaked.inputs[0])
    assert one.seed != two.seed
    for make in ("top", "network"):
        weights = [next(getattr(view, make)().parameters()) for view in (one, two, again.seen[0], one)]
        assert torch.equal(weights[0], weights[2])
        assert torch.equal(weights[0], weights[3])
        assert not torch.equal(weights[0], weights[1])
    assert one.top()[0].in_features == 3
    state = torch.get_rng_state()
    top = one.top().train()
    assert not torch.equal(top(torch.ones(8, 3)), top(torch.ones(8, 3)))  # dropout has a generator of its own
    assert torch.equal(state, torch.get_rng_state())


def test_the_network_of_the_baseline_reads_inputs_also_where_the_cut_is_not_attacked():
    attack = Watching(leaks=1)
    bottom, model = trained()
    model.entries([attack], {"first": bottom.first}, scorer())
    view = attack.seen[0]
    assert view.top()[0].in_features == 6
    assert view.network()(*view.inputs).shape == (30, 3)


def test_the_baseline_is_computed_once_a_draw_whatever_the_layers():
    attack = Watching(draws=3)
    bottom, model = trained()
    entries = model.entries([attack], {"cut": None, "first": bottom.first}, scorer())
    assert (len(entries), len(attack.seen), attack.baselines) == (2, 6, 3)


class Answering(Watching):
    """Returns the answers that it was made with."""

    def __init__(self, reads, answers, draws=1):
        super().__init__(draws=draws)
        self.reads, self.answers = reads, list(answers)

    def infer(self, view):
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return torch.as_tensor(answer)


def views(count=1):
    return [TrainedView(torch.zeros(1, 1), 2)] * count


def test_scores_are_measured_as_auc_beside_what_chance_reaches():
    labels, scores = np.arange(40) % 4 // 3, np.random.default_rng(1).normal(size=40)
    entry = scorer(labels, 2).entry(Answering("scores", [scores]), "cut", views(), [{"auc": 0.4}])
    assert (entry["metric"], entry["phase"]) == ("auc", "inference")
    assert entry["mean"] == entry["q95"] == entry["max"] == leak_auc(scores, labels)
    assert entry["interval95"] == list(auc_interval(scores, labels))
    assert 0.5 < entry["q95_null"] < 0.75
    assert (entry["chance"], entry["perfect_protection"]) == (0.5, None)
    assert entry["advantage"] == pytest.approx(entry["mean"] - 0.4)


def test_clusters_are_measured_under_their_best_names_and_classes_under_their_own():
    turned = (TEST + 1) % 3
    clusters = scorer().entry(Answering("clusters", [turned]), "cut", views())
    classes = scorer().entry(Answering("classes", [turned]), "cut", views())
    assert (clusters["mean"], classes["mean"]) == (1.0, 0.0)
    assert clusters["interval95"] == list(share_interval(1.0, 30))
    assert (clusters["chance"], classes["chance"]) == (matched_by_chance(turned, TEST, classes=3)[0], 1 / 3)
    assert clusters["q95_null"] is None
    assert (clusters["baseline"], clusters["advantage"], clusters["perfect_protection"]) == (None, None, None)


@pytest.mark.parametrize(("alone", "protected"), [((0.2, 0.4), False), ((0.9, 0.9), True), ((0.5, 0.4), True)])
def test_several_draws_have_means_intervals_and_an_advantage_that_is_taken_draw_by_draw(alone, protected):
    answers = [np.where(np.arange(30) < right, TEST, (TEST + 1) % 3) for right in (9, 15)]  # 0.3 and 0.5
    entry = scorer().entry(Answering("classes", answers, draws=2), "cut", views(2), [{"accuracy": a} for a in alone])
    assert (entry["mean"], entry["max"], entry["q95"], entry["steps"]) == (pytest.approx(0.4), 0.5, 0.5, 2)
    assert entry["interval95"] == pytest.approx(mean_interval([0.3, 0.5]))
    gains = [0.3 - alone[0], 0.5 - alone[1]]
    assert entry["baseline"] == pytest.approx(np.mean(alone))
    assert entry["advantage"] == pytest.approx(np.mean(gains))
    assert entry["advantage_interval95"] == pytest.approx(mean_interval(gains))
    assert entry["perfect_protection"] is protected


FAILING = [
    *(RuntimeError("shapes differ"), ValueError("no rows"), IndexError("no row"), KeyError("x")),
    *(TypeError("no number"), ZeroDivisionError("by zero"), AssertionError("no")),
    *(torch.zeros(3), torch.arange(30), TEST + 0.5, torch.full((30,), -1)),
]


@pytest.mark.parametrize("answer", FAILING, ids=str)
def test_a_draw_that_fails_is_counted_and_says_why(answer, caplog):
    entry = scorer().entry(Answering("classes", [TEST, answer], draws=2), "cut", views(2), [{"accuracy": 0.5}] * 2)
    assert (entry["steps"], entry["one_class_steps"], entry["mean"]) == (2, 1, 1.0)
    assert (entry["advantage"], entry["perfect_protection"], entry["interval95"]) == (None, None, None)
    assert entry["unavailable"]
    assert entry["unavailable"] in caplog.text


@pytest.mark.parametrize(("reads", "answer"), [("classes", [0] * 30), ("scores", torch.zeros(30) + 0j)])
def test_what_is_no_tensor_or_no_real_number_is_not_measured(reads, answer):
    attack = Answering(reads, [])
    attack.infer = lambda view: answer
    entry = scorer(TEST % 2, 2).entry(attack, "cut", views(), [{"accuracy": 0.5}])
    assert (entry["mean"], entry["perfect_protection"]) == (None, None)
    assert "a tensor (30,) is needed" in entry["unavailable"] or "complex64" in entry["unavailable"]


def test_a_test_table_of_one_class_has_no_auc():
    entry = scorer(np.zeros(30, dtype=np.int64), 2).entry(Answering("scores", [np.arange(30.0)]), "cut", views())
    assert (entry["mean"], entry["one_class_steps"]) == (None, 1)


def test_a_baseline_that_does_not_exist_or_fails_gives_no_advantage():
    nothing = Watching()
    nothing.baseline = lambda view: None
    failing = Watching()
    failing.baseline = lambda view: torch.zeros(2)
    for attack in (nothing, failing):
        (values,) = scorer().baselines(attack, views())
        assert values == {}
        assert scorer().entry(Answering("classes", [TEST]), "cut", views(), [values])["advantage"] is None


LOGITS = np.random.default_rng(3).normal(size=30) + TEST


def test_logits_of_two_classes_are_measured_by_the_order_and_by_the_classes_that_they_name():
    labels = (TEST == 2).astype(np.int64)
    entry = scorer(labels, 2).entry(Answering("logits", [LOGITS]), "cut", views(), [{"auc": 0.5, "accuracy": 0.1}])
    found = {name: measure["mean"] for name, measure in entry["measures"].items()}
    named = LOGITS > 0
    assert found == {
        "accuracy": pytest.approx(accuracy_score(labels, named)),
        "balanced_accuracy": pytest.approx(balanced_accuracy_score(labels, named)),
        "auc": pytest.approx(roc_auc_score(labels, LOGITS)),
    }
    assert entry["mean"] == found["accuracy"]
    assert entry["measures"]["auc"]["advantage"] == pytest.approx(found["auc"] - 0.5)
    assert entry["measures"]["balanced_accuracy"]["advantage"] is None
    chances = {name: measure["chance"] for name, measure in entry["measures"].items()}
    assert chances == {"accuracy": pytest.approx(2 / 3), "balanced_accuracy": 0.5, "auc": 0.5}
    for name, measure in entry["measures"].items():
        low, high = measure["interval95"]
        assert low < found[name] < high, name


def test_logits_of_more_classes_are_measured_by_the_mean_over_classes():
    logits = np.random.default_rng(4).normal(size=(30, 3)) + 1.5 * np.eye(3)[TEST]
    measures = scorer().entry(Answering("logits", [logits]), "cut", views())["measures"]
    expected = np.mean([roc_auc_score(c == TEST, logits[:, c]) for c in range(3)])
    assert measures["accuracy"]["mean"] == pytest.approx(accuracy_score(TEST, logits.argmax(axis=1)))
    assert measures["balanced_accuracy"]["mean"] == pytest.approx(balanced_accuracy_score(TEST, logits.argmax(axis=1)))
    assert measures["balanced_accuracy"]["chance"] == pytest.approx(1 / 3)
    assert measures["auc"]["mean"] == pytest.approx(expected)
    failed = scorer().entry(Answering("logits", [LOGITS]), "cut", views())
    assert "(30, 3) is needed" in failed["unavailable"]


def test_clusters_have_a_balanced_accuracy_but_no_interval_of_it():
    measures = scorer().entry(Answering("clusters", [(TEST + 1) % 3]), "cut", views())["measures"]
    assert list(measures) == ["accuracy", "balanced_accuracy"]
    assert measures["balanced_accuracy"] == {
        **dict.fromkeys(("interval95", "baseline", "baseline_interval95", "advantage", "advantage_interval95")),
        "mean": 1.0,
        "chance": matched_by_chance(TEST, TEST, classes=3)[1],
    }


def test_a_class_without_a_test_row_does_not_lower_the_chance_of_the_others():
    labels = np.arange(30) % 2
    measures = scorer(labels, 3).entry(Answering("classes", [labels]), "cut", views())["measures"]
    assert measures["balanced_accuracy"]["chance"] == 0.5


class Kept(NoRecorder):
    def __init__(self):
        self.rows = []

    def add(self, **row):
        self.rows.append(row)


@pytest.mark.parametrize(("source", "prefix"), [("attacker", ""), ("monitor", "monitor_")])
def test_every_draw_is_logged_after_the_steps_of_the_training(source, prefix):
    kept = Kept()
    recorded = TrainedModelEvaluator(TEST, 3, party="a", source=source, defended=False, recorder=kept, step=70, epoch=7)
    attack = Watching(draws=2)
    recorded.entry(attack, "first", [TrainedView(torch.zeros(30, 2), 3)] * 2)
    recorded.baselines(attack, [TrainedView(torch.zeros(30, 2), 3)] * 2)
    rows = [(row["step"], row["layer"], row["metric"]) for row in kept.rows]
    names = ("accuracy", "balanced_accuracy")
    assert rows == [
        *((70 + draw, "first", f"{prefix}inference_{name}") for draw in (0, 1) for name in names),
        *((70 + draw, "", f"{prefix}baseline_{name}") for draw in (0, 1) for name in names),
    ]
    assert {(row["epoch"], row["party"], row["attack"]) for row in kept.rows} == {(7, "a", "watching")}
    assert all(row["value"] == pytest.approx(1 / 3) for row in kept.rows)


class CountingAttack(InferenceAttack):
    """Returns scores that change their sign with each call."""

    name, reads = "counting", "scores"

    def __init__(self):
        self.asked = 0

    def infer(self, view):
        self.asked += 1
        return view.embeddings[:, 0] * (-1.0) ** self.asked


def test_an_attack_with_state_keeps_nothing_of_another_layer():
    labels = np.array([0, 0, 1, 1, 1, 0])
    scorer = TrainedModelEvaluator(
        labels, 2, party="a", source="monitor", defended=False, recorder=NoRecorder(), step=0, epoch=1
    )
    z = torch.from_numpy(labels).float()[:, None]
    attack = CountingAttack()
    first, cut = (scorer.entry(attack, layer, [TrainedView(z, 2, 0)])["mean"] for layer in ("first", "cut"))
    assert first == cut == 0.0
