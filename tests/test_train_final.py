"""`python train_final.py` turns an architecture into a checkpoint that loads without this project."""

import json
import os
import shutil
import signal
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import (
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    AutoTokenizer,
    BertConfig,
)

from distill.encoders.student.modeling_nas_bert import NasBertForSequenceClassification
from distill.objectives import OBJECTIVES
from distill.tasks.encoding import load_encoded
from distill.tasks.metrics import standard_error
from distill.training.evaluation import batch_logits, split_batches
from nas.config.load import load_config
from nas.evaluation.one_shot import OneShotEvaluator
from nas.evaluation.trained import TrainedEvaluator
from nas.final.command import main
from nas.planning.stages import plan
from nas.preparation.one_shot import prepare_one_shot
from nas.preparation.phases import settings_of
from nas.preparation.prepare import prepare
from nas.preparation.workspace import Workspace
from search_spaces import PUBLISHED, Architecture, cost
from supernet import student
from tests.commands import Refused, output_elsewhere, run
from tests.nas.processes import Killed
from tests.nas.rows import half_width, study
from tests.nas.tiny_study import TIMEOUT, TinyStudy, wait
from tests.tiny import tokenizer

ELSEWHERE = """
import json
import sys

import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

folder, sentences = sys.argv[1], json.loads(sys.argv[2])
model = AutoModelForSequenceClassification.from_pretrained(folder, trust_remote_code=True).eval()
tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=True)
batch = tokenizer(sentences, padding=True, return_tensors="pt")
with torch.inference_mode():
    logits = model(**batch).logits
print(json.dumps([batch["input_ids"].tolist(), logits.tolist(), model.config.id2label]))
"""
SENTENCES = ["Badofi kule moni.", "Paru."]


@pytest.fixture(scope="module")
def searched(searched: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the search's folder, which gets the final training."""
    return Path(shutil.copytree(searched, tmp_path_factory.mktemp("searched") / "s"))


@pytest.fixture(scope="module")
def final(shared_study: TinyStudy, searched: Path) -> Path:
    """The checkpoint of the winner, in the default folder."""
    result = shared_study.run("train_final.py", searched / "architecture.json")
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    assert str(searched / "final") in result.stdout.replace("\n", "")
    return searched / "final"


def test_it_loads_where_this_project_is_not_installed(final: Path, tmp_path: Path) -> None:
    output = output_elsewhere(ELSEWHERE, final, json.dumps(SENTENCES), folder=tmp_path)
    ids, logits, labels = json.loads(output)
    model = NasBertForSequenceClassification.from_pretrained(final).eval()
    batch = AutoTokenizer.from_pretrained(final)(SENTENCES, padding=True, return_tensors="pt")
    assert batch["input_ids"].tolist() == ids
    with torch.inference_mode():
        torch.testing.assert_close(model(**batch).logits, torch.tensor(logits), atol=1e-6, rtol=0)
    assert list(labels.values()) == ["numpy", "python", "torch"]


def test_what_it_leaves(final: Path, searched: Path, tiny_study: TinyStudy) -> None:
    architecture = Architecture.load(searched / "architecture.json")
    assert Architecture.load(final / "architecture.json") == architecture
    assert load_config(str(final / "config.toml")) == tiny_study.config
    model = NasBertForSequenceClassification.from_pretrained(final)
    assert sum(parameter.numel() for parameter in model.parameters()) == cost.params(architecture, 3)


def test_metrics(final: Path, searched: Path, tiny_study: TinyStudy) -> None:
    architecture = Architecture.load(searched / "architecture.json")
    full = Architecture.uniform(architecture.base)
    facts = json.loads((final / "metrics.json").read_text())
    workspace = prepare(tiny_study.config, "cpu")
    rows = len(load_encoded(workspace.folders.data / "dev.npz"))
    assert (facts["task"], facts["dev_rows"], facts["seed"], facts["batch"]) == ("library", rows, 0, 1)
    models = facts["models"]
    assert list(models) == ["teacher", "student", "base model"]
    for name, expected in (("teacher", full), ("student", architecture), ("base model", full)):
        row = models[name]
        score = row["accuracy"]["value"]
        assert 1 / 3 < score <= 1
        assert score * rows == pytest.approx(round(score * rows))
        assert row["accuracy"]["standard_error"] == pytest.approx(standard_error(score, rows))
        assert row["params"] == cost.params(expected, 3)
        assert row["ffn_params"] == sum(cost.ffn_params(expected.base, ffn) for ffn in expected.ffns)
        assert row["macs"] == cost.macs(expected, facts["tokens"], 3)
        lower, middle, upper = row["latency_quartiles_ms"]
        # The sum of the lower quartiles of a pass's pieces.
        assert 0 < row["latency_ms"] <= middle and 0 < lower <= middle <= upper
    assert models["student"]["params"] < models["teacher"]["params"]
    assert list(facts["losses"]) == ["student", "base model"]
    recipes = {"pre-training": tiny_study.config.pretrain, "fine-tuning": tiny_study.config.final}
    for phases in facts["losses"].values():
        for phase, points in phases.items():
            recipe = recipes[phase]
            assert recipe is not None and points[-1][0] == recipe.steps
            assert all(loss > 0 for _, loss in points)
    assert "difference" not in models["teacher"]["accuracy"]


def test_the_difference_to_the_teacher_is_paired(final: Path, searched: Path, tiny_study: TinyStudy) -> None:
    """Against counting the dev rows on which one of the two models alone is right."""
    evaluator = TrainedEvaluator(prepare(tiny_study.config, "cpu"), "cpu")
    batches = split_batches(evaluator.workspace.folders.rows("dev"), 0)
    labels, right = torch.cat([batch["labels"] for batch in batches]), {}
    student = NasBertForSequenceClassification.from_pretrained(final).eval()
    for name, model in (("student", student), ("teacher", evaluator.teacher().eval())):
        logits = torch.cat(batch_logits(model, batches, accelerator=evaluator.accelerator))
        right[name] = (logits.argmax(-1) == labels).numpy()
    models = json.loads((final / "metrics.json").read_text())["models"]
    found = models["student"]["accuracy"]["difference"]
    gained, lost = (right["student"] & ~right["teacher"]).sum(), (right["teacher"] & ~right["student"]).sum()
    assert found["to"] == "teacher" and lost > 0
    assert found["value"] == pytest.approx((gained - lost) / len(labels))
    variance = gained + lost - (gained - lost) ** 2 / len(labels)
    assert found["standard_error"] == pytest.approx(variance**0.5 / len(labels))
    assert found["share"] == pytest.approx(right["student"].mean() / right["teacher"].mean())


def test_options_in_place_of_a_toml_file(
    searched: Path, tiny_study: TinyStudy, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Another teacher, task, length and recipe than the study's, without a file of one's own."""
    teacher = tmp_path / "teacher"
    shutil.copytree(tiny_study.teacher, teacher)
    options = {"--teacher": teacher, "--task": "neighbours", "--max-length": 24, "--steps": 2, "--batch-size": 4}
    arguments = [str(part) for pair in (options | {"--learning-rate": 2e-3}).items() for part in pair]
    out = ["--out", str(tmp_path / "out"), "--skip-base", "--device", "cpu"]
    assert main([str(searched / "architecture.json"), *arguments, *out, "--json"]) == 0
    printed = capsys.readouterr()
    assert "fine-tuning" in printed.err
    assert json.loads(printed.out) == json.loads((tmp_path / "out" / "metrics.json").read_text())
    config = load_config(str(tmp_path / "out" / "config.toml"))
    assert (config.teacher, config.tasks, config.max_length) == (str(teacher), ("neighbours",), 24)
    assert (config.final.steps, config.final.batch_size, config.final.learning_rate) == (2, 4, 2e-3)
    assert json.loads((tmp_path / "out" / "metrics.json").read_text())["task"] == "neighbours"
    modes = {file.stat().st_mode & 0o077 for file in (tmp_path / "out").iterdir()}
    umask = os.umask(0o022)
    os.umask(umask)
    assert modes == {0o066 & ~umask}


def test_it_overwrites_nothing(final: Path, searched: Path, tmp_path: Path, refused: Refused) -> None:
    before = {path: path.stat().st_mtime_ns for path in final.rglob("*")}
    assert f"--out {final} exists and is not empty" in refused(main, searched / "architecture.json")
    assert {path: path.stat().st_mtime_ns for path in final.rglob("*")} == before
    (tmp_path / "file").touch()
    arguments = [searched / "architecture.json", "--out"]
    assert "is not a folder" in refused(main, *arguments, tmp_path / "file")
    assert "ot a directory" in refused(main, *arguments, tmp_path / "file" / "final")


def test_mistakes(tiny_study: TinyStudy, searched: Path, tmp_path: Path, refused: Refused) -> None:
    given, mine = searched / "architecture.json", tmp_path / "mine.json"
    for words, message in (
        ([tmp_path / "missing.json"], "missing.json: no such file"),
        ([searched], "is a directory"),
        ([given, "--preset", "dem"], "unknown preset 'dem'; did you mean 'demo'?"),
        ([given, "--seed", "-1", "--out", tmp_path / "final"], "--seed: must be from 0"),
        ([given, "--batch-size", "0"], "train_final.py: --batch-size: Input should be greater than"),
        ([], "give an architecture to train, or --evaluate CHECKPOINT"),
    ):
        assert message in refused(main, *words)
    other_base = PUBLISHED["efficientbert"].to_json()
    stacked = Architecture.uniform(Architecture.load(given).base, stack=3).to_json()
    broken = json.loads(given.read_text())
    broken["layers"][1]["ffn"]["graph"] = "project(gleu(expand(x)))"
    for text, message in (
        (json.dumps(other_base), "the architecture's base differs from the configuration's in "),
        (json.dumps(stacked), "the architecture has a stack of 3 blocks"),
        (json.dumps(broken), "mine.json: layers[1].ffn.graph: unknown operation 'gleu'; did you mean 'gelu'?"),
        ("{", "mine.json: not JSON"),
    ):
        mine.write_text(text)
        words = [mine, "--preset", tiny_study.preset, "--out", tmp_path / "final"]
        assert message in refused(main, *words)
    assert not any((tmp_path / "final").glob("*"))


def test_training_that_diverges(tiny_study: TinyStudy, searched: Path, tmp_path: Path, refused: Refused) -> None:
    last = "learning_rate = {}\n\n[one_shot]"  # of the table [final]
    preset = tiny_study.variant(tmp_path / "hot.toml", (last.format("1e-3"), last.format("1e30")))
    arguments = [searched / "architecture.json", "--preset", preset, "--out", tmp_path / "final", "--device", "cpu"]
    assert "final: the loss is" in refused(main, *arguments)


@dataclass(frozen=True)
class Small:
    """A small study of some task type, and an architecture for it."""

    preset: Path
    architecture: Path

    def arguments(self, out: Path, *more: object) -> list[object]:
        return [self.architecture, "--preset", self.preset, "--out", out, "--device", "cpu", "--skip-base", *more]


def small(tiny_study: TinyStudy, folder: Path, kind: str, **changes: object) -> Small:
    preset = study(tiny_study, folder, kind, **changes)
    return Small(preset, half_width(preset, folder))


def rate(steps: int) -> dict[str, object]:
    return {"steps": steps, "batch_size": 4, "learning_rate": 1e-3}


def left(out: Path) -> tuple[dict[str, torch.Tensor], dict[str, object]]:
    """The weights of a checkpoint, and its metrics without those that depend on time."""
    assert not (out / "state").exists()
    facts = json.loads((out / "metrics.json").read_text())
    for row in facts["models"].values():
        del row["latency_ms"], row["latency_quartiles_ms"]
    return load_file(out / "model.safetensors"), facts


def records(folder: Path) -> int:
    """The number of records in TensorBoard's only event file: length (8 bytes), 4 bytes, data, 4 bytes."""
    (file,) = folder.iterdir()
    content, place, found = file.read_bytes(), 0, 0
    while place < len(content):
        place += 16 + int.from_bytes(content[place : place + 8], "little")
        found += 1
    return found


@pytest.mark.slow
def test_a_killed_training_goes_on_as_if_nothing_had_happened(
    tiny_study: TinyStudy, tmp_path: Path, refused: Refused
) -> None:
    given = small(tiny_study, tmp_path / "study", "rows", pretrain=rate(110), final=rate(230))
    logs = tmp_path / "logs"
    out = tmp_path / "killed"
    again = given.arguments(out, "--resume")
    with (
        tiny_study.running("train_final.py", *given.arguments(tmp_path / "whole", "--tensorboard", logs)) as whole,
        tiny_study.running("train_final.py", *given.arguments(out)) as process,
    ):
        wait(process, (out / "state" / "student" / "final" / "phase-1.pt").exists)
        process.kill()
        shown, error = whole.communicate(timeout=TIMEOUT)
    assert (whole.returncode, error) == (0, "")
    # Besides the losses a file has a version.
    assert {path.name: records(path) for path in (logs / "student").iterdir()} == {
        "pre-training": 111,
        "fine-tuning": 231,
    }
    assert process.returncode == -signal.SIGKILL
    assert "is not empty: choose another folder; --resume continues the training in it" in refused(
        main, *given.arguments(out)
    )
    assert "with another configuration, architecture or seed" in refused(main, *again, "--seed", "1")
    other = replace(given, architecture=tmp_path / "other.json")
    Architecture.uniform(Architecture.load(given.architecture).base, expansion=Fraction(1, 4)).save(other.architecture)
    assert "with another configuration, architecture" in refused(main, *other.arguments(out, "--resume"))
    assert "student: pre-training" in shown
    resumed = tiny_study.run("train_final.py", *again)
    assert (resumed.returncode, resumed.stderr) == (0, "")
    (weights, facts), (expected, expected_facts) = left(out), left(tmp_path / "whole")
    assert facts == expected_facts
    assert weights.keys() == expected.keys()
    assert all(torch.equal(weights[name], tensor) for name, tensor in expected.items())
    assert "is not empty: choose another folder\n" in refused(main, *again)


def test_what_was_cut_short_while_it_was_written_can_be_resumed(
    tiny_study: TinyStudy, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed while metrics.json is written, which says that a training has ended: there is none, not half of it."""
    given = small(tiny_study, tmp_path / "study", "rows")
    out, replace_file = tmp_path / "final", os.replace

    def killed(source: Path, target: Path) -> None:
        if target == out / "metrics.json":
            raise Killed
        replace_file(source, target)

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(os, "replace", killed)
        run(main, *given.arguments(out))
    assert (out / "model.safetensors").exists() and not (out / "metrics.json").exists()
    capsys.readouterr()
    assert run(main, *given.arguments(out, "--resume", "--quiet")) == 0
    shown = capsys.readouterr().out
    assert "student" in shown and "fine-tuning" not in shown
    left(out)


@pytest.mark.parametrize(
    ("kind", "auto", "shape"),
    [
        ("tagging", AutoModelForTokenClassification, (2, 6, 3)),
        ("questions", AutoModelForQuestionAnswering, (2, 6)),
        ("regression", AutoModelForSequenceClassification, (2, 1)),
    ],
)
def test_models_of_other_kinds(
    tiny_study: TinyStudy,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    kind: str,
    auto: Any,
    shape: tuple[int, ...],
) -> None:
    given = small(tiny_study, tmp_path / "study", kind)
    out = tmp_path / "final"
    assert run(main, *given.arguments(out)) == 0
    shown = capsys.readouterr().out
    assert f"{auto.__name__}.from_pretrained" in shown
    facts = json.loads((out / "metrics.json").read_text())
    for row in facts["models"].values():
        assert row["params_active"] == row["params"]
        for metric in facts["metrics"]:
            figures = f"{row[metric]['value']:.4f} ± {row[metric]['standard_error']:.4f}"
            assert figures in shown
    difference = facts["models"]["student"][facts["metrics"][0]]["difference"]
    assert f"{difference['value']:+.4f} ± {difference['standard_error']:.4f}" in shown
    model = auto.from_pretrained(out, trust_remote_code=True).eval()
    assert facts["models"]["student"]["params"] == sum(parameter.numel() for parameter in model.parameters())
    batch = AutoTokenizer.from_pretrained(out)(SENTENCES, padding=True, return_tensors="pt")
    with torch.inference_mode():
        outputs = model(**batch)
    assert (outputs.start_logits if kind == "questions" else outputs.logits).shape == shape
    assert kind != "tagging" or list(model.config.id2label.values()) == ["O", "B-BEE", "B-DEE"]
    assert kind != "regression" or model.config.problem_type == "regression"


def test_experts_that_a_search_does_not_draw(tiny_study: TinyStudy, tmp_path: Path, refused: Refused) -> None:
    given = small(tiny_study, tmp_path / "study", "rows")
    dense = Architecture.load(given.architecture)
    base = replace(dense.base, gate_scale="probability", gate_jitter=0.1, capacity_per="batch")
    architecture = Architecture.of_ffns(base, dense.ffns, attention_experts=2, head_experts=3)
    architecture.save(given.architecture)
    out = tmp_path / "final"
    assert run(main, *given.arguments(out)) == 0
    facts = json.loads((out / "metrics.json").read_text())
    assert [(load["layer"], load["part"]) for load in facts["expert_load"]] == [
        (-1, "head"),
        (0, "attention"),
        (1, "attention"),
    ]
    row = facts["models"]["student"]
    assert (row["params"], row["params_active"]) == (cost.params(architecture, 3), cost.params_active(architecture, 3))
    model = NasBertForSequenceClassification.from_pretrained(out)
    assert (model.config.attention_experts, model.config.head_experts) == (2, 3)
    assert model.config.gate_scale == "probability"
    assert (model.config.router_jitter_noise, model.config.capacity_per) == (0.1, "batch")
    tagging = small(tiny_study, tmp_path / "tagging", "tagging")
    architecture.save(tagging.architecture)
    message = refused(main, *tagging.arguments(tmp_path / "never"))
    assert "the architecture has experts in its head, which a model for token_classification cannot have" in message


def test_minimoe_learns_relations_on_text_and_then_from_labels_alone(
    tiny_study: TinyStudy, tmp_path: Path, capsys: pytest.CaptureFixture[str], refused: Refused
) -> None:
    """Its two steps, with "x,y experts" and the gates of the architecture, on the dimensions of the preset."""
    changes = {
        "base": {"depth": 2, "width": 24, "heads": 2, "inner": 48},
        "text_teacher": "raw",
        "objective": {"name": "minimoe", "relation_heads": 4},
        "pretrain": rate(3),
    }
    relation = {"objective": {"relation": 0.0}}
    given = small(tiny_study, tmp_path / "study", "rows", **changes, final=rate(3) | relation)
    config = load_config(str(given.preset))
    teacher, student = (BertConfig(hidden_size=width, num_hidden_layers=2) for width in (32, 24))
    objective = OBJECTIVES["minimoe"]
    aligned = objective.make(settings_of(config, "pretrain"), student, teacher)
    assert {term.name: term.weight for term in aligned.terms} == {"relation": 1.0, "balance": 0.01}
    learns = objective.make(objective.settings_with_labels(settings_of(config, "final")), student, teacher)
    assert {term.name: term.weight for term in learns.terms} == {"labels": 1.0, "balance": 0.01}
    assert not learns.needs_teacher
    # Figure 5: without the balance in the second step.
    once = load_config(str(given.preset), {"final.objective.balance": 0.0})
    learns = objective.make(objective.settings_with_labels(settings_of(once, "final")), student, teacher)
    assert [term.name for term in learns.terms] == ["labels"]
    assert settings_of(once, "pretrain") == settings_of(config, "pretrain")
    published = PUBLISHED["minimoe-4l-96h"]
    own = replace(published.base, depth=2)
    Architecture.of_ffns(own, published.ffns[:2], attention_experts=2).save(given.architecture)
    out = tmp_path / "final"
    assert run(main, *given.arguments(out, "--transfer")) == 0
    facts = json.loads((out / "metrics.json").read_text())
    assert list(facts["losses"]["student"]) == ["pre-training", "fine-tuning"]
    assert [(load["layer"], load["part"]) for load in facts["expert_load"]] == [
        (layer, part) for layer in (0, 1) for part in ("attention", "ffn")
    ]
    model = NasBertForSequenceClassification.from_pretrained(out)
    assert (model.config.hidden_size, model.config.attention_experts) == (24, 2)
    assert (model.config.gate_scale, model.config.capacity_per) == ("probability", "batch")
    assert sum(weights.numel() for weights in model.parameters()) == facts["models"]["student"]["params"]
    capsys.readouterr()
    wrong = small(tiny_study, tmp_path / "study", "rows", **changes)
    text = wrong.preset.read_text() + "\n[final.objective]\nrelations = 0.0\n"
    wrong.preset.write_text(text)
    message = refused(main, *wrong.arguments(tmp_path / "never"))
    assert "final.objective: minimoe has no setting 'relations'; did you mean 'relation'?" in message


def test_an_assistant_teaches_on_text(tiny_study: TinyStudy, tmp_path: Path, refused: Refused) -> None:
    """A student that has learned from the teacher takes its place in the first step, as the teacher's copy would."""
    changes = {"objective": {"name": "minilmv2", "relation_heads": 4}, "text_teacher": "raw", "pretrain": rate(3)}
    given = small(tiny_study, tmp_path / "study", "rows", **changes)
    like = ["--like", str(tiny_study.teacher), "--out"]
    assert student.main([str(given.architecture), *like, str(tmp_path / "assistant"), "--fresh"]) == 0
    shutil.copytree(tiny_study.teacher, tmp_path / "copy")
    first = {}
    for name in ("none", "copy", "assistant"):
        options = [] if name == "none" else ["--assistant", str(tmp_path / name)]
        assert run(main, *given.arguments(tmp_path / f"by-{name}"), *options) == 0
        losses = json.loads((tmp_path / f"by-{name}" / "metrics.json").read_text())["losses"]["student"]
        first[name] = losses["pre-training"]
    assert first["none"] == first["copy"] != first["assistant"]
    other = tmp_path / "other"
    shutil.copytree(tmp_path / "assistant", other)
    tokenizer(["another"]).save_pretrained(other)
    for assistant, message in (
        (str(other), "pretrain.assistant: the vocabulary of"),
        (str(tmp_path / "missing"), "no model at"),
    ):
        assert message in refused(main, *given.arguments(tmp_path / "never"), "--assistant", assistant)
    wrong = small(tiny_study, tmp_path / "wrong", "rows", **changes | {"objective": {"name": "minilm"}})
    narrow = Architecture.load(given.architecture)
    narrow.transferred(replace(narrow.base, heads=2)).save(tmp_path / "narrow.json")
    assert student.main([str(tmp_path / "narrow.json"), *like, str(tmp_path / "narrow"), "--fresh"]) == 0
    options = [*wrong.arguments(tmp_path / "never"), "--assistant", str(tmp_path / "narrow")]
    assert "pretrain.assistant: minilm needs equal head counts" in refused(main, *options)


def test_without_anything_to_learn_from_text(
    tiny_study: TinyStudy, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    only = {"name": "efficientbert", "attention": 0.0, "hidden": 0.0, "embedding": 0.0}
    for number, objective in enumerate(({"name": "kd"}, only)):
        given = small(tiny_study, tmp_path / f"{number}", "rows", objective=objective)
        assert run(main, *given.arguments(tmp_path / f"final-{number}")) == 0
        shown = capsys.readouterr().out
        assert "no pre-training: " in shown and "student: pre-training" not in shown


def test_latencies_are_those_of_students_as_they_will_run(
    tiny_study: TinyStudy, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    form = {"runtime": "onnx-int8", "threads": 1, "batch": 2, "tokens": 5}
    given = small(tiny_study, tmp_path, "rows", deployment=form)
    assert run(main, *given.arguments(tmp_path / "final")) == 0
    assert "a sentence of 5 tokens (2 at once for latency), in onnx-int8" in capsys.readouterr().out.replace("\n", " ")
    facts = json.loads((tmp_path / "final/metrics.json").read_text())
    assert {name: facts[name] for name in form} == form
    for row in facts["models"].values():
        low, middle, high = row["latency_quartiles_ms"]
        assert 0 < low <= middle <= high and row["latency_ms"] > 0


def test_genes_on_another_base(tiny_study: TinyStudy, tmp_path: Path, refused: Refused) -> None:
    """EfficientBERT's layers on a base with twice its layers, as in EfficientBERT++, and on a narrower one."""
    base = {"depth": 12, "width": 8, "heads": 2, "inner": 12, "embedding": 4}
    preset = study(tiny_study, tmp_path, "rows", base=base, objective={"name": "kd"}, pretrain=rate(0), final=rate(2))
    text = preset.read_text().replace("stacks = [\n    1,\n    2,\n]", "stacks = [1, 2, 3, 4]")
    assert "stacks = [1, 2, 3, 4]" in text
    preset.write_text(text)
    given = ["efficientbert", "--preset", preset, "--out", tmp_path / "final", "--skip-base"]
    error = refused(main, *given)
    assert " in depth (6 instead of 12), width (540 instead of 8), " in error
    assert "add --transfer to apply the architecture's layers to the configuration's base" in error
    shutil.rmtree(tmp_path / "final")
    assert run(main, *given, "--transfer") == 0
    architecture = Architecture.load(tmp_path / "final" / "architecture.json")
    assert (architecture.base.depth, architecture.base.width) == (12, 8)
    assert [ffn.stack for ffn in architecture.ffns] == [4, 4, 2, 2, 1, 1, 2, 2, 1, 1, 2, 2]
    facts = json.loads((tmp_path / "final" / "metrics.json").read_text())
    assert facts["models"]["student"]["params"] == cost.params(architecture, 3)
    preset.write_text(text.replace("depth = 12", "depth = 9"))
    given[4] = tmp_path / "never"
    assert "6 layers can only be transferred to a multiple of that, not to 9" in refused(main, *given, "--transfer")
    assert "efficientbert is a published architecture: give the --preset" in refused(main, "efficientbert")
    assert "did you mean 'efficientbert'" in refused(main, "eficientbert", "--preset", preset)


def untrained(tiny_study: TinyStudy, folder: Path, start: str, *outs: Path, skip_base: bool) -> Workspace:
    """Run final trainings of no steps with this start; returns the workspace of their study, which has two tasks."""
    preset = study(tiny_study, folder, "both", pretrain=rate(0), final=rate(0) | {"start": start})
    architecture, more = half_width(preset, folder), ["--skip-base"] if skip_base else []
    for out in outs:
        assert run(main, architecture, "--preset", preset, "--out", out, *more) == 0
    return prepare(load_config(str(preset)), "cpu")


def test_a_student_that_starts_as_a_slice_of_stage_3_s_supernet(tiny_study: TinyStudy, tmp_path: Path) -> None:
    """EfficientBERT+ goes from the shared weights directly to the training on the task."""
    out = tmp_path / "final"
    workspace = untrained(tiny_study, tmp_path, "one_shot", out, skip_base=True)
    architecture = Architecture.load(out / "architecture.json")
    space = plan(workspace.config, workspace, "3", architecture, ()).space
    expected = OneShotEvaluator(prepare_one_shot(workspace, space, "cpu"), "cpu").student(architecture).state_dict()
    stored = load_file(out / "model.safetensors")
    assert stored.keys() == {name for name in expected if name in stored} and len(stored) > 20
    assert all(torch.equal(tensor, expected[name]) for name, tensor in stored.items())
    inherited = TrainedEvaluator(workspace, "cpu").student(architecture).state_dict()
    assert any(not torch.equal(tensor, inherited[name]) for name, tensor in stored.items())


def test_a_student_that_starts_from_random_weights(
    tiny_study: TinyStudy, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """EfficientBERT's table 2 without warm-up: nothing of the supernet is in the student, nor in the base model."""
    outs = tmp_path / "one", tmp_path / "two"
    workspace = untrained(tiny_study, tmp_path, "random", *outs, skip_base=False)
    one, other = (load_file(out / "model.safetensors") for out in outs)
    architecture = Architecture.load(outs[0] / "architecture.json")
    inherited = TrainedEvaluator(workspace, "cpu").student(architecture).state_dict()
    # Biases and LayerNorms start as constants, everything else is random.
    maps = [name for name, tensor in one.items() if tensor.ndim == 2]
    assert len(maps) > 10 and not any(torch.equal(one[name], inherited[name]) for name in maps)
    assert all(torch.equal(tensor, other[name]) for name, tensor in one.items())
    # Nothing is warmed up, which would be thrown away.
    said = capsys.readouterr().out
    assert "measuring" in said and "warm-up" not in said
    # The base model, which would otherwise start as the fine-tuned teacher, is random too.
    facts = json.loads((outs[0] / "metrics.json").read_text())
    models, first = facts["models"], facts["metrics"][0]
    assert models["base model"]["params"] == models["teacher"]["params"]
    assert models["base model"][first]["value"] != models["teacher"][first]["value"]


@pytest.mark.slow
def test_two_processes_share_the_batches(tiny_study: TinyStudy, tmp_path: Path) -> None:
    given = small(tiny_study, tmp_path / "study", "rows", pretrain=rate(4), final=rate(120))
    alone, together = tmp_path / "alone", tmp_path / "together"
    # `accelerate launch --cpu` starts one process, whatever --num_processes says; on GPUs it does what this does.
    launch = ("-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2")
    with tiny_study.running(*launch, "train_final.py", *given.arguments(together)) as process:
        assert run(main, *given.arguments(alone)) == 0
        shown, error = process.communicate(timeout=TIMEOUT)
    assert process.returncode == 0, error
    assert "Traceback" not in error
    (weights, facts), (expected, expected_facts) = left(together), left(alone)
    assert (facts.pop("processes"), expected_facts.pop("processes")) == (2, 1)
    # Each process says what it does but once.
    assert shown.count("wrote ") == 1
    start = prepare(load_config(str(given.preset)), "cpu").supernet / "model.safetensors"
    name = "bert.encoder.layer.1.ffn.0.project.bias"
    # Half the rows each and the mean of the gradients: the same steps, without dropout.
    moved = (expected[name] - load_file(start)[name]).norm()
    assert (weights[name] - expected[name]).norm() < 0.1 * moved
