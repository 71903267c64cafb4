"""A search with an operation that a module outside the project adds, in processes of their own."""

from pathlib import Path

import pytest
from optuna.trial import TrialState

from foundation.extensions import VARIABLE
from nas.study.attributes import ARCHITECTURE, attribute
from tests.nas.tiny_study import TinyStudy, trials_of

SQUARE = """
import torch

from search_spaces import UNARY, Operation
from distill.encoders.student import ffn

UNARY["square"] = Operation("a**2", lambda x: x**2)
ffn.UNARY["square"] = torch.square
"""


@pytest.mark.slow
def test_workers_import_extensions(tiny_study: TinyStudy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "squares.py").write_text(SQUARE)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    monkeypatch.setenv(VARIABLE, "squares")
    preset = tiny_study.variant(tmp_path / "tiny.toml", ("mutation_rate = 0.3", "mutation_rate = 1.0"))
    result = tiny_study.run(*tiny_study.search(tmp_path, "--trials", "8", preset=preset))
    assert result.returncode == 0, result.stderr
    trials = [trial for trial in trials_of(tmp_path / "tiny") if "square(" in attribute(trial, ARCHITECTURE)]
    assert trials
    assert {trial.state for trial in trials} <= {TrialState.COMPLETE, TrialState.PRUNED}
