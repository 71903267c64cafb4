"""End-to-end runs of commands with one damaged file in the checkpoint or the data."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from transformers.utils import logging as transformers_logging

from distill.__main__ import main as distill
from foundation.errors import UserError
from nas.final.command import main as train_final
from supernet.cut_vocabulary import main as cut_vocabulary
from supernet.experts.command import main as experts
from supernet.prune import main as prune
from tests.tiny import bert, saved
from tests.trust.mutations import case, damaged
from tests.trust_counts import Cases

ROWS = ["--task", "cola", "--data", "rows", "--device", "cpu"]
# Every command reads the folders `checkpoint` and `rows`, and writes to the folder `out` if it writes anything.
COMMANDS: dict[str, Callable[[], int]] = {
    "train_final --evaluate": lambda: train_final(["--evaluate", "checkpoint", *ROWS, "--quiet"]),
    "supernet.experts": lambda: experts(
        ["checkpoint", *ROWS, "--experts", "2", "--importance-batches", "1", "--steps", "1", "--out", "out"]
    ),
    "supernet.prune": lambda: prune(
        ["checkpoint", *ROWS, "--keep-params", "50%", "--importance-batches", "1", "--out", "out"]
    ),
    "supernet.cut_vocabulary": lambda: cut_vocabulary(["checkpoint", *ROWS, "--out", "out"]),
    "distill": lambda: distill(
        ["--teacher", "checkpoint", "--student", "first:1", *ROWS, "--steps", "1", "--quiet", "--out", "out"]
    ),
}


@pytest.fixture(autouse=True)
def own_verbosity() -> Iterator[None]:
    """Transformers keeps its verbosity for the whole process."""
    verbosity = transformers_logging.get_verbosity()
    yield
    transformers_logging.set_verbosity(verbosity)


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    """A folder with a checkpoint and with official files of CoLA."""
    folder = tmp_path / "whole"
    saved(bert(labels=2), folder / "checkpoint")
    (folder / "rows" / "CoLA").mkdir(parents=True)
    for name, rows, last in (("train", 12, ""), ("dev", 6, " w1")):
        lines = [f"x\t{row % 2}\t\tw{1 + row} w{2 + row % 5}{last}" for row in range(rows)]
        (folder / "rows" / "CoLA" / f"{name}.tsv").write_text("\n".join(lines) + "\n")
    return folder


@pytest.mark.trust
@pytest.mark.parametrize("name", COMMANDS)
def test_damaged_files(
    name: str, whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], cases: Callable[..., Cases]
) -> None:
    """A damaged file of checkpoint or rows: the command succeeds, or refuses it in one line and leaves no model."""
    counts = cases(sample=10, full=1_000)
    run, copy = COMMANDS[name], tmp_path / "copy"
    for done in damaged(counts, name, whole, copy):
        capsys.readouterr()
        with case(counts, done, well="done"), contextlib.chdir(copy):
            status, said = run(), capsys.readouterr().err
            if status == 0:
                assert said == ""
                assert name == "train_final --evaluate" or (copy / "out" / "model.safetensors").exists()
            else:
                assert status == 2 and said.startswith(name.split()[0])
                assert {path.name for path in copy.glob("out/**/*")} <= {"options.json"}
                raise UserError(said.removesuffix("\n"))
    assert counts["done"] and counts["refused"]
