"""Damaged files in the folder of a study: every command that reads it refuses them in one line, or reads them."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from distill.cli import guard
from nas.__main__ import main as overview
from nas.config.schema import StudyConfig
from nas.inspect import main as inspect
from nas.pick import main as pick
from nas.planning.stages import start_of
from nas.report.study import read
from nas.study.folder import Folder
from tests.nas.tiny_study import TinyStudy
from tests.trust.mutations import bounded, damage, fresh
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
    counts = cases(sample=25, full=2_000)
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
    rng = random.Random(0)
    for number in range(counts.wanted):
        fresh(whole, out)
        damage_done = damage(rng, study)
        for name, command in commands.items():
            status: object
            capsys.readouterr()
            try:
                with bounded():
                    try:
                        status = command()
                    except SystemExit as error:
                        status = error.code
                assert status in (0, 2)
                if status == 2:
                    assert capsys.readouterr().err.count("\n") == 1
                counts["refused" if status else "read"] += 1
            except Exception as error:
                raise AssertionError(f"case {number}, {name}: {damage_done}") from error
    assert counts["refused"] and counts["read"]


def begin(folder: Folder, config: StudyConfig) -> object:
    """What a search with `--resume` reads of its folder before it starts."""
    folder.check(config, ("1",), resume=True)
    return folder.outcome("1"), start_of(folder, "2", None)
