"""The order of the supernet's channels and compensated inheritance, as settings of a study."""

from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from nas.config.load import load_config
from nas.config.schema import ConfigError
from nas.evaluation.trained import TrainedEvaluator
from nas.preparation import calibration
from nas.preparation.context import preparation_context
from nas.preparation.phases import training_phase
from nas.preparation.prepare import prepare
from nas.preparation.supernet import load_supernet, order_inputs
from nas.preparation.workspace import FISHER, IMPORTANCE, Compensation, Workspace, projections
from search_spaces import Architecture, Experts
from search_spaces.operations import UNARY
from supernet.build import from_teacher
from supernet.compensation.calibration import Calibration, calibrate
from supernet.inherit import inherit
from supernet.order.moments import FisherMatrices
from tests.nas.tiny_study import TinyStudy, uniform

COMPENSATED = {
    "supernet.order": "reconstruction",
    "supernet.inheritance": "compensated",
    "supernet.calibration_rows": 40,
}


def prepared(tiny_study: TinyStudy, **changes: Any) -> Workspace:
    return prepare(load_config(str(tiny_study.preset), changes), "cpu", outputs=False)


def files_of(workspace: Workspace) -> Compensation:
    assert workspace.compensation is not None
    return workspace.compensation


def quarter(workspace: Workspace, experts: Experts | None = None) -> Architecture:
    architecture = uniform(workspace, "1/4")
    if experts is None:
        return architecture
    return architecture.with_ffns(replace(ffn, experts=experts) for ffn in architecture.ffns)


def test_without_the_table_nothing_changes(tiny_study: TinyStudy) -> None:
    """Supernets that are in the cache keep their keys, and candidates are slices."""
    plain = prepared(tiny_study)
    assert plain.compensation is None
    explicit = prepared(tiny_study, **{"supernet.order": "importance", "supernet.inheritance": "sliced"})
    assert explicit.supernet == plain.supernet
    evaluator = TrainedEvaluator(plain, "cpu")
    sliced = inherit(evaluator.weights, quarter(plain), evaluator.frequencies, 0)
    for name, tensor in evaluator.student(quarter(plain)).state_dict().items():
        assert torch.equal(tensor, sliced[name]), name


def test_the_supernet_is_calibrated_once(tiny_study: TinyStudy, monkeypatch: pytest.MonkeyPatch) -> None:
    workspace = prepared(tiny_study, **COMPENSATED)
    written = files_of(workspace).calibration.stat().st_mtime_ns
    again = prepared(tiny_study, **COMPENSATED)
    assert again.compensation == workspace.compensation
    assert files_of(again).calibration.stat().st_mtime_ns == written
    fewer = prepared(tiny_study, **COMPENSATED | {"supernet.calibration_rows": 20})
    assert files_of(fewer).calibration != files_of(workspace).calibration
    loaded = Calibration.load(files_of(workspace).calibration)
    assert sum(len(batch["input_ids"]) for batch in loaded.batches) == 40
    kept = [*(sum_ND for layer in loaded.sums for sum_ND in layer), *loaded.attention_sums]
    monkeypatch.setattr(calibration, "MOST_BYTES", sum(sum_ND.nbytes for sum_ND in kept) - 1)
    cut = prepared(tiny_study, **COMPENSATED | {"supernet.calibration_rows": 41})
    assert sum(len(batch["input_ids"]) for batch in Calibration.load(files_of(cut).calibration).batches) == 39
    assert "labels" not in loaded.batches[0]
    evaluator = TrainedEvaluator(workspace, "cpu")
    teacher = from_teacher(evaluator.teacher(), stack=1)
    computed = calibrate(teacher, loaded.batches, evaluator.accelerator)
    assert [len(layer) for layer in loaded.sums] == [1, 1]
    for loaded_layer, layer in zip(loaded.sums, computed.sums, strict=True):
        torch.testing.assert_close(loaded_layer[0], layer[0], rtol=2e-2, atol=2e-2)
    for loaded_2D, norm_2D in zip(loaded.norms, computed.norms, strict=True):
        assert torch.equal(loaded_2D, norm_2D)
    assert torch.equal(loaded.held_out_N, computed.held_out_N)
    assert 0.1 < float(loaded.held_out_N.float().mean()) < 0.3


def test_losses_are_predicted_once(tiny_study: TinyStudy) -> None:
    workspace = prepared(tiny_study, **COMPENSATED)
    stored = load_file(files_of(workspace).predictions)
    assert stored.keys() == {f"{op}/{layer}" for op in UNARY for layer in range(2)}
    for name, losses in stored.items():
        assert len(losses) == 65 and bool((losses[1:].diff() <= 1e-12).all()) and float(losses[0]) > 0, name
    assert files_of(prepared(tiny_study, **COMPENSATED)).predictions == files_of(workspace).predictions
    narrower = prepared(tiny_study, **COMPENSATED | {"space.expansions": ["1/8", "1/4", "1/2"]})
    assert narrower.supernet == workspace.supernet
    assert {len(losses) for losses in load_file(files_of(narrower).predictions).values()} == {33}


@pytest.mark.parametrize("experts", [None, Experts(count=2, routing="balanced_hash", shared=Fraction(1, 2))], ids=str)
def test_candidates_are_compensated(experts: Experts | None, tiny_study: TinyStudy) -> None:
    workspace = prepared(tiny_study, **COMPENSATED)
    evaluator = TrainedEvaluator(workspace, "cpu")
    architecture = quarter(workspace, experts)
    student, same = evaluator.student(architecture).state_dict(), evaluator.student(architecture).state_dict()
    sliced = inherit(evaluator.weights, architecture, evaluator.frequencies, 0)
    assert student.keys() == sliced.keys()
    for name, tensor in student.items():
        assert torch.equal(tensor, same[name])
        changed = ".project." in name
        assert torch.equal(tensor, sliced[name]) != changed, name
    score = evaluator.evaluate(architecture, seed=0)
    assert 0 <= score.value <= 1


# Sums have another order if one supernet was made by a search, on one thread, and the other one here, on several.
ROUNDING = {"rtol": 1e-3, "atol": 1e-6}


def test_the_order_is_another_supernet_with_the_same_importance(tiny_study: TinyStudy) -> None:
    plain = prepared(tiny_study)
    ordered = prepared(tiny_study, **{"supernet.order": "reconstruction"})
    assert ordered.supernet != plain.supernet
    for before, after in zip(plain.importance(), ordered.importance(), strict=True):
        torch.testing.assert_close(before, after, **ROUNDING)
    assert (ordered.supernet / IMPORTANCE).exists()
    name = "bert.encoder.layer.0.ffn.0.expand.bias"
    biases = [load_file(made.supernet / "model.safetensors")[name] for made in (plain, ordered)]
    assert not torch.allclose(*biases, **ROUNDING)
    torch.testing.assert_close(*(bias.sort().values for bias in biases), **ROUNDING)


def test_an_order_that_does_not_exist(tiny_study: TinyStudy) -> None:
    config = load_config(str(tiny_study.preset), {"supernet.order": "importence"})
    with pytest.raises(ConfigError, match=r"supernet.order: there is no 'importence'; did you mean 'importance'"):
        prepare(config, "cpu")


def test_fisher_matrices_of_the_order_are_those_of_the_sorted_supernet(tiny_study: TinyStudy) -> None:
    workspace = prepared(tiny_study, **COMPENSATED)
    config, folders = workspace.config, workspace.folders
    supernet, phase = load_supernet(config, folders, workspace.supernet), training_phase(config, "warmup", folders)
    context = preparation_context(config, "cpu")
    again = order_inputs(context, folders, supernet, phase, projections(workspace.supernet)).moments.fisher_matrices()
    kept = FisherMatrices.load(workspace.supernet / FISHER)
    for expected, found in zip([*again.ffns, *again.attentions], [*kept.ffns, *kept.attentions], strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4 * float(expected.max()))
    assert not (prepared(tiny_study).supernet / FISHER).exists()
