"""The headline of a report in words: the verdict, its two lines, the attacks that ran, and the advice."""

import json
import math
import re
from dataclasses import replace

import pytest

from flower_vfl.reports import render
from flower_vfl.reports.advice import advice
from flower_vfl.reports.choice import choice_of
from flower_vfl.reports.headline import headline_of, worst_of
from flower_vfl.simulations.tables import print_results
from tests.auditing.test_verdict import DEFENDED, FEW, complete, informed, remembered, step
from tests.reports.test_page import change, page

pytestmark = pytest.mark.usefixtures("_nothing_is_drawn")

FULL = [{"name": "marvell_full", "params": {"s": 4.0}}]


def result(*leakage, defenses=DEFENDED, parties=("a",), **more):
    names = {"features": list(parties)}
    return {"leakage": list(leakage), "defenses": list(defenses), "parties": names, "dataset": {"classes": 2}, **more}


def headline_from(*leakage, **facts):
    return headline_of(result(*leakage, **facts))


def advised(*leakage, **facts):
    whole = result(*leakage, **facts)
    return " ".join(advice(whole, headline_of(whole)))


GAIN = informed(0.93, 1e-9, ("gradients", "embeddings"), advantage=0.03, advantage_p_value=1e-9)


@pytest.mark.parametrize(
    ("leakage", "sentence", "tone"),
    [
        (complete(step("residual", 0.99)), "A party can read the labels from the gradients almost completely.", "bad"),
        (complete(step("norm", 0.57)), "A party can read the labels from the gradients slightly better", "bad"),
        (complete(GAIN), "A party can read more of the labels with the gradients than from embeddings alone.", "bad"),
        (complete(), "No leak was found: nothing that ran reads the labels better than by guessing.", "good"),
        (complete()[1:], "Not tested: no leak was found, but not everything that could find one ran.", "warn"),
        (
            [step("norm", 0.57)],
            "A party can read the labels from the gradients slightly better than by guessing. The leak may be larger",
            "bad",
        ),
        ([], "Whether the gradients give the labels away was not tested.", "warn"),
        (
            complete(step("norm", 0.56, q95_p_value=0.4, **FEW)),
            "A party can read the labels of single steps from the gradients: in 3 of 200 steps up to 0.990 (norm).",
            "bad",
        ),
        (
            complete(step("norm", 0.7, **FEW)),
            "A party can read the labels from the gradients clearly better than by guessing. Single steps are read "
            "better: in 3 of 200 steps up to 0.990 (norm).",
            "bad",
        ),
        (
            [*complete(), *complete(step("residual", 0.9, "a+b"), party="a+b")],
            "Colluding parties can read the labels from the gradients well.",
            "bad",
        ),
    ],
)
def test_the_headline_says_the_verdict_and_has_its_colour(leakage, sentence, tone):
    headline = headline_from(*leakage)
    assert headline.sentence.startswith(sentence)
    assert headline.tone == tone


def test_leak_and_gain_are_two_lines_each_with_its_own_colour():
    worst = headline_from(*complete(GAIN)).worst
    assert (worst.leak_tone, worst.gain_tone) == ("good", "bad")
    assert (worst.value, worst.gain, worst.own_data) == (0.55, "+0.030", 0.93)
    assert worst.gain_words.startswith("With the gradients the best reader of the embeddings reaches 0.930; without")
    worst = headline_from(*complete(step("residual", 0.99))).worst
    assert (worst.leak_tone, worst.gain_tone) == ("bad", "good")
    assert worst.practical == "residual 0.990 (guessing 0.550)"


ABOVE = {"advantage": 0.015, "advantage_interval95": [0.003, 0.027], "advantage_p_value": 0.008}


@pytest.mark.parametrize(
    ("entry", "tones"),
    [
        (informed(0.915, 1e-9, ("gradients", "embeddings"), **ABOVE), ("good", "warn")),
        (informed(0.52, 0.02, interval95=[0.501, 0.539]), ("warn", "good")),
    ],
)
def test_an_interval_wholly_above_chance_is_amber_where_no_test_rejects(entry, tones):
    headline = headline_from(*complete(entry))
    assert headline.status == "no leak found"
    assert (headline.worst.leak_tone, headline.worst.gain_tone) == tones
    assert headline.tone == headline.worst.tone == "warn"
    assert "95 % interval lies wholly above guessing" in headline.sentence
    assert "two other seeds" in advised(*complete(entry))


def test_an_insignificant_gain_above_chance_is_shown_before_a_larger_uncertain_one():
    open_gain = informed(0.915, 1e-9, ("gradients", "embeddings"), **ABOVE)
    wider = {"advantage": 0.02, "advantage_interval95": [-0.02, 0.06], "advantage_p_value": 0.2}
    columns = informed(0.92, 1e-9, ("gradients", "columns"), phase="joint", attack="fit", **wider)
    for entries in ((open_gain, columns), (columns, open_gain)):
        headline = headline_from(*complete(*entries))
        assert (headline.worst.gain_tone, headline.tone) == ("warn", "warn")


def test_an_interval_that_holds_chance_is_green():
    headline = headline_from(*complete(informed(0.51, 0.1, interval95=[0.495, 0.525])))
    assert (headline.tone, headline.worst.leak_tone, headline.open) == ("good", "good", False)


def test_the_party_with_an_interval_above_chance_stands_first():
    leakage = [
        *complete(informed(0.53, 0.4)),
        *complete(informed(0.52, 0.02, ("gradients",), "b", interval95=[0.501, 0.539]), party="b"),
    ]
    assert headline_from(*leakage, parties=("a", "b")).worst.party == "b"


def test_of_leaking_parties_the_one_that_is_read_best_stands_first():
    """A gain of another party whose interval lies above zero, but is no finding, does not come before it."""
    leakage = [
        *complete(informed(0.63, 1e-9), informed(0.64, 1e-9, ("gradients", "embeddings"), **ABOVE)),
        *complete(informed(0.83, 1e-9, ("gradients",), "b"), party="b"),
    ]
    headline = headline_from(*leakage, parties=("a", "b"))
    assert (headline.worst.party, headline.worst.worst) == ("b", worst_of(result(*leakage, parties=("a", "b"))))


@pytest.mark.parametrize(("steps", "words"), [(7, "the largest of 7 steps"), (20, "no higher in 95 of 100 steps")])
def test_a_quantile_of_few_steps_is_called_the_largest_of_them(steps, words):
    assert headline_from(step("norm", 0.9, steps=steps)).lines[0].practical_words == words


def test_a_line_is_amber_where_what_belongs_to_it_did_not_run():
    worst = headline_from(*(e for e in complete() if len(e.get("sees", "")) != 2)).worst
    assert (worst.leak_tone, worst.gain_tone) == ("good", "warn")
    worst = headline_from(*(e for e in complete() if e["attack"] != "shell")).worst
    assert (worst.leak_tone, worst.gain_tone) == ("warn", "good")


def test_an_informed_reader_without_a_number_says_why():
    why = "too few rows to fit readers to: 1 of class 1 and 101 others; 10 of each are needed"
    assert headline_from(*complete(informed(None, None, unavailable=why))).worst.unread == why
    assert headline_from(*(e for e in complete() if e["phase"] != "audit")).worst.unread == "did not run"
    assert headline_from(*complete()).worst.unread == ""


def test_what_did_not_run_is_named_once_with_the_parties_of_which_it_is_true():
    leakage = [*complete()[1:], *complete(party="b")[1:], *complete(party="a+b")]
    assert headline_from(*leakage, parties=("a", "b")).missing == ["norm: did not run (party a and party b)"]
    assert headline_from(*leakage[: len(complete()) - 1]).missing == ["norm: did not run"]


@pytest.mark.parametrize(
    ("leakage", "facts", "words"),
    [
        ([step("norm", 0.97, defended=False)], {"defenses": []}, 'defenses = ["local_head(epsilon=1)"], with'),
        (
            complete(step("residual", 0.99)),
            {},
            "The evidence recommends local_head(epsilon=1), which has a proof",
        ),
        (
            complete(remembered(values=(0.6, 0.8))),
            {},
            "The evidence recommends local_head(epsilon=1), which has a proof",
        ),
        (
            complete(step("residual", 0.99)),
            {"defenses": [{"name": "marvell", "params": {"s": 4.0}}]},
            "Or use marvell_full, which hides from residual with the same power of noise.",
        ),
        (complete(step("direction", 0.64)), {"defenses": FULL}, "Or make marvell_full(s=4) stronger"),
        (complete(remembered(values=(0.6, 0.8))), {"defenses": FULL}, "noise averages out over the epochs of a person"),
        (complete(GAIN), {"defenses": FULL}, "people whose columns are similar"),
        (complete()[1:], {}, "add norm to attack.names"),
        ([e for e in complete() if e["phase"] != "audit"], {}, "attack.informed = 65536"),
        ([{**e, "steps": 7} if e["phase"] == "train" else e for e in complete()], {}, "at least 20 are needed"),
        (complete(), {}, "Keep this report with the model"),
        (complete(), {"status": "interrupted"}, "Let the run end"),
    ],
)
def test_what_to_do_next_depends_on_the_verdict(leakage, facts, words):
    assert words in advised(*leakage, **facts)


def proven_run(*leakage, proves=1.0, **facts):
    proof = {"epsilon": proves, "auc": 1.0 / (1.0 + math.exp(-proves))}
    defense = {"name": "local_head", "params": {"epsilon": proves}, "proven": proof}
    utility = {"last": {"epoch": 6, "test_auc": 0.928}}
    return result(*complete(*leakage), defenses=[defense], **{"utility": utility, **facts})


def measured(lower, kind="canaries", **facts):
    """Return the section of a result on the audit of epsilon."""
    party = {"party": "a", "lower": lower, "guesses": 666, "right": 479, "expected": 333.0, **facts}
    return {"kind": kind, "lower": lower, "party": "a", "confidence": 0.95, "parties": [party]}


@pytest.mark.parametrize(
    ("audit", "sentence", "tone", "status"),
    [
        (measured(0.755), "; measured: at least 0.75 (95 % confidence).", "proof", "proven"),
        (measured(0.0), "; measured: no epsilon above 0 could be shown (95 % confidence).", "proof", "proven"),
        (measured(0.4, "estimated"), "; estimated from below: 0.4.", "proof", "proven"),
        (measured(1.4, "estimated"), "; not measured.", "proof", "proven"),
        ({}, "; not measured.", "proof", "proven"),
        (measured(1.7), "The proof does not hold: local_head claims epsilon 1.0", "bad", "leaks"),
    ],
)
def test_a_proof_comes_first_and_what_was_measured_beside_it(audit, sentence, tone, status):
    headline = headline_of(proven_run(step("norm", 0.9), epsilon=audit))
    assert sentence in headline.sentence
    assert headline.sentence.startswith("Proven: epsilon 1.0 for each person's label over 6 epochs, by") is (
        tone == "proof"
    )
    assert (headline.tone, headline.status) == (tone, status)
    assert headline.sentence in headline.line
    assert "with the gradients it is 0.901" in headline.line
    assert "From the gradients alone: norm 0.900 (guessing 0.550) and a fitted reader 0." in headline.line


def test_a_proof_of_a_large_epsilon_is_amber():
    assert headline_of(proven_run(proves=4.0)).tone == "warn"


def test_the_meaning_of_epsilon_is_stated_in_odds():
    epsilon = headline_of(proven_run(dataset={"classes": 2, "positives": 0.083})).epsilon
    assert "a factor of at most 2.7." in epsilon.odds
    assert "8.3 % for this label before the training lies between 3.2 % and 20 % after it" in epsilon.odds
    assert "an AUC of at most 0.731" in epsilon.odds
    nothing = replace(epsilon, proof=replace(epsilon.proof, epsilon=1000.0))
    assert nothing.odds.startswith("So large an epsilon bounds nothing")


def test_with_a_proof_epsilon_is_to_be_weighed_and_no_other_defense_is_recommended():
    whole = proven_run(step("norm", 0.9))
    words = " ".join(advice(whole, headline_of(whole)))
    assert "Decide whether this epsilon is small enough" in words
    assert "attack.canaries = 1000" in words
    assert "evidence recommends" not in words
    refuted = proven_run(epsilon=measured(1.7))
    assert "Do not rely on the proof" in " ".join(advice(refuted, headline_of(refuted)))


def test_a_measurement_without_a_proof_bounds_nothing_from_above(run_folder):
    whole = result(*complete(step("norm", 0.9)), epsilon=measured(2.1, "estimated"), utility={"last": None})
    headline = headline_of(whole)
    assert headline.sentence.startswith("A party can read the labels")
    assert "factor of at least 8.2" in headline.epsilon.unbounded
    none = headline_of({**whole, "epsilon": measured(0.0, "estimated", expected=1396.4)})
    assert "Estimated" not in none.line
    nothing = none.epsilon.unbounded
    assert nothing.startswith("Estimated: no epsilon above 0 could be shown (95 % confidence, if")
    assert "factor" not in nothing
    assert "by the estimated odds alone, 1,396 would be." in nothing
    assert "Nothing is proven of this run" in headline.epsilon.unbounded
    assert "Estimated: epsilon is at least 2.1" in headline.line
    folder = run_folder(steps=20, epochs=1, parties=("a",))
    change(folder, lambda found: found.update(epsilon=measured(2.1)))
    text = page(render([folder])).text
    assert "Measured: epsilon is at least 2.1 (95 % confidence)" in text
    assert "479 of 666 guesses" in text
    assert "comes from labels that were drawn at random" in text


@pytest.mark.parametrize("used", [[], [{"name": "max_norm", "params": {}}]])
def test_with_many_classes_a_defense_for_any_number_is_recommended(used):
    found = advised(step("norm", 0.97, defended=bool(used)), defenses=used, dataset={"classes": 10})
    assert "marvell" not in found
    assert 'defenses = ["local_head(epsilon=1)"], with training.pretrain = 6 and without training.patience.' in found


def test_in_time_order_no_pre_training_is_recommended_which_would_be_refused():
    found = advised(step("norm", 0.97, defended=False), defenses=[], periods=[{"rows": 9}])
    assert 'defenses = ["local_head(epsilon=1)"], without training.patience.' in found
    assert "pretrain" not in found


def test_what_a_stronger_defense_costs_is_named():
    found = advised(step("norm", 0.97), defenses=[{"name": "marvell_full", "params": {"s": 4.0}}])
    assert "Or make marvell_full(s=4) stronger, which costs test AUC: sweep its strength" in found


def test_readers_have_a_table_of_their_own_and_are_no_attacks_of_a_step(run_folder):
    folder = run_folder(steps=30, epochs=1, parties=("a",))
    more = [informed(0.61, 1e-9, interval95=[0.6, 0.62], rows=16384, span="epochs", reader="trees", defended=False)]
    more += [informed(0.93, 1e-9, ("gradients", "embeddings"), advantage=0.03, defended=False)]
    more += [informed(None, None, unavailable="too few rows of class 1", party="b", defended=False)]
    change(folder, lambda found: found["leakage"].extend(more))
    path = render([folder])
    text = page(path).text
    engineers = text.split("For engineers")[1]
    assert "gradients, embeddings" in engineers
    assert re.search(r"epochs trees 0\.610\s+0\.600 … 0\.620", engineers)
    assert "+0.030 −0.002 … +0.004" in engineers
    assert "No number: too few rows of class 1" in engineers
    assert "informed, which ran and measured nothing" not in text
    assert path.read_text().count("<td>informed</td>") == 3


def test_single_steps_stand_beside_the_leak_auc_on_pages_and_console(run_folder):
    few = complete(step("norm", 0.56, q95_p_value=0.4, **FEW))
    words = "in 3 of 200 steps up to 0.990 (norm)"
    assert f"norm 0.560 (guessing 0.550); single steps {words};" in headline_from(*few).line
    folders = [write(run_folder, name, *few, defenses=DEFENDED) for name in ("one", "two")]
    assert f"Single steps: <strong>{words}</strong>" in render(folders[:1]).read_text()
    pages = render(folders).read_text()
    assert pages.count(f'<span class="ends">{words}</span>') == 2
    assert "leaks least: leak AUC 0.560, in single steps up to 0.990" in pages


def test_the_console_says_the_verdict_and_why_something_was_not_tested(run_folder, capsys):
    folder = run_folder(defenses=DEFENDED, leak=0.5, steps=60, epochs=1)
    print_results([json.loads((folder / "result.json").read_text())])
    shown = " ".join(capsys.readouterr().out.split())
    assert "Verdict: not tested. Party" in shown
    assert (
        "Not tested, because these gave no number: residual, direction, shell, remembered_direction, informed reader of"
        in shown
    )


def write(run_folder, name, *leakage, defenses=(), validation=0.93, utility=0.92, status="finished"):
    """Write the folder of a run with these leakage entries alone."""
    folder = run_folder(name, steps=3, epochs=1, defenses=list(defenses), utility=utility, parties=("a",))

    def edit(found):
        found.update(status=status, leakage=[{**entry, "defended": bool(defenses)} for entry in leakage])
        found["utility"]["last"]["validation_auc"] = validation

    change(folder, edit)
    return folder


@pytest.mark.parametrize(("together", "worse"), [(0.8, True), (0.94, False)])
def test_a_federation_that_is_worse_than_one_party_alone_says_so_above_the_fold(run_folder, together, worse):
    folder = run_folder(steps=3, epochs=1, parties=("a",))
    baselines = [
        {"model": "logistic regression", "columns": columns, "value": v} for columns, v in (("a", 0.7), ("label", 0.95))
    ]
    worth = {"measure": "test_auc", "together": together, "margin": 0.02, "test_rows": 300, "baselines": baselines}
    change(folder, lambda found: found.update(worth=worth))
    above = page(render([folder])).text.partition("For engineers")[0]
    assert ("not worth it. Together the parties reach 0.8000, 0.1500 below the best party alone" in above) is worse


ISO = [{"name": "iso", "params": {"t": 9.0}}]


def test_a_comparison_recommends_by_validation_among_runs_without_a_found_leak(run_folder):
    folders = [
        write(run_folder, "none", step("norm", 0.97), utility=0.95),
        write(run_folder, "leaky", *complete(step("residual", 0.99)), defenses=DEFENDED, validation=0.99),
        write(run_folder, "good", *complete(), defenses=FULL, validation=0.94, utility=0.91),
        write(run_folder, "other", *complete(), defenses=ISO, validation=0.93, utility=0.93),  # better by test alone
    ]
    path = render(folders)
    text = page(path).text
    assert "Recommended: marvell_full(s=4) (run good). No leak was found." in text
    assert "It reaches a test AUC of 0.9100, −0.0400 against no defense." in text
    assert "2 runs leak." in text
    assert text.count("with own data 0.") == 3  # once for each run that has a number with own data
    assert path.read_text().count('class="chosen"') == 1
    for name in ("none", "leaky", "good", "other"):
        assert f'href="{name}/report.html"' in path.read_text()


def test_a_comparison_in_which_everything_leaks_recommends_nothing_and_names_the_least(run_folder):
    folders = [
        write(run_folder, "none", step("norm", 0.97)),
        write(run_folder, "weak", *complete(step("residual", 0.7)), defenses=DEFENDED),
        write(run_folder, "barely", step("norm", 0.65), defenses=ISO),  # less only because no other attack ran
    ]
    text = page(render(folders)).text
    assert "Every run leaks: none can be recommended." in text
    least = "marvell(s=4) (run weak) leaks least: leak AUC 0.700, guessing reaches 0.550."
    assert f"{least} Others were not fully tested." in text
    assert "Which leaks least is not known" in page(render([folders[0], folders[2]])).text


def test_a_comparison_recommends_no_run_that_was_not_tested(run_folder):
    folders = [
        write(run_folder, "none", step("norm", 0.97)),
        write(run_folder, "gap", *complete()[1:], defenses=DEFENDED),
    ]
    text = page(render(folders)).text
    assert "No run can be recommended: 1 run leaks and 1 was not fully tested." in text
    assert "norm: did not run. Only of: gap." in text


def test_nothing_is_chosen_by_the_test_set(run_folder):
    folders = [
        write(run_folder, name, *complete(), defenses=FULL, validation=None, utility=utility)
        for name, utility in (("one", 0.9), ("two", 0.95))
    ]
    path = render(folders)
    assert "nothing may be chosen by the test set" in page(path).text
    assert 'class="chosen"' not in path.read_text()


def test_of_runs_with_a_proof_the_smallest_epsilon_is_named_and_left_to_be_weighed(run_folder):
    folders = [
        write(run_folder, name, *complete(step("norm", 0.9)), defenses=proven_run(proves=epsilon)["defenses"])
        for name, epsilon in (("two", 2.0), ("half", 0.5))
    ]
    folders.append(write(run_folder, "none", step("norm", 0.97)))
    text = page(render(folders)).text
    assert "Proven: local_head(epsilon=0.5) (run half), epsilon 0.5 for each person" in text
    assert "1 run leaks without a proof" in text
    assert "Recommended" not in text


def test_a_proof_stands_beside_a_run_without_a_found_leak(run_folder):
    folders = [
        write(run_folder, "good", *complete(), defenses=FULL),
        write(run_folder, "proof", *complete(step("norm", 0.9)), defenses=proven_run(proves=0.5)["defenses"]),
    ]
    text = page(render(folders)).text
    assert "Recommended: marvell_full(s=4) (run good). No leak was found." in text
    assert "With a proof: local_head(epsilon=0.5) (run proof), epsilon 0.5 for each person's label. It reaches" in text


def test_a_run_that_did_not_end_is_never_recommended(run_folder):
    folders = [
        write(run_folder, "none", step("norm", 0.97)),
        write(run_folder, "dead", *complete(), defenses=FULL, status="failed"),
    ]
    assert "Recommended" not in page(render(folders)).text
    assert choice_of([], "test_auc").headline == "No run ended by itself."


def test_links_lead_from_where_the_page_lies(run_folder, tmp_path):
    folders = [write(run_folder, name, step("norm", 0.97)) for name in ("one & two", "three")]
    (tmp_path / "away").mkdir()
    path = render(folders, tmp_path / "away" / "page.html")
    assert 'href="../one%20%26%20two/report.html"' in path.read_text()


def test_where_nothing_was_sent_nothing_has_to_run_and_the_verdict_is_green():
    headline = headline_from(defenses=[], baseline="no_gradients", parties=("a", "b"))
    assert (headline.status, headline.tone, headline.missing) == ("no leak found", "good", [])
    assert headline.sentence == "Nothing that depends on labels left the label party."
    assert headline.sentence in headline.line
    assert "a defense with a lower test AUC than this run should not be used" in advised(baseline="no_gradients")
