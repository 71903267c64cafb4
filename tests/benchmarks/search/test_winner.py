"""Winners and baselines of a finished search, trained again."""

import json
from pathlib import Path

import pytest

from benchmarks.__main__ import main
from nas.stages import GLOBAL, UNIFORM
from tests.nas.tiny_study import TinyStudy


def test_winners_of_a_search_are_trained_again(
    tiny_study: TinyStudy, searched: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "winner.json"
    assert main(["winner", str(searched), "--steps", "2", "--seeds", "2", "--json", str(path)]) == 0
    content = json.loads(path.read_text())
    assert content["seeds"] == [101, 102]
    scores = content["results"]["scores"]
    assert {UNIFORM, GLOBAL} < set(scores)
    printed = capsys.readouterr().out
    for name, values in scores.items():
        assert len(values) == 2 and all(0 <= value <= 1 for value in values)
        assert name in printed
    # An architecture with two names is trained once, so it has the same scores.
    architectures = content["results"]["architectures"]
    for name, architecture in architectures.items():
        same = [other for other in architectures if architectures[other] == architecture]
        assert all(scores[other] == scores[name] for other in same)
