"""Groups of runs by their settings."""

from pathlib import Path

import pytest

from flower_vfl.reports.run import Run
from flower_vfl.reports.settings import differences, families, measured_at, settings_of
from flower_vfl.tracking import SCHEMA


def run(*defenses, seed=0, epochs=1, leak=0.6, auc=0.9, name="run", layers=("cut",), attacks=("norm",)):
    leakage = [
        {"attack": attack, "layer": layer, "party": "a", "metric": "auc", "defended": bool(defenses), "q95": leak}
        for layer in layers
        for attack in attacks
    ]
    result = {"defenses": list(defenses), "leakage": leakage, "utility": {"last": {"test_auc": auc}}}
    config = f"seed = {seed}\nschedule_seed = {seed}\n[training]\nepochs = {epochs}\n"
    return Run(Path(name), config, result, SCHEMA.empty_table())


def marvell(s, scope="joint"):
    return {"name": "marvell", "params": {"s": s, "scope": scope}}


def test_runs_that_differ_in_their_seed_only_are_one_setting():
    settings = settings_of([run(marvell(4.0), seed=seed) for seed in range(3)])
    assert [(setting.title, len(setting.runs)) for setting in settings] == [("marvell s = 4", 3)]


def test_a_family_is_ordered_by_its_strength_as_numbers():
    settings = settings_of([run(marvell(s)) for s in (10.0, 0.25, 2)] + [run()])
    assert [setting.title for setting in settings] == [
        "marvell s = 0.25",
        "marvell s = 2",
        "marvell s = 10",
        "no defense",
    ]
    assert {family: len(members) for family, members in families(settings).items()} == {"marvell s": 3, "no defense": 1}


def test_nested_defenses_other_parameters_and_scopes_are_families_of_their_own():
    flip = {"name": "label_dp", "params": {"flip": 0.02}}
    target = {"name": "marvell", "params": {"sum_kl": 0.1, "scope": "joint"}}
    settings = settings_of([run(marvell(1.0), flip), run(target), run(marvell(1.0, "per-party"))])
    names = [setting.strength.family for setting in settings]
    assert names == ["marvell s + label_dp flip", "marvell sum_kl", "marvell per-party s"]


def test_a_switch_is_named_where_it_is_on():
    terms = [{"name": "dcor", "params": {"alpha": 1.0, "form": "log", "normalise": on}} for on in (True, False)]
    assert [s.strength.family for s in settings_of([run(term) for term in terms])] == [
        "dcor log normalise alpha",
        "dcor log alpha",
    ]


def full(s, *, spread=0.1, rho=0.0):
    return {"name": "marvell_full", "params": {"s": s, "spread": spread, "rho": rho, "scope": "joint"}}


@pytest.mark.parametrize(
    ("chains", "family", "names", "titles"),
    [
        ([[full(4.0)]], "marvell_full s", ["4"], ["marvell_full s = 4"]),
        ([[full(1.0)], [full(4.0)]], "marvell_full s", ["1", "4"], ["marvell_full s = 1", "marvell_full s = 4"]),
        (
            [[full(4.0)], [full(4.0, rho=0.5)]],
            "marvell_full s = 4, rho",
            ["rho = 0", "rho = 0.5"],
            ["marvell_full s = 4, rho = 0", "marvell_full s = 4, rho = 0.5"],
        ),
        (
            [[full(1.0, spread=0.2)], [full(4.0, spread=0.3)]],
            "marvell_full s, spread",
            ["s = 1, spread = 0.2", "s = 4, spread = 0.3"],
            ["marvell_full s = 1, spread = 0.2", "marvell_full s = 4, spread = 0.3"],
        ),
        ([[full(4.0, spread=0.2)]], "marvell_full s, spread = 0.2", ["4"], ["marvell_full s = 4, spread = 0.2"]),
        (
            [[marvell(1.0), {"name": "label_dp", "params": {"flip": flip}}] for flip in (0.1, 0.2)],
            "marvell s = 1 + label_dp flip",
            ["0.1", "0.2"],
            ["marvell s = 1 + label_dp flip = 0.1", "marvell s = 1 + label_dp flip = 0.2"],
        ),
        (
            [[marvell(1.0), {"name": "label_dp", "params": {"flip": 0.1}}]],
            "marvell s + label_dp flip",
            ["s = 1, flip = 0.1"],
            ["marvell s = 1 + label_dp flip = 0.1"],
        ),
        ([[{"name": "max_norm", "params": {"rho": 0.0, "scope": "joint"}}]], "max_norm", [""], ["max_norm"]),
        ([[]], "no defense", [""], ["no defense"]),
    ],
)
def test_the_name_of_a_point_has_only_what_differs_in_its_figure(chains, family, names, titles):
    settings = settings_of([run(*chain) for chain in chains])
    assert {setting.strength.family for setting in settings} == {family}
    assert [setting.strength.name for setting in settings] == names
    assert [setting.title for setting in settings] == titles


def test_a_point_is_the_mean_over_seeds_with_the_lowest_and_the_highest():
    (setting,) = settings_of(
        [run(marvell(1.0), seed=i, leak=leak, auc=auc) for i, (leak, auc) in enumerate([(0.6, 0.9), (0.8, 0.7)])]
    )
    point = setting.point("norm", "cut", "test_auc")
    assert (point.leak, point.utility) == (pytest.approx(0.7), pytest.approx(0.8))
    assert (point.leaks, point.utilities, point.name) == ((0.6, 0.8), (0.7, 0.9), "1")
    assert setting.point("cosine", "cut", "test_auc") is None
    assert setting.point("norm", "cut", "test_loss") is None


def test_what_else_differs_is_named_and_keeps_runs_apart():
    runs = [run(name="short"), run(epochs=5, seed=1, name="long")]
    assert differences(runs) == ["training.epochs"]
    assert list(families(settings_of(runs))) == ["no defense · short", "no defense · long"]
    assert differences([run(seed=0), run(marvell(1.0), seed=1)]) == []


def test_attacks_keep_their_order_and_the_cut_comes_first():
    runs = [
        run(layers=("first", "cut"), attacks=("norm", "cosine")),
        run(layers=("cut", "layers.2"), attacks=("hint",)),
    ]
    assert measured_at(runs) == [
        *(("norm", "cut"), ("norm", "first")),
        *(("cosine", "cut"), ("cosine", "first")),
        *(("hint", "cut"), ("hint", "layers.2")),
    ]
