"""The numbers of the study on longer trainings, studies/longer/study.py, on known results."""

import pytest

pytestmark = pytest.mark.usefixtures("beside_the_studies")


def setting(leaks, auc=(0.93, 0.92, 0.91), seeds=(0, 1, 2)):
    """Return a setting in which attacks have these AUCs after each epoch, for each seed; differences have 0.5."""
    of_all = [list(leaks)] * len(seeds)
    differences = [[0.5] * (len(leaks) - 1)] * len(seeds)
    leak = {f"{name} cut": of_all for name in ("remembered_direction", "norm", "residual")}
    return {"seeds": list(seeds), "test_auc": list(auc), "leak": leak | {"remembered_difference cut": differences}}


def study(settings):
    return {"settings": settings}


def growing(by):
    return [0.55 + by * epoch for epoch in range(30)]


def test_the_leak_after_an_epoch_is_aligned_where_differences_begin_with_the_second():
    from studies.longer import study as longer

    given = study({"full-rho-0.25": setting(growing(0.01))})
    assert longer.read(given, "full-rho-0.25", 1) == pytest.approx([0.55] * 3)
    assert longer.read(given, "full-rho-0.25", 30) == pytest.approx([0.84] * 3)


def test_an_auc_below_half_counts_as_its_reverse():
    from studies.longer import study as longer

    given = study({"full-rho-0.25": setting([0.3] * 30)})
    assert longer.read(given, "full-rho-0.25", 10) == pytest.approx([0.7] * 3)


def claims(given):
    from studies.longer import study as longer

    return {one["claim"]: one["holds"] for one in longer.verdicts(given)}


def test_the_claim_holds_where_the_setting_has_the_lower_leak_after_the_last_epoch():
    given = study({"s16-full-rho-0": setting(growing(0.01)), "full-rho-0.25": setting(growing(0.001))})
    claim = "after 30 epochs, the strongest attack has a lower leak AUC behind full-rho-0.25 than behind s16-full-rho-0"
    assert claims(given) == {claim: True}


def test_the_claim_fails_where_the_other_setting_has_the_lower_leak():
    given = study({"s16-full-rho-0": setting(growing(0.001)), "full-rho-0.25": setting(growing(0.01))})
    assert list(claims(given).values()) == [False]
    assert "| s16-full-rho-0 | full-rho-0.25 | 3 | -0.081 ± 0.000 | -0.261 ± 0.000 | +0.0000 ± 0.0000 |" in pairs(given)


def pairs(given):
    from studies.longer import study as longer

    return longer.pairs_table(given)


def test_seeds_are_compared_with_the_same_seed_of_the_other_setting():
    one = setting(growing(0.01), auc=(0.9, 0.8), seeds=(0, 1))
    other = setting(growing(0.01), auc=(0.8, 0.9), seeds=(1, 0))
    found = pairs(study({"s16-full-rho-0": one, "full-rho-0.25": other}))
    assert "| 2 | +0.000 ± 0.000 | +0.000 ± 0.000 | +0.0000 ± 0.0000 |" in found


def test_quick_runs_of_two_epochs_have_a_table_of_their_epochs():
    from studies.longer import study as longer

    found = longer.read_table(study({"none": setting([0.6, 0.7])}))
    assert found.splitlines()[0] == "| setting | seeds | test AUC | leak AUC, epoch 1 | strongest attack |"
    assert found.splitlines()[2].endswith("| remembered_direction |")
