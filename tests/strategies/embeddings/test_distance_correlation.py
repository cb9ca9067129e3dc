"""Distance correlation: the numbers of statsmodels, three forms, its gradient, and 0 where nothing correlates."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from statsmodels.stats.dist_dependence_measures import distance_statistics
from torch.autograd import gradcheck

from flower_vfl.errors import ConfigError
from flower_vfl.strategies.embeddings.distance_correlation import distance_correlation

FORMS = ["dcor", "log", "squared"]


def rows(count, width, *, seed=0, dtype=torch.float64):
    return torch.randn(count, width, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def centred(distances):
    means = distances.mean(dim=0)
    return distances - means - means[:, None] + means.mean()


def correlation_by_definition(z, y, form):
    """Return the correlation by its definition, with plain autograd, on one-hot labels."""
    a, b = (centred(torch.linalg.vector_norm(x[:, None] - x[None] + 1e-200, dim=2)) for x in (z, y))
    squared = (a * b).mean() / ((a * a).mean() * (b * b).mean()).sqrt()
    return {"squared": squared, "dcor": squared.sqrt(), "log": squared.sqrt().log()}[form]


@given(count=st.integers(2, 150), width=st.integers(1, 9), classes=st.integers(2, 9), seed=st.integers(0, 2**16))
@settings(max_examples=40)
def test_it_equals_that_of_statsmodels_to_ten_digits(count, width, classes, seed):
    """The logarithm of a small correlation magnifies rounding, so its tolerance grows as the correlation shrinks."""
    z = rows(count, width, seed=seed) * 10 ** (seed % 7 - 3) + seed % 5
    y = torch.randint(classes, (count,), generator=torch.Generator().manual_seed(seed))
    assume(len(set(y.tolist())) > 1)  # of one class statsmodels divides by 0
    hot = np.eye(classes)[y.numpy()] if classes > 2 else y.double().numpy()[:, None]
    expected = distance_statistics(z.numpy(), hot).distance_correlation
    assert float(distance_correlation(z, y)) == pytest.approx(expected, abs=1e-10)
    assert float(distance_correlation(z, y, form="squared")) == pytest.approx(expected**2, abs=1e-10)
    assert float(distance_correlation(z, y, form="log")) == pytest.approx(math.log(expected), abs=1e-10 / expected)


def test_it_equals_that_of_statsmodels_where_rows_are_equal():
    z = rows(12, 5)[torch.tensor([0, 0, 0, 1, 1, 2, 3, 4, 5, 6, 6, 7])]
    y = torch.tensor([0, 1, 0, 1, 1, 1, 0, 0, 0, 1, 0, 1])
    expected = distance_statistics(z.numpy(), y.double().numpy()[:, None]).distance_correlation
    assert float(distance_correlation(z, y)) == pytest.approx(expected, abs=1e-10)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("count", [9, 70])
def test_the_gradient_is_the_derivative_also_at_equal_and_at_opposite_rows(form, count):
    z = rows(count, 4, seed=3)
    z[3], z[6], z[4] = z[0], -z[0], z[1]
    z.requires_grad_()
    assert gradcheck(lambda z: distance_correlation(z, torch.arange(count) % 3, form=form), z, fast_mode=count > 9)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("classes", [2, 5])
def test_the_gradient_is_that_of_plain_autograd(form, classes):
    z, y = rows(80, 6).requires_grad_(), torch.arange(80) ** 2 % classes
    correlation_by_definition(z, torch.nn.functional.one_hot(y).double(), form).backward()
    expected, z.grad = z.grad, None
    (2.0 * distance_correlation(z, y, form=form)).backward()
    assert torch.allclose(z.grad, 2.0 * expected, rtol=1e-9, atol=1e-14)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("z", "y"),
    [
        (rows(6, 3), torch.ones(6)),
        (rows(1, 3), torch.zeros(1)),
        (torch.full((6, 3), 0.1, dtype=torch.float64), torch.arange(6) % 2),
        (torch.full((6, 3), 0.1), torch.arange(6) % 2),
        (torch.zeros(6, 3), torch.arange(6) % 3),
    ],
    ids=["one class", "one row", "equal rows", "equal rows in float32", "zeros"],
)
def test_where_labels_or_embeddings_do_not_vary_it_is_zero_without_gradient(z, y, form):
    z = z.clone().requires_grad_()
    value = distance_correlation(z, y, form=form)
    value.backward()
    assert value.item() == 0.0
    assert torch.equal(z.grad, torch.zeros_like(z))


def test_classes_with_the_same_embeddings_have_no_correlation_and_a_finite_gradient():
    z = torch.cat([rows(5, 3), rows(5, 3)]).requires_grad_()
    y = torch.arange(10) // 5
    for form in FORMS:
        z.grad = None
        value = distance_correlation(z, y, form=form)
        value.backward()
        assert value.item() == pytest.approx(0.0, abs=1e-7) if form != "log" else -19 < value.item() < -15
        assert z.grad.abs().max() < 10.0
    assert distance_correlation(z, y, form="squared").item() < 1e-15


@pytest.mark.parametrize("form", FORMS)
def test_float32_agrees_with_float64(form):
    z, y = rows(300, 128), (torch.arange(300) % 5 == 0).long()
    z[:, 0] += 4 * y
    z[7], z[8], z[9] = z[1], -z[2], z[3] + 1e-2 * z[4]
    results = []
    for dtype in (torch.float64, torch.float32):
        x = z.detach().clone().to(dtype).requires_grad_()
        value = distance_correlation(x, y, form=form)
        value.backward()
        results.append((value.item(), x.grad.double()))
    assert results[1][0] == pytest.approx(results[0][0], rel=1e-3)
    assert (results[1][1] - results[0][1]).norm() < 2e-2 * results[0][1].norm()


@pytest.mark.parametrize("scale", [1e-30, 1e30])
def test_the_scale_of_embeddings_changes_nothing(scale):
    z, y = rows(64, 5, dtype=torch.float32), torch.arange(64) % 2
    plain, scaled = z.clone().requires_grad_(), (z * scale).requires_grad_()
    first, second = distance_correlation(plain, y), distance_correlation(scaled, y)
    first.backward()
    second.backward()
    assert second.item() == pytest.approx(first.item(), rel=1e-4)
    assert torch.allclose(scaled.grad.double() * scale, plain.grad.double(), rtol=1e-3, atol=1e-6)


def test_descent_on_its_gradient_lowers_the_correlation():
    z, y = rows(60, 4), torch.arange(60) % 2
    z[:, 0] += 3 * y
    z.requires_grad_()
    optimizer = torch.optim.Adam([z], lr=0.05)
    before = distance_correlation(z, y).item()
    for _ in range(200):
        optimizer.zero_grad()
        distance_correlation(z, y).backward()
        optimizer.step()
    assert before > 0.7
    assert distance_correlation(z, y).item() < 0.2


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("form", FORMS)
def test_a_number_that_is_not_finite_shows_in_the_result(value, form):
    z = rows(6, 4)
    z[2, 1] = value
    assert math.isnan(distance_correlation(z, torch.arange(6) % 2, form=form).item())


def test_an_unknown_form_is_refused_with_the_nearest():
    with pytest.raises(ConfigError, match=r"no form 'square'; did you mean 'squared'\? Allowed: dcor, log, squared"):
        distance_correlation(rows(4, 3), torch.zeros(4), form="square")


def test_integer_embeddings_and_shapes_that_do_not_fit_are_refused():
    with pytest.raises(ConfigError, match=r"floating point, given torch\.int64"):
        distance_correlation(torch.ones(4, 3, dtype=torch.int64), torch.zeros(4))
    with pytest.raises(ConfigError, match=r"labels \(B,\), given \(4,\) and \(4,\)"):
        distance_correlation(torch.ones(4), torch.zeros(4))
