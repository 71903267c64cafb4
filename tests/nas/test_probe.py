"""`python -m nas.probe`, and types of encoders that are added at run time."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import CONFIG_MAPPING, AutoModel, AutoModelForSequenceClassification

from distill.encoders.family import FamilyError, family_of
from distill.encoders.student.anatomy import Family
from distill.encoders.student.families import FAMILIES, SHIPPED
from distill.training.teacher import load_config, load_model
from nas.probe import main
from supernet.build import from_teacher
from tests.renamed import of_every_kind
from tests.sentences import become_sentence_encoder
from tests.tiny import batch, bert, inputs, shaken

SIZES = {
    **{"vocab_size": 50, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48},
    **{"max_position_embeddings": 32, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2},
}
# Loads a checkpoint without this project.
LOAD = """
import json, sys
import torch
from transformers import AutoModelForSequenceClassification
folder, ids = sys.argv[1], json.loads(sys.argv[2])
model = AutoModelForSequenceClassification.from_pretrained(folder, trust_remote_code=True).eval()
print(json.dumps(model(input_ids=torch.tensor(ids)).logits.tolist()))
"""


@pytest.fixture(autouse=True)
def shipped_types() -> Iterator[None]:
    yield
    for name in set(FAMILIES) - SHIPPED:
        del FAMILIES[name]


def saved(folder: Path, model_type: str, auto: Any = AutoModel, **settings: Any) -> Path:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = shaken(auto.from_config(CONFIG_MAPPING[model_type](**{**SIZES, **settings})))
    model.save_pretrained(folder)
    return folder


@pytest.mark.parametrize("name", [name for name, family in FAMILIES.items() if family.students_of is None])
def test_a_described_family_is_the_same(name: str) -> None:
    family = FAMILIES[name]
    described = json.loads(json.dumps(family.described()))
    assert Family.from_description(described).described() == family.described()


@pytest.mark.parametrize("name", ["bert", "distilbert", "layoutlm", "modernbert", "albert"])
def test_supported_types(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    of_every_kind(bert())[name].save_pretrained(tmp_path)
    assert main([str(tmp_path)]) == 0
    assert "which is supported; all parts are where they should be" in capsys.readouterr().out


def test_a_sentence_encoder_whose_configuration_names_a_head(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    become_sentence_encoder(saved(tmp_path / "encoder", "mpnet"), "MPNetForMaskedLM")
    assert main([str(tmp_path / "encoder")]) == 0
    assert "is of type 'mpnet', which is supported; " in capsys.readouterr().out


def test_a_type_that_is_built_like_another(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The lines that are shown make it work, up to a student in a process without this project."""
    auto = AutoModelForSequenceClassification
    folder = saved(tmp_path / "teacher", "big_bird", auto, attention_type="original_full", num_labels=2)
    assert main([str(folder)]) == 0
    said = capsys.readouterr().out
    assert "is of type 'big_bird' and is built like 'bert'" in said
    assert "big_bird" not in FAMILIES
    exec(said.partition("\n\n")[2])
    assert main([str(folder)]) == 0
    teacher = load_model(str(folder), ["a", "b"])
    student = from_teacher(teacher, stack=1).eval()
    given = inputs(batch())
    assert torch.allclose(student(**given).logits, teacher(**given).logits, atol=1e-6)
    student.save_pretrained(tmp_path / "student")
    ids = batch()["input_ids"]
    command = [sys.executable, "-c", LOAD, str(tmp_path / "student"), json.dumps(ids.tolist())]
    environment = {"HF_HOME": str(tmp_path / "home"), "PATH": "", "HF_HUB_OFFLINE": "1"}
    finished = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment)
    assert finished.returncode == 0, finished.stderr
    assert torch.allclose(torch.tensor(json.loads(finished.stdout)), student(input_ids=ids).logits, atol=1e-6)
    for name in ("big_bird", "nas_big_bird"):
        del FAMILIES[name]
    assert family_of(load_config(str(tmp_path / "student"), students=True)).students_of == "big_bird"
    with pytest.raises(FamilyError, match="encoders of type 'gpt2' are not supported"):
        family_of(CONFIG_MAPPING["gpt2"]())


@pytest.mark.parametrize(
    ("model_type", "said"),
    [
        ("deberta", "there is no module 'encoder.layer.0.attention.self.query'"),
        ("roformer", "unlike bert"),
        ("esm", "type_vocab_size must be a whole number"),
        ("gpt2", "unlike bert"),
    ],
)
def test_other_types(model_type: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    extra = {"position_embedding_type": "absolute", "mask_token_id": 3} if model_type == "esm" else {}
    folder = saved(tmp_path, model_type, **extra)
    assert main([str(folder)]) == 2
    error = capsys.readouterr().err
    assert f"is of type {model_type!r}, which is built like no supported type" in error and said in error
    assert set(FAMILIES) == SHIPPED


def test_no_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path)]) == 2
    assert "no model at" in capsys.readouterr().err
