"""From an architecture to a distilled student, by the two commands that a user runs."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForSequenceClassification, AutoModelForTokenClassification

from distill.tasks.types import TASK_TYPES
from search_spaces import FFN, Architecture, Experts, FFNGraph, cost
from supernet.build import base_of_teacher
from tests.supernet.files import write_rows
from tests.tiny import CLASSES, bert, saved

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
TEACHER = bert(1, labels=2, num_hidden_layers=4, max_position_embeddings=40, **CLASSES)
BASE = replace(base_of_teacher(TEACHER.config)[0], depth=2)
# EfficientBERT's are like these: other activations, the input joined again, several blocks.
SWISH = FFNGraph.parse("project(swish(expand(max(x,tanh(x)))))")
JOINED = FFNGraph.parse("relu(project(mul(sigmoid(expand(x)),x)))")


def of(*layers: FFN, **changes: Any) -> Architecture:
    experts = {name: changes.pop(name) for name in ("attention_experts", "head_experts") if name in changes}
    return Architecture.of_ffns(replace(BASE, **changes), layers, **experts)


HALF = Fraction(1, 2)
DENSE = of(FFN(SWISH, 1, HALF), FFN(JOINED))
EXPERTS = of(FFN(SWISH, 1, HALF, Experts(2, shared=HALF)), FFN(SWISH, 1, HALF, Experts(3, Fraction(1), "token_gate")))
HEAD = of(FFN(SWISH), FFN(SWISH, 1, HALF), head_experts=3)
BLOCKS = of(FFN(SWISH, 3, HALF), FFN(JOINED, 2), FFN(SWISH), width=16, heads=2, depth=3, embedding=8)
HASHED = FFN(JOINED, 1, Fraction(1), Experts(2, Fraction(1), "balanced_hash"))
ATTENTION = of(FFN(SWISH), HASHED, attention_experts=2)


@pytest.fixture
def teacher(tmp_path: Path) -> Path:
    """A checkpoint of four layers, and rows beside it."""
    write_rows(tmp_path)
    for name in ("train", "dev"):
        words = [line.partition("\t")[0].split() for line in (tmp_path / f"{name}.tsv").read_text().splitlines()[1:]]
        blocks = ["".join(f"{word} {'B-X' if word[-1] == '1' else 'O'}\n" for word in row) for row in words]
        (tmp_path / f"{name}.conll").write_text("\n".join(blocks))
    return saved(TEACHER, tmp_path / "teacher")


def command(*arguments: object) -> str:
    """Run `python -m ...`; returns what it prints."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    process = subprocess.run(
        [sys.executable, "-m", *map(str, arguments)], capture_output=True, text=True, env=environment, timeout=240
    )
    assert (process.returncode, process.stderr) == (0, ""), process.stderr
    return process.stdout


def made(architecture: Architecture, teacher: Path, folder: Path, *flags: str) -> Path:
    """The student's folder."""
    architecture.save(folder / "wanted.json")
    out = folder / "made"
    said = command("supernet.student", folder / "wanted.json", "--like", teacher, "--out", out, *flags)
    assert said.startswith(f"wrote {out}: ")
    return out


def distilled(student: object, teacher: Path, folder: Path, *arguments: object) -> dict[str, Any]:
    always = ("--student", student, "--teacher", teacher, "--out", folder / "out", "--device", "cpu")
    few = ("--steps", 4, "--batch-size", 8, "--max-length", 16, "--learning-rate", 1e-3)
    command("distill", *always, *few, *arguments)
    found: dict[str, Any] = json.loads((folder / "out" / "metrics.json").read_text())
    return found


@torch.no_grad()
@pytest.mark.parametrize(
    ("architecture", "flags", "objective"),
    [
        (DENSE, (), "efficientbert"),
        (BLOCKS, ("--fresh",), "kd"),
        (EXPERTS, (), "moebert"),
        (EXPERTS, ("--fresh",), "minimoe"),
        (ATTENTION, ("--fresh",), "kd"),
        (HEAD, (), "microbert"),
        (HEAD, ("--fresh",), "none"),
    ],
    ids=["dense", "fresh", "experts", "fresh-experts", "attention-experts", "head-experts", "fresh-head-experts"],
)
def test_a_student_of_an_architecture_is_distilled(
    architecture: Architecture, flags: tuple[str, ...], objective: str, teacher: Path, tmp_path: Path
) -> None:
    student = made(architecture, teacher, tmp_path, *flags)
    rows = ("--train", tmp_path / "train.tsv", "--dev", tmp_path / "dev.tsv")
    settings = ("--set", "relation_heads=4") if objective == "minimoe" else ()
    found = distilled(student, teacher, tmp_path, *rows, "--objective", objective, *settings)
    params = cost.params(architecture, 2)
    assert found["models"]["student"]["params"] == found["models"]["student, before"]["params"] == params
    routed = {(load["layer"], load["part"]) for load in found["expert_load"]}
    expected = {(place, "ffn") for place, ffn in enumerate(architecture.ffns) if ffn.experts.count > 1}
    expected |= {(place, "attention") for place in range(2) if architecture.layers[place].attention.experts > 1}
    expected |= {(-1, "head")} if architecture.head.experts > 1 else set()
    assert routed == expected
    before, after = (load_file(folder / "model.safetensors") for folder in (student, tmp_path / "out"))
    assert before.keys() == after.keys()
    moved = {name for name in before if not torch.equal(before[name], after[name])}
    assert any(".ffn." in name for name in moved) and any(name.startswith("classifier") for name in moved)
    model = AutoModelForSequenceClassification.from_pretrained(tmp_path / "out", trust_remote_code=True)
    assert model.config.id2label == {0: "no", 1: "yes"}


def test_a_student_for_another_kind_of_task(teacher: Path, tmp_path: Path) -> None:
    """Its head is new, and as the task needs it; a head's experts are for sentences alone."""
    student = made(EXPERTS, teacher, tmp_path)
    data = tmp_path / "data"
    data.mkdir()
    for name in ("train", "dev"):
        (tmp_path / f"{name}.conll").rename(data / f"{name}.conll")
    given = ("--task", "conll", "--data", data, "--finetune-teacher", 2)
    found = distilled(student, teacher, tmp_path, *given)
    assert found["models"]["student"]["params"] == cost.params(EXPERTS, 2, TASK_TYPES["token_classification"].head)
    model = AutoModelForTokenClassification.from_pretrained(tmp_path / "out", trust_remote_code=True)
    assert set(model.config.id2label.values()) == {"O", "B-X"}


@pytest.mark.parametrize("architecture", [EXPERTS, HEAD], ids=["experts", "head-experts"])
def test_a_distilled_student_teaches_another(architecture: Architecture, teacher: Path, tmp_path: Path) -> None:
    student = made(architecture, teacher, tmp_path)
    rows = ("--train", tmp_path / "train.tsv", "--dev", tmp_path / "dev.tsv")
    first = distilled(student, teacher, tmp_path, *rows)["models"]["student"]
    (tmp_path / "out").rename(tmp_path / "assistant")
    second = distilled("first:1", tmp_path / "assistant", tmp_path, *rows)["models"]
    assert second["teacher"] == first
    assert second["student"]["params"] < first["params"]
