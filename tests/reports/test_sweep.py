"""The page of a sweep."""

import csv
import io
import json
import re

import pytest

from flower_vfl.apps.sweeps import Entry, write_record
from flower_vfl.errors import InputError
from flower_vfl.metrics import mean_interval
from flower_vfl.reports import render, render_sweep
from flower_vfl.reports.sweep import estimate, of_sweep

from .conftest import write_run

MARVELL = [{"name": "marvell", "params": {"s": 4.0}}]
MAX_NORM = [{"name": "max_norm", "params": {}}]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Two defenses and none, three seeds; max_norm is beaten by Marvell in both."""
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
            entries.append(Entry(run, run, {"seed": seed, "defenses": name}))
    entries.append(Entry("late", "late", {"seed": 9, "defenses": "none"}))
    write_record(out, entries)
    return out


def test_settings_are_means_over_seeds_with_students_interval(folder):
    (problem,) = of_sweep(folder)["problems"]
    assert [row["title"] for row in problem["rows"]] == ["none", "marvell (s = 4.0)", "max_norm"]
    found = problem["rows"][1]["utility"]
    assert (found.mean, found.count) == (pytest.approx(0.921), 3)
    assert (found.low, found.high) == pytest.approx(mean_interval([0.92, 0.921, 0.922]))
    assert estimate([0.5]).half is None
    assert estimate([]) is None


def test_what_another_setting_beats_is_not_on_the_front_and_the_verdict_names_the_best_that_protects(folder):
    (problem,) = of_sweep(folder)["problems"]
    assert [row["front"] for row in problem["rows"]] == [True, True, False]
    assert problem["verdict"]["undefended"]["title"] == "none"
    assert problem["verdict"]["kept"]["title"] == "marvell (s = 4.0)"


def test_the_page_is_one_file_with_figures_for_each_attack_layer_and_utility(folder):
    page = render_sweep(folder).read_text()
    assert page.count("<svg") == 2 * 2 * 2
    assert "Without a result: late" in page
    assert not re.search(r'(?:src|href)="(?:https?:)?//', page)
    assert 'href="marv-0/report.html"' in page
    assert render([folder]).read_text() == page


def test_the_csv_and_the_latex_tables_hold_the_same_numbers(folder):
    (problem,) = of_sweep(folder)["problems"]
    rows = list(csv.DictReader(io.StringIO(problem["csv"])))
    assert [row["defenses"] for row in rows] == ["none", "marvell(s=4)", "max_norm"]
    assert float(rows[1]["test_auc"]) == pytest.approx(0.921)
    assert rows[1]["test_auc runs"] == "3"
    assert [row["not_beaten"] for row in rows] == ["1", "1", "0"]
    assert r"max\_norm &" in problem["latex"]
    assert r"\textbf{marvell (s = 4.0)} & $0.9210 \pm 0.0025$" in problem["latex"]


def test_another_data_set_is_a_section_of_its_own(tmp_path):
    entries = []
    for base in ("census", "flights"):
        for seed in (0, 1):
            write_run(tmp_path / f"{base}{seed}", seed=seed, steps=20)
            entries.append(Entry(f"{base}{seed}", f"{base}{seed}", {"base": base, "seed": seed}))
    write_record(tmp_path, entries)
    assert [problem["title"] for problem in of_sweep(tmp_path)["problems"]] == ["base = census", "base = flights"]


def test_without_a_record_or_a_result_there_is_no_page(tmp_path):
    with pytest.raises(InputError, match="holds no sweep"):
        render_sweep(tmp_path)
    write_record(tmp_path, [Entry("a", "a", {"seed": 1})])
    with pytest.raises(InputError, match="has left a result yet"):
        render_sweep(tmp_path)


def test_what_a_run_says_is_text_on_the_page_and_in_its_tables(tmp_path):
    write_run(tmp_path / "a", steps=20, defenses=[{"name": "<b>&", "params": {}}])
    write_record(tmp_path, [Entry("a", "a", {"model.network": "<script>$"})])
    page = render_sweep(tmp_path).read_text()
    assert "<script>" not in page
    assert "<b>&" not in page
    assert json.dumps("model.network = <script>$") not in page
