"""What is drawn for steps that are done again after a break."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from flower_vfl.rng import Secret
from flower_vfl.strategies import Iso, VerticalStrategy
from flower_vfl.training.replay_guard import Repeats

STEPS, ROWS, WIDTH = 4, 6, 3
LABELS = torch.arange(ROWS) % 2


class Side:
    """A label party with noise: what it adds to the gradients of a step, given what it received."""

    def __init__(self, folder, *, known=False):
        base = VerticalStrategy(nn.Linear(WIDTH, 1), LABELS, secret=Secret.for_simulation(0, "label"))
        base.widths = {"a": WIDTH}
        self.defense = Iso(base, t=4.0)
        self.repeats = Repeats([self.defense], folder / "received", known=known)

    def step(self, number, word, other=0):
        """Return the noise of a step in which these embeddings came, as a tuple."""
        self.repeats.note(
            number, {"a": torch.full((ROWS, WIDTH), float(word)), "b": torch.full((ROWS, 1), float(other))}
        )
        g = torch.ones(ROWS, WIDTH)
        return tuple((self.defense.protect(g, LABELS)[0] - g).flatten().tolist())

    def state(self):
        return {"defense": self.defense.state(), "received": self.repeats.state()}

    def restore(self, state):
        self.defense.restore(state["defense"])
        self.repeats.restore(state["received"])


WAYS = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=STEPS), min_size=2, max_size=5)


@given(WAYS, st.sets(st.integers(1, 4)))
def test_noise_comes_again_only_with_all_that_was_received_before(tmp_path_factory, ways, killed):
    """Whatever is sent in whichever pass, and whenever the label party is killed: one noise, one history."""
    folder = tmp_path_factory.mktemp("run")
    side, seen = Side(folder), {}
    start = side.state()
    for number, way in enumerate(ways):
        if number:
            if number in killed:
                side = Side(folder, known=True)
            side.restore(start)
        for step, word in enumerate(way):
            noise, history = side.step(step, word), (step, *way[: step + 1])
            assert seen.setdefault(history, noise) == noise
    assert len(set(seen.values())) == len(seen)


@pytest.mark.parametrize("words", [(1, 0), (0, 1)])
def test_noise_is_drawn_anew_whichever_party_sends_something_else(tmp_path, words):
    side = Side(tmp_path)
    start, noise = side.state(), side.step(0, 0, 0)
    side.restore(start)
    assert not set(side.step(0, *words)) & set(noise)


def test_a_run_that_is_not_broken_draws_as_without_it(tmp_path):
    side, plain = Side(tmp_path), Side(tmp_path / "other")
    plain.repeats.note = lambda step, embeddings: None
    for step in range(STEPS):
        assert side.step(step, step) == plain.step(step, step)
        side.state()


@pytest.mark.parametrize("killed", [False, True])
def test_what_was_received_before_the_last_state_is_known_until_the_next_one(tmp_path, killed):
    """A state that other parties do not have yet counts for nothing: all go back to the one before."""
    side = Side(tmp_path)
    states, noise = [side.state()], {}
    for step in range(3):
        noise[step] = side.step(step, 0)
        states.append(side.state())
    for back in (2, 1):  # the state after so many steps
        if killed:
            side = Side(tmp_path, known=True)
        side.restore(states[back])
        again = side.step(2, 1) if back == 2 else [side.step(1, 1), side.step(2, 0)][-1]
        assert again != noise[2]
    side.restore(states[2])
    assert side.step(2, 0) == noise[2]


def test_a_state_between_two_ways_holds_what_is_drawn_next(tmp_path):
    side = Side(tmp_path)
    start = side.state()
    side.step(0, 0)
    side.restore(start)
    side.step(0, 1)
    middle, following = side.state(), side.step(1, 0)
    side.restore(middle)
    assert side.step(1, 0) == following
    other = Side(tmp_path, known=True)
    other.restore(middle)
    assert other.step(1, 0) == following


def test_a_defense_that_has_drawn_nothing_since_draws_from_there_after_a_state(tmp_path):
    side = Side(tmp_path)
    first = side.step(0, 0)
    side.defense.draw_anew("step", 0, "x")
    state = side.state()
    side.restore(state)
    assert side.step(1, 0) != first


def test_lines_that_a_kill_has_cut_off_say_nothing(tmp_path):
    side = Side(tmp_path)
    start, noise = side.state(), side.step(0, 0)
    side.step(1, 0)
    path = tmp_path / "received"
    path.write_text(path.read_text()[:-10])
    side = Side(tmp_path, known=True)
    side.restore(start)
    assert side.step(0, 1) != noise
    assert len(path.read_text().splitlines()) == 1


def test_a_training_that_begins_forgets_another_ones_file(tmp_path):
    Side(tmp_path).step(0, 0)
    side = Side(tmp_path)
    plain = Side(tmp_path / "other")
    assert side.step(0, 1) == plain.step(0, 1)


def test_what_was_received_can_be_read_by_its_owner_alone(tmp_path):
    side = Side(tmp_path)
    side.step(0, 0)
    side.state()
    assert (tmp_path / "received").stat().st_mode & 0o777 == 0o600


def test_what_is_remembered_of_earlier_steps_does_not_grow(tmp_path):
    side = Side(tmp_path)
    for step in range(40):
        side.step(step, 0)
        if step % 4 == 3:
            side.state()
    assert len((tmp_path / "received").read_text().splitlines()) <= 8


def test_that_noise_is_drawn_anew_is_said_once_a_break(tmp_path, caplog):
    side = Side(tmp_path)
    start = side.state()
    for word in (0, 1, 2):
        side.restore(start)
        for step in range(3):
            side.step(step, word)
    assert caplog.text.count("is done again with other embeddings") == 2


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_embeddings_of_any_format_and_layout_count(tmp_path, dtype):
    side = Side(tmp_path)
    start, values = side.state(), np.arange(12).reshape(3, 4)
    z = torch.tensor(values).to(dtype)
    side.repeats.note(0, {"a": z.T})
    side.restore(start)
    side.repeats.note(0, {"a": z.T.contiguous()})
    assert not side.defense._purpose
    side.restore(start)
    side.repeats.note(0, {"a": -z.T})
    assert side.defense._purpose
