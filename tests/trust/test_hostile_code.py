"""Code in a checkpoint's folder or in a pickle is never run by this package, whatever the files say of it."""

import json
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
from tests.tiny import saved
from tests.trust.checkpoints import changed

BASE = Base(depth=1, width=8, heads=2, inner=16, vocabulary=50, positions=32, token_types=2)

# What a command line does with each checkpoint first: its configuration, its tokenizer, its weights with a head.
LOAD = """
import json, sys
from distill.training.teacher import TeacherError, load_model, load_tokenizer
said = {}
for folder in sys.argv[1:]:
    try:
        load_tokenizer(folder)
        said[folder] = type(load_model(folder, ("no", "yes"))).__module__
    except TeacherError as error:
        said[folder] = str(error)
print(json.dumps(said))
"""


def make_hostile(folder: Path) -> Path:
    """An exported student whose code leaves a trace beside its folder when it runs."""
    saved(build(Architecture.uniform(BASE)), folder)
    Architecture.uniform(BASE).save(folder / "architecture.json")
    sources = sorted(folder.glob("*.py"))
    assert "modeling_nas_bert.py" in [source.name for source in sources]
    for source in sources:
        source.write_text(f"open({str(folder.parent / 'trace')!r}, 'w').close()\n{source.read_text()}")
    return folder


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    return make_hostile(tmp_path / "student")


def test_checkpoints_with_code(tmp_path: Path) -> None:
    """A process that answers yes to all questions loads a student by our classes, and refuses the others: of another
    type, whose weights are not those of a BERT or which is unknown, and with pickled weights.
    """
    names = ("student", "bert", "nas_bert_2", "roberta", "tokenizer", "pickled")
    folders = {name: make_hostile(tmp_path / name) for name in names}
    for name in ("bert", "nas_bert_2", "roberta"):
        changed(folders[name] / "config.json", model_type=name)
    (folders["tokenizer"] / "tokens.py").write_text(
        f"open({str(tmp_path / 'trace')!r}, 'w').close()\nclass Tokens: ...\n"
    )
    auto_map = {"AutoTokenizer": ["tokens.Tokens", "tokens.Tokens"]}
    changed(folders["tokenizer"] / "tokenizer_config.json", auto_map=auto_map)
    (folders["pickled"] / "model.safetensors").unlink()
    torch.save({"weights": Trap(tmp_path / "trace")}, folders["pickled"] / "pytorch_model.bin")
    command = [sys.executable, "-c", LOAD, *map(str, folders.values())]
    process = subprocess.run(command, capture_output=True, text=True, input="y\n" * 100)
    assert process.returncode == 0, process.stderr
    assert "traceback" not in process.stderr.lower()
    assert not (tmp_path / "trace").exists()
    said = {name: json.loads(process.stdout)[str(folder)] for name, folder in folders.items()}
    assert said["student"] == "distill.encoders.student.modeling_nas_bert"
    assert all(str(folders[name]) in said[name] for name in ("bert", "nas_bert_2", "roberta"))
    assert "which transformers does not have, and its folder brings code" in said["nas_bert_2"]
    assert said["tokenizer"]
    assert "which could run code and is not read" in said["pickled"]
    torch.load(folders["pickled"] / "pytorch_model.bin", weights_only=False)
    assert (tmp_path / "trace").exists()  # the trap works


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
