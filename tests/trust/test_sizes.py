"""The largest architectures that a file may describe are counted, and refused before any memory is allocated."""

import json
from pathlib import Path

import pytest

from nas.final.command import main as train_final
from nas.inspect import main as inspect
from search_spaces import Architecture, Base
from search_spaces.base import LARGEST
from supernet.student import main as student
from tests.nas.tiny_study import TinyStudy
from tests.trust.mutations import bounded


@pytest.fixture
def largest(tmp_path: Path) -> Path:
    """The file of an architecture at all bounds."""
    sizes = {name: LARGEST[name] for name in ("depth", "width", "inner", "vocabulary", "positions", "token_types")}
    Architecture.uniform(Base(**sizes, heads=1)).save(tmp_path / "large.json")
    return tmp_path / "large.json"


def test_the_largest_is_counted(largest: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with bounded():
        assert inspect([str(largest), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["params"] > 10**12


def test_it_is_refused(
    largest: Path, tiny_study: TinyStudy, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A student must have the base of a teacher, which is on the disk; with --fresh nothing there bounds its size."""
    file, out, teacher = str(largest), str(tmp_path / "out"), str(tiny_study.teacher)
    with bounded():
        assert train_final([file, "--preset", str(tiny_study.preset), "--out", out]) == 2
        assert student([file, "--like", teacher, "--out", out]) == 2
        assert student([file, "--like", teacher, "--fresh", "--out", out]) == 2
    base, like, fresh = capsys.readouterr().err.strip().splitlines()
    assert "the architecture's base differs from the configuration's in " in base
    assert str(LARGEST["width"]) in like.replace(",", "")
    assert "parameters" in fresh
