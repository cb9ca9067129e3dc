"""The page of a report: its content, in one file, also for damaged and hostile files of a run."""

import json
import math
import re
from html.parser import HTMLParser

import pytest

from flower_vfl.apps import run
from flower_vfl.apps.periods import read_periods, write_periods
from flower_vfl.data.store.periods import Period, Periods
from flower_vfl.errors import InputError
from flower_vfl.reports import render
from flower_vfl.tracking import StepLog
from tests.cases import parametrize
from tests.toys import toy_config, toy_data

pytestmark = pytest.mark.usefixtures("_sketched")

VOID = {"meta", "br", "link", "img", "hr", "input"}


class Page(HTMLParser):
    """Parser of a page that checks that every tag is closed and collects tags, attributes and text."""

    def __init__(self, html):
        super().__init__()
        self.open, self.tags, self.attributes, self.words = [], [], [], []
        self.feed(html)
        self.close()
        assert self.open == []
        self.text = re.sub(r"\s+", " ", " ".join(self.words))

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)


def page(path):
    return Page(path.read_text(encoding="utf-8"))


def change(folder, edit):
    result = json.loads((folder / "result.json").read_text())
    edit(result)
    (folder / "result.json").write_text(json.dumps(result))


def test_a_run_without_defense_says_what_leaks_and_that_nothing_was_done_about_it(run_folder):
    folder = run_folder("census-none")
    path = render([folder])
    assert path == folder / "report.html"
    text = page(path).text
    assert "A party can read the labels from the gradients almost completely." in text
    assert "No defense was used" in text
    assert 'defenses = ["local_head(epsilon=1)"]' in text
    assert "149,271 people, 8.3 % of them positive" in text
    change(folder, lambda result: result["dataset"].update(rows=1102, validation_rows=110))
    assert (
        "trained on 992 people and validated on 110 others, 8.3 % of all of them positive"
        in page(render([folder])).text
    )
    assert "75,034 others. Epochs: 6." in text
    assert "The feature parties a and b have columns about the same people. They exchange" in text
    worst = max(entry["q95"] for entry in json.loads((folder / "result.json").read_text())["leakage"])
    assert f"{worst:.3f}" in text


def test_a_run_with_a_defense_names_it_and_its_strength(run_folder):
    text = page(render([run_folder(defenses=[{"name": "marvell", "params": {"s": 4.0}}], leak=0.5)])).text
    assert "Defense in use: marvell(s=4) ." in text
    assert "No defense" not in text
    assert "Not tested: no leak was found, but not everything that could find one ran." in text
    assert "residual, direction, shell, remembered_direction, informed reader of the gradients and" in text
    assert "add residual, direction, shell and remembered_direction to attack.names" in text


def test_utility_cost_digests_and_the_parties_alone_are_there(run_folder):
    text = page(render([run_folder()])).text
    for words in (
        *("Last epoch", "Best by validation", "0.9321", "0.9325", "Calibration error (ACE)", "Test accuracy"),
        *("a alone", "0.8791", "label alone", "0.9222", "together"),
        *("Steps per second", "51.6", "98.5 MiB", "11.6 s", "9.8 s"),
        *("9f" * 32, "3c" * 32, "2.13.0+cpu", "batch_size = 1024"),
        *("What was not tested", "Active attackers", "Leak along training", "AUC by epoch", "Loss by epoch"),
        *("Attack norm, party a", "Attack norm, party b", "first layer", "0.554"),
    ):
        assert words in text, words


def test_what_a_result_does_not_have_is_left_out_or_dashed(run_folder):
    folder = run_folder(steps=3, epochs=1)
    change(folder, lambda result: [result.pop(key) for key in ("alone", "weights", "environment")])
    change(folder, lambda result: result.update(cost={}, dataset={}, leakage=[], utility={"last": {}, "best": None}))
    text = page(render([folder])).text
    assert "Whether the gradients give the labels away was not tested." in text
    assert "What each party would reach alone" not in text
    assert "none ran" in text


def test_missing_values_and_one_class_steps_do_not_hide_the_entry(run_folder):
    folder = run_folder(steps=3, epochs=1)
    empty = dict.fromkeys(("q95", "q95_null", "mean", "max"))
    change(folder, lambda result: result["leakage"][0].update(empty, one_class_steps=3))
    assert "–" in page(render([folder])).text


def test_more_than_two_classes_have_the_best_read_one_named(run_folder):
    def edit(result):
        worst = {"class": 7, "q95": 0.875, "q95_null": 0.625, "mean": 0.75, "max": 1.0, "steps": 9}
        result["leakage"][0] |= {"by_class": [worst], "worst_class": worst, "macro_q95": 0.6875}
        result["classes"] = {"names": [f"digit {number}" for number in range(10)]}

    folder = run_folder("digits")
    assert "Leak by class" not in page(render([folder])).text
    change(folder, edit)
    text = page(render([folder])).text
    assert "Leak by class" in text
    assert all(found in text for found in ("digit 7", "0.875", "0.625", "0.688"))


def test_scores_that_are_wrong_more_often_than_chance_are_pointed_out(run_folder):
    folder = run_folder(leak=0.08, steps=300, parties=("a",))
    entry = max(json.loads((folder / "result.json").read_text())["leakage"], key=lambda entry: entry["q95_turned"])
    text = page(render([folder])).text
    assert entry["q95"] < 0.5 < 0.9 < entry["q95_turned"]
    assert f"turned around they reach {entry['q95_turned']:.3f}" in text
    assert "read the labels from the gradients almost completely" in text


def test_a_run_that_did_not_end_as_planned_says_so_and_why(run_folder):
    folder = run_folder(steps=3, epochs=1)
    assert "planned end" not in page(render([folder])).text
    change(folder, lambda result: result.update(status="failed", error="party b died"))
    assert "planned end: failed. party b died" in page(render([folder])).text


def test_a_run_that_ended_by_patience_is_no_failure_and_names_the_model_of_its_utility(run_folder):
    folder = run_folder(steps=40, epochs=4)

    def stop(found):
        best = {**found["utility"]["last"], "epoch": 2, "test_auc": 0.9321}
        kept = {"step": 20, "epoch": 2, "chosen_by": "validation_auc"}
        found["utility"]["best"] = best
        found.update(status="early stopping", model=kept)

    change(folder, stop)
    text = page(render([folder])).text
    assert "planned end" not in text
    assert "validation no longer improved (training.patience). The model that all parties kept is the one" in text
    assert "0.9321 test AUC of the model that all parties kept:" in " ".join(text.split())
    assert "Epochs: 4." in text


def test_columns_of_the_label_party_are_mentioned(run_folder):
    folder = run_folder(steps=3, epochs=1)
    assert "columns of its own" not in page(render([folder])).text
    change(folder, lambda result: result["parties"].update(label_features=True))
    assert "keeps the labels, and has columns of its own." in page(render([folder])).text


def test_parties_are_known_by_their_weights_where_nothing_else_names_them(run_folder):
    folder = run_folder(steps=3, epochs=1)
    change(folder, lambda result: result.pop("parties"))
    assert "The feature parties a and b have" in page(render([folder])).text


def test_the_monitor_stands_in_where_no_attacker_reported(run_folder):
    folder = run_folder(steps=1, epochs=1)
    (folder / "steps.parquet").unlink()
    with StepLog(folder) as log:
        log.add(step=0, epoch=0, party="a", layer="cut", attack="norm", metric="monitor_auc", value=0.9)
    assert "cut layer (monitor)" in page(render([folder])).text
    assert "cut layer (monitor)" not in page(render([run_folder("both", steps=40)])).text


def test_a_killed_run_is_reported_from_its_journal(run_folder):
    folder = run_folder(steps=40)
    (folder / "steps.parquet").unlink()
    with StepLog(folder, name="a") as log:
        log.add(step=0, epoch=0, party="ghost", layer="cut", attack="norm", metric="auc", value=0.9)
    assert "party ghost" in page(render([folder])).text


@parametrize("several", [False, True], quick=1)
@pytest.mark.usefixtures("_really_drawn")
def test_the_page_needs_nothing_from_elsewhere_and_is_small(run_folder, several):
    folders = [run_folder(f"run{i}", parties=("a", "b", "c", "d")) for i in range(1 + 4 * several)]
    path = render(folders)
    html = path.read_text()
    assert path.stat().st_size < 1_000_000
    found = page(path)
    assert not {"script", "link", "iframe", "object", "img"} & set(found.tags)
    for name, value in found.attributes:
        assert name not in ("src", "onload", "onerror", "onclick")
        reports = [f"run{number}/report.html" for number in range(5)] if several else []
        assert name not in ("href", "xlink:href") or value.startswith("#") or value in reports
    assert "@import" not in html
    assert not re.search(r"url\((?!#)", html)
    assert "default-src 'none'" in html
    assert "prefers-color-scheme: dark" in html
    assert "@media print" in html
    assert 'name="viewport"' in html


HOSTILE = "</pre></style><script>alert('x')</script><img src=x onerror=alert(1)>\"' $&{{ 7 * 7 }}"


def poisoned(value):
    """Return the same structure with every text replaced by `HOSTILE`, numbers kept."""
    if isinstance(value, dict):
        return {key: poisoned(item) for key, item in value.items()}
    if isinstance(value, list):
        return [poisoned(item) for item in value]
    return HOSTILE if isinstance(value, str) else value


@pytest.mark.parametrize("several", [False, True])
@pytest.mark.usefixtures("_really_drawn")
def test_hostile_text_anywhere_stays_text(run_folder, several):
    folder = run_folder(
        f"<b>{HOSTILE[:5].replace('/', '')}", steps=20, defenses=[{"name": "iso", "params": {"t": "1"}}]
    )
    result = poisoned(json.loads((folder / "result.json").read_text()))
    for entry in result["leakage"]:
        entry["metric"] = "auc"
    for place in ("weights", "environment", "alone"):
        result[place] = {HOSTILE: HOSTILE}
    for which in ("last", "best"):
        result["utility"][which] |= {HOSTILE: HOSTILE, "epoch": HOSTILE}
    result["defenses"][0]["params"] = {HOSTILE: HOSTILE}
    result["dataset"]["positives"] = result["cost"]["seconds"] = HOSTILE
    (folder / "result.json").write_text(json.dumps(result))
    text = json.dumps(HOSTILE)
    (folder / "config.toml").write_text(f"# {HOSTILE}\n[parties]\nfeatures = [{text}]\n[data]\nname = {text}\n")
    with StepLog(folder) as log:
        log.add(step=0, epoch=0, party=HOSTILE, layer=HOSTILE, attack=HOSTILE, metric="auc", value=0.9)
    path = render([folder] * (1 + several), folder / "page.html")
    found = page(path)
    assert not {"script", "img"} & set(found.tags)
    assert all(name not in ("onerror", "src") for name, _ in found.attributes)
    assert found.text.count(HOSTILE) > 10


PERIODS = Periods(tuple(Period(f"2014-10-2{day}", 100) for day in range(1, 7)), (Period("2014-10-27", 9),))


@pytest.mark.usefixtures("_really_drawn")
def test_a_run_in_time_order_has_its_leak_and_its_utility_by_day(run_folder):
    folder = run_folder(steps=120, epochs=6)
    without = page(render([folder]))
    assert "Day by day" not in without.text
    write_periods(folder, PERIODS)
    found = page(render([folder]))
    assert "Day by day" in found.text
    assert "Guessing stays in the grey band in 9 of 10 steps" in found.text  # between the 5 % and the 95 % quantile
    for title in ("Leak by day, party a", "Leak by day, party b", "AUC by day", "Loss by day"):
        assert title in found.text
    assert "2014-10-21" in found.text or "2014-10-22" in found.text


def test_guessing_by_day_is_that_of_the_attack_with_the_most_hints(run_folder, monkeypatch):
    bands = {}

    def drawn(title, ylabel, curves, names, null=None):
        bands[title] = null
        return ""

    monkeypatch.setattr("flower_vfl.reports.periods.period_figure", drawn)
    folder = run_folder(steps=60, epochs=6, attacks=(("norm", 0.0), ("hint(k=40)", 0.0)))
    write_periods(folder, PERIODS, {"hint(k=40)": 40})
    render([folder])
    table = [row for row in read_periods(folder).to_pylist() if row["metric"] == "null_q95"]
    plain, hinted = ([r["value"] for r in table if r["attack"] == attack] for attack in ("", "hint(k=40)"))
    assert all(one < other for one, other in zip(plain, hinted, strict=True))
    assert bands["Leak by day, party a"][1].tolist() == hinted


@pytest.mark.slow
@pytest.mark.usefixtures("_really_drawn")
def test_hostile_names_of_days_stay_text(run_folder):
    folder = run_folder(steps=20, epochs=2)
    names = [f"<b>{HOSTILE[:9]}{day}" for day in range(3)]
    write_periods(folder, Periods(tuple(Period(name, 1) for name in names[:2]), (Period(names[2], 1),)))
    found = page(render([folder]))
    assert not {"script", "img", "b"} & (set(found.tags) - set(page(render([run_folder(steps=20, epochs=2)])).tags))
    assert names[1] in found.text


@pytest.mark.parametrize("content", [b"", b"PAR1", b"no"])
def test_values_by_day_that_cannot_be_read_are_named(run_folder, content):
    folder = run_folder(steps=3, epochs=1)
    (folder / "periods.parquet").write_bytes(content)
    with pytest.raises(InputError, match=re.escape(str(folder / "periods.parquet"))):
        render([folder])


@pytest.mark.parametrize("name", ["config.toml", "result.json", "steps.parquet"])
def test_a_missing_file_is_named_and_nothing_is_written(run_folder, name):
    folder = run_folder(steps=3, epochs=1)
    (folder / name).unlink()
    with pytest.raises(InputError, match=f"{re.escape(str(folder))}.*{re.escape(name)}"):
        render([folder])
    assert not (folder / "report.html").exists()


@pytest.mark.parametrize("name", ["config.toml", "result.json", "steps.parquet"])
@pytest.mark.parametrize(
    "content",
    [b"\xff\xfe not text", b"= [", b'{"schema": 2}', b"[1]", b"[" * 100_000, b"x = " + b"[" * 100_000, b"9" * 5000],
    ids=lambda content: content[:10],
)
def test_a_corrupt_file_is_named_and_nothing_is_written(run_folder, name, content):
    if (name, content) == ("config.toml", b"[1]"):
        content = b"[1"
    folder = run_folder(steps=3, epochs=1)
    (folder / name).write_bytes(content)
    with pytest.raises(InputError, match=re.escape(str(folder / name))):
        render([folder])
    assert not (folder / "report.html").exists()


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *(
            ("utility", []),
            ("leakage", {}),
            ("leakage", ["x"]),
            ("cost", None),
            ("weights", "x"),
            ("defenses", ["iso"]),
        ),
        ("leakage", [{"q95": "0.9"}]),
        ("attacks", [{"label": "norm"}]),
        ("alone", 3),
        ("leakage", [{"q95": math.nan}]),
        ("utility", {"last": {"test_auc": -math.inf}}),
    ],
)
def test_a_result_of_another_shape_is_refused_with_the_key(run_folder, key, value):
    folder = run_folder(steps=3, epochs=1)
    change(folder, lambda result: result.update({key: value}))
    named = {"[{'q95': '0.9'}]": "q95", "[{'q95': nan}]": "NaN", "{'last': {'test_auc': -inf}}": "-Infinity"}
    with pytest.raises(InputError, match=r"result\.json.*" + named.get(str(value), key)):
        render([folder])


def test_a_value_that_no_check_knows_ends_in_a_message_with_the_folder(run_folder):
    folder = run_folder(steps=3, epochs=1)
    change(folder, lambda result: result["leakage"][0].update(steps="many"))
    with pytest.raises(InputError, match=rf"no report can be made of {folder}: a value in result\.json or .*Error: "):
        render([folder])


@pytest.mark.parametrize(("reached", "words"), [([], "not known, no epoch ended"), ([None, None], "not known")])
def test_a_budget_of_which_nothing_is_known_is_not_called_kept(run_folder, reached, words):
    folder = run_folder(steps=3, epochs=1)
    change(folder, lambda result: result.update(budget={"leak": {"limit": 0.7, "reached": reached}}))
    text = page(render([folder])).text
    assert f": {words} ." in text
    assert "not passed" not in text
    assert "limit of the leak" not in text  # there is nothing to draw


def test_several_runs_are_compared_in_the_folder_that_holds_them(run_folder, tmp_path):
    defended = [{"name": "iso", "params": {"t": 1.0}}]
    folders = [run_folder("plain", steps=60), run_folder("guarded", steps=60, defenses=defended, leak=0.55, seed=1)]
    path = render(folders)
    assert path == tmp_path / "report.html"
    text = page(path).text
    for words in ("2 runs compared", "plain", "guarded", "iso(t=1)", "none", "0.9321", "Privacy against utility"):
        assert words in text
    assert "do not compare" not in text
    assert not (folders[0] / "report.html").exists()


def test_runs_on_different_data_are_not_compared_silently(run_folder):
    folders = [run_folder("one", steps=3, epochs=1), run_folder("two", steps=3, epochs=1)]
    change(folders[1], lambda result: result["dataset"].update(name="criteo"))
    assert "their numbers do not compare" in page(render(folders)).text


def test_the_folder_of_a_demo_is_reported_as_the_comparison_of_its_runs(run_folder, tmp_path):
    folders = [run_folder("one"), run_folder("two")]
    summary = tmp_path / "summary.json"
    summary.write_text(json.dumps([{"run": folder.name} for folder in folders]))
    assert render([tmp_path]) == tmp_path / "report.html"
    by_name = render(folders, tmp_path / "named.html")
    assert (tmp_path / "report.html").read_text() == by_name.read_text()


@pytest.mark.parametrize("text", ["{", "[1]", '[{"run": "../elsewhere"}]', "5"])
def test_a_summary_that_names_no_runs_is_refused_by_its_name(tmp_path, text):
    (tmp_path / "summary.json").write_text(text)
    with pytest.raises(InputError, match=r"summary\.json (cannot be read as a summary of runs|names a run)"):
        render([tmp_path])


def test_a_run_that_did_not_end_is_marked_in_a_comparison_and_in_no_figure(run_folder):
    folders = [run_folder("plain", steps=20), run_folder("diverged", steps=20, defenses=MARVELL, leak=0.5)]
    text = page(render(folders)).text
    assert "did not end" not in text
    assert "marvell s = 4" in text
    change(folders[1], lambda result: result.update(status="failed", error="training diverged"))
    path = render(folders)
    text = page(path).text
    assert "Some runs did not end by themselves" in text
    assert "diverged: failed. training diverged" in text
    assert "diverged failed marvell(s=4)" in text
    assert "marvell s = 4" not in text  # the name of its line
    assert "good" not in re.findall(r'<strong class="(\w+)">', path.read_text())


def test_a_comparison_of_runs_that_did_not_end_has_their_tables(run_folder):
    folders = [run_folder(name, steps=20) for name in ("one", "two")]
    for folder in folders:
        change(folder, lambda result: result.update(status="interrupted"))
    text = page(render(folders)).text
    assert "one: interrupted." in text
    assert "No leak was logged along training by a run that ended." in text
    assert "Leak by attack and layer" in text


def test_a_run_that_measured_no_leak_can_be_compared(run_folder):
    folders = [run_folder("one", steps=3, epochs=1), run_folder("two", steps=3, epochs=1)]
    for folder in folders:
        change(folder, lambda result: result.update(leakage=[]))
    assert "not measured" in page(render(folders)).text


def test_the_page_is_written_to_the_given_path(run_folder, tmp_path):
    assert render([run_folder(steps=3, epochs=1)], tmp_path / "x.html") == tmp_path / "x.html"
    assert (tmp_path / "x.html").exists()


@pytest.mark.usefixtures("_really_drawn")
def test_the_same_run_gives_the_same_page(run_folder, tmp_path):
    folder = run_folder(steps=60)
    assert render([folder]).read_bytes() == render([folder], tmp_path / "again.html").read_bytes()


def test_no_folder_is_refused():
    with pytest.raises(InputError, match="at least one"):
        render([])


def test_an_oracle_is_named_as_one_and_does_not_make_the_headline(run_folder):
    attacks = (("norm", 0.4), ("cosine", 0.0))
    found = page(render([run_folder(parties=("a",), attacks=attacks, steps=300)])).text
    assert re.search(r"read the labels from the gradients (slightly|clearly) better than by guessing", found)
    assert re.search(r"An oracle knows what no real attacker does.* it bounds nothing", found)
    assert re.search(r"cosine at .* reads the labels almost completely", found)
    assert "Worst practical attack: norm" in found


def test_a_run_with_oracles_only_says_that_no_real_attacker_was_measured(run_folder):
    found = page(render([run_folder(parties=("a",), attacks=(("cosine", 0.0),), steps=60)])).text
    assert "Whether the gradients give the labels away was not tested." in found
    assert "An oracle" in found


def test_attacks_of_one_name_have_a_figure_each(run_folder):
    folder = run_folder(parties=("a",), attacks=(("hint", 0.3), ("hint(k=1)", 0.4)), steps=30, epochs=1)
    change(folder, lambda result: [entry.update(attack="hint", label=entry["attack"]) for entry in result["leakage"]])
    found = page(render([folder])).text
    assert "Attack hint, party a" in found
    assert "Attack hint(k=1), party a" in found
    assert "Only hint and hint(k=1) ran" in found


@pytest.mark.slow
def test_a_validation_part_of_one_class_has_chosen_no_epoch_and_the_page_says_so(run_folder):
    words = "no epoch was chosen by validation"
    unknown = {"validation_auc": None, "validation_loss": 0.1}

    def one_class(result):
        for which, auc in (("last", 0.91), ("best", 0.6642)):
            result["utility"][which].update(unknown, test_auc=auc)

    folder = run_folder(steps=3, epochs=1)
    assert words not in page(render([folder])).text
    change(folder, one_class)
    found = page(render([folder])).text
    assert words in found
    assert "0.6642" not in found
    other = run_folder("other", steps=3, epochs=1)
    assert "0.6642" not in page(render([folder, other], folder / "compared.html")).text


def test_parties_alone_are_measured_by_the_mean_over_more_than_two_classes(run_folder):
    def many(result):
        result["utility"]["last"].update(test_auc=None, test_macro_auc=0.9377)
        result["alone"] = {"a": 0.8111, "b": 0.8222}

    folder = run_folder(steps=3, epochs=1)
    change(folder, many)
    found = page(render([folder])).text.split("What each party would reach alone")[1].split("Cost")[0]
    for text in ("Test AUC, mean over classes", "0.8111", "0.8222", "0.9377"):
        assert text in found


def test_of_more_than_two_classes_the_card_also_counts_each_class_alike(run_folder):
    def many(result):
        result["dataset"].update(classes=3)
        result["utility"]["last"].update(test_auc=None, test_accuracy=0.8915, test_balanced_accuracy=0.6123)

    folder = run_folder(steps=3, epochs=1)
    assert "Mean over classes 0." not in page(render([folder])).text
    change(folder, many)
    found = page(render([folder])).text
    assert "0.8915 test accuracy" in found
    assert "Mean over classes 0.6123 : each class counts as much" in found


MARVELL = ({"name": "marvell", "params": {"s": 4.0, "scope": "joint"}},)


def test_a_run_with_a_bound_says_what_is_certified_beside_what_was_measured(run_folder):
    found = page(render([run_folder(defenses=MARVELL, leak=0.6, sum_kl=0.25, parties=("a",))])).text
    assert "at most 0.719 over all rows (mean over the steps; 0.719 in the last)" in found
    assert "a detection error of at least 0.375 (0.5 is guessing" in found
    assert "In 10.0 % of the 600 steps the batch could not be judged by itself" in found
    assert "in 5.0 % zeros were sent" in found
    assert "No attack at the cut exceeded the bound more often than chance explains" in found
    assert "does not hold here" not in found


@pytest.mark.slow
def test_what_is_certified_where_each_party_has_noise_of_its_own_counts_those_that_collude(tmp_path):
    apart = {"defenses": [{"name": "marvell", "scope": "per-party"}], "training": {"epochs": 1}}
    run(toy_config(attack={"names": ["norm"]}, **apart), out=tmp_path / "run", data=lambda _: toy_data(rows=200))
    found = page(render([tmp_path / "run"])).text
    assert "party a by itself" in found
    assert "parties a and b together" in found
    assert found.count("It does not cover colluding parties") == 2
    assert found.count("what the parties can still read adds up") == 1


def test_a_target_that_was_asked_for_is_that_of_each_party_and_not_of_those_that_collude(tmp_path):
    apart = {"defenses": [{"name": "marvell", "detection_error": 0.4, "scope": "per-party"}], "training": {"epochs": 1}}
    run(toy_config(attack={"names": ["norm"]}, **apart), out=tmp_path / "run", data=lambda _: toy_data(rows=200))
    found = page(render([tmp_path / "run"])).text
    assert found.count("a detection error of at least 0.400 (0.5 is guessing; this target was asked for)") == 2
    assert found.count("this target was asked for") == 2


def test_a_bound_that_fails_is_pointed_out_with_its_steps(run_folder):
    found = page(render([run_folder(defenses=MARVELL, leak=0.97, sum_kl=0.01, parties=("a",), steps=200)])).text
    assert "What is certified The certificate does not hold here" in found
    assert "of 200 steps" not in found.split("What is certified")[0]
    assert "Trust what was measured, not the bound" in found


def test_a_bound_that_scores_pass_turned_around_is_pointed_out(run_folder):
    folder = run_folder(defenses=MARVELL, leak=0.03, sum_kl=0.01, parties=("a",), steps=200)
    facts = {"mean": 0.03, "q95_turned": 0.97, "q95_null": 0.6}
    change(folder, lambda result: [entry.update(facts) for entry in result["leakage"]])
    found = page(render([folder])).text
    assert "What is certified The certificate does not hold here" in found
    assert "norm, turned around, read" in found
    assert "the bound holds for it" in found
    assert "turned around" not in page(render([run_folder("x", defenses=MARVELL, leak=0.6, sum_kl=0.25)])).text


def test_a_run_without_a_bound_says_that_nothing_is_certified(run_folder):
    assert "Nothing: no defense was used" in page(render([run_folder(steps=3, epochs=1)])).text
    iso = ({"name": "iso", "params": {"t": 1.0}},)
    assert "no defense of this run logged a bound" in page(render([run_folder("x", steps=3, defenses=iso)])).text


def test_snapshots_are_drawn_and_put_into_numbers(run_folder):
    found = page(render([run_folder(steps=40, snapshots=(100, 200))])).text
    for words in ("Why gradients tell labels", "‖∂h/∂z‖", "After steps", "100.0 %"):
        assert words in found
    assert "no snapshot of the gradients was kept" not in found


def test_without_a_snapshot_the_page_says_why_there_is_no_figure(run_folder):
    assert "no snapshot of the gradients was kept" in page(render([run_folder(steps=3, epochs=1)])).text


def test_a_snapshot_that_cannot_be_read_is_named(run_folder):
    folder = run_folder(steps=3, epochs=1)
    (folder / "snapshots.parquet").write_bytes(b"torn")
    with pytest.raises(InputError, match=r"snapshots\.parquet"):
        render([folder])


def compared(run_folder):
    attacks = (("norm", 0.1), ("cosine", 0.0))
    facts = {"parties": ("a",), "attacks": attacks, "steps": 60, "epochs": 1}
    folders = [run_folder("none", **facts)]
    for s, leak in ((1.0, 0.8), (4.0, 0.65)):
        defenses = [{"name": "marvell", "params": {"s": s, "scope": "joint"}}]
        for seed in range(2):
            name = f"marvell-{s:g}-{seed}"
            folders.append(run_folder(name, **facts, defenses=defenses, leak=leak, seed=seed, sum_kl=0.25))
    return folders


def test_a_comparison_has_a_line_a_family_a_panel_an_attack_and_layer_and_a_row_a_run(run_folder):
    found = page(render(compared(run_folder)))
    for words in ("marvell s", "marvell s = 4", "no defense", "norm, cut", "cosine, first", "0.719", "Worst oracle"):
        assert words in found.text, words
    labels = [value for name, value in found.attributes if name == "aria-label"]
    assert labels.count("Leak against utility, a line a defense") == 8
    assert labels.count("Leak AUC along training, a line a setting") == 4
    assert "the median of all seeds with a probability of 50.0 %" in found.text
    assert "Beyond defense and seed" not in found.text


def test_runs_that_differ_in_more_than_defense_and_seed_are_compared_with_a_warning(run_folder):
    folders = [run_folder("one", steps=3, epochs=1), run_folder("two", steps=3, epochs=1, seed=1)]
    config = folders[1] / "config.toml"
    config.write_text(config.read_text().replace("batch_size = 1024", "batch_size = 64"))
    found = page(render(folders)).text
    assert "these runs differ in training.batch_size" in found
    assert "no defense · one" in found


def test_runs_of_one_setting_have_no_trade_off_to_draw(run_folder):
    folders = [run_folder("one", steps=3, epochs=1), run_folder("two", steps=3, epochs=1, seed=1)]
    assert "What privacy costs" not in page(render(folders)).text


def test_a_comparison_does_not_replace_the_page_of_all_runs(run_folder):
    folders = [run_folder(name, steps=3, epochs=1) for name in ("one", "two", "three")]
    parent = folders[0].parent
    (parent / "summary.json").write_text(json.dumps([{"run": folder.name} for folder in folders]))
    whole = render([parent])
    before = whole.read_text()
    with pytest.raises(InputError, match=r"report.html is the page of all runs in .*; name another file, as in --out"):
        render(folders[:2])
    assert whole.read_text() == before
    assert render(folders[:2], parent / "two.html").is_file()
    assert render([parent]) == whole
