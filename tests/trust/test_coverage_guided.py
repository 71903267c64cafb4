"""Fuzzing of the parsers that is guided by which parts of the code an input reaches."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests import requirements
from tests.nas.tiny_study import PROJECT
from tests.trust.test_hostile_files import PARSERS
from tests.trust_counts import Cases


@pytest.mark.trust
@pytest.mark.slow
@pytest.mark.parametrize("name", PARSERS)
def test_coverage_guided(name: str, tmp_path: Path, cases: Callable[..., Cases]) -> None:
    """Files that a coverage-guided fuzzer makes are refused in one line, or read."""
    requirements.module("atheris", "fuzz")
    counts = cases(sample=2_000, full=200_000)
    command = [sys.executable, "-m", "tests.trust.coverage_guided", name, str(tmp_path), str(counts.wanted)]
    finished = subprocess.run(
        command, cwd=PROJECT, capture_output=True, text=True, errors="replace", timeout=300 + counts.wanted / 50
    )
    assert finished.returncode == 0, finished.stdout[-2000:] + finished.stderr[-6000:]
    counts.update(json.loads((tmp_path / "counts.json").read_text()))
    assert counts["refused"] and counts["read"]
    # Inputs were kept that reach something new, which the fuzzer only notices if the code is instrumented.
    assert len(list((tmp_path / "corpus").iterdir())) > len(PARSERS[name][2]) + 2
