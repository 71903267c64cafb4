"""`distil` gives what `python -m distill` writes."""

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
import torch
from datasets import ClassLabel, Dataset
from safetensors.torch import load_file
from transformers import AutoModelForSequenceClassification, AutoTokenizer, BertTokenizerFast

from distill import Distilled, distil
from distill.__main__ import main
from foundation.errors import UserError
from tests.accelerate_state import reset_accelerate
from tests.tiny import bert

TOKENIZER = BertTokenizerFast(vocab={"[PAD]": 0, "[UNK]": 1, "[CLS]": 2, "[SEP]": 3, "[MASK]": 4, "w1": 5})


@pytest.fixture
def rows(fixtures: Path) -> tuple[pandas.DataFrame, pandas.DataFrame]:
    """The training and the dev rows of the fixtures."""
    one, two = (pandas.read_csv(fixtures / f"{name}.tsv", sep="\t") for name in ("train", "dev"))
    return one, two


def test_it_gives_what_the_command_writes(
    fixtures: Path, rows: tuple[pandas.DataFrame, pandas.DataFrame], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A teacher in memory in half precision and in train mode, whose weights half precision has, is left as it was."""
    teacher: Any = AutoModelForSequenceClassification.from_pretrained(fixtures / "teacher").bfloat16().train()
    tokenizer: Any = AutoTokenizer.from_pretrained(fixtures / "teacher")
    before = {name: tensor.clone() for name, tensor in teacher.state_dict().items()}
    AutoModelForSequenceClassification.from_pretrained(
        fixtures / "teacher", dtype=torch.bfloat16
    ).float().save_pretrained(tmp_path / "teacher")
    tokenizer.save_pretrained(tmp_path / "teacher")
    recipe = {"steps": 3, "batch_size": 8, "max_length": 16, "seed": 1}
    train = Dataset.from_pandas(rows[0]).cast_column("label", ClassLabel(names=["yes", "no"]))
    models = {"teacher": teacher, "tokenizer": tokenizer, "settings": {"temperature": 3.0}}
    seen: list[str] = []
    result = distil(
        "uniform:2", train, rows[1], **models, **recipe, device="cpu", on_progress=lambda *a: seen.append(a[0])
    )
    assert teacher.training and all(torch.equal(before[name], tensor) for name, tensor in teacher.state_dict().items())
    reset_accelerate()
    words = [str(part) for name, value in recipe.items() for part in (f"--{name.replace('_', '-')}", value)]
    files = ["--train", str(fixtures / "train.tsv"), "--dev", str(fixtures / "dev.tsv"), "--set", "temperature=3"]
    out = ["--student", "uniform:2", "--teacher", str(tmp_path / "teacher"), "--out", str(tmp_path / "out")]
    assert main([*out, *files, *words, "--device", "cpu", "--quiet"]) == 0
    expected, stored = load_file(tmp_path / "out" / "model.safetensors"), result.student.state_dict()
    assert all(torch.equal(stored[name], tensor) for name, tensor in expected.items())
    metrics = json.loads((tmp_path / "out" / "metrics.json").read_text())["models"]
    for name in ("teacher", "student"):
        assert result.metrics["models"][name]["accuracy"] == metrics[name]["accuracy"]
    assert result.student.config.id2label == {0: "no", 1: "yes"} and not result.student.training
    assert "student: kd" in seen and "options" not in result.metrics
    assert "accuracy" in result.table() == repr(result) and "<table>" in result._repr_html_()
    capsys.readouterr()
    result.save(tmp_path / "saved")
    assert Distilled.load(tmp_path / "saved").metrics == result.metrics
    assert capsys.readouterr() == ("", "")


def test_fine_tuning(fixtures: Path, rows: tuple[pandas.DataFrame, pandas.DataFrame]) -> None:
    """Every tenth row is held out, and there is no teacher. The caller's random numbers are left alone."""
    recipe = {"steps": 2, "batch_size": 8, "max_length": 16}
    before = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    result = distil(fixtures / "headless", rows[0].to_dict("records"), objective="none", **recipe, device="cpu")
    assert result.metrics["dev_rows"] == 4 and list(result.metrics["models"]) == ["student, before", "student"]
    assert before == (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist())


def test_each_call_warns_of_its_arguments(
    fixtures: Path, rows: tuple[pandas.DataFrame, pandas.DataFrame], caplog: pytest.LogCaptureFixture
) -> None:
    """By the name of the argument, not that of a scratch file."""
    train = [*rows[0].to_dict("records"), {"sentence": "w1 w2", "label": "YES"}]
    for _ in range(2):
        caplog.clear()
        distil("uniform:1", train, train, teacher=fixtures / "teacher", finetune_teacher=1, steps=1, device="cpu")
        lines = [record.getMessage() for record in caplog.records if record.name == "foundation.errors"]
        assert any("differ only in case" in line and line.startswith("train: ") for line in lines), lines


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"text": "words"}, "^train: row 1 has no column 'words'; it has 'sentence'"),
        ({"train": []}, "^train: there are no rows"),
        ({"train": [{"sentence": "w1", "label": "no"}] * 40}, "^train: the column 'label' has only one class, 'no'"),
        ({"train": [{"sentence": "", "label": "no"}] * 40}, "^train: row 1"),
        ({"teacher": None}, "^student uniform:2 takes its layers from the teacher: add teacher, or give"),
        ({"settings": {"heat": 2}}, "^set heat=2: kd has "),
        ({"device": "gpu"}, "^device: there is no device 'gpu' here; choose cpu or auto"),
        ({"teacher": bert(labels=3), "tokenizer": TOKENIZER}, "^the model 'teacher' has a head for 3 classes"),
        ({"tokenizer": TOKENIZER}, "^tokenizer: a folder or name has its own; leave it out"),
        ({"steps": -1}, "^steps: must be at least 0, not -1"),
        ({"steps": "5"}, "^steps: must be a whole number, not '5'"),
        ({"learning_rate": "high"}, "^learning_rate: must be a number above 0, not 'high'"),
        ({"objective": None}, "^unknown objective None"),
        ({"settings": ["heat"]}, r"^settings: must be a mapping of names to values, not \['heat'\]"),
        ({"class_weights": "balancd"}, "^class_weights: 'balancd' is neither"),
        ({"class_weights": {"no": -1}}, "^class_weights: {'no': -1} is neither"),
        ({"metric": "f2"}, "f2"),
        ({"objective": "tinybird"}, "^unknown objective 'tinybird'; did you mean 'tinybert'"),
        ({"student": torch.nn.Linear(2, 2)}, "^model: must be a model of transformers"),
        ({"dev": [{"sentence": "w1", "label": "other"}]}, "^dev: the class 'other' is not one of no, yes"),
    ],
)
def test_mistakes(
    fixtures: Path, rows: tuple[pandas.DataFrame, pandas.DataFrame], changes: dict[str, Any], said: str
) -> None:
    given = {
        "student": "uniform:2",
        "teacher": fixtures / "teacher",
        "train": rows[0],
        "dev": rows[1],
        "max_length": 16,
    }
    with pytest.raises(UserError, match=said):
        distil(**{"device": "cpu", **given, **changes})
