"""Code in a checkpoint's folder or in a pickle is never run by this package, whatever the files say of it."""

import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow
import pytest
import torch
from pyarrow import parquet

from distill.tasks.readers.tables import read_rows
from search_spaces import Architecture, Base
from supernet.build import build
from supernet.student import main
from tests.trust.checkpoints import WORDS, changed, save_tokenizer

BASE = Base(depth=1, width=8, heads=2, inner=16, vocabulary=len(WORDS), positions=32, token_types=2)

# What a command line does with a checkpoint first: its configuration, its tokenizer, its weights with a head.
LOAD = """
import sys
from distill.training.teacher import TeacherError, load_model, load_tokenizer
try:
    load_tokenizer(sys.argv[1])
    print(type(load_model(sys.argv[1], ("no", "yes"))).__module__)
except TeacherError as error:
    print(error)
"""


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    """An exported student whose code leaves a trace when it runs."""
    folder = tmp_path / "student"
    build(Architecture.uniform(BASE), "classification").save_pretrained(folder)
    Architecture.uniform(BASE).save(folder / "architecture.json")
    save_tokenizer(folder)
    sources = sorted(folder.glob("*.py"))
    assert "modeling_nas_bert.py" in [source.name for source in sources]
    for source in sources:
        source.write_text(f"open({str(tmp_path / 'trace')!r}, 'w').close()\n{source.read_text()}")
    return folder


def loaded(folder: Path) -> str:
    """Load a checkpoint in a process that answers yes to all questions."""
    process = subprocess.run(
        [sys.executable, "-c", LOAD, str(folder)], capture_output=True, text=True, input="y\n" * 100
    )
    assert process.returncode == 0, process.stderr
    assert "traceback" not in process.stderr.lower()
    assert not (folder.parent / "trace").exists()
    return process.stdout


def test_a_student_is_loaded_by_our_classes(hostile: Path) -> None:
    assert loaded(hostile) == "supernet.model.modeling_nas_bert\n"


@pytest.mark.parametrize("model_type", ["bert", "nas_bert_2", "roberta"])
def test_code_under_another_type(hostile: Path, model_type: str) -> None:
    """It is refused: the weights are not those of a BERT, and other types are unknown."""
    changed(hostile / "config.json", model_type=model_type)
    assert str(hostile) in loaded(hostile)


def test_code_of_a_tokenizer(hostile: Path) -> None:
    (hostile / "tokens.py").write_text(f"open({str(hostile.parent / 'trace')!r}, 'w').close()\nclass Tokens: ...\n")
    changed(hostile / "tokenizer_config.json", auto_map={"AutoTokenizer": ["tokens.Tokens", "tokens.Tokens"]})
    assert loaded(hostile)


def test_code_of_a_student_to_be_like(hostile: Path, tmp_path: Path) -> None:
    Architecture.uniform(BASE).save(tmp_path / "wanted.json")
    assert not main([str(tmp_path / "wanted.json"), "--like", str(hostile), "--out", str(tmp_path / "out")])
    assert not (tmp_path / "trace").exists()
    assert "trace" not in (tmp_path / "out" / "modeling_nas_bert.py").read_text()


class Trap:
    """Leaves a trace when it is unpickled."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.trace,)


def test_pickled_weights(hostile: Path, tmp_path: Path) -> None:
    """They are refused, as nothing but tensors is read from pickles."""
    (hostile / "model.safetensors").unlink()
    torch.save({"weights": Trap(tmp_path / "trace")}, hostile / "pytorch_model.bin")
    assert "which could run code and is not read" in loaded(hostile)
    torch.load(hostile / "pytorch_model.bin", weights_only=False)
    assert (tmp_path / "trace").exists()  # the trap works


def test_pickled_types_of_columns(tmp_path: Path) -> None:
    """pyarrow once unpickled the types of columns with this name."""
    kind = {"ARROW:extension:name": "arrow.py_extension_type"}
    kind["ARROW:extension:metadata"] = pickle.dumps(Trap(tmp_path / "trace"), protocol=0).decode("latin-1")
    fields = [pyarrow.field(name, pyarrow.string(), metadata=kind) for name in ("sentence", "label")]
    rows = pyarrow.table([["one", "two"], ["yes", "no"]], schema=pyarrow.schema(fields))
    parquet.write_table(rows, tmp_path / "rows.parquet")
    split, labels = read_rows(tmp_path / "rows.parquet", "sentence", "label")
    assert (split.texts, set(labels)) == (("one", "two"), {"yes", "no"})
    assert not (tmp_path / "trace").exists()
