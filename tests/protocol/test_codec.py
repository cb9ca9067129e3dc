"""The codec gives back what was encoded, and answers everything else with a ProtocolError."""

import json
import struct
import zlib

import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from hypothesis import given, settings
from hypothesis import strategies as st

from flower_vfl.errors import ProtocolError
from flower_vfl.protocol import strict_json
from flower_vfl.protocol.codec import OVERHEAD, decode, encode
from flower_vfl.protocol.frame import VERSION, Frame, Kind, from_records, to_records
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
    """Whether two frames are equal bit for bit (NaN payloads included)."""
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
    """Bytes with a right checksum around whatever index and body."""
    text = index if isinstance(index, bytes) else json.dumps(index).encode()
    checksum = zlib.crc32(text + body) if checksum is None else checksum
    return PREFIX.pack(magic, version, len(text) if length is None else length, checksum) + text + body


def header(**changes):
    return {"version": VERSION, "kind": "step", "session": SESSION, "step": 3, "fields": "{}", **changes}


def array_entry(shape=(2,), size=8, *, name="x", dtype="float32", stype="flower-vfl.raw"):
    return [name, dtype, list(shape), stype, size]


@given(FRAMES)
@settings(max_examples=150, deadline=None)
def test_a_frame_comes_back_as_it_went(frame):
    assert same(frame, unpack(pack(frame)))


@given(FRAMES)
@settings(max_examples=30, deadline=None)
def test_the_same_frame_is_the_same_bytes(frame):
    copy = Frame(frame.kind, frame.step, dict(frame.fields), {n: t.clone() for n, t in frame.tensors.items()})
    assert pack(frame) == pack(copy)


def test_a_forged_frame_of_the_tests_is_what_encode_writes():
    frame = Frame(Kind.STEP, 3, tensors={"x": torch.tensor([1.0, 2.0])})
    records = {"header": header(), "tensors": [array_entry()]}
    assert same(unpack(forge(records, struct.pack("<2f", 1.0, 2.0))), frame)


@given(FRAMES, st.data())
@settings(max_examples=150, deadline=None)
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
@settings(max_examples=80, deadline=None)
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
@settings(max_examples=80, deadline=None)
def test_any_json_as_index_or_record_is_a_protocol_error(value):
    for index in (value, {"header": value, "tensors": []}, {"header": header(), "tensors": value}):
        if index == {"header": header(), "tensors": []}:
            continue
        with pytest.raises(ProtocolError):
            unpack(forge(index))


@given(st.sampled_from(["version", "kind", "session", "step", "fields"]), JSON)
@settings(max_examples=80, deadline=None)
def test_any_json_in_the_place_of_a_header_value_is_refused_or_means_what_it_says(key, value):
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


def test_what_does_not_travel_is_refused_before_it_is_sent():
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


@pytest.mark.parametrize(
    ("text", "value"), [("[1, -2.5e3, true, null]", [1, -2500.0, True, None]), (b'{"a": {}}', {"a": {}})]
)
def test_strict_json_reads_plain_json(text, value):
    assert strict_json.loads(text) == value
