"""The import contracts hold, violations are caught, and importing the package loads nothing heavy."""

import ast
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from pathlib import Path

import pytest

from flower_vfl.apps.node import DATA_VARIABLE
from flower_vfl.data.sources.catalog import prepare
from flower_vfl.data.store.dataset import open_dataset
from flower_vfl.data.store.parts import write_part
from tests.cases import parametrize

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf8"))
CONTRACTS = {contract["id"]: contract for contract in PROJECT["tool"]["importlinter"]["contracts"]}
SEEN_BY_ATTACKS = {"attacks", "errors", "metrics", "protocol", "registry"}


def run(*command, cwd):
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=120, check=False)


def lint_imports(tree):
    """Run lint-imports in a tree: it checks the contracts of its working directory."""
    return run(Path(sysconfig.get_path("scripts")) / "lint-imports", "--no-cache", "--no-logo", cwd=tree)


def modules():
    """Return the names of the modules and packages directly in `flower_vfl`."""
    paths = (ROOT / "flower_vfl").iterdir()
    return {path.stem for path in paths if path.suffix == ".py" or path.is_dir()} - {"__init__", "__pycache__"}


@pytest.fixture
def tree(tmp_path):
    """A copy of the package and its contracts, which a test may violate."""
    for folder in ("flower_vfl", "strategies", "simulations"):
        ignore = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / folder, tmp_path / folder, symlinks=True, ignore=ignore)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def test_every_contract_is_kept():
    done = lint_imports(ROOT)
    assert done.returncode == 0, done.stdout
    assert f"Contracts: {len(CONTRACTS)} kept, 0 broken." in done.stdout


def private_uses(source):
    """Return the names with a leading underscore that a source uses from another module of this package."""
    nodes = list(ast.walk(ast.parse(source)))
    imports = [node for node in nodes if isinstance(node, ast.ImportFrom)]
    own = [node for node in imports if node.level or (node.module or "").split(".")[0] == "flower_vfl"]
    bound = {"flower_vfl", *(alias.asname or alias.name for node in own for alias in node.names)}
    bound |= {alias.asname for node in nodes if isinstance(node, ast.Import) for alias in node.names if alias.asname}
    used = [alias.name for node in imports for alias in node.names]
    used += [node.attr for node in nodes if isinstance(node, ast.Attribute) and root_of(node) in bound]
    return {name for name in used if name.startswith("_") and not name.startswith("__")}


def root_of(node):
    """Return the first name of a chain of attributes; None if it begins otherwise."""
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else None


@pytest.mark.parametrize(
    "source",
    [
        "from flower_vfl.parties.feature import FeatureParty, _Pending",
        "from flower_vfl.parties.feature import _Pending as Pending",
        "from .feature import _Pending",
        "def late():\n    from flower_vfl.parties.feature import (\n        _Pending,\n    )",
        "from flower_vfl.parties import feature\nfeature._Pending",
        "import flower_vfl.parties.feature as party\nparty._Pending",
        "import flower_vfl.parties.feature\nflower_vfl.parties.feature._Pending",
    ],
)
def test_a_private_name_of_another_module_is_found(source):
    assert private_uses(source) == {"_Pending"}


def test_no_module_uses_a_private_name_of_another():
    folders = ("flower_vfl", "strategies", "simulations", "studies", "benchmarks", "examples")
    paths = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    assert len(paths) > 400
    found = {str(path.relative_to(ROOT)): private_uses(path.read_text(encoding="utf8")) for path in paths}
    assert {path: names for path, names in found.items() if names} == {}


@parametrize(
    ("place", "line", "contract"),
    [
        ("flower_vfl/attacks", "from flower_vfl.data.store.dataset import Labels", "attacks"),
        ("flower_vfl/attacks", "from flower_vfl.strategies import Iso", "attacks"),
        ("flower_vfl/attacks", "def late():\n    import flower_vfl.apps.factories", "attacks"),
        ("flower_vfl/attacks", "from flower_vfl import run", "attacks"),
        ("flower_vfl/protocol", "import flower_vfl.data.store.dataset", "layers"),
        ("flower_vfl/parties", "from flower_vfl.strategies import VerticalStrategy", "layers"),
        ("strategies", "import flower_vfl.apps.result", "layers"),
        ("flower_vfl", "x = 1", "layers"),
        ("flower_vfl/nn", "from flwr.app import Array", "flwr"),
        ("flower_vfl/parties", "import flwr", "flwr"),
        ("flower_vfl/apps", "import ray", "ray"),
        ("strategies", "import matplotlib", "reports"),
        ("simulations", "import jinja2", "reports"),
    ],
    quick=3,
)
def test_a_violation_is_caught(tree, place, line, contract):
    (tree / place / "intruder.py").write_text(line + "\n")
    done = lint_imports(tree)
    assert done.returncode == 1, done.stdout
    if place == "flower_vfl":
        assert "intruder" in done.stdout  # the layers are exhaustive: the message names the module without a layer
    else:
        assert f"{CONTRACTS[contract]['name']} BROKEN" in done.stdout.replace("\n", " ")


def test_the_contract_of_attacks_forgets_no_module():
    forbidden = {name.removeprefix("flower_vfl.") for name in CONTRACTS["attacks"]["forbidden_modules"]}
    assert forbidden == modules() - SEEN_BY_ATTACKS


def test_the_contract_of_ray_forgets_no_module():
    sources = {name.removeprefix("flower_vfl.") for name in CONTRACTS["ray"]["source_modules"]}
    assert sources == modules() - {"simulations"}


MISTAKES = """
from flower_vfl.cli import main

for words in ("runn", "run censsus", "run census --set epochs=1", "run census --set training.epochs=x",
              "demo --set training.epoch=1", "run census --resume", "align nothing.toml --out x", "config epochs",
              "methods nrom", "run census --set attack.names=nrom", "demo --set attack.names=nrom",
              "run census --set defenses=marvel(s=4)", "run census --set defenses=iso(s=4)",
              "tune census --set defenses=marvel",
              "run census --set data.name=cenus", "demo --set data.name=cenus", "tune census --set data.name=cenus",
              "data prepare cenus --out x", "data list cenus", "watch nowhere", "report nowhere"):
    try:
        main(words.split())
    except SystemExit as ended:
        assert ended.code == 2, words
"""
"""Mistyped commands, which are answered within a second: without a module that takes longer to import."""

DATA_MISTAKES = """
from pathlib import Path

from flower_vfl.cli import main

Path("taken").mkdir()
Path("taken/precious").touch()
for words in ("run census --set data.options.vew=x", "run census --set data.path=nowhere", "data show nowhere",
              "sweep census-gradients-sweep --set data.path=nowhere", "predict nowhere --out x.csv",
              "run census --out taken", "demo --out taken", "sweep toy-gap-sweep --out taken",
              "tune census --out taken", "run census --out taken/precious", "run census --out taken --resume",
              "demo --out taken --resume", "sweep toy-gap-sweep --out taken --resume",
              "tune census --out taken --resume"):
    try:
        main(words.split())
    except SystemExit as ended:
        assert ended.code == 2, words
"""
"""Mistakes about data, which may load the modules that read data (a third of a second), but none that train."""

HEAVY = ("torch", "flwr", "ray", "matplotlib", "sklearn", "pyarrow", "scipy")


def loaded(code, names, folder):
    """Return, as a process prints it, which of these modules it has loaded at the end of this code."""
    check = f"import sys; print('loaded:', sorted(set({names!r}) & set(sys.modules)))"
    done = run(sys.executable, "-c", f"{code}\n{check}", cwd=folder)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1]


@parametrize(
    "code",
    [
        "import flower_vfl",
        "from flower_vfl.config import load_config; load_config('census')",
        "from flower_vfl.cli import app; app(['--help'], standalone_mode=False)",
        "from flower_vfl.cli import app; app(['run', '--help'], standalone_mode=False)",
        "import flower_vfl.apps, flower_vfl.strategies",
        MISTAKES,
    ],
    ids=["import", "config", "help", "run --help", "packages", "mistakes"],
    quick=1,
)
def test_nothing_heavy_is_loaded(code, tmp_path):
    assert loaded(code, HEAVY, tmp_path) == "loaded: []"


def test_a_mistake_about_data_is_answered_without_what_trains(tmp_path):
    assert loaded(DATA_MISTAKES, HEAVY, tmp_path) == "loaded: ['pyarrow']"


RUN = """
from flower_vfl import build_config, run

training = {"epochs": 1, "batch_size": 500}
run(build_config({"data": {"name": "toy-gap"}, "training": training, "attack": {"names": [], "informed": 0}}))
"""


def test_a_run_without_readers_loads_nothing_that_only_readers_and_reports_need(tmp_path):
    assert loaded(RUN, ("matplotlib", "sklearn", "scipy.stats", "pandas", "ray"), tmp_path) == "loaded: []"


DEMO = """
import sys

from flower_vfl.cli import main
from flower_vfl.simulations.demo.pool import WorkerPool

def first_event(pool):
    print("loaded:", sorted({"torch", "flwr", "matplotlib", "scipy"} & set(sys.modules)))
    raise SystemExit

WorkerPool.events = first_event
main(["demo", "--out", "out"])
"""


def test_the_demo_starts_its_workers_before_it_loads_what_trains(tmp_path):
    done = run(sys.executable, "-c", DEMO, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "loaded: []" in done.stdout.splitlines()


OFFERS = """
import sys

from flwr.app import Context, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

from flower_vfl.simulations.server_app import app
from flower_vfl.strategies import Observer, Outcome

def deployment(push):
    class Node:
        node_id, name = 1, "device"
    methods = {name: lambda *_, **__: [] for name in Grid.__abstractmethods__}
    return type("Deployment", (Grid,), {**methods, "get_nodes": lambda _: [Node()], "push_messages": push})()

def push(grid, messages):
    [message] = messages
    print("loaded:", "torch" in sys.modules, sorted(message.content["offer"]))
    raise SystemExit

TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 0
config = {"data-name": "synthetic", "transport-kind": "stream", "defenses": "marvell", "out": sys.argv[1]}
app(deployment(push), Context(run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config=config))
"""


def test_a_label_party_offers_its_sessions_before_it_loads_torch(tmp_path, monkeypatch):
    prepare("synthetic", out=tmp_path / "whole", options={"rows": 40, "test_rows": 8})
    dataset = open_dataset(tmp_path / "whole")
    write_part(tmp_path / "whole", dataset.label_party, tmp_path / "part")
    monkeypatch.setenv(DATA_VARIABLE, str(tmp_path / "part"))
    out = tmp_path / "out"
    done = run(sys.executable, "-c", OFFERS, str(out), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    keys = "address authority certificate fallback key kind limit server-name session simulation token training"
    assert done.stdout.splitlines()[-1] == f"loaded: False {[*keys.split(), 'wire-dtype']}"
    assert not out.exists()  # what ends a run before training leaves nothing behind
