"""How well a student and its teacher find passages for queries. Sentence encoders search all passages: each model
alone, and the student's queries in the teacher's index. Rerankers sort the passages that are given for each query.
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
from distill.tasks.metrics import MEAN, NEAREST, paired_difference
from distill.tasks.readers.tables import TableError, read_columns
from distill.tasks.types import EMBEDDINGS, REGRESSION
from distill.training.evaluation import rows_logits
from distill.training.run import TEACHER
from distill.training.sentences import compares_by_products, prompts_of
from distill.training.teacher import load_model, load_tokenizer, locate
from foundation.errors import shortened
from nas.compress.rows import text_column
from nas.final.run import STUDENT

# The student's queries and the teacher's passages.
ASYMMETRIC = "student's queries, teacher's passages"
METRICS = (f"ndcg@{NEAREST}", f"mrr@{NEAREST}", f"recall@{NEAREST}")
# Of the passages to rank, recall is the same for all rerankers if there are no more than `NEAREST`.
OF_RERANKERS = METRICS[:2]
# How files and libraries write whether a passage answers a query.
RELEVANT = {"0": False, "0.0": False, "False": False, "1": True, "1.0": True, "True": True}
# Queries whose similarities with all passages are in memory at once.
CHUNK = 500


@dataclass(frozen=True)
class Pairs:
    """Queries with the numbers of the passages that answer each of them.

    Attributes:
        ranked: the numbers of the passages that a reranker ranks for each query; None: all are searched.
    """

    queries: tuple[str, ...]
    passages: tuple[str, ...]
    answers: tuple[frozenset[int], ...]
    ranked: tuple[tuple[int, ...], ...] | None = None

    def texts(self) -> tuple[list[str], list[str] | None]:
        """The texts that are encoded: all alone, or each query with each of its passages."""
        if self.ranked is None:
            return [*self.queries, *self.passages], None
        pairs = list(zip(self.queries, self.ranked, strict=True))
        return [query for query, some in pairs for _ in some], [self.passages[one] for _, some in pairs for one in some]


def pairs_of(data: Any, ranked: bool = False) -> Pairs:
    """The pairs in the columns `query` and `passage` of a file or of rows in memory; a query may have several passages.

    Args:
        ranked: whether these are the passages to rank; the column `relevant` is 1 for answers and 0 for the others.

    Raises:
        distill.tasks.readers.tables.TableError, distill.memory.RowsError: there are no such columns, or the file cannot
            be read.
    """
    names = ["query", "passage", *(["relevant"] if ranked else [])]
    if isinstance(data, str | Path):
        columns = read_columns(Path(data), names, {"relevant": _relevant})
    else:
        rows = rows_of(data, "retrieval", ())
        columns = {name: text_column(rows, "retrieval", name) for name in names[:2]}
        if ranked:
            cells = (row.get("relevant") for row in rows)
            columns["relevant"] = [
                _relevant(f"retrieval: row {row}", "relevant", cell) for row, cell in enumerate(cells, 1)
            ]
    numbers = {passage: number for number, passage in enumerate(dict.fromkeys(columns["passage"]))}
    passages: dict[str, dict[int, bool]] = {}
    relevant = columns.get("relevant", [True] * len(columns["query"]))
    for query, passage, answers in zip(columns["query"], columns["passage"], relevant, strict=True):
        passages.setdefault(query, {})[numbers[passage]] = answers
    right = (frozenset(number for number, answers in some.items() if answers) for some in passages.values())
    return Pairs(
        tuple(passages), tuple(numbers), tuple(right), tuple(map(tuple, passages.values())) if ranked else None
    )


def _relevant(place: str, column: str, cell: Any) -> bool:
    value = str(cell.item() if hasattr(cell, "item") else cell).strip()
    if value not in RELEVANT:
        raise TableError(f"{place} has {shortened(value)} in the column {column!r}, which is not 0 or 1")
    return RELEVANT[value]


def contributions(queries_QD: np.ndarray, passages_PD: np.ndarray, answers: Sequence[frozenset[int]]) -> np.ndarray:
    """Of each query its nDCG, reciprocal rank and recall among the `NEAREST` passages with the largest products:
    (Q, 3), in the order of `METRICS`.
    """
    count = min(NEAREST, len(passages_PD))
    rows = []
    for start in range(0, len(queries_QD), CHUNK):
        products_MP = queries_QD[start : start + CHUNK] @ passages_PD.T
        best_MK = np.argsort(-products_MP, axis=1, kind="stable")[:, :count]
        rows += [
            _of_ranking(*ranking) for ranking in zip(best_MK.tolist(), answers[start : start + CHUNK], strict=True)
        ]
    return np.array(rows)


def _of_ranking(best_K: Sequence[int], right: frozenset[int]) -> tuple[float, float, float]:
    """The nDCG, reciprocal rank and recall of the first passages of a ranking; 0 if no passage is right."""
    hits = np.array([passage in right for passage in best_K])
    if not hits.any():
        return 0.0, 0.0, 0.0
    discounts = 1 / np.log2(np.arange(2, NEAREST + 2))
    gain = float((hits * discounts[: len(hits)]).sum()) / float(discounts[: min(len(right), NEAREST)].sum())
    return gain, 1 / (1 + int(hits.argmax())), float(hits.sum() / len(right))


def measure_retrieval(
    pairs: Pairs, teacher: str, student: str, max_length: int, accelerator: Accelerator
) -> dict[str, dict[str, Any]]:
    """For teacher, student and, of sentence encoders, `ASYMMETRIC` the metrics with their standard errors, and for all
    but the teacher the paired differences to its metrics.

    Args:
        teacher, student: their folders or names.
        max_length: queries and passages are cut to this many tokens, and to the teacher's positions.
    """
    models = {TEACHER: teacher, STUDENT: student}
    if pairs.ranked is not None:
        rows = {name: _reranked(pairs, source, max_length, accelerator) for name, source in models.items()}
        return beside_teacher(rows, OF_RERANKERS)
    prompts = prompts_of(locate(teacher))
    found = {
        name: [
            _vectors(source, [prompt + text for text in texts], max_length, accelerator)
            for prompt, texts in zip(prompts, (pairs.queries, pairs.passages), strict=True)
        ]
        for name, source in models.items()
    }
    found[ASYMMETRIC] = [found[STUDENT][0], found[TEACHER][1]]
    rows = {name: contributions(vectors[0], vectors[1], pairs.answers) for name, vectors in found.items()}
    return beside_teacher(rows, METRICS)


def beside_teacher(rows: Mapping[str, np.ndarray], metrics: Sequence[str]) -> dict[str, dict[str, Any]]:
    """The metrics of each model from the contributions of the queries, (Q, 3), in the order of `METRICS`."""
    result: dict[str, dict[str, Any]] = {}
    for name, rows_Q3 in rows.items():
        result[name] = {}
        for metric, of_model_Q, of_teacher_Q in zip(metrics, rows_Q3.T, rows[TEACHER].T, strict=False):
            result[name][metric] = asdict(MEAN.of_contributions(of_model_Q))
            if name != TEACHER:
                of_pairs = paired_difference(MEAN, [(of_model_Q, of_teacher_Q)])
                result[name][metric]["difference"] = {"to": TEACHER, **asdict(of_pairs)}
    return result


def _reranked(pairs: Pairs, source: str, max_length: int, accelerator: Accelerator) -> np.ndarray:
    """As `contributions`, of the passages of each query in the order of a reranker's scores."""
    scores_N = _logits(source, *pairs.texts(), max_length, accelerator, REGRESSION)[:, 0]
    assert pairs.ranked is not None
    parts = np.split(scores_N, np.cumsum([len(some) for some in pairs.ranked])[:-1])
    best = [
        [some[place] for place in np.argsort(-scores, kind="stable")[:NEAREST]]
        for some, scores in zip(pairs.ranked, parts, strict=True)
    ]
    return np.array(list(map(_of_ranking, best, pairs.answers)))


def _logits(
    source: str, texts: Sequence[str], pairs: Sequence[str] | None, most: int, accelerator: Accelerator, task_type: str
) -> np.ndarray:
    """The outputs of a model for texts, or pairs of them, which are cut to `most` tokens and to its positions."""
    model, tokenizer = load_model(source, (), task_type, new_head=False), load_tokenizer(source, task_type)
    length = min(most, family_of(model).positions(model.config))
    rows = encode_sentences(tokenizer, texts, pairs, length, task_type=task_type)
    return rows_logits(model, rows, tokenizer.pad_token_id, accelerator)


def _vectors(source: str, texts: Sequence[str], max_length: int, accelerator: Accelerator) -> np.ndarray:
    """The vectors (N, D), of length 1 unless the encoder compares by products."""
    vectors_ND = _logits(source, texts, None, max_length, accelerator, EMBEDDINGS)
    if compares_by_products(locate(source)):
        return vectors_ND
    return vectors_ND / np.maximum(np.linalg.norm(vectors_ND, axis=1, keepdims=True), 1e-12)


def retrieval_table(measured: Mapping[str, Any]) -> Table:
    """The measurements in metrics.json as a table, with the paired differences of the first metric."""
    of_models = measured["retrieval"]
    metrics = list(of_models[TEACHER])
    first = metrics[0]
    columns = (
        Column("vectors" if ASYMMETRIC in of_models else "scores", is_text=True),
        *(Column(name, lambda row: with_error((row["value"], row["standard_error"]))) for name in metrics),
        Column(f"{first} − {TEACHER}'s", lambda row: difference((row["value"], row["standard_error"]))),
    )
    rows = [
        (name, *(row[metric] for metric in metrics), row[first].get("difference")) for name, row in of_models.items()
    ]
    return Table(columns, rows, f"{measured['queries']:,} queries, {measured['passages']:,} passages")
