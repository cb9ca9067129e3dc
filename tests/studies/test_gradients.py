"""The numbers of the study on gradients, studies/gradients/study.py, on known results."""

import json

import pytest
import torch

from tests.studies.conftest import PAGES

pytestmark = pytest.mark.usefixtures("beside_the_studies")


def summary(**settings):
    """Return a study with (test AUC, leak) of each seed for each setting; all attacks leak the same at both layers."""
    return {
        "settings": {
            name.replace("_of_", "-"): {
                "seeds": list(range(len(values))),
                "test_auc": [auc for auc, _ in values],
                "test_ace": [0.01] * len(values),
                "leak": {
                    f"{attack} {layer}": {"q95": [leak for _, leak in values], "q95_null": [0.55] * len(values)}
                    for attack in ("norm", "cosine", "hint")
                    for layer in ("cut", "first")
                },
            }
            for name, values in settings.items()
        },
        "probe": {},
    }


def verdict(given, start):
    from studies.gradients import claims as gradients_claims

    return next(found for found in gradients_claims.verdicts(given) if found["claim"].startswith(start))


def test_marvell_lies_below_iso_where_it_leaks_less_at_equal_utility():
    better = {"marvell_of_1": [(0.90, 0.7), (0.91, 0.7)], "marvell_of_4": [(0.85, 0.6), (0.85, 0.6)]}
    worse = {"iso_of_1": [(0.90, 0.9), (0.91, 0.9)], "iso_of_5": [(0.85, 0.8), (0.85, 0.8)]}
    found = verdict(summary(none=[(0.93, 1.0)] * 2, **better, **worse), "Marvell leaks less")
    assert found["holds"]
    assert "100% of the curve" in found["numbers"]
    swapped = {f"{'iso' if name[0] == 'm' else 'marvell'}_of_{name[-1]}": v for name, v in (better | worse).items()}
    assert not verdict(summary(none=[(0.93, 1.0)] * 2, **swapped), "Marvell leaks less")["holds"]


def test_a_share_whose_interval_spans_the_threshold_decides_nothing():
    # Marvell lies below iso with the first seed, above it with the second, and a little below on average.
    marvell = {"marvell_of_1": [(0.90, 0.6), (0.90, 0.8)], "marvell_of_4": [(0.85, 0.5), (0.85, 0.7)]}
    iso = {"iso_of_1": [(0.90, 0.75), (0.90, 0.75)], "iso_of_5": [(0.85, 0.65), (0.85, 0.65)]}
    found = verdict(summary(none=[(0.93, 1.0)] * 2, **marvell, **iso), "Marvell leaks less")
    assert found["holds"] is None
    assert "0% to 100%" in found["numbers"]


def test_a_rise_of_marvells_leak_counts_when_its_interval_lies_above_zero():
    none = [(0.93, 1.0)] * 3
    noisy = summary(none=none, marvell_of_1=[(0.9, 0.6)] * 3, marvell_of_4=[(0.9, 0.59), (0.9, 0.62), (0.9, 0.6)])
    rising = summary(none=none, marvell_of_1=[(0.9, 0.6)] * 3, marvell_of_4=[(0.9, 0.64), (0.9, 0.65), (0.9, 0.66)])
    assert verdict(noisy, "Behind Marvell")["holds"]
    found = verdict(rising, "Behind Marvell")
    assert not found["holds"]
    assert "4 of 8 steps" in found["numbers"]


def test_the_probe_finds_slopes_and_errors_in_gradients_of_a_known_network():
    from studies.gradients import probe as gradients_probe

    torch.manual_seed(0)
    z = torch.randn(12, 5, requires_grad=True)
    labels = torch.tensor([0, 1, 1, 0] * 3)
    slopes = torch.rand(12, 5) + 0.1
    logits = (z * slopes).sum(dim=1)
    torch.nn.functional.binary_cross_entropy_with_logits(logits, labels.float()).backward()
    log = gradients_probe.observe(z.grad, logits.detach(), labels)
    error = (torch.sigmoid(logits.detach()) - labels).abs()
    assert log["probe.error.positive"] == pytest.approx(float(error[labels == 1].mean()), rel=1e-5)
    assert log["probe.slope.negative"] == pytest.approx(float(slopes[labels == 0].norm(dim=1).median()), rel=1e-4)
    assert log["probe.slope_share.across"] == log["probe.gradient_share.positive"] == 1.0
    assert log["probe.gradient_share.across"] == 0.0
    first, second = slopes[labels == 1][:2]
    two = torch.nn.functional.cosine_similarity(first, second, dim=0)
    only = torch.cat([torch.nonzero(labels == 1)[:2, 0], torch.nonzero(labels == 0)[:2, 0]])
    some = gradients_probe.observe(z.grad[only], logits.detach()[only], labels[only])
    assert some["probe.slope_cosine.positive"] == pytest.approx(float(two), rel=1e-4)


def test_the_numbers_of_the_page_are_those_of_the_committed_runs():
    from studies import common as studies
    from studies.gradients import claims as gradients_claims
    from studies.gradients import numbers as gradients_numbers

    page = (PAGES / "gradients.md").read_text(encoding="utf8")
    for study, found in json.loads((PAGES / "gradients.json").read_text(encoding="utf8")).items():
        assert gradients_claims.verdicts(found) == found["claims"]
        for kind, block in (
            ("leaks", gradients_numbers.leak_table(found)),
            ("utility", gradients_numbers.utility_table(found)),
            ("claims", studies.claim_table(found["claims"])),
        ):
            assert f"<!-- begin {study} {kind} -->\n{block}\n<!-- end {study} {kind} -->" in page
