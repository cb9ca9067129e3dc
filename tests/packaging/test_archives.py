"""The contents of a wheel and of a source distribution."""

import email
import re
import subprocess
import sys
import tarfile
import zipfile

import pytest

from tests.packaging.conftest import ROOT, build, clone_to

pytestmark = pytest.mark.slow

SAFELY = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}  # from Python 3.11.4 on
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


def test_a_wheel_holds_the_files_that_are_read_at_run_time(built_wheel):
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
        archive.extractall(tmp_path, **SAFELY)
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


def test_archives_built_from_a_repository_name_its_commit_and_a_release_does_not(tmp_path):
    tree = clone_to(tmp_path / "clone")
    as_somebody = ["git", "-C", str(tree), "-c", "user.name=n", "-c", "user.email=e@example.org"]

    def git(*arguments):
        return subprocess.run([*as_somebody, *arguments], check=True, capture_output=True, text=True).stdout.strip()

    git("init", "-q")
    git("add", "-A")
    git("commit", "-q", "-m", "All", "--date", "2026-01-02T03:04:05Z")
    head = git("log", "-1", "--abbrev=7", "--format=%h")
    sdist = build(tree, "sdist", tmp_path / "sdist")
    assert f".g{head}" in sdist.name
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path / "unpacked", **SAFELY)
    (unpacked,) = (tmp_path / "unpacked").iterdir()
    assert f".g{head}-py3" in build(unpacked, "wheel", tmp_path / "wheel").name
    (tree / "strategies" / "vertical.py").write_text("")
    assert f".g{head}.dirty-py3" in build(tree, "wheel", tmp_path / "dirty").name
    git("checkout", "-q", ".")
    git("tag", "v0.1.0")
    assert build(tree, "wheel", tmp_path / "release").name == "flower_vfl-0.1.0-py3-none-any.whl"


def test_links_of_an_archive_lead_to_its_repository_where_that_is_known(built_wheel, tmp_path, monkeypatch):
    def facts(wheel):
        with zipfile.ZipFile(wheel) as archive:
            (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
            return email.message_from_string(archive.read(name).decode("utf8"))

    alone = facts(built_wheel)
    assert alone.get_all("Project-URL") is None
    assert alone.get_payload().strip() == (ROOT / "README.md").read_text(encoding="utf8").strip()
    monkeypatch.setenv("GITHUB_REPOSITORY", "some/one")
    known = facts(build(clone_to(tmp_path / "clone"), "wheel", tmp_path / "dist"))
    assert "Source, https://github.com/some/one" in known.get_all("Project-URL")
    targets = re.findall(r"]\(([^)]*)\)", known.get_payload())
    assert len(targets) == len(re.findall(r"]\(([^)]*)\)", alone.get_payload()))
    assert all(target.startswith(("https://", "#")) for target in targets)
    assert "https://github.com/some/one/raw/main/docs/images/parties.svg" in targets
    assert "https://github.com/some/one/blob/main/SECURITY.md" in targets


@pytest.mark.parametrize("link", ["src/flower_vfl", "flower_vfl/strategies", "flower_vfl/simulations"])
@pytest.mark.parametrize("replacement", ["nothing", "text", "an empty folder"])
def test_a_clone_that_lost_a_link_is_not_built_and_says_what_to_do(link, replacement, tmp_path):
    tree = clone_to(tmp_path / "clone")
    lost = tree / link
    to = lost.readlink()
    lost.unlink()
    if replacement == "text":
        lost.write_text(str(to))
    elif replacement == "an empty folder":
        lost.mkdir()
    with pytest.raises(subprocess.CalledProcessError) as failed:
        build(tree, "wheel", tmp_path / "dist")
    errors = failed.value.stderr.decode()
    assert "This clone has lost its links" in errors
    assert "git config core.symlinks true" in errors
    assert "Traceback" not in errors
