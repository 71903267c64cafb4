"""The score of inherited weights, on one task and on several."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from distill.tasks.encoding import collate
from nas.config.load import load_config
from nas.config.schema import ConfigError
from nas.evaluation.trained import TrainedEvaluator
from nas.evaluation.untrained import UntrainedEvaluator
from nas.planning.finalists import WINNER
from nas.planning.stages import ALLOCATED, GLOBAL, UNIFORM, plan
from nas.preparation.prepare import prepare, prepare_untrained
from nas.study import ledger
from nas.study.attributes import score_attribute
from search_spaces import Architecture
from tests.nas.tiny_study import TinyStudy, trials_of, uniform
from tests.tiny import inputs

SUPERNET = """\
[supernet]
order = "reconstruction"
inheritance = "compensated"
calibration_rows = 40
"""
UNTRAINED = (
    *((f"[stage{stage}]\n", f'[stage{stage}]\nevaluation = "untrained"\n') for stage in "12"),
    ("[stage3]\n", '[stage3]\nevaluation = "untrained"\nscore = "fidelity"\n'),
    ("[finetune]\n", f"{SUPERNET}[finetune]\n"),
    ('rungs = ["1/2"]\n', ""),
)


@pytest.fixture
def preset(tiny_study: TinyStudy, tmp_path: Path) -> Path:
    return tiny_study.variant(tmp_path / "untrained.toml", *UNTRAINED)


def test_the_score_is_that_of_the_inherited_weights(preset: Path, tiny_study: TinyStudy) -> None:
    workspace = prepare(load_config(str(preset)), "cpu")
    architecture = uniform(workspace, "1/4")
    evaluator = TrainedEvaluator(workspace, "cpu")
    expected = evaluator.score(evaluator.student(architecture))

    alone = prepare_untrained(workspace, workspace.config.stage1, workspace.config.tasks[:1], device="cpu")
    score = UntrainedEvaluator(alone, "cpu").evaluate(architecture)
    assert (score.value, score.standard_error, score.loads) == (expected.value, expected.standard_error, ())
    assert score.parts == {"library": expected.value}

    few = prepare_untrained(
        workspace, workspace.config.stage1.model_copy(update={"rows": 30}), workspace.config.tasks[:1], device="cpu"
    )
    fewer = UntrainedEvaluator(few, "cpu").evaluate(architecture)
    assert fewer.value == evaluator.score(evaluator.student(architecture), 30).value
    assert fewer.standard_error > score.standard_error

    both = prepare_untrained(workspace, workspace.config.stage1, workspace.config.tasks, device="cpu")
    first, second = both.tasks
    assert first == workspace and second.config.task == "neighbours" and second.supernet != first.supernet
    assert first.compensation is not None and first.compensation.predictions.exists()
    assert second.compensation is not None and second.compensation.calibration.exists()
    assert not second.compensation.predictions.exists()  # nothing is allocated by them
    mean = UntrainedEvaluator(both, "cpu").evaluate(architecture)
    other = TrainedEvaluator(second, "cpu")
    parts = {"library": expected.value, "neighbours": other.score(other.student(architecture)).value}
    assert mean.parts == parts
    assert mean.value == pytest.approx(sum(parts.values()) / 2)


def test_candidates_are_compared_by_their_fidelity(preset: Path) -> None:
    config = load_config(str(preset), {"stage1.score": "fidelity", "stage1.rows": 40})
    workspace = prepare(config, "cpu")
    architecture = uniform(workspace, "1/4")
    score = UntrainedEvaluator(
        prepare_untrained(workspace, config.stage1, config.tasks[:1], device="cpu"), "cpu"
    ).evaluate(architecture)

    evaluator = TrainedEvaluator(workspace, "cpu")
    student = evaluator.student(architecture)
    differences = []
    for model in (student, evaluator.teacher()):
        batch = collate(evaluator.search_rows, np.arange(40), pad_id=0)
        with torch.no_grad(), evaluator.accelerator.autocast():
            logits_NC = model.eval()(**inputs(batch)).logits.float().numpy()
        differences.append(logits_NC[:, 1] - logits_NC[:, 0])
    assert score.value == pytest.approx(np.corrcoef(*differences)[0, 1], abs=1e-3)
    assert score.parts == {"library fidelity": score.value, "library": evaluator.score(student, 40).value}
    assert plan(config, workspace, "1", None, ()).goals == ("fidelity",)


def test_plans_start_with_milp_allocations(preset: Path, tiny_study: TinyStudy) -> None:
    config = load_config(str(preset))
    workspace = prepare(config, "cpu")
    first = plan(config, workspace, "1", None, ())
    origins = [origin for _, origin, _ in first.baselines]
    assert origins[:3] == ["base model", UNIFORM, GLOBAL] and tuple(origins[3:]) == ALLOCATED
    assert all(architecture in first.space for architecture, origin, _ in first.baselines if origin in ALLOCATED)
    assert len({row[1:] for row in first.baselines}) == len(first.baselines), "a resumed search tells them apart"
    start = first.baselines[3][0]
    for stage in ("2", "3"):
        refining = plan(config, workspace, stage, start, ())
        assert refining.baselines[0] == (start, WINNER, None)
        assert ALLOCATED[0] in [origin for _, origin, _ in refining.baselines]


@pytest.mark.slow
def test_a_whole_search_trains_only_finalists(preset: Path, tiny_study: TinyStudy, tmp_path: Path) -> None:
    command = ("-m", "nas.search", "--stage", "all", "--preset", preset, "--workers", "1", "--out", tmp_path)
    result = tiny_study.run(*command, "--study", "s")
    assert (result.returncode, result.stderr) == (0, "")
    folder = tmp_path / "s"
    for stage in ("stage-1", "stage-2", "stage-3"):
        trials = [trial for trial in trials_of(folder, stage) if ledger.DUPLICATE_OF not in trial.user_attrs]
        compared = ("library fidelity", "neighbours fidelity") if stage == "stage-3" else ("library",)
        for trial in trials:
            assert not trial.intermediate_values
            parts = [trial.user_attrs[score_attribute(name)] for name in compared]
            assert trial.value == pytest.approx(sum(parts) / len(parts))
            assert 0 <= trial.user_attrs[score_attribute("library")] <= 1, "the task's metric is recorded, too"
    for trial in trials_of(folder, "confirmation"):
        assert score_attribute("inherited") in trial.user_attrs, "finalists are trained"
    best = json.loads((folder / "stage-3" / "best.json").read_text())
    assert best["compared_by"] == "fidelity" and " fidelity 0." in result.stdout
    assert Architecture.load(folder / "architecture.json").to_json() == best["winner"]["architecture"]


def test_settings_that_untrained_candidates_cannot_have(preset: Path) -> None:
    for changes, words in (
        ({"stage1.stop": 0.3}, "stage1: untrained candidates cannot be pruned; leave out stop"),
        (
            {"one_shot.sandwich": True},
            'one_shot.sandwich is for a one-shot supernet: set stage3.evaluation = "one_shot"',
        ),
        (
            {"one_shot.widths": ["1/4"]},
            'one_shot.widths is for a one-shot supernet: set stage3.evaluation = "one_shot"',
        ),
        ({"stage2.score": "fidelity", "stage2.evaluation": "trained"}, "stage2.score: fidelity is for untrained"),
        ({"one_shot.inheritance": "compensated"}, "one_shot.inheritance is for a one-shot supernet"),
        ({"stage3.evaluation": "trained"}, "stage3.evaluation: candidates are trained on one task only"),
    ):
        with pytest.raises(ConfigError) as error:
            load_config(str(preset), changes)
        assert words in str(error.value)


def test_only_stage_3_has_a_one_shot_supernet(tiny_study: TinyStudy) -> None:
    assert tiny_study.config.stage3.evaluation == "one_shot" and tiny_study.config.stage1.evaluation == "trained"
    for stage in ("stage1", "stage2"):
        with pytest.raises(ConfigError, match=f"{stage}.evaluation: only stage 3 has a one-shot supernet"):
            load_config(str(tiny_study.preset), {f"{stage}.evaluation": "one_shot"})
    with pytest.raises(ConfigError, match=r"stage2.evaluation.*'trained', 'untrained' or 'one_shot'"):
        load_config(str(tiny_study.preset), {"stage2.evaluation": "fast"})
