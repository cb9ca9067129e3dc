"""The leaks of gradients that a party really received, and the side information of attacks."""

import pytest

from flower_vfl.attacks import ATTACKS
from flower_vfl.auditing import entries
from flower_vfl.reports import leaks


def entry(attack="norm", q95=0.6, **facts):
    where = {"layer": "cut", "party": "a", "source": "attacker", "metric": "auc", "defended": False}
    return {"attack": attack, "label": attack, "q95": q95, **where, **facts}


def result(*leakage, defenses=(), **more):
    return {"leakage": list(leakage), "defenses": list(defenses), **more}


def test_the_known_oracles_are_those_that_need_a_clean_gradient():
    known = {name for name, attack in ATTACKS.items() if "reference" in attack.needs}
    assert known == entries.ORACLES - {"conditional_oracle"}  # which a run measures, and no configuration names


def test_a_result_names_the_side_information_of_its_attacks_also_of_a_users_own():
    attacks = [
        {"label": "mine(k=2)", "needs": ["hints", "reference"], "hints": 2},
        {"label": "cosine", "needs": [], "hints": 0},
    ]
    known = result(attacks=attacks)
    assert leaks.side_information(known, {"attack": "mine", "label": "mine(k=2)"}) == (True, 3)
    assert leaks.side_information(known, {"attack": "cosine", "label": "cosine"}) == (False, 0)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"attack": "norm"}, (False, 0)),
        ({"attack": "cosine"}, (True, 1)),
        ({"attack": "inner_product"}, (True, 1)),
        ({"attack": "hint", "params": {"k": 3}, "label": "hint(k=3)"}, (False, 3)),
        ({"attack": "hint", "params": {"k": "many"}}, (False, 0)),
        ({}, (False, 0)),
    ],
)
def test_where_a_result_has_no_side_information_it_follows_from_the_name(given, expected):
    assert leaks.side_information(result(), given) == expected


def test_what_would_have_been_sent_undefended_was_not_received():
    sent, unsent = entry(defended=True), entry(q95=1.0, defended=False)
    assert entries.received(result(sent, unsent, defenses=[{"name": "iso"}])) == [sent]
    assert entries.received(result(unsent)) == [unsent]
    assert entries.received(result(entry(metric="accuracy"))) == []


def test_the_worst_at_a_layer_is_found_by_attack_and_by_kind():
    norm, cosine, first = entry(q95=0.6), entry("cosine", 0.9), entry(q95=0.7, layer="first")
    whole = result(norm, cosine, first, entry(q95=0.5, party="b"), entry(q95=None))
    assert leaks.worst(whole, "cut") is cosine
    assert leaks.worst(whole, "cut", attack="norm") is norm
    assert leaks.worst(whole, "cut", oracle=False) is norm
    assert leaks.worst(whole, "first") is first
    assert leaks.worst(whole, "first", oracle=True) is None
    assert leaks.worst(whole, "second") is None


def test_the_monitor_counts_only_where_no_attacker_measured():
    monitor, attacker = entry(q95=0.9, source="monitor"), entry(q95=0.6)
    assert leaks.worst(result(monitor, attacker), "cut") is attacker
    assert leaks.worst(result(monitor), "cut") is monitor


@pytest.mark.parametrize("party", ["b", "a+b"])
def test_a_party_without_an_attacker_and_those_that_collude_count_by_the_monitor(party):
    attacker, repeated = entry(q95=0.6), entry(q95=0.65, source="monitor")
    monitored = entry(q95=0.9, party=party, source="monitor")
    assert leaks.worst(result(attacker, repeated, monitored), "cut") is monitored
    assert leaks.worst(result(attacker, entry("cosine", 0.7, source="monitor")), "cut", attack="cosine")["q95"] == 0.7
    assert entries.unrepeated([attacker, repeated, monitored]) == [attacker, monitored]


def test_the_monitor_counts_where_an_attacker_could_not_measure():
    monitor = entry(q95=0.9, source="monitor")
    assert leaks.worst(result(entry(q95=None), monitor), "cut") is monitor


def test_what_is_read_from_the_trained_model_is_no_leak_of_a_step():
    trained = entry("spectral", q95=0.9, phase="inference")
    known = result(entry("spectral", q95=0.6, phase="train"), trained, entry("clustering", metric="accuracy"))
    assert [found["q95"] for found in entries.received(known)] == [0.6]


def test_a_result_names_the_attacks_that_use_embeddings():
    known = result(attacks=[{"label": "spectral", "sees": "embeddings"}, {"label": "norm", "sees": "gradients"}])
    assert [entries.on_embeddings(known, label) for label in ("spectral", "norm", "other")] == [True, False, False]
    assert not entries.on_embeddings(result(), "spectral")


def test_an_attack_that_is_nearly_always_wrong_leaks_as_much_as_turned_around():
    wrong = entry("cosine", 0.3, q95_null=0.55, mean=0.1, q95_turned=0.97)
    right = entry("norm", 0.8, q95_null=0.55, mean=0.7, q95_turned=0.4)
    assert leaks.worst(result(right, wrong), "cut") == wrong
    assert [entries.reached(one) for one in (wrong, right)] == [0.97, 0.8]
    by_chance = {**right, "q95": 0.56, "mean": 0.49, "q95_turned": 0.57}
    assert entries.reached(by_chance) == 0.56  # not clearly wrong
    assert entries.reached({key: value for key, value in wrong.items() if key != "q95_turned"}) == 0.9
