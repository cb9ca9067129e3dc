"""The command `flower-vfl align`, in this process and in Flower's simulation runtime."""

from __future__ import annotations

import pytest

from flower_vfl.cli import main
from flower_vfl.data.store.alignment import AlignmentFile
from flower_vfl.errors import DataError
from flower_vfl.simulations import flower_engine
from flower_vfl.simulations.flower_engine import align_flower
from tests.apps.alignment.common import federation, people
from tests.commands import flower_vfl, flower_vfl_process

SPANS = {"label": (0, 40), "a": (10, 70), "b": (5, 30)}
COMMON = tuple(sorted(people("", 10, 30)))


def toml(folder):
    config = federation(folder, SPANS)
    files = config.data.options["files"]
    lines = ["[data]", 'name = "files"', "[data.options]", f'labels_file = "{config.data.options["labels_file"]}"']
    lines.append("files = {" + ", ".join(f'{party} = "{path}"' for party, path in files.items()) + "}")
    (folder / "people.toml").write_text("\n".join(lines) + "\n")
    return folder / "people.toml"


def test_help_says_what_the_two_roles_do():
    done = flower_vfl("align", "--help")
    assert done.returncode == 0
    for words in (
        "LABEL PARTY",
        "FEATURE PARTY",
        "FLOWER_VFL_IDS",
        "FLOWER_VFL_ALIGNMENT",
        "--node-config",
        "job='align'",
    ):
        assert words in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "more"),
    [
        pytest.param(flower_vfl_process, (), id="in a process of its own"),
        pytest.param(flower_vfl, ("--method", "hash"), id="hash"),
    ],
)
def test_the_command_writes_a_file_a_party_and_shows_the_number_of_ids(command, more, tmp_path):
    done = command("align", toml(tmp_path), "--out", tmp_path / "out", *more)
    assert done.returncode == 0, done.stderr
    for party in SPANS:
        assert AlignmentFile.read(tmp_path / "out" / party / "alignment.parquet").ids == COMMON
        assert f"{party}: 20 common IDs" in done.stdout
    assert "person-" not in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda folder: (folder / "a.csv").unlink(), "there is no file"),
        (lambda folder: (folder / "a.csv").write_text("id,x\nsomebody,1\n"), "no ID is common"),
        (lambda folder: (folder / "b.csv").write_text("id,x\nq,1\nq,2\n"), "occurs more than once, in rows 1, 2"),
        (lambda folder: (folder / "out").write_text("mine"), "is a file"),
    ],
)
def test_bad_input_is_one_message_and_exit_code_2(change, words, tmp_path):
    config = toml(tmp_path)
    change(tmp_path)
    done = flower_vfl("align", config, "--out", tmp_path / "out")
    assert done.returncode == 2
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.rglob("alignment.parquet"))


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--resources", "cpus=2"], "are for --engine flower"),
        (["--address", "auto"], "are for --engine flower"),
        (["--engine", "flower", "--resources", "c: cpus=2"], "no feature party is called 'c'"),
        (["--engine", "flower", "--resources", "gpus=1"], "computes on processors only"),
        (["--engine", "flower", "--resources", "a: node=10.9.9.9"], "names node 10.9.9.9"),
    ],
)
def test_resources_are_checked_before_flower_starts(more, words, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(flower_engine, "flwr_run", lambda *_: pytest.fail("Flower was started"))
    with pytest.raises(SystemExit) as ended:
        main(["align", str(toml(tmp_path)), "--out", str(tmp_path / "out"), *more])
    assert ended.value.code == 2
    assert words in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_prediction_in_this_process_takes_no_resources(tmp_path, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["predict", str(tmp_path), "--out", str(tmp_path / "scores.csv"), "--address", "auto"])
    assert ended.value.code == 2
    assert "are for --engine flower" in capsys.readouterr().err


def test_an_unknown_method_is_exit_code_2(tmp_path):
    done = flower_vfl("align", toml(tmp_path), "--out", tmp_path / "out", "--method", "md5")
    assert done.returncode == 2
    assert "md5" in done.stderr


@pytest.mark.flower
@pytest.mark.timeout(280)
def test_an_alignment_runs_in_flowers_simulation_runtime_and_each_party_can_prepare_from_it(tmp_path):
    done = flower_vfl_process(
        "align", toml(tmp_path), "--out", tmp_path / "out", "--engine", "flower", "--resources", "cpus=0.5"
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for party in SPANS:
        assert AlignmentFile.read(tmp_path / "out" / party / "alignment.parquet").ids == COMMON
    assert [path for path in (tmp_path / "out").rglob("*") if path.name.startswith(".")] == []
    own = ("--set", f"alignment={tmp_path / 'out' / 'a' / 'alignment.parquet'}", "--set", "label=")
    prepared = flower_vfl(
        "data", "prepare", "files", "--set", f"files.a={tmp_path / 'a.csv'}", *own, "--out", tmp_path / "prepared"
    )
    assert prepared.returncode == 0, prepared.stderr
    assert "parties a, b" in prepared.stdout


@pytest.mark.flower
@pytest.mark.timeout(280)
def test_an_error_of_an_alignment_in_flower_keeps_its_class_and_message(tmp_path):
    config = federation(tmp_path, {"label": (0, 10), "a": (10, 20)})
    with pytest.raises(DataError, match="no ID is common to all parties"):
        align_flower(config, tmp_path / "out")
    assert not list((tmp_path / "out").rglob("*.parquet"))
