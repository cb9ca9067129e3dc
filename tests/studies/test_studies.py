"""Shared code of the studies: runs made once, numbers over seeds, blocks of a page."""

import importlib
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from flower_vfl.config import build_config
from flower_vfl.errors import FolderInUseError, TrainingError
from flower_vfl.files import FolderLock
from flower_vfl.strategies import DEFENSE_METHODS
from tests.studies.conftest import PAGES, ROOT

pytestmark = pytest.mark.usefixtures("beside_the_studies")


def test_the_interval_over_seeds_is_that_of_students_t():
    from studies import common as studies

    values = [0.93, 0.91, 0.95, 0.92, 0.94]
    mean, half = studies.interval(values)
    low, high = stats.t.interval(0.95, 4, loc=np.mean(values), scale=stats.sem(values))
    assert (mean - half, mean + half) == pytest.approx((low, high))
    assert studies.shown(values) == "0.930 ± 0.020"
    assert studies.shown([0.5]) == "0.500"


def test_the_share_of_a_curve_below_another_is_measured_where_both_are():
    from studies import common as studies

    rising = np.array([[0.0, 0.0], [1.0, 1.0]])
    flat = np.array([[2.0, 0.25], [-1.0, 0.25]])
    assert studies.share_below(rising, flat) == pytest.approx(0.25, abs=0.01)
    assert studies.share_below(flat, rising) == pytest.approx(0.75, abs=0.01)
    assert np.isnan(studies.share_below(rising, flat + np.array([[5.0, 0.0]])))


def test_generated_blocks_replace_what_stands_between_their_marks():
    from studies import common as studies

    page = "a\n<!-- begin x -->\nold\n\\1\n<!-- end x -->\nb\n<!-- begin y -->\n<!-- end y -->\n"
    filled = studies.fill(page, {"x": r"new \1"})
    assert filled == "a\n<!-- begin x -->\nnew \\1\n<!-- end x -->\nb\n<!-- begin y -->\n<!-- end y -->\n"


def work(job):
    """Write the result of a run, or fail."""
    if job.setting == "broken":
        raise ValueError("out of luck")
    job.folder.mkdir(parents=True)
    (job.folder / "result.json").write_text("{}")
    return 1.0


@pytest.mark.slow
def test_a_finished_run_is_not_made_again_and_one_that_fails_stops_no_other(tmp_path, capsys):
    from studies import common as studies

    jobs = [studies.job_of(tmp_path, "toy", setting, 0) for setting in ("there", "broken", "missing")]
    work(jobs[0])
    with pytest.raises(SystemExit, match=r"(?s)some runs failed.*broken/seed-0: ValueError: out of luck"):
        studies.do_all(jobs, work, 1)
    assert [job.done for job in jobs] == [True, False, True]
    assert "1 runs are there, 2 to do" in capsys.readouterr().out
    studies.do_all([jobs[0], jobs[2]], work, 1)
    assert "2 runs are there, 0 to do" in capsys.readouterr().out


def test_a_run_appears_when_it_is_complete(tmp_path):
    from studies import common as studies

    job = studies.job_of(tmp_path, "toy", "none", 0)
    small = {"data": {"name": "breast-cancer"}, "training": {"epochs": 1}, "attack": {"names": []}}
    diverging = {**small, "defenses": [{"name": "potential_energy", "alpha": 1e300}]}
    with pytest.raises(TrainingError):
        studies.do(job, build_config(diverging))
    assert not job.folder.exists()
    assert studies.do(job, build_config(small)) > 0
    assert job.done
    assert [folder.name for folder in job.folder.parent.iterdir()] == ["seed-0"]


def test_a_run_that_another_process_makes_is_left_to_it(tmp_path):
    from studies import common as studies

    job = studies.job_of(tmp_path, "toy", "none", 0)
    part = job.folder.with_name("seed-0.part")
    part.mkdir(parents=True)
    (part / "steps.parquet").write_text("half of it")
    with FolderLock(part), pytest.raises(FolderInUseError):
        studies.do(job, build_config({"data": {"name": "breast-cancer"}}))
    assert (part / "steps.parquet").exists()


def jobs_and_pages(monkeypatch, *arguments):
    """Return the jobs that a study's command line would run, and the pages that it would make."""
    from studies import common as studies

    jobs, pages = [], []
    monkeypatch.setattr(studies, "do_all", lambda given, work, processes: jobs.extend(given))
    monkeypatch.setattr("sys.argv", ["toy.py", *arguments])
    studies.Study(
        "A toy.",
        "toy",
        studies=["one", "two"],
        settings=["none", "some", "more"],
        seeds=range(2),
        quick=("none", "more"),
        run_one=work,
        make_page=lambda runs, out: pages.append((runs, out)),
    ).main()
    return [(job.seed, job.study, job.setting, job.options["quick"], str(job.folder)) for job in jobs], pages


def test_a_study_runs_all_chosen_settings_seed_by_seed(monkeypatch):
    found, pages = jobs_and_pages(monkeypatch, "run")
    assert not pages
    assert len(found) == 12
    assert [seed for seed, *_ in found] == [0] * 6 + [1] * 6
    assert found[0] == (0, "one", "none", False, "runs/toy/one/none/seed-0")
    assert {study for _, study, *_ in found[:6]} == {"one", "two"}
    some, _ = jobs_and_pages(
        monkeypatch, "run", "--study", "two", "--settings", "some", "none", "--seeds", "5", "3", "--runs", "x"
    )
    assert [job[:3] for job in some] == [(s, "two", name) for s in (5, 3) for name in ("some", "none")]
    assert some[0][4] == "x/two/some/seed-5"


def test_a_quick_study_has_one_seed_and_few_settings(monkeypatch):
    found, _ = jobs_and_pages(monkeypatch, "run", "--quick", "--seeds", "7", "8")
    assert [job[:4] for job in found] == [
        (7, study, name, True) for study in ("one", "two") for name in ("none", "more")
    ]


def test_a_page_is_made_of_the_finished_runs(monkeypatch, tmp_path):
    from studies import common as studies

    found, pages = jobs_and_pages(monkeypatch, "page", "--runs", str(tmp_path))
    assert (found, pages) == ([], [(tmp_path, PAGES)])
    assert jobs_and_pages(monkeypatch, "page", "--out", str(tmp_path))[1] == [(Path("runs/toy"), tmp_path)]
    with pytest.raises(SystemExit):
        jobs_and_pages(monkeypatch, "run", "--study", "three")
    for place, seed in (("seed-10", 10), ("seed-2", 2), ("seed-3.part", 3)):
        (tmp_path / "none" / place).mkdir(parents=True)
        (tmp_path / "none" / place / "result.json").write_text(json.dumps({"environment": {"seed": seed}}))
    (tmp_path / "none" / "seed-4").mkdir()  # empty
    assert [folder.name for folder, _ in studies.finished(tmp_path / "none")] == ["seed-2", "seed-10"]
    summary = studies.by_setting(tmp_path, ["some", "none"], lambda result: [("x", result["environment"]["seed"] / 2)])
    assert summary == {"settings": {"none": {"seeds": [2, 10], "x": [1.0, 5.0]}}}
    assert studies.undefended(["a", "b"], {"a": summary, "b": {"settings": {"iso": {}}}}.get) == {"a": summary}


@pytest.mark.parametrize(
    ("judged", "holds"), [([True, True], True), ([True, None], None), ([None, False], False), ([], None)]
)
def test_a_claim_of_several_parts_holds_where_all_do(judged, holds):
    from studies import common as studies

    assert studies.all_of(judged) is holds


def test_one_command_lists_the_studies_and_refuses_other_names():
    def run(*words):
        return subprocess.run(
            [sys.executable, "-m", "studies", *words], cwd=ROOT, capture_output=True, text=True, check=False
        )

    listed = run()
    assert listed.returncode == 0
    names = {path.parent.name for path in (ROOT / "studies").glob("*/study.py")}
    assert set(listed.stdout.split()[-len(names) :]) == names
    assert "headline has other commands" in listed.stdout
    assert run("nothing").returncode == 2
    assert run("shapes", "page", "--help").returncode == 0


@pytest.mark.parametrize("name", ["gradients", "shapes", "classes", "all_epochs", "beyond", "readers", "proof"])
def test_every_defense_that_a_setting_names_is_found(name, monkeypatch, tmp_path):
    module = importlib.import_module(f"studies.{name}.study")
    ran = []
    monkeypatch.setattr(module, "do", lambda job, config, **_: ran.append(config) or 0.0)
    for setting in module.SETTINGS:
        job = module.Job(next(iter(module.STUDIES)), setting, 0, tmp_path, {"quick": True})
        module.run_one(job)
    assert len(ran) == len(module.SETTINGS)
    for config in ran:
        assert DEFENSE_METHODS.find_all(call["name"] for call in config.defenses) is not None
