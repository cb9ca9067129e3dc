"""Half precision on the wire has the errors of half precision, whatever the magnitude of the numbers."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from flower_vfl.errors import NotFiniteError, ProtocolError
from flower_vfl.protocol.frame import Frame, Kind, from_records, to_records
from flower_vfl.protocol.numbers import compress, expand


def round_trip(tensor, wire_dtype):
    sent = compress(Frame(Kind.STEP, 3, {"gradient_of": 2}, {"g": tensor}), wire_dtype)
    return expand(from_records(to_records(sent, "s"), "s"), wire_dtype).tensors["g"]


def relative_error(tensor, found):
    """Return the largest error of a row relative to its largest magnitude."""
    rows = tensor.double().flatten(1)
    return ((found.double().flatten(1) - rows).abs().amax(1) / rows.abs().amax(1)).max()


@given(st.integers(1, 20), st.integers(1, 20), st.integers(0, 2**32), st.sampled_from([torch.float32, torch.float64]))
@settings(max_examples=60)
def test_float16_keeps_ten_bits_of_each_row_whatever_its_magnitude(rows, width, seed, dtype):
    generator = torch.Generator().manual_seed(seed)
    magnitude = 10.0 ** (torch.rand(rows, 1, generator=generator, dtype=torch.float64) * 60 - 30)
    tensor = (torch.randn(rows, width, generator=generator, dtype=torch.float64) * magnitude).to(dtype)
    found = round_trip(tensor, "float16")
    assert found.dtype == dtype
    assert relative_error(tensor, found) < 2**-10


@pytest.mark.parametrize("exponent", [-200, 200])
def test_float64_rows_beyond_the_range_of_float32_survive_float16(exponent):
    tensor = torch.tensor([[1.0, -0.3], [0.7, 0.2]], dtype=torch.float64) * 10.0**exponent
    assert relative_error(tensor, round_trip(tensor, "float16")) < 2**-10


def test_rows_of_zeros_stay_zeros_beside_others():
    tensor = torch.tensor([[0.0, 0.0], [1e-20, -2e-20], [0.0, -0.0]])
    found = round_trip(tensor, "float16")
    assert torch.equal(found[[0, 2]], torch.zeros(2, 2))
    assert relative_error(tensor[1:2], found[1:2]) < 2**-10


def test_the_signs_and_the_order_of_the_values_stay():
    tensor = (torch.arange(-10, 11) * 1e-10).view(1, -1)
    found = round_trip(tensor, "float16")
    assert torch.equal(found.sign(), tensor.sign())
    assert (found.diff() > 0).all()


@given(st.integers(0, 2**32))
@settings(max_examples=30)
def test_bfloat16_keeps_eight_bits_of_each_value(seed):
    generator = torch.Generator().manual_seed(seed)
    tensor = torch.randn(5, 7, generator=generator) * 10.0 ** (torch.rand(5, 7, generator=generator) * 60 - 30)
    found = round_trip(tensor, "bfloat16")
    assert ((found - tensor).abs() <= tensor.abs() * 2**-8).all()


@pytest.mark.parametrize("wire_dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("shape", [(), (1,), (5,), (0, 3), (3, 0), (2, 3, 4), (2, 1, 3, 2)])
def test_tensors_of_every_shape_travel(wire_dtype, shape):
    tensor = torch.ones(shape) * 3
    found = round_trip(tensor, wire_dtype)
    assert found.dtype == torch.float32
    assert torch.equal(found, tensor)


def test_half_precision_halves_the_bytes():
    frame = Frame(Kind.STEP, tensors={"g": torch.randn(64, 32)})
    assert compress(frame, "bfloat16").nbytes == frame.nbytes / 2
    assert compress(frame, "float16").nbytes == frame.nbytes / 2 + 64 * 4


def test_exact_leaves_the_frame_as_it_is():
    frame = Frame(Kind.STEP, 1, {"a": 1}, {"g": torch.tensor([[1e-42, 1.0]])})
    assert compress(frame, "exact") is frame
    assert expand(frame, "exact") is frame


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int64, torch.float16, torch.bfloat16])
def test_other_number_formats_travel_as_they_are(dtype):
    tensor = torch.arange(6).view(2, 3).to(dtype)
    found = round_trip(tensor, "float16")
    assert found.dtype == dtype
    assert torch.equal(found, tensor)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("wire_dtype", ["float16", "bfloat16"])
def test_a_value_that_is_not_finite_is_never_made_finite(value, wire_dtype):
    tensor = torch.ones(3, 4)
    tensor[1, 2] = value
    sent = compress(Frame(Kind.STEP, tensors={"g": tensor}), wire_dtype)
    with pytest.raises(ProtocolError):
        expand(sent, wire_dtype).tensor("g", shape=(3, 4), dtype=torch.float32)


@pytest.mark.parametrize("agreed", ["exact", "float16", "bfloat16"])
@pytest.mark.parametrize("used", ["exact", "float16", "bfloat16"])
def test_another_number_format_than_the_runs_is_refused(agreed, used):
    sent = compress(Frame(Kind.STEP, tensors={"g": torch.ones(2, 3)}), used)
    if agreed == used:
        assert torch.equal(expand(sent, agreed).tensors["g"], torch.ones(2, 3))
    else:
        with pytest.raises(ProtocolError, match=f"wire_dtype is '{agreed}'"):
            expand(sent, agreed)


def hostile(scale, *, tensor=None, claim="float32"):
    tensors = {"g": torch.ones(2, 3, dtype=torch.float16) if tensor is None else tensor}
    return Frame(
        Kind.STEP, fields={"g.dtype": claim}, tensors=tensors if scale is None else {**tensors, "g.scale": scale}
    )


@pytest.mark.parametrize(
    "scale",
    [
        None,
        torch.ones(3),
        torch.ones(1),
        torch.ones(2, 1),
        torch.tensor(1.0),
        torch.ones(2, dtype=torch.float64),
        torch.ones(2, dtype=torch.int64),
        torch.tensor([1.0, -1.0]),
        torch.tensor([float("nan"), -1.0]),
        torch.tensor([1.0, -float("inf")]),
    ],
    ids=str,
)
def test_hostile_scales_are_refused(scale):
    assert expand(hostile(torch.tensor([2.0, 3.0])), "float16").tensors["g"].tolist() == [[2.0] * 3, [3.0] * 3]
    with pytest.raises(ProtocolError, match="scale"):
        expand(hostile(scale), "float16")


@pytest.mark.parametrize("claim", ["int64", "uint8", "float16", "object", "", 3])
def test_a_claim_of_another_original_number_format_is_refused(claim):
    with pytest.raises(ProtocolError):
        expand(hostile(torch.ones(2), claim=claim), "float16")


@pytest.mark.parametrize("claim", ["int64", "uint8", "float16", "bfloat16"])
def test_only_full_precision_can_have_been_compressed(claim):
    with pytest.raises(ProtocolError, match="claims to have been"):
        expand(hostile(torch.ones(2, dtype=getattr(torch, claim)), claim=claim), "float16")
    with pytest.raises(ProtocolError, match="claims to have been"):
        expand(hostile(None, tensor=torch.ones(2, 3, dtype=torch.bfloat16), claim=claim), "bfloat16")


@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8, torch.float32, torch.float64])
def test_only_half_precision_is_expanded(dtype):
    with pytest.raises(ProtocolError):
        expand(hostile(torch.ones(2), tensor=torch.ones(2, 3, dtype=dtype)), "float16")


def test_a_scale_for_a_single_number_and_a_scale_of_a_scale_are_refused_or_ignored():
    with pytest.raises(ProtocolError):
        expand(hostile(torch.ones(1), tensor=torch.tensor(1.0, dtype=torch.float16)), "float16")
    half = torch.ones(2, dtype=torch.float16)
    frame = Frame(Kind.STEP, fields={"g.scale.dtype": "float32"}, tensors={"g.scale": half})
    assert expand(frame, "float16").tensors["g.scale"].dtype == torch.float16


@pytest.mark.parametrize(
    ("scale", "value"), [(3e38, 60_000.0), (math.inf, 1.0), (math.inf, 0.0), (math.nan, 1.0), (math.nan, 0.0)]
)
def test_a_scale_that_makes_values_infinite_is_found_by_the_check_of_the_tensor(scale, value):
    frame = hostile(torch.tensor([scale, 1.0]), tensor=torch.full((2, 3), value, dtype=torch.float16))
    with pytest.raises(NotFiniteError, match="not finite"):
        expand(frame, "float16").tensor("g", shape=(2, 3), dtype=torch.float32)
