"""The code on docs/python.md works as it is printed, on a tiny teacher and its rows."""

import re
import shutil
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pandas
import pytest

from distill import distil
from nas import studies
from nas.compress.python import Compressed
from nas.final.run import FinalRun
from nas.search.run import SearchRun
from tests.checkout import ROOT
from tests.nas.report import synthetic
from tests.nas.tiny_study import TinyStudy, corpus

PAGE = ROOT / "docs" / "python.md"
# What is too large for two tiny layers, and latencies, which take seconds to measure.
SMALLER = {
    '"uniform:3"': '"uniform:1"',
    "steps=500": "steps=3, max_length=24",
    'max_latency="0.3x"': "max_params=12_000, max_length=24, steps=2",
    '"uniform:2"': '"uniform:1"',
    'max_latency="4ms"': 'max_params="1M"',
    'study.front("latency")': 'study.front("params")',
    'candidate.costs["latency"]': 'candidate.costs["params"]',
}


def code() -> list[str]:
    """The code of every section of the page."""
    return re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.M | re.S)


def classifier(tiny_study: TinyStudy) -> None:
    """Write a fine-tuned classifier, and its rows, to the working directory."""
    stars = {"python": "five", "numpy": "one"}
    pairs = zip(corpus().texts, corpus().sources, strict=True)
    rows = [{"review": text, "stars": stars[source]} for text, source in pairs if source in stars]
    frame = pandas.DataFrame(rows).sample(frac=1.0, random_state=0)
    frame[:240].to_csv("train.csv", index=False)
    frame[240:320].to_csv("dev.csv", index=False)
    recipe = {"steps": 60, "batch_size": 16, "learning_rate": 2e-3, "max_length": 24}
    columns = {"text": "review", "label": "stars"}
    distil(tiny_study.teacher, frame[:240], objective="none", **recipe, **columns, device="cpu").save("my-classifier")


def test_the_page(
    tiny_study: TinyStudy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The search and the final training, which other tests run, are only asked for."""
    asked: list[Any] = []

    def search(run: SearchRun, progress: object) -> None:
        asked.append(run)
        synthetic.write(run.path, trials=12)

    def train(run: FinalRun, *_: object) -> None:
        asked.append(run)
        shutil.copytree("student", run.out, dirs_exist_ok=True)

    monkeypatch.setattr(studies.pipeline, "run_search", search)
    monkeypatch.setattr(studies, "train_final", train)
    monkeypatch.chdir(tmp_path)
    classifier(tiny_study)
    page = ModuleType("page")
    text = "\n".join(code())
    for large, small in SMALLER.items():
        assert large in text
        text = text.replace(large, small)
    monkeypatch.setitem(sys.modules, "page", page)
    exec(compile(text, str(PAGE), "exec"), page.__dict__)
    searched, trained = asked
    rows = searched.config.rows["reviews"]
    assert (searched.stages, rows.train, searched.config.stage1.trials) == (("1",), str(tmp_path / "train.csv"), 40)
    assert trained.architecture == page.fast.architecture and trained.skip_base
    assert isinstance(page.final, Compressed) and page.final.architecture == Compressed.load("student").architecture
    assert page.small.student.config.num_hidden_layers == 1
    assert {"report.html", "front.png", "three-layers", "fast-student"} <= {file.name for file in tmp_path.iterdir()}
    printed = capsys.readouterr().out
    assert "accuracy − teacher's" in printed and repr(page.study.best) in printed
    assert "results/others is not a study's folder: it has no config.toml" in printed
