"""Students of any architecture, from the command line."""

import os
import re
import subprocess
import sys
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForSequenceClassification

from search_spaces import FFN, GELU, Architecture, Attention, Experts, Layer
from supernet.build import base_of_teacher
from supernet.student import main
from tests import tiny
from tests.commands import Refused
from tests.tiny import batch, bert, inputs

TEACHER = bert(4, num_hidden_layers=4)
OWN, _ = base_of_teacher(TEACHER.config)


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """A BERT of four layers with a tokenizer of its 50 words."""
    return tiny.saved(TEACHER, tmp_path / "teacher")


def saved(architecture: Architecture, folder: Path) -> str:
    architecture.save(folder / "wanted.json")
    return str(folder / "wanted.json")


@torch.no_grad()
def test_the_teachers_own_architecture_is_the_teacher(checkpoint: Path, tmp_path: Path) -> None:
    """As a user runs it, and loaded without this project's modules registered."""
    out = tmp_path / "student"
    name = saved(Architecture.uniform(OWN), tmp_path)
    command = [sys.executable, "-m", "supernet.student", name, "--like", str(checkpoint), "--out", str(out)]
    process = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert (process.returncode, process.stdout) == (0, f"wrote {out}: 0.02 M parameters\n"), process.stderr
    student = AutoModelForSequenceClassification.from_pretrained(out, trust_remote_code=True).eval()
    torch.testing.assert_close(student(**inputs(batch())).logits, TEACHER(**inputs(batch())).logits)
    assert Architecture.load(out / "architecture.json") == Architecture.uniform(OWN)


@torch.no_grad()
def test_fewer_layers_are_the_last_of_each_group(checkpoint: Path, tmp_path: Path) -> None:
    base = replace(OWN, depth=2, gate_scale="probability")
    half = FFN(GELU, 1, Fraction(1, 2), Experts(2, shared=Fraction(1, 2)))
    name = saved(Architecture.of_ffns(base, (FFN(GELU), half), head_experts=3), tmp_path)
    assert main([name, "--like", str(checkpoint), "--out", str(tmp_path / "student")]) == 0
    student = AutoModelForSequenceClassification.from_pretrained(tmp_path / "student", trust_remote_code=True)
    layers, own = student.bert.encoder.layer, TEACHER.bert.encoder.layer
    for layer, number in zip(layers, (1, 3), strict=True):
        assert torch.equal(layer.attention.self.query.weight, own[number].attention.self.query.weight)
    first = own[3].intermediate.dense.weight
    assert torch.equal(layers[1].ffn[0].expand.weight[0], first[[*range(12), *range(12, 36, 2)]])
    assert student.classifier.inner.weight.shape == (3, 24, 24)


def test_fresh_weights(checkpoint: Path, tmp_path: Path) -> None:
    base = replace(OWN, width=16, depth=3)
    name = saved(Architecture.uniform(base), tmp_path)
    for folder, seed in (("a", "1"), ("b", "1"), ("c", "2")):
        out = str(tmp_path / folder)
        assert main([name, "--like", str(checkpoint), "--out", out, "--fresh", "--seed", seed]) == 0
    load = lambda folder: (tmp_path / folder / "model.safetensors").read_bytes()  # noqa: E731
    assert load("a") == load("b") != load("c")


@pytest.mark.parametrize(
    ("changes", "genes", "reason"),
    [
        ({"width": 16}, FFN(GELU), "base.width is 16, the checkpoint's 24: start from random weights"),
        ({"depth": 3}, FFN(GELU), "4 teacher layers cannot be shared out evenly to 3 student layers.*--fresh"),
        ({}, FFN(GELU, 2), "layers.0..ffn.stack is 2; the supernet has 1 blocks there; or start from random weights"),
        ({"vocabulary": 20}, FFN(GELU), "the architecture has 20 tokens and the tokenizer of .* 50: change"),
    ],
)
def test_what_cannot_be_built(
    changes: dict[str, int], genes: FFN, reason: str, checkpoint: Path, tmp_path: Path, refused: Refused
) -> None:
    base = replace(OWN, **changes)
    name = saved(Architecture.of_ffns(base, (genes,) * base.depth), tmp_path)
    assert re.search(reason, refused(main, name, "--like", checkpoint, "--out", tmp_path / "student"))
    assert not (tmp_path / "student").exists()


@pytest.mark.parametrize("missing", ["architecture", "checkpoint", "room"])
def test_what_is_not_there(missing: str, checkpoint: Path, tmp_path: Path, refused: Refused) -> None:
    name = "nope" if missing == "architecture" else saved(Architecture.uniform(OWN), tmp_path)
    like = str(tmp_path / "nowhere" if missing == "checkpoint" else checkpoint)
    out = tmp_path if missing == "room" else tmp_path / "student"
    reasons = {"architecture": "neither a file nor", "checkpoint": "no model at", "room": "is not empty"}
    assert reasons[missing] in refused(main, name, "--like", like, "--out", out)


@torch.no_grad()
def test_a_student_of_a_student(checkpoint: Path, tmp_path: Path) -> None:
    """The folder of a student, whose layers differ, gives its weights to the same and to narrower students."""
    thin, none = FFN(GELU, 1, Fraction(1, 2)), FFN(stack=0)
    first = Architecture.of_ffns(OWN, (FFN(GELU), thin, none, FFN(GELU)))
    assert main([saved(first, tmp_path), "--like", str(checkpoint), "--out", str(tmp_path / "first")]) == 0
    like = ["--like", str(tmp_path / "first")]
    assert main([str(tmp_path / "first" / "architecture.json"), *like, "--out", str(tmp_path / "same")]) == 0
    load = AutoModelForSequenceClassification.from_pretrained
    models = [load(tmp_path / name, trust_remote_code=True).eval() for name in ("first", "same")]
    torch.testing.assert_close(*(model(**inputs(batch())).logits for model in models))
    fewer = replace(first, layers=(Layer(Attention(0), none), *first.with_heads([4, 2, 1, 4]).layers[1:]))
    assert main([saved(fewer, tmp_path), *like, "--out", str(tmp_path / "fewer")]) == 0
    fewest = replace(fewer, layers=(*fewer.layers[:3], Layer(Attention(0), none)))
    assert main([saved(fewest, tmp_path), "--like", str(tmp_path / "fewer"), "--out", str(tmp_path / "fewest")]) == 0
    last = load(tmp_path / "fewest", trust_remote_code=True).eval()
    states = last(**inputs(batch()), output_hidden_states=True).hidden_states
    assert torch.equal(states[0], states[1]) and torch.equal(states[3], states[4])
    narrower = Architecture.of_ffns(OWN, (thin, thin, none, thin))
    assert main([saved(narrower, tmp_path), *like, "--out", str(tmp_path / "narrower")]) == 0
    # As the teacher's own slice would be: the leading channels of the leading channels.
    assert main([saved(narrower, tmp_path), "--like", str(checkpoint), "--out", str(tmp_path / "direct")]) == 0
    models = [load(tmp_path / name, trust_remote_code=True).eval() for name in ("narrower", "direct")]
    torch.testing.assert_close(*(model(**inputs(batch())).logits for model in models))


def test_a_student_has_fewer_channels_than_wanted(checkpoint: Path, tmp_path: Path, refused: Refused) -> None:
    half = Architecture.uniform(OWN, expansion=Fraction(1, 2))
    assert main([saved(half, tmp_path), "--like", str(checkpoint), "--out", str(tmp_path / "half")]) == 0
    wide = saved(Architecture.uniform(OWN), tmp_path)
    words = [wide, "--like", tmp_path / "half", "--out", tmp_path / "wide"]
    assert "channels; the architecture needs" in refused(main, *words)
    (tmp_path / "half" / "architecture.json").unlink()
    assert "there is no architecture.json" in refused(main, *words)
