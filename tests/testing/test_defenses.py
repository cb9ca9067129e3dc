"""`check_defense`: every built-in defense passes, and each mistake is found and named."""

import logging

import pytest
import torch

from flower_vfl.strategies import DEFENSES, Iso, Marvell, MaxNorm
from flower_vfl.testing import CheckError, check_defense
from tests.cases import parametrize
from tests.testing import broken, right

SETTINGS = [
    *((defense, {}) for defense in DEFENSES.values()),
    (Iso, {"t": 25.0, "scope": "per-party"}),
    (MaxNorm, {"scope": "per-party"}),
    *((Marvell, strength) for strength in ({"s": 0.25}, {"P": 1.0}, {"sum_kl": 0.5}, {"detection_error": 0.4})),
    (Marvell, {"scope": "per-party"}),
    *((defense, {"rho": rho, "scope": "per-party"}) for defense in (Iso, MaxNorm, Marvell) for rho in (0.5, 1.0)),
]


@parametrize(("defense", "params"), SETTINGS, ids=lambda value: getattr(value, "name", str(value)), quick=5)
def test_every_built_in_defense_passes(defense, params):
    check_defense(defense, **params)


@parametrize(
    "defense",
    [
        right.Right,
        right.Unchecked,
        right.Norms,
        right.RunningMean,
        right.RisingBound,
        right.Grid,
        right.Clipped,
        right.ByConfidence,
        right.Smoothed,
        right.Adversary,
        broken.Kept,
        broken.Drawing,
    ],
    quick=2,
)
def test_a_users_own_defense_passes_with_noise_or_without_with_a_state_or_without(defense):
    check_defense(defense)


@parametrize(
    ("defense", "finding"),
    [
        (int, "no subclass of flower_vfl.strategies.Defense"),
        (broken.Unfinished, "it is abstract: it does not define perturb"),
        (broken.Unnamed, "`name` is 'un named'"),
        (broken.Borrowed, "`name` is 'iso', which is that of a built-in defense"),
        (broken.Silent, r"(?s)class has no docstring.*`perturb` has no docstring"),
        (broken.NoHook, "overrides no hook"),
        (broken.Starting, "overrides `start`"),
        (broken.Opaque, r"cannot stand in result\.json"),
        (broken.Undocumented, "does not say what 'scope' is"),
        (broken.Tolerant, "takes parameters that it does not have"),
        (broken.Narrow, r"gradients \(64, 8\), scope joint: it returns torch.float32 \(64, 1\)"),
        (broken.FixedWidth, "shapes: it raised RuntimeError"),
        (broken.Counting, r"nothing unprotected: it raised ZeroDivisionError: .* \(an empty batch\)"),
        (broken.Single, r"gradients in torch.float16: it returns torch.float32 \(64, 8\) for torch.float16"),
        (broken.Scopeless, "made with scope='per-party', its `params` does not say so"),
        (broken.Graph, "keeps a graph"),
        (broken.Unchecked, "a batch with nan: it returns values that are not finite; raise UnprotectedBatchError"),
        (broken.Cleaning, "a batch with inf: it goes out as it is"),
        (broken.OnlyBoth, "positives only: it goes out as it is"),
        (broken.Relative, "one row alone: it goes out as it is"),
        (
            broken.Squaring,
            r"(?s)gradients of 1e-30: it goes out as it is.*gradients of 1e30: zeros are sent",
        ),
        (broken.Withholding, "a usual batch: zeros are sent"),
        (broken.Refusing, "it raised UnprotectedBatchError: refusing: no"),
        (broken.Multiplying, "a row of zeros: it is sent as zeros and no other row is"),
        (broken.Shrinking, r"declared unbiased, .* along the gradients it is -[12]\d\.\d% of them"),
        (broken.Drifting, "declared unbiased, but"),
        (broken.Global, "draws from torch's global generator"),
        (broken.Seeding, "draws from torch's global generator, or seeds it"),
        (broken.Numpy, "the same secret gives other results"),
        (broken.Public, "its noise is the same whatever the secret"),
        (broken.Constant, "it adds the same to other gradients, so that a party can subtract it"),
        (broken.Repeating, "its noise is the same in every step"),
        (broken.Writing, "changes gradients or labels in place"),
        (broken.UnsavedMean, "restored from its `state`, it goes on otherwise"),
        (broken.UnsavedGenerator, "restored from its `state`, it goes on otherwise"),
        (broken.Shared, "as copies"),
        (broken.Unsavable, "its `state` cannot be saved: .*given Generator"),
        (broken.NotANumber, "logs 'right.length' = NaN"),
        (broken.Clashing, "end_epoch: it logs 'train_loss', which is a name of the training's own metrics"),
        (broken.Endless, "logs 'right.length' = inf, and no docstring explains when"),
        (broken.Tensors, "a name and a number are needed"),
        (broken.Alone, "`protect` does not ask the strategy that it wraps first"),
        (broken.NoiseFirst, "`protect` does not ask the strategy that it wraps first"),
        (broken.LosingLog, "`embed` loses the log of the strategy that it wraps"),
        (broken.Cutting, "embed, vectors: no gradient flows back"),
        (broken.Dividing, "embed, zeros: it returns values that are not finite"),
        (broken.Halving, "one row for each of the 64 is needed"),
        (broken.Lossy, "loss, one class: the loss or its gradient is not finite"),
        (broken.Overwriting, "loss, a usual batch: it changes embeddings, logits or labels in place"),
        (broken.Rows, "a differentiable number is needed"),
        (broken.Relabelling, "labels of classes that there are not"),
        (broken.Floating, "it must return as many of that kind"),
        (broken.Relabelled, "changes gradients or labels in place"),
        (broken.Binary, r"refuses three classes \(binary: two classes\); declare"),
        (broken.NoEpochLog, "end_epoch: it logs None; a dictionary of numbers is needed"),
        (broken.NanAtEpochEnd, "end_epoch: it logs 'hope' = NaN"),
        (broken.NanBound, "its `bound` is nan; a leak AUC from 0.5 to 1 is needed"),
        (broken.BoundBelowHalf, r"its `bound` is -3\.0; a leak AUC from 0.5 to 1 is needed"),
        (broken.RaisingCheck, "epochs: it raised KeyError: 2"),
        (broken.Growing, "restored from its `state`, it goes on otherwise"),
        (broken.Recounting, "restored from its `state`, it goes on otherwise"),
        (broken.Lowering, "restored from its `state`, it goes on otherwise"),
        (broken.Delegating, "`end_epoch` calls the strategy that it wraps, which is called by itself"),
        (broken.OnceOnly, "another of its kind: lonely: once only; if that is wrong, name the alternative in `twice`"),
        (broken.Bypassing, "declares `two_classes_only` and takes three"),
        (broken.Peeking, r"with the same draw other true labels change the gradients of step 0 \(1 party\)"),
        (broken.Joined, "with the same draw other true labels change the gradients of step 0"),
        (broken.Backward, "with the same draw other true labels change the gradients of step 0"),
        (broken.Reaching, "private_loss: its gradient reaches the embeddings that parties sent"),
        (broken.Sharing, "private_loss: its gradient reaches the shared top model"),
        (broken.Learning, "private_loss: it reaches none of its `modules`"),
        (broken.Wide, r"predict: finite logits \(64,\) are needed for two classes, given \(64, 1\)"),
        (broken.Ending, r"(?s)with training.patience = 1 true labels decide.*with attack.max_leak = 0.6 true labels"),
        (broken.Averaging, "runs: it raised NotRestoredError: the label party cannot be rebuilt from its weights"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
    quick=17,
)
def test_each_mistake_is_found_and_named(defense, finding):
    with pytest.raises(CheckError, match=finding) as caught:
        check_defense(defense)
    assert str(caught.value).startswith(f"{defense.__name__}() does not do what a defense must:\n- ")


def test_a_waived_finding_is_not_reported_and_one_that_does_not_occur_cannot_be_waived():
    check_defense(broken.Delegating, waive=["nesting"])
    with pytest.raises(CheckError, match="it waives 'zero rows', which finds nothing"):
        check_defense(right.Right, waive=["zero rows"])


def test_parameters_that_do_not_arrive_in_the_result_are_a_finding():
    with pytest.raises(CheckError, match=r"made with strength=2\.0, its `params` is \{'scope': 'joint'\}"):
        check_defense(broken.Hidden, strength=2.0)


def test_parameters_that_are_refused_are_a_finding():
    with pytest.raises(CheckError, match=r"Iso\(t=-1\).*(?s:.*)raised ConfigError: iso: t must"):
        check_defense(Iso, t=-1)


@parametrize(("defense", "params"), [(Iso, {"t": 0.0}), (Marvell, {"s": 0.0})], quick=1)
def test_a_strength_of_zero_is_a_finding(defense, params):
    with pytest.raises(CheckError, match="a usual batch: it goes out as it is"):
        check_defense(defense, **params)


def test_an_inf_that_a_docstring_announces_may_be_logged():
    class Announced(broken.Endless):
        """Logs `length`, which is inf here; `scope` is that of `GradientDefense`."""

    check_defense(Announced)


def test_the_callers_random_numbers_threads_and_log_are_left_alone(caplog):
    threads, before = torch.get_num_threads(), torch.get_rng_state()
    torch.set_num_threads(2)
    try:
        with caplog.at_level(logging.DEBUG, "flower_vfl"):
            with pytest.raises(CheckError):
                check_defense(broken.Cutting)
            assert logging.getLogger("flower_vfl").level == logging.DEBUG
        assert torch.get_num_threads() == 2
        assert torch.equal(before, torch.get_rng_state())
    finally:
        torch.set_num_threads(threads)
