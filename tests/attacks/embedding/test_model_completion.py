"""Model completion: initial weights, end of training, accuracy, and the baseline without the bottom model."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import NearestCentroid
from torch import nn

from flower_vfl.attacks.embedding import model_completion
from flower_vfl.attacks.embedding.inference import Leaked, TrainedView
from flower_vfl.attacks.embedding.model_completion import ModelCompletionAttack
from flower_vfl.attacks.rows import normalised
from flower_vfl.errors import ConfigError, InputError
from flower_vfl.metrics.utility import predicted_classes
from flower_vfl.nn import seeded_initialisation
from tests.attacks.embedding.test_clustering import clouds
from tests.cases import parametrize


@pytest.fixture(autouse=True)
def _one_thread():
    """Compute in one thread: small models are not faster with two, and parallel tests would be much slower."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def make(*layers, seed=0):
    with seeded_initialisation(seed):
        return nn.Sequential(*(layer() for layer in layers))


def linear(width, out):
    return make(nn.Flatten, lambda: nn.Linear(width, out))


def deep(width, out, seed=0):
    return make(nn.Flatten, lambda: nn.Linear(width, 16), nn.ReLU, lambda: nn.Linear(16, out), seed=seed)


@pytest.mark.parametrize(("classes", "out"), [(2, 1), (2, 2), (3, 3), (5, 5)])
def test_one_linear_layer_starts_at_the_nearest_class_mean(classes, out):
    z, y = clouds(classes, 40 * classes, apart=1.5, dtype=torch.float32)
    leaked = slice(0, 4 * classes)
    top = linear(classes, out)
    assert model_completion.start_at_class_means(top, z[leaked], y[leaked], classes=classes)
    nearest = NearestCentroid().fit(z[leaked].numpy(), y[leaked].numpy())
    with torch.no_grad():
        logits = top(z)
    found = (logits.squeeze(1) > 0).long() if out == 1 else logits.argmax(dim=1)
    assert found.tolist() == nearest.predict(z.numpy()).tolist()


def test_the_class_means_are_those_of_the_inputs_of_the_linear_layer():
    z, y = clouds(2, dtype=torch.float32)
    top = make(lambda: nn.LayerNorm(2, elementwise_affine=False), lambda: nn.Linear(2, 1, bias=False))
    assert model_completion.start_at_class_means(top, z, y, classes=2)
    expected = top[0](z)[y == 1].mean(dim=0) - top[0](z)[y == 0].mean(dim=0)
    torch.testing.assert_close(top[1].weight[0].detach(), expected)


def test_any_other_top_keeps_its_initial_weights():
    z, y = clouds(2, dtype=torch.float32)
    for top in (deep(2, 1), make(lambda: nn.Conv1d(2, 1, 1)), nn.Identity()):
        before = [weight.clone() for weight in top.parameters()]
        assert not model_completion.start_at_class_means(top, z, y, classes=2)
        assert all(torch.equal(a, b) for a, b in zip(before, top.parameters(), strict=True))


@parametrize("classes", [2, 3], quick=1)
def test_training_a_linear_top_ends_where_logistic_regression_ends(classes, monkeypatch):
    monkeypatch.setattr(model_completion, "MOST_EPOCHS", 4_000)
    z, y = clouds(classes, 60, apart=1.0)
    top = linear(classes, 1 if classes == 2 else classes).double()
    model_completion.train(top, (z,), y, classes=classes, learning_rate=0.02)  # the classes overlap
    reference = LogisticRegression(C=np.inf, tol=1e-10, max_iter=10_000).fit(z.numpy(), y.numpy())
    with torch.no_grad():
        logits = top(z)
    found = torch.sigmoid(logits) if classes == 2 else torch.softmax(logits, dim=1)
    expected = torch.from_numpy(reference.predict_proba(z.numpy()))
    torch.testing.assert_close(found, expected[:, 1:] if classes == 2 else expected, rtol=0, atol=1e-3)


def test_training_ends_as_soon_as_the_examples_are_right_and_at_the_latest_after_a_thousand_epochs():
    z, y = clouds(2, dtype=torch.float32)
    top = deep(2, 1)
    epochs = model_completion.train(top, (z,), y, classes=2)
    assert 0 < epochs < 1000
    assert predicted_classes(model_completion.predict(top, (z,), classes=2)).tolist() == y.tolist()
    assert model_completion.train(top, (z,), y, classes=2) == 0
    assert model_completion.train(deep(2, 1), (z * 0,), y, classes=2) == 1000


@pytest.mark.parametrize("classes", [2, 3])
def test_each_epoch_is_a_step_of_adam_on_all_examples(classes, monkeypatch):
    monkeypatch.setattr(model_completion, "MOST_EPOCHS", 5)
    z, y = clouds(classes, 60, apart=0.5)
    ours, theirs = (deep(classes, 1 if classes == 2 else classes).double() for _ in range(2))
    assert model_completion.train(ours, (z,), y, classes=classes) == 5
    optimizer = torch.optim.Adam(theirs.parameters(), lr=1e-3)
    for _ in range(5):
        optimizer.zero_grad()
        logits = theirs(z)
        target = y.double()[:, None] if classes == 2 else y
        loss = nn.functional.binary_cross_entropy_with_logits if classes == 2 else nn.functional.cross_entropy
        loss(logits, target).backward()
        optimizer.step()
    for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(one, other)


def test_class_means_are_those_in_evaluation_mode_and_a_logit_of_0_means_class_0():
    z, y = clouds(2, dtype=torch.float32)
    top = make(nn.Dropout, lambda: nn.Linear(2, 2))
    assert model_completion.start_at_class_means(top, z, y, classes=2)
    torch.testing.assert_close(top[1].weight.detach(), torch.stack([z[y == c].mean(dim=0) for c in (0, 1)]))
    assert predicted_classes(torch.tensor([-1.0, 0.0, 1.0])).tolist() == [0, 0, 1]


class CountingModel(nn.Module):
    """Model that counts its calls in training and in evaluation mode."""

    def __init__(self):
        super().__init__()
        self.norm, self.last, self.calls = nn.BatchNorm1d(2, momentum=0.01), nn.Linear(2, 1), {True: 0, False: 0}

    def forward(self, z):
        self.calls[self.training] += 1
        return self.last(self.norm(z))


def test_with_batch_normalisation_training_goes_on_until_evaluation_is_right_too():
    z, y = clouds(2, dtype=torch.float32)
    with seeded_initialisation(0):
        model = CountingModel()
    epochs = model_completion.train(model, (z + 100.0,), y, classes=2, learning_rate=0.05)
    assert model.calls[False] > 1  # in training mode all examples are right long before
    assert 0 < epochs < 1000
    assert (predicted_classes(model_completion.predict(model, (z + 100.0,), classes=2)) == y).all()


@pytest.mark.parametrize("classes", [2, 4])
@pytest.mark.parametrize("top", [linear, deep])
def test_few_labels_complete_a_model_whose_embeddings_separate_the_classes(classes, top):
    z, y = clouds(classes, 100 * classes, apart=10.0, dtype=torch.float32)
    leaked = torch.arange(2 * classes)
    model = top(classes, 1 if classes == 2 else classes)
    found = model_completion.complete(model, z[leaked], y[leaked], z, classes=classes)
    assert found.shape == (y.shape if classes == 2 else (len(y), classes))
    assert (predicted_classes(found) == y).double().mean() > 0.8  # training ends once the leaked examples are right


@pytest.mark.parametrize("classes", [2, 3])
def test_one_linear_layer_that_is_right_from_the_start_predicts_the_nearest_class_mean(classes):
    z, y = clouds(classes, 40 * classes, apart=5.0, dtype=torch.float32)
    leaked = slice(0, 3 * classes)
    top = linear(classes, 1 if classes == 2 else classes)
    found = model_completion.complete(top, z[leaked], y[leaked], z, classes=classes)
    nearest = NearestCentroid().fit(z[leaked].numpy(), y[leaked].numpy())
    assert predicted_classes(found).tolist() == nearest.predict(z.numpy()).tolist()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_embeddings_are_read_in_any_number_format(dtype):
    z, y = clouds(2, dtype=dtype)
    found = predicted_classes(model_completion.complete(deep(2, 1), z[:8], y[:8], z, classes=2))
    assert (found == y).double().mean() > 0.8


class SparseNetwork(nn.Module):
    """Bottom model with sparse embeddings, such as one for tables, and a top model on it."""

    def __init__(self):
        super().__init__()
        self.embedding, self.last = nn.Embedding(50, 4, sparse=True), nn.Linear(5, 1)

    def forward(self, numbers, ids):
        return self.last(torch.cat([numbers, self.embedding(ids).mean(dim=1)], dim=1)).squeeze(1)


def test_the_baseline_trains_the_whole_network_sparse_embeddings_included():
    with seeded_initialisation(1):
        network = SparseNetwork()
    ids, y = torch.arange(40).reshape(20, 2), torch.arange(20) % 2
    before = network.embedding.weight.clone()
    found = model_completion.train_alone(network, (torch.zeros(20, 1), ids), y, (torch.zeros(20, 1), ids), classes=2)
    assert predicted_classes(found).tolist() == y.tolist()
    assert torch.equal(before[40:], network.embedding.weight[40:])
    assert not torch.equal(before[:40], network.embedding.weight[:40])


def test_rows_are_predicted_some_thousand_at_a_time_and_none_is_lost(monkeypatch):
    z, _ = clouds(3, 100, dtype=torch.float32)
    top = deep(3, 3)
    expected = model_completion.predict(top, (z,), classes=3)
    monkeypatch.setattr(model_completion, "PREDICTED_ROWS", 7)
    torch.testing.assert_close(model_completion.predict(top, (z,), classes=3), expected)
    assert model_completion.predict(top, (z[:0],), classes=3).shape == (0, 3)


@pytest.mark.parametrize(
    ("y", "out", "reason"),
    [
        ([0, 0, 0, 0], 1, r"labels are \[0\]: give examples of each class, from 0 to 1"),
        ([0, 1, 2, 0], 1, r"labels are \[0, 1, 2\]"),
        ([0, -1, 1, 0], 1, "labels are"),
        ([0, 1, 1], 1, "a label for each example"),
        ([0, 1, 1, 0], 3, r"logits \(4, 3\); for 2 classes \(4,\) are needed"),
    ],
)
def test_what_does_not_fit_is_refused(y, out, reason):
    z = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))
    with pytest.raises(InputError, match=reason):
        model_completion.complete(deep(3, out), z, torch.tensor(y), z, classes=2)


@pytest.mark.parametrize("params", [{"k": 0}, {"k": 1.5}, {"k": True}, {"draws": 0}, {"draws": "many"}])
def test_impossible_parameters_are_refused(params):
    with pytest.raises(ConfigError, match="whole number from 1"):
        ModelCompletionAttack(**params)


def test_the_attack_completes_the_model_and_its_baseline_trains_from_scratch():
    z, y = clouds(2, dtype=torch.float32)
    x = (torch.randn(90, 5, generator=torch.Generator().manual_seed(2)),)
    leaked = Leaked(z[:6], (x[0][:6],), y[:6])
    view = TrainedView(z, 2, 0, x, leaked, top=lambda: deep(2, 1), network=lambda: deep(5, 1))
    attack = ModelCompletionAttack(k=3)
    assert torch.equal(attack.infer(view), model_completion.complete(deep(2, 1), z[:6], y[:6], z, classes=2))
    expected = model_completion.train_alone(deep(5, 1), leaked.inputs, y[:6], x, classes=2)
    assert torch.equal(attack.baseline(view), expected)
    assert (attack.leaks, attack.draws, attack.reads, set(attack.needs)) == (3, 5, "logits", {"leaked"})
    flat = normalised(z)
    expected = model_completion.complete(deep(2, 1), flat[:6], y[:6], flat, classes=2)
    assert torch.equal(ModelCompletionAttack(k=3, normalise=True).infer(view), expected)


def test_without_labelled_examples_it_is_refused_by_name():
    with pytest.raises(InputError, match="'leaked' in `needs`"):
        ModelCompletionAttack().infer(TrainedView(torch.zeros(3, 2), 2))
