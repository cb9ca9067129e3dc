"""A frame is decoded from its bytes as it was encoded; anything else is a ProtocolError."""

import json
import struct
import zlib

import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from hypothesis import given, settings
from hypothesis import strategies as st

from flower_vfl.errors import ProtocolError
from flower_vfl.protocol.frame import HEADER_VERSION, OVERHEAD, Frame, Kind, decode, encode, from_records, to_records
from flower_vfl.protocol.tensors import DTYPES

SESSION = "5e55"
LIMIT = OVERHEAD + 2**20
PREFIX = struct.Struct("<4sHII")
NAMES = st.text(st.characters(codec="utf-8", exclude_characters=" "), min_size=1, max_size=12)
SCALARS = st.one_of(st.text(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.booleans())


@st.composite
def tensors(draw):
    dtype = DTYPES[draw(st.sampled_from(sorted(DTYPES)))]
    shape = draw(st.lists(st.integers(0, 4), max_size=4))
    count = torch.Size(shape).numel() * dtype.itemsize
    data = draw(st.binary(min_size=count, max_size=count))
    if not data:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(bytearray(data), dtype=dtype).view(shape).clone()


FRAMES = st.builds(
    Frame,
    st.sampled_from(Kind),
    st.integers(-1, 2**53),
    st.dictionaries(NAMES, SCALARS, max_size=4),
    st.dictionaries(NAMES, tensors(), max_size=3),
)


def pack(frame):
    return encode(to_records(frame, SESSION))


def unpack(data, limit=LIMIT):
    return from_records(decode(data, limit=limit), SESSION)


def same(one, other):
    """Return True if two frames are equal bit for bit, NaN payloads included."""
    return (
        (one.kind, one.step) == (other.kind, other.step)
        and json.dumps(dict(one.fields)) == json.dumps(dict(other.fields))
        and list(one.tensors) == list(other.tensors)
        and all(
            (a.dtype, a.shape) == (b.dtype, b.shape)
            and torch.equal(a.contiguous().view(-1).view(torch.uint8), b.view(-1).view(torch.uint8))
            for a, b in zip(one.tensors.values(), other.tensors.values(), strict=True)
        )
    )


def forge(index, body=b"", *, magic=b"FVFL", version=1, length=None, checksum=None):
    """Return bytes with a correct checksum around any index and body."""
    text = index if isinstance(index, bytes) else json.dumps(index).encode()
    checksum = zlib.crc32(text + body) if checksum is None else checksum
    return PREFIX.pack(magic, version, len(text) if length is None else length, checksum) + text + body


def header(**changes):
    return {"version": HEADER_VERSION, "kind": "step", "session": SESSION, "step": 3, "fields": "{}", **changes}


def array_entry(shape=(2,), size=8, *, name="x", dtype="float32", stype="flower-vfl.raw"):
    return [name, dtype, list(shape), stype, size]


def records(arrays=None, **changes):
    values = {key: value for key, value in header(**{"step": 0, **changes}).items() if value is not None}
    return RecordDict({"header": ConfigRecord(values), "tensors": ArrayRecord(arrays or {})})


def test_the_records_of_these_tests_are_a_frame_when_nothing_is_changed():
    assert from_records(records(), SESSION) == Frame(Kind.STEP, 0)


OTHER_HEADERS = {
    "version": ([0, HEADER_VERSION + 1, "1", None], f"version {{!r}}, this is version {HEADER_VERSION}"),
    "session": (["5e56", "", None, 5], "another session"),
    "kind": (["STEP", "train", "", None, 3], "unknown kind"),
    "step": ([-2, 2**53 + 1, 10**400, True, 1.0, "1", None], "impossible step"),
}


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [(field, value, words) for field, (values, words) in OTHER_HEADERS.items() for value in values],
    ids=lambda part: repr(part)[:20],
)
def test_a_header_with_another_version_session_kind_or_step_is_refused(field, value, words):
    with pytest.raises(ProtocolError, match=words.format(value)):
        from_records(records(**{field: value}), SESSION)


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
@settings(max_examples=60)
def test_decoded_tensors_are_contiguous_writable_aligned_and_own_their_memory(name, shape):
    tensor = torch.ones(shape, dtype=DTYPES[name])
    sent = to_records(Frame(Kind.STEP, tensors={"x": tensor}), SESSION)
    found = from_records(sent, SESSION).tensors["x"]
    assert found.is_contiguous()
    assert found.data_ptr() % 64 == 0
    found.zero_()
    assert torch.equal(tensor, torch.ones_like(tensor))
    assert torch.equal(from_records(sent, SESSION).tensors["x"], tensor)


def test_a_tensor_that_is_not_contiguous_travels_by_value():
    tensor = torch.arange(12.0).view(3, 4).t()[::2]
    found = from_records(to_records(Frame(Kind.STEP, tensors={"x": tensor}), SESSION), SESSION)
    assert torch.equal(found.tensors["x"], tensor)


def test_a_tensor_that_requires_a_gradient_travels_without_its_graph():
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


@given(FRAMES)
@settings(max_examples=150)
def test_a_frame_is_decoded_as_it_was_encoded(frame):
    assert same(frame, unpack(pack(frame)))


@given(FRAMES)
@settings(max_examples=30)
def test_the_same_frame_is_the_same_bytes(frame):
    copy = Frame(frame.kind, frame.step, dict(frame.fields), {n: t.clone() for n, t in frame.tensors.items()})
    assert pack(frame) == pack(copy)


def test_a_forged_frame_of_the_tests_is_what_encode_writes():
    frame = Frame(Kind.STEP, 3, tensors={"x": torch.tensor([1.0, 2.0])})
    records = {"header": header(), "tensors": [array_entry()]}
    assert same(unpack(forge(records, struct.pack("<2f", 1.0, 2.0))), frame)


@given(FRAMES, st.data())
@settings(max_examples=150)
def test_a_flipped_bit_is_noticed(frame, data):
    damaged = bytearray(pack(frame))
    damaged[data.draw(st.integers(0, len(damaged) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(ProtocolError):
        unpack(bytes(damaged))


@pytest.fixture
def sample():
    return pack(Frame(Kind.EMBEDDING, 7, {"n": 1}, {"x": torch.arange(6.0).view(2, 3), "y": torch.zeros(0, 3)}))


def test_every_flipped_byte_is_noticed(sample):
    for position in range(len(sample)):
        damaged = bytearray(sample)
        damaged[position] ^= 0xFF
        with pytest.raises(ProtocolError):
            unpack(bytes(damaged))


def test_a_frame_cut_off_anywhere_is_refused(sample):
    for length in range(len(sample)):
        with pytest.raises(ProtocolError):
            unpack(sample[:length])


@pytest.mark.parametrize("extra", [b"\0", b" ", b"FVFL", b"x" * 1000])
def test_appended_bytes_are_refused_even_with_a_right_checksum(sample, extra):
    magic, version, length, _ = PREFIX.unpack_from(sample)
    body = sample[PREFIX.size :] + extra
    with pytest.raises(ProtocolError):
        unpack(sample + extra)
    with pytest.raises(ProtocolError, match="too many"):
        unpack(PREFIX.pack(magic, version, length, zlib.crc32(body)) + body)


@given(st.binary(max_size=200))
@settings(max_examples=80)
def test_arbitrary_bytes_are_a_protocol_error(data):
    with pytest.raises(ProtocolError):
        unpack(data)
    with pytest.raises(ProtocolError):
        unpack(forge(data))


@pytest.mark.parametrize("changes", [{"magic": b"LFVF"}, {"version": 0}, {"version": 2}, {"version": 256}])
def test_another_magic_or_format_version_is_refused(changes):
    with pytest.raises(ProtocolError, match="no frame of format 1"):
        unpack(forge({"header": header(), "tensors": []}, **changes))


def test_a_frame_over_the_limit_is_refused_before_it_is_read(sample):
    assert unpack(sample, limit=len(sample)).step == 7
    with pytest.raises(ProtocolError, match=f"{len(sample)} bytes came; at most {len(sample) - 1}"):
        unpack(sample, limit=len(sample) - 1)


def test_a_header_longer_than_allowed_is_refused_on_both_sides():
    long = Frame(Kind.REPORT, fields={"text": "x" * 65536})
    with pytest.raises(ProtocolError, match="at most 65536"):
        pack(long)
    with pytest.raises(ProtocolError, match="longer than allowed"):
        unpack(forge({"header": header(fields=json.dumps({"t": "x" * 65536})), "tensors": []}))
    with pytest.raises(ProtocolError, match="longer than allowed"):
        unpack(forge({"header": header(), "tensors": []}, length=60_000))


@given(JSON := st.recursive(SCALARS | st.none(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)))
@settings(max_examples=80)
def test_any_json_as_index_or_record_is_a_protocol_error(value):
    for index in (value, {"header": value, "tensors": []}, {"header": header(), "tensors": value}):
        if index == {"header": header(), "tensors": []}:
            continue
        with pytest.raises(ProtocolError):
            unpack(forge(index))


@given(st.sampled_from(["version", "kind", "session", "step", "fields"]), JSON)
@settings(max_examples=80)
def test_any_json_in_the_place_of_a_header_value_is_refused_or_read_as_it_is(key, value):
    try:
        frame = unpack(forge({"header": header(**{key: value}), "tensors": []}))
    except ProtocolError:
        return
    assert (key == "step" and frame.step == value) or value == header()[key] or (key == "fields" and "{" in value)


@pytest.mark.parametrize(
    "shape",
    [
        [-1],
        [-1, -2],
        [2, -1],
        [1.0],
        [2, 1.0],
        [2, True],
        ["2"],
        [None],
        [2**63],
        [2**31, 2**31, 2**31],
        [10**4000] * 8,
        [1] * 9,
        [3],
        [1],
    ],
    ids=lambda shape: repr(shape)[:20],
)
def test_an_absurd_shape_is_refused(shape):
    with pytest.raises(ProtocolError):
        unpack(forge({"header": header(), "tensors": [array_entry(shape)]}, bytes(8)))


@pytest.mark.parametrize("shape", [[0, 2**62], [2**62, 0], [2**31, 2**31, 2**31, 0], [0, 10**4000]], ids=str)
def test_an_empty_tensor_with_absurd_other_sizes_is_refused(shape):
    with pytest.raises(ProtocolError):
        unpack(forge({"header": header(), "tensors": [array_entry(shape, 0)]}))


@pytest.mark.parametrize("size", [-1, 7, 9, 8.0, "8", True, None, 2**70])
def test_an_array_whose_size_does_not_fit_is_refused(size):
    with pytest.raises(ProtocolError):
        unpack(forge({"header": header(), "tensors": [array_entry(size=size)]}, bytes(8)))


@pytest.mark.parametrize("change", [{"dtype": "complex64"}, {"dtype": "object"}, {"stype": "pickle"}, {"dtype": 3}])
def test_unknown_number_formats_and_encodings_are_refused(change):
    with pytest.raises(ProtocolError):
        unpack(forge({"header": header(), "tensors": [array_entry(**change)]}, bytes(8)))


@pytest.mark.parametrize(
    "index",
    [
        {},
        {"header": header()},
        {"tensors": []},
        {"header": [], "tensors": []},
        {"header": header(), "tensors": {}},
        {"header": header(), "tensors": [array_entry(), array_entry()]},
        {"header": header(), "tensors": [], "more": {}},
        {"header": header(), "tensors": [[]]},
    ],
    ids=lambda index: repr(index)[:40],
)
def test_missing_doubled_and_additional_records_are_refused(index):
    with pytest.raises(ProtocolError):
        unpack(forge(index, bytes(16)))


def test_a_record_has_64_arrays_at_most():
    entries = [array_entry((0,), 0, name=str(number)) for number in range(65)]
    assert len(decode(forge({"tensors": entries[:64]}), limit=LIMIT)["tensors"]) == 64
    with pytest.raises(ProtocolError):
        decode(forge({"tensors": entries}), limit=LIMIT)


@pytest.mark.parametrize(
    "index",
    [
        b'{"header": {"step": 1, "step": 2}, "tensors": []}',
        b'{"header": {}, "header": {}, "tensors": []}',
        b"[" * 30_000,
        b'{"a":' * 10_000,
        b"9" * 5_000,
        b'{"header": {"step": NaN}, "tensors": []}',
        b'{"header": {"step": Infinity}, "tensors": []}',
        b'{"header": {"step": 1e999}, "tensors": []}',
        b'{"header": "\xff"}',
        "{}".encode("utf-16"),
        b"",
    ],
    ids=lambda index: repr(index)[:40],
)
def test_json_with_two_meanings_or_none_is_refused(index):
    with pytest.raises(ProtocolError, match="no JSON"):
        unpack(forge(index))


@pytest.mark.parametrize(
    "fields", ['{"a": NaN}', '{"a": 1e999}', '{"a": 1, "a": 2}', "[" * 9_000, "", '{"a": []}', "3"]
)
def test_fields_with_two_meanings_or_none_are_refused(fields):
    with pytest.raises(ProtocolError):
        unpack(forge({"header": header(fields=fields), "tensors": []}))


def test_huge_whole_numbers_in_fields_do_no_harm():
    frame = unpack(forge({"header": header(fields=json.dumps({"n": 10**4000})), "tensors": []}))
    assert frame.integer("n") == 10**4000
    with pytest.raises(ProtocolError):
        unpack(forge({"header": header(fields='{"n": ' + "9" * 5000 + "}"), "tensors": []}))


def test_records_and_values_that_cannot_be_encoded_are_refused():
    with pytest.raises(ProtocolError, match="MetricRecord"):
        encode(RecordDict({"m": MetricRecord({"a": 1})}))
    for value in (b"bytes", float("nan")):
        with pytest.raises(ProtocolError, match="JSON"):
            encode(RecordDict({"header": ConfigRecord({"a": value})}))


def test_a_pickle_in_an_array_stays_bytes():
    import os
    import pickle

    class Bomb:
        def __reduce__(self):
            return os._exit, (3,)

    data = pickle.dumps(Bomb())
    array = Array("uint8", (len(data),), "numpy.ndarray", data)
    tensors = ArrayRecord({"x": array})
    with pytest.raises(ProtocolError, match="unknown type"):
        from_records(
            decode(encode(RecordDict({"header": ConfigRecord(header()), "tensors": tensors})), limit=LIMIT), SESSION
        )
