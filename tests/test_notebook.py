"""The notebooks in examples/ run, as Jupyter would run them, and are kept without outputs."""

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import requirements
from tests.checkout import ROOT

CLASSIFIER, SENTENCE_ENCODER = (ROOT / "examples" / f"{name}.ipynb" for name in ("compress", "sentence_encoder"))
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


def code_cells(notebook: Path) -> list[dict[str, object]]:
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    return [cell for cell in cells if cell["cell_type"] == "code"]


def shown_by(notebook: Path, folder: Path) -> tuple[list[dict[str, str]], str]:
    """How the cells' last expressions are shown if the notebook runs in this folder, and all that it prints."""
    result = subprocess.run(
        [sys.executable, "-c", RUN, notebook],
        cwd=folder,
        env=os.environ | {"FFN_NAS_CACHE": str(folder / "cache")},
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr
    shown = [json.loads(line) for line in result.stdout.splitlines() if line.startswith('{"cell"')]
    assert len(shown) == len(code_cells(notebook))
    return shown, result.stdout


@pytest.mark.parametrize("notebook", [CLASSIFIER, SENTENCE_ENCODER], ids=lambda notebook: notebook.stem)
def test_a_notebook_has_no_outputs(notebook: Path) -> None:
    for cell in code_cells(notebook):
        assert (cell["outputs"], cell["execution_count"], cell["metadata"]) == ([], None, {})
        ast.parse("".join(cell["source"]))  # type: ignore[arg-type]


@pytest.mark.slow
def test_a_classifier(tmp_path: Path) -> None:
    """It shows tables and drawings; the student that is a third as fast stays close to the teacher."""
    shown, printed = shown_by(CLASSIFIER, tmp_path)
    assert [bool(cell["html"]) for cell in shown] == [True, True, True, False, False, False, False]
    assert "<table>" in shown[1]["html"] and "<svg" in shown[2]["html"]
    assert "ONNX's logits differ from torch's by at most" in printed
    assert "torch" in shown[-1]["text"] and "scipy" in shown[-1]["text"]
    models = json.loads((tmp_path / "student" / "metrics.json").read_text())["models"]
    assert models["teacher"]["accuracy"]["value"] > 0.6
    assert models["student"]["accuracy"]["value"] > models["teacher"]["accuracy"]["value"] - 0.06
    assert models["student"]["latency_ms"] < 0.6 * models["teacher"]["latency_ms"]


@pytest.mark.slow
def test_a_sentence_encoder(tmp_path: Path) -> None:
    """It shows both tables and the drawing; the student finds nearly as much in the teacher's index."""
    requirements.module("sentence_transformers", "demo")
    shown, printed = shown_by(SENTENCE_ENCODER, tmp_path)
    (html,) = [cell["html"] for cell in shown if cell["html"]]
    assert html.count("<table>") == 2 and "<svg" in html
    metrics = json.loads((tmp_path / "student" / "metrics.json").read_text())
    student, retrieval = metrics["models"]["student"], metrics["retrieval"]
    assert student["cosine"]["value"] > 0.8
    assert "mean cosine of the vectors: 0." in printed
    asymmetric = retrieval["student's queries, teacher's passages"]["ndcg@10"]["value"]
    assert asymmetric > retrieval["teacher"]["ndcg@10"]["value"] - 0.1
