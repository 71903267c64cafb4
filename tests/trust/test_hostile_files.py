"""Damaged and hostile files: every parser refuses them in one line that names the file, or reads them. Graphs,
architectures and presets are then written back the same; of text and questions nothing is lost or added.
"""

import io
import json
import logging
import random
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyarrow import parquet

from distill.tasks.readers import conll, glue, squad, tables, texts
from nas.config.load import load_config
from search_spaces import PUBLISHED, Architecture, FFNGraph
from search_spaces.layer import Experts
from tests.trust.mutations import WEIRD, case, mutated, places, replaced
from tests.trust_counts import Cases


def graph(path: Path) -> None:
    parsed = FFNGraph.parse(path.read_bytes().decode("utf-8", "surrogateescape"))
    assert FFNGraph.parse(str(parsed)) == parsed


def architecture(path: Path) -> None:
    parsed = Architecture.load(path)
    assert Architecture.from_json(json.loads(json.dumps(parsed.to_json()))) == parsed


def preset(path: Path) -> None:
    config = load_config(str(path))
    path.write_text(config.to_toml())
    assert load_config(str(path)) == config


def sentences(path: Path) -> None:
    for parsed in conll.read(path):
        assert all(word and tag for word, tag, _ in parsed)


def rows(path: Path) -> None:
    split, names = tables.read_rows(path, "sentence", "label")
    assert len(split.texts) == len(split.labels) and set(split.labels) <= set(range(len(names)))


def task(name: str) -> Callable[[Path], None]:
    def read(path: Path) -> None:
        split = glue.read(glue.TASKS[name], path)
        assert len(split.texts) == len(split.labels) > 0

    return read


def questions(path: Path) -> None:
    split = squad.read(path)
    given = [
        (question["id"], question["question"], paragraph["context"])
        for article in json.loads(path.read_bytes())["data"]
        for paragraph in article["paragraphs"]
        for question in paragraph["qas"]
    ]
    assert given == list(zip(split.ids, split.questions, split.contexts, strict=True)) != []
    for context, answers in zip(split.contexts, split.answers, strict=True):
        assert all(context[start:].startswith(answer) for answer, start in answers)


def paragraphs(path: Path) -> None:
    parsed = [line for line in texts.read_paragraphs(path) if line]
    lines = [line.strip() for line in path.read_bytes().decode("utf-8-sig").split("\n")]
    headings = {line for line in lines if len(line) > 3 and line.startswith("= ") and line.endswith(" =")}
    assert parsed == [line for line in lines if line and line not in headings] != []


GRAPHS = ["project(gelu(expand(x)))", "tanh(project(mul(relu(expand(x)),gate(x))))", "max(project(swish(expand(x))),x)"]
EXPERTS = {"count": 4, "shared": "2/3", "routing": "token_gate", "capacity": "5/4"}
MIXTURE = PUBLISHED["moebert"].to_json()
MIXTURE["layers"] = MIXTURE["layers"][:1] * 12
DEMO = load_config("demo-ffn").to_toml()
SQUAD = {
    "version": "1.1",
    "data": [
        {
            "title": "T",
            "paragraphs": [
                {
                    "context": "The café is on the left bank.",
                    "qas": [
                        {"id": "1", "question": "Where?", "answers": [{"text": "left bank", "answer_start": 19}]},
                        {"id": "2", "question": "Why?", "is_impossible": True, "answers": []},
                    ],
                }
            ],
        }
    ],
}
SENTENCES = "sentence\tlabel\nA gripping film.\t1\nDull.\t0\n“Zu lang” — 3/10\t0\n"


def parquet_file() -> bytes:
    """The rows of `SENTENCES`."""
    buffer = io.BytesIO()
    lines = [line.split("\t") for line in SENTENCES.splitlines()]
    parquet.write_table(pyarrow.table(dict(zip(lines[0], zip(*lines[1:], strict=True), strict=True))), buffer)
    return buffer.getvalue()


# Parser -> what it parses, the ending of its files, and files to begin with.
PARSERS: dict[str, tuple[Callable[[Path], None], str, Sequence[str | bytes]]] = {
    "graphs": (graph, "txt", GRAPHS),
    "architectures": (
        architecture,
        "json",
        [
            json.dumps(PUBLISHED["efficientbert"].to_json()),
            json.dumps(MIXTURE),
            json.dumps(PUBLISHED["base"].to_json()),
        ],
    ),
    "presets": (preset, "toml", [DEMO, 'extends = "efficientbert"\nseed = 3\n[space]\nmax_params = "3M"\n']),
    "tables, tsv": (rows, "tsv", [SENTENCES]),
    "tables, csv": (rows, "csv", ['sentence,label\n"A, b ""c""",yes\nd,no\n']),
    "tables, jsonl": (rows, "jsonl", ['{"sentence": "a", "label": "yes"}\n{"sentence": "b", "label": "no"}\n']),
    "tables, parquet": (rows, "parquet", [parquet_file()]),
    "SST-2": (task("sst2"), "tsv", [SENTENCES]),
    "QQP": (
        task("qqp"),
        "tsv",
        ["id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n1\t2\t3\tWhy?\tHow?\t0\n2\t4\t5\tA?\tB?\t1\n"],
    ),
    "CoNLL": (sentences, "conll", ["-DOCSTART- -X- O O\n\nEU NNP B-NP B-ORG\nrejects VBZ B-VP O\n\nPeter NNP I-PER\n"]),
    "SQuAD": (questions, "json", [json.dumps(SQUAD)]),
    "text": (paragraphs, "txt", [" = Title = \n\nA sentence.\nAnother one.\n"]),
}
# No case may take longer than this many seconds of the processor's time: most take a millisecond.
PROCESSOR_SECONDS = 5.0


def examples(name: str) -> list[bytes]:
    """The files with which mutations of a parser's files begin."""
    return [file if isinstance(file, bytes) else file.encode() for file in PARSERS[name][2]]


def refusal_place(name: str, path: Path) -> Path | None:
    """What a refusal names: the file, but for graphs, which are given as text."""
    return None if name == "graphs" else path


@pytest.mark.trust
@pytest.mark.parametrize("name", PARSERS)
def test_mutated_files(name: str, tmp_path: Path, cases: Callable[..., Cases]) -> None:
    """Mutated files are refused in one line, or read."""
    given, (parse, ending, _) = examples(name), PARSERS[name]
    counts = cases(sample=300, full=100_000)
    logging.disable(logging.WARNING)  # of QQP's malformed lines
    rng, path = random.Random(name), tmp_path / f"given.{ending}"
    try:
        for number in range(counts.wanted):
            content = mutated(rng, rng.choice(given))
            path.write_bytes(content)
            began = time.process_time()
            with case(counts, f"case {number}: {content[:2000]!r}", refusal_place(name, path)):
                parse(path)
            assert time.process_time() - began < PROCESSOR_SECONDS, f"case {number}: {content[:2000]!r}"
    finally:
        logging.disable(logging.NOTSET)
    assert counts["refused"] and counts["read"]


@pytest.mark.trust
@pytest.mark.parametrize("read", [Architecture.from_json, Experts.from_json], ids=["architectures", "experts"])
def test_strange_values(read: Callable[[Any], Any], cases: Callable[..., Cases]) -> None:
    """Architectures and experts in valid JSON, of which one or two values are anything else."""
    counts = cases(sample=500, full=100_000)
    rng, names = random.Random(0), ("efficientbert", "moebert", "minimoe-4l-192h", "base")
    given = [EXPERTS] if read == Experts.from_json else [PUBLISHED[name].to_json() for name in names]
    for number in range(counts.wanted):
        value: Any = rng.choice(given)
        for _ in range(rng.randint(1, 2)):
            value = replaced(value, rng.choice(places(value)), rng.choice(WEIRD))
        with case(counts, f"case {number}: {json.dumps(value)}"):
            parsed = read(value)
            assert read(parsed.to_json()) == parsed
    assert counts["refused"] and counts["read"]
