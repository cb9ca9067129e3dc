"""Potential energy: the paper's sum, the bound on it at small distances, and its gradient."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.autograd import gradcheck

from flower_vfl.errors import ConfigError
from flower_vfl.strategies.embeddings.potential_energy import potential_energy

FORMS = [{"distance": distance, "reduction": way} for distance in ("angular", "euclidean") for way in ("mean", "sum")]


def rows(count, width, *, seed=0, dtype=torch.float64):
    return torch.randn(count, width, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def energy_by_definition(z, y, *, distance="angular", reduction="mean"):
    """Return the energy by its definition, a pair at a time; angles by atan2, which is exact near 0 and pi."""
    terms = []
    for i in range(len(z)):
        for j in range(len(z)):
            if i != j and y[i] == y[j]:
                a, b = z[i], z[j]
                if distance == "angular":
                    a, b = a / np.linalg.norm(a), b / np.linalg.norm(b)
                    between = 2 * math.atan2(np.linalg.norm(a - b), np.linalg.norm(a + b))
                else:
                    between = np.linalg.norm(a - b)
                terms.append((between**4 + 1e-12) ** -0.25)
    if not terms:
        return 0.0
    return sum(terms) / (len(terms) if reduction == "mean" else 1)


@pytest.mark.parametrize("form", FORMS)
@given(count=st.integers(1, 150), width=st.integers(2, 9), classes=st.integers(1, 9), seed=st.integers(0, 2**16))
@settings(max_examples=12)
def test_it_is_the_sum_over_ordered_pairs_of_one_class(form, count, width, classes, seed):
    z = rows(count, width, seed=seed)
    y = torch.randint(classes, (count,), generator=torch.Generator().manual_seed(seed)) * 7 - 3
    assert float(potential_energy(z, y, **form)) == pytest.approx(
        energy_by_definition(z.numpy(), y.numpy(), **form), rel=1e-6
    )


def test_the_constants_of_three_unit_vectors():
    z = torch.tensor([[2.0, 0.0, 0.0], [0.0, 0.5, 0.0], [-1.0, 0.0, 0.0]], dtype=torch.float64)
    y = torch.zeros(3)
    quarter, half = 2 / math.pi, 1 / math.pi
    assert float(potential_energy(z, y)) == pytest.approx((4 * quarter + 2 * half) / 6, rel=1e-5)
    assert float(potential_energy(z, y, reduction="sum")) == pytest.approx(4 * quarter + 2 * half, rel=1e-5)
    distances = [math.sqrt(4.25), math.sqrt(1.25), 3.0]
    expected = sum(2 / distance for distance in distances)
    assert float(potential_energy(z, y, reduction="sum", distance="euclidean")) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("width", [16, 64])
def test_usual_rows_have_the_papers_energy_to_nine_digits(width):
    z, y = rows(60, width), torch.arange(60) % 2
    same = (y[:, None] == y) & ~torch.eye(60, dtype=torch.bool)
    angles = torch.nn.functional.cosine_similarity(z[:, None], z[None], dim=2).acos()
    assert float(potential_energy(z, y)) == pytest.approx(float((1 / angles[same]).mean()), rel=1e-9)
    distances = (z[:, None] - z[None]).norm(dim=2)
    assert float(potential_energy(z, y, distance="euclidean")) == pytest.approx(
        float((1 / distances[same]).mean()), rel=1e-9
    )


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("count", "classes"), [(1, 1), (9, 3), (70, 1)])
def test_the_gradient_is_the_derivative_also_at_equal_and_at_opposite_rows(form, count, classes):
    z = rows(count, 4, seed=3)
    y = torch.arange(count) % classes
    if count > 6:
        z[3], z[6], z[4] = z[0], -z[0], 2 * z[1]  # an equal row, an opposite one, one of equal direction
    z.requires_grad_()
    assert gradcheck(lambda z: potential_energy(z, y, **form), z, fast_mode=count > 9)


@pytest.mark.parametrize("floor", [0.3, 3.0])
def test_the_gradient_is_the_derivative_where_short_rows_are_softened(floor):
    z = rows(8, 4)
    z[2] *= 1e-3
    z[5] = 0.0
    z.requires_grad_()
    y = torch.tensor([0, 1] * 4)
    assert gradcheck(lambda z: potential_energy(z, y, floor=floor), z)


@pytest.mark.parametrize("form", FORMS)
def test_a_batch_without_a_pair_has_no_energy_and_no_gradient(form):
    for count in (1, 3):
        z = rows(count, 4).requires_grad_()
        energy = potential_energy(z, torch.arange(count), **form)
        energy.backward()
        assert energy.item() == 0.0
        assert torch.equal(z.grad, torch.zeros(count, 4, dtype=torch.float64))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("distance", ["angular", "euclidean"])
def test_equal_rows_have_a_bounded_energy_and_no_force(dtype, distance):
    z = torch.full((5, 128), 0.1, dtype=dtype).requires_grad_()
    energy = potential_energy(z, torch.zeros(5), distance=distance)
    energy.backward()
    assert energy.item() == pytest.approx(1000.0, rel=0.03)
    assert z.grad.norm() < 100  # rounding; rows at a small distance have a gradient of 100,000


@pytest.mark.parametrize("distance", ["angular", "euclidean"])
def test_no_distance_makes_the_force_greater_than_the_bound(distance):
    start = torch.tensor([1.0, 0.0, 0.0], dtype=torch.float64)
    forces = []
    for exponent in np.linspace(-12, 0, 200):
        z = torch.stack([start, start + 10**exponent * torch.tensor([0.0, 1.0, 0.0])]).requires_grad_()
        potential_energy(z, torch.zeros(2), distance=distance).backward()
        forces.append(z.grad.norm(dim=1).max().item())
    assert max(forces) < 1e6
    assert max(forces) > 1e5
    assert forces[0] < 1.0


def test_a_row_of_zeros_is_at_right_angles_to_all_and_not_moved():
    z = rows(4, 3)
    z[1] = 0.0
    z.requires_grad_()
    energy = potential_energy(z, torch.tensor([0, 0, 1, 2]))
    energy.backward()
    assert energy.item() == pytest.approx(2 / math.pi)
    assert torch.equal(z.grad[1], torch.zeros(3, dtype=torch.float64))
    assert potential_energy(torch.zeros(3, 4), torch.zeros(3)).item() == pytest.approx(2 / math.pi)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_angular_form_depends_on_directions_only(dtype):
    z, y = rows(61, 5, dtype=dtype), torch.arange(61) % 2
    expected = potential_energy(z, y)
    stretched = z * torch.logspace(-30, 30, 61, dtype=dtype)[:, None]
    assert float(potential_energy(stretched, y)) == pytest.approx(float(expected), rel=1e-5)
    z.requires_grad_()
    stretched = (z.detach() * 1e-12).requires_grad_()
    potential_energy(z, y).backward()
    potential_energy(stretched, y).backward()
    assert torch.allclose(stretched.grad * 1e-12, z.grad, rtol=1e-4, atol=1e-6)
    assert z.grad.mul(z.detach()).sum(dim=1).abs().max() < 1e-5  # no force along a row


@pytest.mark.parametrize("form", FORMS)
def test_float32_agrees_with_float64(form):
    z, y = rows(300, 128), (torch.arange(300) % 5 == 0).long()
    z[7], z[8], z[9] = z[1], -z[2], z[3] + 1e-2 * z[4]
    results = []
    for dtype in (torch.float64, torch.float32):
        x = z.detach().clone().to(dtype).requires_grad_()
        energy = potential_energy(x, y, **form)
        energy.backward()
        results.append((energy.item(), x.grad.double()))
    assert results[1][0] == pytest.approx(results[0][0], rel=1e-2)
    # All rows but those of the two close pairs, whose forces are dominated by rounding.
    usual = torch.ones(300, dtype=torch.bool)
    usual[[1, 3, 7, 9]] = False
    difference = (results[1][1] - results[0][1])[usual].norm() / results[0][1][usual].norm()
    assert difference < 1e-5


def test_a_shift_of_all_rows_does_not_change_the_euclidean_energy():
    z, y = rows(40, 6, dtype=torch.float32), torch.zeros(40)
    far = potential_energy(z + 1000.0, y, distance="euclidean")
    assert far.item() == pytest.approx(potential_energy(z, y, distance="euclidean").item(), rel=1e-3)


def test_feature_maps_count_as_the_same_numbers_in_one_row_each():
    z, y = rows(10, 12).view(10, 3, 2, 2).requires_grad_(), torch.arange(10) % 2
    potential_energy(z, y).backward()
    flat = z.detach().flatten(1).requires_grad_()
    potential_energy(flat, y).backward()
    assert z.grad.shape == z.shape
    assert torch.equal(z.grad.flatten(1), flat.grad)


def test_descent_on_the_energy_spreads_the_rows_of_a_class_to_right_angles():
    z = (rows(30, 16) * 0.1 + 1.0).requires_grad_()
    y = torch.arange(30) % 2
    optimizer = torch.optim.Adam([z], lr=0.05)
    for _ in range(200):
        optimizer.zero_grad()
        potential_energy(z, y).backward()
        optimizer.step()
    cosines = torch.nn.functional.cosine_similarity(z.detach()[:, None], z.detach()[None], dim=2)
    same = (y[:, None] == y) & ~torch.eye(30, dtype=torch.bool)
    assert torch.acos(cosines[same]).mean() > 1.5


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("distance", ["angular", "euclidean"])
def test_a_number_that_is_not_finite_shows_in_the_result(value, distance):
    z = rows(6, 4)
    z[2, 1] = value
    assert math.isnan(potential_energy(z, torch.zeros(6), distance=distance).item())


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"reduction": "avg"}, "no reduction 'avg'.*Allowed: mean, sum"),
        ({"distance": "euclid"}, "did you mean 'euclidean'"),
    ],
)
def test_unknown_forms_are_refused_with_the_nearest(more, message):
    with pytest.raises(ConfigError, match=message):
        potential_energy(rows(4, 3), torch.zeros(4), **more)


def test_integer_embeddings_and_labels_that_do_not_fit_are_refused():
    with pytest.raises(ConfigError, match=r"floating point, given torch\.int64"):
        potential_energy(torch.ones(4, 3, dtype=torch.int64), torch.zeros(4))
    with pytest.raises(ConfigError, match=r"labels \(B,\), given \(4, 3\) and \(5,\)"):
        potential_energy(rows(4, 3), torch.zeros(5))
