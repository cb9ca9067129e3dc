"""The example package is installed as its page says, and a run finds its methods by their short names."""

import json
import shutil
import subprocess
import sys

import pytest

from tests.packaging.conftest import ROOT, Installed, new_environment

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def environment(built_wheel, tmp_path_factory):
    """An environment with our wheel, and the example installed by pip."""
    folder = tmp_path_factory.mktemp("own")
    python = new_environment(folder / "env", built_wheel)
    example = shutil.copytree(ROOT / "examples" / "own_methods", folder / "own_methods")
    install = [sys.executable, "-m", "pip", "--python", python, "install", "-q", "--no-deps", "--no-build-isolation"]
    subprocess.run([*install, "--no-index", example], check=True, capture_output=True, timeout=120)
    shutil.rmtree(example / "own_methods")  # so that only the installed copy can be imported
    return Installed("wheel", python, example, folder)


DESCRIBED = """
import json, sys
from contextlib import redirect_stdout, suppress
from io import StringIO
from flower_vfl.cli import main

shown = {}
for name in sys.argv[1:]:
    with redirect_stdout(StringIO()) as out, suppress(SystemExit):
        main(["methods", name])
    shown[name] = out.getvalue()
print(json.dumps(shown))
"""
"""Script that describes several methods: a process for each would import torch again."""


def test_all_methods_are_listed_and_described_with_their_package_and_parameters(environment):
    done = environment.run("flower-vfl", "methods", cwd=environment.elsewhere)
    assert done.returncode == 0, done.stdout
    listed = {line.split()[0] for line in done.stdout.splitlines() if line.strip()}
    names = ("quantise", "random_top_k", "bottleneck", "label_mixture", "peak", "online")
    described = environment.run("python", "-c", DESCRIBED, *names, cwd=environment.elsewhere)
    assert described.returncode == 0, described.stdout
    shown = json.loads(described.stdout.splitlines()[-1])
    assert set(names) <= listed
    assert all("own-methods 0.1.0" in text for text in shown.values()), shown
    assert "bits=4" in shown["quantise"]
    assert "k=1" in shown["peak"]


def test_a_run_finds_the_methods_by_their_names(environment, tmp_path):
    done = environment.run("flower-vfl", "run", environment.clone / "own.toml", "--out", tmp_path / "run", cwd=tmp_path)
    assert done.returncode == 0, done.stdout
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert [defense["name"] for defense in result["defenses"]] == ["quantise"]
    assert result["defenses"][0]["class"] == "own_methods.defenses:Quantise"
    named = {entry["label"] for entry in result["leakage"] if entry["phase"] == "train"}
    assert named == {"norm", "peak", "peak(k=3)"}
    assert "quantise" in (tmp_path / "run" / "report.html").read_text()


@pytest.mark.flower
@pytest.mark.timeout(240)
def test_flowers_processes_find_the_methods_too(environment, tmp_path):
    settings = ["--engine", "flower", "--set", "training.epochs=1", "--set", "attack.informed=0"]
    settings += ["--out", tmp_path / "run"]
    done = environment.run("flower-vfl", "run", environment.clone / "own.toml", *settings, cwd=tmp_path)
    assert done.returncode == 0, done.stdout
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["defenses"][0]["name"] == "quantise"


def test_the_tests_of_the_example_pass(environment):
    tests = environment.clone / "tests"
    done = environment.run("pytest", "-q", "-p", "no:cacheprovider", tests, cwd=environment.elsewhere)
    assert done.returncode == 0, done.stdout
