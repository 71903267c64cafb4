"""MiniLM as a sentence encoder within a fraction of its latency: the student of `nas.compress` and whole layers left
out, trained alike, by their vectors and by what they retrieve.

There are two retrieval sets: of the documentation of installed libraries, the first sentence of a text is to find what
follows it; of SQuAD, a question its paragraph. Students learn from other sentences, questions and paragraphs of both;
every tenth of these is held out, and the cosines are of those.
"""

import random
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.common import BenchmarkError, Report, squad_articles, timed
from distill.tasks.corpora import embedded_corpus
from distill.training.loop import make_accelerator
from distill.training.progress import ignore_progress
from foundation.files import scratch_folder
from nas.compress.retrieval import Pairs, measure_retrieval, pairs_of
from nas.compress.rows import write_texts
from nas.compress.run import CompressRun, best_allocation, fitted, measured_on_rows
from nas.config.load import load_config
from nas.config.schema import StudyConfig
from nas.final.run import FinalRun, train_final
from nas.planning.budget import limits_of
from nas.planning.finalists import FEWER_LAYERS
from nas.planning.stages import plan
from nas.preparation.prepare import prepare
from search_spaces import Architecture

MINILM = "sentence-transformers/all-MiniLM-L6-v2"
ALLOCATED = "allocated by nas.compress"
QUERIES, LENGTH = 500, 128
# At most so many texts of each kind to learn from.
SENTENCES, PASSAGES, QUESTIONS = 12_000, 4_000, 6_000


def add_options(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--squad", type=Path, required=True, metavar="DIR", help="train*.json and dev*.json of SQuAD 1.1"
    )
    parser.add_argument("--budget", default="0.5x", help="the student's largest latency; default: %(default)s")
    parser.add_argument(
        "--layers-budget", default="0.55x", help="the largest latency of fewer layers; default: %(default)s"
    )
    parser.add_argument("--steps", type=int, default=3000, help="of training; default: %(default)s")
    parser.add_argument("--learning-rate", type=float, default=1e-3, help="default: %(default)s")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="a new folder for the encoders")


def run(options: Namespace, report: Report) -> None:
    texts, sets = texts_and_sets(options.squad)
    report.progress(
        f"{len(texts):,} texts, {', '.join(f'{len(pairs.queries)} queries of {name}' for name, pairs in sets)}"
    )
    with scratch_folder() as folder:
        rows = {"texts": write_texts(folder, texts, None)}
        settings = {"teacher": MINILM, "tasks": ["texts"], "rows": rows, "deployment.threads": 1, "max_length": LENGTH}
        settings |= {"final.steps": options.steps, "final.learning_rate": options.learning_rate}
        config = fitted(load_config("compress-embeddings", settings | {"space.max_latency": options.budget}))
        layers = fitted(load_config("compress-embeddings", settings | {"space.max_latency": options.layers_budget}))

        allocation = CompressRun(config=config, out=options.out)
        ours, seconds = timed(lambda: best_allocation(allocation, ignore_progress, report.progress))
        results: dict[str, Any] = {"texts": len(texts), "seconds of the allocation": seconds}
        for name, each, architecture in ((ALLOCATED, config, ours), (FEWER_LAYERS, layers, _fewer_layers(layers))):
            out = options.out / name.replace(" ", "-")
            final = FinalRun(
                config=each, architecture=architecture, out=out, seed=each.seed, skip_base=True, quiet=True
            )
            metrics, seconds = timed(lambda: train_final(final, ignore_progress, report.progress))  # noqa: B023
            results[name] = {"architecture": architecture.to_json(), "seconds of the training": seconds}
            results[name] |= {key: (metrics or {})[key] for key in ("models", "dev_rows", "tokens")}
            report.save(results, seeds=[config.seed])
    accelerator = make_accelerator("cpu", config.mixed_precision)
    folders = {name: str(options.out / name.replace(" ", "-")) for name in (ALLOCATED, FEWER_LAYERS)}
    table = []
    for title, pairs in sets:
        for name, student in folders.items():
            results[name][title] = measure_retrieval(pairs, MINILM, student, LENGTH, accelerator)
        # How far one student is ahead of the other, by the same queries.
        results[f"{ALLOCATED}, to {FEWER_LAYERS}, {title}"] = measure_retrieval(
            pairs, folders[FEWER_LAYERS], folders[ALLOCATED], LENGTH, accelerator
        )
        for name in folders:
            for vectors, of in results[name][title].items():
                ndcg = of["ndcg@10"]
                less = ndcg.get("difference", {"value": 0.0, "standard_error": 0.0})
                figures = (ndcg["value"], less["value"], less["standard_error"])
                table.append([title, name, vectors, *(f"{figure:.4f}" for figure in figures)])
    report.save(results, seeds=[config.seed])
    report.table(["set", "student", "vectors", "nDCG@10", "to the teacher's", "±"], table)


def _fewer_layers(config: StudyConfig) -> Architecture:
    """Whole layers of the teacher within the configuration's latency."""
    workspace = prepare(config, "cpu")
    limits = limits_of(measured_on_rows(config, workspace), workspace, "cpu")
    baselines = {origin: one for one, origin, _ in plan(config, workspace, "1", None, limits).baselines}
    if FEWER_LAYERS not in baselines:
        raise BenchmarkError("--layers-budget: no layer fits")
    return baselines[FEWER_LAYERS]


def texts_and_sets(squad: Path) -> tuple[list[str], list[tuple[str, Pairs]]]:
    """The texts to learn from, and the retrieval sets by name."""
    shuffle = random.Random(0).shuffle
    runs = [run for run in _runs() if len(run) > 2]
    shuffle(runs)
    documentation = [(run[0], " ".join(run[1:5])) for run in runs[:QUERIES]]
    sentences = [sentence for run in runs[QUERIES:] for sentence in run]
    passages = [" ".join(run[1:5]) for run in runs[QUERIES:]]
    train, dev = _paragraphs(squad, "train"), _paragraphs(squad, "dev")
    shuffle(dev)
    questions = [(questions[0], paragraph) for paragraph, questions in dev if questions][:QUERIES]
    asked = [question for _, several in train for question in several]
    for texts in (sentences, passages, asked):
        shuffle(texts)
    chosen = [*sentences[:SENTENCES], *passages[:PASSAGES], *asked[:QUESTIONS], *(paragraph for paragraph, _ in train)]
    distinct = list(dict.fromkeys(chosen))
    shuffle(distinct)
    sets = {"documentation": documentation, "SQuAD": questions}
    return distinct, [(name, _pairs(pairs)) for name, pairs in sets.items()]


def _pairs(pairs: list[tuple[str, str]]) -> Pairs:
    return pairs_of([{"query": query, "passage": passage} for query, passage in pairs])


def _runs() -> Iterator[list[str]]:
    """Sentences of the documentation that stand next to each other."""
    corpus = embedded_corpus()
    run: list[str] = []
    before = ("", 0)
    for text, document, position in zip(corpus.texts, corpus.documents, corpus.positions, strict=True):
        if (document, position - 1) != before and run:
            yield run
            run = []
        run.append(text)
        before = (document, position)
    yield run


def _paragraphs(squad: Path, split: str) -> list[tuple[str, list[str]]]:
    """The paragraphs of a split, each with its questions."""
    paragraphs = [paragraph for article in squad_articles(squad, split) for paragraph in article["paragraphs"]]
    return [
        (paragraph["context"].strip(), [question["question"].strip() for question in paragraph["qas"]])
        for paragraph in paragraphs
    ]
