"""The direction and the shell attack against numpy's singular vectors and closed forms, and behind defenses."""

import numpy as np
import pytest
import torch
from scipy.stats import norm as normal

from flower_vfl.attacks import ATTACKS, make_attack
from flower_vfl.attacks.gradient import direction, shell
from flower_vfl.attacks.gradient.principal_direction import follow
from flower_vfl.errors import ArgumentError
from flower_vfl.metrics import leak_auc
from flower_vfl.strategies.gradients import max_norm
from flower_vfl.strategies.gradients.marvell import full
from flower_vfl.testing import check_attack
from tests.attacks.common import auc_error, gradients, transcript_of


def batches(count=30, *, rows=1024, width=16, share=0.08, seed=0, turning=0.05):
    """Yield clean gradients and labels of a training: the model learns the prior first; the line of the means turns."""
    generator = torch.Generator().manual_seed(seed)
    line = torch.randn(width, generator=generator)
    for number in range(count):
        y = (torch.rand(rows, generator=generator) < share).float()
        prior = share + (0.5 - share) * 0.5**number  # an untrained model predicts one half
        p = torch.sigmoid(torch.randn(rows, generator=generator) * 0.5 + np.log(prior / (1 - prior)))
        slopes = line + 0.2 * torch.randn(rows, width, generator=generator)
        yield (p - y)[:, None] * slopes / rows, y
        line = line + turning * torch.randn(width, generator=generator) * line.norm() / width**0.5


def aucs_of(attack, sent):
    return [leak_auc(attack.rate(g, None), y) for g, y in sent]


def test_scores_of_the_first_batch_are_projections_on_numpys_first_singular_vector():
    g = gradients(0, (200, 12), torch.float64) * torch.linspace(3.0, 0.5, 12)
    _, _, vectors = np.linalg.svd(g.numpy(), full_matrices=False)
    expected = g.numpy() @ vectors[0] / np.sqrt((g.numpy() ** 2).sum(axis=1).mean())
    scores = direction.score(g).numpy()
    expected *= np.sign(expected @ scores)
    np.testing.assert_allclose(scores, expected, rtol=0, atol=0.05)  # 16 power iterations; variances differ by a third


def test_later_batches_are_projected_on_the_singular_vector_that_includes_earlier_ones():
    first, second = (gradients(seed, (300, 6), torch.float64) * torch.tensor([9.0, 2, 1, 1, 1, 1]) for seed in (1, 2))
    line = follow(first).line
    placed = follow(second, line)
    unit = np.sqrt((second.numpy() ** 2).sum(axis=1).mean())
    memory = (0.5 * line.weight).sqrt() * line.direction
    stacked = np.vstack([second.numpy() / unit, memory.numpy()])
    _, values, vectors = np.linalg.svd(stacked, full_matrices=False)
    expected = second.numpy() @ vectors[0] / unit
    np.testing.assert_allclose(placed.along.abs().numpy(), np.abs(expected), rtol=0, atol=1e-3)
    assert float(placed.line.weight) == pytest.approx(values[0] ** 2, rel=1e-3)


@pytest.mark.parametrize("seed", range(5))
def test_behind_marvell_full_single_batches_are_read_with_the_right_sign(seed):
    generator = torch.Generator().manual_seed(seed)
    sent, ideal = [], []
    for g, y in batches(seed=seed):
        noisy, noise = full.perturb(g, y, s=4.0, generator=generator)
        sent.append((noisy, y))
        inside = g @ noise.line.to(g)
        apart = (inside[y == 1].mean() - inside[y == 0].mean()).abs()
        spread = sum(float(inside[y == c].var()) for c in (0, 1)) + 2 * noise.along * float(g.abs().max()) ** 2
        ideal.append(normal.cdf(float(apart) / spread**0.5))  # two normal classes on a line
    found = aucs_of(make_attack("direction"), sent)
    assert min(found) > 0.5
    assert abs(np.mean(found) - np.mean(ideal)) < 0.02


@pytest.mark.parametrize("name", ["direction", "shell"])
def test_the_sign_is_that_of_the_rarer_class_throughout(name):
    sent = list(batches(count=40, turning=0.3))
    first, *_, last = sent
    assert aucs_of(make_attack(name), sent)[-1] > 0.9
    upside_down = [(g, 1 - y) for g, y in batches(count=40, share=0.92)]  # the rarer class is the negative one
    assert aucs_of(make_attack(name), upside_down)[-1] > 0.9
    similarity = float(torch.nn.functional.cosine_similarity(_mean_difference(*first), _mean_difference(*last), dim=0))
    assert similarity < 0.8  # a fixed direction would fail


def _mean_difference(g, y):
    return g[y == 1].mean(dim=0) - g[y == 0].mean(dim=0)


def test_a_later_batch_does_not_change_a_sign_that_is_settled():
    sent = list(batches(count=6))
    attack = make_attack("direction")
    before = aucs_of(attack, sent)
    g, y = sent[-1]
    # The shift moves the mean to the other side.
    assert leak_auc(attack.rate(g + 5.0 * g.abs().max() * _mean_difference(g, y).sign(), None), y) > 0.9
    assert leak_auc(attack.rate(g, None), y) == pytest.approx(before[-1], abs=0.02)


def test_the_shell_reads_max_norm_where_lengths_do_not():
    generator = torch.Generator().manual_seed(3)
    sent = [(max_norm.perturb(g, generator=generator), y) for g, y in batches(count=20)]
    lengths = np.mean([leak_auc(make_attack("norm").rate(g, None), y) for g, y in sent])
    along, on_shell = (np.mean(aucs_of(make_attack(name), sent)) for name in ("direction", "shell"))
    assert on_shell > max(lengths, along) + 0.01


def test_rows_on_the_shell_score_by_closed_form():
    rows = torch.tensor([[-2.0, 0.0], [4.0, 0.0], [0.5, 0.0], [0.5, 0.0], [1.0, 0.0]])
    radius = ((4.0 + 16 + 0.25 + 0.25 + 1) / 5) ** 0.5
    lengths = np.array([2.0, 4, 0.5, 0.5, 1])
    expected = np.array([1, -1, -1, -1, -1]) / (1 + np.abs(np.log(lengths / radius)))
    np.testing.assert_allclose(shell.score(rows).numpy(), expected, rtol=1e-6)
    assert shell.score(torch.tensor([[0.0, 0.0], [3.0, 4.0], [-1.0, 0.0]]))[0] == 0.0


@pytest.mark.parametrize("name", ["direction", "shell"])
def test_noise_alone_gives_chance_over_a_run(name):
    y = (torch.arange(1000) < 100).float()
    found = aucs_of(make_attack(name), [(gradients(seed, (1000, 8)), y) for seed in range(20)])
    assert abs(np.mean(found) - 0.5) < auc_error(0.5, 100, 900) / 20**0.5


@pytest.mark.parametrize("name", ["direction", "shell"])
def test_each_of_several_runs_is_followed_as_if_it_were_alone(name):
    runs = [list(batches(count=8, seed=seed, rows=128)) for seed in range(3)]
    together = make_attack(name)
    alone = [make_attack(name) for _ in runs]
    for step in range(8):
        rows = torch.stack([run[step][0] for run in runs])
        if step == 3:
            rows[1] = torch.nan  # a run that diverged
        found = together.rate(rows, None)
        for run, attack in enumerate(alone):
            torch.testing.assert_close(found[run], attack.rate(rows[run], None), rtol=1e-4, atol=1e-5, equal_nan=True)
    assert found.isfinite().all()
    for run, attack in enumerate(alone):
        state, own = together.state(), attack.state()
        assert state.keys() == own.keys()
        for key, value in own.items():
            torch.testing.assert_close(state[key][run], value, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["direction", "shell"])
def test_gradients_of_another_layer_or_party_are_refused(name):
    attack = make_attack(name)
    attack.score(transcript_of(cut=gradients(0, (9, 5))), "cut")
    with pytest.raises(ArgumentError, match="sees those of one layer and party"):
        attack.score(transcript_of(cut=gradients(0, (9, 6))), "cut")


@pytest.mark.parametrize("name", ["direction", "shell"])
def test_they_pass_the_checks_of_every_attack(name):
    check_attack(ATTACKS[name])
