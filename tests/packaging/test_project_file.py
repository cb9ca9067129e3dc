"""pyproject.toml, constraints.txt and README.md agree with the code and with each other."""

import importlib.metadata
import json
import os
import re
import runpy
import subprocess
import sys
import tomllib

import grimp
import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from flower_vfl.config import from_run_config, leaf_paths
from flower_vfl.config.parsing import call, parse_defenses
from flower_vfl.simulations.demo.plan import RUNS
from flower_vfl.simulations.demo.table import HEADINGS, markdown
from tests.cases import parametrize
from tests.packaging import run_config
from tests.packaging.conftest import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf8"))
CONSTRAINTS = (ROOT / "constraints.txt").read_text(encoding="utf8")
README = (ROOT / "README.md").read_text(encoding="utf8")
TUTORIAL = (ROOT / "docs" / "tutorials" / "first-run.md").read_text(encoding="utf8")
FOLDERS = ("docs", "benchmarks", "examples", "tests")
TESTED_EXTRAS = ("demo", "dev", "tensorboard")


def pins():
    """Return each pinned distribution with its version."""
    lines = (line.split("#")[0].strip() for line in CONSTRAINTS.splitlines())
    return dict(line.split("==") for line in lines if line)


def requirements(*extras):
    """Return the direct requirements, with those of some extras."""
    optional = PROJECT["project"]["optional-dependencies"]
    texts = [*PROJECT["project"]["dependencies"], *(text for extra in extras for text in optional[extra])]
    return [Requirement(text) for text in texts]


OF_GPU_BUILDS = ("nvidia-", "cuda-", "triton")
"""Prefixes of what only PyTorch's builds for GPUs bring, which name exact versions themselves."""


def closure(todo):
    """Return the canonical names of all that these requirements install here."""
    found = set()
    todo = list(todo)
    seen = set()
    while todo:
        requirement = todo.pop()
        if str(requirement) in seen:
            continue
        seen.add(str(requirement))
        found.add(canonicalize_name(requirement.name))
        for text in importlib.metadata.requires(requirement.name) or ():
            needed = Requirement(text)
            if needed.marker is None or any(needed.marker.evaluate({"extra": e}) for e in ("", *requirement.extras)):
                todo.append(needed)
    return found


def test_flwr_run_can_override_every_configuration_option():
    text = run_config.FILE.read_text(encoding="utf8")
    assert text == run_config.written(text), "run: python -m tests.packaging.run_config"
    assert {re.sub(r"[._]", "-", path) for path in leaf_paths()} < set(PROJECT["tool"]["flwr"]["app"]["config"])


def test_the_pinned_flower_is_that_of_the_app_for_its_hub_and_of_the_containers():
    pinned = pins()["flwr"]
    app = tomllib.loads((ROOT / "examples" / "own-app" / "pyproject.toml").read_text(encoding="utf8"))
    assert app["tool"]["flwr"]["app"]["flwr-version-target"] == pinned
    files = [*(ROOT / "docs" / "deployment" / "containers").rglob("*"), ROOT / "docs" / "deployment" / "containers.md"]
    texts = [file.read_text(encoding="utf8") for file in files if file.is_file()]
    tags = {tag for text in texts for tag in re.findall(r"flwr/super\w+:(\d[\d.]*\d)-py", text)}
    assert tags == {pinned}


def test_the_badges_agree_with_the_project_file():
    badges = runpy.run_path(str(ROOT / "docs" / "images" / "badges.py"))["badges"]()
    for name, picture in badges.items():
        assert (ROOT / "docs" / "images" / name).read_text(encoding="utf8") == picture
        assert f"(docs/images/{name})" in README
    versions = [
        part for entry in PROJECT["project"]["classifiers"] if (part := entry.rpartition("Python :: ")[2])[0].isdigit()
    ]
    assert f"python: {versions[0]} to {versions[-1]}" in badges["python.svg"]
    assert "Apache-2.0" in badges["license.svg"]


@parametrize("page", ["report", "watching"], quick=1)
def test_a_picture_shows_the_page_as_it_is_now(page):
    pages = runpy.run_path(str(ROOT / "docs" / "images" / "pages.py"))
    assert pages["taken"](page) == pages["digest"](page), f"run: python docs/images/pages.py {page}"


def test_flwr_run_without_overrides_runs_the_preset_over_sessions():
    config = from_run_config(PROJECT["tool"]["flwr"]["app"]["config"])
    assert config.data.name == "census-income"
    assert config.transport.kind == "stream"


def test_the_version_is_the_packages():
    import flower_vfl

    assert PROJECT["project"]["version"] == flower_vfl.__version__
    assert f"## [{flower_vfl.__version__}]" in (ROOT / "CHANGELOG.md").read_text(encoding="utf8")


def test_every_package_that_is_imported_is_declared():
    declared = {canonicalize_name(needed.name) for needed in requirements("tensorboard", "wandb", "mlflow", "dp")}
    optional = {"mlflow", "wandb"}  # not installed where tests run
    homes = importlib.metadata.packages_distributions()
    graph = grimp.build_graph("flower_vfl", include_external_packages=True, cache_dir=None)
    outside = {name for name in graph.modules if not name.startswith("flower_vfl")} - sys.stdlib_module_names - optional
    undeclared = {name for name in outside if not declared & {canonicalize_name(home) for home in homes.get(name, [])}}
    assert undeclared == set()


@pytest.mark.parametrize("requirement", requirements(*PROJECT["project"]["optional-dependencies"]), ids=str)
def test_a_direct_requirement_is_pinned_within_its_range(requirement):
    assert requirement.specifier.contains(pins()[canonicalize_name(requirement.name)])


def test_everything_that_the_tested_extras_bring_is_pinned():
    brought = closure(requirements(*TESTED_EXTRAS))
    assert {name for name in brought if not name.startswith(OF_GPU_BUILDS)} <= pins().keys()


def test_constraints_name_exact_versions_and_no_address():
    lines = [line for line in CONSTRAINTS.splitlines() if line and not line.startswith("#")]
    assert lines
    for line in lines:
        assert re.fullmatch(r"[a-z0-9-]+==[0-9][a-z0-9.]*", line), line


def command(mark):
    """Return the commands of the README's block under a mark."""
    found = re.findall(rf"<!-- {mark} -->\n+```bash\n(.*?)```", README, flags=re.DOTALL)
    assert len(found) == 1, f"README.md needs one {mark} block"
    return found[0].strip()


@pytest.mark.parametrize(
    ("mark", "extras", "last"),
    [("demo-command", "[demo]", "flower-vfl demo"), ("test-command", "[demo,dev]", "pytest")],
)
def test_the_readmes_commands_install_into_a_new_environment_with_constraints(mark, extras, last):
    lines = command(mark).splitlines()
    assert lines[0].startswith("python3 -m venv .venv")
    assert any(
        re.match(rf'pip install (--no-compile )?-c constraints\.txt (-e )?"\.{re.escape(extras)}"$', x) for x in lines
    )
    assert lines[-1].startswith(last)


def demo_table(page):
    """Return the lines of the demo's table on a page, and of the words below it."""
    found = re.findall(r"<!-- demo-table -->\n(.*?)<!-- /demo-table -->", page, flags=re.DOTALL)
    assert len(found) == 1, "the page needs one demo-table; `python benchmarks/demo.py --readme` writes it"
    return found[0].splitlines()


def test_the_readmes_table_is_the_beginning_of_the_tutorials():
    short, whole = demo_table(README), demo_table(TUTORIAL)
    rows = [line for line in short if line.startswith("|")]
    assert len(rows) == 6
    assert whole[: len(rows)] == rows
    assert short[len(rows) :] == whole[-2:]


def test_the_tutorials_table_has_the_rows_and_columns_of_the_demo():
    lines = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in demo_table(TUTORIAL) if line.startswith("|")
    ]
    assert lines[0] == list(HEADINGS)
    runs = (parse_defenses(text) for text in RUNS.values())
    assert [line[0] for line in lines[2:]] == [
        ", ".join(call(entry.pop("name").replace("no_g", "no g"), entry) for entry in defenses) or "none"
        for defenses in runs
    ]
    for line in lines[2:-1]:
        assert all(0.0 <= float(cell) <= 1.0 for cell in line[1:])
    assert 0.0 <= float(lines[-1][1]) <= 1.0
    assert set(lines[-1][2:]) == {"–"}


def test_the_readmes_table_has_the_numbers_of_the_run_in_its_picture():
    pictured = json.loads((ROOT / "docs" / "images" / "pictured" / "marvell-full-s4" / "result.json").read_text())
    *_, row = markdown([pictured]).splitlines()
    assert f"{row}\n" in README


def test_the_readme_and_the_classifiers_name_the_same_licence_and_python():
    assert PROJECT["project"]["license"] == "Apache-2.0"
    assert PROJECT["project"]["requires-python"] == ">=3.11"
    assert "Apache-2.0" in README


def linked(page):
    """Return the files of the repository that a page links to."""
    targets = re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text(encoding="utf8"))
    return {(page.parent / target).resolve() for target in targets if "://" not in target}


PAGES = sorted([*ROOT.glob("*.md"), *(page for name in FOLDERS for page in (ROOT / name).rglob("*.md"))])


def test_every_link_of_a_page_leads_to_a_file():
    assert [f"{page}: {target}" for page in PAGES for target in linked(page) if not target.exists()] == []


def test_every_page_is_on_the_map_that_the_readme_links():
    map_of_pages = ROOT / "docs" / "README.md"
    assert map_of_pages in linked(ROOT / "README.md")
    expected = {page for page in PAGES if page.parts[len(ROOT.parts)] in ("docs", "benchmarks")}
    expected |= {ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")}
    listed = linked(map_of_pages)
    listed |= {page for inner in listed if inner.name == "README.md" for page in linked(inner)}
    shown_elsewhere = {
        page for page in expected if "project" in page.parts or "api" in page.parts or page.name == "index.md"
    }
    assert expected - {map_of_pages} - listed - shown_elsewhere == set()  # pages of the site alone


@parametrize(
    ("schema", "pattern"),
    [
        ("github-workflows", ".github/workflows/*.yml"),
        ("github-issue-forms", ".github/ISSUE_TEMPLATE/[!c]*.yml"),
        ("github-issue-config", ".github/ISSUE_TEMPLATE/config.yml"),
        ("citation-file-format", "CITATION.cff"),
        ("compose-spec", "docs/deployment/containers/*/compose.yaml"),
    ],
    quick=1,
)
def test_files_for_other_programs_follow_their_schema(schema, pattern):
    files = [str(path) for path in ROOT.glob(pattern)]
    assert files
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", f"vendor.{schema}", *files]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_workflows_and_forms_can_be_read_and_run_the_readmes_commands():
    files = [*(ROOT / ".github").rglob("*.yml"), ROOT / ".pre-commit-config.yaml"]
    assert len(files) > 4
    read = {path.name: yaml.safe_load(path.read_text(encoding="utf8")) for path in files}
    jobs = read["tests.yml"]["jobs"]
    commands = [step["run"] for step in jobs["quick"]["steps"] if "run" in step]
    shown = (ROOT / "README.md").read_text(encoding="utf8").split("<!-- test-command -->")[1].split("```")[1]
    assert all(command in shown for command in commands)
    assert any(step.get("run") == ".ci/run" for step in jobs["all"]["steps"])
    tried = " ".join(step.get("run", "") for step in jobs["flower"]["steps"])
    assert 'pip install --upgrade "flwr[simulation]"' in tried  # beyond the upper bound
    assert '-m "flower' in tried
    assert any("-b linkcheck" in step.get("run", "") for step in jobs["links"]["steps"])
    versions = {line.rpartition(" ")[2] for line in PROJECT["project"]["classifiers"] if "Python :: 3." in line}
    assert set(jobs["quick"]["strategy"]["matrix"]["python"]) == versions


@pytest.mark.parametrize(("tag", "passes"), [("v{}", True), ("v{}.1", False), ("v9.9.9", False)])
def test_the_release_workflow_refuses_a_tag_that_is_not_the_version(tag, passes):
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "release.yml").read_text(encoding="utf8"))
    (compare,) = (step["run"] for step in workflow["jobs"]["build"]["steps"] if "tag" in step.get("name", ""))
    tag = tag.format(PROJECT["project"]["version"])
    environment = {**os.environ, "GITHUB_REF_NAME": tag}
    command = ["bash", "-ec", compare]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == (0 if passes else 1), done.stderr
    assert passes or f"The tag {tag} is not" in done.stderr
