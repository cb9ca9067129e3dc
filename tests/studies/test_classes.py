"""The study on ten classes, studies/classes/study.py: equal power, and verdicts on known results."""

import numpy as np
import pytest
import torch
from torch import nn

from flower_vfl.strategies import Marvell, VerticalStrategy
from tests.toys import toy_config

pytestmark = pytest.mark.usefixtures("beside_the_studies")

C, D = 5, 12


def batch(rows=4000):
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(rows) % C
    means = torch.randn(C, D, generator=generator)
    return torch.randn(rows, D, generator=generator) * 0.3 + means[y], y


def strategy():
    return VerticalStrategy(nn.Linear(D, C), torch.arange(C), config=toy_config(attack={"names": []}))


def test_all_shapes_have_the_power_of_marvell_and_no_bias():
    from studies.classes import defenses as classes_defenses

    g, y = batch()
    expected = Marvell(strategy(), s=2.0).protect(g, y)[1]["marvell.noise_power"]
    for shape in (classes_defenses.Even, classes_defenses.Rest, classes_defenses.Span):
        sent, log = shape(strategy(), s=2.0).protect(g, y)
        assert log[f"{shape.name}.noise_power"] == pytest.approx(expected, rel=0.1)
        for c in range(C):
            shift = (sent - g)[y == c].mean(dim=0)
            assert shift.norm() < 6 * (expected * C / len(g)) ** 0.5


def test_span_has_one_noise_level_within_the_span_of_the_means():
    from studies.classes import defenses as classes_defenses

    g, y = batch()
    noise = classes_defenses.Span(strategy(), s=2.0).protect(g, y)[0] - g
    means = torch.stack([g[y == c].mean(dim=0) for c in range(C)])
    axes = torch.linalg.svd(means - means.mean(dim=0))[2][: C - 1]
    for c in range(C):
        along = (noise[y == c] @ axes.T).square().mean(dim=0)
        assert float(along.max() / along.min()) < 1.5


def summary(**accuracy_and_leak):
    settings = {}
    for name, pairs in accuracy_and_leak.items():
        values = {what: [leak for _, leak in pairs] for what in ("cosine worst_class", "hint worst_class")}
        settings[name.replace("_of_", "-")] = {
            "seeds": list(range(len(pairs))),
            "test_accuracy": [accuracy for accuracy, _ in pairs],
            "gradient_clustering": [leak for _, leak in pairs],
            **values,
        }
    return {"settings": settings}


def holds(found, start, other):
    from studies.classes import study as classes

    return next(
        v["holds"] for v in classes.verdicts(found) if v["claim"].startswith(start) and f"*{other}*" in v["claim"]
    )


def test_a_claim_holds_where_every_strength_agrees_beyond_its_interval():
    given = {f"marvell_of_{s}": [(0.9, 0.60), (0.9, 0.61), (0.9, 0.60)] for s in (1, 4, 16)}
    given |= {f"even_of_{s}": [(0.905, 0.8), (0.905, 0.8), (0.906, 0.81)] for s in (1, 4, 16)}
    assert holds(summary(**given), "the oracle", "even") is True
    assert holds(summary(**given), "Marvell costs", "even") is True
    given["even_of_4"] = [(0.95, 0.5), (0.95, 0.5), (0.95, 0.51)]
    assert holds(summary(**given), "the oracle", "even") is False
    assert holds(summary(**given), "Marvell costs", "even") is False
    given["even_of_4"] = [(0.90, 0.5), (0.90, 0.9), (0.90, 0.51)]
    assert holds(summary(**given), "the oracle", "even") is None
    assert holds(summary(**given), "the oracle", "rest") is None  # no run


def test_the_numbers_of_a_run_are_taken_from_its_result():
    from studies.classes import study as classes

    entry = {"q95_null": 0.65, "worst_class": {"q95": 0.9}, "macro_q95": 0.8, "mean": 0.7}
    leakage = [{"attack": name, **entry} for name in ("norm", "cosine", "hint", "residual", "gradient_clustering")]
    result = {"utility": {"last": {"test_accuracy": 0.95}}, "leakage": leakage, "log": {"marvell.auc_bound": 0.75}}
    found = dict(classes.numbers(result))
    assert (found["test_accuracy"], found["hint worst_class"], found["hint macro_q95"]) == (0.95, 0.9, 0.8)
    assert found["residual macro_q95"] == 0.8
    assert (found["gradient_clustering"], found["gradient_clustering null"]) == (0.7, 0.65)
    assert found["auc_bound"] == 0.75
    assert np.isfinite(list(found.values())).all()
