"""The trainings of a study: on the task or on text, in steps or epochs, with the fine-tuned or the raw teacher."""

from collections import Counter
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoConfig, BertConfig, BertForSequenceClassification

from distill.tasks.encoding import Encoded, take
from distill.training.teacher import TeacherError, load_tokenizer
from nas.config.load import load_config
from nas.config.schema import ConfigError, StudyConfig
from nas.evaluation.one_shot import OneShotEvaluator
from nas.evaluation.trained import TrainedEvaluator
from nas.final.training import final_phases
from nas.planning.budget import budgeted_space
from nas.preparation.context import preparation_context
from nas.preparation.entries import create
from nas.preparation.one_shot import WEIGHTS, prepare_one_shot, turns_of
from nas.preparation.phases import FINAL, portion, training_phase
from nas.preparation.prepare import prepare
from nas.preparation.supernet import new_supernet, order_inputs, supernet_path
from nas.preparation.teacher import prepare_task
from nas.preparation.text import text_entries, texts_of
from nas.preparation.workspace import Workspace, objectives, student_base
from search_spaces import Architecture, cost
from search_spaces.layer import PredictionHead
from search_spaces.published import PUBLISHED
from search_spaces.spaces import SIZES
from supernet.build import build
from tests.nas.tiny_study import TinyStudy, uniform
from tests.search_spaces.small_spaces import of_genes

# EfficientBERT's protocol in small: a base of its own, text before every training, the raw teacher on it.
PROTOCOL = """\
extends = "tiny.toml"
base = {depth = 2, width = 24, heads = 4, inner = 24, embedding = 8}
text_teacher = "raw"

[space]
mismatch = "wide"

[finetune]
epochs = 0.5

[warmup]
source = "text"
epochs = 0.1

[candidate_pretrain]
epochs = 1
fraction = 0.02
batch_size = 8
learning_rate = 1e-3

[candidate]
epochs = 2
fraction = 0.1

[one_shot_pretrain]
steps = 3
batch_size = 8
learning_rate = 1e-3

[one_shot]
epochs = 0.1

[pretrain]
steps = 0

[final]
start = "one_shot"
"""


LOWEST = "bert.encoder.layer.0.ffn.0.expand.weight"


@pytest.fixture
def protocol(tiny_study: TinyStudy) -> Path:
    path = tiny_study.root / "protocol.toml"
    path.write_text(PROTOCOL)
    return path


def head(folder: Path) -> torch.Tensor:
    return load_file(folder / "model.safetensors")["classifier.weight"]


def test_what_a_table_says(protocol: Path) -> None:
    workspace = prepare(load_config(str(protocol)), "cpu")
    config, folders = workspace.config, workspace.folders
    text, train = folders.text("candidate_pretrain"), folders.rows("train")
    found = training_phase(config, "candidate_pretrain", folders)
    assert found is not None and found.raw_teacher and found.rows.labels is None
    assert len(found.rows) == -(-len(text) // 50)
    assert found.recipe.steps == -(-len(found.rows) // 8)
    assert found.settings["prediction"] == 0
    task = training_phase(config, "candidate", folders)
    assert task is not None and not task.raw_teacher and task.rows.labels is not None
    assert len(task.rows) == -(-len(train) // 10) and len(set(task.rows.labels)) > 1
    assert task.recipe.steps == -(-2 * len(task.rows) // 8)
    assert "prediction" not in task.settings
    assert training_phase(config, "pretrain", folders) is None
    assert workspace.outputs[0][0] == "candidate_pretrain" and workspace.outputs[1][0] == "candidate"


def test_a_portion_is_drawn_once(workspace: Workspace) -> None:
    rows = workspace.folders.rows("train")
    assert portion(rows, 1.0, 3) is rows
    part, again, other = portion(rows, 0.3, 3), portion(rows, 0.3, 3), portion(rows, 0.3, 4)
    assert np.array_equal(part.input_ids, again.input_ids) and not np.array_equal(part.input_ids, other.input_ids)
    assert rows.labels is not None and part.labels is not None
    whole = Counter((tuple(row), label) for row, label in zip(split(rows), rows.labels.tolist(), strict=True))
    own = Counter((tuple(row), label) for row, label in zip(split(part), part.labels.tolist(), strict=True))
    assert own <= whole and sum(own.values()) == -(-3 * len(rows) // 10)
    assert len(take(rows, np.array([], np.int64))) == 0


def split(rows: Encoded) -> list[list[int]]:
    return [row.tolist() for row in np.split(rows.input_ids, rows.offsets[1:-1])]


def test_a_supernet_warmed_up_on_text(tiny_study: TinyStudy, protocol: Path, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("Bado kule moni.\nParu.\n" * 20)
    places = {"corpus": str(tmp_path / "a.txt"), "warmup.steps": 5}
    config = load_config(str(protocol), places)
    warm = prepare(config, "cpu")
    cold = prepare(load_config(str(protocol), places | {"warmup.steps": 0}), "cpu")
    assert torch.equal(head(warm.supernet), head(cold.supernet)), "text has no labels"
    encoder = "bert.encoder.layer.0.ffn.0.expand.bias"
    assert not torch.equal(*(load_file(made.supernet / "model.safetensors")[encoder] for made in (warm, cold)))
    # In order of importance for the loss that it learned by.
    for layer in load_file(warm.supernet / "importance.safetensors").values():
        assert (layer >= 0).all() and layer[0] > 0 and torch.equal(layer, layer.sort(descending=True).values)
    first = warm.supernet
    assert prepare(load_config(str(protocol), places | {"text_teacher": "task"}), "cpu").supernet != first
    (tmp_path / "a.txt").write_text("Bado kule.\nParu.\n" * 20)
    assert prepare(config, "cpu").supernet != first


def test_sentences_of_a_text_count_alike_in_importance(tiny_study: TinyStudy, protocol: Path, tmp_path: Path) -> None:
    """Importance uses the loss of each sentence separately, so it does not depend on how sentences are batched."""
    (tmp_path / "a.txt").write_text("Bado kule moni nipa rufi sebo dole.\nParu.\nBado.\nKule moni.\n")
    places = {"corpus": str(tmp_path / "a.txt"), "warmup.fraction": 1.0, "warmup.epochs": 1}

    def importance(batch_size: int) -> list[torch.Tensor]:
        changes = places | {"warmup.batch_size": batch_size, "warmup.importance_batches": 4 // batch_size}
        context = preparation_context(load_config(str(protocol), changes), "cpu")
        config = context.config
        create(context, text_entries(context, ["warmup"]))
        folders = replace(prepare_task(context), texts=texts_of(context, ["warmup"]))
        teacher = AutoConfig.from_pretrained(folders.teacher)
        phase = training_phase(config, "warmup", folders)
        assert phase is not None and sorted(phase.rows.lengths)[0] < sorted(phase.rows.lengths)[-1]
        model = new_supernet(context, folders, student_base(config, teacher)[0])
        objective, _ = objectives(config, phase.settings, phase.recipe, model.config, teacher)[-1]
        inputs = order_inputs(context, folders, model, phase, objective.state_dict())
        return [layer[0] for layer in inputs.importances[0]]

    single, *others = (importance(size) for size in (1, 2, 4))
    for other in others:
        for expected, found in zip(single, other, strict=True):
            torch.testing.assert_close(found, expected, rtol=0.05, atol=0.01 * float(expected.max()))


def test_candidates_learn_from_text_before_the_task(protocol: Path) -> None:
    workspace = prepare(load_config(str(protocol)), "cpu")
    evaluator = TrainedEvaluator(workspace, "cpu")
    architecture = uniform(workspace)
    steps: list[int] = []
    model = evaluator.student(architecture)
    evaluator.train(model, evaluator.training_phases, 0, steps.append)
    assert steps == list(range(evaluator.training_phases[-1].recipe.steps + 1))
    # Text alone leaves the head as it is.
    on_text = evaluator.student(architecture)
    evaluator.train(on_text, evaluator.training_phases[:1], 0)
    start = evaluator.student(architecture)
    assert torch.equal(on_text.classifier.weight, start.classifier.weight)
    assert not torch.equal(on_text.bert.pooler.dense.weight, model.bert.pooler.dense.weight)
    lowest = "bert.encoder.layer.0.ffn.0.expand.weight"
    assert not torch.equal(on_text.state_dict()[lowest], start.state_dict()[lowest])
    # Kept outputs are the teachers': the raw one's on text, the fine-tuned one's on the task.
    live = TrainedEvaluator(prepare(load_config(str(protocol), {"teacher_cache": 0}), "cpu"), "cpu")
    assert live.workspace.outputs == () and live.workspace.supernet == workspace.supernet
    taught_live = live.student(architecture)
    live.train(taught_live, live.training_phases, 0)
    other = taught_live.state_dict()
    moved = {name: tensor for name, tensor in model.state_dict().items() if tensor.is_floating_point()}
    apart = sum(float((tensor - other[name]).square().sum()) for name, tensor in moved.items())
    far = sum(float((tensor - start.state_dict()[name]).square().sum()) for name, tensor in moved.items())
    assert far > 0 and apart < 0.01 * far


def test_a_final_training_needs_no_text_for_candidates(protocol: Path) -> None:
    short = {"steps": 2, "batch_size": 8, "learning_rate": 1e-3}
    config = load_config(str(protocol), {"pretrain": short, "final": short})
    workspace = prepare(config, "cpu", outputs=False, texts=("warmup", *FINAL))
    assert "candidate_pretrain" not in dict(workspace.folders.texts)
    evaluator = TrainedEvaluator(workspace, "cpu")
    model = evaluator.student(uniform(workspace))
    before = model.classifier.weight.detach().clone()
    phases = final_phases(evaluator, pytest.fail)
    assert [phase.table for phase in phases] == list(FINAL)
    for phase in phases:
        evaluator.distil(model, phase, config.seed, {})
    assert not torch.equal(before, model.classifier.weight)


def test_a_disk_without_room(protocol: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda path: type("Usage", (), {"free": 10})())
    message = r"teacher_cache: the teacher's outputs for candidate.* take .* MB and .* has .* MB free"
    with pytest.raises(ConfigError, match=message):
        prepare(load_config(str(protocol), {"seed": 3}), "cpu")
    assert prepare(load_config(str(protocol), {"seed": 3, "teacher_cache": 0}), "cpu").outputs == ()


def test_epochs_of_several_tasks(protocol: Path) -> None:
    config = load_config(str(protocol), {"one_shot.epochs": 1})
    folders = {task: prepare_task(preparation_context(alone(config, task), "cpu")) for task in config.tasks}
    plan = {task: found for task in folders if (found := training_phase(config, "one_shot", folders[task]))}
    counts = Counter(turns_of(config, plan))
    assert counts == {task: -(-len(one.rows) // 8) for task, one in plan.items()}
    assert len(set(counts.values())) == 2
    # Both are still trained on in the last tenth.
    turns = turns_of(config, plan)
    assert len(set(turns[-len(turns) // 10 :])) == 2
    equal = Counter(turns_of(load_config(str(protocol), {"one_shot.steps": 7}), plan))
    assert sorted(equal.values()) == [3, 4]


def alone(config: StudyConfig, task: str) -> StudyConfig:
    return config.model_copy(update={"tasks": (task,)})


def test_one_warm_up_on_text_for_all_tasks(tiny_study: TinyStudy, protocol: Path) -> None:
    config = load_config(str(protocol), {"seed": 11})
    said: list[list[str]] = []
    found = []
    before = set((tiny_study.cache / "encoders").glob("[!.]*"))
    for task in config.tasks:
        said.append([])
        found.append(prepare(alone(config, task), "cpu", lambda what, fraction: said[-1].append(what), outputs=False))
    assert len(set((tiny_study.cache / "encoders").glob("[!.]*")) - before) == 1
    assert "supernet: warm-up" in said[0] and "teacher: fine-tuning" in said[1] and "supernet: warm-up" not in said[1]
    one, other = (load_file(workspace.supernet / "model.safetensors") for workspace in found)
    assert one["classifier.weight"].shape != other["classifier.weight"].shape
    assert all(torch.equal(one[name], other[name]) for name in one if name.startswith("bert."))
    assert all(torch.equal(*pair) for pair in zip(found[0].importance(), found[1].importance(), strict=True))
    # The task's own teacher has no part in it, but a teacher that was fine-tuned on the task would have.
    finetuned = prepare(alone(config.model_copy(update={"text_teacher": "task"}), config.task), "cpu", outputs=False)
    assert not torch.equal(load_file(finetuned.supernet / "model.safetensors")[LOWEST], one[LOWEST])


def test_one_shared_supernet_for_all_tasks_in_any_order(protocol: Path) -> None:
    given = load_config(str(protocol))
    scores, folders = [], set()
    for tasks in (given.tasks, given.tasks[::-1]):
        config = given.model_copy(update={"tasks": tasks})
        workspace = prepare(config, "cpu", outputs=False)
        base, graph = workspace.base()
        start = uniform(workspace, "1")
        space = budgeted_space(config, base, graph, workspace.num_labels, start=start, vary=frozenset({SIZES}))
        shared = prepare_one_shot(workspace, space, "cpu")
        assert [folder.task.name for folder in shared.tasks] == list(tasks)
        folders.add(shared.one_shot)
        evaluator = OneShotEvaluator(shared, "cpu")
        scores.append(evaluator.evaluate(uniform(workspace)).value)
        assert evaluator.student(uniform(workspace)).config.num_labels == workspace.num_labels
    assert len(folders) == 1 and scores[0] == scores[1]
    # The score on the first task alone; the mean of both is the mean over the tasks.
    stage3 = given.stage3.model_copy(update={"scored_on": "first"})
    alone_scores = []
    for tasks in (given.tasks, given.tasks[::-1]):
        config = given.model_copy(update={"tasks": tasks, "stage3": stage3})
        order = [folder for task in tasks for folder in shared.tasks if folder.task.name == task]
        study = replace(shared.study, config=config, folders=order[0])
        evaluator = OneShotEvaluator(replace(shared, study=study, tasks=tuple(order)), "cpu")
        assert list(evaluator.tasks) == [tasks[0]]
        alone_scores.append(evaluator.evaluate(uniform(workspace)).value)
    assert sum(alone_scores) / 2 == pytest.approx(scores[0]) and alone_scores[0] != alone_scores[1]


def test_a_warm_up_of_the_whole_one_shot_supernet(protocol: Path) -> None:
    """It trains what a space of a single size would."""
    recipe = {"steps": 3, "batch_size": 8, "learning_rate": 1e-3}
    shared = []
    for table in ("one_shot_warmup", "one_shot_pretrain"):
        changes = {f"{table}.{name}": value for name, value in recipe.items()} | {"one_shot.steps": 0}
        changes |= {"one_shot_pretrain.steps": 0} if table == "one_shot_warmup" else {}
        config = load_config(str(protocol), changes)
        workspace = prepare(config, "cpu", outputs=False)
        base, graph = workspace.base()
        start = Architecture.uniform(base, graph, max(config.space.stacks))
        space = budgeted_space(config, base, graph, workspace.num_labels, start=start, vary=frozenset({SIZES}))
        if table == "one_shot_pretrain":
            sizes = {"stack": (max(config.space.stacks),), "expansion": (Fraction(1),)}
            space = replace(space, genes={**space.genes, **sizes}, max_params=10**9)
        shared.append(load_file(prepare_one_shot(workspace, space, "cpu").one_shot / WEIGHTS))
    assert shared[0].keys() == shared[1].keys()
    assert all(torch.equal(tensor, shared[1][name]) for name, tensor in shared[0].items())


def test_the_one_shot_supernet_depends_on_all_sizes_that_are_drawn(protocol: Path) -> None:
    """And not on the smallest and the largest alone."""
    workspace = prepare(load_config(str(protocol)), "cpu", outputs=False)
    base, graph = workspace.base()
    assert base.mismatch == "wide"
    start = uniform(workspace, "1")
    space = budgeted_space(workspace.config, base, graph, 3, start=start, vary=frozenset({SIZES}))
    first, _, *others = space.genes["expansion"]
    fewer = of_genes(space, expansion=(first, *others))
    assert prepare_one_shot(workspace, fewer, "cpu").one_shot != prepare_one_shot(workspace, space, "cpu").one_shot


def test_another_checkpoint_as_base(tiny_study: TinyStudy, tmp_path: Path) -> None:
    vocabulary = AutoConfig.from_pretrained(tiny_study.teacher).vocab_size
    small = BertConfig(
        vocab_size=vocabulary,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=4,
        intermediate_size=32,
        max_position_embeddings=28,
        initializer_range=0.1,
    )
    BertForSequenceClassification(small).save_pretrained(tmp_path / "small")
    places = {"base": str(tmp_path / "small"), "warmup.steps": 0}
    workspace = prepare(load_config(str(tiny_study.preset), places), "cpu")
    base, _ = workspace.base()
    assert (base.width, base.depth, base.inner, base.positions) == (16, 1, 32, 28)
    model = TrainedEvaluator(workspace, "cpu").student(Architecture.uniform(base)).eval()
    own = BertForSequenceClassification.from_pretrained(tmp_path / "small").eval()
    batch = {"input_ids": torch.randint(5, vocabulary, (2, 7))}
    with torch.inference_mode():
        torch.testing.assert_close(model.bert(**batch).last_hidden_state, own.bert(**batch).last_hidden_state)
    supernet = workspace.supernet
    with torch.no_grad():
        own.bert.embeddings.word_embeddings.weight.add_(0.1)
    own.save_pretrained(tmp_path / "small")
    assert prepare(load_config(str(tiny_study.preset), places), "cpu").supernet != supernet
    with pytest.raises(ConfigError, match="max_length: 30 tokens are more than the base's 28 positions"):
        prepare(load_config(str(tiny_study.preset), places | {"max_length": 30}), "cpu")
    small.vocab_size += 1
    BertForSequenceClassification(small).save_pretrained(tmp_path / "other")
    with pytest.raises(
        ConfigError, match=r"base: .*other has a vocabulary of .*; choose a checkpoint with the teacher's tokenizer"
    ):
        prepare(load_config(str(tiny_study.preset), places | {"base": str(tmp_path / "other")}), "cpu")
    with pytest.raises(TeacherError, match=r"no model at '.*/none'"):
        prepare(load_config(str(tiny_study.preset), places | {"base": str(tmp_path / "none")}), "cpu")


def test_a_teacher_with_experts_in_its_head(tiny_study: TinyStudy, tmp_path: Path) -> None:
    """MicroBERT's: it is fine-tuned like any other, and keeps its experts; students cannot start from it."""
    config = AutoConfig.from_pretrained(tiny_study.teacher)
    base, graph = student_base(tiny_study.config, config)
    whole = Architecture.uniform(base, graph=graph)
    build(replace(whole, head=PredictionHead(3)), template=config).save_pretrained(tmp_path / "experts")
    load_tokenizer(str(tiny_study.teacher)).save_pretrained(tmp_path / "experts")
    places = {"teacher": str(tmp_path / "experts"), "base": str(tiny_study.teacher)}
    workspace = prepare(load_config(str(tiny_study.preset), places), "cpu")
    teacher = AutoConfig.from_pretrained(workspace.folders.teacher)
    assert (teacher.model_type, teacher.head_experts) == ("nas_bert", 3)
    student = TrainedEvaluator(workspace, "cpu").student(replace(whole, head=PredictionHead(2)))
    assert (student.config.head_experts, student.config.num_labels) == (2, teacher.num_labels)
    with pytest.raises(TeacherError, match="is a student itself, of type 'nas_bert'"):
        prepare(load_config(str(tiny_study.preset), places | {"base": "teacher"}), "cpu")


@pytest.mark.parametrize("table", ["candidate_pretrain", "one_shot_pretrain"])
def test_an_objective_that_learns_nothing_from_text(tiny_study: TinyStudy, table: str) -> None:
    places = {table: {"steps": 2, "learning_rate": 1e-3}, "objective": {"name": "kd"}}
    with pytest.raises(ConfigError, match=f"{table}: kd learns from labels and predictions"):
        prepare(load_config(str(tiny_study.preset), places), "cpu")


def test_the_paper_s_presets_are_of_its_models() -> None:
    for preset, name in (
        ("efficientbert", "efficientbert"),
        ("efficientbert+", "efficientbert"),
        ("efficientbert-tiny", "efficientbert-tiny"),
        ("efficientbert++", "efficientbert++"),
    ):
        config = load_config(preset)
        assert not isinstance(config.base, str)
        published = PUBLISHED[name]
        assert replace(config.base.build(30522), mismatch=config.space.mismatch) == published.base
        assert PUBLISHED["efficientbert"].transferred(published.base) == published
        space = budgeted_space(config, published.base, Architecture.uniform(published.base).ffns[0].graph, 3)
        assert space.min_params <= cost.params(published, 3) <= space.max_params
        assert space.max_height == 7 and all(space.can_express(ffn.graph) for ffn in published.ffns)
        assert all(
            ffn.expansion in space.genes["expansion"] and ffn.stack in space.genes["stack"] for ffn in published.ffns
        )


def test_only_a_warm_up_with_sampled_graphs_depends_on_their_height(tiny_study: TinyStudy) -> None:
    def path(**changes: object) -> Path:
        places = {name.replace("__", "."): value for name, value in changes.items()}
        return supernet_path(preparation_context(load_config(str(tiny_study.preset), places), "cpu"))

    assert path(space__max_height=7) == path()
    sampled = [path(warmup__graphs="sampled", space__max_height=height) for height in (None, 4, 7)]
    assert len({*sampled, path(warmup__graphs="sampled"), path()}) == 4
