"""Noise of steps that are repeated after an interruption."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from flower_vfl.accounting import Laplace, Release
from flower_vfl.errors import TrainingError
from flower_vfl.rng import Secret
from flower_vfl.strategies import Guarantee, Iso, Marvell, MarvellFull, VerticalStrategy
from flower_vfl.training.replay_guard import ReplayGuard

STEPS, ROWS, WIDTH = 4, 6, 3
LABELS = torch.arange(ROWS) % 2


class LabelSide:
    """A label party with a defense that adds noise, and the guard of its repeated steps."""

    def __init__(self, folder, *, known=False, kind=Iso, **params):
        base = VerticalStrategy(nn.Linear(WIDTH, 1), LABELS, secret=Secret.for_simulation(0, "label"))
        base.build({"a": (WIDTH,)}, None)
        self.defense = kind(base, **(params or {"t": 4.0}))
        self.guard = ReplayGuard([self.defense], folder / "received", known=known)

    def step(self, number, value, other=0):
        """Return the noise of a step in which embeddings with these values are received, as a tuple."""
        self.guard.note(
            number, {"a": torch.full((ROWS, WIDTH), float(value)), "b": torch.full((ROWS, 1), float(other))}
        )
        g = torch.ones(ROWS, WIDTH)
        return tuple((self.defense.protect(g, LABELS)[0] - g).flatten().tolist())

    def state(self):
        return {"defense": self.defense.state(), "received": self.guard.state()}

    def restore(self, state):
        self.defense.restore(state["defense"])
        self.guard.restore(state["received"])


class Counted(Iso):
    """Noise with a proof that counts its draws."""

    def guarantee(self):
        return Guarantee.of(Release(Laplace(4.0), draws=STEPS))


PASSES = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=STEPS), min_size=2, max_size=5)


@given(PASSES, st.sets(st.integers(1, 4)))
def test_noise_repeats_only_where_all_received_embeddings_repeat(tmp_path_factory, passes, killed):
    """Equal noise means an equal history of embeddings, in all passes and after kills of the label party."""
    folder = tmp_path_factory.mktemp("run")
    side, noise_of = LabelSide(folder), {}
    start = side.state()
    for number, values in enumerate(passes):
        if number:
            if number in killed:
                side = LabelSide(folder, known=True)
            side.restore(start)
        for step, value in enumerate(values):
            noise, history = side.step(step, value), (step, *values[: step + 1])
            assert noise_of.setdefault(history, noise) == noise
    assert len(set(noise_of.values())) == len(noise_of)


@pytest.mark.parametrize("values", [(1, 0), (0, 1)])
def test_fresh_noise_is_drawn_whichever_party_sends_other_embeddings(tmp_path, values):
    side = LabelSide(tmp_path)
    start, noise = side.state(), side.step(0, 0, 0)
    side.restore(start)
    assert not set(side.step(0, *values)) & set(noise)


HALF = torch.linspace(1.0, 3.0, ROWS * WIDTH).half().view(ROWS, WIDTH)
FORMATS = {
    "as it was": {"a": HALF, "b": HALF},
    "another number format": {"a": HALF.view(torch.bfloat16), "b": HALF},
    "another shape": {"a": HALF.view(ROWS // 2, 2 * WIDTH), "b": HALF},
    "another party": {"c": HALF, "b": HALF},
    "parts of other widths": {"a": torch.cat([HALF, HALF[:1]]), "b": HALF[1:]},
}


@pytest.mark.parametrize("again", FORMATS)
def test_the_same_bytes_in_another_format_are_other_embeddings(tmp_path, again):
    """Equal noise on the gradients of both would be subtracted by a party that returns with another format."""
    side = LabelSide(tmp_path)
    start, g = side.state(), torch.ones(ROWS, WIDTH)
    noise = []
    for embeddings in (FORMATS["as it was"], FORMATS[again]):
        side.restore(start)
        side.guard.note(0, embeddings)
        noise.append(side.defense.protect(g, LABELS)[0] - g)
    assert torch.equal(*noise) == (again == "as it was")


def test_an_uninterrupted_run_draws_as_without_the_guard(tmp_path):
    side, plain = LabelSide(tmp_path), LabelSide(tmp_path / "other")
    plain.guard.note = lambda step, embeddings: None
    for step in range(STEPS):
        assert side.step(step, step) == plain.step(step, step)
        side.state()


@pytest.mark.parametrize("killed", [False, True])
def test_what_was_received_before_the_last_state_is_known_until_the_next_one(tmp_path, killed):
    """A state that other parties lack is not used: all parties are restored to the state before it."""
    side = LabelSide(tmp_path)
    states, noise = [side.state()], {}
    for step in range(3):
        noise[step] = side.step(step, 0)
        states.append(side.state())
    for back in (2, 1):  # number of steps before the restored state
        if killed:
            side = LabelSide(tmp_path, known=True)
        side.restore(states[back])
        again = side.step(2, 1) if back == 2 else [side.step(1, 1), side.step(2, 0)][-1]
        assert again != noise[2]
    side.restore(states[2])
    assert side.step(2, 0) == noise[2]


def test_a_state_after_a_reseed_determines_the_noise_that_follows(tmp_path):
    side = LabelSide(tmp_path)
    start = side.state()
    side.step(0, 0)
    side.restore(start)
    side.step(0, 1)
    middle, following = side.state(), side.step(1, 0)
    side.restore(middle)
    assert side.step(1, 0) == following
    other = LabelSide(tmp_path, known=True)
    other.restore(middle)
    assert other.step(1, 0) == following


def test_a_reseed_without_a_draw_is_part_of_the_state(tmp_path):
    side = LabelSide(tmp_path)
    first = side.step(0, 0)
    side.defense.reseed("step", 0, "x")
    state = side.state()
    side.restore(state)
    assert side.step(1, 0) != first


def test_lines_that_a_kill_truncated_are_ignored(tmp_path):
    side = LabelSide(tmp_path)
    start, noise = side.state(), side.step(0, 0)
    side.step(1, 0)
    path = tmp_path / "received"
    path.write_text(path.read_text()[:-10])
    side = LabelSide(tmp_path, known=True)
    side.restore(start)
    assert side.step(0, 1) != noise
    lines = [line.split() for line in path.read_text().splitlines()]
    assert [(step, len(digest)) for step, digest in lines] == [("0", 64), ("0", 64)]  # both of step 0, none of step 1


def test_a_new_training_overwrites_the_file_of_an_earlier_one(tmp_path):
    LabelSide(tmp_path).step(0, 0)
    side = LabelSide(tmp_path)
    plain = LabelSide(tmp_path / "other")
    assert side.step(0, 1) == plain.step(0, 1)


def test_what_was_received_can_be_read_by_its_owner_alone(tmp_path):
    side = LabelSide(tmp_path)
    side.step(0, 0)
    side.state()
    assert (tmp_path / "received").stat().st_mode & 0o777 == 0o600


def test_the_file_of_received_steps_does_not_grow(tmp_path):
    side = LabelSide(tmp_path)
    for step in range(40):
        side.step(step, 0)
        if step % 4 == 3:
            side.state()
    assert len((tmp_path / "received").read_text().splitlines()) <= 8


def test_fresh_noise_is_reported_once_after_each_interruption(tmp_path, caplog):
    side = LabelSide(tmp_path)
    start = side.state()
    for value in (0, 1, 2):
        side.restore(start)
        for step in range(3):
            side.step(step, value)
    assert caplog.text.count("is done again with other embeddings") == 2


@pytest.mark.parametrize("known", [False, True])
def test_a_proof_that_counts_each_step_once_allows_no_other_embeddings(tmp_path, known):
    side = LabelSide(tmp_path, kind=Counted)
    start = side.state()
    noise = [side.step(step, 1) for step in range(2)]
    if known:
        side = LabelSide(tmp_path, known=True, kind=Counted)
    side.restore(start)
    assert side.step(0, 1) == noise[0]
    with pytest.raises(TrainingError, match=r"step 1 is done again .* the proof of iso counts each step once"):
        side.step(1, 2)


@pytest.mark.parametrize("kind", [Marvell, MarvellFull])
def test_where_a_step_has_sent_gradients_twice_there_is_no_bound_any_more(tmp_path, kind):
    side = LabelSide(tmp_path, kind=kind, s=4.0)
    start = side.state()
    for values, lost in (((1, 1), False), ((1, 1), False), ((1, 2), True), ((1, 1), True)):
        side.restore(start)
        for step, value in enumerate(values):
            side.step(step, value)
        side.defense.end_epoch()
        assert (side.defense.bound() == 1.0) == lost
    restored = LabelSide(tmp_path, known=True, kind=kind, s=4.0)
    restored.restore(side.state())
    assert restored.defense.bound() == 1.0


@pytest.mark.parametrize("kind", [Marvell, MarvellFull])
def test_a_label_party_that_was_killed_knows_that_a_step_has_sent_gradients_twice(tmp_path, kind):
    """Killed before the next checkpoint, it is restored to a state from before; the party sends what it first sent."""
    side = LabelSide(tmp_path, kind=kind, s=4.0)
    start = side.state()
    first = side.step(0, 1)
    side.restore(start)
    side.step(0, 2)
    killed = LabelSide(tmp_path, known=True, kind=kind, s=4.0)
    killed.restore(start)
    assert killed.step(0, 1) == first
    killed.defense.end_epoch()
    assert killed.defense.bound() == 1.0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_embeddings_of_any_format_and_layout_count(tmp_path, dtype):
    side = LabelSide(tmp_path)
    start, values = side.state(), np.arange(12).reshape(3, 4)
    z = torch.tensor(values).to(dtype)
    side.guard.note(0, {"a": z.T})
    side.restore(start)
    side.guard.note(0, {"a": z.T.contiguous()})
    assert not side.defense._purpose
    side.restore(start)
    side.guard.note(0, {"a": -z.T})
    assert side.defense._purpose
