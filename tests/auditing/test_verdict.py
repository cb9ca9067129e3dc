"""The verdict of a run: leaks and false alarms, and the attacks that must have run before there is no leak."""

import math

import numpy as np
import pytest
from scipy.stats import binom, norm, rankdata

from flower_vfl.attacks import make_attack
from flower_vfl.auditing.entries import reached
from flower_vfl.auditing.epsilon import audit_epsilon
from flower_vfl.auditing.summaries import StepLeaks
from flower_vfl.auditing.verdict import PRACTICAL, needed, status_of, verdict_of
from flower_vfl.metrics import LeakSummary, coin_bound, quantile_p_value
from tests.auditing.test_epsilon import coins
from tests.cases import parametrize

DEFENDED = [{"name": "marvell", "params": {"s": 4.0}}]


def step(attack="norm", q95=0.55, party="a", **facts):
    """Return an entry of an attack on single steps, by default with the numbers of chance."""
    usual = {"metric": "auc", "phase": "train", "source": "monitor", "defended": True, "layer": "cut"}
    numbers = {"q95": q95, "q95_null": 0.55, "q95_turned": 0.55, "mean": 0.5, "steps": 200, "one_class_steps": 0}
    return {"attack": attack, "label": attack, "party": party, **usual, **numbers, **facts}


def remembered(attack="remembered_direction", values=(0.5, 0.501), party="a", **facts):
    """Return an entry of a longitudinal attack on 10,000 rows, 830 positive: a sigma of 0.0105 by chance."""
    usual = {"phase": "remembered", "values": list(values), "epochs": [1, 2], "q95_null": 0.5 + 1.645 * 0.0105}
    return step(attack, values[-1], party, **usual, **facts)


def informed(mean=0.503, p_value=0.4, sees=("gradients",), party="a", **facts):
    """Return an entry of a fitted reader, of gradients alone or with embeddings or columns."""
    numbers = {"q95": None, "q95_null": None, "max": None, "steps": None, "mean": mean, "p_value": p_value}
    gain = {"baseline": 0.9, "advantage": 0.001, "advantage_interval95": [-0.002, 0.004], "advantage_p_value": 0.3}
    more = gain if len(sees) > 1 else {}
    return step(
        **{
            "attack": "informed",
            "label": "informed",
            "phase": "audit",
            "sees": list(sees),
            "party": party,
            **numbers,
            **more,
            **facts,
        }
    )


def complete(*changed, party="a"):
    """Return all entries that a defended run needs, with the numbers of chance except for the given ones."""
    usual = [step(name, party=party) for name in PRACTICAL[:-1]] + [remembered(party=party)]
    usual += [informed(party=party), informed(0.901, 1e-9, ("gradients", "embeddings"), party)]
    key = lambda entry: (entry["attack"], tuple(entry.get("sees", ())))  # noqa: E731
    return [*(e for e in usual if key(e) not in {key(other) for other in changed}), *changed]


def verdict(*leakage, defenses=DEFENDED, parties=("a",), **more):
    return verdict_of(
        {"leakage": list(leakage), "defenses": list(defenses), "parties": {"features": list(parties)}, **more}
    )


def test_all_pages_show_of_turned_scores_what_the_verdict_shows():
    """The mean is not far from guessing, but the larger side is not that of random scores."""
    entry = step("shell", 0.754, q95_turned=0.88, q95_null=0.682, mean=0.353, q95_p_value=1e-6)
    found = verdict(*complete(entry))["parties"][0]["leak"]["practical"]
    assert found["reached"] == reached(entry) == 0.88


def test_nothing_that_leaks_and_everything_that_ran_is_no_leak_found():
    found = verdict(*complete())
    assert found["status"] == "no leak found"
    assert found["parties"][0]["not_run"] == []
    assert found["parties"][0]["leak"]["practical"]["p_value"] == 1.0


@pytest.mark.parametrize(
    ("entry", "line"),
    [
        (step("residual", 0.99), "leak"),
        (step("shell", 0.2, q95_turned=0.95, mean=0.12), "leak"),  # nearly always wrong: turned around
        (remembered(values=(0.5, 0.56)), "leak"),
        (remembered(values=(0.43, 0.5)), "leak"),
        (step("mine", 0.7), "leak"),  # an attack that no verdict needs counts too
        (informed(0.6, 1e-9), "leak"),
        (informed(0.93, 1e-9, ("gradients", "embeddings"), advantage=0.03, advantage_p_value=1e-9), "gain"),
        (informed(0.8, 1e-9, ("gradients", "columns"), advantage_p_value=1e-9, phase="joint", attack="fit"), "gain"),
    ],
)
def test_each_kind_of_leak_raises_the_alarm_on_its_own_line(entry, line):
    party = verdict(*complete(entry))["parties"][0]
    assert party["status"] == "leaks"
    assert [name for name in ("leak", "gain") if party[name]["leaks"]] == [line]


@pytest.mark.parametrize(
    "entry",
    [
        step("cosine", 1.0),  # oracles
        step("conditional_oracle", 0.93, needs=["reference"]),
        step("norm", 1.0, layer="first"),  # mixed with the party's own columns
        step("norm", 1.0, defended=False),  # not sent
        step("spectral", 1.0, sees="embeddings"),
        step("gradient_clustering", 1.0, metric="accuracy"),
        step("norm", 1.0, phase="inference"),
        informed(0.9, 1e-9, ("gradients", "columns"), advantage_p_value=1e-9, phase="joint", rows_of="test"),
    ],
)
def test_what_no_party_could_do_with_what_was_sent_raises_no_alarm(entry):
    assert verdict(*complete(), entry)["status"] == "no leak found"


def test_an_oracle_of_a_users_own_is_known_by_what_it_needs():
    mine = [{"attack": "mine", "label": "mine", "needs": ["reference"], "hints": 0, "sees": "gradients"}]
    assert verdict(*complete(), step("mine", 1.0), attacks=mine)["status"] == "no leak found"


@pytest.mark.parametrize("name", PRACTICAL)
def test_behind_a_defense_each_practical_attack_must_have_run(name):
    found = verdict(*(entry for entry in complete() if entry["attack"] != name))
    assert found["status"] == "not tested"
    assert found["parties"][0]["not_run"] == [f"{name}: did not run"]


def test_what_is_known_to_break_a_defense_must_have_run_and_a_found_leak_stays_one():
    known = [{"name": "mine", "read_by": ["crack"]}]
    assert verdict(*complete(), defenses=known)["parties"][0]["not_run"] == ["crack: did not run"]
    assert verdict(*complete(step("norm", 0.99)), defenses=known)["status"] == "leaks"
    assert verdict(*complete(), step("crack"), defenses=known)["status"] == "no leak found"


def test_classes_that_attack_positives_leaves_out_are_not_tested():
    reader = informed(candidates=[{"reader": "linear", "positive_class": one} for one in (0, 2)])
    found = verdict(*complete(reader), dataset={"classes": 4})
    assert found["status"] == "not tested"
    (why,) = found["parties"][0]["not_run"]
    assert why == "informed reader of the gradients: attack.positives leaves out class 1, class 3"
    assert verdict(*complete(reader), dataset={"classes": 2})["status"] == "no leak found"


def test_missing_numbers_come_with_their_reasons():
    silent = step("shell", None, mean=None, q95_turned=None, one_class_steps=200)
    wide = remembered(values=(0.5,), unavailable="it is 9,000 numbers wide")
    few = informed(None, None, unavailable="3 rows of class 1, 50 are needed.")
    found = verdict(*complete(silent, {**wide, "q95": None, "values": []}, few))
    assert found["status"] == "not tested"
    assert found["parties"][0]["not_run"] == [
        "shell: none of its 200 steps had both classes and what it needs",
        "remembered_direction: it is 9,000 numbers wide",
        "informed reader of the gradients: 3 rows of class 1, 50 are needed",
    ]


def test_few_steps_test_nothing_but_what_they_show_beyond_chance():
    few = [{**entry, "steps": 6} if entry["phase"] == "train" else entry for entry in complete()]
    assert verdict(*few)["parties"][0]["not_run"][0] == "norm: 6 steps were scored, a 95 % quantile needs 20"
    few[0] = {**few[0], "q95": 0.99, "mean": 0.97}
    assert verdict(*few)["status"] == "leaks"


def test_a_result_of_an_earlier_version_has_a_verdict_too():
    plain = {key: value for key, value in step("norm", 0.97, defended=False).items() if key != "q95_turned"}
    old = {"leakage": [plain], "defenses": []}
    assert verdict_of(old)["status"] == "leaks"
    old = {"leakage": [{**plain, "q95": 0.55}], "defenses": [], "weights": {"label": "", "a": "", "b": ""}}
    assert [party["status"] for party in verdict_of(old)["parties"]] == ["not tested", "not tested"]
    assert verdict_of({"leakage": [], "defenses": []})["status"] == "not tested"


def test_parties_that_collude_have_a_line_of_their_own_after_the_others():
    together = complete(step("residual", 0.9, "a+b"), party="a+b")
    found = verdict(*complete(party="b"), *together, *complete(party="a"), parties=("b", "a"))
    assert [(one["party"], one["status"]) for one in found["parties"]] == [
        ("b", "no leak found"),
        ("a", "no leak found"),
        ("a+b", "leaks"),
    ]
    assert found["status"] == "leaks"


def test_a_group_leaks_what_a_member_reads_alone_without_a_further_test():
    alone = complete(step("residual", 0.99), informed(0.9, 1e-9))
    without, found = verdict(*alone), verdict(*alone, *complete(party="a+b"), *complete(party="b"), parties=("a", "b"))
    member, _, group = found["parties"]
    assert (member["leak"]["value"], group["leak"]["value"], group["status"]) == (0.99, 0.99, "leaks")
    assert {group["leak"][kind]["member"] for kind in ("practical", "informed")} == {"a"}
    assert "member" not in member["leak"]["practical"]
    assert found["tests"] == 3 * without["tests"]


def test_a_gain_of_a_member_is_none_of_a_group_that_has_more_embeddings():
    gain = informed(0.93, 1e-9, ("gradients", "embeddings"), advantage=0.03, advantage_p_value=1e-9)
    group = verdict(*complete(gain), *complete(party="a+b"))["parties"][-1]
    assert (group["party"], group["status"]) == ("a+b", "no leak found")


def test_an_attackers_own_measurement_counts_before_the_monitors():
    own = step("norm", 0.5, source="attacker")
    assert verdict(*complete(step("norm", 0.99), own))["status"] == "no leak found"


def test_a_class_that_leaks_alone_raises_the_alarm_and_is_named():
    each = [{"class": n, "q95": 0.55, "q95_null": 0.55, "mean": 0.5, "steps": 40, "one_class_steps": 0} for n in "012"]
    each[2] |= {"q95": 0.8, "mean": 0.7}
    found = verdict(*complete(step("norm", 0.56, by_class=each)))["parties"][0]
    assert (found["status"], found["not_run"]) == ("leaks", [])
    assert (found["leak"]["practical"]["class"], found["leak"]["value"]) == ("2", 0.8)


def null_auc(rng, negatives, positives, size, shift=0.0):
    """Return leak AUCs (size,) of normal scores, those of positives moved by `shift` standard deviations."""
    scores = rng.normal(size=(size, negatives + positives))
    scores[:, :positives] += shift
    ranks = rankdata(scores, axis=1)[:, :positives].sum(axis=1)
    return (ranks - positives * (positives + 1) / 2) / (negatives * positives)


def simulated(rng, *, batch, positives, steps, shift=0.0, every=0):
    """Return the entries of a run of two parties; `residual` reads the single steps of party a with a shift.

    The last batch of each epoch of `every` steps has the few rows that are left.
    """
    rows, many = 4000, int(4000 * positives / batch)
    last = steps // every if every else 0
    counts = {(batch - positives, positives): steps - last, **({(22, 2): last} if last else {})}
    entries = []
    for party in ("a", "b"):
        for name in PRACTICAL[:-1]:
            summary = LeakSummary(attack=name, party=party, source="monitor", defended=True)
            moved = shift if (name, party) == ("residual", "a") else 0.0
            for pair, times in counts.items():
                for value in null_auc(rng, *pair, times, moved):
                    summary.add(value, *pair)
            entries.append(summary.result())
        memory = LeakSummary(attack=PRACTICAL[-1], party=party, source="monitor", defended=True, phase="remembered")
        for value in null_auc(rng, rows - many, many, 3):
            memory.add(value, rows - many, many)
        entries.append({**memory.result(), "epochs": [1, 2, 3], "values": list(memory.values)})
        p, gain = rng.uniform(size=2)
        entries.append(informed(norm.isf(p) * 0.01 + 0.5, p, party=party))
        entries.append(informed(0.9, 1e-9, ("gradients", "embeddings"), party, advantage_p_value=gain))
    return entries


@parametrize(("batch", "positives", "steps", "every"), [(128, 12, 60, 0), (128, 2, 40, 0), (256, 22, 66, 22)], quick=1)
def test_of_200_runs_that_carry_nothing_at_most_18_are_called_leaking(batch, positives, steps, every):
    rngs = [np.random.default_rng([seed, batch, positives]) for seed in range(200)]
    entries = (simulated(rng, batch=batch, positives=positives, steps=steps, every=every) for rng in rngs)
    statuses = [verdict(*found, parties=("a", "b"))["status"] for found in entries]
    assert statuses.count("leaks") <= 18
    assert statuses.count("not tested") == 0


@pytest.mark.parametrize(("p_value", "value"), [(1e-6, 0.62), (0.5, 0.55)])
def test_scores_that_leak_turned_around_are_shown_by_the_side_that_raised_the_alarm(p_value, value):
    found = verdict(*complete(step("residual", 0.55, q95_turned=0.62, q95_p_value=p_value)))
    assert found["parties"][0]["leak"]["value"] == value
    assert found["status"] == ("leaks" if p_value < 0.01 else "no leak found")


FEW = {"max_p_value": 1e-9, "steps_read": 3, "steps_read_max": 0.99}


def test_few_steps_that_are_read_are_a_leak_that_is_told_beside_its_value():
    found = verdict(*complete(step("norm", 0.584, q95_p_value=0.2, **FEW)))
    leak = found["parties"][0]["leak"]
    assert (found["status"], leak["value"]) == ("leaks", 0.584)
    assert leak["single_steps"] == {"label": "norm", "steps": 3, "scored": 200, "reached": 0.99, "only": True}
    assert verdict(*complete())["parties"][0]["leak"]["single_steps"] is None


@pytest.mark.parametrize(("q95", "shown"), [(0.7, True), (0.95, False)])
def test_single_steps_are_shown_beside_a_leak_where_they_are_read_far_better(q95, shown):
    found = verdict(*complete(step("norm", q95, q95_p_value=1e-9, **FEW)))["parties"][0]["leak"]["single_steps"]
    assert (found is not None) == shown
    assert not shown or not found["only"]


def test_a_group_leaks_the_single_steps_of_its_member():
    few = complete(step("norm", q95_p_value=1.0, **FEW))
    found = verdict(*few, *complete(party="a+b"), *complete(party="b"), parties=("a", "b"))["parties"][-1]
    assert (found["status"], found["leak"]["single_steps"]["member"]) == ("leaks", "a")


def test_a_leak_in_3_of_116_steps_of_a_run_is_found():
    rng = np.random.default_rng(0)
    entries = simulated(rng, batch=512, positives=42, steps=116)
    leak = LeakSummary(attack="direction", party="a", source="monitor", defended=True)
    for value in [*null_auc(rng, 470, 42, 113), *null_auc(rng, 470, 42, 3, shift=3.3)]:
        leak.add(value, 470, 42)
    others = [one for one in entries if (one["attack"], one["party"]) != ("direction", "a")]
    found = verdict(*others, leak.result(), parties=("a", "b"))
    assert [one["status"] for one in found["parties"]] == ["leaks", "no leak found"]
    single = found["parties"][0]["leak"]["single_steps"]
    assert (single["steps"], single["scored"], single["only"]) == (3, 116, True)
    assert 0.98 < single["reached"] <= 1
    assert found["parties"][0]["leak"]["value"] < 0.6


def test_a_small_leak_of_one_attack_and_party_is_found_among_all_tests():
    rngs = [np.random.default_rng(seed) for seed in range(20)]
    entries = (simulated(rng, batch=256, positives=24, steps=200, shift=0.3) for rng in rngs)
    found = [verdict(*one, parties=("a", "b")) for one in entries]
    statuses = [[party["status"] for party in one["parties"]] for one in found]
    assert statuses.count(["leaks", "no leak found"]) >= 19  # AUC Phi(0.3 / sqrt 2) = 0.584


def grouped(p_value, attack="gradient_clustering", **facts):
    """Return an entry of an attack whose groups match the labels."""
    numbers = {"metric": "accuracy", "q95": 1.0, "q95_null": 0.68, "q95_turned": None, "mean": 1.0}
    return step(attack, **{**numbers, "p_value": p_value, **facts})


def test_groups_that_match_the_labels_are_a_leak_beside_the_auc():
    found = verdict(*complete(), grouped(1e-9))
    assert found["status"] == "leaks"
    (party,) = found["parties"]
    assert party["groups"] == {"label": "gradient_clustering", "accuracy": 1.0, "null": 0.68, "p_value": 1e-9}
    assert (party["leak"]["leaks"], party["leak"]["value"]) == (False, 0.55)
    for entry in (grouped(0.02), grouped(1e-9, layer="first"), grouped(1e-9, defended=False)):
        assert verdict(*complete(), entry)["status"] == "no leak found"


@pytest.mark.parametrize(
    ("entry", "why"),
    [
        (step("other"), "bits: did not run"),
        (grouped(0.5, "bits"), ""),
        (step("bits", phase="inference", metric="accuracy", q95=None, mean=0.5), "bits: it read something other than"),
        (step("bits", sees="embeddings"), "bits: it read something other than the gradients at the cut"),
        (step("bits", layer="first"), "bits: it read something other than the gradients at the cut"),
    ],
)
def test_an_attack_that_is_known_to_break_a_defense_counts_as_run_where_it_is_tested(entry, why):
    defenses = [{"name": "covert", "params": {}, "read_by": ["bits"]}]
    missing = verdict(*complete(), entry, defenses=defenses)["parties"][0]["not_run"]
    assert [reason[: len(why)] for reason in missing] == ([why] if why else [])


def test_what_is_needed_without_a_defense_and_with_several_classes():
    assert needed({"leakage": [], "defenses": []}) == ["norm", "direction"]
    turns = {"leakage": [step("norm", by_class=[{"class": 0, "q95": 0.5}])], "defenses": [{"read_by": ["hint"]}]}
    assert needed(turns) == [*PRACTICAL, "hint"]


def test_each_class_is_compared_with_all_its_rows_which_recur():
    leaks = StepLeaks(make_attack("norm"), "a", "cut", source="monitor", defended=True)
    counts = [(24, 8)] * 60
    for place, pair in enumerate(counts):
        leaks.add(place % 2, 0.75, *pair)
    entry = leaks.result((30, 10, 60))
    both = 2 * quantile_p_value(counts, 0.75, population=(90, 10))
    assert entry["q95_p_value"] == pytest.approx(both)
    first = 2 * quantile_p_value(counts[:30], 0.75, population=(70, 30))
    assert entry["by_class"][0]["q95_p_value"] == pytest.approx(first)
    assert leaks.result()["q95_p_value"] < both  # without the numbers all steps count as independent


def of_seeds(p_values):
    """Return the status of runs, each with one p-value for each of four attacks."""
    names = PRACTICAL[:-1]
    return status_of(
        [
            {
                "leakage": complete(
                    *(step(name, 0.56, q95_p_value=float(p)) for name, p in zip(names, each, strict=True))
                ),
                "defenses": DEFENDED,
                "parties": {"features": ["a"]},
            }
            for each in p_values
        ]
    )


def test_a_leak_that_each_seed_shows_weakly_is_found_by_more_seeds():
    weak = [[0.02, 1.0, 1.0, 1.0]]
    assert of_seeds(weak) == "no leak found"
    assert of_seeds(5 * weak) == "leaks"


def test_the_same_training_again_is_no_other_seed():
    weak = {
        "leakage": complete(step("norm", 0.56, q95_p_value=0.02)),
        "defenses": DEFENDED,
        "parties": {"features": ["a"]},
    }
    others = [{**weak, "weights": {"a": str(number), "label": "0"}} for number in range(5)]
    assert status_of(others) == "leaks"
    assert status_of(5 * others[:1]) == "no leak found"


@pytest.mark.parametrize(("seeds", "p_value"), [(10, 1e-8), (5, 1e-5), (3, 1e-3)])
def test_clean_seeds_do_not_hide_one_that_leaks(seeds, p_value):
    clean = [1.0, 1.0, 1.0, 1.0]
    assert of_seeds([[p_value, 1.0, 1.0, 1.0], *(seeds - 1) * [clean]]) == "leaks"
    assert of_seeds(seeds * [clean]) == "no leak found"


def test_seeds_whose_proof_holds_do_not_hide_one_that_refutes_it():
    assert of_audits([330, *9 * [280]]) == "leaks"
    assert of_audits(10 * [280]) == "proven"


def test_the_number_of_a_leak_is_that_of_a_finding_that_is_no_chance():
    """With few positives in a batch, scores by chance have a larger q95 than a reader of all rows has an AUC."""
    chance = [step(name, 0.953, q95_null=0.953, q95_p_value=1.0) for name in PRACTICAL[:-1]]
    found = verdict(*complete(*chance, informed(0.9, 1e-30)))["parties"][0]["leak"]
    assert (found["leaks"], found["value"]) == (True, 0.9)
    found = verdict(*complete(step("norm", 0.57, q95_p_value=1e-9), informed(0.62, 0.3)))["parties"][0]["leak"]
    assert (found["leaks"], found["value"]) == (True, 0.57)


def test_seeds_judged_together_raise_few_false_alarms():
    """Of 200 settings of three seeds at most 20: more have a probability of 0.1 % at a rate of 5 %."""
    rng = np.random.default_rng(0)
    alarms = sum(of_seeds(rng.random((3, 4))) == "leaks" for _ in range(200))
    assert alarms <= binom.isf(0.001, 200, 0.05)


def proven(audit, classes=2):
    """Return a run that proves an epsilon of 1, with the audit of its canaries."""
    defenses = [{"name": "own", "proven": {"epsilon": 1.0, "auc": 0.73}}]
    known = {"leakage": [], "defenses": defenses, "parties": {"features": ["a"]}, "dataset": {"classes": classes}}
    return {**known, "epsilon": audit}


def of_audits(rights, *, guesses=400):
    """Return the status of runs that prove an epsilon of 1, from numbers of right guesses of their canaries."""
    runs = []
    for right in rights:
        lower = float(coin_bound(right, guesses))
        tried = [{"guesses": guesses, "right": int(right), "lower": lower}]
        audit = {"kind": "canaries", "lower": lower, "party": "a", "confidence": 0.95, "canaries": guesses}
        runs.append(proven({**audit, "parties": [{"party": "a", **tried[0], "tried": tried}]}))
    return status_of(runs)


@pytest.mark.parametrize(("epsilon", "status"), [(1.0, "proven"), (2.5, "leaks")])
@parametrize("classes", [3, 4, 10], quick=1)
def test_canaries_of_several_classes_refute_a_wrong_proof_and_no_right_one(classes, epsilon, status):
    """A guess names a class or the others together, whose odds differ."""
    rng = np.random.default_rng(classes)
    audits = [
        audit_epsilon([coins(rng, epsilon, classes=classes)], [()], classes=classes, canaries=600) for _ in "12345"
    ]
    assert status_of([proven(audit, classes) for audit in audits]) == status


def test_canaries_of_many_seeds_seldom_contradict_a_proof_that_is_right():
    """Of 200 settings of ten seeds at most 20: more have a probability of 0.1 % at a rate of 5 %."""
    rights = np.random.default_rng(0).binomial(400, 1 / (1 + math.exp(-1.0)), size=(200, 10))
    assert (coin_bound(rights, 400) > 1.0).any(axis=1).sum() > 40  # one seed's bound alone would refute many
    statuses = [of_audits(each) for each in rights]
    assert set(statuses) <= {"leaks", "proven"}
    assert statuses.count("leaks") <= binom.isf(0.001, 200, 0.05)


def test_a_wrong_proof_that_no_seed_refutes_is_refuted_by_all_together():
    rights = [304] * 5  # 76 % where 73 % are the most that are expected
    assert coin_bound(304, 400) < 1.0
    assert of_audits(rights[:1]) == "proven"
    assert of_audits(rights) == "leaks"


def test_where_a_class_has_no_informed_reader_nothing_is_all_clear():
    entries = complete(step("norm"))
    entries = [{**one, "unread": "too few rows"} if one["attack"] == "informed" else one for one in entries]
    found = verdict(*entries)
    assert found["status"] == "not tested"
    assert found["parties"][0]["not_run"] == ["informed reader of the gradients: too few rows"]


def test_where_classes_take_turns_an_attack_that_breaks_the_defense_must_have_run():
    each = [{"class": n, "q95": 0.55, "q95_null": 0.55, "mean": 0.5, "steps": 40} for n in range(3)]
    defense = [{"name": "iso", "params": {}, "read_by": ["remembered_direction"]}]
    entries = [entry for entry in complete(step("norm", by_class=each)) if entry["phase"] != "remembered"]
    found = verdict(*entries, defenses=defense)
    assert found["status"] == "not tested"
    assert found["parties"][0]["not_run"] == ["remembered_direction: did not run"]


def test_a_leak_that_only_the_monitor_could_measure_counts():
    known = {"metric": "auc", "phase": "remembered", "layer": "cut", "party": "a", "label": "remembered_direction"}
    measured = {**known, "attack": "remembered_direction", "defended": True, "q95_null": 0.51, "one_class_steps": 0}
    monitor = {**measured, "source": "monitor", "q95": 0.99, "values": [0.9, 0.99], "p_value": 1e-30, "steps": 2}
    restarted = {**measured, "source": "attacker", "q95": None, "values": [], "p_value": None, "steps": 0}
    found = verdict(monitor, {**restarted, "unavailable": "this machine was restarted"}, defenses=[{"name": "iso"}])
    assert found["status"] == "leaks"
