"""`check_attack`: every built-in attack passes, and each mistake is found and named."""

import math
from typing import ClassVar

import pytest
import torch

from flower_vfl.attacks import (
    ATTACKS,
    Attack,
    DirectionCountAttack,
    HintAttack,
    InferenceAttack,
    NormAttack,
    RowAttack,
)
from flower_vfl.attacks.base import NOTHING
from flower_vfl.errors import FlowerVflError
from flower_vfl.testing import CheckError, check_attack
from tests.cases import parametrize

FEWER = {"remembered_network": {"steps": 60}}  # the default of 300 makes the same checks five times as long
SETTINGS = [
    *((attack, FEWER.get(attack.name, {})) for attack in ATTACKS.values()),
    *((HintAttack, {"k": k, "measure": measure}) for k in (1, 3, 5) for measure in ("inner", "cosine", "distance")),
    (DirectionCountAttack, {"minority": "negative"}),
    *((ATTACKS["residual"], {"r": r}) for r in (1, 100)),
    *((ATTACKS[f"remembered_{reader}"], {"k": 1, "reads": "last"}) for reader in ("fit", "quadratic", "network")),
    (ATTACKS["remembered_network"], {"hidden": 2, "steps": 5, "seed": 3, "reads": "difference"}),
    (ATTACKS["remembered_quadratic"], {"k": 2, "shrinkage": 1.0}),
    *((ATTACKS["joint_regression"], {"target": target}) for target in ("direction", "length")),
    (ATTACKS["joint_reader"], {"k": 2}),
    *((ATTACKS["embedding_reader"], {"reader": reader, "k": 1}) for reader in ("quadratic", "network")),
]


@parametrize(("attack", "params"), SETTINGS, ids=lambda value: getattr(value, "name", str(value)), quick=11)
def test_every_built_in_attack_passes(attack, params):
    check_attack(attack, **params)


class Right(Attack):
    """Reads the first coordinate."""

    name = "right"

    def score(self, transcript, layer, side=NOTHING):
        """Return the first coordinate."""
        return transcript.last.gradients[layer].flatten(1)[:, 0]


def test_a_users_own_attack_of_one_method_passes():
    check_attack(Right)


def last(transcript, layer="cut"):
    return transcript.last.gradients[layer].flatten(1)


class Unnamed(Right):
    """Has a name with a space."""

    name = "un named"


class UnknownNeed(Right):
    """Needs true labels of all rows, which no attack gets."""

    needs = frozenset({"truth"})


class Silent(Right):
    __doc__ = None

    def score(self, transcript, layer, side=NOTHING):
        return last(transcript)[:, 0]


class Opaque(Right):
    """Has params that JSON cannot hold."""

    @property
    def params(self):
        return {"params": torch.ones(1)}


class Infinite(Right):
    """Has an infinite parameter, which JSON does not have."""

    @property
    def params(self):
        return {"params": math.inf}


class Shifting(Right):
    """Reports another power than it was given."""

    def __init__(self, power=1):
        self.power = power

    @property
    def params(self):
        return {"power": self.power + 1}


class Undocumented(Right):
    """Does not describe its parameter."""

    def __init__(self, power=1):
        self.power = power


class Tolerant(Right):
    """Takes any parameter."""

    def __init__(self, **anything):
        pass


class Flat(Right):
    """Accepts vectors only."""

    def score(self, transcript, layer, side=NOTHING):
        """Return a score."""
        return transcript.last.gradients[layer][:, 0]


class Spatial(Right):
    """Reads feature maps in another way."""

    def score(self, transcript, layer, side=NOTHING):
        """Return a score."""
        g = transcript.last.gradients[layer]
        return g.flatten(1)[:, 0] if g.dim() == 2 else g.flatten(1)[:, -1]


class Listing(Right):
    """Returns a list."""

    def score(self, transcript, layer, side=NOTHING):
        """Return a score."""
        return last(transcript)[:, 0].tolist()


class Logical(Right):
    """Returns booleans."""

    def score(self, transcript, layer, side=NOTHING):
        """Return a score."""
        return last(transcript)[:, 0] > 0


class Normed(Right):
    """Divides by the norm."""

    def score(self, transcript, layer, side=NOTHING):
        """Return a score."""
        g = last(transcript)
        return g[:, 0] / g.norm(dim=1)


class Standardised(Right):
    """Divides by the deviation over the batch."""

    def score(self, transcript, layer, side=NOTHING):
        """Return a score."""
        g = last(transcript)
        return (g[:, 0] - g[:, 0].mean()) / g[:, 0].std(correction=0)


class Squared(Right):
    """Squares, and compares with the largest square."""

    def score(self, transcript, layer, side=NOTHING):
        """Return a score."""
        squares = last(transcript).square().sum(dim=1)
        return squares / squares.max().clamp(min=1e-45)


class Narrow(Right):
    """Computes in float32 only."""

    def score(self, transcript, layer, side=NOTHING):
        """Return a score."""
        g = last(transcript)
        return g @ torch.ones(g.shape[1])


class Random(Right):
    """Draws from the global generator."""

    def score(self, transcript, layer, side=NOTHING):
        """Return a score."""
        return torch.randn(len(last(transcript)))


class Counting(Right):
    """Scores differently each time."""

    def __init__(self):
        self.times = 0

    def score(self, transcript, layer, side=NOTHING):
        """Return a score."""
        self.times += 1
        return last(transcript)[:, 0] * self.times


class Unseeded(Right):
    """Draws a direction when it is made."""

    def __init__(self):
        self.sign = torch.randn(())

    def score(self, transcript, layer, side=NOTHING):
        """Return a score."""
        return last(transcript)[:, 0].float() * self.sign


class Writing(Right):
    """Normalises in place."""

    def score(self, transcript, layer, side=NOTHING):
        """Return a score."""
        return transcript.last.gradients[layer].mul_(0.5).flatten(1)[:, 0]


class Assuming(Right):
    """Scores without the side information that it declares."""

    needs = frozenset({"reference"})

    def score(self, transcript, layer, side=NOTHING):
        """Return a score."""
        return last(transcript)[:, 0] * float(side.tensors.get("reference", torch.ones(1))[0] > -9)


class Graph(Right):
    """Keeps a graph."""

    def score(self, transcript, layer, side=NOTHING):
        """Return a score."""
        return last(transcript)[:, 0] * torch.ones(1, requires_grad=True)


class OneLayer(Right):
    """Reads a layer that does not exist."""

    def score(self, transcript, layer, side=NOTHING):
        """Return a score."""
        return transcript.last.gradients["last"][:, 0]


class Rows(RowAttack):
    """Reads the first coordinate of many runs."""

    name = "rows"

    def rate(self, rows, known):
        """Return the first coordinates."""
        return rows[..., 0]


def test_a_users_own_attack_on_rows_passes():
    check_attack(Rows)


class Hinted(Rows):
    """Projects rows on its first hint."""

    needs = frozenset({"hints"})

    def rate(self, rows, known):
        """Return the inner products with the first hint."""
        return (rows.double() * known[..., :1, :]).sum(dim=-1)


def test_a_users_own_attack_on_rows_with_side_information_passes():
    check_attack(Hinted)


class Mixing(Rows):
    """Takes the mean over all runs."""

    def rate(self, rows, known):
        """Return the distance from it."""
        return rows[..., 0] - rows[..., 0].mean()

    def score(self, transcript, layer, side=NOTHING):
        """Return the distance from it."""
        return self.rate(last(transcript, layer), None)


class Flattening(Rows):
    """Ignores the dimension of runs."""

    def rate(self, rows, known):
        """Return the first coordinates of the first run."""
        return rows.flatten(0, -2)[:, 0]


class ReadingEmbeddings(Rows):
    """Declares that it reads embeddings."""

    sees = "embeddings"


class TwoNeeds(Rows):
    """Needs hints and a reference."""

    needs = frozenset({"hints", "reference"})


class Naming(Right):
    """Declares classes, which only attacks on trained models return."""

    reads = "classes"


class Grouping(Right):
    """Declares clusters, and returns scores."""

    reads = "clusters"


class Numbering(Right):
    """Puts each row in a cluster of its own."""

    reads = "clusters"

    def score(self, transcript, layer, side=NOTHING):
        """Return the numbers of the rows."""
        return torch.arange(len(last(transcript)))


class Endless(Right):
    """Declares that it reads all steps."""

    history = None


class Remembering(Rows):
    """Rates one batch, and declares that it reads two."""

    history = 2


class Paired(Right):
    """Unpacks two steps, of which a run has one at first."""

    history = 2

    def score(self, transcript, layer, side=NOTHING):
        """Return the sizes of the changes."""
        before, now = (trace.gradients[layer].flatten(1) for trace in transcript)
        return (now - before).abs().sum(dim=1)


class Aligned(Right):
    """Compares each row with the one at its place in the step before, which may be a shorter batch."""

    history = 2

    def score(self, transcript, layer, side=NOTHING):
        """Return the sizes of the changes."""
        first, *_, now = [*transcript, *transcript]
        before, now = (trace.gradients[layer].flatten(1) for trace in (first, now))
        return (now - before).abs().sum(dim=1)


class Forgetful(Right):
    """Declares two steps, and reads one."""

    history = 2


class Averaging(Rows):
    """Reads along the mean of all steps so far."""

    sequential = True

    def __init__(self):
        self.sum = None

    def rate(self, rows, known):
        """Return the inner products with it."""
        mean = rows.double().mean(dim=-2, keepdim=True)
        self.sum = mean if self.sum is None or self.sum.shape != mean.shape else self.sum + mean
        return (rows.double() * self.sum).sum(dim=-1)

    def state(self):
        return {} if self.sum is None else {"sum": self.sum}

    def restore(self, state):
        self.sum = state.get("sum")


class Halves(Right):
    """Puts rows into two groups by their gradients in two steps."""

    reads = "clusters"
    history = 2

    def score(self, transcript, layer, side=NOTHING):
        """Return the groups: the side of each row, by the mean row of all steps."""
        mean = sum(trace.gradients[layer].flatten(1).mean(dim=0) for trace in transcript)
        return (transcript.last.gradients[layer].flatten(1) @ mean > 0).long()


def test_a_users_own_attack_that_forms_groups_over_steps_passes():
    check_attack(Halves)


class NeedsKnown(Right):
    """Reads a row whose label is known, which a batch may lack."""

    needs = frozenset({"labels"})
    leaks = 1

    def score(self, transcript, layer, side=NOTHING):
        """Return inner products with the first known row."""
        rows = transcript.last.gradients[layer].flatten(1)
        return rows @ rows[side.tensor("labels") >= 0][0]


def test_a_users_own_attack_that_follows_steps_passes():
    check_attack(Averaging)


class Undeclared(Averaging):
    """Does not declare that it follows steps."""

    sequential = False


class Unkept(Averaging):
    """Does not save its state."""

    def state(self):
        return {}


class Unkeepable(Averaging):
    """Saves a set, which no checkpoint can hold."""

    def state(self):
        return {"sum": {1, 2}}


class Shared(Averaging):
    """Keeps one sum for all instances."""

    sums: ClassVar[dict] = {}

    @property
    def sum(self):
        return self.sums.get("sum")

    @sum.setter
    def sum(self, value):
        if value is not None:
            self.sums["sum"] = value


class Same(Averaging):
    """Returns itself from `fresh`."""

    def fresh(self):
        return self


class Merged(Averaging):
    """Keeps one sum for all runs."""

    def rate(self, rows, known):
        """Return the inner products with it."""
        mean = rows.double().mean(dim=-2, keepdim=True)
        found = (rows.double() * (mean if self.sum is None else self.sum + mean)).sum(dim=-1)
        self.sum = mean.reshape(-1, rows.shape[-1]).mean(dim=0)
        return found


class Unsliced(Averaging):
    """Has a state whose leading dimension is not that of the runs."""

    def state(self):
        return {} if self.sum is None else {"sum": self.sum.movedim(0, -1)}

    def restore(self, state):
        self.sum = state["sum"].movedim(-1, 0) if state else None


@pytest.mark.parametrize(
    ("attack", "finding"),
    [
        (Undeclared, "the second time; if that is intended, declare `sequential = True`"),
        (Unkept, "after `state` and `restore` it gives other scores than without an interruption"),
        (Unkeepable, "a checkpoint cannot hold its `state`: a state holds plain values and tensors, given set"),
        (Shared, "it shares state between instances"),
        (Same, "`fresh` must return a new instance"),
        (Merged, "`rate` of three runs at once differs from that of each alone, at step 1 of a sequence"),
        (Unsliced, "the tensors of `state` must have their leading dimension, 3"),
        (Endless, "its `history` is None; a whole number from 1 is needed"),
        (Paired, "1 of 2 steps in the transcript, the last one of 64 rows: it fails with ValueError"),
        (Aligned, "2 of 2 steps in the transcript, the last one of 16 rows: it fails with RuntimeError"),
        (NeedsKnown, "side information: it raised IndexError"),
        (Forgetful, "its scores do not depend on the steps before, although its `history` is 2"),
        (Remembering, "a RowAttack scores gradients of one step"),
        (Naming, "its `reads` is 'classes'; 'scores' or 'clusters' is allowed"),
        (Grouping, "it returned .*; whole numbers below side.classes are needed"),
        (Numbering, r"it returned \[0, 1, 2, 3, 4\]; whole numbers below side.classes are needed"),
        (int, "no subclass of flower_vfl.attacks.Attack"),
        (Attack, "`name` is None"),
        (Unnamed, "`name` is 'un named'"),
        (UnknownNeed, r"`needs` is frozenset\(\{'truth'\}\); a frozenset of 'reference', 'hints'"),
        (Silent, r"(?s)class has no docstring.*`score` has no docstring"),
        (Opaque, r"cannot stand in result\.json"),
        (Infinite, r"cannot stand in result\.json"),
        (Shifting, "made again with its own `params` .* it has others"),
        (Undocumented, "does not say what 'power' is"),
        (Tolerant, "takes parameters that it does not have"),
        (Flat, r"gradients \(32, 3, 4, 4\) at 'cut': the score is \(32, 4, 4\)"),
        (Spatial, "not scored as the same numbers"),
        (Listing, r"the score is list, one number a row is needed: a tensor \(64,\)"),
        (Logical, "torch.bool, they cannot be ranked"),
        (Normed, "a row of zeros: 2 of 64 scores are NaN"),
        (Standardised, r"gradients \(1, 8\) at 'cut': 1 of 1 scores are NaN"),
        (Squared, "gradients of 1e30: .* NaN"),
        (Narrow, "number formats: it raised RuntimeError"),
        (Random, "the second time"),
        (Counting, "the second time"),
        (Unseeded, "two attacks with the same parameters"),
        (Writing, "changes the gradients"),
        (Assuming, "scores without the side information"),
        (Graph, "keep a graph"),
        (OneLayer, "shapes: it raised KeyError"),
        (Mixing, "`rate` of three batches .* differs from `score` of each"),
        (Flattening, r"`rate` of three batches .* returns \(192,\); \(3, 64\)"),
        (ReadingEmbeddings, "a RowAttack .* derive it from Attack"),
        (TwoNeeds, "a RowAttack .* derive it from Attack"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_each_mistake_is_found_and_named(attack, finding):
    with pytest.raises(CheckError, match=finding) as caught:
        check_attack(attack)
    assert str(caught.value).startswith(f"{attack.__name__}() does not do what an attack must:\n- ")


def test_the_error_is_an_assertion_and_one_of_ours_and_lists_everything_once():
    class Wrong(NormAttack):
        """Scores NaN."""

        def score(self, transcript, layer, side=NOTHING):
            """Return NaN."""
            return torch.full((len(last(transcript)),), math.nan)

    with pytest.raises(AssertionError) as caught:
        check_attack(Wrong)
    assert isinstance(caught.value, FlowerVflError)
    lines = str(caught.value).splitlines()[1:]
    assert len(lines) == len(set(lines)) > 10


def test_parameters_that_are_refused_are_a_finding():
    with pytest.raises(CheckError, match=r"HintAttack\(k=0\).*(?s:.*)raised ConfigError: hint: k is 0"):
        check_attack(HintAttack, k=0)


def test_parameters_that_do_not_arrive_in_the_result_are_a_finding():
    class LosingPower(Right):
        """Does not keep its power."""

        def __init__(self, power=1):
            pass

    with pytest.raises(CheckError, match=r"made with power=2, its `params` is \{\}"):
        check_attack(LosingPower, power=2)


def test_parameters_make_the_attack_that_is_checked():
    powers = []

    class Recording(Right):
        """Has a power."""

        def __init__(self, power=1):
            self.power = power
            powers.append(power)

    check_attack(Recording, power=7)
    assert set(powers) == {7}


class Trained(InferenceAttack):
    """Predicts by the first coordinate."""

    name = "trained"
    reads = "classes"

    def infer(self, view):
        """Return class 1 where the first coordinate is positive."""
        return (view.embeddings.flatten(1)[:, 0] > 0).long()


def test_an_attack_on_the_trained_model_of_one_method_passes():
    check_attack(Trained)


class UnknownResult(Trained):
    """Declares an unknown kind of result."""

    reads = "labels"


class NeedsHints(Trained):
    """Needs hints, which do not exist after training."""

    needs = frozenset({"hints"})


class NoNumber(Trained):
    """Needs labels without declaring their number."""

    needs = frozenset({"leaked"})


class UnusedLabels(Trained):
    """Predicts without the labels that it needs."""

    needs, leaks = frozenset({"leaked"}), 2


class Fractional(Trained):
    """Returns numbers that are no classes."""

    def infer(self, view):
        """Return a number."""
        return view.embeddings.flatten(1)[:, 0]


class Beyond(Trained):
    """Returns a class that does not exist."""

    def infer(self, view):
        """Return a number."""
        return torch.full((len(view.embeddings),), view.classes)


class Short(Trained):
    """Returns too few numbers."""

    def infer(self, view):
        """Return a number."""
        return torch.zeros(3, dtype=torch.int64)


class Global(Trained):
    """Draws from the global generator."""

    def infer(self, view):
        """Return a number."""
        return torch.randint(0, view.classes, (len(view.embeddings),))


class Writing(Trained):
    """Changes the embeddings."""

    def infer(self, view):
        """Return a number."""
        view.embeddings.zero_()
        return torch.zeros(len(view.embeddings), dtype=torch.int64)


class Nan(Trained):
    """Returns NaN for embeddings of zeros."""

    reads = "scores"

    def infer(self, view):
        """Return a number."""
        z = view.embeddings.flatten(1).double()
        return z[:, 0] / z.norm(dim=1)


class BadBaseline(Trained):
    """Has a baseline that returns another shape."""

    def baseline(self, view):
        """Return scores."""
        return view.inputs[0]


@pytest.mark.parametrize(
    ("attack", "reason"),
    [
        (UnknownResult, "its `reads` is 'labels'"),
        (NeedsHints, "its `needs` is frozenset"),
        (NoNumber, "`leaks` is 0 and `needs` {'leaked'}"),
        (UnusedLabels, "scores without the side information"),
        (Fractional, "whole numbers below 2 are needed"),
        (Beyond, "whole numbers below 5 are needed"),
        (Short, r"it returned \(3,\), one number a row"),
        (Global, "draws from a global generator"),
        (Writing, "changes the embeddings"),
        (Nan, "some scores are NaN"),
        (BadBaseline, r"the baseline, 2 classes: it returned \(64, 3\)"),
    ],
)
def test_mistakes_in_attacks_on_the_trained_model_are_found(attack, reason):
    with pytest.raises(CheckError, match=reason):
        check_attack(attack)
