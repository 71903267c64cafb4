"""The benchmark of recipes at its smallest size, with objectives and with mixtures."""

import json
from pathlib import Path

import pytest

from benchmarks.__main__ import main
from benchmarks.recipes import MIXTURES, OBJECTIVES
from distill.objectives import OBJECTIVES as KNOWN
from tests.benchmarks.tables import cells_of
from tests.tiny import bert, saved


def test_every_objective_is_compared() -> None:
    without_labels = {"embeddings", "reranking"}
    assert {setting.objective for setting in OBJECTIVES.values()} == set(KNOWN) - without_labels


@pytest.mark.parametrize(
    ("options", "baseline", "only"),
    [
        (["--layers", "1"], "none", ["microbert, 4 head experts", "4 experts", "kd, assistant"]),
        (
            ["--mixtures"],
            "usual",
            ["order random", "token gate, top 2", "1 expert", "width 4/3", "last layer", "labels alone"],
        ),
    ],
)
def test_the_smallest_run(
    options: list[str], baseline: str, only: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert {baseline, *only} <= set(MIXTURES if "--mixtures" in options else OBJECTIVES)
    path, teacher = tmp_path / "raw.json", tmp_path / "teacher"
    model = bert(labels=2)
    model.config.id2label = {0: "negative", 1: "positive"}
    saved(model, teacher, ["good", "bad", "film"])
    data = ["--task", "sst2", "--data", str(rows_of_glue(tmp_path)), "--max-length", "8"]
    small = [*data, "--width", "12", "--steps", "2"]
    command = ["recipes", str(teacher), *options, *small, "--seeds", "1", "2", "--json", str(path)]
    assert main([*command, "--only", *only]) == 0
    lines = cells_of(capsys.readouterr().out)
    assert set(lines) == {"setting", baseline, *only}
    assert lines["setting"][2] == f"minus {baseline}"
    rows = json.loads(path.read_text())["results"]["measured"]
    assert set(rows) == {f"{name}, seed {seed}" for name in (baseline, *only) for seed in (1, 2)}
    assert all(0 <= row["after"] <= 1 for row in rows.values())
    if "--mixtures" in options:
        loads = {name: row["highest load"] for name, row in rows.items()}
        assert loads["1 expert, seed 1"] == 1 <= loads["usual, seed 1"] <= 4
        assert loads["usual, seed 1"] != loads["usual, seed 2"]  # seeds have tables of their own

    assert main([*command, "--only", "nothing"]) == 2
    assert "--only: there is no setting 'nothing'; there are " in capsys.readouterr().err


def rows_of_glue(folder: Path) -> Path:
    """A folder with few rows in the layout of SST-2."""
    (folder / "SST-2").mkdir()
    for name, count in (("train", 400), ("dev", 20)):
        rows = (f"{'good' if row % 2 else 'bad'} film\t{row % 2}\n" for row in range(count))
        (folder / "SST-2" / f"{name}.tsv").write_text("sentence\tlabel\n" + "".join(rows))
    return folder
