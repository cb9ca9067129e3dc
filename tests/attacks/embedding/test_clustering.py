"""The clustering attack: exact assignment against all permutations, k-means against scikit-learn, and bad input."""

from itertools import permutations

import numpy as np
import pytest
import torch
from scipy.stats import hypergeom
from sklearn.cluster import KMeans
from sklearn.metrics import balanced_accuracy_score

from flower_vfl.attacks.embedding import clustering
from flower_vfl.attacks.embedding.clustering import (
    ClusteringAttack,
    matched,
    matched_by_chance,
)
from flower_vfl.attacks.embedding.inference import TrainedView
from flower_vfl.attacks.rows import normalised, raw_features
from flower_vfl.errors import InputError
from tests.attacks.common import DTYPES, SCALES, gradients
from tests.cases import parametrize


def clouds(classes=3, rows=90, *, apart=8.0, seed=0, dtype=torch.float64):
    """Return a Gaussian cloud for each class, around a corner of its own, and the labels."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.arange(rows) % classes
    noise = torch.randn(rows, classes, generator=generator, dtype=torch.float64)
    return (noise + apart * torch.eye(classes, dtype=torch.float64)[y]).to(dtype), y


@pytest.mark.parametrize("classes", [2, 3, 5])
@pytest.mark.parametrize("seed", range(4))
def test_the_best_assignment_is_the_best_of_all_permutations(classes, seed):
    rng = np.random.default_rng(seed)
    groups, y = rng.integers(0, classes, 40), rng.integers(0, classes, 40)
    best = max(np.mean(np.array(names)[groups] == y) for names in permutations(range(classes)))
    assert matched(groups, y, classes=classes)[0] == pytest.approx(best, abs=1e-15)


@pytest.mark.parametrize("classes", [2, 3, 5])
@parametrize("seed", range(4), quick=1)
def test_balanced_accuracy_takes_the_best_of_all_permutations_for_it(classes, seed):
    rng = np.random.default_rng(seed)
    groups = rng.integers(0, classes, 60)
    y = np.concatenate([np.arange(classes), rng.choice(classes, 60 - classes, p=rng.dirichlet(np.ones(classes)))])
    best = max(balanced_accuracy_score(y, np.array(names)[groups]) for names in permutations(range(classes)))
    assert matched(groups, y, classes=classes)[1] == pytest.approx(best, abs=1e-12)
    assert matched(groups, y, classes=classes)[1] >= 1 / classes - 1e-12


def test_balanced_accuracy_assigns_the_rare_class_to_a_group_where_accuracy_does_not():
    y = np.arange(100) >= 95
    groups = np.arange(100) >= 60  # all five positives, and 35 negatives
    assert matched(groups, y, classes=2)[0] == 0.65
    assert matched(groups, y, classes=2)[1] == pytest.approx((60 / 95 + 1) / 2)


def test_a_group_may_stay_without_members():
    assert matched([0, 0, 0, 0], [2, 2, 1, 0], classes=3)[0] == 0.5
    assert matched([0, 0, 0, 0], [2, 2, 1, 0], classes=3)[1] == pytest.approx(1 / 3)
    assert matched([0, 0, 1, 1], [0, 0, 0, 0], classes=2)[1] == 0.5
    assert np.isnan(matched([], [], classes=2)[0])
    assert np.isnan(matched([], [], classes=2)[1])


def test_chance_of_two_equal_groups_is_that_of_the_hypergeometric_distribution():
    shared = np.arange(9)
    expected = (hypergeom(16, 8, 8).pmf(shared) * np.maximum(2 * shared, 16 - 2 * shared)).sum() / 16
    halves = np.arange(16) % 2
    assert matched_by_chance(halves, halves, classes=2) == pytest.approx((expected, expected), abs=0.015)  # 4 errors


def test_chance_of_clusters_is_that_of_shuffled_labels_and_no_less_than_one_cluster():
    rng = np.random.default_rng(1)
    y, groups = np.repeat([0, 1, 2], [14, 14, 12]), np.repeat([0, 1, 2], [16, 12, 12])
    shuffled = [rng.permutation(y) for _ in range(1000)]
    expected = np.mean([matched(groups, one, classes=3) for one in shuffled], axis=0).tolist()
    assert matched_by_chance(groups, y, classes=3) == pytest.approx(expected, abs=0.015)
    assert min(expected) > 0.4
    rare = np.arange(100) >= 95
    assert matched_by_chance(np.arange(100) >= 60, rare, classes=2)[0] == 0.95
    assert matched_by_chance([0, 0, 0, 0], [2, 2, 1, 1], classes=3) == (0.5, 0.5)
    assert np.isnan(matched_by_chance([], [], classes=2)).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("classes", [2, 3, 6])
def test_clouds_far_apart_are_told_apart_at_every_scale(classes, scale, dtype):
    z, y = clouds(classes, 30 * classes, dtype=dtype)
    assert clustering.accuracy(z * scale, y, classes=classes, seed=1) == 1.0
    assert clustering.accuracy(z * scale, y.flip(0), classes=classes, seed=1) == 1.0  # names of groups do not count


def test_clouds_that_overlap_are_cut_as_scikit_learn_cuts_them():
    z, y = clouds(4, 400, apart=2.0)
    found = clustering.assign(z, classes=4, seed=3)
    expected = KMeans(4, n_init=10, max_iter=100, random_state=3).fit_predict(z.numpy())
    assert matched(found, expected, classes=4)[0] > 0.99
    assert clustering.accuracy(z, y, classes=4, seed=3) == matched(found, y, classes=4)[0]
    assert 0.5 < clustering.accuracy(z, y, classes=4, seed=3) < 1.0


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_and_feature_maps_are_clustered_too(dtype):
    z, y = clouds(2, dtype=dtype)
    assert clustering.accuracy(z, y, classes=2, seed=0) == 1.0
    maps = z.float().repeat(1, 2)[:, :, None].expand(-1, -1, 3)
    assert torch.equal(
        clustering.assign(maps, classes=2, seed=0), clustering.assign(maps.flatten(1), classes=2, seed=0)
    )


def test_the_groups_depend_on_the_seed_alone_and_no_global_generator_is_used():
    z, _ = clouds(5, 200, apart=1.0)
    before = np.random.get_state()[1].copy(), torch.get_rng_state()  # noqa: NPY002
    first = clustering.assign(z, classes=5, seed=2**62 + 7)
    assert torch.equal(first, clustering.assign(z.clone(), classes=5, seed=2**62 + 7))
    assert np.array_equal(before[0], np.random.get_state()[1])  # noqa: NPY002
    assert torch.equal(before[1], torch.get_rng_state())
    assert any(not torch.equal(first, clustering.assign(z, classes=5, seed=seed)) for seed in range(5))


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("value", [0.0, 0.1, 1e30])
def test_equal_rows_make_one_group(value):
    z = torch.full((10, 3), value)
    assert clustering.assign(z, classes=2, seed=0).tolist() == [0] * 10
    assert clustering.accuracy(z, [0] * 7 + [1] * 3, classes=2, seed=0) == 0.7


def test_a_large_common_offset_changes_nothing():
    z, y = clouds(3)
    assert clustering.accuracy(z + 1e9, y, classes=3, seed=0) == 1.0


@pytest.mark.parametrize(
    ("z", "classes", "reason"),
    [
        (torch.zeros(4), 2, "floating point tensor"),
        (torch.zeros(4, 2, dtype=torch.int64), 2, "floating point tensor"),
        (torch.zeros(2, 2), 3, "2 rows cannot be put into 3 groups"),
        (torch.zeros(2, 2), 1, "1 classes: give at least 2"),
        (torch.tensor([[0.0], [float("nan")]]), 2, "not finite"),
    ],
)
def test_what_cannot_be_clustered_is_refused(z, classes, reason):
    with pytest.raises(InputError, match=reason):
        clustering.assign(z, classes=classes, seed=0)


@pytest.mark.parametrize(
    ("groups", "labels", "reason"),
    [
        ([0, 1], [0, 1, 1], "two vectors of one length"),
        ([0, 2], [0, 1], "Some group is no whole number from 0 to 1"),
        ([0, 1], [0, -1], "Some label is no whole number"),
    ],
)
def test_numbers_that_are_no_groups_or_labels_are_refused(groups, labels, reason):
    with pytest.raises(InputError, match=reason):
        matched(groups, labels, classes=2)


def test_the_attack_clusters_the_embeddings_and_its_baseline_the_raw_inputs():
    z, _ = clouds(3, dtype=torch.float32)
    x = (gradients(1, (90, 4)), torch.arange(90)[:, None] % 7)
    view = TrainedView(z, 3, seed=5, inputs=x)
    attack = ClusteringAttack()
    assert torch.equal(attack.infer(view), clustering.assign(z, classes=3, seed=5))
    assert torch.equal(attack.baseline(view), clustering.assign(raw_features(x), classes=3, seed=5))
    expected = clustering.assign(normalised(z), classes=3, seed=5)
    assert torch.equal(ClusteringAttack(normalise=True).infer(view), expected)
    assert attack.baseline(TrainedView(z, 3)) is None
    assert (attack.reads, attack.draws, attack.leaks, attack.needs) == ("clusters", 1, 0, frozenset())
