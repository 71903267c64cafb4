"""`python -m nas.compare`: layers, costs and paired differences of architectures, studies and checkpoints."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import norm

from nas.compare import main
from nas.config.load import load_config
from nas.report.architecture import describe
from nas.study.attributes import FUNCTION, ROWS, attribute
from nas.study.contributions import decode, metric_of_rows
from nas.study.folder import Folder
from search_spaces import PUBLISHED, Architecture
from search_spaces.equivalence import function_key
from tests.commands import Refused
from tests.nas.report import synthetic
from tests.nas.tiny_study import TinyStudy, trials_of


@pytest.fixture(scope="module")
def studies(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two studies of the same task, of which the second has another winner."""
    folder = tmp_path_factory.mktemp("studies")
    one = synthetic.write(folder / "one", trials=10)
    other = synthetic.write(folder / "other", trials=12, stages=("1", "2"))
    return one, other


def compared(capsys: pytest.CaptureFixture[str], *arguments: object) -> dict[str, Any]:
    assert main([*map(str, arguments), "--json"]) == 0
    result: dict[str, Any] = json.loads(capsys.readouterr().out)
    return result


def rows_of(study: Path, architecture: Architecture) -> dict[int, np.ndarray]:
    """The contributions of the rows by seed, read from the database."""
    return {
        trial.user_attrs["seed"]: decode(attribute(trial, ROWS))
        for trial in trials_of(study, "confirmation")
        if attribute(trial, FUNCTION) == function_key(architecture)
    }


def test_layers_and_costs(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    mine = Architecture.uniform(synthetic.BASE)
    mine.save(tmp_path / "mine.json")
    found = compared(capsys, "efficientbert", tmp_path / "mine.json", "--labels", 5)
    assert (found["tokens"], found["labels"]) == (64, 5)  # as many positions as the smaller base has
    for item, architecture in zip(found["items"], (PUBLISHED["efficientbert"], mine), strict=True):
        assert {key: item[key] for key in item if key != "name"} == describe(architecture, 64, 5)
    assert found["differences"] == [] and len(found["notes"]) == 2
    assert main(["efficientbert", str(tmp_path / "mine.json"), "moebert"]) == 0
    printed = capsys.readouterr().out
    assert "4×270 tanh(project(gelu(expand(x))))" in printed
    assert "1×768 (4 hash, shared 2/3) project(gelu(expand(x)))" in printed
    params = [describe(architecture, 64, 3)["params"] for architecture in (PUBLISHED["efficientbert"], mine)]
    assert f"{params[1]:,} ({params[1] / params[0]:.1%})" in printed
    assert "layer 12" in printed  # of the deepest one
    assert "parameters with pooler and 3 outputs; MACs of a sentence of 64 tokens" in " ".join(printed.split())
    assert "attention and head" not in printed
    Architecture.of_ffns(mine.base, mine.ffns, attention_experts=3).save(tmp_path / "wide.json")
    assert main([str(tmp_path / "mine.json"), str(tmp_path / "wide.json")]) == 0
    printed = capsys.readouterr().out
    assert re.search(r"attention and head +3 experts in attention", printed)


def test_paired_differences_of_studies(studies: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    """Over the seeds that both have, on the same rows."""
    winners = [Architecture.load(study / "architecture.json") for study in studies]
    (difference,) = compared(capsys, *studies)["differences"]
    reference, own = (rows_of(study, winner) for study, winner in zip(studies, winners, strict=True))
    assert own.keys() == reference.keys() == {1, 2}
    assert difference["score"] == pytest.approx(np.mean([rows.mean() for rows in own.values()]))
    value = np.mean([own[seed].mean() - reference[seed].mean() for seed in (1, 2)])
    error = difference["standard_error"]
    assert error > 0
    assert difference["value"] == pytest.approx(value)
    assert difference["p"] == pytest.approx(2 * (1 - norm.cdf(abs(value) / error)))
    assert difference["interval"] == pytest.approx([value - 1.96 * error, value + 1.96 * error], abs=1e-4)
    assert (difference["seeds"], difference["rows"]) == ([1, 2], synthetic.ROW_COUNT)
    assert difference["on"] == "400 rows of the search split, 2 seeds"
    assert main([*map(str, studies)]) == 0
    assert f"{difference['value']:+.4f} ± {error:.4f}" in capsys.readouterr().out


def test_an_architecture_is_found_in_the_study_that_confirmed_it(
    studies: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    one, _ = studies
    synthetic.SLOPE.save(one.parent / "slope.json")
    (difference,) = compared(capsys, one, one.parent / "slope.json")["differences"]
    own = rows_of(one, synthetic.SLOPE)
    assert difference["score"] == pytest.approx(np.mean([rows.mean() for rows in own.values()]))


def test_rows_that_are_not_known(studies: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    one, _ = studies
    found = compared(capsys, one, "efficientbert")
    assert found["differences"] == []
    assert found["notes"] == ["efficientbert: no rows are known, as it was not confirmed in a study that was given"]


@pytest.mark.parametrize(
    ("task", "columns", "name"), [("cola", 4, "matthews_correlation"), ("mrpc", 3, "f1"), ("stsb", 6, "spearmanr")]
)
def test_metrics_that_are_no_means(task: str, columns: int, name: str) -> None:
    from distill.tasks.types import TASK_TYPES

    config = load_config("demo-ffn", {"tasks": [task]})
    kind = TASK_TYPES["regression" if task == "stsb" else "classification"]
    assert metric_of_rows(config, np.ones((2, columns))) is kind.metrics[name]
    rows = np.array([1.0, 0.0, 1.0, 1.0])
    assert metric_of_rows(config, rows).of_contributions(rows).value == 0.75


@pytest.mark.parametrize(
    ("columns", "kind", "name"),
    [
        ({}, "classification", "accuracy"),
        ({"metric": "matthews"}, "classification", "matthews"),
        ({"multi_label": True}, "multi_label_classification", "f1_micro"),
        ({"multi_label": True, "metric": "f1_macro"}, "multi_label_classification", "f1_macro"),
        ({"regression": True, "metric": "pearson"}, "regression", "pearson"),
    ],
)
def test_metrics_of_own_rows(columns: dict[str, Any], kind: str, name: str) -> None:
    from distill.tasks.types import TASK_TYPES

    config = load_config("minilm", {"tasks": ["mine"], "rows": {"mine": {"train": "a", "dev": "b"} | columns}})
    assert metric_of_rows(config, np.ones((2, 6))) is TASK_TYPES[kind].metrics[name]


def test_what_cannot_be_compared(studies: tuple[Path, Path], tmp_path: Path, refused: Refused) -> None:
    one, _ = studies
    for words, message in (
        ([one], "at least two things"),
        ([one, "eficientbert"], "neither a file nor a published architecture; did you mean 'efficientbert'"),
        (["base", one, "--tokens", 65], "has 64 positions, which is less than 65"),
        (["base", one, "--rows", 8], "--rows: is of checkpoints"),
    ):
        assert message in refused(main, *words)
    (tmp_path / "empty").mkdir()
    assert "neither a study's folder nor a checkpoint" in refused(main, one, tmp_path / "empty")
    (tmp_path / "empty" / "config.json").write_text("{}")
    assert "not a checkpoint of this project" in refused(main, one, tmp_path / "empty")
    another = tmp_path / "another"
    shutil.copytree(one, another)
    Folder(another).config.write_text(load_config("demo-ffn", {"tasks": ["neighbours"]}).to_toml())
    message = refused(main, one, another)
    assert "the task is 'neighbours' and 'word_order'" in message and "architecture.json" in message
    (another / "architecture.json").unlink()
    assert "none of its stages has ended" in refused(main, one, another)


def test_other_rows_are_refused(
    studies: tuple[Path, Path], tmp_path: Path, refused: Refused, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(synthetic, "ROW_COUNT", 300)
    fewer = synthetic.write(tmp_path / "fewer", trials=6)
    assert "were scored on different rows: 300 and 400 of them" in refused(main, studies[0], fewer)
    # As many rows, but others of the training rows.
    others = shutil.copytree(studies[1], tmp_path / "others")
    stored = str(Folder(others).config)
    Folder(others).config.write_text(load_config(stored, {"search_fraction": 0.1}).to_toml())
    assert "the search_fraction is 0.1 and None" in refused(main, studies[0], others)
    # The labels of vectors are the teacher's.
    rows = {"own": {"train": "train.jsonl", "dev": "dev.jsonl", "text": "text", "embeddings": True}}
    for study, teacher in ((studies[1], "one"), (others, "other")):
        given = {"teacher": teacher, "tasks": ["own"], "rows": rows}
        (tmp_path / teacher).mkdir()
        shutil.copytree(study, tmp_path / teacher / "study")
        Folder(tmp_path / teacher / "study").config.write_text(load_config(stored, given).to_toml())
    message = refused(main, tmp_path / "one" / "study", tmp_path / "other" / "study")
    assert "the teacher is 'other' and 'one'" in message


@pytest.mark.slow
def test_checkpoints(tiny_study: TinyStudy, copied: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two final trainings are scored on the same dev split, as in their metrics; a report shows one of them."""
    for name, seed in (("final", 0), ("second", 1)):
        arguments = ("--out", copied / name, "--seed", seed, "--skip-base")
        result = tiny_study.run("train_final.py", copied / "architecture.json", *arguments)
        assert result.returncode == 0, result.stderr
    capsys.readouterr()
    (difference,) = compared(capsys, copied / "final", copied / "second")["differences"]
    scores = [
        json.loads((copied / name / "metrics.json").read_text())["models"]["student"]["accuracy"]["value"]
        for name in ("final", "second")
    ]
    assert difference["score"] == pytest.approx(scores[1])
    assert difference["value"] == pytest.approx(scores[1] - scores[0])
    assert difference["seeds"] == []

    from nas.report.command import main as report

    assert report([str(copied)]) == 0
    assert (copied / "report" / "losses.png").exists()
    page = (copied / "report.html").read_text()
    assert "After the final training" in page and f"{scores[0]:.4f}" in page
