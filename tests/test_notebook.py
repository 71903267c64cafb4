"""The notebook in examples/ runs, as Jupyter would run it, and is kept without outputs."""

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.checkout import ROOT

NOTEBOOK = ROOT / "examples" / "compress.ipynb"
# Runs the cells in order, and prints how the last expression of each is shown, which Jupyter does.
RUN = """
import ast, json, sys, time

import matplotlib
matplotlib.use("Agg")
cells = [cell for cell in json.load(open(sys.argv[1], encoding="utf-8"))["cells"] if cell["cell_type"] == "code"]
names = {"__name__": "__main__"}
for number, cell in enumerate(cells):
    begin = time.monotonic()
    tree = ast.parse("".join(cell["source"]))
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "cell", "exec"), names)
    shown = eval(compile(ast.Expression(last.value), "cell", "eval"), names) if last else None
    html = shown._repr_html_() if hasattr(shown, "_repr_html_") else ""
    print(json.dumps({"cell": number, "seconds": time.monotonic() - begin, "html": html, "text": repr(shown)}))
"""


def code_cells() -> list[dict[str, object]]:
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    return [cell for cell in cells if cell["cell_type"] == "code"]


def test_the_notebook_has_no_outputs() -> None:
    for cell in code_cells():
        assert (cell["outputs"], cell["execution_count"], cell["metadata"]) == ([], None, {})
        ast.parse("".join(cell["source"]))  # type: ignore[arg-type]


@pytest.mark.slow
def test_the_notebook_runs(tmp_path: Path) -> None:
    """It shows tables and drawings; the student that is a third as fast stays close to the teacher."""
    result = subprocess.run(
        [sys.executable, "-c", RUN, NOTEBOOK],
        cwd=tmp_path,
        env=os.environ | {"FFN_NAS_CACHE": str(tmp_path / "cache")},
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr
    shown = [json.loads(line) for line in result.stdout.splitlines() if line.startswith("{")]
    assert len(shown) == len(code_cells())
    assert [bool(cell["html"]) for cell in shown] == [True, True, True, False, False, False, False]
    assert "<table>" in shown[1]["html"] and "<svg" in shown[2]["html"]
    assert "ONNX's logits differ from torch's by at most" in result.stdout
    assert "torch" in shown[-1]["text"] and "scipy" in shown[-1]["text"]
    models = json.loads((tmp_path / "student" / "metrics.json").read_text())["models"]
    assert models["teacher"]["accuracy"]["value"] > 0.6
    assert models["student"]["accuracy"]["value"] > models["teacher"]["accuracy"]["value"] - 0.06
    assert models["student"]["latency_ms"] < 0.6 * models["teacher"]["latency_ms"]
