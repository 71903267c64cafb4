"""Data, teacher, supernet and saved outputs are made once, and with the right contents."""

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoConfig, BertForSequenceClassification

from distill.encoders.student import ffn
from distill.objectives import Objective
from distill.tasks.encoding import load_encoded, training_batches
from distill.training.recipe import Recipe
from distill.training.teacher_outputs import SavedTeacher
from nas.config.load import load_config
from nas.config.schema import ConfigError
from nas.evaluation.trained import TrainedEvaluator
from nas.preparation.context import preparation_context
from nas.preparation.phases import settings_of
from nas.preparation.prepare import prepare
from nas.preparation.teacher import prepare_task
from nas.preparation.workspace import Workspace, objectives, projections
from search_spaces import Architecture, Base
from search_spaces.operations import UNARY, Operation
from supernet.build import set_dropout
from tests.accelerate_state import reset_accelerate
from tests.nas.tiny_study import TinyStudy
from tests.tiny import bert, inputs


def changed(tiny_study: TinyStudy, **changes: object) -> Workspace:
    places = {key.replace("__", "."): value for key, value in changes.items()}
    return prepare(load_config(str(tiny_study.preset), places), "cpu")


def test_everything_is_made_once(tiny_study: TinyStudy, workspace: Workspace) -> None:
    told: list[str] = []
    before = {path: path.stat().st_mtime_ns for path in tiny_study.cache.rglob("*")}
    again = prepare(tiny_study.config, "cpu", lambda what, fraction: told.append(what))
    assert again == workspace
    assert told == ["reading the rows"]
    assert {path: path.stat().st_mtime_ns for path in tiny_study.cache.rglob("*")} == before


def test_what_changes_what(tiny_study: TinyStudy, workspace: Workspace) -> None:
    """A cache key depends on exactly what determines the contents of its file."""
    dropout = changed(tiny_study, dropout=0.1, warmup__steps=1)
    assert (dropout.folders.data, dropout.folders.teacher) == (workspace.folders.data, workspace.folders.teacher)
    assert dropout.supernet != workspace.supernet
    shorter = changed(tiny_study, candidate__steps=5, stage1__trials=9)
    assert (shorter.folders.data, shorter.folders.teacher, shorter.supernet) == (
        workspace.folders.data,
        workspace.folders.teacher,
        workspace.supernet,
    )
    assert shorter.outputs != workspace.outputs


def test_the_precision_changes_what_is_trained(tiny_study: TinyStudy, workspace: Workspace) -> None:
    reset_accelerate()
    automatic = TrainedEvaluator(workspace, "cpu").accelerator.mixed_precision
    reset_accelerate()
    other = changed(tiny_study, mixed_precision="bf16" if automatic == "no" else "no")
    assert TrainedEvaluator(other, "cpu").accelerator.mixed_precision != automatic
    assert other.folders.data == workspace.folders.data
    assert other.folders.teacher != workspace.folders.teacher
    assert other.supernet != workspace.supernet
    assert other.outputs != workspace.outputs


def test_the_base_is_the_teacher_s(workspace: Workspace) -> None:
    base, graph = workspace.base()
    assert base == Base(depth=2, width=32, heads=4, inner=64, vocabulary=base.vocabulary, positions=32, gelu="erf")
    assert str(graph) == "project(gelu(expand(x)))"
    assert workspace.num_labels == 3


def test_a_teacher_stops_early(tiny_study: TinyStudy, workspace: Workspace) -> None:
    """With such a small learning rate, nothing improves after the first epoch."""
    fractions: list[float] = []
    changes = {"finetune.learning_rate": 1e-12, "finetune.epochs": 6, "finetune.early_stopping_patience": 2}
    config = load_config(str(tiny_study.preset), changes | {"finetune.fraction": 0.1})

    def on_progress(what: str, fraction: float | None) -> None:
        if fraction and what == "teacher: fine-tuning":
            fractions.append(fraction)

    assert prepare_task(preparation_context(config, "cpu", on_progress)).teacher != workspace.folders.teacher
    assert fractions[-1] == pytest.approx(3 / 6, abs=0.05)


def test_a_supernet_without_warm_up_computes_what_the_teacher_computes(tiny_study: TinyStudy) -> None:
    workspace = changed(tiny_study, warmup__steps=0, space__stacks=[1])
    evaluator = TrainedEvaluator(workspace, "cpu")
    student = evaluator.student(Architecture.uniform(*workspace.base(), 1)).eval()
    teacher = BertForSequenceClassification.from_pretrained(workspace.folders.teacher).eval()
    for batch in training_batches(workspace.folders.rows("train"), 8, 2, 0, 0):
        assert len(batch["labels"]) == 8
        given = inputs(batch)
        with torch.inference_mode():
            torch.testing.assert_close(student(**given).logits, teacher(**given).logits, atol=1e-5, rtol=0)


def test_a_warm_up_with_sampled_graphs_leaves_the_base_graph(tiny_study: TinyStudy, workspace: Workspace) -> None:
    sampled = changed(tiny_study, warmup__graphs="sampled", space__mutation_rate=1.0)
    one, other = (load_file(made.supernet / "model.safetensors") for made in (workspace, sampled))
    assert one.keys() == other.keys()
    assert not all(torch.equal(one[name], other[name]) for name in one)
    assert AutoConfig.from_pretrained(sampled.supernet).ffn == AutoConfig.from_pretrained(workspace.supernet).ffn


def test_only_a_warm_up_with_sampled_graphs_depends_on_added_operations(
    tiny_study: TinyStudy, workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    sampled = {"warmup__graphs": "sampled", "space__mutation_rate": 1.0}
    before = changed(tiny_study, **sampled)
    monkeypatch.setitem(UNARY, "square", Operation("a**2", np.square))
    monkeypatch.setitem(ffn.UNARY, "square", torch.square)
    assert changed(tiny_study, **sampled).supernet != before.supernet
    assert changed(tiny_study).supernet == workspace.supernet


def test_saved_outputs_are_the_teacher_s(tiny_study: TinyStudy, workspace: Workspace) -> None:
    ((table, folder),) = workspace.outputs
    assert table == "candidate"
    saved = SavedTeacher(folder)
    recipe = tiny_study.config.candidate
    assert recipe.steps is not None
    rows = load_encoded(workspace.folders.data / "train.npz")
    teacher = BertForSequenceClassification.from_pretrained(workspace.folders.teacher).eval()
    for step, batch in enumerate(training_batches(rows, recipe.batch_size, recipe.steps, tiny_study.config.seed, 0)):
        outputs = saved(step, batch)
        with torch.inference_mode():
            expected = teacher(**inputs(batch), output_hidden_states=True)
        # Half precision, and bfloat16 where the processor has it.
        torch.testing.assert_close(outputs.logits.float(), expected.logits, atol=0.1, rtol=0.05)
        assert len(outputs.hidden_states) == len(expected.hidden_states) == 3
        assert len(outputs.attention_scores) == 2
    assert step == recipe.steps - 1


def test_a_student_from_scratch(tiny_study: TinyStudy) -> None:
    base = {"depth": 1, "width": 16, "heads": 4, "inner": 32, "embedding": 8}
    workspace = changed(tiny_study, base=base, warmup__steps=2, finetune__steps=5)
    made, graph = workspace.base()
    assert (made.depth, made.width, made.embedding, str(graph)) == (1, 16, 8, "project(gelu(expand(x)))")
    assert made.vocabulary == AutoConfig.from_pretrained(workspace.folders.teacher).vocab_size
    evaluator = TrainedEvaluator(workspace, "cpu")
    assert 0 <= evaluator.evaluate(Architecture.uniform(made), seed=0).value <= 1
    ((goal, recipe),) = goals(workspace)
    assert set(goal.projections) == {"hidden", "embedding"}
    assert recipe == workspace.config.candidate.build(1)
    warm, again = (goals(workspace, workspace.supernet)[0][0].state_dict() for _ in range(2))
    assert all(torch.equal(warm[name], again[name]) for name in warm)
    assert not any(torch.equal(warm[name], fresh) for name, fresh in goal.state_dict().items())
    for wrong in ({"heads": 3}, {"heads": 2}, {"depth": 3}):
        with pytest.raises(ConfigError, match="base"):
            changed(tiny_study, base=base | wrong, finetune__steps=5)


def goals(workspace: Workspace, supernet: Path | None = None) -> list[tuple[Objective, Recipe]]:
    config = workspace.config
    student, teacher = (
        AutoConfig.from_pretrained(folder) for folder in (workspace.supernet, workspace.folders.teacher)
    )
    learned = projections(supernet) if supernet else None
    table = config.candidate
    return objectives(config, settings_of(config, "candidate"), table.build(1), student, teacher, learned=learned)


def test_both_of_tinybert_s_phases_warm_a_supernet_up(tiny_study: TinyStudy) -> None:
    """The first phase alone would leave a new head unchanged."""
    told: list[float] = []
    base = {"depth": 1, "width": 16, "heads": 4, "inner": 32}
    places = {"base": base, "objective": {"name": "tinybert"}, "warmup.steps": 13}
    config = load_config(str(tiny_study.preset), places)
    made = prepare(config, "cpu", lambda what, fraction: told.append(fraction or 0.0) if "warm-up" in what else None)
    assert told == pytest.approx([step / 13 for step in range(1, 14)])
    for supernets in (made, changed(tiny_study, base=base, objective={"name": "tinybert"}, warmup__steps=0)):
        weights = load_file(supernets.supernet / "model.safetensors")
        moved = torch.equal(weights["classifier.bias"], torch.zeros(3))
        assert moved == (supernets is not made)


def test_theseus_needs_a_student_of_the_teacher_s_shape(tiny_study: TinyStudy) -> None:
    base = {"depth": 1, "width": 16, "heads": 4, "inner": 64}
    with pytest.raises(ConfigError, match="objective and base: the student's layers take the place"):
        changed(tiny_study, base=base, objective={"name": "theseus"})


@pytest.mark.parametrize("table", ["finetune", "warmup"])
def test_training_that_diverges_names_its_table(tiny_study: TinyStudy, table: str) -> None:
    with pytest.raises(ConfigError, match=f"{table}: the loss is .*{table}.learning_rate"):
        changed(tiny_study, **{f"{table}__learning_rate": 1e30, f"{table}__steps": 6})


@pytest.mark.parametrize(
    ("objective", "message"),
    [
        ({"hidden": -1.0}, "hidden=-1.0: a weight must be a finite number of at least 0"),
        ({"temperature": 0.0}, "temperature=0.0: must be"),
        (dict.fromkeys(("attention", "hidden", "embedding", "prediction"), 0.0), "efficientbert has nothing to learn"),
        ({"name": "minimoe", "relation_heads": 5}, "relation_heads=5 must divide the student's 32 channels"),
        ({"name": "minimoe", "relation": 0, "labels": 0}, "minimoe has nothing to learn from: all of its"),
        ({"name": "moebert", "layers": "some"}, "layers='some': choose one of all, alternate, last"),
    ],
)
def test_settings_that_an_objective_cannot_use(
    tiny_study: TinyStudy, objective: dict[str, object], message: str
) -> None:
    with pytest.raises(ConfigError, match=f"objective and base: {message}"):
        changed(tiny_study, objective=objective)


def test_dropout_reaches_every_module() -> None:
    model = bert(hidden_dropout_prob=0.3)
    set_dropout(model, 0.05)
    assert {module.p for module in model.modules() if isinstance(module, torch.nn.Dropout)} == {0.05}
    assert model.config.hidden_dropout_prob == model.config.attention_probs_dropout_prob == 0.05


def test_weights_of_the_supernet_are_single_precision(workspace: Workspace) -> None:
    weights = load_file(workspace.supernet / "model.safetensors")
    assert {tensor.dtype for tensor in weights.values()} == {torch.float32}
    assert (Path(workspace.supernet) / "tokenizer.json").exists()
