"""How well a student and its teacher find passages for queries, each alone and the student's queries among the
teacher's passages.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from accelerate import Accelerator

from distill.encoders.family import family_of
from distill.memory import rows_of
from distill.table import Column, Table, difference, with_error
from distill.tasks.encoding import encode_sentences
from distill.tasks.metrics import NEAREST, Metric, paired_difference
from distill.tasks.readers.tables import read_columns
from distill.tasks.types import EMBEDDINGS
from distill.training.evaluation import rows_logits
from distill.training.run import TEACHER
from distill.training.sentences import compares_by_products, prompts_of
from distill.training.teacher import load_model, load_tokenizer, locate
from nas.compress.rows import text_column
from nas.final.run import STUDENT

# The student's queries and the teacher's passages.
ASYMMETRIC = "student's queries, teacher's passages"
METRICS = (f"ndcg@{NEAREST}", f"mrr@{NEAREST}", f"recall@{NEAREST}")
# The metrics are means over the queries.
MEAN = Metric(lambda predictions, references, labels: predictions)
# Queries whose similarities with all passages are in memory at once.
CHUNK = 500


@dataclass(frozen=True)
class Pairs:
    """Queries with the numbers of the passages that answer each of them."""

    queries: tuple[str, ...]
    passages: tuple[str, ...]
    answers: tuple[frozenset[int], ...]


def pairs_of(data: Any) -> Pairs:
    """The pairs in the columns `query` and `passage` of a file or of rows in memory; a query may have several passages.

    Raises:
        distill.tasks.readers.tables.TableError, distill.memory.RowsError: there are no such columns, or the file cannot
            be read.
    """
    if isinstance(data, str | Path):
        columns = read_columns(Path(data), ["query", "passage"])
    else:
        rows = rows_of(data, "retrieval", ())
        columns = {name: text_column(rows, "retrieval", name) for name in ("query", "passage")}
    numbers = {passage: number for number, passage in enumerate(dict.fromkeys(columns["passage"]))}
    answers: dict[str, set[int]] = {}
    for query, passage in zip(columns["query"], columns["passage"], strict=True):
        answers.setdefault(query, set()).add(numbers[passage])
    return Pairs(tuple(answers), tuple(numbers), tuple(map(frozenset, answers.values())))


def contributions(queries_QD: np.ndarray, passages_PD: np.ndarray, answers: Sequence[frozenset[int]]) -> np.ndarray:
    """Of each query its nDCG, reciprocal rank and recall among the `NEAREST` passages with the largest products:
    (Q, 3), in the order of `METRICS`.
    """
    count = min(NEAREST, len(passages_PD))
    discounts = 1 / np.log2(np.arange(2, NEAREST + 2))
    rows = []
    for start in range(0, len(queries_QD), CHUNK):
        products_MP = queries_QD[start : start + CHUNK] @ passages_PD.T
        best_MK = np.argsort(-products_MP, axis=1, kind="stable")[:, :count]
        for best_K, right in zip(best_MK.tolist(), answers[start : start + CHUNK], strict=True):
            hits = np.array([passage in right for passage in best_K])
            gain = float((hits * discounts[:count]).sum()) / float(discounts[: min(len(right), NEAREST)].sum())
            rank = 1 / (1 + int(hits.argmax())) if hits.any() else 0.0
            rows.append((gain, rank, hits.sum() / len(right)))
    return np.array(rows)


def measure_retrieval(
    pairs: Pairs, teacher: str, student: str, max_length: int, accelerator: Accelerator
) -> dict[str, dict[str, Any]]:
    """For teacher, student and `ASYMMETRIC` the metrics with their standard errors, and for the latter two the paired
    differences to the teacher's.

    Args:
        teacher, student: their folders or names.
        max_length: queries and passages are cut to this many tokens, and to the teacher's positions.
    """
    prompts = prompts_of(locate(teacher))
    found = {
        name: [
            _vectors(source, [prompt + text for text in texts], max_length, accelerator)
            for prompt, texts in zip(prompts, (pairs.queries, pairs.passages), strict=True)
        ]
        for name, source in ((TEACHER, teacher), (STUDENT, student))
    }
    found[ASYMMETRIC] = [found[STUDENT][0], found[TEACHER][1]]
    rows = {name: contributions(vectors[0], vectors[1], pairs.answers) for name, vectors in found.items()}
    result: dict[str, dict[str, Any]] = {}
    for name, rows_Q3 in rows.items():
        result[name] = {}
        for metric, of_model_Q, of_teacher_Q in zip(METRICS, rows_Q3.T, rows[TEACHER].T, strict=True):
            result[name][metric] = asdict(MEAN.of_contributions(of_model_Q))
            if name != TEACHER:
                of_pairs = paired_difference(MEAN, of_model_Q, of_teacher_Q)
                result[name][metric]["difference"] = {"to": TEACHER, **asdict(of_pairs)}
    return result


def _vectors(source: str, texts: Sequence[str], max_length: int, accelerator: Accelerator) -> np.ndarray:
    """The vectors (N, D), of length 1 unless the encoder compares by products."""
    model, tokenizer = load_model(source, (), EMBEDDINGS, new_head=False), load_tokenizer(source)
    length = min(max_length, family_of(model).positions(model.config))
    rows = encode_sentences(tokenizer, texts, None, length, task_type=EMBEDDINGS)
    vectors_ND = rows_logits(model, rows, tokenizer.pad_token_id, accelerator)
    if compares_by_products(locate(source)):
        return vectors_ND
    return vectors_ND / np.maximum(np.linalg.norm(vectors_ND, axis=1, keepdims=True), 1e-12)


def retrieval_table(metrics: Mapping[str, Any]) -> Table:
    """The measurements in metrics.json as a table, with the paired differences of the first metric."""
    first = METRICS[0]
    columns = (
        Column("vectors", is_text=True),
        *(Column(name, lambda row: with_error((row["value"], row["standard_error"]))) for name in METRICS),
        Column(f"{first} − {TEACHER}'s", lambda row: difference((row["value"], row["standard_error"]))),
    )
    rows = [
        (name, *(row[metric] for metric in METRICS), row[first].get("difference"))
        for name, row in metrics["retrieval"].items()
    ]
    return Table(columns, rows, f"{metrics['queries']:,} queries, {metrics['passages']:,} passages")
