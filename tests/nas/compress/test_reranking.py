"""`python -m nas.compress --reranking`: from a folder of a CrossEncoder to another one."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr
from transformers import AutoTokenizer

from distill.tasks.readers.tables import TableError
from distill.training.reranker import check_reranker, is_reranker, keep_activation
from distill.training.teacher import load_config, load_model
from nas.compress.command import main
from nas.compress.python import Compressed, compress_model
from nas.compress.retrieval import pairs_of
from nas.config.load import load_config as load_preset
from nas.evaluation.trained import TrainedEvaluator
from nas.export.command import main as export
from nas.onnx.model import OnnxModel
from nas.preparation.prepare import prepare
from tests import requirements
from tests.commands import Refused, run
from tests.nas.tiny_study import TinyStudy, corpus, uniform
from tests.sentences import encoder, save_reranker
from tests.tiny import inputs

TEXTS = list(dict.fromkeys(corpus().texts))[:300]
# Each query with five passages, of which the first one is right.
QUERIES = [" ".join(text.split()[:2]) for text in TEXTS[::5]]
ROWS = [
    {"query": query, "passage": TEXTS[number], "relevant": int(number == 5 * place)}
    for place, query in enumerate(QUERIES)
    for number in range(5 * place, 5 * place + 5)
]
HELD_OUT = [row for row in ROWS if row["query"] in list(dict.fromkeys(QUERIES))[9::10]]
LIMITS = ["--max-params", "12000", "--max-length", "24", "--device", "cpu", "--quiet"]


cross_encoder = partial(encoder, kind="CrossEncoder")


def write(file: Path, rows: list[dict[str, Any]]) -> Path:
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return file


@pytest.fixture(scope="module")
def teacher(shared_study: TinyStudy, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random CrossEncoder without a sigmoid."""
    folder = tmp_path_factory.mktemp("rerankers") / "teacher"
    save_reranker(shared_study, folder)
    return folder


@pytest.fixture(scope="module")
def student(study_cache: None, teacher: Path) -> Path:
    """The teacher with two thirds of its parameters."""
    out, pairs = teacher.with_name("student"), write(teacher.with_name("pairs.jsonl"), ROWS)
    words = ["--reranking", pairs, "--retrieval", pairs, *LIMITS, "--steps", "30", "--out", out]
    assert run(main, teacher, *words) == 0
    return out


def test_the_folder_is_one_of_a_cross_encoder(teacher: Path, student: Path) -> None:
    """Its scores have the correlation with the teacher's that metrics.json says."""
    given, made = cross_encoder(teacher), cross_encoder(student, trust_remote_code=True)
    assert isinstance(made.activation_fn, torch.nn.Identity) and made.max_seq_length == given.max_seq_length == 24
    pairs = [(row["query"], row["passage"]) for row in HELD_OUT]
    scores = [model.predict(pairs, show_progress_bar=False) for model in (made, given)]
    metrics = json.loads((student / "metrics.json").read_text())
    assert metrics["dev_rows"] == len(HELD_OUT) and metrics["metrics"] == ["spearmanr", "pearson"]
    value, precise = metrics["models"]["student"]["spearmanr"]["value"], metrics["precision"] == "no"
    assert value == pytest.approx(spearmanr(*scores).statistic, abs=1e-3 if precise else 0.05)
    assert metrics["models"]["teacher"]["spearmanr"]["value"] == pytest.approx(1)
    assert 0.5 < value < 1 and metrics["models"]["student"]["params"] <= 12_000


def test_the_ranking_is_measured_as_sentence_transformers_does(teacher: Path, student: Path) -> None:
    requirements.module("sentence_transformers", "demo")
    from sentence_transformers.cross_encoder.evaluation import CrossEncoderRerankingEvaluator

    lists: dict[str, dict[str, Any]] = {}
    for row in ROWS:
        sample = lists.setdefault(row["query"], {"query": row["query"], "positive": [], "negative": []})
        sample["positive" if row["relevant"] else "negative"].append(row["passage"])
    evaluator = CrossEncoderRerankingEvaluator(list(lists.values()), show_progress_bar=False)
    found = json.loads((student / "metrics.json").read_text())["retrieval"]
    assert set(found) == {"teacher", "student"} and "difference" in found["student"]["ndcg@10"]
    for name, folder in (("teacher", teacher), ("student", student)):
        expected = evaluator(cross_encoder(folder, trust_remote_code=True))
        for metric in ("ndcg@10", "mrr@10"):
            assert found[name][metric]["value"] == pytest.approx(expected[metric], abs=0.02)
        assert set(found[name]) == {"ndcg@10", "mrr@10"}


def test_an_ordinary_checkpoint(student: Path, tmp_path: Path) -> None:
    """It needs no code, and has the same scores; so does ONNX. The card is that of a reranker."""
    requirements.module("onnxruntime", "onnx")
    out = tmp_path / "ordinary"
    assert run(export, student, "--out", out, "--as", "bert", "--onnx", "--skip-latency", "--quiet") == 0
    pairs = [(row["query"], row["passage"]) for row in HELD_OUT]
    expected, own = (cross_encoder(of, trust_remote_code=True).predict(pairs) for of in (out, student))
    np.testing.assert_allclose(own, expected, atol=1e-4)
    tokenizer: Any = AutoTokenizer.from_pretrained(out)
    given = tokenizer(*map(list, zip(*pairs, strict=True)), return_tensors="pt", padding=True, truncation=True)
    (logits,) = OnnxModel(out / "onnx" / "model.onnx").run(inputs(given))
    np.testing.assert_allclose(logits[:, 0], expected, atol=1e-4)
    card = (out / "README.md").read_text()
    assert "pipeline_tag: text-ranking" in card and "library_name: sentence-transformers" in card
    assert 'model = CrossEncoder("ordinary")' in card and not list(out.glob("*.py"))


def test_in_python(teacher: Path) -> None:
    """Without labels; the passages of a query are on one side of the split."""
    columns: dict[str, Any] = {"text": "query", "pair": "passage", "reranking": True}
    result = compress_model(str(teacher), ROWS, **columns, max_params=12_000, max_length=24, steps=2, device="cpu")
    result.save(teacher.with_name("python"))
    assert is_reranker(Compressed.load(teacher.with_name("python")).student.config)
    assert result.metrics["dev_rows"] == len(HELD_OUT)
    with pytest.raises(
        ValueError, match="reranking scores pairs of a query and a passage: name the column of passages"
    ):
        compress_model(str(teacher), ROWS, text="query", reranking=True, max_params=12_000)


def test_a_candidate_of_a_search(teacher: Path, shared_study: TinyStudy, tmp_path: Path) -> None:
    """With a margin; its score is the correlation with what the teacher says of the held-out queries."""
    files = [write(tmp_path / f"{name}.jsonl", rows) for name, rows in (("train", ROWS), ("dev", HELD_OUT))]
    rows = {"train": str(files[0]), "dev": str(files[1]), "text": "query", "pair": "passage", "reranking": True}
    changes = {"objective": {"name": "reranking", "margin": 1.0}, "finetune.steps": 0, "teacher": str(teacher)}
    workspace = prepare(
        load_preset(str(shared_study.preset), {"tasks": ["pairs"], "rows": {"pairs": rows}, **changes}), "cpu"
    )
    search, train = (workspace.folders.rows(name) for name in ("search", "train"))
    assert search.groups is not None and train.groups is not None and len(search) + len(train) == len(ROWS)
    assert len(search) % 5 == len(train) % 5 == 0
    evaluator = TrainedEvaluator(workspace, "cpu")
    assert evaluator.score(evaluator.teacher()).value == pytest.approx(1, abs=1e-6)
    assert -1 < evaluator.evaluate(uniform(workspace), 0).value < 1


def test_activations_of_former_versions(teacher: Path, tmp_path: Path) -> None:
    """They are in config.json."""
    config = load_config(str(teacher))
    assert load_model(str(teacher), (), "regression", new_head=False).config.sentence_transformers == {
        "activation_fn": "torch.nn.modules.linear.Identity"
    }
    config.sbert_ce_default_activation_function = "torch.nn.modules.linear.Identity"
    keep_activation(str(tmp_path), config)
    assert config.sentence_transformers == {"activation_fn": "torch.nn.modules.linear.Identity"}
    plain = load_config(str(teacher.with_name("plain")))
    keep_activation(str(teacher.with_name("plain")), plain)
    assert not is_reranker(plain)


def test_models_that_are_no_rerankers(shared_study: TinyStudy, tmp_path: Path, refused: Refused) -> None:
    for rows, message in (
        (ROWS, "is no reranker: it has 2 outputs; one score of a pair is needed"),
        (ROWS[:20], "different texts in the column 'query' are too few to hold every tenth out"),
    ):
        words = ["--out", tmp_path / "out", "--reranking", write(tmp_path / "pairs.jsonl", rows), *LIMITS]
        assert message in refused(main, shared_study.teacher, *words)


def test_passages_to_rank(tmp_path: Path) -> None:
    pairs = pairs_of(write(tmp_path / "a.jsonl", [*ROWS[:7], ROWS[0]]), ranked=True)
    assert pairs.ranked == ((0, 1, 2, 3, 4), (5, 6)) and pairs.answers == (frozenset({0}), frozenset({5}))
    assert pairs.texts()[0] == [row["query"] for row in ROWS[:7]]
    for kind in (float, bool, str, np.float32, torch.tensor):
        rows = [{**row, "relevant": kind(row["relevant"])} for row in (*ROWS[:7], ROWS[0])]
        assert pairs_of(rows, ranked=True) == pairs
    with pytest.raises(TableError, match=r"b.jsonl:1 has '2' in the column 'relevant', which is not 0 or 1"):
        pairs_of(write(tmp_path / "b.jsonl", [{**ROWS[0], "relevant": 2}]), ranked=True)
    with pytest.raises(TableError, match="retrieval: row 2 has 'None' in the column 'relevant', which is not 0 or 1"):
        pairs_of([ROWS[0], {"query": "a", "passage": "b"}], ranked=True)
    with pytest.raises(TableError, match="no column 'relevant'"):
        pairs_of(write(tmp_path / "c.jsonl", [{"query": "a", "passage": "b"}]), ranked=True)


def test_a_prompt_before_every_query(
    teacher: Path, shared_study: TinyStudy, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """sentence-transformers puts it there where nothing else is said; other prompts only on request."""
    pairs = [(row["query"], row["passage"]) for row in ROWS[:6]]
    asked = [(f"ba do {query}", passage) for query, passage in pairs]
    plain, files = cross_encoder(teacher).predict(pairs), write(tmp_path / "pairs.jsonl", ROWS)
    for default in (None, "query"):
        folder = tmp_path / f"{default}"
        cross_encoder(teacher, prompts={"query": "ba do "}, default_prompt_name=default).save(str(folder))
        expected = plain if default is None else cross_encoder(teacher).predict(asked)
        np.testing.assert_allclose(cross_encoder(folder).predict(pairs), expected, atol=1e-6)
    check_reranker(str(tmp_path / "None"), load_config(str(tmp_path / "None")))
    words = [folder, "--reranking", files, *LIMITS, "--out", tmp_path / "out"]
    assert main([str(word) for word in words]) == 2
    said = capsys.readouterr().err
    assert "puts 'ba do ' before every query, as default_prompt_name in its config_sentence_transformers.json" in said
