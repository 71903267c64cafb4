"""The largest architectures that a file may describe are counted, and refused before any memory is allocated."""

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from nas.final.command import main as train_final
from nas.inspect import main as inspect
from search_spaces import Architecture, Base
from search_spaces.base import LARGEST
from supernet.student import main as student
from tests.nas.tiny_study import TinyStudy
from tests.trust.mutations import bounded


def largest() -> Architecture:
    """An architecture at all bounds."""
    sizes = {name: LARGEST[name] for name in ("depth", "width", "inner", "vocabulary", "positions", "token_types")}
    return Architecture.uniform(Base(**sizes, heads=1))


def test_the_largest_is_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "large.json"
    largest().save(file)
    with bounded():
        assert inspect([str(file), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["params"] > 10**12


def test_it_is_refused(tiny_study: TinyStudy, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A student must have the base of a teacher, which is on the disk."""
    file = tmp_path / "large.json"
    largest().save(file)
    with bounded():
        assert train_final([str(file), "--preset", str(tiny_study.preset), "--out", str(tmp_path / "out")]) == 2
        assert student([str(file), "--like", str(tiny_study.teacher), "--out", str(tmp_path / "other")]) == 2
    first, second = capsys.readouterr().err.strip().splitlines()
    assert "the architecture's base differs from the configuration's in " in first
    assert str(asdict(largest().base)["width"]) in second.replace(",", "")


def test_a_large_base_without_weights(
    tiny_study: TinyStudy, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With --fresh, and with a base of its own in a preset, nothing on the disk bounds the size of a model."""
    file = tmp_path / "large.json"
    largest().save(file)
    with bounded():
        assert student([str(file), "--like", str(tiny_study.teacher), "--fresh", "--out", str(tmp_path / "out")]) == 2
    assert "parameters" in capsys.readouterr().err
