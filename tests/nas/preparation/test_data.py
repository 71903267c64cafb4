"""Searches on rows of every kind: which rows are read, when they are read again, which are refused, how they score."""

import tomllib
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w
import torch
from accelerate import Accelerator
from safetensors.torch import load_file
from transformers import AutoConfig, AutoTokenizer, BertForSequenceClassification

from distill.encoders.parts import output_layer
from distill.tasks.corpora import embedded_corpus
from distill.tasks.encoding import take
from distill.tasks.readers import conll, squad
from distill.tasks.types import CLASSIFICATION, MULTI_LABEL, QUESTION_ANSWERING, REGRESSION, TOKEN_CLASSIFICATION
from distill.training.evaluation import EvalSet
from distill.training.loop import make_accelerator
from nas.config.load import load_config
from nas.config.schema import ConfigError, StudyConfig
from nas.evaluation.one_shot import OneShotEvaluator
from nas.evaluation.trained import TrainedEvaluator
from nas.planning.budget import budgeted_space
from nas.preparation import data
from nas.preparation.context import preparation_context
from nas.preparation.data import TaskFolders
from nas.preparation.one_shot import WEIGHTS, prepare_one_shot
from nas.preparation.phases import TrainingPhase, training_phase
from nas.preparation.prepare import prepare
from nas.preparation.supernet import encoder_path, supernet_path
from nas.preparation.teacher import prepare_data
from nas.preparation.workspace import OneShotWorkspace
from nas.search.options import overrides, parser
from search_spaces import Architecture, Experts
from search_spaces.spaces import SIZES
from supernet.build import build
from supernet.compensation.calibration import Calibration
from supernet.experts.routers import routing_table
from supernet.inherit import inherit
from supernet.module_inputs import module_inputs
from tests.nas import rows
from tests.nas.rows import study
from tests.nas.tiny_study import TinyStudy, corpus, uniform
from tests.renamed import renamed
from tests.sentences import save_reranker, save_sentence_encoder

KINDS = {
    "rows": (CLASSIFICATION, ("accuracy",)),
    "regression": (REGRESSION, ("spearmanr", "pearson")),
    "multi_label": (MULTI_LABEL, ("f1_micro", "f1_macro", "accuracy")),
    "tagging": (TOKEN_CLASSIFICATION, ("f1", "accuracy")),
    "questions": (QUESTION_ANSWERING, ("f1", "exact_match")),
}


def sharing(config: StudyConfig) -> OneShotWorkspace:
    """The workspace of stage 3."""
    workspace = prepare(config, "cpu")
    base, graph = workspace.base()
    space = budgeted_space(config, base, graph, workspace.num_labels, start=uniform(workspace), vary=frozenset({SIZES}))
    return prepare_one_shot(workspace, space, "cpu")


@pytest.mark.parametrize("kind", KINDS)
def test_a_candidate_of_every_kind(tiny_study: TinyStudy, tmp_path: Path, kind: str) -> None:
    workspace = prepare(load_config(str(study(tiny_study, tmp_path, kind))), "cpu")
    task = workspace.folders.task
    assert (task.task_type, task.metrics) == KINDS[kind]
    evaluator = TrainedEvaluator(workspace, "cpu")
    student = evaluator.student(uniform(workspace))
    assert type(student).__name__.endswith(task.type.model.__name__.removeprefix("AutoModel"))
    assert evaluator.score(evaluator.teacher()).value > 0.6
    score = evaluator.evaluate(uniform(workspace), 0)
    assert score == evaluator.evaluate(uniform(workspace), 0)
    assert 0.4 < score.value <= 1 and 0 <= score.standard_error < 0.5
    names = ("train", "search", "dev")
    splits = {name: len(workspace.folders.rows(name)) for name in names}
    assert splits == {"train": 108, "search": 12, "dev": 40}
    assert all(workspace.folders.rows(name).task_type == task.task_type for name in names)


@pytest.mark.parametrize("kind", ["both", "tagging", "questions"])
def test_stage_3_scores_what_the_slice_computes_alone(tiny_study: TinyStudy, tmp_path: Path, kind: str) -> None:
    workspace = sharing(load_config(str(study(tiny_study, tmp_path, kind))))
    architecture = uniform(workspace.study)
    score = OneShotEvaluator(workspace, "cpu").evaluate(architecture)
    stored = load_file(workspace.one_shot / WEIGHTS)
    for name, folders in workspace.by_task.items():
        like = AutoConfig.from_pretrained(folders.teacher)
        alone = build(architecture, folders.task.type, template=like)
        head = {f"{output_layer(alone)}.{part}": stored[f"heads.{name}.{part}"] for part in ("weight", "bias")}
        model = {key.removeprefix("model."): value for key, value in stored.items() if key.startswith("model.bert.")}
        alone.load_state_dict(inherit(model, architecture) | head)
        accelerator = make_accelerator("cpu")
        search = EvalSet(folders.task, folders.split("search"), folders.rows("search"), 0)
        assert score.parts[name] == pytest.approx(search.score(alone, accelerator).value)
    assert score.value == pytest.approx(sum(score.parts.values()) / len(score.parts))
    assert set(score.parts) == set(workspace.by_task)


def test_stage_3_of_a_head_of_two_maps(tiny_study: TinyStudy, tmp_path: Path) -> None:
    teacher = tmp_path / "teacher"
    renamed(BertForSequenceClassification.from_pretrained(tiny_study.teacher), "electra").save_pretrained(teacher)
    AutoTokenizer.from_pretrained(tiny_study.teacher).save_pretrained(teacher)
    workspace = sharing(load_config(str(study(tiny_study, tmp_path, "both", teacher=str(teacher)))))
    score = OneShotEvaluator(workspace, "cpu").evaluate(uniform(workspace.study))
    assert set(score.parts) == {"mine", "number"} and score.parts["mine"] > 0.5


def test_widths_train_their_channels_alone(tiny_study: TinyStudy, tmp_path: Path) -> None:
    path = study(tiny_study, tmp_path, "tagging")
    workspace = sharing(load_config(str(path), {"one_shot.widths": ["1/4", "1/8"], "one_shot.weight_decay": 0}))
    warm = load_file(workspace.study.supernet / "model.safetensors")
    stored = load_file(workspace.one_shot / WEIGHTS)
    for name, before in warm.items():
        if name.endswith("expand.weight"):
            after = stored[f"model.{name}"]
            quarter = before.shape[0] // 4 if ".ffn.0." in name else 0  # one block alone
            assert (after[:quarter] != before[:quarter]).any(1).all()
            assert torch.equal(after[quarter:], before[quarter:])


def test_slices_of_the_one_shot_supernet_are_compensated(tiny_study: TinyStudy, tmp_path: Path) -> None:
    """Their layers come closer to those of the whole supernet, and each task has its own head."""
    path = str(study(tiny_study, tmp_path, "both"))
    sliced, compensated = (
        sharing(load_config(path, {"one_shot.inheritance": inheritance, "supernet.calibration_rows": 60}))
        for inheritance in ("sliced", "compensated")
    )
    assert compensated.one_shot == sliced.one_shot and sliced.calibration is None
    assert compensated.calibration is not None
    calibration = Calibration.load(compensated.calibration)
    architecture = uniform(compensated.study, "1/8")
    errors = []
    for workspace in (sliced, compensated):
        student = OneShotEvaluator(workspace, "cpu").student(architecture)
        norm = student.base_model.encoder.layer[-1].ffn[-1].LayerNorm
        (sum_ND,) = module_inputs(student, [norm], calibration.batches)
        errors.append(float(((sum_ND - calibration.sums[-1][-1]) ** 2).mean()))
    assert errors[1] < errors[0]

    score = OneShotEvaluator(compensated, "cpu").evaluate(architecture)
    evaluator = OneShotEvaluator(compensated, "cpu")
    stored = load_file(compensated.one_shot / WEIGHTS)
    student = evaluator.student(architecture)
    for name, folders in compensated.by_task.items():
        head = torch.nn.Linear(*reversed(stored[f"heads.{name}.weight"].shape))
        head.load_state_dict({part: stored[f"heads.{name}.{part}"] for part in ("weight", "bias")})
        student.set_submodule(output_layer(student), head)
        student.config.problem_type = folders.task.type.problem_type
        search = EvalSet(folders.task, folders.split("search"), folders.rows("search"), 0)
        found = search.score(student, make_accelerator("cpu"))
        assert score.parts[name] == pytest.approx(found.value)


def test_expert_loads_of_stage_3_are_of_all_tasks(tiny_study: TinyStudy, tmp_path: Path) -> None:
    """The load is the mean over the tasks of what the routing tables assign to each task's tokens, counted here one by
    one.
    """
    path = study(tiny_study, tmp_path, "both")
    workspace = sharing(load_config(str(path), {"seed": 5}))
    experts = Experts(2, Fraction(1))
    dense = uniform(workspace.study)
    architecture = Architecture.of_ffns(dense.base, tuple(replace(ffn, experts=experts) for ffn in dense.ffns))
    score = OneShotEvaluator(workspace, "cpu").evaluate(architecture)
    assert len(workspace.tasks) == 2
    for layer, load in enumerate(score.loads):
        table = routing_table(experts, dense.base.vocabulary, layer, seed=5)
        shares = []
        for folders in workspace.tasks:
            passed = table[torch.as_tensor(folders.rows("search").input_ids).long()].long()
            shares.append((torch.bincount(passed, minlength=2).double() / len(passed)).tolist())
        assert shares[0] != shares[1]
        assert load.shares == pytest.approx([sum(both) / 2 for both in zip(*shares, strict=True)])
    assert [load.layer for load in score.loads] == list(range(dense.base.depth))


def keys(config: StudyConfig) -> tuple[str, str]:
    context = preparation_context(config, "cpu")
    return context.data_key, context.teacher_key


@pytest.mark.parametrize("kind", ["embeddings", "reranking", None])
def test_what_is_computed_depends_on_the_precision(
    tiny_study: TinyStudy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str | None
) -> None:
    """Also if it is the device's: what one with bfloat16 has made is not used on one without. Rows depend on it if they
    have the teacher's vectors or scores.
    """
    changes: dict[str, Any] = {}
    if kind is not None:
        save = {"embeddings": save_sentence_encoder, "reranking": save_reranker}[kind]
        save(tiny_study, tmp_path / "teacher")
        columns = {"text": "one", kind: True} | ({"pair": "two"} if kind == "reranking" else {})
        files = rows.table(tmp_path)
        changes = {"teacher": str(tmp_path / "teacher"), "tasks": ["mine"], "rows": {"mine": files | columns}}
    preset = str(study(tiny_study, tmp_path / "rows", "rows", **changes))
    contexts = []
    for precision in ("no", "bf16"):
        monkeypatch.setattr(Accelerator, "mixed_precision", precision)
        contexts.append(preparation_context(load_config(preset), "cpu"))
    assert len({context.data_key for context in contexts}) == (1 if kind is None else 2)
    for path in (supernet_path, encoder_path):
        assert path(contexts[0]) != path(contexts[1])
    assert contexts[0].teacher != contexts[1].teacher
    assert preparation_context(load_config(preset), "cpu", precision="no").teacher == contexts[0].teacher


def test_the_fraction_that_is_held_out(tiny_study: TinyStudy, tmp_path: Path) -> None:
    preset = study(tiny_study, tmp_path / "rows", "both")
    given = load_config(str(preset))
    sizes = {}
    for fraction in (None, 0.05, 0.5):
        config = given.model_copy(update={"search_fraction": fraction})
        data = prepare_data(preparation_context(config, "cpu"))
        sizes[fraction] = {name: len(TaskFolders(data, data).rows(name)) for name in ("train", "search", "dev")}
    assert sizes[None] == {"train": 108, "search": 12, "dev": 40}
    assert sizes[0.05] == {"train": 114, "search": 6, "dev": 40}
    assert sizes[0.5] == {"train": 60, "search": 60, "dev": 40}
    with pytest.raises(ConfigError, match="search_fraction"):
        load_config(str(preset), {"search_fraction": 1.5})


def test_the_last_rows_are_held_out(tiny_study: TinyStudy, tmp_path: Path) -> None:
    """As in EfficientBERT: the last ones of the file, of which stages 1 and 2 score on the very last."""
    preset = study(tiny_study, tmp_path / "rows", "both")
    config = load_config(str(preset), {"search_fraction": 0.1, "search_rows": "last", "tasks": ["mine"], "data": None})
    rows = data.read(config.model_copy(update={"search_rows": "random"}), lambda: None)
    file = Path(config.rows["mine"].train).read_text().splitlines()[1:]
    last = [line for line in file[-12:][::-1]]
    found = data.read(config, lambda: None)
    assert len(found.search) == len(rows.search) == 12
    assert all(text in line for text, line in zip(found.search.texts, last, strict=True))
    assert keys(config)[0] != keys(config.model_copy(update={"search_rows": "random"}))[0]
    with pytest.raises(ConfigError, match='search_rows: the rows of neighbours have no order: use "random"'):
        data.read(config.model_copy(update={"tasks": ("neighbours",)}), embedded_corpus)


def test_the_final_training_may_learn_from_all_rows(tiny_study: TinyStudy, tmp_path: Path) -> None:
    preset = study(tiny_study, tmp_path / "rows", "both")
    config = load_config(str(preset), {"final.all_rows": True})
    made = prepare_data(preparation_context(config, "cpu"))
    folders = TaskFolders(made, made)
    every = training_phase(config, "final", folders)
    assert every is not None and len(every.rows) == 120
    parts = [folders.rows("train"), folders.rows("search")]
    for row, expected in ((0, take(parts[0], np.array([0]))), (108, take(parts[1], np.array([0])))):
        alone = take(every.rows, np.array([row]))
        assert np.array_equal(alone.input_ids, expected.input_ids) and alone.labels == expected.labels
    own = config.rows["mine"].model_copy(update={"class_weights": "balanced"})
    weighted = training_phase(config.model_copy(update={"rows": {"mine": own}}), "final", folders)
    assert weighted is not None and weighted.rows.weights is not None
    counts = np.bincount(np.asarray(every.rows.labels))
    expected = (1 / counts)[np.asarray(every.rows.labels)]
    np.testing.assert_allclose(weighted.rows.weights, expected / expected.mean(), rtol=1e-6)
    with pytest.raises(ConfigError, match="all_rows: the search split decides when to stop"):
        load_config(str(preset), {"final.all_rows": True, "final.early_stopping_patience": 2})


def test_what_is_read_again_when_something_changes(tiny_study: TinyStudy, tmp_path: Path) -> None:
    (tmp_path / "text").mkdir()
    text = tmp_path / "text" / "a.txt"
    text.write_text("Bado kule.\n\nParu bado.\n")
    preset = study(tiny_study, tmp_path / "rows", "both", corpus=str(text.parent))
    config = load_config(str(preset))
    first = keys(config)
    assert keys(load_config(str(preset), {"candidate.steps": 3, "space.slack": 0.4, "stage1.trials": 9})) == first
    # The same rows in another file, and another table that the first task is not read from.
    elsewhere = rows.table(tmp_path)["train"]
    changed = {"rows.mine.train": elsewhere, "rows.number.text": "two", "tasks": ["mine"], "data": None}
    assert keys(load_config(str(preset), changed)) == first
    # Nobody learns from the text before the final training.
    assert prepare(config, "cpu").folders.texts == ()
    workspace = prepare(config, "cpu", texts=("pretrain",))
    assert len(workspace.folders.text("pretrain")) == 2
    text.write_text("Bado kule.\n")
    again = keys(config)
    assert again == first
    other = prepare(config, "cpu", texts=("pretrain",))
    assert len(other.folders.text("pretrain")) == 1
    assert other.supernet == workspace.supernet and other.folders.data == workspace.folders.data
    train = Path(config.rows["mine"].train)
    train.write_text(train.read_text() + "Kule bado.\tKule.\ttorch\t0.5\n")
    last = keys(config)
    assert last[0] != again[0] and last[1] != again[1]
    swapped: dict[str, object] = {"rows.mine.text": "two", "rows.mine.pair": "one"}
    for change in (swapped, {"rows.mine.pair": None}, {"tasks": ["number"]}, {"max_length": 20}):
        assert not set(keys(load_config(str(preset), change))) & set(last)
    shorter = keys(load_config(str(preset), {"finetune.steps": 3}))
    assert shorter[0] == last[0] and shorter[1] != last[1]


def test_tasks_with_shorter_rows(tiny_study: TinyStudy, tmp_path: Path) -> None:
    """MiniMoE's table 7: their rows are those of a smaller `max_length`, and other tasks and text stay as they are."""
    preset = str(study(tiny_study, tmp_path / "rows", "both"))
    short = load_config(preset, {"max_length_of": {"mine": 8}})
    assert keys(short)[0] == keys(load_config(preset, {"max_length": 8}))[0] != keys(load_config(preset))[0]
    folders = prepare(short, "cpu", outputs=False, texts=("pretrain",)).folders
    assert all(folders.rows(name).lengths.max() == 8 for name in ("train", "search", "dev"))
    assert folders.text("pretrain").lengths.max() > 8
    assert keys(load_config(preset, {"max_length_of": {"number": 8, "mine": 64}})) == keys(load_config(preset))
    with pytest.raises(ConfigError, match=r"^max_length_of: unknown task 'yours'"):
        prepare(load_config(preset, {"max_length_of": {"yours": 8}}), "cpu")


def test_rows_are_not_read_for_their_key(
    tiny_study: TinyStudy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If everything that a search needs is in the cache, no row is read at its start."""
    presets = [study(tiny_study, tmp_path / kind, kind) for kind in ("rows", "tagging", "questions")]
    before = [prepare(load_config(str(preset)), "cpu", outputs=False) for preset in presets]

    def read(*_: object, **__: object) -> None:
        raise AssertionError("rows are read")

    for module, name in ((data, "table_task"), (conll, "read"), (squad, "read")):
        monkeypatch.setattr(module, name, read)
    assert [prepare(load_config(str(preset)), "cpu", outputs=False) for preset in presets] == before


@pytest.mark.parametrize("task", ["sst2", "mnli", "squad", "conll2003"])
def test_keys_of_official_files(tmp_path: Path, task: str, tiny_study: TinyStudy) -> None:
    """A key changes with every file that is read, and with no other file."""
    names = {
        "sst2": ("SST-2/train.tsv", "SST-2/dev.tsv"),
        "mnli": ("MNLI/train.tsv", "MNLI/dev_matched.tsv"),
        "squad": ("train-v1.1.json", "dev-v1.1.json"),
        "conll2003": ("train.txt", "valid.txt"),
    }
    for name in (*names[task], "other.txt", "MNLI/dev_mismatched.tsv"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    config = load_config(str(tiny_study.preset), {"tasks": [task], "data": str(tmp_path)})

    def key() -> str:
        return data.rows_key(config, corpus)

    first = key()
    (tmp_path / "other.txt").write_text("changed")
    (tmp_path / "MNLI/dev_mismatched.tsv").write_text("changed")
    assert key() == first
    for name in names[task]:
        (tmp_path / name).write_text("changed")
        assert key() != first
        (tmp_path / name).write_text(name)
    (tmp_path / names[task][1]).unlink()
    with pytest.raises(ConfigError, match=r"dev|valid"):
        key()


def test_data_of_the_command_line(tiny_study: TinyStudy, tmp_path: Path) -> None:
    """The folder of `--data` replaces the one that the preset names."""
    preset = study(tiny_study, tmp_path / "a", "tagging")
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "train.txt").write_text("bado X\n\nkule Y\n")
    (tmp_path / "b" / "dev.txt").write_text("paru X\n")
    given = ["--stage", "1", "--preset", str(preset), "--data", str(tmp_path / "b"), "--tasks", "conll"]
    config = load_config(str(preset), overrides(parser().parse_args(given)))
    context = preparation_context(config, "cpu")
    assert TaskFolders(prepare_data(context), Path()).task.labels == ("X", "Y")
    assert context.data_key != preparation_context(load_config(str(preset)), "cpu").data_key


TRAINED_STAGES = {f"stage{stage}.evaluation": "trained" for stage in "123"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tasks": ["conll", "squad"]}, "tasks: conll and squad need different heads"),
        ({"tasks": ["mine", "squad"]}, "tasks: mine and squad need different heads"),
        (
            {"tasks": ["mine", "number"], "objective": {"name": "codir"}, "data": None},
            "tasks: codir works with the rows of a single task",
        ),
        (
            {"tasks": ["mine", "number"], "objective": {"name": "microbert", "critic_input": "logits"}, "data": None},
            "tasks: microbert with these settings works with the rows of a single task",
        ),
        (
            {"tasks": ["conll"], "space.head_experts": [1, 2], **TRAINED_STAGES},
            "space.head_experts: heads for conll predict from single tokens; only those that predict from whole",
        ),
        ({"tasks": ["mein"]}, r"unknown task 'mein'.*, or your own rows \(\[rows.NAME\] in a configuration"),
        ({"rename": "library"}, "rows.library: another task has this name"),
        ({"rename": "train"}, "rows.train: this name cannot be used; choose one such as my_rows"),
        ({"rename": "my rows"}, "rows.my rows: this name cannot be used"),
        (
            {"tasks": ["mine", "library"], "data": "."},
            "data: none of the tasks mine, library reads files from a folder",
        ),
        ({"tasks": ["conll"]}, "has none of the files train.conll, train.txt"),
        ({"tasks": ["conll"], "data": None}, "the task 'conll' reads files of your own"),
        ({"corpus": "missing.txt"}, "corpus: missing.txt: No such file"),
        ({"rows.mine.train": "missing.tsv"}, "missing.tsv: .*No such file"),
        ({"rows.mine.label": "lob"}, "no column 'lob'; did you mean 'lib'"),
        ({"rows.mine.class_weights": {"pyton": 2}}, "rows.mine: class weights: 'pyton' is not one of the classes "),
        ({"rows.mine.regression": True}, "tsv:2 has the label 'python', which is not a finite number"),
    ],
)
def test_mistakes(tiny_study: TinyStudy, tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    path = study(tiny_study, tmp_path / "rows", "both")
    preset = tomllib.loads(path.read_text())
    empty = tmp_path / "empty"
    empty.mkdir()
    if name := changes.pop("rename", None):
        preset["rows"][name] = preset["rows"]["mine"]
        changes["tasks"] = [name]
    path.write_text(tomli_w.dumps(preset))
    data = {"data": str(empty)} if "conll" in changes.get("tasks", ()) or "squad" in changes.get("tasks", ()) else {}
    with pytest.raises(ConfigError, match=message):
        prepare(load_config(str(path), data | changes), "cpu")


class Live(TrainedEvaluator):
    """An evaluator whose candidates learn from the running teacher instead of its saved outputs."""

    def saved_outputs_of(self, phase: TrainingPhase, seed: int) -> None:
        return None


SETTINGS: dict[str, dict[str, float]] = {"theseus": {"start": 0.5}, "codir": {"negatives": 5}}


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("rows", "microbert"),
        ("rows", "minilm"),
        ("regression", "tinybert"),
        ("tagging", "codir"),
        ("questions", "theseus"),
        ("questions", "codir"),
    ],
)
def test_a_candidate_by_every_objective(tiny_study: TinyStudy, tmp_path: Path, kind: str, name: str) -> None:
    """Learning from saved outputs gives the same result as learning from the teacher, up to their half precision."""
    preset = study(tiny_study, tmp_path, kind, objective={"name": name, **SETTINGS.get(name, {})})
    workspace = prepare(load_config(str(preset), {"candidate.steps": 13}), "cpu")
    evaluator, live = TrainedEvaluator(workspace, "cpu"), Live(workspace, "cpu")
    steps: list[int] = []
    start = evaluator.student(uniform(workspace)).state_dict()
    model = evaluator.student(uniform(workspace))
    evaluator.train(model, evaluator.training_phases, 0, steps.append)
    assert steps == list(range(14))
    learned = model.state_dict()
    taught = live.student(uniform(workspace))
    live.train(taught, live.training_phases, 0)
    expected = taught.state_dict()
    moved = [name for name, tensor in start.items() if not torch.equal(learned[name], tensor)]
    assert any(".ffn." in name for name in moved)
    heads = {name: tensor for name, tensor in learned.items() if name.startswith(("classifier", "qa_outputs"))}
    if name == "theseus":
        teacher = evaluator.teacher().state_dict()
        assert all(torch.equal(tensor, teacher[name]) for name, tensor in heads.items())
    else:
        assert heads.keys() <= set(moved)
    far, near = (
        sum(float((learned[name] - other[name]).square().sum()) for name in moved) ** 0.5 for other in (start, expected)
    )
    assert near <= (0 if name == "theseus" else 0.1 * far)
    score, same = (one.evaluate(uniform(workspace), 0).value for one in (evaluator, live))
    assert score == pytest.approx(same, abs=0.1)
