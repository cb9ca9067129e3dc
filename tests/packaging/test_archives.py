"""What a wheel and a source distribution hold."""

import subprocess
import sys
import tarfile
import zipfile

import pytest

from tests.packaging.conftest import ROOT, build

pytestmark = pytest.mark.slow

LINKED = ("strategies", "simulations")


def files_of(wheel):
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def test_a_wheel_holds_every_file_of_the_package_and_nothing_else(built_wheel):
    packed = {name for name in files_of(built_wheel) if ".dist-info/" not in name}
    expected = set()
    for folder, linked in (("flower_vfl", LINKED), ("strategies", ()), ("simulations", ())):
        for path in (ROOT / folder).rglob("*"):
            inside = path.relative_to(ROOT / folder)
            if path.is_file() and path.suffix != ".pyc" and inside.parts[0] not in linked:
                home = "flower_vfl" if linked else f"flower_vfl/{folder}"
                expected.add(f"{home}/{inside.as_posix()}")
    assert packed == expected


def test_a_wheel_holds_what_is_read_at_run_time(built_wheel):
    packed = files_of(built_wheel)
    assert "flower_vfl/py.typed" in packed
    assert "flower_vfl/simulations/presets/census.toml" in packed
    assert "flower_vfl/reports/templates/run.html.j2" in packed
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in packed)


def test_a_wheel_holds_no_links(built_wheel):
    with zipfile.ZipFile(built_wheel) as archive:
        kinds = {info.external_attr >> 28 for info in archive.infolist()}
    assert kinds == {0o10}  # ordinary files


def test_a_source_distribution_builds_the_same_wheel_again(built_sdist, built_wheel, tmp_path):
    with tarfile.open(built_sdist) as archive:
        safely = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}  # from Python 3.11.4 on
        archive.extractall(tmp_path, **safely)
    (tree,) = tmp_path.iterdir()
    assert not (tree / "tests").exists()
    assert files_of(build(tree, "wheel", tmp_path / "dist")) == files_of(built_wheel)


def test_a_wheel_can_be_used_without_a_clone(built_wheel, tmp_path):
    code = "from flower_vfl.config import load_config, preset_names; [load_config(name) for name in preset_names()]"
    path = f"import sys; sys.path.insert(0, {str(built_wheel)!r}); "
    check = "; import flower_vfl; assert '.whl' in flower_vfl.__file__"
    done = subprocess.run(
        [sys.executable, "-c", path + code + check], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
