"""Joint attacks: closed forms, scikit-learn on the same arrays, and a synthetic leak whose best score is known."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge
from sklearn.metrics import roc_auc_score
from sklearn.preprocessing import OneHotEncoder

from flower_vfl.attacks.joint import JointReaderAttack, JointRegressionAttack, JointView, OwnRows
from flower_vfl.attacks.joint.features import fit_features
from flower_vfl.attacks.joint.reader import read_own
from flower_vfl.attacks.joint.regression import evidence, fit_gradients
from flower_vfl.attacks.joint.ridge import FEW_PENALTIES, FOLDS, PENALTIES, cross_fitted, leave_one_out
from flower_vfl.attacks.longitudinal.base import KnownRows
from flower_vfl.errors import ConfigError

WEIGHTS = np.array([1.0, -0.5, 0.0, 0.8])


def direction_of(seed):
    """Return the unit vector along which the class means differ."""
    direction = np.random.default_rng(seed + 1000).normal(size=6)
    return direction / np.linalg.norm(direction)


def draw(seed, rows=20_000, *, noise=1.0):
    """Return a view with columns of a known logit and gradients (p - y) u plus noise, labels and logits by part."""
    rng = np.random.default_rng(seed)
    parts = {}
    for part, count in (("train", rows), ("test", rows // 4)):
        x = rng.normal(size=(count, 4)).astype(np.float32)
        ids = rng.integers(0, 4, (count, 1))
        logit = x @ WEIGHTS + 1.2 * (ids[:, 0] == 2) - 3.0
        y = rng.random(count) < 1 / (1 + np.exp(-logit))
        z = np.tanh(x @ rng.normal(size=(4, 3)).astype(np.float32)).astype(np.float32)
        parts[part] = (OwnRows((torch.from_numpy(x), torch.from_numpy(ids)), torch.from_numpy(z)), y, logit)
    y, logit = parts["train"][1:]
    direction = direction_of(seed)
    # A model that predicts the share of positives: p is the same for all rows.
    signal = (y.mean() - y)[:, None] * direction
    # Noise is largest along the line of the class means, as marvell_full's.
    along = rng.normal(size=(rows, 1)) * direction
    g = signal + noise * (along + 0.3 * rng.normal(size=(rows, 6)))
    view = JointView(torch.from_numpy(g).float(), parts["train"][0], parts["test"][0])
    return view, {part: found[1] for part, found in parts.items()}, {part: found[2] for part, found in parts.items()}


def known_rows(y, k):
    rows = np.sort(np.concatenate([np.flatnonzero(y == label)[:k] for label in (False, True)]))
    return KnownRows(rows, y[rows].astype(np.int64))


def test_the_cross_fitted_ridge_is_that_of_scikit_learn():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(403, 7)).astype(np.float32)
    targets = np.stack([x[:, 0] + 0.5 * rng.normal(size=403), rng.normal(size=403)], axis=1)
    expected, weights = cross_fitted(lambda: torch.from_numpy(x).split(100), torch.from_numpy(targets))
    fold = np.arange(403) % FOLDS
    for t in range(2):
        predicted = np.empty((len(PENALTIES), 403))
        for row, penalty in enumerate(PENALTIES):
            for k in range(FOLDS):
                others = fold != k
                ridge = Ridge(alpha=penalty * others.sum(), fit_intercept=False)
                fit = ridge.fit(x[others], targets[others, t])
                predicted[row, fold == k] = fit.predict(x[fold == k])
        best = np.square(predicted - targets[:, t]).sum(axis=1).argmin()
        np.testing.assert_allclose(expected[:, t], predicted[best], atol=1e-4)
        every = Ridge(alpha=PENALTIES[best] * 403, fit_intercept=False).fit(x, targets[:, t])
        np.testing.assert_allclose(weights[:, t], every.coef_, atol=1e-5)


def test_each_known_row_is_predicted_by_a_fit_to_the_others():
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=(24, 40)), np.repeat([-1.0, 1.0], 12)
    x[:, 0] += y
    expected, weights = leave_one_out(torch.from_numpy(x), torch.from_numpy(y))
    unit = np.square(x).sum(axis=1).mean()
    errors = []
    for penalty in FEW_PENALTIES:
        fits = [
            Ridge(alpha=penalty * unit, fit_intercept=False).fit(np.delete(x, i, 0), np.delete(y, i)).predict(x[[i]])[0]
            for i in range(24)
        ]
        errors.append((np.square(y - fits).mean(), fits, penalty))
    _, fits, penalty = min(errors, key=lambda found: found[0])
    np.testing.assert_allclose(expected, fits, atol=1e-8)
    np.testing.assert_allclose(weights, Ridge(alpha=penalty * unit, fit_intercept=False).fit(x, y).coef_, atol=1e-8)


def test_columns_become_the_matrix_that_scikit_learn_makes():
    view, _, _ = draw(2, rows=400)
    (x, ids), z = view.train.inputs, view.train.embeddings
    features = fit_features(view.train, ("columns", "embeddings"))
    found = torch.cat(list(features.pieces(view.train))).numpy()
    one_hot = OneHotEncoder(sparse_output=False).fit_transform(ids.numpy())
    frequent = np.argsort(-np.bincount(ids[:, 0].numpy()), kind="stable")
    numbers = x.numpy()
    expected = np.concatenate(
        [
            (numbers - numbers.mean(0)) / numbers.std(0),
            (one_hot - one_hot.mean(0))[:, frequent],
            (z.numpy() - z.numpy().mean(0)) / np.sqrt(z.numpy().var(0).mean()),
        ],
        axis=1,
    )
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert fit_features(OwnRows((), z), ("columns",)) is None


def test_a_text_is_a_count_of_its_words():
    texts = OwnRows((torch.tensor([[7, 7, 3], [3, 0, 0], [9, 3, 0]]),), torch.zeros(3, 1))
    features = fit_features(texts, ("columns",), words=True)
    counts = torch.cat(list(features.pieces(texts))) + features.centre
    assert {tuple(column) for column in counts.T.tolist()} == {(2, 0, 0), (1, 1, 1), (0, 2, 1), (0, 0, 1)}


@pytest.mark.parametrize("seed", range(3))
def test_noisy_gradients_and_columns_nearly_reach_the_best_auc_of_the_columns(seed):
    view, y, logit = draw(seed)
    alone = roc_auc_score(y["train"], evidence(view.gradients)[:, 0])
    best = {part: roc_auc_score(y[part], logit[part]) for part in y}
    scores = JointRegressionAttack("direction").read(view)
    assert max(alone, 1 - alone) < best["train"] - 0.05
    for part in y:
        found = roc_auc_score(y[part], getattr(scores, part))
        # Only the lengths of these gradients settle the sign, and the noise nearly hides them.
        assert max(found, 1 - found) > best[part] - 0.04


def test_the_side_is_the_one_of_longer_gradients():
    view, y, logit = draw(4, noise=0.3)
    for g in (view.gradients, -view.gradients):
        scores = JointRegressionAttack("both").read(replace(view, gradients=g))
        assert roc_auc_score(y["test"], scores.test) > roc_auc_score(y["test"], logit["test"]) - 0.03


def test_the_side_is_not_that_of_fewer_rows_where_noise_is_skewed():
    view, y, _ = draw(4, noise=0.3)
    skew = np.random.default_rng(0).exponential(size=(len(view.gradients), 1)) - 1
    g = view.gradients + torch.from_numpy(skew * direction_of(4)).float()
    assert roc_auc_score(y["train"], evidence(g)[:, 0]) < 0.4  # the rarer side is the wrong one
    assert roc_auc_score(y["train"], fit_gradients(g, view.train, view.test).own[:, 0]) > 0.6


def test_a_rows_own_gradient_does_not_move_its_score_in_the_regression():
    view, _, _ = draw(5, rows=2000)
    moved = view.gradients.clone()
    moved[17] *= 20
    first, second = (fit_gradients(g, view.train, view.test) for g in (view.gradients, moved))
    others = (first.train - second.train).abs()
    assert float(others[17].max()) < 3 * float(others.max(dim=1).values.median())
    assert float((first.own - second.own)[17].abs().max()) > 1


def test_known_labels_with_gradients_read_more_than_without():
    view, y, logit = draw(6, noise=0.7)
    view = replace(view, known=known_rows(y["train"], 32))
    attack, others = JointReaderAttack(32), np.ones(len(y["train"]), dtype=bool)
    others[view.known.rows] = False
    scores, baselines = attack.read(view), attack.baselines(view)
    reached = {name: roc_auc_score(y["train"][others], baseline.train[others]) for name, baseline in baselines.items()}
    found = roc_auc_score(y["train"][others], scores.train[others])
    without = roc_auc_score(y["train"][others], scores.without_own[others])
    # The best score adds to the logit the log likelihood ratio along the direction of the means.
    variance = 0.7**2 * 1.09
    best = roc_auc_score(y["train"], logit["train"] - view.gradients.numpy() @ direction_of(6) / variance)
    assert best - 0.08 < found < best + 0.005
    assert found > without + 0.02
    assert found > max(reached.values()) + 0.02
    assert set(reached) == {"columns", "embeddings", "columns, embeddings"}
    assert read_own(view, ("columns",)).train.shape == (len(others),)


def test_one_known_row_of_a_class_is_too_few():
    with pytest.raises(ConfigError, match="2 rows of each class"):
        JointReaderAttack(k=1)
