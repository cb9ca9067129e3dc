"""The notebooks among the tutorials run as written, without a network."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

TUTORIALS = Path(__file__).parents[2] / "docs" / "tutorials"
NOTEBOOKS = sorted(
    path for path in TUTORIALS.glob("*.md") if path.read_text(encoding="utf8").startswith("---\njupytext")
)


def test_there_are_four_notebooks():
    assert [path.stem for path in NOTEBOOKS] == [
        "defense-against-all-attacks",
        "steps-parquet",
        "two-csv-files",
        "why-gradients-leak",
    ]


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path, tmp_path, monkeypatch):
    nbclient = pytest.importorskip("nbclient", reason="needs the documentation's packages of the extra dev")
    from myst_nb.core.read import read_myst_markdown_notebook
    from myst_parser.config.main import MdParserConfig

    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    text = path.read_text(encoding="utf8")
    notebook = read_myst_markdown_notebook(text, MdParserConfig(), "{code-cell}", "{raw-cell}")
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert len(cells) == text.count("```{code-cell}")
    client = nbclient.NotebookClient(
        notebook, timeout=600, kernel_name="python3", resources={"metadata": {"path": tmp_path}}
    )
    client.execute()
    # `!command` raises nothing when the command fails: only its output shows it.
    printed = "".join(output.get("text", "") for cell in cells for output in cell.outputs)
    assert "Error" not in printed
    assert "not found" not in printed
    assert all(cell.execution_count for cell in cells)
