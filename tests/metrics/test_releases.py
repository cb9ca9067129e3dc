"""The joint divergence of several releases of one example, against dense matrices, closed forms and samples."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from flower_vfl.metrics import ArgumentError, EpochRelease, ShapedRelease, auc_bound, together, together_shaped
from flower_vfl.strategies.gradients.marvell.solver import optimal_noise
from flower_vfl.strategies.gradients.noise import Noise
from tests.metrics.likelihood_ratio import best_auc


def unit(*values):
    vector = np.array(values, dtype=np.float64)
    return vector / np.linalg.norm(vector)


def drawn(seed, epochs, width):
    """Return a random release for each epoch."""
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(epochs):
        across = rng.uniform(0.0, 2.0, 2)
        along = across + rng.uniform(0.0, 3.0, 2)
        spread = tuple(rng.uniform(0.1, 1.0, 2))
        found.append(
            EpochRelease(unit(*rng.standard_normal(width)), rng.uniform(0.1, 2), spread, tuple(along), tuple(across))
        )
    return found


def dense(releases, c, rho, kept):
    """Return the mean and the covariance of the T D numbers of class c, block by block by the definition."""
    width, blocks = len(releases[0].direction), []
    for s, one in enumerate(releases):
        row = []
        for t, two in enumerate(releases):
            between = kept if isinstance(kept, float) else kept[c, s, t]
            own, noise = (1.0, 1.0) if s == t else (between, rho)
            lines = [math.sqrt(r.along[c] - r.across[c]) * r.direction for r in (one, two)]
            block = own * math.sqrt(one.spread[c] * two.spread[c]) * np.eye(width)
            block = block + noise * np.outer(*lines)
            row.append(block + noise * math.sqrt(one.across[c] * two.across[c]) * np.eye(width))
        blocks.append(row)
    mean = np.concatenate([c * r.distance * r.direction for r in releases])
    return mean, np.block(blocks)


def divergence(first, second):
    """Return KL(second || first) + KL(first || second) by the textbook formula."""
    total = 0.0
    for (m0, s0), (m1, s1) in ((first, second), (second, first)):
        inverse = np.linalg.inv(s1)
        logs = np.linalg.slogdet(s1)[1] - np.linalg.slogdet(s0)[1]
        total += 0.5 * (np.trace(inverse @ s0) + (m1 - m0) @ inverse @ (m1 - m0) - len(m0) + logs)
    return total


@pytest.mark.parametrize("epochs", [1, 2, 4])
@pytest.mark.parametrize("width", [2, 7])
@pytest.mark.parametrize(("rho", "kept"), [(0.0, 0.0), (0.7, 0.0), (1.0, 0.3), (0.4, 0.9)])
def test_the_divergence_is_that_of_the_dense_covariances(epochs, width, rho, kept):
    releases = drawn(epochs * width, epochs, width)
    expected = divergence(*(dense(releases, c, rho, kept) for c in (0, 1)))
    assert together(releases, rho=rho, kept=kept).sum_kl() == pytest.approx(expected, rel=1e-8)


@pytest.mark.parametrize("rho", [0.0, 0.6])
def test_correlations_may_differ_between_classes_and_between_any_two_epochs(rho):
    releases, rng = drawn(5, 4, 3), np.random.default_rng(0)
    kept = np.stack([np.corrcoef(rng.standard_normal((4, 6)) + shift) for shift in (0.0, rng.standard_normal(6))])
    expected = divergence(*(dense(releases, c, rho, kept) for c in (0, 1)))
    found = together(releases, rho=rho, kept=kept).sum_kl()
    assert found == pytest.approx(expected, rel=1e-8)
    assert found != pytest.approx(together(releases, rho=rho, kept=kept[::-1]).sum_kl(), rel=1e-3)


def test_one_release_has_the_divergence_that_marvell_leaves():
    u, v, d, g, p = 0.02, 0.05, 16, 1.0, 0.1
    spectrum = optimal_noise(u, v, d, g, p, 4.0)
    along, across = (spectrum.lam1_neg, spectrum.lam1_pos), (spectrum.lam2_neg, spectrum.lam2_pos)
    release = EpochRelease(unit(*range(1, 17)), math.sqrt(g), (u, v), along, across)
    assert together([release], rho=0.5, kept=0.5).sum_kl() == pytest.approx(spectrum.sum_kl, rel=1e-9)
    assert together([release] * 5, rho=0.0, kept=0.0).sum_kl() == pytest.approx(5 * spectrum.sum_kl, rel=1e-9)


def test_a_repeated_release_adds_no_divergence():
    (release,) = drawn(3, 1, 5)
    once = together([release], rho=1.0, kept=1.0).sum_kl()
    assert together([release] * 4, rho=1.0, kept=1.0).sum_kl() == pytest.approx(once, rel=1e-7)


def test_persistent_noise_is_gone_from_the_difference_of_two_epochs():
    near, far = (EpochRelease(unit(1, 0, 0), distance, (0.0, 0.0), (4.0, 4.0), (4.0, 4.0)) for distance in (1.0, 2.0))
    assert math.isinf(together([near, far], rho=1.0, kept=0.0).sum_kl())
    for rho in (0.0, 0.9, 0.999):
        expected = (1 + 4 - 4 * rho) / (4 * (1 - rho**2))
        assert together([near, far], rho=rho, kept=0.0).sum_kl() == pytest.approx(expected)


@pytest.mark.parametrize("least", [1e-2, 1e-6, 1e-10, 1e-12])
@pytest.mark.parametrize("ratio", [1.0, 1.2, 50.0])
def test_the_spread_of_rows_counts_beside_their_noise_however_small_it_is(least, ratio):
    """Two releases of one row with the same noise: their sum and their difference are independent."""
    width, noise, distance, rounding = 6, 4.0, 0.3, 1e-6 + 2e-14 / least
    release = EpochRelease(unit(*range(1, 7)), distance, (least, ratio * least), (noise, noise), (noise, noise))
    sums, differences = [least + 2 * noise, ratio * least + 2 * noise], [least, ratio * least]
    expected = distance**2 * (1 / sums[0] + 1 / sums[1])  # of means that are distance * sqrt(2) apart
    for one, other in (sums, differences):
        expected += width * 0.5 * (one - other) ** 2 / (one * other)
    assert together([release] * 2, rho=1.0, kept=0.0).sum_kl() == pytest.approx(expected, rel=rounding)
    factors = np.stack([np.sqrt(noise) * np.eye(width)] * 2)
    same = ShapedRelease(
        distance * release.direction, np.stack([math.sqrt(v) * np.eye(width) for v in differences]), factors
    )
    assert together_shaped([same] * 2, rho=1.0, kept=0.0).sum_kl() == pytest.approx(expected, rel=rounding)


def test_the_best_rule_stays_below_the_bound_where_the_noise_is_gone_from_a_difference():
    """The examples suffice for the ratio of the variances of differences; chance fails the test 1 in 10,000 times."""
    samples = 4_000
    release = EpochRelease(unit(*range(1, 33)), 0.05, (1e-10, 1.2e-10), (1.0, 1.0), (1.0, 1.0))
    both = together([release] * 2, rho=1.0, kept=0.0)
    best = best_auc(both, samples)
    assert 0.6 < best < auc_bound(both.sum_kl()) + norm.isf(1e-4) * math.sqrt(1 / 6 / samples)


@pytest.mark.parametrize("turned", [1e-3, 1e-5, 1e-6])
def test_nearly_equal_directions_are_told_apart(turned):
    """With noise that is the same in both epochs, means a little apart stand out in the difference."""
    distance, noise, own = 1.5, 2.0, turned**2
    near, far = (
        EpochRelease(unit(math.cos(angle), math.sin(angle), 0), distance, (own, own), (noise, noise), (noise, noise))
        for angle in (0.0, turned)
    )
    sums = (2 * distance * math.cos(turned / 2)) ** 2 / 2
    differences = (2 * distance * math.sin(turned / 2)) ** 2 / 2
    expected = sums / (own + 2 * noise) + differences / own
    assert together([near, far], rho=1.0, kept=0.0).sum_kl() == pytest.approx(expected, rel=0.05)


@pytest.mark.parametrize("farther", [1e-3, 1e-6, 1e-9])
def test_means_that_differ_where_nothing_varies_tell_the_classes_apart_for_certain(farther):
    near, far = (
        EpochRelease(unit(1, 0, 0), distance, (0.0, 0.0), (4.0, 4.0), (4.0, 4.0)) for distance in (1.0, 1.0 + farther)
    )
    assert math.isinf(together([near, far], rho=1.0, kept=0.0).sum_kl())


@pytest.mark.parametrize("epochs", [2, 7, 30])
@pytest.mark.parametrize("width", [2, 16])
def test_rounding_errors_of_equal_releases_add_no_divergence(epochs, width):
    (release,), (same,) = drawn(epochs, 1, width), shaped(epochs, 1, 4)
    once = together([release], rho=1.0, kept=1.0).sum_kl()
    assert together([release] * epochs, rho=1.0, kept=1.0).sum_kl() == pytest.approx(once, rel=1e-9)
    once = together_shaped([same], rho=1.0, kept=1.0).sum_kl()
    assert together_shaped([same] * epochs, rho=1.0, kept=1.0).sum_kl() == pytest.approx(once, rel=1e-9)


@pytest.mark.parametrize(("rho", "epochs"), [(0.0, 10), (0.3, 10), (1.0, 10), (0.5, 3)])
def test_with_equal_noise_of_both_classes_only_the_mean_of_the_releases_counts(rho, epochs):
    """The mean of T releases has the variance lam (rho + (1 - rho) / T), and nothing else depends on the class."""
    lam, distance = 2.5, 1.5
    release = EpochRelease(unit(2, 1), distance, (0.0, 0.0), (lam, lam), (lam, lam))
    expected = distance**2 / (lam * (rho + (1 - rho) / epochs))
    assert together([release] * epochs, rho=rho, kept=0.0).sum_kl() == pytest.approx(expected, rel=1e-6)


def test_the_best_rule_is_that_of_two_gaussians_and_stays_below_the_bound():
    release = EpochRelease(unit(1, 1, 0), 1.0, (0.3, 0.3), (4.0, 4.0), (1.0, 1.0))
    for epochs in (1, 10):
        both = together([release] * epochs, rho=0.2, kept=0.5)
        best = best_auc(both, 40_000)
        assert best == pytest.approx(norm.cdf(math.sqrt(both.sum_kl() / 2)), abs=4 * math.sqrt(1 / 6 / 40_000))
        assert best < auc_bound(both.sum_kl())


@given(st.integers(0, 10_000), st.integers(1, 4), st.floats(0.0, 0.99), st.floats(0.0, 0.99))
@settings(max_examples=60)
def test_one_more_release_never_lowers_the_divergence(seed, epochs, rho, kept):
    releases = drawn(seed, epochs + 1, 3)
    fewer = together(releases[:-1], rho=rho, kept=kept).sum_kl()
    assert together(releases, rho=rho, kept=kept).sum_kl() >= fewer * (1 - 1e-9)


@pytest.mark.slow
def test_the_noise_that_defenses_draw_has_the_covariance_of_the_model():
    """Two epochs of one row under many keys; each entry of the covariance within five standard errors."""
    rho, count, width = 0.6, 4_000, 3
    releases = drawn(1, 2, width)
    samples = np.zeros((count, 2 * width))
    rows, zeros = np.array([7]), torch.zeros(1, width, dtype=torch.float64)
    for key in range(count):
        for epoch, release in enumerate(releases):
            generator = torch.Generator().manual_seed(2 * key + epoch)
            noise = Noise(generator, rho=rho, key=key.to_bytes(16, "big"), rows=rows)
            line = float(noise.draw(zeros, 1)[0, 0]) * math.sqrt(release.along[1] - release.across[1])
            rest = noise.draw(zeros, width, stream=1)[0].numpy() * math.sqrt(release.across[1])
            samples[key, epoch * width : (epoch + 1) * width] = line * release.direction + rest
    bare = [EpochRelease(r.direction, 0.0, (0.0, 0.0), r.along, r.across) for r in releases]
    expected = dense(bare, 1, rho, 0.0)[1]
    spread = np.sqrt((np.outer(np.diag(expected), np.diag(expected)) + expected**2) / count)
    assert (np.abs(samples.T @ samples / count - expected) < 5 * spread).all()


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"direction": np.array([1.0, 1.0])}, "length 1"),
        ({"distance": -1.0}, "at least 0"),
        ({"spread": (math.nan, 0.0)}, "finite"),
        ({"along": (1.0, 0.5)}, "not be less than across"),
    ],
)
def test_what_is_no_release_is_refused(values, words):
    sound = {"direction": unit(1, 0), "distance": 1.0, "spread": (0.1, 0.1), "along": (1.0, 1.0), "across": (1.0, 1.0)}
    with pytest.raises(ArgumentError, match=words):
        EpochRelease(**{**sound, **values})


def test_what_cannot_be_put_together_is_refused():
    two, three = drawn(0, 1, 2), drawn(0, 1, 3)
    for releases in ([], [*two, *three]):
        with pytest.raises(ArgumentError, match="one width"):
            together(releases, rho=0.0, kept=0.0)
    for rho, kept in ((1.5, 0.0), (0.0, -0.1)):
        with pytest.raises(ArgumentError, match="between 0 and 1"):
            together(two, rho=rho, kept=kept)
    for kept in (np.ones((2, 1)), np.full((2, 1, 1), math.nan), np.ones((1, 1))):
        with pytest.raises(ArgumentError, match="kept is a number or finite"):
            together(two, rho=0.0, kept=kept)
    asymmetric, large, indefinite = np.eye(3), np.eye(3), np.full((3, 3), -0.9)
    asymmetric[0, 1] = 0.5
    large[0, 0] = 2.0
    np.fill_diagonal(indefinite, 1.0)
    for matrix in (asymmetric, large, indefinite):
        with pytest.raises(ArgumentError, match="kept are correlations"):
            together(drawn(0, 3, 2), rho=0.0, kept=np.stack([np.eye(3), matrix]))
    bare = EpochRelease(unit(1, 0), 1.0, (0.0, 0.0), (0.0, 0.0), (0.0, 0.0))
    assert math.isinf(together([bare], rho=0.0, kept=0.0).sum_kl())


def shaped(seed, epochs, width):
    """Return random releases of classes with general covariances, and with noise of width + 1 numbers."""
    rng = np.random.default_rng(seed)
    return [
        ShapedRelease(
            rng.standard_normal(width),
            rng.standard_normal((2, width, width)),
            rng.standard_normal((2, width, width + 1)),
        )
        for _ in range(epochs)
    ]


@pytest.mark.parametrize(("rho", "kept"), [(0.0, 0.0), (0.7, 0.0), (0.4, 0.9)])
def test_of_any_covariances_the_divergence_is_that_of_the_dense_ones(rho, kept):
    releases = shaped(3, 3, 4)
    classes = []
    for c in (0, 1):
        blocks = [
            [
                (1.0 if s is t else kept) * s.own[c] @ t.own[c].T + (1.0 if s is t else rho) * s.noise[c] @ t.noise[c].T
                for t in releases
            ]
            for s in releases
        ]
        classes.append((c * np.concatenate([one.difference for one in releases]), np.block(blocks)))
    assert together_shaped(releases, rho=rho, kept=kept).sum_kl() == pytest.approx(divergence(*classes), rel=1e-8)


def test_correlations_may_differ_between_directions():
    """The expected covariance is computed from rows with known standardised deviations."""
    releases, rng = shaped(7, 2, 3), np.random.default_rng(2)
    rows = rng.standard_normal((50, 3))
    latent = np.concatenate([np.linalg.qr(rows)[0], np.linalg.qr(rows + rng.standard_normal((50, 3)))[0]], axis=1)
    kept = np.stack([latent.T @ latent, np.eye(6)])
    own = np.concatenate([latent[:, 3 * t : 3 * t + 3] @ releases[t].own[0].T for t in (0, 1)], axis=1)
    fresh = [
        np.block([[releases[0].noise[c], np.zeros((3, 4))], [np.zeros((3, 4)), releases[1].noise[c]]]) for c in (0, 1)
    ]
    first = own.T @ own + fresh[0] @ fresh[0].T
    roots = np.block([[releases[0].own[1], np.zeros((3, 3))], [np.zeros((3, 3)), releases[1].own[1]]])
    second = roots @ roots.T + fresh[1] @ fresh[1].T
    mean = np.concatenate([one.difference for one in releases])
    expected = divergence((0 * mean, first), (mean, second))
    assert together_shaped(releases, rho=0.0, kept=kept).sum_kl() == pytest.approx(expected, rel=1e-8)


@pytest.mark.parametrize("epochs", [1, 3])
def test_releases_are_shaped_releases_with_isotropic_covariances(epochs):
    releases, rng = drawn(8, epochs, 4), np.random.default_rng(1)
    kept = np.stack([np.corrcoef(rng.standard_normal((epochs, 9))).reshape(epochs, epochs) for _ in range(2)])
    same = [
        ShapedRelease(
            one.distance * one.direction,
            np.stack([math.sqrt(variance) * np.eye(4) for variance in one.spread]),
            np.stack(
                [
                    np.column_stack([math.sqrt(across) * np.eye(4), math.sqrt(along - across) * one.direction])
                    for along, across in zip(one.along, one.across, strict=True)
                ]
            ),
        )
        for one in releases
    ]
    expected = together(releases, rho=0.3, kept=kept).sum_kl()
    of_each = np.stack([np.kron(one, np.eye(4)) for one in kept])
    assert together_shaped(same, rho=0.3, kept=of_each).sum_kl() == pytest.approx(expected, rel=1e-9)


def test_what_is_no_shaped_release_is_refused():
    (sound,) = shaped(0, 1, 3)
    with pytest.raises(ArgumentError, match="Give a difference"):
        ShapedRelease(sound.difference, sound.own[:, :2], sound.noise)
    with pytest.raises(ArgumentError, match="not finite"):
        ShapedRelease(sound.difference * math.nan, sound.own, sound.noise)
    for releases in ([], [sound, *shaped(0, 1, 2)]):
        with pytest.raises(ArgumentError, match="one shape"):
            together_shaped(releases, rho=0.0, kept=0.0)
    beside = np.stack([np.kron(np.eye(2), np.full((3, 3), 0.5) + 0.5 * np.eye(3))] * 2)
    with pytest.raises(ArgumentError, match="within an epoch"):
        together_shaped([sound] * 2, rho=0.0, kept=beside)
