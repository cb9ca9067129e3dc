"""A frame says what it is, and its tensors are used only after they were checked."""

import json

import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from hypothesis import given, settings
from hypothesis import strategies as st

from flower_vfl.errors import ProtocolError
from flower_vfl.protocol.frame import VERSION, Frame, Kind, from_records, to_records
from flower_vfl.protocol.tensors import DTYPES

SESSION = "5e55"


def records(arrays=None, **changes):
    header = {"version": VERSION, "kind": "step", "session": SESSION, "step": 0, "fields": "{}", **changes}
    header = {key: value for key, value in header.items() if value is not None}
    return RecordDict({"header": ConfigRecord(header), "tensors": ArrayRecord(arrays or {})})


def test_the_records_of_these_tests_are_a_frame_when_nothing_is_changed():
    assert from_records(records(), SESSION) == Frame(Kind.STEP, 0)


@pytest.mark.parametrize("version", [0, VERSION + 1, "1", None])
def test_another_version_is_refused_and_both_are_named(version):
    with pytest.raises(ProtocolError, match=f"version {version!r}, this is version {VERSION}"):
        from_records(records(version=version), SESSION)


@pytest.mark.parametrize("session", ["5e56", "", None, 5])
def test_a_frame_of_another_session_is_refused(session):
    with pytest.raises(ProtocolError, match="another session"):
        from_records(records(session=session), SESSION)


@pytest.mark.parametrize("kind", ["STEP", "train", "", None, 3])
def test_an_unknown_kind_is_refused(kind):
    with pytest.raises(ProtocolError, match="unknown kind"):
        from_records(records(kind=kind), SESSION)


@pytest.mark.parametrize("step", [-2, 2**53 + 1, 10**400, True, 1.0, "1", None])
def test_an_impossible_step_is_refused(step):
    with pytest.raises(ProtocolError, match="impossible step"):
        from_records(records(step=step), SESSION)


@pytest.mark.parametrize("step", [-1, 0, 2**53])
def test_the_first_and_the_last_step_are_possible(step):
    assert from_records(records(step=step), SESSION).step == step


@pytest.mark.parametrize("value", [[1], {"a": 1}, None, [[]]])
def test_a_field_that_is_no_plain_value_is_refused(value):
    with pytest.raises(ProtocolError, match="plain values"):
        from_records(records(fields=json.dumps({"a": value})), SESSION)


def test_a_record_too_many_or_too_few_is_refused():
    for change in ({"more": ConfigRecord({})}, {"header": ArrayRecord({})}, {"tensors": ConfigRecord({})}):
        with pytest.raises(ProtocolError):
            from_records(RecordDict({**records(), **change}), SESSION)
    with pytest.raises(ProtocolError):
        from_records(RecordDict({"header": records()["header"]}), SESSION)


def test_every_kind_travels():
    for kind in Kind:
        assert from_records(to_records(Frame(kind), SESSION), SESSION).kind is kind


@pytest.mark.parametrize("value", [None, "1", 1.0, True])
def test_an_integer_field_must_be_there_and_be_a_whole_number(value):
    frame = Frame(Kind.STEP, fields={} if value is None else {"gradient_of": value})
    with pytest.raises(ProtocolError, match=r"step frame needs the integer field 'gradient_of'"):
        frame.integer("gradient_of")
    assert Frame(Kind.STEP, fields={"gradient_of": 5}).integer("gradient_of") == 5


@pytest.mark.parametrize("value", [None, 1, 1.0, True])
def test_a_text_field_must_be_there_and_be_text(value):
    frame = Frame(Kind.HELLO, fields={} if value is None else {"party": value})
    with pytest.raises(ProtocolError, match="hello frame needs the text field 'party'"):
        frame.text("party")
    assert Frame(Kind.HELLO, fields={"party": "a"}).text("party") == "a"


def test_a_missing_tensor_is_named():
    frame = Frame(Kind.STEP, 4, tensors={"other": torch.zeros(1)})
    with pytest.raises(ProtocolError, match=r"step 4 needs the tensor 'gradient'; it has \['other'\]"):
        frame.tensor("gradient", shape=(1,), dtype=torch.float32)


@pytest.mark.parametrize("shape", [(3, 2), (6,), (2, 3, 1), (2, 4), (0, 3), ()])
def test_a_tensor_of_another_shape_is_refused(shape):
    frame = Frame(Kind.STEP, tensors={"gradient": torch.zeros(shape)})
    with pytest.raises(ProtocolError, match=r"must be float32 \(2, 3\), given float32"):
        frame.tensor("gradient", shape=(2, 3), dtype=torch.float32)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.uint8])
def test_a_tensor_of_another_number_format_is_refused(dtype):
    frame = Frame(Kind.STEP, tensors={"gradient": torch.zeros(2, 3, dtype=dtype)})
    with pytest.raises(ProtocolError, match=r"must be float32 .*, given " + str(dtype).removeprefix("torch.")):
        frame.tensor("gradient", shape=(2, 3), dtype=torch.float32)


FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("values", [[float("nan")], [float("inf")], [-float("inf")], [float("inf"), -float("inf")]])
def test_a_value_that_is_not_finite_is_refused_wherever_it_is(dtype, values):
    for position in (0, 5, 11 - len(values)):
        tensor = torch.ones(11, dtype=dtype)
        tensor[position : position + len(values)] = torch.tensor(values, dtype=dtype)
        with pytest.raises(ProtocolError, match="not finite"):
            Frame(Kind.STEP, tensors={"g": tensor}).tensor("g", shape=(11,), dtype=dtype)


@pytest.mark.parametrize("dtype", FLOATS)
def test_finite_values_whose_sum_overflows_are_accepted(dtype):
    tensor = torch.full((64,), torch.finfo(dtype).max, dtype=dtype)
    assert not torch.isfinite(tensor.sum())
    assert Frame(Kind.STEP, tensors={"g": tensor}).tensor("g", shape=(64,), dtype=dtype) is tensor


@given(st.sampled_from(sorted(DTYPES)), st.lists(st.integers(0, 5), max_size=4))
@settings(max_examples=60, deadline=None)
def test_decoded_tensors_are_contiguous_writable_aligned_and_own_their_memory(name, shape):
    tensor = torch.ones(shape, dtype=DTYPES[name])
    sent = to_records(Frame(Kind.STEP, tensors={"x": tensor}), SESSION)
    found = from_records(sent, SESSION).tensors["x"]
    assert found.is_contiguous()
    assert found.data_ptr() % 64 == 0
    found.zero_()
    assert torch.equal(tensor, torch.ones_like(tensor))
    assert torch.equal(from_records(sent, SESSION).tensors["x"], tensor)


def test_a_tensor_that_is_no_block_in_memory_travels_by_value():
    tensor = torch.arange(12.0).view(3, 4).t()[::2]
    found = from_records(to_records(Frame(Kind.STEP, tensors={"x": tensor}), SESSION), SESSION)
    assert torch.equal(found.tensors["x"], tensor)


def test_a_tensor_that_asks_for_a_gradient_travels_without_its_graph():
    tensor = torch.ones(3, requires_grad=True) * 2
    found = from_records(to_records(Frame(Kind.STEP, tensors={"x": tensor}), SESSION), SESSION).tensors["x"]
    assert not found.requires_grad
    assert found.tolist() == [2.0, 2.0, 2.0]


def test_a_number_format_that_does_not_travel_is_refused_before_it_is_sent():
    with pytest.raises(ProtocolError, match=r"complex64 do not travel; allowed: float32"):
        to_records(Frame(Kind.STEP, tensors={"x": torch.zeros(1, dtype=torch.complex64)}), SESSION)


@pytest.mark.parametrize(
    ("shape", "size"), [((-1,), 4), ((-1, -1), 4), ((-2, -2), 16), ((2**62, 0), 0), ((3,), 0), ((1,) * 9, 4)]
)
def test_a_flower_array_with_an_impossible_shape_is_refused(shape, size):
    with pytest.raises(ProtocolError):
        from_records(records({"x": Array("float32", shape, "flower-vfl.raw", bytes(size))}), SESSION)


def test_the_bytes_of_a_frame_are_those_of_its_tensors():
    frame = Frame(Kind.STEP, tensors={"a": torch.zeros(3, 5), "b": torch.zeros(2, dtype=torch.float16)})
    assert frame.nbytes == 3 * 5 * 4 + 2 * 2
