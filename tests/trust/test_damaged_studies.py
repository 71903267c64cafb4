"""Damaged files in the folder of a study: every command that reads it refuses them in one line, or reads them."""

from collections.abc import Callable
from pathlib import Path

import pytest

from distill.cli import guard
from foundation.errors import UserError
from nas.__main__ import main as overview
from nas.config.schema import StudyConfig
from nas.inspect import main as inspect
from nas.pick import main as pick
from nas.planning.stages import start_of
from nas.report.study import read
from nas.study.folder import Folder
from tests.nas.tiny_study import TinyStudy
from tests.trust.mutations import case, damaged, fresh
from tests.trust_counts import Cases


@pytest.mark.trust
def test_damaged_studies(
    tiny_study: TinyStudy,
    searched: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    cases: Callable[..., Cases],
) -> None:
    """A damaged file of a study: the commands that read it refuse it in one line, or succeed."""
    counts = cases(sample=8, full=2_000)
    whole, out = tmp_path / "whole", tmp_path / "out"
    fresh(searched.parent, whole)
    study = out / searched.name
    folder, config = Folder(study), tiny_study.config
    commands: dict[str, Callable[[], object]] = {
        "nas": lambda: overview(["--out", str(out)]),
        "nas.inspect": lambda: inspect([str(study)]),
        "nas.inspect best.json": lambda: inspect([str(folder.best("1"))]),
        "nas.pick": lambda: pick([str(study), "--max-params", "1G"]),
        "nas.report": lambda: guard("nas.report", lambda: int(read(folder) is None)),
        "nas.search": lambda: guard("nas.search", lambda: int(begin(folder, config) is None)),
    }
    for done in damaged(counts, 0, whole, out, within=searched.name):
        for name, command in commands.items():
            capsys.readouterr()
            with case(counts, f"{done}, {name}"):
                try:
                    status = command()
                except SystemExit as error:
                    status = error.code
                if status != 0:
                    assert status == 2
                    raise UserError(capsys.readouterr().err.removesuffix("\n"))
    assert counts["refused"] and counts["read"]


def begin(folder: Folder, config: StudyConfig) -> object:
    """What a search with `--resume` reads of its folder before it starts."""
    folder.check(config, ("1",), resume=True)
    return folder.outcome("1"), start_of(folder, "2", None)
