"""Small data sets of every kind, in the vocabulary of the tiny study's teacher, which can learn from them."""

import json
import re
import tomllib
from fractions import Fraction
from pathlib import Path
from typing import Any

import tomli_w

from nas.config.load import load_config
from nas.preparation.workspace import base_of_study
from search_spaces import Architecture
from tests.nas.tiny_study import SOURCES, TinyStudy, corpus

TRAIN, DEV = slice(0, 120), slice(120, 160)
PARTS = {"train": TRAIN, "dev": DEV}


def sentences() -> list[tuple[str, str]]:
    """Sentences with their libraries, in which the libraries alternate."""
    text = corpus()
    places = [[place for place, source in enumerate(text.sources) if source == library] for library in SOURCES]
    return [(text.texts[place], text.sources[place]) for turn in zip(*places, strict=True) for place in turn]


def words(sentence: str) -> list[str]:
    return re.findall(r"\w+", sentence.lower())


def table(folder: Path) -> dict[str, str]:
    """Files of rows by the names of their splits, with the columns one and two (sentences), lib (class), share (number)
    and letters (the classes b and d: with which letters words begin).
    """
    files = {}
    for name, part in PARTS.items():
        rows = [
            f"{text}\t{text.split()[0]}.\t{source}\t{sum(word[0] < 'l' for word in words(text)) / 8}\t"
            + ",".join(sorted({word[0] for word in words(text)} & {"b", "d"}))
            for text, source in sentences()[part]
        ]
        files[name] = str(folder / f"{name}.tsv")
        Path(files[name]).write_text("\n".join(["one\ttwo\tlib\tshare\tletters", *rows]) + "\n")
    return files


def tagged(folder: Path) -> Path:
    """CoNLL's train.txt and dev.txt, in which words that begin with "b" or "d" are entities."""
    tags = {"b": "B-BEE", "d": "B-DEE"}
    for name, part in PARTS.items():
        blocks = [
            "\n".join(f"{word} {tags.get(word[0], 'O')}" for word in words(text)) for text, _ in sentences()[part]
        ]
        (folder / f"{name}.txt").write_text("\n\n".join(blocks) + "\n")
    return folder


def questions(folder: Path) -> Path:
    """SQuAD's train.json and dev.json, in which the answer to every question is the sentence's last word."""
    for name, part in PARTS.items():
        paragraphs = []
        for number, (text, _) in enumerate(sentences()[part]):
            asked, last = words(text)[0], text[:-1].split()[-1]
            answer = {"text": last, "answer_start": text.rindex(last)}
            paragraphs.append({"context": text, "qas": [{"id": f"{number}", "question": asked, "answers": [answer]}]})
        content = {"version": "1.1", "data": [{"title": "", "paragraphs": paragraphs}]}
        (folder / f"{name}.json").write_text(json.dumps(content))
    return folder


def study(tiny_study: TinyStudy, folder: Path, kind: str, **changes: Any) -> Path:
    """Write a preset and its data to this folder; returns the preset."""
    folder.mkdir(parents=True, exist_ok=True)
    preset = tomllib.loads(tiny_study.preset.read_text())
    preset["finetune"]["steps"] = 150
    files = table(folder)
    mine = {"mine": files | {"text": "one", "pair": "two", "label": "lib"}}
    number = {"number": files | {"text": "one", "label": "share", "regression": True}}
    letters = {"letters": files | {"text": "one", "label": "letters", "multi_label": True, "class_weights": "balanced"}}
    tables: dict[str, dict[str, Any]] = {
        "rows": {"tasks": ["mine"], "rows": mine},
        "regression": {"tasks": ["number"], "rows": number},
        "multi_label": {"tasks": ["letters"], "rows": letters},
        "both": {"tasks": ["mine", "number"], "rows": mine | number},
        "tagging": {"tasks": ["conll"], "data": str(tagged(folder))},
        "questions": {"tasks": ["squad"], "data": str(questions(folder))},
    }
    path = folder / f"{kind}.toml"
    path.write_text(tomli_w.dumps(preset | tables[kind] | changes))
    return path


def half_width(preset: Path, folder: Path) -> Path:
    """Write an architecture for the studies of this preset to the folder, with FFNs half as wide as the base's; returns
    its file.
    """
    base, graph = base_of_study(load_config(str(preset)))
    path = folder / "architecture.json"
    Architecture.uniform(base, graph=graph, expansion=Fraction(1, 2)).save(path)
    return path
