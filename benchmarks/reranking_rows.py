"""Writes pairs of questions and sentences of SQuAD, to train and measure rerankers with.

The sentence in which the answer begins is relevant. The others are sentences of the same paragraph and, after these, of
the next two. train.jsonl and dev.jsonl have up to three others for a question, of 8,000 and 500 questions of the
training rows; ranked.jsonl has up to twelve, of --ranked questions of the dev rows. With `--others 1`, the
nearest sentence, half of the pairs are relevant, as in QNLI.
"""

import json
import random
import re
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.common import Report, squad_articles
from foundation.files import write_text

TRAINED, HELD_OUT = 8000, 500

# A question, the sentence with its answer, and others, the nearest ones first.
Example = tuple[str, str, list[str]]


def add_options(parser: ArgumentParser) -> None:
    parser.add_argument("--squad", type=Path, required=True, metavar="DIR", help="train*.json and dev*.json of SQuAD")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="the folder to write to")
    parser.add_argument("--ranked", type=int, default=500, help="questions of ranked.jsonl; default: %(default)s")
    parser.add_argument("--others", type=int, help="number of others of a question in all files, the nearest")


def run(options: Namespace, report: Report) -> None:
    shuffle = random.Random(0).shuffle
    nearest = options.others is not None
    train, dev = (list(_examples(options.squad, split, nearest)) for split in ("train", "dev"))
    shuffle(train)
    shuffle(dev)
    options.out.mkdir(parents=True, exist_ok=True)
    few, many = (options.others, options.others) if nearest else (3, 12)
    held_out = train[TRAINED:][:HELD_OUT]
    sets = (("train", train[:TRAINED], few), ("dev", held_out, few), ("ranked", dev[: options.ranked], many))
    table, counts = [], {}
    for name, examples, others in sets:
        rows = [json.dumps(row) for example in examples for row in _rows(example, others)]
        write_text(options.out / f"{name}.jsonl", "".join(f"{row}\n" for row in rows))
        counts[name] = {"questions": len(examples), "rows": len(rows)}
        table.append([name, f"{len(examples):,}", f"{len(rows):,}"])
    report.save(counts, seeds=[0])
    report.table(["file", "questions", "rows"], table)


def _rows(example: Example, others: int) -> Iterator[dict[str, Any]]:
    question, answer, wrong = example
    for sentence in (answer, *wrong[:others]):
        yield {"query": question, "passage": sentence, "relevant": int(sentence == answer)}


def _examples(squad: Path, split: str, nearest: bool) -> Iterator[Example]:
    for article in squad_articles(squad, split):
        sentences = [re.split(r"(?<=[.!?]) +", paragraph["context"].strip()) for paragraph in article["paragraphs"]]
        for number, paragraph in enumerate(article["paragraphs"]):
            own, nearby = sentences[number], [one for of in sentences[number + 1 :][:2] for one in of]
            ends, end = [], 0
            for sentence in own:
                end = paragraph["context"].index(sentence, end) + len(sentence)
                ends.append(end)
            for question in paragraph["qas"]:
                start = question["answers"][0]["answer_start"]
                answer = next((place for place, end in enumerate(ends) if start < end), len(own) - 1)
                others = [place for place in range(len(own)) if place != answer]
                if nearest:
                    others.sort(key=lambda place: abs(place - answer))
                yield question["question"].strip(), own[answer], [*(own[place] for place in others), *nearby]
