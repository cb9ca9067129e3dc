"""Logs of the label party during training, beyond losses and leaks: class counts, snapshots, embeddings."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from flower_vfl.apps import run
from flower_vfl.errors import NotFiniteError, ProtocolError, TrainingError
from flower_vfl.protocol.frame import Frame, Kind
from flower_vfl.strategies import Observer
from flower_vfl.tracking import read_embeddings, read_snapshots, read_steps
from flower_vfl.training.factories import schedule_of
from flower_vfl.training.loop import embedding_in
from tests.faults.common import Interrupt
from tests.toys import toy_config, toy_data


class Log(Observer):
    def __init__(self):
        self.rows, self.snapshots = [], {}

    def add(self, **row):
        self.rows.append(row)

    def on_snapshot(self, step, values):
        self.snapshots[step] = values


def trained(folder, data=None, **sections):
    data = data or toy_data(rows=400)
    result = run(toy_config(**sections), data=lambda _: data, out=folder)
    return data, result


def values_of(folder, metric):
    return {row["step"]: row["value"] for row in read_steps(folder).to_pylist() if row["metric"] == metric}


@pytest.mark.parametrize("names", [["norm"], []])
def test_the_class_counts_of_every_batch_are_those_of_the_true_labels(tmp_path, names):
    data, _ = trained(tmp_path / "run", attack={"names": names})
    config = toy_config()
    schedule = schedule_of(config, 400, 150)
    rows, positives = (values_of(tmp_path / "run", metric) for metric in ("batch_rows", "batch_positives"))
    assert set(rows) == set(positives) == set(range(schedule.steps))
    for step in range(schedule.steps):
        labels = data.target.train[schedule.train_batch(step)]
        assert (rows[step], positives[step]) == (labels.size, labels.sum())


def test_with_more_than_two_classes_the_rows_of_the_attacked_class_are_counted(tmp_path):
    data, _ = trained(tmp_path / "run", toy_data(rows=300, classes=3), attack={"names": ["norm"], "every": 2})
    schedule = schedule_of(toy_config(), 300, 150)
    for step, count in values_of(tmp_path / "run", "batch_positives").items():
        labels = data.target.train[schedule.train_batch(step)]
        assert count == np.count_nonzero(labels == (step // 2) % 3)


@pytest.mark.parametrize("attack", [{"names": ["norm"]}, {"names": []}, {"monitor": False, "audit": False}])
def test_snapshots_are_kept_at_the_steps_asked_for_whether_or_not_anything_is_attacked(tmp_path, attack):
    data, _ = trained(tmp_path / "run", attack={**attack, "snapshots": [2, 5, 10_000]})
    table = read_snapshots(tmp_path / "run")
    assert set(table["step"].to_pylist()) == {2, 5}
    labels = data.target.train[schedule_of(toy_config(), 400, 150).train_batch(2)]
    for group, label in (("negative", 0), ("positive", 1)):
        rows = [r for r in table.to_pylist() if (r["step"], r["quantity"], r["group"]) == (2, "residual", group)]
        assert len(rows) == (labels == label).sum()


def test_no_snapshot_leaves_no_file(tmp_path):
    trained(tmp_path / "run", attack={"snapshots": []})
    assert not (tmp_path / "run" / "snapshots.parquet").exists()


def test_predictions_that_no_gradient_shows_have_no_snapshot(tmp_path):
    """Behind `local_head` the label party predicts from a network of its own, whose slopes the parties never get."""
    trained(tmp_path / "run", defenses=[{"name": "local_head"}], attack={"snapshots": [2]})
    assert not (tmp_path / "run" / "snapshots.parquet").exists()


def test_snapshots_change_no_weight_on_any_transport():
    data = toy_data(rows=200)
    weights = [
        run(toy_config(attack={"snapshots": steps}, transport={"kind": kind}), data=lambda _: data).summary["weights"]
        for steps, kind in (([], "inproc"), ([0, 1, 2], "inproc"), ([0, 1, 2], "messages"))
    ]
    assert weights[0] == weights[1] == weights[2]


def test_an_observer_receives_each_snapshot_too():
    data, log = toy_data(rows=200), Log()
    run(toy_config(attack={"snapshots": [1]}), data=lambda _: data, observers=(log,))
    assert list(log.snapshots) == [1]
    assert np.isfinite(np.concatenate(list(log.snapshots[1].values()))).all()


class KeptBottom(torch.nn.Module):
    """A bottom model that the test keeps, to compute its embeddings again."""

    made: list = []  # noqa: RUF012

    def __init__(self, spec, config):
        super().__init__()
        self.last = torch.nn.Linear(spec.numeric, config.model.cut)
        self.made.append(self)

    def forward(self, x):
        return self.last(x)


def test_embeddings_that_are_kept_are_those_of_the_trained_models_for_as_many_rows_of_each_class(tmp_path):
    KeptBottom.made.clear()
    data = toy_data(rows=200, test_rows=150)  # two evaluation messages
    config = toy_config(attack={"names": [], "embeddings": 60})
    run(config, data=lambda _: data, bottom=KeptBottom, out=tmp_path / "run")
    found = read_embeddings(tmp_path / "run")
    assert [(sample.party, sample.view) for sample in found] == [("a", "received"), ("b", "received")]
    makers = []  # parties build their models concurrently, in any order
    for sample in found:
        assert np.bincount(sample.labels).tolist() == [30, 30]
        assert np.array_equal(sample.labels, data.target.test[sample.rows])
        with torch.no_grad():
            own = [model(*data.party(sample.party).test.gather(sample.rows)).numpy() for model in KeptBottom.made]
        makers += [index for index, z in enumerate(own) if np.allclose(sample.z, z, rtol=1e-4, atol=1e-5)]
    assert sorted(makers) == [0, 1]
    assert np.array_equal(found[0].rows, found[1].rows)


@pytest.mark.parametrize("shape", [(6,), (2, 6, 6)], ids=["vectors", "feature maps"])
def test_where_a_defense_normalises_embeddings_they_are_kept_also_as_the_top_model_reads_them(tmp_path, shape):
    data = toy_data(rows=120, test_rows=40, shape=shape)
    config = toy_config(attack={"names": [], "embeddings": 10}, training={"epochs": 1})
    config = config.model_copy(update={"defenses": [{"name": "potential_energy", "alpha": 0.1}]})
    run(config, data=lambda _: data, out=tmp_path / "run")
    received, read = read_embeddings(tmp_path / "run")[:2]
    assert (received.view, read.view) == ("received", "read")
    width = read.z.shape[1]
    assert width <= 10
    lengths = np.linalg.norm(read.z, axis=1)
    assert np.allclose(lengths, lengths[0], rtol=1e-2)  # on a sphere, unlike the received ones
    assert not np.allclose(np.linalg.norm(received.z, axis=1), lengths, rtol=0.05)


def test_keeping_embeddings_changes_no_weight_on_any_transport_and_none_is_kept_when_it_is_off(tmp_path):
    data, weights = toy_data(rows=200), []
    for name, count, kind in (("off", 0, "inproc"), ("on", 50, "inproc"), ("messages", 50, "messages")):
        config = toy_config(attack={"embeddings": count}, transport={"kind": kind})
        weights.append(run(config, data=lambda _: data, out=tmp_path / name).summary["weights"])
    assert weights[0] == weights[1] == weights[2]
    assert not (tmp_path / "off" / "embeddings.parquet").exists()
    kept, sent = (read_embeddings(tmp_path / name) for name in ("on", "messages"))
    assert all(np.array_equal(one.z, other.z) for one, other in zip(kept, sent, strict=True))


def test_an_interrupted_run_keeps_the_embeddings_of_its_last_evaluation(tmp_path):
    data, config = toy_data(rows=200), toy_config(attack={"names": []})
    with pytest.raises(KeyboardInterrupt):
        run(config, data=lambda _: data, out=tmp_path / "run", observers=(Interrupt(hook="on_epoch"),))
    assert len(read_embeddings(tmp_path / "run")) == 2


def test_the_result_lists_the_side_information_of_each_attack(tmp_path):
    _, result = trained(tmp_path / "run", attack={"names": ["norm", "cosine", "hint(k=3)"]})
    side_information = {attack["label"]: (attack["needs"], attack["hints"]) for attack in result.summary["attacks"]}
    assert side_information == {"norm": ([], 0), "cosine": (["reference"], 0), "hint(k=3)": (["hints"], 3)}


class Overflowing(torch.nn.Module):
    """A top model whose logits are finite in training only."""

    def __init__(self, shape, classes, config):
        super().__init__()
        self.last = torch.nn.Linear(shape[0], classes if classes > 2 else 1)
        self.value = math.nan if classes == 2 else math.inf

    def forward(self, z):
        logits = self.last(z).squeeze(1)
        return logits if self.training else logits.index_fill(0, torch.arange(3), self.value)


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize(("validation", "rows"), [(0.0, "3 of 90 test rows"), (0.25, "3 of 50 validation rows")])
def test_a_training_that_diverges_after_its_last_finite_loss_is_reported_as_diverged(classes, validation, rows):
    data = toy_data(rows=200, test_rows=90, classes=classes)
    config = toy_config(attack={"names": []}, training={"validation": validation})
    words = f"training diverged: the predictions for {rows} after epoch 1 are not finite, after a loss of [01]\\."
    with pytest.raises(TrainingError, match=words):
        run(config, data=lambda _: data, top=Overflowing)


@pytest.mark.parametrize(
    ("sent", "error", "words"),
    [
        (torch.zeros(4, 3), ProtocolError, "party 'b': .*embedding"),
        (torch.full((4, 2), torch.nan), NotFiniteError, "party 'b': .*not finite"),
    ],
)
def test_a_wrong_embedding_is_refused_with_the_party_that_sent_it(sent, error, words):
    link = SimpleNamespace(party="b", shape=(2,), dtype=torch.float32)
    with pytest.raises(error, match=words):
        embedding_in(Frame(Kind.EMBEDDING, 3, tensors={"embedding": sent}), link, 4)
