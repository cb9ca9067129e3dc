"""Every number of a page stands under its heading; all numbers here differ."""

import csv
import io
import re
from html.parser import HTMLParser

import numpy as np
import pytest
from scipy import stats

from flower_vfl.apps.sweeps import TrialEntry, write_record
from flower_vfl.metrics import Exceedances, Observations
from flower_vfl.reports import render, render_sweep
from flower_vfl.reports.certified import BoundComparison, Certificate
from flower_vfl.reports.headline import signed
from flower_vfl.reports.sweep import of_sweep
from tests.reports.test_page import change, page
from tests.reports.test_trained import rebuilt

MARVELL = {"name": "marvell", "params": {"s": 4.0, "scope": "joint"}}
CUT = {"party": "a", "layer": "cut", "source": "attacker", "metric": "auc", "phase": "train", "defended": False}


pytestmark = pytest.mark.usefixtures("_nothing_is_drawn")


class Tables(HTMLParser):
    """Parser of a page that collects each table as rows of texts, the head first where there is one."""

    def __init__(self, html):
        super().__init__()
        self.found, self.cell = [], None
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        if tag == "table":
            self.found.append([])
        elif tag == "tr":
            self.found[-1].append([])
        elif tag in ("td", "th"):
            self.cell = []

    def handle_data(self, data):
        if self.cell is not None:
            self.cell.append(data)

    def handle_endtag(self, tag):
        if tag in ("td", "th"):
            self.found[-1][-1].append(" ".join(" ".join(self.cell).split()))
            self.cell = None


def table(path, *first):
    """Return the one table whose first row begins with these texts."""
    (found,) = (t for t in Tables(path.read_text(encoding="utf-8")).found if t[0][: len(first)] == list(first))
    return found


def leak(attack, q95, null, **more):
    return {"attack": attack, "label": attack, "params": {}, **CUT, "q95": q95, "q95_null": null, "mean": q95, **more}


def short(run_folder, name="run", **changes):
    """Write a run of a few steps with these entries in its result."""
    folder = run_folder(name, steps=3, epochs=1)
    change(folder, lambda result: result.update(changes))
    return folder


def test_the_leaks_of_a_run(run_folder):
    worst = {"class": 7, "q95": 0.875, "q95_null": 0.625, "steps": 9}
    hint = {"params": {"k": 2}, "label": "hint(k=2)", "layer": "first", "defended": True, "worst_class": worst}
    numbers = {"mean": 0.603, "max": 0.804, "steps": 95, "one_class_steps": 7, "macro_q95": 0.6875}
    cosine = leak("cosine", 0.95, 0.553, party="b", source="monitor", max=0.99, steps=96, one_class_steps=8)
    trained, remembered = leak("norm", 0.5, 0.5, phase="inference"), leak("norm", 0.5, 0.5, phase="remembered")
    remembered |= {"epochs": [1], "values": [0.5]}
    path = render(
        [short(run_folder, leakage=[leak("hint", 0.701, 0.552, **hint, **numbers), cosine, trained, remembered])]
    )
    assert table(path, "Attack", "Party", "Layer", "Phase") == [
        [*("Attack", "Party", "Layer", "Phase", "Measured by", "Kind", "Gradients", "Metric", "q95"),
         *("Guessing’s q95", "Mean", "Max", "Steps", "Left out")],
        [*("hint(k=2)", "a", "first", "train", "attacker", "practical", "defended", "auc", "0.701"),
         *("0.552", "0.603", "0.804", "95", "7")],
        [*("cosine", "b", "cut", "train", "monitor", "oracle", "unprotected", "auc", "0.950"),
         *("0.553", "0.950", "0.990", "96", "8")],
    ]  # fmt: skip
    assert table(path, "Attack", "Party", "Layer", "Measured by", "Gradients") == [
        [*("Attack", "Party", "Layer", "Measured by", "Gradients"),
         *("Best read class", "Its q95", "Guessing’s q95", "q95, mean over classes")],
        ["hint(k=2)", "a", "first", "attacker", "defended", "7", "0.875", "0.625", "0.688"],
    ]  # fmt: skip


def test_the_headline_of_a_run(run_folder):
    path = render([short(run_folder, leakage=[leak("norm", 0.701, 0.552, steps=90), leak("cosine", 0.95, 0.553)])])
    text = page(path).text
    assert "cosine at party a, cut layer reads the labels almost completely (leak AUC 0.950)" in text
    assert "Leak AUC: the gradients alone 0.701 0.5 1 1 reads every label. Guessing reaches 0.552" in text
    assert "Worst practical attack: norm 0.701 (guessing 0.552) , no higher in 95 of 100 steps" in text
    assert "Utility: how well the model predicts 0.9321 test AUC" in text
    assert "149,271 people, 8.3 % of them positive" in text
    shown = path.read_text()
    assert 'style="width: 40.2%"' in shown  # of the way from 0.5 to 1
    assert 'style="left: 10.4%"' in shown
    assert '<div class="big bad">' in shown


@pytest.mark.parametrize(("q95", "tone"), [(0.553, "warn"), (0.6, "bad"), (0.99, "bad")])
def test_the_colour_of_a_leak_follows_a_test_and_nothing_is_green_that_was_not_tested(run_folder, q95, tone):
    path = render([short(run_folder, leakage=[leak("norm", q95, 0.552, steps=90)])])
    assert f'<div class="big {tone}">' in path.read_text()
    assert f'<p class="headline {tone}">' in path.read_text()


def test_scores_that_are_wrong_are_shown_as_they_are_and_turned_around(run_folder):
    wrong = leak("norm", 0.301, 0.552, mean=0.2) | {"q95_turned": 0.911}
    text = page(render([short(run_folder, leakage=[wrong])])).text
    assert "wrong more often than by chance, 0.301 as they are: turned around they reach 0.911" in text


def test_utility_cost_and_the_parties_alone(run_folder):
    cost = {"steps": 581, "seconds": 11.62, "seconds_compute": 9.8, "seconds_wait": 1.7}
    path = render([short(run_folder, cost=cost | {"bytes_up": 1536, "bytes_down": 3 * 2**20})])
    utility = table(path, "", "Last epoch")
    assert utility[0] == ["", "Last epoch", "Best by validation"]
    assert ["Test AUC", "0.9321", "0.9325"] in utility
    assert ["Epoch", "1", "0"] in utility
    assert table(path, "Party", "Test AUC")[1:] == [
        ["a alone", "0.8791"],
        ["label alone", "0.9222"],
        ["together", "0.9321"],
    ]
    assert table(path, "Steps") == [
        ["Steps", "581"],
        ["Time", "11.6 s"],
        ["Steps per second", "50.0"],
        ["Computing", "9.8 s"],
        ["Waiting", "1.7 s"],
        ["Sent up to the label party", "1.5 KiB"],
        ["Sent down", "3.0 MiB"],
    ]


def test_what_is_certified(run_folder, monkeypatch):
    facts = {"party": "a", "q95": 0.701, "null": 0.552, "error": 0.43, "error_q05": 0.33}
    found = [
        Exceedances(steps=40, exceeded=exceeded, beyond_chance=np.arange(beyond), expected=2.0, worst=0.123)
        for exceeded, beyond in ((9, 7), (8, 1))
    ]
    measured = [
        BoundComparison(
            "norm", layer="first", oracle=True, turned=True, found=found[0], first=[3, 7, 8, 20, 21], **facts
        ),
        BoundComparison("hint", layer="cut", oracle=False, turned=False, found=found[1], first=[4], **facts),
        BoundComparison("norm", layer="cut", oracle=False, turned=False, found=None, first=[], **facts),
        BoundComparison("residual", layer="cut", oracle=False, turned=False, found=found[0], first=[3], **facts),
    ]
    certificate = Certificate(
        defense=MARVELL,
        party="",
        bound=0.61,
        bound_last=0.62,
        silent=0.125,
        error=0.375,
        asked=False,
        fallback=0.25,
        withheld=0.05,
        steps=600,
        accuracy=0.55,
        measured=measured,
    )
    monkeypatch.setattr("flower_vfl.reports.page.certificates", lambda run: [certificate])
    path = render([short(run_folder, defenses=[MARVELL])])
    text = page(path).text
    for words in (
        "a leak AUC of at most 0.610 over all rows (mean over the steps; 0.620 in the last), and a detection error of "
        "at least 0.375",
        "name the class of at most 55.0 % of the examples",
        "In 12.5 % of the steps the bound is 1",
        "In 25.0 % of the 600 steps the batch could not be judged by itself",
        "and in 5.0 % zeros were sent",
        "What is certified The certificate does not hold here",
        "residual read 0.701 at party a (q95), and exceeded the bound by more than chance in 7 of 40 steps, where "
        "chance explains at most 2.0. These gradients",
    ):
        assert words in text, words
    *_, first, second, third, _ = table(path, "Attack", "Party", "Layer", "Bound")
    assert table(path, "Attack", "Party", "Layer", "Bound")[0] == [
        *("Attack", "Party", "Layer", "Bound", "Leak AUC, q95", "Guessing’s q95", "Detection error, mean"),
        *("Its 5 % quantile", "Steps above the bound", "by more than chance", "Chance explains at most"),
        *("Largest excess", "First such steps"),
    ]
    numbers = ["0.610", "0.701", "0.552", "0.430", "0.330"]
    later = ["9 of 40", "7", "2.0", "0.123", "3, 7, 8, 20, 21, …"]
    assert first == ["norm (oracle), turned around", "a", "first *", *numbers, *later]
    assert second == ["hint", "a", "cut", *numbers, "8 of 40", "1", "2.0", "0.123", "4"]
    unknown = "not known: the class counts of the batches were not logged"
    assert third == ["norm", "a", "cut", *numbers, "–", "–", "–", "–", unknown]
    shown = path.read_text()
    assert '<strong class="bad">7</strong>' in shown
    assert '<strong class="good">1</strong>' in shown


def test_the_longitudinal_leaks_of_a_run(run_folder):
    entry = leak("remembered_hint", 0.77, 0.531, phase="remembered", layer="first", params={"k": 5})
    entry |= {"epochs": [2, 4, 7], "values": [0.61, 0.77, 0.72], "interval95": [0.701, 0.744]}
    fit = {**entry, "attack": "remembered_fit", "party": "b", "source": "monitor", "defended": True}
    path = render([short(run_folder, leakage=[entry, fit])])
    numbers = ["2", "0.610", "7", "0.720", "0.701 … 0.744", "0.770", "0.531"]
    assert table(path, "Attack", "Knows", "Party") == [
        [*("Attack", "Knows", "Party", "Layer", "Measured by", "Gradients", "First read after epoch", "Leak AUC then"),
         *("After epoch", "Leak AUC then", "95 % interval", "Largest", "Guessing’s q95")],
        ["remembered_hint(k=5)", "5 positives", "a", "first", "attacker", "unprotected", *numbers],
        ["remembered_fit(k=5)", "5 rows of each class", "b", "first", "monitor", "defended", *numbers],
    ]  # fmt: skip
    text = page(path).text
    assert "and knows 5 positives, reaches a leak AUC over all people of 0.610 after epoch 2 and of 0.720 after" in text
    assert "averages out" not in text  # there was no noise


def test_single_steps_beside_longitudinal_leaks_are_of_practical_attacks(run_folder):
    entry = leak("remembered_norm", 0.9, 0.531, phase="remembered", epochs=[1, 2], values=[0.8, 0.9])
    others = [leak("norm", 0.62, 0.55), leak("cosine", 0.99, 0.55), leak("norm", 0.85, 0.55, party="b")]
    text = page(render([short(run_folder, leakage=[entry, *others])])).text
    assert "From a single step, attacks reach a leak AUC of 0.620 at most (norm," in text
    assert "On single steps, the papers’ measure, the leak is 0.620" in text


def test_attacks_on_the_trained_model(run_folder):
    measures = {
        "accuracy": {"mean": 0.93, "baseline": 0.63, "interval95": [0.92, 1.2], "chance": 0.9},
        "auc": {"mean": 0.81, "baseline": 0.61, "interval95": [0.8, 0.82], "chance": 0.5},
        "balanced_accuracy": {"mean": 0.72, "baseline": 0.52, "interval95": None, "chance": 0.51},
    }
    facts = {"phase": "inference", "layer": "first", "known": 16, "steps": 5, "one_class_steps": 2}
    entry = leak("clustering", 0.7, None, measures=measures, unavailable="too few", **facts)
    path = render([short(run_folder, leakage=[entry])])
    assert table(path, "Attack", "Knows, of each class") == [
        [*("Attack", "Knows, of each class", "Party", "Layer", "Measured by", "AUC", "without the model"),
         *("Accuracy, mean over classes", "without the model", "Accuracy", "without the model", "Draws")],
        [*("clustering", "16", "a", "first", "attacker", "0.810 0.800 … 0.820", "0.610", "0.720", "0.520"),
         *("0.930 0.920 … 1.000", "0.630", "5")],
    ]  # fmt: skip
    text = page(path).text
    assert "Guessing reaches 0.500 (AUC), 0.510 (accuracy, mean over classes), 0.900 (accuracy)." in text
    assert "could not be run in 2 of 5 draws: too few" in text


def test_why_gradients_tell_labels(run_folder, monkeypatch):
    cosines = {"negative": 0.21, "positive": 0.32, "cross": 0.43}
    monkeypatch.setattr("flower_vfl.reports.page.observations", lambda _: Observations(0.91, 0.12, 0.83, cosines))
    path = render([run_folder(steps=3, epochs=1, snapshots=(100,))])
    assert table(path, "After steps") == [
        [*("After steps", "Positives more wrong than the median negative", "Distance of the lengths of ∂h/∂z"),
         *("Pairs of both classes whose gradients point apart", "Mean cosine of ∂h/∂z: negatives"),
         *("positives", "one of each")],
        ["100", "91.0 %", "0.120", "83.0 %", "0.210", "0.320", "0.430"],
    ]  # fmt: skip


def test_the_budget(run_folder, monkeypatch):
    drawn = {}
    monkeypatch.setattr("flower_vfl.reports.budget.budget_figure", lambda _, curves: drawn.update(curves) or "")
    budget = {
        "leak": {"limit": 0.6, "reached": [0.6, None, 0.65, 0.7]},
        "bound": {"limit": 0.8, "reached": [0.61, 0.69, 0.68, 0.66]},
    }
    text = page(render([short(run_folder, budget=budget)])).text
    assert "The measured leak AUC was limited to 0.600 ( attack.max_leak )" in text
    assert ": passed in epoch 3, with 0.650 . For 1 epoch it is not known." in text
    assert "The defense’s bound on the leak AUC was limited to 0.800 ( attack.max_bound )" in text
    assert ": not passed , 0.690 at most." in text
    epochs, values, limit = drawn["leak"]
    assert (epochs.tolist(), limit) == ([1, 2, 3, 4], 0.6)
    assert np.array_equal(values, [0.6, np.nan, 0.65, 0.7], equal_nan=True)


def test_a_comparison_of_runs(run_folder, monkeypatch):
    def one(result):
        result["utility"]["last"]["test_loss"] = 0.1312
        leaks = [("norm", 0.701, 0.552, "first"), ("cosine", 0.903, 0.553, "cut"), ("hint", 0.6, 0.554, "cut")]
        result["leakage"] = [leak(name, q95, null, layer=layer) for name, q95, null, layer in leaks]
        result["rebuild"] = [rebuilt(4, 16)]

    folders = [run_folder(name, steps=3, epochs=1) for name in ("one", "two")]
    change(folders[0], one)
    change(folders[0], lambda result: result["cost"].update(steps=581))
    wrong = leak("norm", 0.2, 0.551, layer="first", mean=0.1, q95_turned=0.925, source="monitor", party="a+b")
    done = {"status": "failed", "leakage": [wrong], "defenses": [MARVELL], "rebuild": []}
    change(folders[1], lambda result: result.update(done))
    change(folders[1], lambda result: [entry.update(defended=True) for entry in result["leakage"]])
    bounds = {"one": [0.66, 0.65], "two": []}
    certified = [type("Certificate", (), {"bound": bound}) for bound in bounds["one"]]
    monkeypatch.setattr(
        "flower_vfl.reports.comparison.certificates", lambda run: certified if run.name == "one" else []
    )
    path = render(folders)
    assert table(path, "#", "Run", "Defense") == [
        [*("#", "Run", "Defense", "Test AUC", "Test loss", "Leak AUC, q95", "Guessing’s q95", "Worst at"),
         *("Worst oracle", "Bound, mean", "Best by validation", "Time", "Steps/s")],
        [*("1", "one", "none", "0.9321", "0.1312", "0.701", "0.552", "norm, party a, first layer"),
         *("0.903", "0.660", "0.9325", "11.6 s", "50.0")],
        [*("2", "two failed", "marvell(s=4)", "0.9321", "0.1270", "0.925", "0.551", "norm, party a+b, first layer"),
         *("–", "–", "0.9325", "11.6 s", "0.3")],
    ]  # fmt: skip
    assert table(path, "Attack, layer") == [
        ["Attack, layer", "1", "2"],
        ["norm, first", "0.701", "0.925"],
        ["cosine, cut", "0.903", "–"],
        ["hint, cut", "0.600", "–"],
    ]
    assert table(path, "#", "Defense", "Labels that are enough") == [
        [*("#", "Defense", "Labels that are enough", "Party", "Reached", "with labels", "Share of the way"),
         *("From scratch, as many", "Enough from scratch", "Federation")],
        ["1", "none", "8", "a", "0.800 model_completion", "8", "75 %", "25 %", "32", "0.900"],
    ]  # fmt: skip
    assert "comes 80 % of the way from guessing" in page(path).text
    assert '<span class="bad">failed</span>' in path.read_text()


def students(*values):
    """Return the mean and the ends of the 95 % interval."""
    return float(np.mean(values)), *stats.t.interval(0.95, len(values) - 1, np.mean(values), stats.sem(values))


@pytest.fixture
def swept(tmp_path, run_folder):
    """Write a sweep of no defense and three strengths, two seeds each; none is fully tested and without a leak."""
    entries = []
    settings = {
        "none": ([], (0.95, 0.97), (0.93, 0.94), (0.12, 0.14)),
        "marvell(s=9)": ([{"name": "marvell", "params": {"s": 9.0}}], (0.54, 0.55), (0.89, 0.9), (0.17, 0.19)),
        "marvell(s=4)": ([{"name": "marvell", "params": {"s": 4.0}}], (0.57, 0.59), (0.91, 0.93), (0.15, 0.16)),
        "marvell(s=1)": ([{"name": "marvell", "params": {"s": 1.0}}], (0.68, 0.7), (0.92, 0.93), (0.15, 0.16)),
    }
    for name, (defenses, leaks, aucs, losses) in settings.items():
        for seed, values in enumerate(zip(leaks, aucs, losses, strict=True)):
            q95, auc, loss = values
            found = [leak("norm", q95, 0.55 + seed / 1000), leak("cosine", q95 + 0.02, 0.551)]
            folder = short(run_folder, f"{name}-{seed}", defenses=defenses, leakage=found)
            change(
                folder, lambda result: [entry.update(defended=bool(result["defenses"])) for entry in result["leakage"]]
            )
            reached = {"validation_auc": auc - 0.01, "test_auc": auc, "test_loss": loss}
            change(folder, lambda result, reached=reached: result["utility"]["last"].update(reached))
            facts = {"seed": seed, "schedule_seed": 10 + seed, "defenses": name, "training.epochs": 1}
            entries.append(TrialEntry(folder.name, name, facts))
    write_record(tmp_path, entries)
    return tmp_path, settings


def test_the_settings_of_a_sweep(swept):
    folder, settings = swept
    path = render_sweep(folder)
    head, *rows = table(path, "Setting", "Runs")
    assert head == [
        *("Setting", "Runs", "Validation AUC", "Test AUC", "Test loss", "Worst leak", "Guessing’s q95", "Verdict"),
        *("norm, cut", "cosine (oracle), cut"),
    ]
    for row, (name, (_, leaks, aucs, losses)) in zip(rows, settings.items(), strict=True):
        leaks_of_oracle = [value + 0.02 for value in leaks]
        cells = []
        validated = [value - 0.01 for value in aucs]
        for values, digits in (
            *((validated, 4), (aucs, 4), (losses, 4)),
            *((leaks, 3), (leaks, 3), (leaks_of_oracle, 3)),
        ):
            mean, low, high = students(*values)
            cells.append(f"{mean:.{digits}f} ± {(high - low) / 2:.{digits}f}")
        cells[4:4] = ["0.551", "leaks" if max(leaks) > 0.56 else "not tested"]
        assert row == [f"{name} · training.epochs = 1 ◆", "2", *cells]
    text = page(path).text
    assert "No setting can be recommended: 3 settings leak and 1 was not fully tested." in text
    assert "In marvell(s=9) · training.epochs = 1 not everything that could find a leak ran." in text
    _, *bars = table(path, "Setting", "Worst leak: AUC of the gradients alone")
    for row, (_, leaks, aucs, _) in zip(bars, settings.values(), strict=True):
        assert f"{np.mean(leaks):.3f}" in row[1]
        assert row[2].startswith(f"{np.mean(aucs):.4f}")
        assert row[3] == signed(np.mean(aucs) - 0.935, 4)
    seconds = 8 * 11.62
    assert f"{seconds:.1f} s of training in all" in text
    assert table(path, "Run", "seed")[1] == [
        *("none-0", "0", "10", "none", "1", "finished", "3", "11.6 s"),
    ]


def test_the_columns_of_the_copied_tables_of_a_sweep(swept):
    folder, settings = swept
    (problem,) = of_sweep(folder)["problems"]
    names = ["validation_auc", "test_auc", "test_loss", "worst_leak", "leak_q95 norm cut", "leak_q95 cosine cut"]
    rows = list(csv.DictReader(io.StringIO(problem["csv"])))
    lines = [line for line in problem["latex"].splitlines() if r"\pm" in line]
    head = r"Setting & Validation AUC & Test AUC & Test loss & Worst leak & norm, cut & cosine, cut \\"
    assert head in problem["latex"]
    for row, line, (name, (_, leaks, aucs, losses)) in zip(rows, lines, settings.items(), strict=True):
        assert (row["defenses"], row["training.epochs"], row["not_beaten"]) == (name, "1", "1")
        cells = []
        columns = ([value - 0.01 for value in aucs], aucs, losses, leaks, leaks, [value + 0.02 for value in leaks])
        for column, values, digits in zip(names, columns, (4, 4, 4, 3, 3, 3), strict=True):
            mean, low, high = students(*values)
            found = [float(row[column + end]) for end in ("", " low95", " high95")]
            assert found == pytest.approx([mean, low, high], rel=1e-5)
            assert row[f"{column} runs"] == "2"
            cells.append(rf"${mean:.{digits}f} \pm {(high - low) / 2:.{digits}f}$")
        assert line == " & ".join([line.partition(" & ")[0], *cells]) + r" \\"
        assert re.match(r"\\textbf\{" + re.escape(name), line)
