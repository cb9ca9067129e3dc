"""Wheel or editable, from the root of the clone or from anywhere else: the cases that docs/decisions/0001 names."""

import json
import zipfile

import pytest

pytestmark = pytest.mark.slow

WHERE = """
import flower_vfl.strategies, flower_vfl.simulations
print(flower_vfl.__file__, flower_vfl.strategies.__file__)
"""
COLLECT = ("--collect-only", "-q", "--assert=plain", "-p", "no:cacheprovider", "-m", "")
MEBIBYTE = 2**20


def only(kind):
    """Return a mark that limits a slow test to one kind of installation."""
    return pytest.mark.parametrize("installed", [kind], indirect=True)


def test_both_folders_are_imported_from_the_package(installed, cwd):
    done = installed.run("python", "-c", WHERE, cwd=cwd)
    assert done.returncode == 0, done.stdout
    home = installed.clone if cwd == installed.clone else installed.home
    package = home / "flower_vfl"
    assert done.stdout.split() == [str(package / "__init__.py"), str(package / "strategies" / "__init__.py")]


@pytest.mark.parametrize("name", ["strategies", "simulations", "tests", "benchmarks", "src"])
def test_no_folder_of_the_clone_becomes_importable_by_accident(installed, name):
    done = installed.run("python", "-c", f"import {name}", cwd=installed.elsewhere)
    assert done.returncode == 1
    assert f"No module named '{name}'" in done.stdout


def test_the_module_runs(installed, cwd):
    done = installed.run("python", "-m", "flower_vfl", "--help", cwd=cwd)
    assert done.returncode == 0, done.stdout
    assert "demo" in done.stdout


def test_the_command_runs(installed, cwd):
    done = installed.run("flower-vfl", "data", "list", cwd=cwd)
    assert done.returncode == 0, done.stdout
    assert "census" in done.stdout


@only("wheel")  # the editable installation is the one that this runs in
def test_pytest_collects_the_tests(installed, place):
    done = installed.run("pytest", *COLLECT, installed.clone / "tests", cwd=place)
    assert done.returncode == 0, done.stdout
    assert "tests/packaging/test_installed.py::test_the_module_runs" in done.stdout


@only("wheel")
def test_python_m_pytest_collects_the_tests_although_it_puts_the_root_on_the_path(installed):
    done = installed.run("python", "-m", "pytest", *COLLECT, "tests/packaging", cwd=installed.clone)
    assert done.returncode == 0, done.stdout
    assert "tests/packaging/test_installed.py::test_the_module_runs" in done.stdout


def test_flwr_builds_a_bundle_of_the_two_thin_apps(installed, cwd):
    for old in cwd.glob("*.fab"):
        old.unlink()
    done = installed.run("flwr", "build", "--app", installed.clone, cwd=cwd)
    assert done.returncode == 0, done.stdout
    (bundle,) = cwd.glob("*.fab")
    assert bundle.stat().st_size < 10 * MEBIBYTE
    with zipfile.ZipFile(bundle) as content:
        files = {name for name in content.namelist() if not name.startswith(".info/")}
    assert files == {"pyproject.toml", "simulations/server_app.py", "simulations/client_app.py"}


def test_mypy_follows_the_package_from_a_foreign_folder(installed, tmp_path_factory):
    script = installed.elsewhere / "script.py"
    script.write_text(
        "from flower_vfl.strategies import Iso\n"
        "from flower_vfl.simulations.running import alone_aucs\n"
        "reveal_type(Iso.name)\n"
        "number: int = alone_aucs\n"
    )
    cache = tmp_path_factory.getbasetemp() / "mypy_cache"  # one for both
    others = ("torch.*", "numpy.*", "sklearn.*", "pyarrow.*", "flwr.*", "pydantic.*", "scipy.*", "rich.*", "typer.*")
    settings = installed.elsewhere / "mypy.ini"  # other packages take most of the time
    settings.write_text("".join(f"[mypy-{name}]\nfollow_imports = skip\n" for name in others).join(["[mypy]\n", ""]))
    strict = ("--strict", "--config-file", settings, "--cache-dir", cache)
    done = installed.run("mypy", *strict, script, cwd=installed.elsewhere)
    assert "script.py:3: note: Revealed type is" in done.stdout
    assert "script.py:4: error: Incompatible types in assignment" in done.stdout
    assert "Found 1 error in 1 file" in done.stdout


IN_FLOWER = """
import os, pathlib, subprocess, sys
from flower_vfl.simulations.flower_engine import super_link
app, out = sys.argv[1:]
environment = {**os.environ, "FLWR_HOME": str(pathlib.Path(out).parent / "home")}
settings = f'preset="" data-name="breast-cancer" training-epochs=1 training-batch-size=128 out="{out}"'
resources = "num-supernodes=2 client-resources-num-cpus=1 init-args-num-cpus=2"
with super_link(pathlib.Path(environment["FLWR_HOME"]), environment):
    command = ["flwr", "run", app, "--stream", "--run-config", settings, "--federation-config", resources]
    sys.exit(subprocess.run(command, env=environment).returncode)
"""


@pytest.mark.flower
@only("editable")
def test_flwr_run_trains(installed, place, tmp_path):
    app = "." if place == installed.clone else installed.clone
    out = tmp_path / "out"
    switched_off = {"FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1"}
    done = installed.run("python", "-P", "-c", IN_FLOWER, app, out, cwd=place, timeout=280, **switched_off)
    assert done.returncode == 0, done.stdout
    assert (out / "result.json").is_file(), done.stdout
    result = json.loads((out / "result.json").read_text())
    assert result["utility"]["last"]["epoch"] == 1, done.stdout
    assert result["environment"]["transport"] == "stream"
