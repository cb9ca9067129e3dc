"""The code of the README and the examples runs as it is printed."""

from __future__ import annotations

import json
import os
import re
import subprocess
import tomllib
import zipfile
from pathlib import Path

import pytest

from flower_vfl.simulations.flower_engine import super_link
from tests.commands import assert_alike

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "docs" / "commands.md"]
SNIPPETS = [
    snippet
    for page in PAGES
    for snippet in re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf8"), flags=re.DOTALL)
]


@pytest.mark.parametrize("snippet", SNIPPETS, ids=range(len(SNIPPETS)))
def test_the_python_of_the_readme_runs(snippet, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    exec(compile(snippet, "README.md", "exec"), {"__name__": "readme"})


def test_there_is_python_in_the_readme():
    assert len(SNIPPETS) >= 2


def test_the_defense_of_the_readme_protects():
    import torch

    from flower_vfl.strategies import VerticalStrategy
    from flower_vfl.testing import check_defense

    names: dict = {"__name__": "readme"}
    exec(next(snippet for snippet in SNIPPETS if "class Rounded" in snippet), names)
    strategy = names["Rounded"](VerticalStrategy(torch.nn.Linear(4, 1), torch.tensor([0, 1])))
    given = torch.randn(8, 4)
    grads, log = strategy.protect(given, torch.zeros(8))
    steps = grads / given.abs().mean()
    torch.testing.assert_close(steps, steps.round())
    assert (grads != given).all()
    assert log == {"rounded.fallback": 0.0}
    check_defense(names["Rounded"])


@pytest.mark.flower
@pytest.mark.timeout(200)
def test_the_example_app_runs_with_flwr_run_and_says_what_leaked_and_where_results_are(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # the working directory of the SuperLink
    environment = {
        **os.environ,
        "FLWR_HOME": str(tmp_path / "home"),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    }
    workers = "num-supernodes=1 client-resources-num-cpus=1 init-args-num-cpus=1"
    with super_link(tmp_path / "home", environment):
        command = ["flwr", "run", str(ROOT / "examples" / "own-app"), "--stream", "--federation-config", workers]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=180)
    log = done.stdout + done.stderr
    assert "Proven: epsilon 1.0 for each person's label" in log, log[-4000:]
    page = (ROOT / "docs" / "tutorials" / "flower-users.md").read_text(encoding="utf8")
    (report,) = (tmp_path / "runs").glob("run-*/report.html")
    assert f"report: {report}" in log
    result = json.loads((report.parent / "result.json").read_text(encoding="utf8"))
    for line in ("epoch 1: ", "epoch 10: ", "Proven: "):
        shown, found = (text.partition(f"INFO {mark}:      {line}")[2] for text, mark in ((page, ""), (log, "\x1b[0m")))
        assert shown, line
        shown, found = shown.partition("\nINFO")[0].partition("\n...")[0], found.partition("\n")[0]
        if line == "Proven: ":
            # Several readers do nearly as well on 225 rows: which one is chosen depends on the processor.
            shown, reached = re.split(r"\s+a\s+fitted\s+reader\s+", shown)
            low, high = result["verdict"]["parties"][0]["leak"]["informed"]["interval95"]
            assert low <= float(reached.rstrip(".")) <= high
            found = found.partition(" a fitted reader ")[0]
        assert_alike(found, shown)


@pytest.mark.flower
def test_the_example_app_is_a_bundle_in_the_format_that_flower_hub_asks_for(tmp_path):
    command = ["flwr", "build", "--app", str(ROOT / "examples" / "own-app")]
    subprocess.run(command, cwd=tmp_path, env={**os.environ, "FLWR_HOME": str(tmp_path)}, check=True, timeout=60)
    (bundle,) = tmp_path.glob("*.fab")
    with zipfile.ZipFile(bundle) as content:
        app = tomllib.loads(content.read("pyproject.toml").decode())["tool"]["flwr"]["app"]
        assert {"LICENSE", "own_app/server_app.py", "own_app/client_app.py", "own_app/task.py"} <= set(
            content.namelist()
        )
    assert app["fab-format-version"] == 1
    assert bundle.stat().st_size < 10 * 2**20
