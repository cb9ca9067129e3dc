"""Checkpoints are written whole or not at all and restored exactly; damaged and hostile files are refused."""

import json
import math
import os
import pickle
import signal
import struct
import subprocess
import sys

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from flower_vfl.checkpoint import Checkpoints, load_state, read_committed, save_state
from flower_vfl.errors import DataError

DTYPES = [
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.uint8,
    torch.bool,
]


@st.composite
def tensors(draw):
    shape = draw(st.lists(st.integers(0, 3), max_size=3))
    values = torch.tensor([draw(st.integers(0, 1)) for _ in range(torch.Size(shape).numel())])
    return values.view(shape).to(draw(st.sampled_from(DTYPES)))


PLAIN = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
KEYS = st.text() | st.integers() | st.sampled_from(["__tensor__", "__dict__", "tree", "0"])
TREES = st.recursive(
    PLAIN | tensors(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=12,
)


def same(one, other):
    if isinstance(one, torch.Tensor):
        return isinstance(other, torch.Tensor) and one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return isinstance(other, list) and len(one) == len(other) and all(map(same, one, other))
    return type(one) is type(other) and one == other


@pytest.fixture
def path(tmp_path):
    return tmp_path / "party" / "state.safetensors"


@given(state=TREES)
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_state_comes_back_as_it_was(path, state):
    save_state(path, state)
    assert same(state, load_state(path))


@pytest.mark.parametrize(
    "state", [{}, [], None, 0, "", {"a": {}}, {0: {1: torch.empty(0, 3)}}, torch.tensor(3.0)], ids=repr
)
def test_empty_and_small_states_come_back(path, state):
    save_state(path, state)
    assert same(state, load_state(path))


def test_numbers_that_are_not_finite_come_back(path):
    save_state(path, {"loss": [math.inf, -math.inf, math.nan], "x": torch.tensor([math.nan, math.inf])})
    found = load_state(path)
    assert found["loss"][:2] == [math.inf, -math.inf]
    assert math.isnan(found["loss"][2])
    assert torch.isnan(found["x"][0])


def test_tensors_that_share_memory_or_ask_for_gradients_come_back_by_value(path):
    weight = torch.arange(12.0, requires_grad=True).view(3, 4)
    save_state(path, {"tied": [weight, weight], "row": weight[1], "turned": weight.t(), "step": weight[::2, ::2]})
    found = load_state(path)
    assert torch.equal(found["tied"][0], weight)
    assert torch.equal(found["turned"], weight.t())
    assert torch.equal(found["step"], weight[::2, ::2])
    found["tied"][0].zero_()
    assert torch.equal(found["tied"][1], weight)
    assert not found["row"].requires_grad


def test_an_optimizer_goes_on_from_a_saved_state_bit_for_bit(path):
    def train(model, optimizer, steps):
        for step in steps:
            optimizer.zero_grad()
            model(torch.full((2, 3), float(step))).square().sum().backward()
            optimizer.step()

    def make():
        model = torch.nn.Linear(3, 2)
        with torch.no_grad():
            [parameter.fill_(0.5) for parameter in model.parameters()]
        return model, torch.optim.Adam(model.parameters())

    whole, first, second = make(), make(), make()
    train(*whole, range(6))
    train(*first, range(3))
    save_state(path, [first[0].state_dict(), first[1].state_dict()])
    model, optimizer = load_state(path)
    second[0].load_state_dict(model)
    second[1].load_state_dict(optimizer)
    train(*second, range(3, 6))
    assert torch.equal(whole[0].weight, second[0].weight)


class ExitsOnLoad:
    def __reduce__(self):
        return os._exit, (3,)


@pytest.mark.parametrize(
    "state", [ExitsOnLoad(), {1, 2}, b"bytes", 1j, {"a": [ExitsOnLoad()]}, {(1, 2): 3}, {None: 1}, {1.5: 1}]
)
def test_what_is_neither_plain_nor_a_tensor_is_refused_and_nothing_is_written(path, state):
    with pytest.raises(TypeError):
        save_state(path, state)
    assert not path.exists()


def test_a_missing_file_and_a_folder_are_a_data_error_that_names_them(tmp_path):
    for place in (tmp_path / "nothing", tmp_path):
        with pytest.raises(DataError, match=str(place)):
            load_state(place)


def test_a_file_cut_off_anywhere_is_a_data_error(path):
    save_state(path, {"x": torch.arange(8.0), "n": [1, 2]})
    data = path.read_bytes()
    for length in range(len(data)):
        path.write_bytes(data[:length])
        with pytest.raises(DataError):
            load_state(path)


@given(data=st.binary(max_size=100))
@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_garbage_is_a_data_error(tmp_path, data):
    place = tmp_path / "garbage"
    for content in (data, struct.pack("<Q", len(data)) + data):
        place.write_bytes(content)
        with pytest.raises(DataError):
            load_state(place)


@pytest.mark.parametrize(
    "tree",
    [
        "",
        "[",
        "[" * 100_000,
        '{"__tensor__": "7"}',
        '{"__tensor__": 0}',
        '{"__tensor__": []}',
        '{"__tensor__": {}}',
        "{}",
        '{"__dict__": 3}',
        '{"__dict__": [3]}',
        '{"__dict__": [[1]]}',
        '{"__dict__": [[1, 2, 3]]}',
        '{"__dict__": [[[], 2]]}',
        '{"__dict__": [[{}, 2]]}',
        '{"__dict__": null}',
    ],
    ids=lambda tree: tree[:24],
)
def test_a_hostile_tree_is_a_data_error(tmp_path, tree):
    place = tmp_path / "hostile"
    save_file({"0": torch.zeros(2)}, place, metadata={"tree": tree})
    with pytest.raises(DataError):
        load_state(place)


def test_a_file_of_safetensors_that_is_no_state_is_a_data_error(tmp_path):
    save_file({"0": torch.zeros(2)}, tmp_path / "weights")
    with pytest.raises(DataError):
        load_state(tmp_path / "weights")


@pytest.mark.parametrize("write", [torch.save, pickle.dump])
def test_a_pickle_is_refused_and_not_run(tmp_path, write):
    place = tmp_path / "pickle"
    with place.open("wb") as file:
        write(ExitsOnLoad(), file)
    with pytest.raises(DataError):
        load_state(place)


def test_what_is_written_is_safetensors_and_json(path):
    save_state(path, {"x": torch.arange(2.0), "n": 1})
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    assert json.loads(header["__metadata__"]["tree"]) == {"__dict__": [["x", {"__tensor__": "0"}], ["n", 1]]}
    assert data[8 + length :] == struct.pack("<2f", 0.0, 1.0)


def test_a_failure_while_writing_leaves_the_old_state_and_nothing_else(path, monkeypatch):
    save_state(path, {"n": 1})

    def fail(tensors, place, metadata):
        place.write_bytes(b"half")
        raise OSError("no space left on device")

    monkeypatch.setattr("safetensors.torch.save_file", fail)
    with pytest.raises(OSError, match="no space"):
        save_state(path, {"n": 2})
    assert load_state(path) == {"n": 1}
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]


KILLED = """
import os, signal, sys
from pathlib import Path
import torch
import safetensors.torch
from flower_vfl import checkpoint
def half(tensors, place, metadata):
    whole(tensors, place, metadata=metadata)
    with open(place, "rb+") as file:
        file.truncate(place.stat().st_size // 2)
    os.kill(os.getpid(), signal.SIGKILL)
whole, safetensors.torch.save_file = safetensors.torch.save_file, half
checkpoint.save_state(Path(sys.argv[1]), {"x": torch.ones(1000), "n": 2})
"""


def test_a_kill_in_the_middle_of_writing_leaves_the_old_state(path):
    save_state(path, {"x": torch.zeros(1000), "n": 1})
    done = subprocess.run([sys.executable, "-c", KILLED, str(path)], timeout=60, check=False)
    assert done.returncode == -signal.SIGKILL
    found = load_state(path)
    assert found["n"] == 1
    assert torch.equal(found["x"], torch.zeros(1000))
    save_state(path, {"n": 3})
    assert load_state(path) == {"n": 3}


FACTS = {"party": "a", "training": "0" * 32}


def test_the_last_few_states_are_kept_and_come_back(tmp_path):
    checkpoints = Checkpoints(tmp_path / "a", FACTS, keep=3)
    for step in (0, 10, 20, 30, 40):
        checkpoints.save(step, {"step": step, "weights": torch.full((2,), float(step))})
    assert checkpoints.steps == [20, 30, 40]
    assert checkpoints.load(30)["weights"].tolist() == [30.0, 30.0]


def test_two_states_are_kept_also_where_one_is_asked_for(tmp_path):
    checkpoints = Checkpoints(tmp_path, FACTS, keep=1)
    for step in (0, 10, 20):
        checkpoints.save(step, step)
    assert checkpoints.steps == [10, 20]


def test_a_state_that_is_held_outlives_the_last_few(tmp_path):
    checkpoints = Checkpoints(tmp_path, FACTS, keep=2)
    for step in (10, 20, 30, 40):
        checkpoints.save(step, step, hold=10)
    assert checkpoints.steps == [10, 30, 40]
    checkpoints.save(50, 50, hold=40)
    assert checkpoints.steps == [40, 50]


def test_saving_an_earlier_step_removes_the_states_of_later_steps(tmp_path):
    checkpoints = Checkpoints(tmp_path, FACTS, keep=2)
    for step in (10, 20, 30):
        checkpoints.save(step, step)
    checkpoints.save(21, 21)
    assert checkpoints.steps == [20, 21]


def test_a_state_can_be_read_by_its_owner_alone(tmp_path):
    """Its file too, since a copy or an archive takes it out of its private folder."""
    before = os.umask(0o022)
    try:
        Checkpoints(tmp_path / "a", FACTS).save(1, {"generator": torch.zeros(2)})
    finally:
        os.umask(before)
    assert (tmp_path / "a").stat().st_mode & 0o077 == 0
    (file,) = (tmp_path / "a").glob("step-*")
    assert file.stat().st_mode & 0o777 == 0o600


def test_what_a_kill_has_left_half_written_is_gone_after_the_next_state(tmp_path):
    checkpoints = Checkpoints(tmp_path, FACTS)
    checkpoints.save(1, {})
    half = tmp_path / ".step-000000002.safetensors.abc.tmp"
    half.write_bytes(b"half of a state, as secret as a whole one")
    checkpoints.save(2, {})
    assert not half.exists()


def test_a_step_that_is_not_there_is_refused_with_those_that_are(tmp_path):
    checkpoints = Checkpoints(tmp_path, FACTS)
    with pytest.raises(DataError, match="no checkpoint of step 5; it has: none"):
        checkpoints.load(5)
    checkpoints.save(7, {})
    with pytest.raises(DataError, match="it has: 7"):
        checkpoints.load(5)


@pytest.mark.parametrize("name", FACTS)
def test_the_state_of_something_else_is_refused_by_name(tmp_path, name):
    Checkpoints(tmp_path, FACTS).save(7, {})
    with pytest.raises(DataError, match=f"belongs to something else: its {name} is"):
        Checkpoints(tmp_path, {**FACTS, name: "other"}).load(7)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("data", "belongs to something else: its data is other than here"),
        ("config", "other settings: the run config, or what --node-config says"),
        ("secret", "Set FLOWER_VFL_SECRET_FILE as it was when the training began"),
    ],
)
def test_the_error_about_another_fact_says_where_it_comes_from_and_shows_no_digest(tmp_path, name, words):
    Checkpoints(tmp_path, {**FACTS, name: "5ec"}).save(7, {})
    with pytest.raises(DataError, match=words) as caught:
        Checkpoints(tmp_path, {**FACTS, name: "0de"}).load(7)
    assert "5ec" not in str(caught.value).replace(str(tmp_path), "")
    assert "0de" not in str(caught.value).replace(str(tmp_path), "")


@pytest.mark.parametrize("name", FACTS)
def test_a_state_that_lacks_a_fact_is_another_versions_and_refused(tmp_path, name):
    Checkpoints(tmp_path, {key: value for key, value in FACTS.items() if key != name}).save(7, {})
    with pytest.raises(DataError, match=f"does not hold its {name}: another version wrote it"):
        Checkpoints(tmp_path, FACTS).load(7)


@pytest.mark.parametrize(
    "content", [[], {"facts": FACTS, "step": 8, "state": 1}, {"facts": 3, "step": 7, "state": 1}, 7]
)
def test_a_file_that_is_no_checkpoint_is_refused(tmp_path, content):
    checkpoints = Checkpoints(tmp_path, FACTS)
    save_state(tmp_path / "step-000000007.safetensors", content)
    with pytest.raises(DataError):
        checkpoints.load(7)


def test_the_committed_step_is_written_and_read(tmp_path):
    checkpoints = Checkpoints(tmp_path, FACTS)
    assert checkpoints.committed is None
    checkpoints.save(10, {})
    assert checkpoints.committed is None
    checkpoints.commit(10)
    assert checkpoints.committed == 10
    assert read_committed(tmp_path) == (10, FACTS)


@pytest.mark.parametrize(
    "text", ["", "[]", "{", "{}", '{"step": -1, "facts": {}}', '{"step": true, "facts": {}}', "[" * 9999]
)
def test_a_committed_file_that_cannot_be_read_is_refused(tmp_path, text):
    (tmp_path / Checkpoints.COMMITTED).write_text(text)
    with pytest.raises(DataError, match=r"committed\.json"):
        read_committed(tmp_path)
