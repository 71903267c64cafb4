"""A task's students and what a user could take instead, trained alike."""

import json
from pathlib import Path

import pytest

from benchmarks.__main__ import main
from benchmarks.alternatives import FROM_SCRATCH, chosen
from benchmarks.common import BenchmarkError
from nas.planning.finalists import ALLOCATED, GLOBAL, UNIFORM
from search_spaces.architecture import Architecture, Base
from tests.nas.evaluation.test_evaluate_untrained import UNTRAINED
from tests.nas.tiny_study import TinyStudy


@pytest.mark.slow
def test_every_alternative_in_every_form(
    tiny_study: TinyStudy, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with_heads = ("stacks = [1, 2]", "stacks = [0, 1]\nheads = [0, 1, 2, 4]")
    preset = tiny_study.variant(tmp_path / "heads.toml", *UNTRAINED, with_heads)
    preset.write_text("objective.attention = 0.0\n" + preset.read_text())
    file = tmp_path / "alternatives.json"
    command = ["alternatives", "--preset", str(preset), "--budgets", "3/2", "--steps", "2", "--seeds", "2"]
    command += ["--json", str(file)]
    assert main(command) == 0
    table = capsys.readouterr().out
    measured = json.loads(file.read_text())["results"]["measured"]
    names = {key.split(" ", 3)[3] for key in measured if key.startswith("trained 101")}
    of_budget = (UNIFORM, FROM_SCRATCH, GLOBAL, ALLOCATED[0], "winner 0")
    assert {"layers: 1", *(f"{kind}, 2/3x" for kind in of_budget)} <= names
    assert all(f"| {name} " in table for name in {"teacher", *names})
    # The teacher is compared with itself, and its int8 file with it.
    assert measured["teacher"]["torch"]["difference"]["value"] == 0 and "0.0000 ± 0.0000" in table
    assert measured["teacher"]["rows"].keys() == {"torch", "onnx-int8"}

    made = file.read_bytes()
    assert main(command) == 0  # nothing is measured again
    assert json.loads(file.read_bytes())["results"] == json.loads(made)["results"]


def test_only_some_alternatives() -> None:
    found = dict.fromkeys(("layers: 2", "layers: 1", "uniform slice, 3/10x"), Architecture.uniform(Base(2, 24, 4, 48)))
    assert list(chosen(found, None)) == list(found)
    assert list(chosen(found, ["uniform", "layers: 1"])) == ["layers: 1", "uniform slice, 3/10x"]
    with pytest.raises(BenchmarkError, match="--only 'layers: 3': no alternative starts so, of layers: 2, layers: 1"):
        chosen(found, ["uniform", "layers: 3"])
