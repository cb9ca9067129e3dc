"""The numbers of the study on shapes, studies/shapes/study.py, on known results."""

import math

import pytest
import torch

pytestmark = pytest.mark.usefixtures("beside_the_studies")

RESIDUALS = ("residual(r=1)", "residual", "residual(r=8)")


def summary(read, hidden, lost):
    """Return a study with the leaks of published Marvell and of its full form, which loses this test AUC."""

    def setting(leak, auc):
        leaks = {
            f"{attack} cut": {"mean": leak, "q95": leak, "q95_null": [0.55] * 3} for attack in (*RESIDUALS, "norm")
        }
        return {"seeds": [0, 1, 2], "test_auc": auc, "leak": leaks}

    return {
        "settings": {
            "marvell-4": setting(read, [0.9, 0.91, 0.92]),
            "full-4": setting(hidden, [0.9 - lost[0], 0.91 - lost[1], 0.92 - lost[2]]),
        }
    }


@pytest.mark.parametrize(
    ("read", "hidden", "lost", "holds"),
    [
        ([0.99, 0.99, 1.0], [0.5, 0.49, 0.51], [0.0] * 3, [True, True, True]),
        ([0.6, 0.6, 0.61], [0.9, 0.9, 0.9], [0.01] * 3, [False, False, False]),
        ([0.9, 0.95, 1.0], [0.5, 0.53, 0.56], [0.0, 0.002, 0.004], [None, None, None]),
    ],
)
def test_a_claim_holds_or_not_with_its_whole_interval(read, hidden, lost, holds):
    from studies.shapes import study as shapes

    assert [found["holds"] for found in shapes.verdicts(summary(read, hidden, lost))] == holds


def test_the_worst_number_of_directions_counts_also_with_reversed_scores():
    from studies.shapes import study as shapes

    given = summary([0.99] * 3, [0.5] * 3, [0.0] * 3)
    given["settings"]["full-4"]["leak"]["residual(r=8) cut"]["mean"] = [0.1] * 3
    assert [found["holds"] for found in shapes.verdicts(given)] == [True, False, True]


def test_spectra_are_those_of_the_classes_covariances_in_units_of_the_batch():
    from studies.shapes.probe import spectra

    generator = torch.Generator().manual_seed(0)
    x = torch.randn(200, 5, generator=generator, dtype=torch.float64)
    y = (torch.arange(200) < 40).long()
    log = spectra(1e-9 * x, y)
    unit = x.square().mean()
    for name, label in (("negative", 0), ("positive", 1)):
        expected = torch.linalg.eigvalsh(torch.cov(x[y == label].T, correction=0) / unit).flip(0)
        assert [log[f"spectra.{name}.{place}"] for place in range(5)] == pytest.approx(expected.tolist())
    assert not any(math.isnan(value) for value in log.values())


def test_a_probe_acts_every_given_number_of_steps_on_the_sent_gradients():
    from flower_vfl.strategies import VerticalStrategy
    from studies.shapes.probe import Shuffled, Spectra

    base = VerticalStrategy(torch.nn.Linear(4, 1), torch.tensor([0, 1]))
    probe = Shuffled(Spectra(base, every=2), every=3)
    assert [one.params for one in probe.chain()] == [{"every": 3}, {"every": 2}]
    g = torch.randn(20, 4, generator=torch.Generator().manual_seed(0))
    for step in range(7):
        sent, log = probe.protect(g, torch.arange(20) % 2)
        assert ("spectra.positive.0" in log) == (step % 2 == 0)
        assert torch.equal(sent, g) == (step % 3 != 0)
        assert torch.equal(sent.sort(dim=0).values, g.sort(dim=0).values)
    assert Spectra(base, every=1).protect(g, torch.zeros(20))[1] == {}
