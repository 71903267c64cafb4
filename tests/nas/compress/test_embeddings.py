"""`python -m nas.compress --embeddings`: from a folder of sentence-transformers to another one."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from datasets import Dataset
from pandas import DataFrame

from distill.memory import RowsError, rows_of
from distill.tasks.task import TaskError
from distill.tasks.types import get_task_type
from distill.training.loop import make_accelerator
from distill.training.teacher import load_model
from foundation.errors import UserError
from nas.compress.command import main
from nas.compress.python import Compressed, compress_model
from nas.compress.retrieval import Pairs, measure_retrieval, pairs_of
from nas.compress.rows import texts_of
from nas.export.command import main as export
from nas.onnx.model import OnnxModel
from search_spaces import Architecture, cost
from tests import requirements
from tests.commands import Refused, run
from tests.nas.tiny_study import TinyStudy, corpus
from tests.sentences import encoder, leave_case_to_sentence_transformers, names_head, save_sentence_encoder
from tests.tiny import inputs

TEXTS = list(dict.fromkeys(corpus().texts))[:300]
HELD_OUT = TEXTS[9::10]


@pytest.fixture(scope="module")
def teacher(shared_study: TinyStudy, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sentences") / "teacher"
    save_sentence_encoder(shared_study, folder)
    return names_head(folder, "BertForMaskedLM")


@pytest.fixture(scope="module")
def student(study_cache: None, teacher: Path) -> Path:
    """The teacher with two thirds of its parameters."""
    out, texts, pairs = (teacher.with_name(name) for name in ("student", "texts.txt", "pairs.jsonl"))
    texts.write_text("\n".join([*TEXTS, TEXTS[0]]))
    rows = [{"query": text.split()[0], "passage": text} for text in HELD_OUT]
    pairs.write_text("\n".join(map(json.dumps, rows)))
    words = ["--embeddings", texts, "--retrieval", pairs, "--max-params", "12000", "--max-length", "24"]
    words += ["--learning-rate", "1e-3"]
    assert run(main, teacher, *words, "--steps", "20", "--device", "cpu", "--quiet", "--out", out) == 0
    return out


def test_the_folder_is_one_of_sentence_transformers(teacher: Path, student: Path) -> None:
    """Its vectors have the cosines that metrics.json says."""
    given, made = encoder(teacher), encoder(student, trust_remote_code=True)
    assert made.max_seq_length == given.max_seq_length and made.prompts == given.prompts
    vectors = [model.encode(HELD_OUT) for model in (made, given)]
    metrics = json.loads((student / "metrics.json").read_text())
    cosine = metrics["models"]["student"]["cosine"]
    precise = metrics["precision"] == "no"
    assert cosine["value"] == pytest.approx((vectors[0] * vectors[1]).sum(axis=1).mean(), abs=1e-5 if precise else 0.01)
    assert 0.5 < cosine["value"] < 1 and metrics["models"]["teacher"]["cosine"]["value"] == pytest.approx(1)
    architecture, params = Architecture.load(student / "architecture.json"), metrics["models"]["student"]["params"]
    assert params == cost.params(architecture, 0, get_task_type("embeddings").head) <= 12_000
    assert metrics["dev_rows"] == len(HELD_OUT)
    retrieval = metrics["retrieval"]
    assert set(retrieval) == {"teacher", "student", "student's queries, teacher's passages"}
    assert "difference" in retrieval["student"]["ndcg@10"] and not (student / "config.toml").exists()


SETTINGS: dict[str, Any] = {"max_params": 12_000, "max_length": 24, "steps": 20, "learning_rate": 1e-3, "device": "cpu"}


@pytest.mark.parametrize("kind", ["object", "folder"])
def test_in_python(kind: str, teacher: Path, student: Path, tmp_path: Path) -> None:
    """The result is the command's, and is saved as a whole folder of sentence-transformers."""
    pairs = [{"query": text.split()[0], "passage": text} for text in HELD_OUT]
    given = encoder(teacher).train() if kind == "object" else teacher
    result = compress_model(given, embeddings=[*TEXTS, TEXTS[0]], retrieval=pairs, **SETTINGS)
    stored = json.loads((student / "metrics.json").read_text())
    for name in ("queries", "passages", "retrieval"):
        assert result.metrics[name] == stored[name]
    assert result.metrics["models"]["student"]["cosine"] == stored["models"]["student"]["cosine"]
    assert "student's queries" in result.table() and "student&#x27;s queries" in result._repr_html_()
    result.save(tmp_path / "saved")
    assert kind == "folder" or given.training
    vectors = [encoder(folder, trust_remote_code=True).encode(HELD_OUT) for folder in (tmp_path / "saved", student)]
    assert np.array_equal(*vectors)
    again = Compressed.load(tmp_path / "saved")
    assert again.modules == result.modules and again.modules.keys() >= {"modules.json", "1_Pooling/config.json"}


def test_sentence_transformers_lower_cases(
    shared_study: TinyStudy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is learned and measured is what it computes for texts in capital letters."""
    monkeypatch.setenv("FFN_NAS_CACHE", str(shared_study.cache))
    save_sentence_encoder(shared_study, tmp_path / "given")
    leave_case_to_sentence_transformers(tmp_path / "given")
    texts = [text.upper() for text in TEXTS]
    pairs = [{"query": text.split()[0], "passage": text} for text in texts[9::10]]
    result = compress_model(tmp_path / "given", embeddings=texts, retrieval=pairs, **SETTINGS)
    result.save(tmp_path / "student")
    folders = [tmp_path / name for name in ("given", "student")]
    vectors = [encoder(folder, trust_remote_code=True).encode(texts[9::10]) for folder in folders]
    cosine = result.metrics["models"]["student"]["cosine"]["value"]
    assert cosine == pytest.approx((vectors[0] * vectors[1]).sum(axis=1).mean(), abs=0.01)
    measured = measure_retrieval(pairs_of(pairs), *map(str, folders), 24, make_accelerator("cpu"))
    assert measured["teacher"]["mrr@10"]["value"] == result.metrics["retrieval"]["teacher"]["mrr@10"]["value"] > 0.2


def test_a_default_prompt(teacher: Path, tmp_path: Path, refused: Refused) -> None:
    shutil.copytree(teacher, tmp_path / "given")
    file = tmp_path / "given" / "config_sentence_transformers.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"default_prompt_name": "document"}))
    (tmp_path / "texts").write_text("\n".join(TEXTS))
    words = ["--embeddings", tmp_path / "texts", "--max-params", "12000", "--max-length", "24", "--device", "cpu"]
    said = refused(main, tmp_path / "given", "--out", tmp_path / "out", *words)
    assert "puts 'do: ' before every text, as default_prompt_name in its config_sentence_transformers.json says" in said


def test_texts_in_memory(tmp_path: Path) -> None:
    (tmp_path / "texts").write_text("\n".join(TEXTS))
    rows = [{"text": text} for text in TEXTS]
    table, frame = Dataset.from_list(rows), DataFrame(rows)
    for data in (TEXTS, tmp_path / "texts", rows, table, frame, iter(TEXTS), table["text"], frame["text"]):
        assert texts_of(data, "embeddings", "text") == TEXTS
    assert texts_of({*TEXTS}, "embeddings", "text") == sorted(TEXTS)
    with pytest.raises(RowsError, match="train: row 1 must be a dictionary, not str"):
        rows_of(table["text"], "train", ("text",))
    with pytest.raises(RowsError, match=r"unlabeled: has half of a character in 'a \\ud83d'"):
        texts_of([*TEXTS, "a \ud83d"], "unlabeled", "text")
    with pytest.raises(RowsError, match="embeddings: row 2 must be a text, not int; or all must be dictionaries"):
        texts_of(["a", 2], "embeddings", "text")
    with pytest.raises(RowsError, match="embeddings: row 2 must be a dictionary, not str"):
        texts_of([rows[0], "a"], "embeddings", "text")
    with pytest.raises(RowsError, match="embeddings: row 1 has no text in the column 'sentence'; it has 'text'"):
        texts_of(rows, "embeddings", "sentence")
    with pytest.raises(RowsError, match="unlabeled: 1 different texts are too few; at least 10 are needed"):
        texts_of(["a", "a ", ""], "unlabeled", "text")
    (tmp_path / "texts.csv").write_text("text,label\n" + "".join(f"{text},1\n" for text in TEXTS))
    with pytest.raises(TaskError, match=r"texts.csv: this is a table; write its texts to a .txt file"):
        texts_of(tmp_path / "texts.csv", "unlabeled", "text")
    (tmp_path / "few").write_text("\none\n\ntwo\n\none")
    with pytest.raises(RowsError, match="few: 2 different lines of text are too few; at least 10 are needed"):
        texts_of(tmp_path / "few", "unlabeled", "text")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "give one of train, unlabeled, embeddings; there are no rows"),
        ({"train": [], "embeddings": TEXTS}, "give one of train, .*; not train and embeddings"),
        ({"train": [], "retrieval": []}, "retrieval: belongs to embeddings, and cannot be combined with train"),
        ({"embeddings": TEXTS, "dev": []}, "dev: belongs to train, and cannot be combined with embeddings"),
        ({"unlabeled": TEXTS, "regression": True}, "regression: belongs to train"),
        ({"unlabeled": TEXTS, "threshold": 0.3}, "threshold: belongs to train"),
        ({"unlabeled": TEXTS, "label": "kind"}, "label: belongs to train"),
        ({"train": [], "reranking": True, "label": "kind"}, "label: a reranker's student learns its scores"),
        ({"embeddings": TEXTS, "retrieval": [{"query": "a"}]}, "retrieval: row 1 has no text in the column 'passage'"),
        ({"embeddings": TEXTS, "tokenizer": 1}, "tokenizer: a folder or name has its own; leave it out"),
    ],
)
def test_arguments_that_do_not_fit(given: dict[str, Any], said: str, teacher: Path) -> None:
    with pytest.raises(UserError, match=said):
        compress_model(teacher, **given, **SETTINGS)


def test_passages_longer_than_the_positions(teacher: Path) -> None:
    """They are cut to the teacher's positions, of which there are 32."""
    pairs = Pairs(("ba do .",), ("ba do fi " * 40, "do"), (frozenset({0}),))
    found = [
        measure_retrieval(pairs, str(teacher), str(teacher), length, make_accelerator("cpu")) for length in (32, 100)
    ]
    assert found[0] == found[1]


def test_retrieval_as_it_is_used(teacher: Path, student: Path) -> None:
    """With the prompts of queries and of passages."""
    given = encoder(teacher)
    queries = given.encode_query(list(dict.fromkeys(text.split()[0] for text in HELD_OUT)))
    passages = given.encode_document(HELD_OUT)
    ranks = (-(queries @ passages.T)).argsort(axis=1)[:, :10].tolist()
    answers: dict[str, set[int]] = {}
    for number, text in enumerate(HELD_OUT):
        answers.setdefault(text.split()[0], set()).add(number)
    recalls = [len({*best} & right) / len(right) for best, right in zip(ranks, answers.values(), strict=True)]
    metrics = json.loads((student / "metrics.json").read_text())
    assert metrics["retrieval"]["teacher"]["recall@10"]["value"] == pytest.approx(np.mean(recalls), abs=0.02)


def test_an_ordinary_checkpoint(student: Path, tmp_path: Path) -> None:
    """It needs no code, and computes the same vectors; so does ONNX, which pools itself."""
    requirements.module("onnxruntime", "onnx")
    out = tmp_path / "ordinary"
    assert run(export, student, "--out", out, "--as", "bert", "--onnx", "--skip-latency", "--quiet") == 0
    made, own = encoder(out), encoder(student, trust_remote_code=True)
    expected = made.encode(HELD_OUT)
    np.testing.assert_allclose(own.encode(HELD_OUT), expected, atol=1e-4, rtol=1e-3)
    given = inputs(made.tokenizer(HELD_OUT, return_tensors="pt", padding=True))
    given = {"token_type_ids": torch.zeros_like(given["input_ids"]), **given}
    (vectors,) = OnnxModel(out / "onnx" / "model.onnx").run(given)
    np.testing.assert_allclose(vectors, expected, atol=1e-4, rtol=1e-3)


def test_a_student_is_a_teacher(student: Path) -> None:
    model = load_model(str(student), (), "embeddings", new_head=False)
    assert model.config.sentence_pooling == {"mode": "mean", "normalize": True}


def test_a_model_that_is_no_sentence_encoder(shared_study: TinyStudy, tmp_path: Path, refused: Refused) -> None:
    (tmp_path / "texts").write_text("\n".join(TEXTS))
    words = ["--embeddings", tmp_path / "texts", "--max-params", "12000", "--max-length", "24", "--device", "cpu"]
    said = refused(main, shared_study.teacher, "--out", tmp_path / "out", *words)
    assert "is no sentence encoder: it has no modules.json" in said
