"""The sentence that says whether searching paid off."""

from copy import copy
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from distill.tasks.metrics import CLASS_ACCURACY, paired_difference
from nas.config.load import load_config
from nas.planning.finalists import GLOBAL, WINNER
from nas.report.sections import result
from nas.report.study import Study, read
from nas.report.verdict import of_study, overall_lead
from nas.study.folder import Folder
from tests.nas.report import synthetic


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Study:
    path = synthetic.write(tmp_path_factory.mktemp("study") / "demo", trials=10)
    return read(Folder(path))


def with_lead(study: Study, lead: dict[str, Any] | None, trial: int = 7) -> Study:
    best = {"winner": {"trial": trial, "lead": lead}, "finalists": []}
    return replace(study, stages=(replace(study.stages[0], best=best),))


def lead(value: float, error: float = 0.002, trial: int = 2, seeds: tuple[int, ...] = (1, 2)) -> dict[str, Any]:
    return {"over": GLOBAL, "over_trial": trial, "value": value, "standard_error": error, "seeds": list(seeds)}


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (
            lead(0.0041),
            "Searching probably paid off: the winner of stage 1 has +0.0041 ± 0.0020 over global importance",
        ),
        (lead(0.0040), "No evidence that searching paid off"),
        (lead(-0.001), "No evidence that searching paid off"),
        (lead(-0.0041), "Searching did not pay off: the winner of stage 1 has -0.0041 ± 0.0020"),
        (
            lead(0.0, trial=7),
            "Searching did not pay off: the winner of stage 1 is itself a baseline, global importance",
        ),
        (None, "It is not known whether"),
    ],
)
def test_sentences(study: Study, found: dict[str, Any] | None, expected: str) -> None:
    assert expected in of_study(with_lead(study, found))
    assert "1 seed)" in of_study(with_lead(study, lead(1.0, seeds=(1,))))


def test_before_the_end(study: Study) -> None:
    unfinished = replace(study, stages=(replace(study.stages[0], best=None),))
    leader = unfinished.last.leader
    assert leader is not None
    assert leader.score == max(c.score for c in study.stages[0].within_budget)
    assert f"{leader.score:.4f}" in of_study(unfinished)
    assert of_study(unfinished).endswith("partly luck; the confirmation with fresh seeds will tell.")
    without = load_config("demo-ffn", {"stage1.confirm_seeds": 0})
    assert of_study(replace(unfinished, config=without)).endswith("partly luck.")
    baseline = unfinished.stages[0].baselines[0]
    alone = replace(unfinished, stages=(replace(unfinished.stages[0], candidates=(baseline,)),))
    assert f"0.0100, and is itself a baseline, {baseline.origin}." in of_study(alone)
    nothing = replace(unfinished, stages=(replace(unfinished.stages[0], candidates=()),))
    assert "no candidate within the budget has a score" in of_study(nothing)


def test_the_lead_of_a_later_stage_is_over_a_fixed_baseline(study: Study) -> None:
    """Its own lead, over what an earlier stage found, would leave out what that stage gained."""
    stage = study.stages[0]
    assert stage.best is not None
    baselines = {c.function: c for c in stage.baselines if c.in_budget and c.function in study.confirmed}
    winner = stage.leader
    assert winner is not None
    reference = max(baselines, key=lambda function: np.mean(study.confirmed_scores(baselines[function])))
    pairs = [(study.confirmed[winner.function][seed].rows, study.confirmed[reference][seed].rows) for seed in (1, 2)]
    found = overall_lead(study)
    assert found is not None
    if reference == winner.function:
        assert found["over_trial"] == winner.number
        return
    expected = paired_difference(CLASS_ACCURACY, [(np.asarray(a), np.asarray(b)) for a, b in pairs])
    assert (found["value"], found["standard_error"]) == (expected.value, expected.standard_error)
    later = with_lead(study, lead(9.0) | {"over": WINNER}, winner.number)
    assert f"{expected.value:+.4f}" in of_study(later)


def test_a_trial_that_ended_before_it_began_by_the_clock_took_no_time(study: Study) -> None:
    """The clock was set back while it ran."""
    candidate = study.stages[0].scored[0]
    trial = copy(candidate.trial)
    trial.datetime_start, trial.datetime_complete = datetime(2026, 1, 2), datetime(2026, 1, 1)
    start = trial.datetime_start.timestamp()
    assert replace(candidate, trial=trial).span == (start, start)


def test_what_the_winner_keeps(study: Study) -> None:
    config = load_config("demo-ffn", {"tasks": [synthetic.TASK], "keep.fraction": "98%", "space.uniform": 1})
    kept = {"share": 0.991, "standard_error": 0.004, "confidence": 0.97}
    found = replace(with_lead(study, lead(0.1)), config=config)
    assert found.stages[0].best is not None
    found.stages[0].best["winner"]["kept"] = kept  # type: ignore[index]
    (text,) = [part for part in result(found).parts if "keeps" in str(part)]
    assert "keeps 99.1% ± 0.4% of the teacher" in str(text)
    assert "at least 98.0%, which was asked for, with a confidence of 97%" in str(text)


def test_old_studies_can_be_read(tmp_path: Path) -> None:
    """Studies of version 0.1 have neither rows, nor the teacher's score, nor leads."""
    path = synthetic.write(tmp_path / "demo", trials=8, rows_of_confirmations=False)
    study = read(Folder(path))
    assert study.confirmed and all(candidate.rows is None for candidate in study.confirmations)
    assert "It is not known whether" in of_study(study)
