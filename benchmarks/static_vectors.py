"""MiniLM as a sentence encoder beside static vectors that model2vec derives from it without any text, and beside
folders of students: what they retrieve, and how long a query takes.

It needs `pip install 'model2vec[distill]'`. The retrieval sets and the most tokens of a text are those of the benchmark
sentence_encoders. Milliseconds are medians over all queries, encoded one at a time in PyTorch, tokenization included.
"""

from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np

from benchmarks.common import BenchmarkError, Report, timed
from benchmarks.sentence_encoders import LENGTH, MINILM, texts_and_sets
from distill.training.run import TEACHER
from distill.training.teacher import locate
from nas.compress.retrieval import METRICS, Pairs, beside_teacher, contributions

# Encodes N texts as unit vectors (N, D).
Encode = Callable[[list[str]], np.ndarray]


def add_options(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--squad", type=Path, required=True, metavar="DIR", help="train*.json and dev*.json of SQuAD 1.1"
    )
    parser.add_argument(
        "--dims", type=int, nargs="+", default=[256], help="dimensions of the static vectors; default: 256"
    )
    parser.add_argument("--students", nargs="*", default=[], metavar="DIR", help="folders of sentence-transformers")


def run(options: Namespace, report: Report) -> None:
    static = {f"model2vec, {dims}": _static(locate(MINILM), dims) for dims in options.dims}
    students = {Path(folder).name: _encoder(folder) for folder in options.students}
    encoders = {TEACHER: _encoder(locate(MINILM)), **static, **students}
    _, sets = texts_and_sets(options.squad)
    found = {title: beside_teacher(retrieved(pairs, encoders), METRICS) for title, pairs in sets}
    queries = [query for _, pairs in sets for query in pairs.queries]
    speeds = {
        name: 1e3 * median(timed(partial(encode, [query]))[1] for query in queries) for name, encode in encoders.items()
    }
    report.save({"retrieval": found, "milliseconds": speeds})
    rows = []
    for title, by_encoder in found.items():
        for name, metrics in by_encoder.items():
            ndcg = metrics["ndcg@10"]
            difference = ndcg.get("difference")
            cell = f"{difference['value']:+.4f} ± {difference['standard_error']:.4f}" if difference else ""
            rows.append((title, name, f"{ndcg['value']:.4f}", cell, f"{speeds[name]:.2f}"))
    report.table(("set", "vectors", "nDCG@10", "to the teacher's", "ms a query"), rows)


def _encoder(folder: str) -> Encode:
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(folder, device="cpu")
    model.max_seq_length = LENGTH
    return partial(model.encode, normalize_embeddings=True, show_progress_bar=False)


def _static(folder: str, dims: int) -> Encode:
    try:
        from model2vec.distill import distill
    except ImportError as error:
        raise BenchmarkError(f"this needs model2vec: pip install 'model2vec[distill]' ({error})") from error
    model = distill(folder, pca_dims=dims)

    def encode(texts: list[str]) -> np.ndarray:
        vectors_ND = np.asarray(model.encode(texts, max_length=LENGTH), dtype=np.float32)
        return vectors_ND / np.maximum(np.linalg.norm(vectors_ND, axis=1, keepdims=True), 1e-12)

    return encode


def retrieved(pairs: Pairs, encoders: dict[str, Encode]) -> dict[str, np.ndarray]:
    """The metrics of each query, (Q, 3), by encoder."""
    return {
        name: contributions(encode([*pairs.queries]), encode([*pairs.passages]), pairs.answers)
        for name, encode in encoders.items()
    }
