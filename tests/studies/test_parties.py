"""The study on several parties, studies/parties/study.py: columns, the oracle of colluding parties, the page."""

import json

import numpy as np
import pytest
import torch
from scipy import stats

from flower_vfl.apps import factories
from flower_vfl.attacks.gradient import inner_product
from flower_vfl.data import Labels, MemoryData, array_table

pytestmark = pytest.mark.usefixtures("beside_the_studies")


@pytest.mark.parametrize("layout", ["2-equal", "4-unequal", "8-equal", "8-unequal"])
def test_every_column_belongs_to_one_party_in_the_shares_of_the_layout(layout):
    from studies.parties import study as parties

    columns = parties.dealt(layout, 784)
    count, split = layout.split("-")
    assert sorted(np.concatenate(columns)) == list(range(784))
    first = 0.8 if split == "unequal" else 1 / int(count)
    others = (1 - first) / (int(count) - 1)
    assert [len(one) / 784 for one in columns] == pytest.approx([first, *[others] * (int(count) - 1)], abs=1 / 784)


def test_parties_have_the_same_weight_whatever_the_scale_of_a_party():
    from studies.parties import attack as parties_attack

    generator = torch.Generator().manual_seed(0)
    g, reference = torch.randn(50, 12, generator=generator), torch.randn(12, generator=generator)
    alone = parties_attack.score(g, reference, width=12)
    assert torch.allclose(alone * reference.double().square().sum(), inner_product.score(g, reference))
    scale = torch.tensor([1e6] * 4 + [1.0] * 4 + [1e-6] * 4)
    together = parties_attack.score(g, reference, width=4)
    assert torch.allclose(parties_attack.score(g * scale, reference * scale, width=4), together)
    reference[4:8] = 0.0
    assert parties_attack.score(g, reference, width=4).isfinite().all()


def test_a_divergence_is_converted_to_the_auc_of_the_best_rule():
    from studies.parties import study as parties

    assert parties.expected(0.25) == pytest.approx(stats.norm.cdf(0.125**0.5))
    assert parties.expected(0.0) == 0.5


def entry(attack, party, mean, **more):
    return {"attack": attack, "party": party, "mean": mean, "q95": 0.9, "defended": True, **more}


def test_the_numbers_of_a_run_are_taken_from_its_result():
    from studies.parties import study as parties

    aucs = {"a": 0.6, "b": 0.3, "a+b": 0.8}
    leakage = [entry(name, who, auc) for name in parties.SHOWN[:3] for who, auc in aucs.items()]
    leakage += [entry("equal_weight", "a", 1.0, defended=False)]
    leakage += [entry("remembered_direction", w, 0.0, phase="remembered", values=[0.9, v]) for w, v in aucs.items()]
    left = {"a": 0.25, "b": 0.2, "a+b": 0.45}
    log = {f"marvell.sum_kl_after.{who}": value for who, value in left.items()}
    log |= {"marvell.noise_power.a": 9.0, "marvell.noise_power.b": 1.0, "marvell.noise_power.a+b": 10.0}
    result = {
        "utility": {"last": {"test_auc": 0.9}},
        "defenses": [{"name": "marvell"}],
        "leakage": leakage,
        "log": log,
    }
    found = dict(parties.numbers(result))
    assert (found["equal_weight alone"], found["equal_weight together"]) == (0.7, 0.8)  # of b, turned around
    assert found["remembered_direction alone"] == 0.7
    assert (found["sum_kl alone"], found["sum_kl together"]) == (0.25, 0.45)
    assert found["best split"] == pytest.approx((3 + 1) ** 2 / (2 * 10))
    assert found["first share"] == pytest.approx(0.9)
    assert found["oracle together"] == 0.8


def summary(**leaks):
    return {"settings": {name.replace("_", "-"): {"seeds": [0, 1], "x": values} for name, values in leaks.items()}}


def test_a_claim_holds_where_all_layouts_agree_beyond_their_intervals(monkeypatch):
    from studies.parties import study as parties

    monkeypatch.setattr(parties, "CLAIMS", [("more", ("one-a", "x"), ("one-b", "x"), (0.0, np.inf))])

    def holds(*studies):
        return parties.verdicts({str(number): one for number, one in enumerate(studies)})[0]["holds"]

    more, less = summary(one_a=[0.9, 0.91], one_b=[0.5, 0.51]), summary(one_a=[0.5, 0.51], one_b=[0.9, 0.91])
    unclear = summary(one_a=[0.9, 0.5], one_b=[0.5, 0.51])
    assert [holds(more), holds(more, unclear), holds(more, less), holds(summary(one_a=[1.0]))] == [
        True,
        None,
        False,
        None,
    ]


@pytest.mark.slow
def test_a_quick_study_makes_a_page(tmp_path, monkeypatch):
    from studies import common as studies
    from studies.parties import study as parties

    rng = np.random.default_rng(0)
    images = rng.normal(size=(700, 1, 5, 4)).astype(np.float32)
    labels = (images.sum(axis=(1, 2, 3)) > 3).astype(np.int64)
    target = Labels(labels[:600], labels[600:], 2)
    data = MemoryData("toy", {"image": array_table("image", images[:600], images[600:])}, "label", target)
    monkeypatch.setattr(factories, "open_data", lambda config: data)
    for setting in parties.QUICK:
        parties.run_one(studies.job_of(tmp_path / "runs", "4-unequal", setting, 0, quick=True))
    page = tmp_path / "parties.md"
    page.write_text("<!-- begin leaks -->\n<!-- end leaks -->\n<!-- begin promises -->\n<!-- end promises -->\n")
    parties.make_page(tmp_path / "runs", tmp_path)
    found = json.loads((tmp_path / "parties.json").read_text())["4-unequal"]["settings"]
    assert list(found) == list(parties.QUICK)
    assert found["marvell-apart"]["sum_kl together"][0] > 3 * found["marvell-apart"]["sum_kl alone"][0]
    assert "| 4-unequal | marvell-apart |" in page.read_text()
    assert (tmp_path / "parties.svg").stat().st_size > 10_000
