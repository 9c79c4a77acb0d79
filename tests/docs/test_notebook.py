"""The example notebook runs from top to bottom, and is stored without outputs."""

import json
import re
import sys
from pathlib import Path

import nbformat
from nbclient import NotebookClient

NOTEBOOK = Path(__file__).parents[2] / "examples" / "calibrate_and_measure.ipynb"


def test_notebook_runs(tmp_path, monkeypatch):
    # The kernel is this Python, whatever kernels are installed for the user.
    kernels = tmp_path / "jupyter" / "kernels" / "python3"
    kernels.mkdir(parents=True)
    argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    text = json.dumps({"argv": argv, "display_name": "Python 3", "language": "python"})
    (kernels / "kernel.json").write_text(text)
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path / "jupyter"))
    monkeypatch.setenv("MPLBACKEND", "module://matplotlib_inline.backend_inline")
    monkeypatch.setenv("TMPDIR", str(tmp_path))

    notebook = nbformat.read(NOTEBOOK, as_version=4)
    NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(tmp_path)}}).execute()
    outputs = [out for cell in notebook.cells for out in cell.get("outputs", [])]
    printed = "".join(out.text for out in outputs if out.output_type == "stream")
    error = float(printed.split("median error of depth: ")[1].split(" %")[0])
    assert 0.0 < error < 3.0  # 0.1 px allow 1 % at the middle of the desk; too good is wrong too
    assert sum("image/png" in out.get("data", {}) for out in outputs) == 5
    html = "".join(out.get("data", {}).get("text/html", "") for out in outputs)
    assert re.search(r"fitting the grid[^:]*: [\d.]+ s", html)  # a stage that has shown itself
    assert "F is known to" in html
    assert "<td>f_L</td>" in html


def test_notebook_is_stored_without_outputs():
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert code
    for cell in code:
        assert cell["outputs"] == []
        assert cell["execution_count"] is None
