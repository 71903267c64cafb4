"""The evaluation of a single candidate."""

import shutil
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from distill.tasks.metrics import standard_error
from distill.training.loop import Diverged
from distill.training.progress import ignore_progress
from distill.training.teacher_outputs import SavedTeacher
from nas.evaluation.modes import MODES
from nas.evaluation.trained import TrainedEvaluator
from nas.planning.stages import plan
from nas.preparation.prepare import prepare
from nas.preparation.workspace import Workspace
from nas.workers.runner import evaluator_of
from search_spaces import Architecture
from tests.nas.tiny_study import TinyStudy, uniform


def test_a_score_is_decided_by_architecture_and_seed(workspace: Workspace) -> None:
    architecture = uniform(workspace)
    reports: list[tuple[int, float]] = []
    first = TrainedEvaluator(workspace, "cpu").evaluate(
        architecture, 0, (Fraction(1, 2),), lambda step, score: reports.append((step, score))
    )
    again = TrainedEvaluator(workspace, "cpu")
    torch.manual_seed(1)  # what happened before does not matter
    assert again.evaluate(architecture, 0) == first
    again.evaluate(architecture, 5)
    last = again.evaluate(architecture, 0)
    assert last == first
    assert first.rows is not None and last.rows is not None
    assert np.array_equal(last.rows, first.rows)
    assert (first.rows.shape, first.rows.mean()) == ((len(again.search_rows),), first.value)
    assert [step for step, _ in reports] == [0, 3]
    assert reports[0][1] == first.parts["inherited"]
    assert first.standard_error == standard_error(first.value, len(again.search_rows))
    assert first.value > 1 / 3


def test_a_stage_may_score_on_a_part_of_the_search_split(workspace: Workspace) -> None:
    """On the first of its rows, as many as the fraction of all training rows."""
    folders, config = workspace.folders, workspace.config
    total = len(folders.rows("train")) + len(folders.rows("search"))
    given = replace(workspace, config=config.with_table("stage1", search_fraction=Fraction(1, 50)))
    prepared = MODES["trained"].prepare(given, plan(given.config, given, "1", None, ()), "cpu", ignore_progress)
    whole, part = (TrainedEvaluator(each, "cpu").evaluate(uniform(each), 0) for each in (workspace, prepared))
    assert whole.rows is not None and part.rows is not None
    assert len(part.rows) == round(total / 50) < len(whole.rows)
    assert np.array_equal(part.rows, whole.rows[: len(part.rows)]) and part.value == part.rows.mean()


def test_candidates_without_training_are_scored_as_they_inherit(tiny_study: TinyStudy) -> None:
    evaluator = TrainedEvaluator(prepare(tiny_study.config.with_table("candidate", steps=0), "cpu"), "cpu")
    architecture = Architecture.uniform(*evaluator.workspace.base()[:1], expansion=Fraction(1, 2))
    found = evaluator.evaluate(architecture, 0, (Fraction(1, 2),))
    assert found.value == evaluator.score(evaluator.student(architecture)).value
    assert set(found.parts) == {"inherited"}


def test_only_candidates_of_the_study_s_own_seed_use_saved_outputs(tiny_study: TinyStudy, workspace: Workspace) -> None:
    shared = TrainedEvaluator(workspace, "cpu")
    (plan,), seed = shared.training_phases, tiny_study.config.seed
    own = shared.saved_outputs_of(plan, seed)
    assert own is not None and isinstance(own.outputs, SavedTeacher)
    assert shared.saved_outputs_of(plan, seed + 1) is None
    assert (
        shared.saved_outputs_of(replace(plan, recipe=replace(plan.recipe, steps=plan.recipe.steps + 1)), seed) is None
    )


def test_broken_weights_are_no_score(workspace: Workspace, tmp_path: Path) -> None:
    shutil.copytree(workspace.supernet, tmp_path / "supernet")
    path = tmp_path / "supernet" / "model.safetensors"
    weights = load_file(path)
    weights["bert.encoder.layer.1.ffn.0.project.bias"][0] = float("nan")
    save_file(weights, path)
    broken = TrainedEvaluator(replace(workspace, supernet=tmp_path / "supernet"), "cpu")
    with pytest.raises(Diverged, match="not finite"):
        broken.evaluate(uniform(workspace), 0)


def test_a_process_loads_its_evaluator_once(tiny_study: TinyStudy, workspace: Workspace) -> None:
    assert evaluator_of(workspace, "cpu") is evaluator_of(replace(workspace, config=tiny_study.config), "cpu")
    evaluator_of.cache_clear()
