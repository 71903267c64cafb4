"""`Search.find_budget`: the budgets that are tried are told apart, however close they are."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from nas.config.space import KeepTable
from nas.planning import keep
from nas.planning.finalists import GLOBAL, Confirmation
from nas.planning.keep import FractionKept
from nas.search.pipeline import Search
from nas.search.progress import Progress


def test_budgets_that_are_the_same_when_rounded_are_confirmed_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    goal = KeepTable(fraction=0.9, cost="latency")
    config = SimpleNamespace(keep=goal, seed=0, stage1=SimpleNamespace(confirm_seeds=1))
    workspace = SimpleNamespace(folders=SimpleNamespace(task=SimpleNamespace(score_metric=None)))
    search: Any = SimpleNamespace(config=config, folder=SimpleNamespace(budget=tmp_path / "budget.json"))
    budgets, known = [304, 303, 302, 301], set[tuple[str, int]]()

    def confirm(search: Search, part: str, space: Any, wanted: Any, seeds: Any) -> Any:
        # As `ledger.enqueue_missing`: what has a known origin and seed is not trained again.
        ((architecture, origin),) = wanted
        new = {(origin, seed) for seed in seeds} - known
        known.update(new)
        return {architecture: {seed: Confirmation(1.0, None) for _, seed in new}}

    def kept(metric: Any, teacher: Any, of_seeds: Any, wanted: float) -> FractionKept | None:
        return FractionKept(1.0, 0.0, 1.0) if of_seeds else None

    def first_stage(search: Search, maximum: int, slack: float) -> Any:
        return SimpleNamespace(baselines=[(f"within {maximum}", GLOBAL, None)])

    monkeypatch.setattr(keep, "fraction_kept", kept)
    monkeypatch.setattr(Search, "_teacher_rows", None)
    monkeypatch.setattr(Search, "_ladder", lambda *unused: budgets)
    monkeypatch.setattr(Search, "_slack", lambda *unused: 0.0)
    monkeypatch.setattr(Search, "_first_stage", first_stage)
    monkeypatch.setattr(Search, "confirm", confirm)
    widest: Any = SimpleNamespace(space=None)
    Search(search, workspace, Progress(quiet=True)).find_budget(widest)  # type: ignore[arg-type]
    assert json.loads(search.folder.budget.read_text())["maximum"] == 301
