"""The commands and files of the pages on deployment work as written."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from flower_vfl.config import load_config
from flower_vfl.simulations.flower_engine import free_port

ROOT = Path(__file__).parents[2]
PAGES = ROOT / "docs" / "deployment"


@pytest.mark.flower
@pytest.mark.timeout(500)
def test_the_trial_on_one_machine_runs_as_it_is_written(tmp_path):
    blocks = re.findall(r"<!-- trial -->\n```bash\n(.*?)```", (PAGES / "trial.md").read_text(), re.DOTALL)
    script = "\n".join(["set -e", *blocks])
    for documented in ("9091", "9094"):  # may be in use on this machine
        script = script.replace(documented, str(free_port()))
    environment = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen(
            ["bash", "-c", script],
            cwd=tmp_path,
            env={**os.environ, **environment},
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        try:
            code = process.wait(450)
        finally:
            if process.poll() != 0:  # stops what the script has started in the background
                os.killpg(process.pid, signal.SIGTERM)
    assert code == 0, (tmp_path / "log").read_text()
    assert "everything that is needed is here" in (tmp_path / "log").read_text()
    for run, weights in (("run", "weights"), ("run-2", "weights-2")):
        assert '"status": "finished"' in (tmp_path / "trial" / "label" / run / "result.json").read_text()
        assert list((tmp_path / "trial" / "a" / weights).rglob("*.safetensors"))


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
def test_systemd_accepts_the_units(tmp_path):
    for unit in sorted((PAGES / "systemd").glob("*.service")):
        text = unit.read_text().replace("/opt/flower-vfl/bin/", "/bin/true ").replace("/usr/sbin/nginx", "/bin/true")
        (tmp_path / unit.name).write_text(text)
    units = [str(path) for path in tmp_path.glob("*.service")]
    done = subprocess.run(
        ["systemd-analyze", "verify", *units], capture_output=True, text=True, check=False, env={**os.environ}
    )
    assert len(units) >= 5
    assert [line for line in done.stderr.splitlines() if str(tmp_path) in line or "flower" in line] == []


def test_the_run_of_the_label_partys_page_is_a_configuration(tmp_path):
    (block,) = re.findall(r"```toml\n(.*?)```", (PAGES / "label-party.md").read_text(), re.DOTALL)
    (tmp_path / "run.toml").write_text(block)
    assert load_config(str(tmp_path / "run.toml")).transport.host == "192.0.2.10"


def test_links_between_the_pages_lead_somewhere():
    for page in PAGES.glob("*.md"):
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name}: {target}"
