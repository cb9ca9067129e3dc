"""The page of a sweep."""

import csv
import io
import json
import re

import pytest

from flower_vfl.apps.sweeps import TrialEntry, write_record
from flower_vfl.errors import InputError
from flower_vfl.metrics import mean_interval
from flower_vfl.reports import render, render_sweep
from flower_vfl.reports.run import load_run
from flower_vfl.reports.sweep import estimate, of_sweep
from tests.auditing.test_verdict import FEW, complete, informed, step

from .conftest import write_run
from .test_page import change, page

pytestmark = pytest.mark.usefixtures("_sketched")

MARVELL = [{"name": "marvell", "params": {"s": 4.0}}]
MAX_NORM = [{"name": "max_norm", "params": {}}]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Write a sweep of two defenses and none with three seeds; Marvell beats max_norm in leak and utility."""
    out = tmp_path_factory.mktemp("sweep")
    entries = []
    for name, defenses, leak, utility in (
        ("none", [], 0.98, 0.93),
        ("marvell(s=4)", MARVELL, 0.57, 0.92),
        ("max_norm", MAX_NORM, 0.7, 0.91),
    ):
        for seed in range(3):
            run = f"{name[:4]}-{seed}"
            write_run(
                out / run,
                defenses=defenses,
                leak=leak,
                utility=utility + 0.001 * seed,
                seed=seed,
                steps=40,
                parties=("a",),
                attacks=(("norm", 0.0), ("cosine", 0.1)),
            )
            entries.append(TrialEntry(run, run, {"seed": seed, "defenses": name}))
    entries.append(TrialEntry("late", "late", {"seed": 9, "defenses": "none"}))
    write_record(out, entries)
    return out


def test_settings_are_means_over_seeds_with_students_interval(folder):
    (problem,) = of_sweep(folder)["problems"]
    assert [row["title"] for row in problem["rows"]] == ["none", "marvell(s=4)", "max_norm"]
    found = problem["rows"][1]["utility"]
    assert (found.mean, found.count) == (pytest.approx(0.921), 3)
    assert (found.low, found.high) == pytest.approx(mean_interval([0.92, 0.921, 0.922]))
    assert estimate([0.5]).half is None
    assert estimate([]) is None


def test_what_another_setting_beats_is_not_on_the_front(folder):
    (problem,) = of_sweep(folder)["problems"]
    assert [row["front"] for row in problem["rows"]] == [True, True, False]


def ranked(tmp_path, edit=lambda result, name: None, **of_settings):
    """Write a sweep of tested settings (leak, validation AUC, test AUC); return its rows by name and its section."""
    entries = []
    for index, (name, (leak, validation, test)) in enumerate(of_settings.items()):
        defenses = [] if name == "none" else [{"name": "marvell", "params": {"s": float(index)}}]
        write_run(tmp_path / name, defenses=defenses, utility=test, steps=3, epochs=1, parties=("a",))

        def change_to(result, name=name, leak=leak, validation=validation, defended=bool(defenses)):
            result["leakage"] = [{**one, "defended": defended} for one in complete(step("residual", leak))]
            result["utility"]["last"]["validation_auc"] = validation
            edit(result, name)

        change(tmp_path / name, change_to)
        entries.append(TrialEntry(name, name, {"defenses": name}))
    write_record(tmp_path, entries)
    (problem,) = of_sweep(tmp_path)["problems"]
    return {row["setting"].runs[0].name: row for row in problem["rows"]}, problem


@pytest.mark.slow
def test_settings_are_ranked_and_recommended_by_validation_and_not_by_the_test(tmp_path):
    settings = {"none": (0.98, 0.95, 0.95), "better": (0.5, 0.92, 0.80), "lucky": (0.5, 0.90, 0.94)}
    rows, problem = ranked(tmp_path, **settings)
    assert [name for name, row in rows.items() if row["front"]] == ["none", "better"]
    assert problem["choice"].row is rows["better"]
    assert [row["not_beaten"] for row in csv.DictReader(io.StringIO(problem["csv"]))] == ["1", "1", "0"]
    found = render_sweep(tmp_path)
    assert "Recommended: marvell(s=1). No leak was found." in page(found).text
    assert "It reaches a test AUC of 0.8000, −0.1500 against no defense. Of 2 settings without" in page(found).text
    assert found.read_text().count('class="chosen"') == 1


def test_what_a_reader_with_own_data_reaches_stands_beside_the_leak_of_gradients_alone(tmp_path):
    def read_more(result, name):
        if name == "more":
            result["leakage"] = complete(informed(0.93, 1e-9, ("gradients", "embeddings")))

    rows, _ = ranked(tmp_path, read_more, none=(0.98, 0.95, 0.95), more=(0.55, 0.92, 0.92))
    assert (rows["more"]["worst"].mean, rows["more"]["own_data"].mean) == (pytest.approx(0.55), 0.93)
    assert "with own data 0.930, gain" in page(render_sweep(tmp_path)).text


def test_a_setting_that_leaks_is_not_recommended_however_little_and_the_least_is_named(tmp_path):
    settings = {"none": (0.98, 0.95, 0.95), "little": (0.6, 0.92, 0.92), "more": (0.7, 0.94, 0.94)}
    _, problem = ranked(tmp_path, **settings)
    assert (problem["choice"].row, problem["choice"].tone) == (None, "bad")
    text = page(render_sweep(tmp_path)).text
    assert "Every setting leaks: none can be recommended." in text
    assert "marvell(s=1) leaks least: leak AUC 0.600, guessing reaches 0.550." in text
    assert "Recommended" not in text


def test_a_setting_that_leaks_in_single_steps_shows_them_and_does_not_leak_least(tmp_path):
    def read_few(result, name):
        if name == "few":
            result["leakage"] = complete(step("residual", 0.56, q95_p_value=0.4, **FEW))

    rows, _ = ranked(tmp_path, read_few, none=(0.98, 0.95, 0.95), few=(0.56, 0.92, 0.92), more=(0.7, 0.94, 0.94))
    assert (rows["few"]["status"], rows["few"]["worst"].mean) == ("leaks", pytest.approx(0.56))
    text = page(render_sweep(tmp_path)).text
    assert "0.560 leaks in single steps up to 0.990" in text
    assert "marvell(s=2) leaks least: leak AUC 0.700, guessing" in text


def test_a_setting_that_was_not_tested_is_not_recommended(tmp_path):
    def drop(result, name):
        if name == "gap":
            result["leakage"] = [one for one in result["leakage"] if one["attack"] != "shell"]

    _, problem = ranked(tmp_path, drop, none=(0.98, 0.95, 0.95), gap=(0.5, 0.92, 0.92))
    assert problem["choice"].headline == ("No setting can be recommended: 1 setting leaks and 1 was not fully tested.")


def test_a_setting_whose_proof_holds_is_named_with_its_largest_epsilon(tmp_path):
    def prove(result, name):
        if name != "none":
            epsilon = 2.0 if name == "two" else 0.5
            result["defenses"][0]["proven"] = {"epsilon": epsilon, "auc": 0.7}

    _, problem = ranked(tmp_path, prove, none=(0.98, 0.95, 0.95), two=(0.9, 0.93, 0.93), half=(0.9, 0.92, 0.92))
    assert problem["choice"].headline.startswith("Proven: marvell(s=2), epsilon 0.5")


def test_each_setting_has_its_worst_leak_as_a_bar_with_links_to_its_runs_above_the_fold(folder):
    text = render_sweep(folder).read_text()
    above, _, folded = text.partition("For engineers")
    assert above.count('class="gauge') == 3
    for seed in range(3):
        assert f'href="marv-{seed}/report.html">0</a>' in above  # all of them were written with seed 0
    assert "<svg" not in above
    assert folded.count("<svg") == 8


def test_without_a_validation_part_nothing_is_ranked_or_recommended(tmp_path):
    settings = {"none": (0.98, None, 0.95), "one": (0.5, None, 0.80), "other": (0.5, None, 0.94)}
    rows, problem = ranked(tmp_path, **settings)
    assert not any(row["front"] for row in rows.values())
    assert problem["choice"].row is None
    text = page(render_sweep(tmp_path)).text
    assert "nothing may be chosen by the test rows" in text
    assert "Recommended" not in text
    assert "0.9400" in text


def test_the_page_is_one_file_with_figures_for_each_attack_layer_and_utility(folder):
    page = render_sweep(folder).read_text()
    assert page.count("<svg") == 2 * 2 * 2
    assert "Without a result: late" in page
    assert not re.search(r'(?:src|href)="(?:https?:)?//', page)
    assert 'href="marv-0/report.html"' in page
    assert render([folder]).read_text() == page
    with pytest.raises(InputError, match="the page of a sweep is beside its tables"):
        render([folder], folder / "other.html")


def test_the_csv_and_the_latex_tables_hold_the_same_numbers(folder):
    (problem,) = of_sweep(folder)["problems"]
    rows = list(csv.DictReader(io.StringIO(problem["csv"])))
    assert [row["defenses"] for row in rows] == ["none", "marvell(s=4)", "max_norm"]
    assert float(rows[1]["test_auc"]) == pytest.approx(0.921)
    assert rows[1]["test_auc runs"] == "3"
    assert [row["not_beaten"] for row in rows] == ["1", "1", "0"]
    assert r"max\_norm &" in problem["latex"]
    assert r"\textbf{marvell(s=4)} & $0.9230 \pm 0.0025$ & $0.9210 \pm 0.0025$" in problem["latex"]


def test_another_data_set_is_a_section_of_its_own(tmp_path):
    entries = []
    for base in ("census", "flights"):
        for seed in (0, 1):
            write_run(tmp_path / f"{base}{seed}", seed=seed, steps=20)
            entries.append(TrialEntry(f"{base}{seed}", f"{base}{seed}", {"base": base, "seed": seed}))
    write_record(tmp_path, entries)
    assert [problem["title"] for problem in of_sweep(tmp_path)["problems"]] == ["base = census", "base = flights"]


@pytest.fixture
def broken(tmp_path):
    """Return a function that writes a sweep; runs with another status predict better and leak less than the others."""

    def write(**statuses):
        entries = []
        for name, defenses in (("none", []), ("marvell", MARVELL)):
            for seed in (0, 1):
                run = f"{name}{seed}"
                leak, utility = (0.5, 0.99) if run in statuses else (0.98, 0.9)
                facts = {"leak": leak, "utility": utility, "seed": seed, "steps": 20, "parties": ("a",)}
                write_run(tmp_path / run, defenses=defenses, **facts)
                status = {"status": statuses.get(run, "finished"), "error": "it died"}
                change(tmp_path / run, lambda result, status=status: result.update(status))
                entries.append(TrialEntry(run, run, {"seed": seed, "defenses": name}))
        write_record(tmp_path, entries)
        return tmp_path

    return write


@pytest.mark.parametrize("status", ["failed", "interrupted"])
def test_runs_that_did_not_end_are_in_no_mean_not_on_the_front_and_not_recommended(broken, status):
    folder = broken(marvell0=status, marvell1=status)
    found = of_sweep(folder)
    (problem,) = found["problems"]
    assert [row["title"] for row in problem["rows"]] == ["none"]
    assert (problem["choice"].row, problem["rows"][0]["front"]) == (None, True)
    assert list(found["broken"]) == ["marvell0", "marvell1"]
    text = page(render_sweep(folder)).text
    assert "2 runs of 1 settings" in text
    assert "2 of 4 runs did not end" in text
    assert f"marvell0, {status}: it died" in text


def test_of_a_setting_with_a_run_that_failed_the_others_count_and_it_says_how_many(broken):
    folder = broken(marvell1="failed")
    _, marvell = of_sweep(folder)["problems"][0]["rows"]
    assert (marvell["utility"].count, marvell["utility"].mean) == (1, 0.9)
    assert "1 of 2 0.9020 0.9000" in page(render_sweep(folder)).text


def test_a_mean_of_which_not_all_runs_have_a_value_says_of_how_many_it_is(broken):
    folder = broken()
    change(folder / "none1", lambda result: result["utility"]["last"].update(test_loss=None))
    found = page(render_sweep(folder)).text
    assert re.search(r"0\.9000 ± 0\.0000 0\.1270 of 1 0\.", found)


@pytest.mark.parametrize("status", ["early stopping", "leak limit", "bound limit"])
def test_a_run_that_a_rule_ended_counts(broken, status):
    assert of_sweep(broken(marvell1=status))["problems"][0]["rows"][1]["utility"].count == 2


def test_a_sweep_of_which_no_run_has_ended_says_so_and_why(broken):
    text = page(render_sweep(broken(**dict.fromkeys(("none0", "none1", "marvell0", "marvell1"), "failed")))).text
    assert "No run has ended by itself" in text
    assert "none1, failed: it died" in text


def test_what_was_not_tested_is_named_with_the_runs_that_lack_it(tmp_path):
    persistent = [{"name": "iso", "params": {"t": 1.0, "rho": 0.5}}]
    apart = {"phase": "remembered", "params": {"reads": "mean"}, "epochs": [1], "values": [0.6]}
    entries = []
    for name, defenses in (("none", []), ("iso", persistent)):
        for seed in (0, 1):
            write_run(tmp_path / f"{name}{seed}", defenses=defenses, seed=seed, steps=20, parties=("a",))
            change(tmp_path / f"{name}{seed}", lambda result: result["leakage"][0].update(apart))
            entries.append(TrialEntry(f"{name}{seed}", name, {"seed": seed, "defenses": name}))
    change(tmp_path / "none1", lambda result: result["leakage"].clear())
    write_record(tmp_path, entries)
    gaps = {gap.partition(".")[0]: where for gap, where in of_sweep(tmp_path)["gaps"]}
    assert gaps["Active attackers, which send crafted embeddings to steer the training"] == []
    assert gaps["Readers that keep the epochs apart"] == ["iso(t=1, rho=0.5)"]
    assert gaps["Any attack at all: none ran"] == ["none1"]
    assert gaps["Other attacks"] == ["none0", "iso(t=1, rho=0.5)"]
    assert "reads this difference. Only of: iso(t=1, rho=0.5)." in page(render_sweep(tmp_path)).text


def test_of_many_settings_that_lack_something_some_are_named(tmp_path):
    for number in range(12):
        write_run(tmp_path / f"run{number}", seed=number, steps=2, epochs=1, parties=("a",))
        if number:
            change(tmp_path / f"run{number}", lambda result: result["leakage"].clear())
    write_record(tmp_path, [TrialEntry(f"run{n}", str(n), {"attack.every": n}) for n in range(12)])
    where = dict(of_sweep(tmp_path)["gaps"])["Any attack at all: none ran."]
    assert where == [*(f"attack.every = {n} · none" for n in range(1, 9)), "3 more"]


def test_a_leak_without_what_chance_reaches_and_a_cost_without_a_number_have_a_page(tmp_path):
    for seed in (0, 1):
        write_run(tmp_path / str(seed), seed=seed, steps=20)
    change(tmp_path / "1", lambda result: [entry.pop("q95_null") for entry in result["leakage"]])
    change(tmp_path / "1", lambda result: result["cost"].update(seconds="long"))
    write_record(tmp_path, [TrialEntry(str(seed), str(seed), {"seed": seed}) for seed in (0, 1)])
    assert of_sweep(tmp_path)["seconds"] == load_run(tmp_path / "0").result["cost"]["seconds"]
    assert "<svg" in render_sweep(tmp_path).read_text()


def test_without_a_record_or_a_result_there_is_no_page(tmp_path):
    with pytest.raises(InputError, match="holds no sweep"):
        render_sweep(tmp_path)
    write_record(tmp_path, [TrialEntry("a", "a", {"seed": 1})])
    with pytest.raises(InputError, match="has left a result yet"):
        render_sweep(tmp_path)


@pytest.mark.parametrize("value", [["none"], {"t": 1.0}, None])
def test_a_record_with_a_value_that_is_none_is_refused(tmp_path, value):
    write_run(tmp_path / "a", steps=2, epochs=1)
    write_record(tmp_path, [TrialEntry("a", "a", {"defenses": value})])
    with pytest.raises(InputError, match=r"sweep\.json gives 'a' defenses = .*; a text, a number"):
        render_sweep(tmp_path)


@pytest.mark.usefixtures("_really_drawn")
def test_what_a_run_says_is_text_on_the_page_and_in_its_tables(tmp_path):
    write_run(tmp_path / "a", steps=20, defenses=[{"name": "<b>&", "params": {}}])
    write_record(tmp_path, [TrialEntry("a", "a", {"model.network": "<script>$"})])
    page = render_sweep(tmp_path).read_text()
    assert "<script>" not in page
    assert "<b>&" not in page
    assert json.dumps("model.network = <script>$") not in page


ATTACKS = ("norm", "cosine", "inner_product", "residual", "remembered_norm", "remembered_direction")


@pytest.fixture(scope="module")
def hundred(tmp_path_factory):
    """Write a sweep of no defense and three at eight strengths, four seeds each; six attacks and two layers."""
    out = tmp_path_factory.mktemp("hundred")
    families = (("iso", "t"), ("marvell", "s"), ("label_dp", "flip"))
    strengths = [(name, key, 2.0**power) for name, key in families for power in range(-4, 4)]
    settings = [("none", [], 0.98)]
    settings += [
        (f"{name}({key}={value:g})", [{"name": name, "params": {key: value}}], 0.95 - 0.01 * number)
        for number, (name, key, value) in enumerate(strengths)
    ]
    attacks = tuple((name, 0.02 * number) for number, name in enumerate(ATTACKS))
    entries = []
    for title, defenses, leak in settings:
        for seed in range(4):
            run = f"seed{seed}-{title}"
            utility = 0.9 + 0.03 * leak + 0.001 * seed
            write_run(out / run, defenses=defenses, leak=leak, utility=utility, seed=seed, steps=4, attacks=attacks)
            entries.append(TrialEntry(run, run, {"seed": seed, "defenses": title}))
    write_record(out, entries)
    return out


@pytest.mark.slow
@pytest.mark.usefixtures("_really_drawn")
def test_the_page_of_a_hundred_runs_is_a_few_megabytes_at_most(hundred):
    path = render_sweep(hundred)
    text = path.read_text()
    assert text.count("<svg") >= 24
    assert sum(f'/report.html">{run.name}</a>' in text for run in hundred.iterdir() if run.is_dir()) == 100
    assert path.stat().st_size < 5e6
