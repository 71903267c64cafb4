"""Which files handle a candidate, from its proposal to its score in the study."""

import sys
from collections.abc import Callable
from itertools import groupby, pairwise
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any

import pytest
from torch import nn

from nas.planning import stages
from nas.preparation.workspace import Workspace
from nas.study import ledger
from nas.workers import runner
from search_spaces import FFN, Architecture
from tests.nas.tiny_study import PROJECT

PACKAGES = ("nas", "supernet", "distill", "search_spaces")


def is_candidate(value: Any) -> bool:
    """Whether this is an architecture (as a value or in a trial's configuration), a layer of one, or a model of it."""
    if isinstance(value, dict):
        return ledger.ARCHITECTURE in value
    return isinstance(value, Architecture | FFN) or (isinstance(value, nn.Module) and hasattr(value, "base_model"))


def files_that_receive_it(run: Callable[[], None]) -> list[str]:
    """The file of every function of the project, in the order of the calls, that gets the candidate as an argument.
    Methods of an architecture and of a model are the candidate itself: their `self` does not count.
    """
    files = []

    def on_call(frame: FrameType, event: str, argument: object) -> None:
        path = Path(frame.f_code.co_filename)
        if event != "call" or not path.is_relative_to(PROJECT):
            return
        place = path.relative_to(PROJECT)
        names = frame.f_code.co_varnames[: frame.f_code.co_argcount + frame.f_code.co_kwonlyargcount]
        arguments = [frame.f_locals.get(name) for name in names if name != "self"]
        if place.parts[0] in PACKAGES and any(map(is_candidate, arguments)):
            files.append(str(place))

    sys.setprofile(on_call)
    try:
        run()
    finally:
        sys.setprofile(None)
    return files


def test_a_candidate_goes_through_few_files_and_seldom_back(
    workspace: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = stages.plan(workspace.config, workspace, "1", None, ())
    sampler = stages.sampler_of(plan, workspace)
    study = ledger.open_study(f"sqlite:///{tmp_path}/study.db", plan.study, sampler, workspace.config.goals)
    proposals = runner.Proposals(study, plan.space, plan.table.sampler, workspace, 10)
    handlers = runner.Recorder(study, lambda *trial: None), runner.Rungs(study, 0.5, lambda *trial: None)

    def propose_and_evaluate() -> None:
        config: Any = proposals.suggest("")
        trial: Any = SimpleNamespace(config=config)

        def report(result: dict[str, Any]) -> None:
            """Do in this process what Ray does with a worker's report."""
            result = result | {"seconds": 1.0}
            handlers[0].on_trial_result(0, [], trial, result)
            handlers[1].on_trial_result(None, trial, result)

        monkeypatch.setattr(runner.tune, "report", report)
        runner.evaluate_trial(config, workspace, "cpu", plan.table.rungs)

    propose_and_evaluate()  # loads what all candidates share
    files = files_that_receive_it(propose_and_evaluate)
    assert len(ledger.scored(study)) == 2
    stays = [file for file, _ in groupby(files)]
    visited = set(stays)
    # What its functions say of the architecture as a value: whether it is new, in the budget, and what it costs.
    of_the_value = {file for file in visited if file.startswith("search_spaces")}
    assert len(of_the_value) <= 4
    assert len(visited - of_the_value) <= 10
    # Each batch of its training takes the same steps again.
    steps = set(pairwise(stays))
    assert len(steps) <= 28
    runner.evaluator_of.cache_clear()
