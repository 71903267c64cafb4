"""The commands on docs/recipes.md are parsed as they are printed, and run on tiny models."""

import json
import re
import shlex
import shutil
from argparse import ArgumentParser
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas
import pytest

from nas.compress import command as compress
from nas.export import command as export
from supernet import cut_vocabulary
from tests import requirements
from tests.checkout import ROOT
from tests.nas.rows import tagged
from tests.nas.tiny_study import TinyStudy, corpus
from tests.sentences import save_reranker, save_sentence_encoder

PAGE = ROOT / "docs" / "recipes.md"
PROGRAMS: dict[str, tuple[Callable[[], ArgumentParser], Callable[[list[str]], int]]] = {
    "nas.compress": (compress.parser, compress.main),
    "nas.export": (export.parser, export.main),
    "supernet.cut_vocabulary": (cut_vocabulary.parser, cut_vocabulary.main),
}
# What is too large for two tiny layers, and latencies, which take long to measure.
SMALLER = {
    "--max-latency 0.3x --runtime onnx-int8 --threads 1": "--max-params 12000",
    "--max-latency 0.5x": "--max-params 12000",
    "--max-params 15M": "--max-params 12000",
    "--max-size 8MB --runtime onnx-int8": "--max-params 10000",
    "--vocab-size 8000": "--vocab-size 60",
}
MORE = {
    "nas.compress": "--max-length 24 --steps 2 --device cpu --quiet",
    "nas.export": "--skip-latency --skip-scores --quiet",
    "supernet.cut_vocabulary": "--max-length 24 --quiet",
}


def recipes() -> dict[str, list[str]]:
    """The commands of every section."""
    _, *sections = PAGE.read_text(encoding="utf-8").split("\n## ")
    return {text.splitlines()[0]: re.findall(r"^    python -m (.*)$", text, re.M) for text in sections}


@pytest.mark.parametrize("command", [one for of_section in recipes().values() for one in of_section])
def test_it_parses(command: str) -> None:
    program, *words = shlex.split(command)
    PROGRAMS[program][0]().parse_args(words)


def write_files(study: TinyStudy) -> None:
    """The files that the recipes name, in the working directory."""
    texts = list(dict.fromkeys(corpus().texts))[:300]
    Path("texts.txt").write_text("\n".join(texts))
    pairs = [{"query": text.split()[0], "passage": text} for text in texts[:40]]
    Path("pairs.jsonl").write_text("\n".join(map(json.dumps, pairs)))
    Path("candidates.jsonl").write_text("\n".join(json.dumps({**pair, "relevant": 1}) for pair in pairs))
    columns: Any = zip(corpus().texts, corpus().sources, strict=True)
    rows = pandas.DataFrame({"review": text, "stars": source == "numpy"} for text, source in columns)
    rows = rows.sample(frac=1.0, random_state=0)
    rows[:240].to_csv("train.csv", index=False)
    rows[240:320].to_csv("dev.csv", index=False)
    Path("FOLDER").mkdir()
    tagged(Path("FOLDER"))
    for name in ("CLASSIFIER", "TAGGER"):
        shutil.copytree(study.teacher, name)


@pytest.mark.slow
@pytest.mark.parametrize("section", recipes())
def test_it_runs(section: str, shared_study: TinyStudy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    requirements.module("onnxruntime", "onnx")
    monkeypatch.setenv("FFN_NAS_CACHE", str(shared_study.cache))
    monkeypatch.chdir(tmp_path)
    write_files(shared_study)
    commands = recipes()[section]
    if "ENCODER" in commands[0]:
        save_sentence_encoder(shared_study, Path("ENCODER"))
    if "RERANKER" in commands[0]:
        save_reranker(shared_study, Path("RERANKER"))
    for command in commands:
        for large, small in SMALLER.items():
            command = command.replace(large, small)
        program, *words = shlex.split(command)
        # The tiny models are no fine-tuned ones.
        trained = "--embeddings" in words or "--reranking" in words or program != "nas.compress"
        first = [] if trained else ["--finetune-teacher", "20"]
        assert PROGRAMS[program][1]([*words, *MORE[program].split(), *first]) == 0
    assert (tmp_path / "student" / "metrics.json").exists()
    assert ("nas.export" in commands[-1]) == (tmp_path / "export" / "onnx" / "model.onnx").exists()
