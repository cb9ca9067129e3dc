"""Learned readers of a memory, against scipy, scikit-learn, torch's optimizer and closed forms."""

import numpy as np
import pytest
import torch
from scipy import stats
from sklearn.covariance import ShrunkCovariance, ledoit_wolf_shrinkage

from flower_vfl.attacks import (
    KnownRows,
    Memory,
    RememberedFitAttack,
    RememberedNetworkAttack,
    RememberedQuadraticAttack,
    readers,
)
from flower_vfl.attacks.longitudinal import base
from flower_vfl.attacks.readers import fit_gaussian, fit_network, ledoit_wolf, standardising
from flower_vfl.errors import ConfigError, InputError
from flower_vfl.metrics import leak_auc
from tests.attacks.common import auc_error
from tests.cases import parametrize

LEARNED = (RememberedFitAttack, RememberedQuadraticAttack, RememberedNetworkAttack)
READS = ("all", "mean", "last", "difference")


def memory_of(x, depth=3):
    sums = np.cumsum(x, axis=0, dtype=np.float64).astype(np.float32)
    return Memory(np.arange(x.shape[1]), len(x), tuple(sums[::-1][:depth]))


def first(y, k):
    """Return the first k rows of each class as known rows."""
    rows = np.sort(np.concatenate([np.flatnonzero(y == c)[:k] for c in (0, 1)]))
    return KnownRows(rows, y[rows].astype(np.int64))


def labels(rows, share=0.25, seed=0):
    return (np.random.default_rng(seed).random(rows) < share).astype(np.int64)


def noise(*shape, seed=1):
    return np.random.default_rng(seed).normal(size=shape)


def auc_of(attack, x, y):
    known = first(y, attack.k)
    others = ~np.isin(np.arange(len(y)), known.rows)
    return leak_auc(attack.score(memory_of(x), known).numpy()[others], y[others])


def is_chance(auc, y):
    return abs(auc - 0.5) < auc_error(0.5, int(y.sum()), int((1 - y).sum()))


@pytest.mark.parametrize(("k", "width"), [(20, 4), (5, 12), (2, 3)])
@pytest.mark.parametrize("shrinkage", [None, 0.3, 1.0])
def test_the_quadratic_score_is_the_log_likelihood_ratio_of_shrunk_gaussians(k, width, shrinkage):
    y = np.arange(60) % 2
    x = (noise(60, width) * np.where(y, 1.5, 1.0)[:, None] + np.linspace(0, 3, width)).astype(np.float32)
    known = first(y, k)
    found = RememberedQuadraticAttack(k, shrinkage, "mean").score(memory_of(x[None]), known)
    densities = []
    for label in (1, 0):
        rows = x[known.rows[known.labels == label]].astype(np.float64)
        share = max(ledoit_wolf_shrinkage(rows), 1 / k) if shrinkage is None else shrinkage
        covariance = ShrunkCovariance(shrinkage=share).fit(rows).covariance_
        densities.append(stats.multivariate_normal(rows.mean(axis=0), covariance).logpdf(x))
    np.testing.assert_allclose(found, densities[0] - densities[1], rtol=1e-6, atol=1e-5)


@pytest.mark.parametrize("shape", [(3, 50), (40, 6), (200, 2), (2, 1), (10, 1)])
def test_the_estimated_shrinkage_is_scikit_learns(shape):
    x = noise(*shape) * np.linspace(0.1, 2, shape[1]) + 7
    assert ledoit_wolf(torch.tensor(x - x.mean(axis=0))) == pytest.approx(
        ledoit_wolf_shrinkage(x) if shape[1] > 1 else 1.0, rel=1e-8
    )


def test_a_gaussian_of_few_rows_in_many_coordinates_is_a_density():
    """In one coordinate it integrates to one; in more, it equals scipy's density with the whole covariance."""
    x = torch.tensor(noise(4, 9))
    fitted = fit_gaussian(x, 0.4)
    covariance = ShrunkCovariance(shrinkage=0.4).fit(x.numpy()).covariance_
    at = noise(7, 9, seed=2)
    expected = stats.multivariate_normal(x.numpy().mean(axis=0), covariance).logpdf(at)
    np.testing.assert_allclose(fitted.log_density(torch.tensor(at)), expected, rtol=1e-9)
    line = torch.linspace(-40, 40, 20001, dtype=torch.float64)[:, None]
    density = fit_gaussian(x[:, :1], 0.4).log_density(line).exp()
    assert float(torch.trapezoid(density, line[:, 0])) == pytest.approx(1.0, abs=1e-6)


@pytest.mark.parametrize("ratio", [1.4, 2.0, 0.6])
def test_classes_that_differ_in_variance_alone_are_read_with_the_highest_possible_auc(ratio):
    r"""For Gaussians of variance v1 and v0 in D dimensions the likelihood ratio has the AUC P(F_{D,D} > v0 / v1).

    A linear reader has that of chance.
    """
    width, y = 8, labels(12000)
    x = noise(1, 12000, width) * np.where(y, np.sqrt(ratio), 1.0)[:, None]
    best = stats.f.sf(1 / ratio, width, width) if ratio > 1 else stats.f.cdf(1 / ratio, width, width)
    found = auc_of(RememberedQuadraticAttack(1000, 1.0), x, y)
    assert abs(found - best) < auc_error(best, int(y.sum()) - 1000, 8000)
    assert abs(auc_of(RememberedQuadraticAttack(1000), x, y) - best) < auc_error(best, int(y.sum()) - 1000, 8000)
    assert is_chance(auc_of(RememberedFitAttack(1000), x, y), y)


def test_of_one_known_row_of_each_class_the_nearer_one_counts():
    y = np.arange(40) % 2
    x = noise(1, 40, 3).astype(np.float32)
    known = first(y, 1)
    found = RememberedQuadraticAttack(1, reads="mean").score(memory_of(x), known).numpy()
    zero, one = x[0, known.rows[0]], x[0, known.rows[1]]
    nearer = np.square(x[0] - zero).sum(axis=1) - np.square(x[0] - one).sum(axis=1)
    assert np.corrcoef(found, nearer)[0, 1] > 1 - 1e-9


def test_a_few_known_rows_of_many_coordinates_are_no_worse_than_one():
    y = labels(2000)
    x = noise(1, 2000, 40) + 0.5 * (2 * y - 1)[:, None]
    aucs = [auc_of(RememberedQuadraticAttack(k), x, y) for k in (1, 2, 3, 16)]
    assert aucs == sorted(aucs)
    assert aucs[0] > 0.9


def test_only_the_network_reads_classes_of_one_mean_and_one_covariance():
    """Four corners of a square, and the same rotated by 45 degrees: no mean and no variance differs."""
    y = labels(4000)
    angle = np.pi / 2 * np.random.default_rng(2).integers(0, 4, 4000) + np.pi / 4 * y
    x = np.stack([np.cos(angle), np.sin(angle)], axis=1)[None] + 0.15 * noise(1, 4000, 2)
    assert is_chance(auc_of(RememberedFitAttack(100), x, y), y)
    assert is_chance(auc_of(RememberedQuadraticAttack(100), x, y), y)
    assert auc_of(RememberedNetworkAttack(100), x, y) > 0.98


@parametrize("classes", [2, 3], quick=1)
def test_the_network_is_trained_as_torch_would(classes):
    x, y = torch.tensor(noise(12, 5)), torch.arange(12) % classes
    positive = y == 1 if classes == 2 else torch.eye(3)[y].bool()
    found = fit_network(x, positive, hidden=4, steps=25, generator=torch.Generator().manual_seed(3))
    start = fit_network(x, positive, hidden=4, steps=0, generator=torch.Generator().manual_seed(3))
    inner, offsets, outer, offset = expected = [torch.nn.Parameter(tensor.clone()) for tensor in start]
    groups = [{"params": [inner, outer], "weight_decay": 1e-3}, {"params": [offsets, offset]}]
    optimizer = torch.optim.SGD(groups, lr=1.0, momentum=0.9)
    for _ in range(25):
        logits = torch.tanh(x @ inner + offsets) @ outer + offset
        optimizer.zero_grad()
        if classes == 2:
            torch.nn.functional.binary_cross_entropy_with_logits(logits, y.double()).backward()
        else:
            torch.nn.functional.cross_entropy(logits, y).backward()
        optimizer.step()
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs.detach(), rtol=1e-9, atol=1e-12)


def test_the_network_draws_from_its_own_seed_alone():
    y = labels(60)
    memory, known, before = memory_of(noise(2, 60, 3)), first(y, 5), torch.get_rng_state()
    scores = [RememberedNetworkAttack(5, steps=20, seed=seed).score(memory, known) for seed in (0, 0, 1)]
    assert torch.equal(scores[0], scores[1])
    assert not torch.equal(scores[0], scores[2])
    assert torch.equal(torch.get_rng_state(), before)


def test_standardised_blocks_are_uncorrelated_and_of_variance_one():
    mean, last = noise(50, 4), noise(50, 4, seed=2) * 9 + 5
    x = torch.tensor(np.stack([mean + last, last, last - 3 * mean + noise(50, 4, seed=3)], axis=1))
    z = standardising(x)(x).reshape(50, 3, 4).permute(1, 0, 2).reshape(3, -1)
    torch.testing.assert_close(z @ z.T / 200, torch.eye(3, dtype=torch.float64))
    assert standardising(x[:, :1].repeat(1, 3, 1))(x).shape == (50, 4)


def test_known_rows_that_are_all_equal_are_the_origin_of_the_others():
    x = torch.tensor(noise(7, 2, 3))
    equal = torch.full((4, 2, 3), 1.5, dtype=torch.float64)
    torch.testing.assert_close(standardising(equal)(x), (x - 1.5).flatten(1))


@pytest.mark.parametrize("width", [1, 30])
def test_the_network_gets_rows_of_mean_squared_length_1_and_weights_of_variance_1(width):
    x, start = noise(50, width), torch.Generator().manual_seed(0)
    logits_of = readers.network(torch.tensor(x), torch.arange(50) % 2, 2, hidden=4096, steps=0, generator=start)
    inner, _, outer, _ = fit_network(
        *(torch.tensor(x), torch.arange(50) % 2 == 1), hidden=4096, steps=0, generator=torch.Generator().manual_seed(0)
    )
    np.testing.assert_allclose(logits_of(torch.tensor(x)), np.tanh(x / np.sqrt(width) @ inner.numpy()) @ outer.numpy())
    assert [float(inner.std()), float(outer.std()) * 64] == pytest.approx([1.0, 1.0], rel=0.1)


def test_information_that_is_in_all_blocks_counts_once():
    """After one epoch mean and last are the same, and there is no difference."""
    y = labels(200)
    memory, known = memory_of(noise(1, 200, 6)), first(y, 20)
    alone, together = (RememberedQuadraticAttack(20, reads=reads).score(memory, known) for reads in ("mean", "all"))
    torch.testing.assert_close(alone, together, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("attack", LEARNED)
@pytest.mark.parametrize("reads", READS)
def test_a_reader_reads_the_block_that_it_names_and_no_other(attack, reads):
    y = labels(80)
    x, known = noise(4, 80, 3), first(y, 8)
    reader = attack(8, reads=reads)
    kept = {"all": {"mean", "last", "difference"}}.get(reads, {reads})
    assert (reader.keeps, reader.first_epoch) == (kept, 2 if reads == "difference" else 1)
    depth = {"mean": 1, "last": 2}.get(reads, 3)
    found = reader.score(memory_of(x, depth), known)
    others = {
        "mean": x[[3, 2, 0, 1]],
        "last": np.concatenate([noise(3, 80, 3, seed=9), x[3:]]),
        "difference": np.concatenate([noise(1, 80, 3, seed=9) * 0.1, x[1:] + 2 * noise(80, 3, seed=8)]),
    }
    for other, history in others.items():
        same = torch.allclose(reader.score(memory_of(history, depth), known), found, rtol=1e-3, atol=1e-3)
        assert same == (other == reads)


@pytest.mark.parametrize("ratio", [1.4, 2.0])
def test_a_reader_of_all_epochs_reads_their_differences_behind_noise_that_stays(ratio):
    r"""Large noise is equal in T epochs, small noise of variance v_1 or v_0 is not: T - 1 differences remain.

    In D coordinates the best reader has the AUC P(F_{(T-1)D,(T-1)D} > v0 / v1), and the sum that of chance.
    """
    epochs, width, y = 5, 3, labels(12000)
    x = 30 * noise(1, 12000, width) + noise(epochs, 12000, width, seed=2) * np.where(y, np.sqrt(ratio), 1.0)[:, None]
    known, others = first(y, 1000), ~np.isin(np.arange(len(y)), first(y, 1000).rows)
    aucs = {}
    for reads in ("mean", "epochs"):
        scores = RememberedQuadraticAttack(1000, reads=reads).score(memory_of(x, epochs), known)
        aucs[reads] = leak_auc(scores.numpy()[others], y[others])
    degrees = (epochs - 1) * width
    best = stats.f.sf(1 / ratio, degrees, degrees)
    assert is_chance(aucs["mean"], y)
    assert abs(aucs["epochs"] - best) < auc_error(best, int(y.sum()) - 1000, 8000)


@pytest.mark.parametrize("attack", LEARNED)
def test_a_reader_of_all_epochs_needs_all_and_reads_each(attack):
    y = labels(80)
    x, known, reader = noise(4, 80, 3), first(y, 8), attack(8, reads="epochs")
    assert reader.keeps == {"epochs"}
    with pytest.raises(InputError, match="does not give 'epochs'"):
        reader.score(memory_of(x), known)
    found = reader.score(memory_of(x, 4), known)
    for epoch in range(4):
        changed = x.copy()
        changed[epoch] = noise(80, 3, seed=9)
        assert not torch.allclose(reader.score(memory_of(changed, 4), known), found, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("attack", LEARNED)
def test_a_reader_is_fitted_where_no_gradients_are_kept_as_in_a_run(attack):
    y = labels(60)
    memory, known = memory_of(noise(2, 60, 3)), first(y, 5)
    expected = attack(5).score(memory, known)
    with torch.inference_mode():
        assert torch.equal(attack(5).score(memory, known), expected)


@pytest.mark.parametrize("attack", LEARNED)
@pytest.mark.parametrize("reads", ["all", "epochs"])
def test_pieces_of_any_size_give_the_same_scores(attack, reads, monkeypatch):
    y = labels(90)
    memory, known = memory_of(noise(3, 90, 4)), first(y, 6)
    at_once = attack(6, reads=reads).score(memory, known)
    monkeypatch.setattr(base, "CACHED_NUMBERS", 30)
    torch.testing.assert_close(attack(6, reads=reads).score(memory, known), at_once, rtol=1e-5, atol=1e-5)


def one_class_equal(x, y):
    x[:, y == 1] = x[:, y == 1][:, :1]
    return x


HOSTILE = {
    "constant": lambda x, _: np.ones_like(x),
    "zeros": lambda x, _: np.zeros_like(x),
    "duplicates": lambda x, _: np.repeat(x[:, :1], x.shape[1], axis=1) + 1e-7 * x,
    "one class equal": one_class_equal,
    "width 1": lambda x, _: x[..., :1],
    "one giant": lambda x, _: np.where(np.arange(x.shape[1])[:, None] == 70, 1e9, x),
    "a giant that is known": lambda x, _: np.where(np.arange(x.shape[1])[:, None] == 0, 1e9, x),
    "tiny": lambda x, _: x * 1e-20,
}


@pytest.mark.parametrize("attack", LEARNED)
@pytest.mark.parametrize("k", [1, 10])
@pytest.mark.parametrize("what", HOSTILE)
@pytest.mark.parametrize(("epochs", "reads"), [(1, "all"), (4, "all"), (4, "epochs")])
def test_finite_numbers_of_any_kind_give_every_row_a_finite_score(attack, k, what, epochs, reads):
    y = np.arange(100) % 2
    x = HOSTILE[what](noise(epochs, 100, 4), y)
    scores = attack(k, reads=reads).score(memory_of(x, 4), first(y, k))
    assert scores.shape == (100,)
    assert bool(torch.isfinite(scores).all())
    if what in ("constant", "zeros"):
        assert len(scores.unique()) == 1


@pytest.mark.parametrize("attack", LEARNED)
def test_without_known_rows_of_both_classes_a_reader_refuses(attack):
    with pytest.raises(InputError, match="No row of class 0 is known"):
        attack(1).score(memory_of(noise(3, 9, 2)), KnownRows(np.array([0]), np.array([1])))


@pytest.mark.parametrize(
    ("attack", "params", "words"),
    [
        *((attack, {"k": k}, f"{attack.name}: k is") for attack in LEARNED for k in (0, True, 2.0)),
        *((attack, {"reads": "lasts"}, "there is no 'lasts' to read.*last") for attack in LEARNED),
        *((RememberedQuadraticAttack, {"shrinkage": s}, "shrinkage is") for s in (0, -1, 1.01, True, float("nan"))),
        *((RememberedNetworkAttack, {name: 0}, f"{name} is 0") for name in ("hidden", "steps")),
        *((RememberedNetworkAttack, {"seed": seed}, "seed is") for seed in (-1, 2**63, 0.5)),
    ],
)
def test_impossible_parameters_of_a_reader_are_refused(attack, params, words):
    with pytest.raises(ConfigError, match=words):
        attack(**params)
