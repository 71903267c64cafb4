"""The retrieval metrics are those of sentence-transformers."""

import json
from pathlib import Path

import numpy as np
import pytest

from distill.tasks.readers.tables import TableError
from nas.compress.retrieval import contributions, pairs_of
from tests import requirements


def test_metrics_of_sentence_transformers() -> None:
    requirements.module("sentence_transformers", "demo")
    from sentence_transformers.sentence_transformer.evaluation import InformationRetrievalEvaluator

    random = np.random.default_rng(0)
    queries, passages = random.normal(size=(30, 6)), random.normal(size=(40, 6))
    answers = [frozenset(random.choice(40, size=size, replace=False).tolist()) for size in [1, 2, 15] * 10]
    named = {str(query): {str(passage) for passage in right} for query, right in enumerate(answers)}
    texts = {name: name for name in named}, {str(passage): str(passage) for passage in range(40)}
    evaluator = InformationRetrievalEvaluator(
        *texts, named, ndcg_at_k=[10], mrr_at_k=[10], precision_recall_at_k=[10], accuracy_at_k=[10], map_at_k=[10]
    )
    products = queries @ passages.T
    ranked = [
        [{"corpus_id": str(passage), "score": products[query][passage]} for passage in range(40)] for query in range(30)
    ]
    expected = evaluator.compute_metrics(ranked)
    found = contributions(queries, passages, answers).mean(axis=0)
    names = ("ndcg@k", "mrr@k", "recall@k")
    np.testing.assert_allclose(found, [expected[name][10] for name in names], atol=1e-12)


def test_pairs(tmp_path: Path) -> None:
    rows = [("one?", "first"), ("two?", "second"), ("one?", "third"), ("two?", "second")]
    file = tmp_path / "pairs.jsonl"
    file.write_text("\n".join(json.dumps({"query": query, "passage": passage}) for query, passage in rows))
    pairs = pairs_of(file)
    assert pairs.queries == ("one?", "two?") and pairs.passages == ("first", "second", "third")
    assert pairs.answers == ({0, 2}, {1})
    file.write_text('{"question": "one?", "passage": "first"}')
    with pytest.raises(TableError, match="query"):
        pairs_of(file)
