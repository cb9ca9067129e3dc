"""Defenses of many runs at once: each run gets the noise that it gets alone."""

import pytest
import torch

from flower_vfl.rng import Secret
from flower_vfl.strategies import Iso, LabelDP, Marvell, MarvellFull, MaxNorm, VerticalStrategy
from flower_vfl.strategies.gradients.base import GradientDefense

RUNS, ROWS, WIDTHS = 3, 50, {"a": 5, "b": 3}
MAKERS = {
    "iso": lambda strategy, run, **more: Iso(strategy, t=1.0 + run, **more),
    "max_norm": lambda strategy, run, **more: MaxNorm(strategy, **more),
    "marvell": lambda strategy, run, **more: Marvell(strategy, s=0.5 + run, **more),
    "marvell_full": lambda strategy, run, **more: MarvellFull(strategy, s=0.5 + run, **more),
    "marvell sum_kl": lambda strategy, run, **more: Marvell(strategy, sum_kl=0.5 + run, **more),
}


def defense(kind, run, **more):
    base = VerticalStrategy(
        top=torch.nn.Linear(8, 1),
        labels=torch.tensor([0, 1]),
        parties=list(WIDTHS),
        secret=Secret.for_simulation(run, "label"),
    )
    base.build({party: (width,) for party, width in WIDTHS.items()}, None)
    return MAKERS[kind](base, run, **more)


def batch(step=0):
    generator = torch.Generator().manual_seed(step)
    labels = (torch.rand(RUNS, ROWS, generator=generator) < 0.2).long()
    g = torch.randn(RUNS, ROWS, 8, generator=generator) * (1.0 + labels[..., None])
    return g + labels[..., None] * 2.0, labels


def compare(kind, change=lambda g, labels: None, steps=3, rhos=(0.0,) * RUNS, halve=False, **more):
    """Protect a few batches together and apart; return the largest relative difference, and the logs of the last."""
    together, apart = ([defense(kind, run, rho=rhos[run], **more) for run in range(RUNS)] for _ in range(2))
    worst = 0.0
    for step in range(steps):
        g, labels = batch(step)
        change(g, labels)
        g = g.half() if halve else g
        for one in (*together, *apart):
            one.base.begin_batch(torch.arange(ROWS).numpy())
        found, logs = type(together[0]).protect_runs(together, g, labels, [one.base.step for one in together])
        for run, one in enumerate(apart):
            expected, log = one.protect(g[run], labels[run])
            assert logs[run].keys() == log.keys()
            assert logs[run] == pytest.approx(log, rel=1e-4, nan_ok=True)
            assert not torch.equal(expected, g[run])
            worst = max(worst, ((found[run] - expected).abs().max() / g[run].nan_to_num().abs().max()).item())
    for one, other in zip(together, apart, strict=True):
        assert one.fallbacks == other.fallbacks
        assert torch.equal(one.generator(g.device).get_state(), other.generator(g.device).get_state())
    return worst, logs


@pytest.mark.parametrize("scope", ["joint", "per-party"])
@pytest.mark.parametrize("kind", MAKERS)
def test_gradients_and_logs_are_those_of_each_run_alone(kind, scope):
    assert compare(kind, scope=scope)[0] < 1e-5


@pytest.mark.parametrize("kind", MAKERS)
@pytest.mark.parametrize("rhos", [(0.5, 0.5, 0.5), (0.0, 1.0, 0.5)])
def test_runs_with_persistent_noise_get_what_each_gets_alone(kind, rhos):
    assert compare(kind, rhos=rhos)[0] < 1e-5


def test_gradients_in_half_precision_get_what_each_run_alone_gets():
    for kind in MAKERS:
        assert compare(kind, halve=True)[0] < 1e-2


def test_a_perturb_of_a_subclass_is_used_for_many_runs_too():
    class Zeros(Iso):
        def perturb(self, g, y, step=None):
            return 0.0 * g, {}

    runs = [Zeros(defense("iso", run).base) for run in range(RUNS)]
    g, labels = batch()
    sent, _ = Zeros.protect_runs(runs, g, labels, [one.base.step for one in runs])
    assert not sent.any()


@pytest.mark.parametrize("base", [Iso, MaxNorm, Marvell])
def test_a_perturb_runs_of_a_subclass_is_used_for_a_run_alone_too(base):
    class Zeros(base):
        @classmethod
        def perturb_runs(cls, defenses, g, y, steps):
            return 0.0 * g, [{} for _ in defenses]

    alone = Zeros(defense("max_norm", 0).base)
    g, labels = batch()
    assert not alone.perturb(g[0], labels[0])[0].any()


@pytest.mark.parametrize("scope", ["joint", "per-party"])
@pytest.mark.parametrize("kind", ["marvell", "marvell_full"])
def test_a_batch_of_one_class_in_one_run_gets_what_it_gets_alone_and_the_others_go_on(kind, scope):
    def one_class(g, labels):
        labels[1] = 0 if g[0, 0, 0] == batch(2)[0][0, 0, 0] else labels[1]

    worst, logs = compare(kind, one_class, scope=scope)
    assert worst < 1e-5
    name = f"{kind}.fallback" + (".b" if scope == "per-party" else "")
    assert [log[name] for log in logs] == [0.0, 1.0, 0.0]


@pytest.mark.parametrize("kind", MAKERS)
def test_a_run_whose_gradients_are_not_finite_sends_zeros_and_the_others_go_on(kind):
    def broken(g, labels):
        g[1, 3, 2] = torch.nan

    worst, logs = compare(kind, broken, steps=1)
    assert worst < 1e-5
    assert [log[f"{kind.split()[0]}.fallback"] for log in logs] == [0.0, 1.0, 0.0]


def test_a_row_of_zeros_gets_the_noise_of_the_run_alone():
    def zero(g, labels):
        g[1, 3] = 0.0

    assert compare("max_norm", zero)[0] < 1e-5


def test_only_a_defense_that_overrides_no_other_hook_than_perturb_stacks():
    class More(Iso):
        name = "more"

        def embed(self, z, *, party="", train=True):
            return 2 * z, {}

    assert Iso.stacks()
    assert Marvell.stacks()
    assert not More.stacks()
    assert not issubclass(LabelDP, GradientDefense)
