"""The folder of a sweep."""

import json

import pytest

from flower_vfl.apps.sweeps import RECORD, read_record
from flower_vfl.config import to_toml
from flower_vfl.errors import ConfigError, FolderInUseError, InputError, OutputExistsError
from flower_vfl.simulations.sweep.definition import load_definition
from flower_vfl.simulations.sweep.folder import SweepFolder
from flower_vfl.simulations.sweep.trials import trials_of


@pytest.fixture
def trials(tmp_path):
    def reading(seeds):
        path = tmp_path / "sweep.toml"
        path.write_text(f"[grid]\nseed = {seeds}", encoding="utf8")
        return trials_of(load_definition(str(path)))

    return reading


def finish(folder, trial, status="finished", config=None, **more):
    place = folder.of(trial)
    place.mkdir()
    (place / "config.toml").write_text(to_toml(config or trial.config))
    sections = {"dataset": {}, "defenses": [], "utility": {}, "leakage": [], "cost": {}}
    (place / "result.json").write_text(json.dumps({"schema": 1, "status": status, **sections, **more}))


def test_finished_trials_are_not_done_again_failed_and_unfinished_ones_are(tmp_path, trials):
    sweep = trials([0, 1, 2, 3])
    with SweepFolder(tmp_path / "out", "text", sweep) as folder:
        assert folder.waiting == sweep
        finish(folder, sweep[0])
        finish(folder, sweep[1], "failed")
        finish(folder, sweep[2], "leak limit")
    with SweepFolder(tmp_path / "out", "text", sweep, resume=True) as folder:
        assert [trial.run for trial in folder.waiting] == [sweep[1].run, sweep[3].run]
    assert (tmp_path / "out" / "sweep.toml").read_text() == "text"


def test_what_ended_each_try_is_noted_in_full_and_stays_when_the_sweep_goes_on(tmp_path, trials):
    sweep = trials([0, 1])
    with SweepFolder(tmp_path / "out", "text", sweep) as folder:
        folder.failed("seed0", "Traceback\n  somewhere\nOdd: gone\x1b[2J " + "x" * 9000)
    with SweepFolder(tmp_path / "out", "text", sweep, resume=True) as folder:
        folder.failed("seed0", "Odd: again")
    expected = "seed0:\nTraceback\n  somewhere\nOdd: gone\\x1b[2J " + "x" * 9000 + "\n\nseed0:\nOdd: again\n\n"
    assert (tmp_path / "out" / "errors.log").read_text() == expected


@pytest.mark.parametrize(
    "damage",
    [
        *({key: None} for key in ("dataset", "defenses", "utility", "leakage", "cost")),
        {"schema": 2},
        {"utility": {"last": 0.9}},
        {"leakage": [{"q95": "0.9"}]},
        {"leakage": [{"party": ["a", "b"]}]},
        {"cost": {"seconds": float("nan")}},
    ],
    ids=str,
)
def test_a_trial_whose_result_is_damaged_is_done_again_and_that_is_said_before_the_first_starts(
    tmp_path, trials, damage, caplog
):
    sweep = trials([0, 1])
    with SweepFolder(tmp_path / "out", "", sweep) as folder:
        finish(folder, sweep[0], **damage)
        finish(folder, sweep[1])
        assert folder.result(sweep[0]) is None
    with SweepFolder(tmp_path / "out", "", sweep, resume=True) as folder:
        assert folder.waiting == sweep[:1]
        assert not (folder.of(sweep[0]) / "result.json").exists()
    assert f"{sweep[0].run}/result.json" in caplog.text
    assert "It is removed, and the trial done again." in caplog.text


def test_attempts_are_counted_on_when_a_sweep_goes_on_after_a_kill(tmp_path, trials):
    with SweepFolder(tmp_path / "out", "", trials([0, 1])) as folder:
        for run in ("seed0", "seed1", "seed1"):
            folder.begun(run)
    with SweepFolder(tmp_path / "out", "", trials([0, 1, 2]), resume=True) as folder:
        assert folder.attempts == {"seed0": 1, "seed1": 2}
        for run in ("seed1", "seed2"):
            folder.begun(run)
    found = {entry.run: entry.attempts for entry in read_record(tmp_path / "out")}
    assert found == {"seed0": 1, "seed1": 3, "seed2": 1}


def test_a_result_of_another_configuration_is_refused(tmp_path, trials):
    sweep = trials([0, 1])
    with SweepFolder(tmp_path / "out", "", sweep) as folder:
        finish(folder, sweep[0], config=sweep[1].config)
    with pytest.raises(ConfigError, match="another configuration"):
        SweepFolder(tmp_path / "out", "", sweep, resume=True)


def test_another_sweep_is_refused_but_one_with_more_trials_goes_on_under_the_old_names(tmp_path, trials):
    small, large = trials([0, 1]), trials([0, 1, 2])
    with SweepFolder(tmp_path / "out", "", small) as folder:
        (tmp_path / "out" / RECORD).write_text((tmp_path / "out" / RECORD).read_text().replace("seed0", "first"))
    with SweepFolder(tmp_path / "out", "", large, resume=True) as folder:
        assert [trial.run for trial in folder.trials] == ["first", "seed1", "seed2"]
    with pytest.raises(ConfigError, match="holds another sweep: this file has no trial like seed2"):
        SweepFolder(tmp_path / "out", "", small, resume=True)


def test_the_copy_of_the_file_goes_on_with_the_bases_beside_the_original(tmp_path, monkeypatch):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "base.toml").write_text("model.cut = 3")
    (tmp_path / "mine" / "sweep.toml").write_text('base = "base.toml"\n[grid]\nseed = [0, 1]')
    monkeypatch.chdir(tmp_path)
    source, trials = "mine/sweep.toml", []
    for resume in (False, True, True):
        definition = load_definition(source)
        trials.append(trials_of(definition))
        with SweepFolder(
            tmp_path / "out", definition.text, trials[-1], origin=definition.folder, resume=resume
        ) as folder:
            assert folder.trials == trials[0]
        source = str(tmp_path / "out" / "sweep.toml")
        monkeypatch.chdir(tmp_path / "out")


def test_a_folder_with_something_in_it_is_refused(tmp_path, trials):
    sweep = trials([0, 1])
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.toml").write_text("")
    for resume in (False, True):
        with pytest.raises(OutputExistsError, match="not empty"):
            SweepFolder(tmp_path / "run", "", sweep, resume=resume)
    SweepFolder(tmp_path / "out", "", sweep).__exit__()
    with pytest.raises(OutputExistsError, match="--resume"):
        SweepFolder(tmp_path / "out", "", sweep)


def test_a_folder_that_is_in_use_is_refused(tmp_path, trials):
    sweep = trials([0, 1])
    with SweepFolder(tmp_path / "out", "", sweep), pytest.raises(FolderInUseError, match="in use by process"):
        SweepFolder(tmp_path / "out", "", sweep, resume=True)
    SweepFolder(tmp_path / "out", "", sweep, resume=True).__exit__()


def test_bad_input_leaves_no_folder_but_results_stay(tmp_path, trials):
    sweep = trials([0, 1])
    with SweepFolder(tmp_path / "out", "", sweep) as folder:
        folder.discard()
    assert not (tmp_path / "out").exists()
    with SweepFolder(tmp_path / "out", "", sweep) as folder:
        finish(folder, sweep[0])
        folder.discard()
    assert (tmp_path / "out" / sweep[0].run / "result.json").is_file()


@pytest.mark.parametrize(
    "record",
    [
        "{",
        "[]",
        '{"schema": 2, "trials": []}',
        '{"schema": 1, "trials": [{"run": "../x", "digest": "", "values": {}}]}',
        '{"schema": 1, "trials": [{"run": "..", "digest": "", "values": {}}]}',
        '{"schema": 1, "trials": 3}',
        "[" * 100_000,
    ],
    ids=lambda record: record[:70],
)
def test_a_record_that_is_damaged_or_names_other_folders_is_refused(tmp_path, record):
    (tmp_path / RECORD).write_text(record)
    with pytest.raises(InputError, match=r"sweep\.json"):
        read_record(tmp_path)
