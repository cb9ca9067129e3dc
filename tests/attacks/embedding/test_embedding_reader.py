"""Learned readers of embeddings, against scipy, scikit-learn and closed forms."""

import numpy as np
import pytest
import torch
from scipy import stats
from sklearn.covariance import ShrunkCovariance, ledoit_wolf_shrinkage
from sklearn.linear_model import Ridge

from flower_vfl.attacks import EmbeddingReaderAttack
from flower_vfl.attacks.embedding import embedding_reader
from flower_vfl.attacks.embedding.embedding_reader import read
from flower_vfl.attacks.embedding.inference import Leaked, TrainedView
from flower_vfl.attacks.rows import normalised
from flower_vfl.errors import ConfigError, InputError
from flower_vfl.metrics import leak_auc
from flower_vfl.metrics.utility import predicted_classes
from tests.attacks.common import auc_error
from tests.attacks.embedding.test_clustering import clouds
from tests.cases import parametrize

KINDS = ("linear", "quadratic", "network")


def standard(z, known):
    """Return rows minus the mean of the known rows, divided by the root of their mean variance."""
    mean = known.mean(axis=0)
    return (z - mean) / np.sqrt(np.square(known - mean).mean())


@pytest.mark.parametrize("classes", [2, 3, 5])
def test_the_linear_reader_is_scikit_learns_ridge_regression(classes):
    z, y = clouds(classes, apart=1.0)
    n = 6 * classes
    x, targets = standard(z.numpy(), z[:n].numpy()), 2.0 * np.eye(classes)[y[:n]] - 1
    alpha = np.square(x[:n]).sum() / n
    expected = Ridge(alpha).fit(x[:n], targets[:, 1] if classes == 2 else targets).predict(x)
    np.testing.assert_allclose(read(z[:n], y[:n], z, classes=classes, kind="linear"), expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("classes", [2, 3, 5])
@pytest.mark.parametrize("k", [2, 12])
def test_the_quadratic_reader_gives_log_probabilities_of_shrunk_gaussians(classes, k):
    z, y = clouds(classes, apart=1.0)
    n = k * classes
    x, labels = standard(z.numpy(), z[:n].numpy()), y[:n].numpy()
    densities = []
    for c in range(classes):
        rows = x[:n][labels == c]
        covariance = ShrunkCovariance(shrinkage=max(ledoit_wolf_shrinkage(rows), 1 / k)).fit(rows).covariance_
        densities.append(stats.multivariate_normal(rows.mean(axis=0), covariance).pdf(x))
    pdf = np.stack(densities, axis=1)
    found = read(z[:n], y[:n], z, classes=classes, kind="quadratic")
    expected = np.log(pdf[:, 1] / pdf[:, 0] if classes == 2 else pdf / pdf.sum(axis=1, keepdims=True))
    np.testing.assert_allclose(found, expected, rtol=1e-7, atol=1e-7)


@parametrize("kind", ["linear", "quadratic"], quick=1)
def test_gaussian_classes_of_one_covariance_are_read_with_the_highest_possible_auc(kind):
    """No score of two unit Gaussians at distance d has a higher AUC than Phi(d / sqrt 2)."""
    rng, distance = np.random.default_rng(0), 1.5
    y = torch.from_numpy(rng.integers(0, 2, 24000))
    z = torch.from_numpy(rng.normal(size=(24000, 4)))
    z[:, 2] += distance * y
    best = stats.norm.cdf(distance / np.sqrt(2))
    scores = read(z[:4000], y[:4000], z[4000:], classes=2, kind=kind)
    assert abs(leak_auc(scores, y[4000:]) - best) < auc_error(best, 10000, 10000)


@parametrize("ratio", [1.5, 0.5], quick=1)
def test_the_quadratic_reader_tells_classes_by_their_variance_and_the_linear_one_does_not(ratio):
    """The best AUC for Gaussians of variance r and 1 in D dimensions is that of a ratio of chi-squared variables."""
    rng, width = np.random.default_rng(1), 8
    y = torch.from_numpy(rng.integers(0, 2, 24000))
    z = torch.from_numpy(rng.normal(size=(24000, width))) * torch.where(y == 1, ratio**0.5, 1.0)[:, None]
    best = stats.f.sf(1 / ratio, width, width) if ratio > 1 else stats.f.cdf(1 / ratio, width, width)
    found = {
        kind: leak_auc(read(z[:4000], y[:4000], z[4000:], classes=2, kind=kind), y[4000:])
        for kind in ("linear", "quadratic")
    }
    assert abs(found["quadratic"] - best) < auc_error(best, 10000, 10000)
    assert abs(found["linear"] - 0.5) < auc_error(0.5, 10000, 10000)


@pytest.mark.parametrize("classes", [2, 4])
def test_only_the_network_reads_classes_of_one_mean_and_one_covariance(classes):
    """Each class has four points of a circle, rotated from class to class: no mean and no variance differs."""
    rng = np.random.default_rng(2)
    y = torch.arange(4000) % classes
    angle = np.pi / 2 * (rng.integers(0, 4, 4000) + y.numpy() / classes)
    z = torch.from_numpy(np.stack([np.cos(angle), np.sin(angle)], axis=1) + 0.03 * rng.normal(size=(4000, 2)))
    predicted = {kind: predicted_classes(read(z[:800], y[:800], z[800:], classes=classes, kind=kind)) for kind in KINDS}
    accuracy = {kind: float((classes_found == y[800:]).double().mean()) for kind, classes_found in predicted.items()}
    error = 4 * np.sqrt((1 - 1 / classes) / classes / 3200)
    assert abs(accuracy["linear"] - 1 / classes) < error
    assert accuracy["network"] > max(0.9 if classes == 2 else 0.6, accuracy["quadratic"] + 0.2)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("classes", [2, 3])
def test_neither_scale_nor_place_of_the_embeddings_changes_what_is_read(kind, classes):
    z, y = clouds(classes, apart=2.0)
    n = 5 * classes
    expected = read(z[:n], y[:n], z, classes=classes, kind=kind)
    for other in (z * 1e-30, z * 1e30, z + 7.0, z * 1e-200):
        found = read(other[:n], y[:n], other, classes=classes, kind=kind)
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_pieces_of_any_size_give_the_same_scores(kind, monkeypatch):
    z, y = clouds(3)
    whole = read(z[:30], y[:30], z, classes=3, kind=kind)
    monkeypatch.setattr(embedding_reader, "NUMBERS_AT_ONCE", 21)
    torch.testing.assert_close(read(z[:30], y[:30], z, classes=3, kind=kind), whole)


def test_the_network_draws_from_its_seed_alone():
    z, y = clouds(2, apart=1.0)
    before = torch.get_rng_state()
    scores = [read(z[:20], y[:20], z, classes=2, kind="network", seed=seed) for seed in (0, 0, 1)]
    assert torch.equal(scores[0], scores[1])
    assert not torch.equal(scores[0], scores[2])
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("kind", KINDS)
def test_the_attack_reads_the_embeddings_and_its_baseline_the_raw_inputs(kind):
    z, y = clouds(2, dtype=torch.float32)
    x = (torch.randn(90, 5, generator=torch.Generator().manual_seed(2)),)
    view = TrainedView(z, 2, 4, x, Leaked(z[:6], (x[0][:6],), y[:6]))
    attack = EmbeddingReaderAttack(kind, k=3)
    assert torch.equal(attack.infer(view), read(z[:6], y[:6], z, classes=2, kind=kind, seed=4))
    assert torch.equal(attack.baseline(view), read(x[0][:6], y[:6], x[0], classes=2, kind=kind, seed=4))
    assert (attack.leaks, attack.draws, attack.reads, set(attack.needs)) == (3, 5, "logits", {"leaked"})
    flat = normalised(z)
    expected = read(flat[:6], y[:6], flat, classes=2, kind=kind, seed=4)
    assert torch.equal(EmbeddingReaderAttack(kind, k=3, normalise=True).infer(view), expected)
    assert attack.baseline(TrainedView(z, 2, leaked=Leaked(z[:6], (), y[:6]))) is None


def test_a_category_has_the_same_column_in_labelled_and_in_attacked_rows():
    """The labelled rows have the values 2 and 5 only; the attacked ones also have others."""
    y = torch.tensor([0, 1] * 20)
    ids = torch.where(y == 1, 5, 2)[:, None]
    others = torch.tensor([[7], [5], [1], [2], [9], [5]])
    z = torch.zeros(6, 1)
    view = TrainedView(z, 2, 0, (others,), Leaked(torch.zeros(40, 1), (ids,), y))
    scores = EmbeddingReaderAttack("linear", k=20).baseline(view)
    assert scores.argsort(descending=True)[:2].sort().values.tolist() == [1, 5]
    assert int(scores.argmin()) == 3


def test_without_labelled_examples_it_is_refused_by_name():
    with pytest.raises(InputError, match="'leaked' in `needs`"):
        EmbeddingReaderAttack().infer(TrainedView(torch.zeros(3, 2), 2))


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ({"reader": "liner"}, "reader is 'liner'.*linear"),
        *(({name: value}, f"{name} is") for name in ("k", "draws") for value in (0, True, 1.5)),
    ],
)
def test_impossible_parameters_are_refused(params, words):
    with pytest.raises(ConfigError, match=words):
        EmbeddingReaderAttack(**params)
