"""The notebooks run from the first cell to the last, and carry no output."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import nbformat
import pytest

from tests.conftest import ROOT

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


def test_the_five_notebooks_are_there():
    assert [path.name[0] for path in NOTEBOOKS] == ["1", "2", "3", "4", "5"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_carries_no_output(path: Path):
    cells = nbformat.read(path, as_version=4).cells
    assert all(not cell.outputs and cell.execution_count is None for cell in cells if cell.cell_type == "code")


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
@pytest.mark.filterwarnings("default")  # of jupyter's, in this process; the notebook runs in another
def test_a_notebook_runs_to_its_end(path: Path, monkeypatch, tmp_path):
    from nbclient import NotebookClient

    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    notebook = nbformat.read(path, as_version=4)
    client = NotebookClient(notebook, timeout=900, resources={"metadata": {"path": str(path.parent)}})
    client.execute()
    said = "".join(str(output) for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs)
    assert "perfkit: " not in said, "a command said that something was wrong"
