"""The command line as a user meets it: exit codes, one clear message, nothing half-written."""

from __future__ import annotations

import errno
import io
import json
import logging
import os
import shlex
import signal
import subprocess
import sys
import time

import pytest
import typer
from rich.console import Console

from flower_vfl.attacks import ATTACKS
from flower_vfl.cli import app, main
from flower_vfl.config import leaf_paths, load_config, preset_names, sweep_names, to_toml
from flower_vfl.data.sources.catalog import RECIPES
from flower_vfl.simulations import running, tables
from flower_vfl.simulations.sweep import search, sweeping
from flower_vfl.strategies import DEFENSES
from flower_vfl.terminal import print_names
from tests.cases import parametrize
from tests.commands import flower_vfl, flower_vfl_process

SMALL = '[data]\nname = "breast-cancer"\n[training]\nepochs = 2\nbatch_size = 64\n'


@pytest.fixture(scope="module")
def preset(tmp_path_factory):
    path = tmp_path_factory.mktemp("preset") / "small.toml"
    path.write_text(SMALL)
    return path


@pytest.fixture(scope="module")
def finished(preset, tmp_path_factory):
    """The folder and the process of a finished run, for several tests."""
    out = tmp_path_factory.mktemp("runs") / "first"
    done = flower_vfl_process("run", preset, "--out", out, "--alone")
    assert done.returncode == 0, done.stderr
    return out, done


def test_every_command_has_help_that_fits_a_terminal(monkeypatch):
    monkeypatch.setattr("tests.commands.COLUMNS", "80")

    def commands(command, path):
        yield path
        for name, inner in getattr(command, "commands", {}).items():
            yield from commands(inner, (*path, name))

    for path in commands(typer.main.get_command(app), ()):
        done = flower_vfl(*path, "--help")
        assert done.returncode == 0
        assert "Usage" in done.stdout
        assert "\\[" not in done.stdout
        if path in ((), ("data",)):
            assert "..." not in done.stdout.split("Commands:")[1]
    shown = " ".join(flower_vfl("predict", "--help").stdout.split())
    assert "Folder of a finished run. [required]" in shown  # arguments are explained, not options alone
    assert "[default: local]" in shown


def test_a_shell_completes_commands_and_options(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["flower-vfl"])
    monkeypatch.setenv("_FLOWER_VFL_COMPLETE", "complete_bash")
    for words, place, expected in (
        ("flower-vfl pre", "1", "predict presets"),
        ("flower-vfl run --en", "2", "--engine"),
    ):
        monkeypatch.setenv("COMP_WORDS", words)
        monkeypatch.setenv("COMP_CWORD", place)
        with pytest.raises(SystemExit) as ended:
            main([])
        assert (ended.value.code, capsys.readouterr().out.split()) == (0, expected.split())


def test_a_run_leaves_what_the_contract_names(finished):
    out, done = finished
    assert {"config.toml", "result.json", "steps.parquet", "report.html"} <= {path.name for path in out.iterdir()}
    result = json.loads((out / "result.json").read_text())
    assert result["schema"] == 1
    assert result["dataset"] == {
        "name": "breast-cancer",
        "rows": result["dataset"]["rows"],
        "validation_rows": result["dataset"]["rows"] // 10,
        "test_rows": result["dataset"]["test_rows"],
        "positives": result["dataset"]["positives"],
        "classes": 2,
        "class_rows": result["dataset"]["class_rows"],
    }
    assert sum(result["dataset"]["class_rows"]) == result["dataset"]["rows"]
    assert result["defenses"] == []
    for moment in ("last", "best"):
        assert {"test_auc", "test_loss", "test_ace", "test_accuracy", "train_loss", "epoch"} <= set(
            result["utility"][moment]
        )
    keys = "attack params metric phase source defended layer party q95 q95_null mean max steps one_class_steps"
    for entry in result["leakage"]:
        assert {*keys.split(), "baseline", "advantage"} <= set(entry)
    cost = {"steps", "seconds", "bytes_up", "bytes_down", "seconds_compute", "seconds_wait"}
    assert cost <= set(result["cost"])
    assert set(result["weights"]) == {"label", "a"}
    environment = {"flower_vfl", "flwr", "torch", "python", "seed", "transport", "device", "threads", "instructions"}
    assert environment <= set(result["environment"])
    assert "Leak AUC" in done.stdout


def test_alone_says_what_each_party_reaches_by_itself(finished):
    out, done = finished
    alone = json.loads((out / "result.json").read_text())["alone"]
    assert set(alone) == {"a", "b"}
    assert "Alone" in done.stdout


@pytest.mark.slow
def test_the_written_configuration_repeats_the_run(finished, tmp_path):
    out, _ = finished
    again = flower_vfl("run", out / "config.toml", "--out", tmp_path / "again")
    assert again.returncode == 0, again.stderr
    first, second = (json.loads((folder / "result.json").read_text()) for folder in (out, tmp_path / "again"))
    assert first["weights"] == second["weights"]
    assert first["utility"] == second["utility"]
    assert first["leakage"] == second["leakage"]


@pytest.mark.slow
def test_report_is_rebuilt_from_the_folder_and_compares_several(finished):
    out, _ = finished
    (out / "report.html").unlink()
    assert flower_vfl("report", out).returncode == 0
    assert (out / "report.html").stat().st_size > 10_000
    (out.parent / "note.txt").touch()
    compare = ("report", *sorted(out.parent.iterdir()), out)  # as a shell expands runs/*
    for _ in range(2):
        done = flower_vfl(*compare)
        assert done.returncode == 0, done.stderr
        assert "left out, because they are no folder of a run: " in done.stderr
        assert str(out.parent / "note.txt") in done.stderr
        compare = ("report", *sorted(out.parent.iterdir()), out)
    page = out.parent / "report.html"
    assert page.stat().st_size > 10_000
    page.write_text("mine")
    done = flower_vfl("report", out, out)
    assert (done.returncode, page.read_text()) == (2, "mine")
    assert f"{page} is no page of flower-vfl; name another file, as in --out some.html" in done.stderr
    assert flower_vfl("report", out, out, "--out", out.parent / "some.html").returncode == 0
    assert (out.parent / "some.html").stat().st_size > 10_000


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_predict_writes_the_scores_of_the_test_rows(finished, tmp_path, ending):
    import pyarrow.dataset

    from flower_vfl.data.sources.catalog import load
    from flower_vfl.metrics import leak_auc

    out, _ = finished
    done = flower_vfl("predict", out, "--out", tmp_path / f"scores.{ending}")
    assert done.returncode == 0, done.stderr
    assert f"scores.{ending}" in done.stdout
    found = pyarrow.dataset.dataset(tmp_path / f"scores.{ending}", format=ending).to_table()
    assert found.column_names == ["id", "score"]
    result = json.loads((out / "result.json").read_text())
    labels = load("breast-cancer").labels().test
    assert leak_auc(found["score"].to_numpy(), labels) == result["utility"]["last"]["test_auc"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["{run}", "--out", "scores.txt"], "scores go into *.csv or *.parquet"),
        (["{run}", "--out", "there.csv"], "there.csv exists; name another file, or replace it with --overwrite"),
        (["nowhere", "--out", "s.csv"], "nowhere is no run"),
        (["{run}", "--out", "s.csv", "--ids", "nowhere.txt"], "nowhere.txt"),
        (["{run}", "--out", "s.csv", "--ids", "ids.txt"], "1 of 2 IDs are not in the data: 'ghost'"),
        (["{run}", "--out", "s.csv", "--data", "nowhere"], "is neither a CSV or Parquet file"),
        (["{run}", "--out", "s.csv", "--app", "."], "is no Flower App"),
        (["{run}", "--out", "s.csv", "--app", ".", "--engine", "flower"], "flwr run APP"),
    ],
)
def test_a_prediction_that_cannot_be_made_ends_with_2_one_message_and_no_file(
    finished, arguments, words, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there.csv").write_text("precious")
    (tmp_path / "ids.txt").write_text("9\nghost\n")
    with pytest.raises(SystemExit) as ended:
        main(["predict", *(part.replace("{run}", str(finished[0])) for part in arguments)])
    errors = capsys.readouterr().err
    assert ended.value.code == 2, errors
    assert words in errors
    assert "Traceback" not in errors
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ids.txt", "there.csv"]
    assert (tmp_path / "there.csv").read_text() == "precious"


@parametrize(
    ("arguments", "words"),
    [
        (["run", "censsus"], "did you mean 'census'? Or give a path ending in .toml or a folder of prepared data"),
        (
            ["run", "nothere"],
            "no preset 'nothere'; `flower-vfl presets` lists them; or give a path ending in .toml or a",
        ),
        (
            ["run", "digits"],
            "data set and no preset; run `flower-vfl data prepare digits --out FOLDER`, then `flower-vfl",
        ),
        (["run", "census-income"], "data set and no preset; its presets are census, "),
        (["sweep", "nothere"], "sweep 'nothere'; `flower-vfl presets` lists them; or give a path ending in .toml"),
        (["sweep", "census"], "did you mean 'census-gradients-sweep'? Or give a path ending in .toml"),
        (["sweep", "."], ". is a folder; name a preset of a sweep or a path ending in .toml"),
        (
            ["run", "./nowhere"],
            "there is no ./nowhere; name a preset or a path ending in .toml or a folder of prepared data",
        ),
        (["run", "."], "the folder . is no prepared data set; see `flower-vfl data prepare`"),
        (["run", __file__], "test_cli.py does not end in .toml, so it is no configuration file; `flower-vfl init`"),
        (["data", "show", __file__], "test_cli.py is a file, no prepared data set; `flower-vfl init`"),
        (["run", "missing.toml"], "no configuration file"),
        (["run", "{preset}", "--set", "training.epochs=0"], "training.epochs"),
        (["run", "{preset}", "--set", "training.epochs=many"], "training.epochs"),
        (["run", "{preset}", "--set", "trainig.epochs=1"], "did you mean 'training.epochs'"),
        (["run", "{preset}", "--set", "epochs"], "key=value"),
        (["run", "{preset}", "--set", "data.name=nowhere"], "no data set named"),
        (["run", "{preset}", "--set", "data.path=/nowhere"], "/nowhere"),
        (["run", "{preset}", "--set", "parties.features=z"], "no party 'z'"),
        (["run", "{preset}", "--set", "defenses=isso(t=1)"], "did you mean 'iso'"),
        (["run", "{preset}", "--set", "defenses=iso(t=-1)"], "iso: t must"),
        (["run", "{preset}", "--set", "attack.names=nrom"], "did you mean 'norm'"),
        (
            ["run", "{preset}", "--set", "attack.names=model_completion(k=5000)"],
            "of class 0 the training rows have 29",
        ),
        (["run", "{preset}", "--set", "attack.names=no_such.package:Attack"], "No module named 'no_such'"),
        (["run", "{preset}", "--set", "defenses=os:system"], "a subclass of flower_vfl.strategies.Defense is needed"),
        (["run", "{preset}", "--set", "defenses=os.:system"], "is no module:Class"),
        (["run", "{preset}", "--set", "training.patience=1", "--set", "training.validation=0"], "validation"),
        (
            ["run", "{preset}", "--set", "transport.host=203.0.113.7", "--set", "transport.kind=stream"],
            "transport.host",
        ),
        (["run", "{preset}", "--alone", "--engine", "flower"], "--alone trains in this process"),
        (["run", "{preset}", "--out", "{preset}/x"], "cannot be written: Not a directory"),
        (["run", "{preset}", "--out", "x" * 300], "cannot be written: File name too long"),
        (["report", "nowhere"], "there is no folder nowhere; name the folder of a run"),
        (["report", __file__], "test_cli.py is a file; name the folder of a run"),
        (["data", "prepare", "nothing", "--out", "x"], "no data set named"),
        (["data", "prepare", "digits", "--as-published", "--out", "x"], "no preprocessing that its authors published"),
        (["data", "prepare", "files", "--from", "nowhere", "--out", "x"], ""),
        (["keys", "--out", "x", "--host", "a b", "--parties", "a"], "neither a host name nor an address"),
        (["app", "census", "--out", "x", "--set", "data.path=y"], "a configuration reaches every party"),
        (["app", "census", "--out", "x", "--set", "defenses=marvel_full"], "did you mean 'marvell_full'?"),
        (["app", "census", "--out", "x", "--set", "defenses=iso(s=1)"], "there is no parameter 's'"),
        (["app", "census", "--out", "x", "--set", "attack.names=nrom"], "did you mean 'norm'?"),
        (["app", "census", "--out", "x", "--set", "attack.names=norm(k=1)"], "there is no parameter 'k'"),
        (["data", "part", "nowhere", "--party", "a", "--out", "x"], "is no prepared data set"),
    ],
    quick=10,
)
def test_bad_input_is_one_clear_message_exit_code_2_and_nothing_written(
    arguments, words, preset, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        main([argument.format(preset=preset) for argument in arguments])
    errors = capsys.readouterr().err
    assert ended.value.code == 2, errors
    assert "Traceback" not in errors
    assert words in errors.replace("\n", " ")
    assert sum("flower-vfl: " in line for line in errors.splitlines()) == 1
    leftovers = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert leftovers == []


def test_a_file_that_is_another_users_is_bad_input_that_names_it(monkeypatch):
    def denied():
        raise PermissionError(errno.EACCES, "Permission denied", "/theirs/manifest.json")

    monkeypatch.setattr("flower_vfl.simulations.listing.print_data_sets", denied)
    done = flower_vfl("data", "list")
    assert done.returncode == 2
    assert "/theirs/manifest.json may not be used by this user: Permission denied" in done.stderr.replace("\n", " ")


def test_an_output_without_space_is_one_message():
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "flower_vfl", "presets"], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert done.returncode == 1
    assert done.stderr == "flower-vfl: the output cannot be written: No space left on device\n"


@pytest.mark.parametrize("arguments", [["fly"], ["run"], ["run", "census", "--fast"]])
def test_unknown_commands_and_options_are_bad_input(arguments, capsys):
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert "Usage" in capsys.readouterr().err


def test_a_folder_in_use_is_not_overwritten(preset, tmp_path):
    (tmp_path / "mine").write_text("precious")
    done = flower_vfl("run", preset, "--out", tmp_path)
    assert done.returncode == 2
    assert "not empty" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]
    done = flower_vfl("run", preset, "--out", tmp_path / "mine")
    assert done.stderr.splitlines() == [f"flower-vfl: {tmp_path / 'mine'} is a file; name a folder with --out"]


@pytest.mark.parametrize("command", [["demo"], ["run", "census"], ["sweep", "census"], ["tune", "census"]])
def test_resume_without_a_folder_names_the_last_one_of_its_kind(command, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit):
        main([*command, "--resume"])
    assert "--resume continues in a folder: name it with --out" in capsys.readouterr().err
    kind = {"demo": "demo", "tune": "tune-census"}.get(command[0], "census")
    for name in (f"{kind}-20261128-224815", f"{kind}-20261127-230000", "other-20261129-000000", f"{kind}-gap"):
        (tmp_path / "runs" / name).mkdir(parents=True)
    with pytest.raises(SystemExit):
        main([*command, "--resume"])
    message = f"--resume continues in a folder: the last one is --out runs/{kind}-20261128-224815"
    assert message in capsys.readouterr().err


def test_of_a_killed_run_every_command_says_how_it_goes_on(preset, tmp_path):
    out = tmp_path / "killed run"
    out.mkdir()
    (out / "config.toml").write_text(to_toml(load_config(str(preset))))
    again = flower_vfl("run", preset, "--out", out)
    assert again.returncode == 2
    assert "holds a run that has not ended: go on with it by --resume, or name another folder" in again.stderr
    command = shlex.join(["flower-vfl", "run", str(out / "config.toml"), "--out", str(out), "--resume"])
    for words in (["report", out], ["predict", out, "--out", tmp_path / "scores.csv"]):
        done = flower_vfl(*words)
        assert done.returncode == 2
        assert f"if it was interrupted, go on with it: {command}" in done.stderr
    assert "Errno" not in done.stderr


def test_a_folder_without_a_run_has_no_report(tmp_path):
    done = flower_vfl("report", tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith(f"flower-vfl: {tmp_path} is no run: there is no config.toml in it")


def test_a_port_in_use_is_bad_input_that_names_the_setting(preset, tmp_path):
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        settings = ["--set", "transport.kind=stream", "--set", f"transport.port={port}"]
        done = flower_vfl("run", preset, *settings, "--out", tmp_path / "run")
    assert done.returncode == 2
    assert "transport.port" in done.stderr
    assert not (tmp_path / "run").exists()


@parametrize(
    ("settings", "words"),
    [
        (["training.learning_rate=1e12"], "smaller training.learning_rate"),
        (["defenses=potential_energy(alpha=1e300)"], "the loss of step 0 is inf; "),
        (["defenses=potential_energy(alpha=1e300)"], "or a smaller alpha of potential_energy"),
    ],
    quick=1,
)
def test_training_that_diverges_is_a_failure_and_keeps_what_was_measured(settings, words, preset, tmp_path):
    options = [option for setting in settings for option in ("--set", setting)]
    done = flower_vfl("run", preset, *options, "--out", tmp_path / "run")
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert "diverged" in done.stderr
    assert words in done.stderr
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["status"] == "failed"
    assert words in result["error"]
    assert (tmp_path / "run" / "report.html").is_file()


def test_an_interruption_while_the_command_line_loads_is_one_line():
    """A module named typer takes the place of the library and raises what Ctrl-C does."""
    code = (
        "import sys, types\n"
        "class Interrupted(types.ModuleType):\n"
        "    def __getattr__(self, name):\n"
        "        raise KeyboardInterrupt\n"
        "sys.modules['typer'] = Interrupted('typer')\n"
        "from flower_vfl.__main__ import main\n"
        "main()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (130, "flower-vfl: interrupted\n")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("transport", "number", "code"),
    [("inproc", signal.SIGINT, 130), ("stream", signal.SIGINT, 130), ("stream", signal.SIGTERM, 143)],
)
def test_a_signal_ends_a_run_with_its_code_and_a_report_of_what_was_measured(transport, number, code, preset, tmp_path):
    out = tmp_path / "run"
    settings = ["--set", "training.epochs=3000", "--set", f"transport.kind={transport}"]
    with subprocess.Popen(
        [sys.executable, "-m", "flower_vfl", "run", str(preset), *settings, "--out", str(out)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        deadline = time.monotonic() + 60
        while not (out / "label.journal").exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        time.sleep(0.5)
        process.send_signal(number)
        try:
            _, errors = process.communicate(timeout=120)
        finally:
            process.kill()  # where SIGINT is ignored, as in a shell's background jobs
    assert process.returncode == code, errors
    assert "Traceback" not in errors
    result = json.loads((out / "result.json").read_text())
    assert result["status"] == "interrupted"
    assert result["cost"]["steps"] > 0
    assert (out / "report.html").is_file()
    command = resume_command(errors)
    assert flower_vfl(*shlex.split(command), "--set", "training.epochs=1").returncode == 2  # another configuration
    assert command == f"run {out / 'config.toml'} --out {out} --resume"


def resume_command(errors):
    return errors.split("it goes on with: flower-vfl ")[1].splitlines()[0]


@pytest.mark.slow
def test_a_run_that_is_interrupted_while_parties_train_alone_goes_on_there(preset, tmp_path, monkeypatch):
    out = tmp_path / "run"

    def interrupt(config):
        raise KeyboardInterrupt

    monkeypatch.setattr(running, "alone_aucs", interrupt)
    done = flower_vfl("run", preset, "--set", "checkpoint.every=-1", "--alone", "--out", out)
    assert done.returncode == 130
    assert resume_command(done.stderr) == f"run {out / 'config.toml'} --out {out} --resume --alone"
    ended = json.loads((out / "result.json").read_text())
    assert ended["status"] == "finished"
    monkeypatch.setattr(running, "alone_aucs", lambda config: {"a": 0.75})
    done = flower_vfl(*shlex.split(resume_command(done.stderr)))
    assert done.returncode == 0, done.stderr
    assert json.loads((out / "result.json").read_text()) == {**ended, "alone": {"a": 0.75}}
    assert "0.75" in (out / "report.html").read_text()
    monkeypatch.setattr(running, "alone_aucs", lambda config: pytest.fail("parties trained alone again"))
    assert flower_vfl("run", out / "config.toml", "--alone", "--out", out, "--resume").returncode == 0


def test_a_sweep_that_is_interrupted_goes_on_with_all_its_options(tmp_path, monkeypatch):
    def interrupt(definition, out, given, *, stacking, **options):
        assert not stacking
        out.mkdir()
        raise KeyboardInterrupt

    monkeypatch.setattr(sweeping, "run_sweep", interrupt)
    options = ["--no-stacking", "--set", "training.epochs=1", "--address", "auto", "--workers", "2"]
    done = flower_vfl("sweep", "toy-gap-sweep", *options, "--out", tmp_path / "out")
    assert done.returncode == 130
    assert resume_command(done.stderr) == f"sweep toy-gap-sweep --out {tmp_path / 'out'} --resume {shlex.join(options)}"


def test_a_search_that_is_interrupted_goes_on_with_all_its_options(tmp_path, monkeypatch):
    def interrupt(definition, out, **options):
        out.mkdir()
        raise KeyboardInterrupt

    monkeypatch.setattr(search, "run_sweep", interrupt)
    options = ["--minutes", "2", "--trials", "5", "--workers", "2", "--set", "training.epochs=1"]
    done = flower_vfl("tune", "toy-gap", *options, "--out", tmp_path / "out")
    assert done.returncode == 130
    assert resume_command(done.stderr) == f"tune toy-gap --out {tmp_path / 'out'} --resume {shlex.join(options)}"


@pytest.mark.parametrize(("text", "warned"), [("", True), ("[data]\nname = 'toy'\n", False)])
def test_a_file_without_data_says_which_data_it_is_about(tmp_path, monkeypatch, text, warned):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(running, "run_here", interrupt)
    (tmp_path / "run.toml").write_text(text)
    done = flower_vfl("run", tmp_path / "run.toml", "--out", tmp_path / "out")
    assert ("run.toml is about census-income, the data of a file" in done.stderr) == warned


@pytest.mark.parametrize(("command", "kept"), [("run", True), ("run", False), ("data", False)])
def test_only_a_run_that_has_measured_says_that_it_is_kept(tmp_path, monkeypatch, command, kept):
    def interrupt(*_, **__):
        if kept:
            (tmp_path / "out" / "checkpoints").mkdir(parents=True)
        raise KeyboardInterrupt

    monkeypatch.setattr(running, "run_here", interrupt)
    monkeypatch.setattr(tables, "prepare", interrupt)
    arguments = ["run", "census"] if command == "run" else ["data", "prepare", "flights"]
    done = flower_vfl(*arguments, "--out", tmp_path / "out")
    assert done.returncode == 130
    assert done.stderr.splitlines()[-1] == "flower-vfl: interrupted"
    assert ("what was measured is kept" in done.stderr) == kept


@pytest.mark.parametrize(
    ("arguments", "shown"), [(["presets"], False), (["-v", "presets"], True), (["presets", "-v"], True)]
)
def test_stages_are_logged_where_verbose_stands_before_or_behind_the_command(arguments, shown):
    assert flower_vfl(*arguments).returncode == 0
    (handler,) = logging.getLogger("flower_vfl").handlers
    assert (handler.level <= logging.INFO) == shown


def test_doctor_finds_this_machine_usable():
    done = flower_vfl("doctor")
    assert done.returncode == 0, done.stdout
    assert "torch" in done.stdout


def test_doctor_counts_the_processors_that_this_process_may_use(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 3, 5})
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    (row,) = (line for line in flower_vfl("doctor").stdout.splitlines() if "processors" in line)
    assert row.split("│")[3].strip() == "3"


def test_data_list_names_the_data_sets():
    done = flower_vfl("data", "list")
    assert done.returncode == 0
    for name in ("census-income", "files", "breast-cancer"):
        assert name in done.stdout


def test_a_data_set_that_is_absent_says_what_to_type(monkeypatch):
    monkeypatch.setattr("tests.commands.COLUMNS", "80")
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    shown = flower_vfl("data", "list").stdout
    assert [line.split()[0] for line in shown.splitlines()[1:-1] if line[0] != " "] == list(RECIPES)
    shown = " ".join(flower_vfl("data", "list", "flights").stdout.split())
    assert "pip install 'flower-vfl[flights]'" in shown
    assert "Licence" in shown


def test_methods_lists_a_line_each_and_explains_one():
    done = flower_vfl("methods")
    assert done.returncode == 0, done.stderr
    lines = [line.split(maxsplit=1) for line in done.stdout.splitlines()]
    assert {*ATTACKS, *DEFENSES} <= {words[0] for words in lines if len(words) == 2}
    explained = {name: flower_vfl("methods", name).stdout for name in ("hint", "cosine", "iso", "marvell_full")}
    assert "k=5" in explained["hint"]
    assert "hints: " in explained["hint"]
    assert "reference: " in explained["cosine"]
    assert "Parameters           t=1.0, scope='joint', rho=0.0" in explained["iso"]
    assert "Classes              two" in explained["marvell_full"]
    assert all("built-in" in text for text in explained.values())
    assert "did you mean 'marvell'" in flower_vfl("methods", "marvel").stderr
    assert flower_vfl("methods", "marvel").stderr.rstrip().endswith("Or give module:Class of what is installed")


def test_formulas_of_a_method_are_shown_without_the_markup_of_docstrings():
    shown = flower_vfl("methods", "remembered_norm").stdout
    assert "with x_{it} the row's gradient" in " ".join(shown.split())
    assert "\n      r_i = " in shown
    assert "math" not in shown


def test_a_key_of_the_configuration_is_explained_and_a_section_listed():
    shown = " ".join(flower_vfl("config", "training.patience").stdout.split())
    for words in ('Type whole number or "auto"', 'Default "auto"', "Allowed at least 0", "Stop after so many epochs"):
        assert words in shown
    assert flower_vfl("config", "training-patience").stdout == flower_vfl("config", "training.patience").stdout
    entry = " ".join(flower_vfl("config", "data.options.foo").stdout.split())
    assert "data.options.foo is one of them; flower-vfl data list NAME lists those of a data set" in entry
    assert "Its entries" not in shown
    section = flower_vfl("config", "checkpoint").stdout.splitlines()
    assert [line.split()[0] for line in section[1:]] == ["checkpoint.every", "checkpoint.keep"]
    assert {line.split()[0] for line in flower_vfl("config").stdout.splitlines()} >= set(leaf_paths())
    refused = flower_vfl("config", "patience")
    words = "flower-vfl: there is no configuration key 'patience'; did you mean 'training.patience'?"
    assert (refused.returncode, refused.stderr.strip()) == (2, words)


def test_the_sentence_of_a_preset_ends_before_a_command():
    assert "for the preset dbpedia\n" in flower_vfl("presets").stdout
    assert "csv.gz" not in flower_vfl("presets").stdout


def test_a_preset_is_printed_as_a_file_that_can_be_run(tmp_path):
    (tmp_path / "mine.toml").write_text(flower_vfl("presets", "toy-gap").stdout)
    assert load_config(str(tmp_path / "mine.toml")) == load_config("toy-gap")
    listed = [line.split()[0] for line in flower_vfl("presets").stdout.splitlines() if line]
    assert {*preset_names(), *sweep_names()} <= set(listed)


def test_lists_fit_a_terminal_and_their_names_are_whole():
    out = io.StringIO()
    rows = [("a_name_of_some_length", "yes", "word " * 30), ("short", "no", "[few] words")]
    print_names("Title", rows, Console(file=out, force_terminal=True, color_system=None, width=80))
    lines = out.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[1].startswith("a_name_of_some_length  yes  word word")
    assert lines[1].endswith("…")
    assert lines[2].split(maxsplit=2) == ["short", "no", "[few] words"]


def test_lists_fit_80_columns_in_a_pipe_and_lose_no_word():
    out = io.StringIO()
    words = "-".join(["part"] * 20)
    rows = [
        ("a_name_of_some_length", "yes", f"{'word ' * 30}end"),
        ("short", "no", f"[few] words {words} more"),
        ("x", "", ""),
    ]
    print_names("Title", rows, Console(file=out, width=80))
    lines = out.getvalue().splitlines()
    assert [len(line) for line in lines if len(line) > 80] == [len(words) + 28]
    names = {line.split()[0]: number for number, line in enumerate(lines) if not line.startswith(" ")}
    assert list(names) == ["Title", "a_name_of_some_length", "short", "x"]
    assert lines[1].startswith("a_name_of_some_length  yes  word word")
    shown = " ".join(" ".join(lines[names["a_name_of_some_length"] : names["short"]]).split())
    assert shown == f"a_name_of_some_length yes {'word ' * 30}end"
    assert all(line.startswith(" " * 28) for line in lines[2 : names["short"]])


def test_every_list_fits_80_columns_in_a_pipe(monkeypatch):
    monkeypatch.setattr("tests.commands.COLUMNS", "80")
    for command in (["presets"], ["config"], ["config", "training"], ["methods"], ["data", "list"], ["doctor"]):
        assert max(map(len, flower_vfl(*command).stdout.splitlines())) <= 80, command


def test_methods_lists_those_of_other_packages_and_what_is_wrong_with_them(install, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    code = "from flower_vfl.attacks import NormAttack\nclass Mine(NormAttack):\n    '[Mine] alone.'\n    name = 'mine'"
    declared = "[flower_vfl.attacks]\nmine = mine:Mine\n[flower_vfl.defenses]\nbroken = broken:Broken\n"
    install("my-attacks", {"mine": code, "broken": "import nothing_such"}, declared)
    with pytest.raises(SystemExit) as ended:
        main(["methods"])
    assert ended.value.code == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "mine [Mine] alone." in shown
    assert "broken Cannot be used: the defense 'broken' of my-attacks 1.0" in shown
    with pytest.raises(SystemExit):
        main(["methods", "mine"])
    assert "mine: attack (my-attacks 1.0)" in capsys.readouterr().out


def test_a_method_is_explained_by_its_module_and_class(install):
    code = (
        "from flower_vfl.attacks import NormAttack\nfrom flower_vfl.strategies import Iso\n"
        "class Mine(NormAttack):\n    '[Mine] alone.'\n    name = 'mine'\n"
        "class Noisy(Iso):\n    'Add [noise].'\n    name = 'noisy'\n"
    )
    install("explained-methods", {"explained_methods": code})
    attack, defense = (flower_vfl("methods", f"explained_methods:{name}").stdout for name in ("Mine", "Noisy"))
    assert "explained_methods:Mine: attack (in results mine)" in attack
    assert "[Mine] alone." in attack
    assert "explained_methods:Noisy: defense (in results noisy)" in defense
    assert "Parameters           t=1.0" in defense
    for name, words in (
        ("no_such:Attack", "No module named 'no_such'"),
        ("os:system", "a subclass of flower_vfl.strategies.Defense is needed"),
    ):
        done = flower_vfl("methods", name)
        assert done.returncode == 2
        assert done.stderr.count(words) == 1


def test_a_partys_part_is_written_for_its_host(tmp_path):
    assert flower_vfl("data", "prepare", "breast-cancer", "--out", tmp_path / "whole").returncode == 0
    done = flower_vfl("data", "part", tmp_path / "whole", "--party", "a", "--out", tmp_path / "part")
    assert done.returncode == 0, done.stderr
    assert "digest" in done.stdout
    assert sorted(path.name for path in (tmp_path / "part").iterdir()) == ["a", "ids", "manifest.json"]


def test_only_a_file_that_names_no_data_is_said_to_be_about_the_usual_data(tmp_path):
    path, refused = tmp_path / "run.toml", ("--engine", "flower", "--alone")  # refused before anything runs
    for text, more, shown in (
        ("seed = 1\n", (), True),
        ("[data]\noptions = {}\n", (), True),
        ('[data]\nname = "census-income"\n', (), False),
        ("seed = 1\n", ("--set", "data.name=census-income"), False),
        ("seed = 1\n", ("--set", "data-name=census-income"), False),
    ):
        path.write_text(text)
        done = flower_vfl("run", path, *refused, *more)
        assert "leave out --engine flower" in done.stderr
        assert ("the data of a file whose [data] names none" in done.stderr) is shown


@pytest.mark.slow
def test_a_users_own_files_are_prepared_and_run(tmp_path):
    import numpy as np

    rng = np.random.default_rng(0)
    ids = [f"p{i:04d}" for i in range(400)]
    x, z = rng.normal(size=400), rng.normal(size=400)
    label = (x + z + 0.2 * rng.normal(size=400) > 0).astype(int)  # with noise, so that training ends early
    (tmp_path / "left.csv").write_text(
        "id,x,city\n" + "".join(f"{i},{v:.4f},c{k % 3}\n" for k, (i, v) in enumerate(zip(ids, x, strict=True)))
    )
    rows = [f"{i},{v:.4f},{y}\n" for i, v, y in zip(ids, z, label, strict=True)]
    rng.shuffle(rows)
    (tmp_path / "right.csv").write_text("id,z,label\n" + "".join(rows))
    files = [f"{party}={tmp_path}/{party}.csv" for party in ("left", "right")]
    done = flower_vfl("init", *files, "--label", "label", "--out", tmp_path / "own.toml")
    assert done.returncode == 0, done.stderr
    assert f"Next: flower-vfl run {tmp_path}/own.toml" in done.stdout
    assert flower_vfl("init", *files, "--out", tmp_path / "own.toml").returncode == 2  # the file exists
    bad = flower_vfl("init", *files, "--label", "label", "--set", "dtype.cty=ignore", "--out", tmp_path / "bad.toml")
    assert bad.returncode == 2
    assert "no table has a column 'cty'; did you mean 'city'" in bad.stderr
    assert "Next" not in bad.stdout
    done = flower_vfl("run", tmp_path / "own.toml", "--out", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / "out" / "result.json").read_text())
    assert result["status"] == "early stopping"
    assert result["utility"]["last"]["test_auc"] > 0.95


def test_init_says_how_many_people_the_files_share_where_some_are_left_out(tmp_path):
    rows = {"left": range(100), "right": range(30, 110)}
    for party, people in rows.items():
        text = "".join(f"p{row},{row % 7},{row % 2}\n" for row in people)
        (tmp_path / f"{party}.csv").write_text(f"id,x,{'label' if party == 'right' else 'y'}\n{text}")
    words = ["init", *(f"{party}={tmp_path}/{party}.csv" for party in rows), "--id", "id", "--label", "label"]
    done = flower_vfl(*words, "--out", tmp_path / "own.toml")
    assert "70 people are in all files; rows of people whom others lack: left: 30, right: 10\n" in done.stdout
    right = (tmp_path / "right.csv").read_text()
    (tmp_path / "left.csv").write_text(right.replace("label", "y"))
    (tmp_path / "right.csv").write_text(right.replace("p50,1,0", "p50,1,"))
    done = flower_vfl(*words, "--set", "unlabelled=drop", "--out", tmp_path / "labelled.toml")
    assert "79 people are in all files and have a label; rows of people whom others lack or who have no" in done.stdout
    (tmp_path / "right.csv").write_text(right)
    done = flower_vfl(*words, "--out", tmp_path / "all.toml")
    assert "in all files" not in done.stdout


@parametrize(
    ("train", "test", "k", "words"),
    [
        ("aaaa", "aaaa", 1, "there is nothing to learn; two classes at least are needed"),
        ("abab", "abca", 1, "has test rows of class 'c', which no training row has"),
        ("abca", "abab", 1, ""),
        ("abaa", "abab", 5, "5 labelled examples of each class were to leak; of class 1 the training rows have 3"),
    ],
    quick=1,
)
def test_classes_that_never_or_hardly_occur_are_refused_or_do_no_harm(train, test, k, words, tmp_path):
    """There are 12 training and 12 test rows; a pattern of four labels repeats in each."""
    options = []
    for key, labels in (("files", train), ("test_files", test)):
        for party, column in (("left", "x"), ("right", "z,label")):
            rows = (f"{key}{i},{i % 5 - 2}.5" + f",{labels[i % 4]}" * (party == "right") for i in range(12))
            (tmp_path / f"{party}-{key}.csv").write_text(f"id,{column}\n" + "\n".join(rows) + "\n")
        options.append(f'{key} = {{ left = "{tmp_path}/left-{key}.csv", right = "{tmp_path}/right-{key}.csv" }}\n')
    (tmp_path / "own.toml").write_text(
        f'[data]\nname = "files"\n[data.options]\n{"".join(options)}'
        "[training]\nepochs = 2\nbatch_size = 4\n[model]\ncut = 4\n"
        f'[attack]\nnames = ["clustering", "model_completion(k={k}, draws=1)"]\n'
        '[[defenses]]\nname = "potential_energy"\n[[defenses]]\nname = "distance_correlation"\n'
    )
    done = flower_vfl("run", tmp_path / "own.toml", "--out", tmp_path / "out")
    assert "Traceback" not in done.stderr
    assert words in done.stderr
    if words:
        assert done.returncode == 2
        assert not (tmp_path / "out").exists()
        return
    assert done.returncode == 0, done.stderr
    summary = json.loads((tmp_path / "out" / "result.json").read_text(), parse_constant=pytest.fail)
    read = [entry for entry in summary["leakage"] if entry["phase"] == "inference"]
    assert {entry["attack"] for entry in read} == {"clustering", "model_completion"}
    assert all(0 < entry["mean"] <= 1 for entry in read)
