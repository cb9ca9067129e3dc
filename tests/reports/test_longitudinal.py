"""Longitudinal attacks in a report: beside the papers' measure, and first where their leak is larger."""

import html
import json
import re

import numpy as np
import pytest

from flower_vfl.apps import run
from flower_vfl.errors import InputError
from flower_vfl.reports import render
from flower_vfl.reports.leaks import worst
from flower_vfl.reports.longitudinal import by_epoch, of_remembered, promised, single_steps, strongest
from flower_vfl.reports.run import load_run
from flower_vfl.reports.words import not_tested, worst_leak
from flower_vfl.simulations.tables import print_results
from tests.toys import toy_config, toy_data

pytestmark = pytest.mark.usefixtures("_sketched")

LEAKS = {"remembered_norm": [0.53, 0.6, 0.66], "remembered_direction": [0.64, 0.75, 0.84]}


def entry_of(attack, values, **more):
    return {
        **{"attack": attack, "label": attack, "params": {}, "metric": "auc", "phase": "remembered"},
        **{"source": "attacker", "defended": True, "party": "a", "layer": "cut", "epochs": [1, 2, 3]},
        **{"values": values, "q95": max(values), "q95_null": 0.505, "mean": float(np.mean(values)), "max": max(values)},
        **{"interval95": [values[-1] - 0.01, values[-1] + 0.01], "steps": 3, "one_class_steps": 0},
        **more,
    }


def add_entries(folder, entries):
    """Add entries of longitudinal attacks to the result of a run."""
    result = json.loads((folder / "result.json").read_text())
    result["leakage"] += entries
    (folder / "result.json").write_text(json.dumps(result))
    return folder


@pytest.fixture
def longitudinal_attacks(run_folder):
    """Return a function that writes a run with a defense and with entries of longitudinal attacks."""

    def make(entries=None, **facts):
        found = [entry_of(*pair) for pair in LEAKS.items()] if entries is None else entries
        facts = {"defenses": ({"name": "marvell", "params": {"s": 4.0, "rho": 0.0}},), "leak": 0.6, **facts}
        return add_entries(run_folder(epochs=3, **facts), found)

    return make


def text_of(folder):
    page = re.sub(r"<svg.*?</svg>", "[figure]", render([folder]).read_text(), flags=re.DOTALL)
    return re.sub(r"\s+", " ", html.unescape(re.sub(r"<[^>]+>", " ", page)))


def test_the_page_has_longitudinal_leaks_beside_single_steps(longitudinal_attacks):
    text = text_of(longitudinal_attacks())
    assert "From a single step, attacks reach a leak AUC of 0.6" in text
    assert "But each person recurs in every epoch. An attacker that adds up the gradients of each person, and" in text
    assert "and knows no label, reaches a leak AUC over all people of 0.640" in text
    assert re.search(r"of 0\.840 after epoch 3 \(remembered_direction\)\. Fresh noise of each epoch averages out", text)
    assert "What longitudinal attacks read" in text


def test_the_largest_leak_of_a_run_is_the_longitudinal_one_where_that_is_larger(longitudinal_attacks):
    folder = longitudinal_attacks()
    leak = worst_leak(load_run(folder))
    assert leak.remembered
    assert leak.q95 == 0.84
    text = text_of(folder)
    assert "0.840" in text.split("Leak AUC: the gradients alone")[1][:40]
    assert re.search(r"remembered_direction 0\.840 \(guessing 0\.\d+\) , the largest after any epoch", text)
    assert "On single steps, the papers’ measure, the leak is 0.6" in text


@pytest.mark.parametrize(
    ("attack", "params", "words"),
    [
        ("remembered_difference", {"by": "norm"}, "compares the gradients of each person in the last two epochs"),
        ("remembered_fit", {"k": 4, "reads": "difference"}, "compares the gradients of each person in the last two"),
        ("remembered_quadratic", {"k": 4, "reads": "last"}, "reads the gradients of each person in one epoch alone"),
        ("remembered_network", {"k": 4, "reads": "epochs"}, "sets side by side the gradients of each person in every"),
    ],
)
def test_a_reader_that_adds_up_nothing_is_not_said_to(longitudinal_attacks, attack, params, words):
    text = text_of(longitudinal_attacks([entry_of(attack, [0.6, 0.7, 0.84], params=params)]))
    assert f"An attacker that {words}" in text
    assert "adds up what" not in text
    assert "Fresh noise of each epoch averages out" not in text


@pytest.mark.parametrize("params", [{"t": 1.0, "rho": 1.0}, {"alpha": 1.0}])
def test_without_fresh_noise_none_averages_out(longitudinal_attacks, params):
    text = text_of(longitudinal_attacks(defenses=({"name": "other", "params": params},)))
    assert "An attacker that adds up the gradients of each person" in text
    assert "Fresh noise of each epoch averages out" not in text


def test_in_time_order_nobody_recurs(longitudinal_attacks):
    folder = longitudinal_attacks()
    result = json.loads((folder / "result.json").read_text())
    (folder / "result.json").write_text(json.dumps({**result, "periods": []}))
    text = text_of(folder)
    assert "An attacker that adds up the gradients of each person" in text
    assert "recurs" not in text
    assert "averages out" not in text


def test_where_single_steps_leak_more_the_headline_is_theirs(longitudinal_attacks):
    folder = longitudinal_attacks(leak=0.97)
    assert not worst_leak(load_run(folder)).remembered
    assert "no higher in 95 of 100 steps" in text_of(folder)


def test_single_steps_are_compared_at_the_same_place(longitudinal_attacks):
    result = load_run(longitudinal_attacks()).result
    for party, layer in (("a", "cut"), ("b", "first")):
        step = single_steps(result, party, layer)
        assert (step["party"], step["layer"], step["phase"]) == (party, layer, "train")
    assert worst(result, "cut", remembered=True)["attack"] == "remembered_direction"
    assert worst(result, "cut", remembered=False)["attack"] == "norm"
    assert worst(result, "cut")["attack"] == "remembered_direction"


def test_there_is_a_figure_a_party_and_layer_and_the_monitor_stands_in(longitudinal_attacks):
    entries = [
        entry_of("remembered_norm", [0.5, 0.6, 0.7], party=party, layer=layer, source=source)
        for party, layer, source in (
            ("a", "cut", "attacker"),
            ("a", "cut", "monitor"),
            ("a", "first", "attacker"),
            ("a+b", "cut", "monitor"),
        )
    ]
    folder = longitudinal_attacks(entries)
    figures = of_remembered(load_run(folder))["remembered_figures"]
    assert len(figures) == 3
    assert "norm, single steps" in figures[0]
    assert "single steps" not in figures[2]  # nobody attacked both together step by step


def test_single_steps_are_drawn_by_the_quantile_of_each_epoch(longitudinal_attacks):
    run = load_run(longitudinal_attacks(leak=0.9))
    epochs, quantiles = by_epoch(run, single_steps(run.result, "a", "cut"))
    _, of, values = run.curve(attack="norm", party="a", layer="cut", metric="auc")
    assert epochs.tolist() == [1, 2, 3]
    for epoch, quantile in zip(epochs, quantiles, strict=True):
        assert np.mean(values[of == epoch] <= quantile) >= 0.95
        assert quantile in values[of == epoch]


def test_what_would_have_been_sent_undefended_is_no_leak_of_the_run(longitudinal_attacks):
    folder = longitudinal_attacks([entry_of("remembered_norm", [0.9, 0.95, 0.99], defended=False, source="monitor")])
    assert strongest(load_run(folder).result) is None
    text = text_of(folder)
    assert "0.990" in text  # the value is in the table


def test_an_attack_that_did_not_read_to_the_end_is_named(longitudinal_attacks):
    nothing = {"epochs": [], "values": [], "q95": None, "unavailable": "it is wide"}
    folder = longitudinal_attacks([{**entry_of("remembered_norm", [0.5]), **nothing}])
    assert "remembered_norm at party a, cut layer was not read to the end: it is wide." in text_of(folder)


def test_longitudinal_attacks_are_named_as_not_tested_where_none_ran(longitudinal_attacks, run_folder):
    words = "Longitudinal attacks, which average noise away over the epochs."
    assert words in not_tested(load_run(run_folder("plain")))
    assert words not in not_tested(load_run(longitudinal_attacks()))


@pytest.mark.parametrize(
    "change",
    [{"values": [0.5]}, {"values": "high"}, {"epochs": None}, {"epochs": [1, 2, "x"]}, {"values": [0.5, None, 1.0]}],
)
def test_a_longitudinal_leak_of_another_shape_is_refused(longitudinal_attacks, change):
    folder = longitudinal_attacks([{**entry_of("remembered_norm", [0.5, 0.6, 0.7]), **change}])
    with pytest.raises(InputError, match="a value for each of its epochs"):
        render([folder])


@pytest.mark.usefixtures("_really_drawn")
def test_hostile_text_in_a_longitudinal_leak_stays_text(longitudinal_attacks):
    entry = entry_of("<script>x</script>", [0.5, 0.6, 0.9], unavailable="<img src=x>", params={"k": "<b>5"})
    page = render([longitudinal_attacks([entry])]).read_text()
    assert "<script>x" not in page
    assert "<img src=x>" not in page
    assert "<b>5" not in page


def test_the_table_of_runs_has_both_measures(longitudinal_attacks, capsys):
    result = json.loads((longitudinal_attacks() / "result.json").read_text())
    print_results([result])
    shown = capsys.readouterr().out
    assert "remem" in shown
    assert "0.840" in shown
    line = re.sub(r"\s+", " ", shown)
    assert (
        "at party a, cut layer reads 0.640 after epoch 1, 0.840 after epoch 3; the strongest attack on single" in line
    )


def test_without_longitudinal_attacks_the_table_has_no_column_of_them(run_folder, capsys):
    print_results([json.loads((run_folder() / "result.json").read_text())])
    assert "emem" not in capsys.readouterr().out


def test_runs_are_compared_by_longitudinal_leaks_too(longitudinal_attacks, run_folder):
    folders = [
        longitudinal_attacks(),
        add_entries(run_folder("other", epochs=3), [entry_of("remembered_direction", [0.9, 0.9, 0.9], defended=False)]),
    ]
    page = html.unescape(render(folders).read_text())
    assert "remembered_direction, cut" in page
    assert "0.900" in page


@pytest.mark.slow
@pytest.mark.parametrize("name", ["marvell", "marvell_full"])
def test_the_bound_over_all_epochs_stands_beside_the_longitudinal_leak(tmp_path, name):
    attack = {"names": ["norm", "remembered_norm"]}
    config = toy_config(training={"epochs": 3}, defenses=[{"name": name, "s": 4.0}], attack=attack)
    run(config, out=tmp_path / "run", data=lambda _: toy_data())
    epochs, values = promised(load_run(tmp_path / "run"), "a")
    assert epochs.tolist() == [1, 2, 3]
    assert np.all(np.diff(values) >= 0)
    assert "Dotted: the bound of Theorem 1" in text_of(tmp_path / "run")


def test_without_a_bound_over_all_epochs_none_is_shown(longitudinal_attacks):
    folder = longitudinal_attacks()
    assert promised(load_run(folder), "a") is None
    assert "Dotted" not in text_of(folder)


@pytest.mark.parametrize("attack", ["remembered_fit", "remembered_quadratic", "remembered_network"])
def test_a_learned_reader_that_reads_most_is_the_strongest_attack_found(attack, longitudinal_attacks):
    learned = entry_of(attack, [0.7, 0.8, 0.93], label=f"{attack}(k=8)", params={"k": 8})
    folder = longitudinal_attacks([entry_of(*pair) for pair in LEAKS.items()] + [learned])
    run = load_run(folder)
    found = strongest(run.result)
    assert (found.entry["attack"], found.last, found.knows) == (attack, 0.93, "8 rows of each class")
    assert worst_leak(run).entry["attack"] == attack
    assert f"{attack}(k=8)" in text_of(folder)


def test_a_reader_that_changes_its_side_reads_all_labels_until_the_end(longitudinal_attacks, capsys):
    """0 and 1 both read every label; an attack without labels guesses anew which side is positive."""
    folder = longitudinal_attacks([entry_of("remembered_direction", [1.0, 0.9, 0.0])])
    found = strongest(load_run(folder).result)
    assert (found.first, found.last, found.turned) == (1.0, 1.0, True)
    assert "of 1.000 after epoch 3 (remembered_direction, its scores turned around)" in text_of(folder)
    print_results([json.loads((folder / "result.json").read_text())])
    assert "reads 1.000 after epoch 1, 1.000 after epoch 3 (turned around)" in " ".join(capsys.readouterr().out.split())


def test_a_reader_that_is_wrong_is_the_strongest_where_turned_around_it_reads_most(longitudinal_attacks, capsys):
    wrong = entry_of("remembered_hint", [0.4, 0.2, 0.06])
    folder = longitudinal_attacks([*(entry_of(*pair) for pair in LEAKS.items()), wrong])
    found = strongest(load_run(folder).result)
    assert (found.entry["attack"], found.turned) == ("remembered_hint", True)
    assert (found.first, found.last) == (pytest.approx(0.6), pytest.approx(0.94))
    leak = worst_leak(load_run(folder))
    assert (leak.entry["attack"], leak.reached, leak.turned) == ("remembered_hint", pytest.approx(0.94), True)
    text = text_of(folder)
    assert "of 0.940 after epoch 3 (remembered_hint, its scores turned around)" in text
    assert "0.940" in text.split("Leak AUC: the gradients alone")[1][:40]
    print_results([json.loads((folder / "result.json").read_text())])
    shown = " ".join(capsys.readouterr().out.split())
    assert "0.600 after epoch 1, 0.940 after epoch 3 (turned around)" in shown
    assert not strongest(load_run(longitudinal_attacks()).result).turned
